// The console: which page is shown, who looks, and what they may.

import { ask, Problem, token, watch } from "./api.js";
import { button, el, field, fill, form, link } from "./dom.js";
import { say } from "./actions.js";
import * as topics from "./topics.js";

const SCHEDULES = "dwell:schedules";
const looks = (me) => me.admin.length || me.read.length;
/** Tell whether somebody may see what there is of a topic. */
const sees = (me, topic) => may(me, "admin", topic) || may(me, "read", topic);
// Each page: what it is called in the menu, if it is there, who may see it, and what shows it. All but
// the first are loaded when they are wanted.
const PAGES = {
  topics: { label: "Topics", may: looks, page: () => topics.topicsPage },
  load: { label: "Coming load", may: looks, page: async () => (await import("./load.js")).loadPage },
  messages: { label: "Messages", may: (me) => looks(me) || me.put.length, page: async () => (await import("./messages.js")).messagesPage },
  dead: { label: "Dead letters", may: looks, page: async () => (await import("./dead.js")).deadPage },
  schedules: { label: "Schedules", may: (me) => sees(me, SCHEDULES), page: async () => (await import("./schedules.js")).schedulesPage },
  takers: { label: "Takers", may: looks, page: async () => (await import("./takers.js")).takersPage },
  health: { label: "Health", may: (me) => me.admin.includes("") || me.read.includes(""), page: async () => (await import("./health.js")).healthPage },
  put: { label: "Put", may: (me) => me.put.length, page: async () => (await import("./put.js")).putPage },
  topic: { may: looks, page: () => topics.topicPage },
  message: { may: (me) => looks(me) || me.put.length, page: async () => (await import("./messages.js")).messagePage },
  scheduleform: { may: (me) => may(me, "admin", SCHEDULES), page: async () => (await import("./scheduleform.js")).scheduleFormPage },
  schedule: { may: (me) => sees(me, SCHEDULES), page: async () => (await import("./schedules.js")).schedulePage },
};

const main = document.getElementById("main");
const nav = document.getElementById("nav");
const live = document.getElementById("live");
const leave = document.getElementById("leave");
let me = null;
let shown = new AbortController();

/** Tell whether somebody has a right on a topic. */
const may = (who, right, topic) => who[right].some((prefix) => topic.startsWith(prefix));

/** What a page is given: who looks, what its address says, and how it asks and hears. */
class Page {
  constructor(name, parameters, signal) {
    this.name = name;
    this.parameters = parameters;
    this.signal = signal;
    this.node = el("div", {});
    this.offset = me.offset;
  }

  get = (name, otherwise = "") => this.parameters.get(name) ?? otherwise;
  may = (right, topic) => may(me, right, topic);
  sees = (topic) => sees(me, topic);
  ask = (method, where, body) => ask(method, where, body, this.signal);
  /** What time it is at the server. */
  now = () => Date.now() + this.offset;
  title(...words) {
    document.title = `${words.map((word) => word.textContent ?? word).join(" ")} – Dwell`;
    return el("h1", {}, ...words);
  }

  /** Hear of what changes as long as the page is shown and looked at; `draw` is called every second, too. */
  watch(body, onevent, draw = null) {
    stream(body, onevent, this.signal);
    if (draw) every(1000, draw, this.signal);
  }

  every = (ms, work) => every(ms, work, this.signal);
}

function every(ms, work, signal) {
  const timer = setInterval(() => document.hidden || work(), ms);
  signal.addEventListener("abort", () => clearInterval(timer));
}

/** Keep a stream open; one that nobody looks at is closed, since a browser has few. */
async function stream(body, onevent, signal) {
  for (let wait = 500; !signal.aborted; wait = Math.min(2 * wait, 5000)) {
    while (document.hidden && !signal.aborted) await pause(200);
    const one = new AbortController();
    const hide = () => document.hidden && one.abort();
    document.addEventListener("visibilitychange", hide);
    signal.addEventListener("abort", () => one.abort(), { once: true });
    try {
      await watch(body, one.signal, (kind, data) => {
        wait = 500;
        fill(live, "live");
        if (kind === "problem") fill(live, `problem: ${data.detail}`);
        else if (data) onevent(kind, data);
      });
      if (!one.signal.aborted) await check();
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Problem && error.status === 401) return begin();
      if (error instanceof Problem && error.status === 403) return failed(error);
    } finally {
      document.removeEventListener("visibilitychange", hide);
    }
    if (signal.aborted) return;
    if (!document.hidden) fill(live, "connecting again …");
    await pause(wait);
  }
}

/** Ask whether the rights still hold after a stream has ended; raises what the answer is otherwise. */
async function check() {
  await ask("GET", "v1/rights");
}

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

/** Learn who looks, or ask for a token; then show the page. */
async function begin() {
  shown.abort();
  try {
    const found = await ask("GET", "v1/rights");
    me = { ...found, offset: found.now_ms - Date.now() };
  } catch (error) {
    me = null;
    fill(nav, []);
    leave.hidden = true;
    return error instanceof Problem && error.status === 401 ? login(token.get() ? error.message : "") : failed(error);
  }
  leave.hidden = !me.has_tokens;
  fill(leave, token.get() ? "Log out" : "Log in");
  return show();
}

function login(problem) {
  const node = el("div", {}, el("h1", {}, "Log in"),
    form("Log in", (given) => { token.set(given.token.trim()); begin(); },
      field("Token", "token", { type: "password", required: true, autofocus: true, wide: true, autocomplete: "off" }),
      el("button", { class: "main" }, "Log in")),
    el("p", { class: "soft" }, "It is kept in this tab until that is closed or you log out."),
    problem ? el("p", { class: "bad", role: "alert" }, problem) : null);
  token.set(null);
  document.title = "Log in – Dwell";
  fill(live, "");
  main.replaceChildren(node);
  first.reveal();
  node.querySelector("input").focus();
}

function failed(error) {
  const hidden = error instanceof Problem && (error.status === 403 || error.status === 404);
  fill(live, "");
  main.replaceChildren(el("h1", {}, hidden ? "There is nothing here" : "That did not work"),
    el("p", { role: "alert" }, hidden ? "Nothing of that name is there for you to see." : error.message),
    button("Try again", begin));
  first.reveal();
}

async function show() {
  shown.abort();
  shown = new AbortController();
  const { signal } = shown;
  const home = Object.keys(PAGES).find((name) => PAGES[name].may(me)) ?? "topics";
  const [name, text] = (location.hash.slice(2) || home).split("?");
  const page = PAGES[name];
  menu(name);
  if (!page || !page.may(me)) return failed(new Problem(404, ""));
  const one = new Page(name, new URLSearchParams(text ?? ""), signal);
  main.replaceChildren(one.node);
  one.node.append(el("p", { class: "soft" }, "…"));
  fill(live, "");
  try {
    const parts = await (await page.page())(one);
    if (!signal.aborted) one.node.replaceChildren(...parts.filter(Boolean));
    first.reveal();
  } catch (error) {
    if (signal.aborted) return null;
    return error instanceof Problem && error.status === 401 ? begin() : failed(error);
  }
  return null;
}

function menu(current) {
  const group = { topic: "topics", message: "messages", schedule: "schedules", scheduleform: "schedules" }[current] ?? current;
  const there = Object.entries(PAGES).filter(([, page]) => page.label && page.may(me));
  fill(nav, there.map(([name, page]) => {
    const one = link(page.label, name);
    if (name === group) one.setAttribute("aria-current", "page");
    return one;
  }));
}

addEventListener("hashchange", () => {
  if (!me) return;
  // Whoever reads or types goes on in what is new, unless he is in the menu.
  if (!nav.contains(document.activeElement)) main.focus();
  scrollTo(0, 0);
  show();
});
addEventListener("dwell-refresh", () => show());
addEventListener("unhandledrejection", (event) => {
  if (event.reason?.name === "AbortError") return event.preventDefault();
  if (event.reason instanceof Problem) { event.preventDefault(); say(event.reason.message, true); }
  return null;
});
leave.addEventListener("click", () => { token.set(null); me?.has_tokens && login(""); shown.abort(); fill(nav, []); leave.hidden = true; });
document.getElementById("skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
begin();
