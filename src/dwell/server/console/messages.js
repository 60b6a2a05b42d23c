// Messages: those that are looked for, and one with its history.

import { ask, path, Problem } from "./api.js";
import { changeAll, confirm, place as reached, refresh } from "./actions.js";
import { button, el, facts, field, fill, form, link, place, select, Table, their } from "./dom.js";
import { count, fieldOf, many, momentOf, size, span, time } from "./words.js";

const PART = 50;
const STATES = ["delayed", "ready", "leased", "dead"];
const SHORT = 160, LONG = 100_000;

/** Return a body as text, or say that it is none. */
function words(message, most) {
  if (message.body_base64 != null) return `(${size(bytes(message.body_base64).length)} that are not text)`;
  const text = message.body ?? "";
  return text.length > most ? `${text.slice(0, most)} …` : text;
}

const bytes = (text) => Uint8Array.from(atob(text), (one) => one.charCodeAt(0));

const columns = (topic) => [
  { label: "Id", show: (one) => link(their(one.id), "message", { topic, id: one.id }) },
  { label: "Due", show: (one) => time(one.due_ms) },
  { label: "Attempt", number: true, show: (one) => String(one.attempt) },
  { label: "Key", show: (one) => (one.key == null ? "–" : their(one.key)) },
  { label: "Last error", show: (one) => (one.last_error == null ? "–" : their(one.last_error.slice(0, SHORT))) },
  { label: "Body", show: (one) => el("code", {}, their(words(one, SHORT))) },
];

/** Return which messages the address of a page means, as the API has it. */
function filterOf(page) {
  const filter = {};
  for (const [name, word] of [["key", "key"], ["where", "where"], ["error", "error"]]) if (page.get(name)) filter[word] = page.get(name);
  if (page.get("from")) filter.due_from_ms = Number(page.get("from"));
  if (page.get("to")) filter.due_to_ms = Number(page.get("to"));
  return filter;
}

export async function messagesPage(page) {
  const topic = page.get("topic").trim(), state = STATES.includes(page.get("state")) ? page.get("state") : "delayed";
  const asked = form("Look for messages", (given) => {
    const { id, from, to, ...rest } = given;
    if (id) location.hash = place("message", { topic: given.topic, id });
    else location.hash = place("messages", { ...rest, from: momentOf(from), to: momentOf(to) });
  },
    field("Topic", "topic", { value: topic, required: true, maxlength: 200 }),
    select("State", "state", STATES.map((one) => [one, one]), state),
    field("Due from", "from", { type: "datetime-local", step: 1, value: fieldOf(page.get("from")) }),
    field("Due before", "to", { type: "datetime-local", step: 1, value: fieldOf(page.get("to")) }),
    field("Id", "id", { maxlength: 256 }), field("Key", "key", { value: page.get("key"), maxlength: 256 }),
    field("Part of the last error", "error", { value: page.get("error"), maxlength: 1000 }),
    field("Body (JMESPath)", "where", { value: page.get("where"), maxlength: 1000, wide: true, placeholder: "city == 'Rome'" }),
    el("button", { class: "main" }, "Look"));
  if (!topic) return [page.title("Messages"), asked, el("p", { class: "soft" }, "Name a topic.")];
  const filter = filterOf(page);
  const table = new Table(`Messages of ${topic} that are ${state}, by due`, columns(topic), (one) => one.id);
  const status = el("p", { role: "status" });
  const more = button("Look further", () => look());
  const found = [];
  let cursor = null;
  async function look() {
    more.disabled = true;
    const body = { ...filter, state, limit: PART, cursor };
    let answer;
    try {
      answer = await page.ask("POST", path`v1/topics/${topic}/find`, body);
    } finally {
      more.disabled = false;
    }
    found.push(...answer.messages);
    cursor = answer.cursor;
    table.show(found);
    fill(status, cursor ? `${many(found.length)} so far; looked at all that are due until ${reached(cursor)}Z.` : `${many(found.length)}: all that match.`);
    more.hidden = cursor === null;
  }
  await look();
  return [page.title("Messages of ", their(topic)), asked, status, acts(page, topic, state, filter), table.node, more];
}

/** What can be done to all messages that match. */
function acts(page, topic, state, filter) {
  if (state === "leased") return null;
  const body = { filter: { ...filter, states: [state] } };
  const which = `all that match in ${topic}`;
  const puts = page.may("put", topic);
  return el("div", { class: "row" },
    puts ? button("Cancel all that match …", () => changeAll(topic, "cancel", body, { title: `Cancel ${which}`, label: "Cancel them", kind: "bad", note: "They are forgotten for good." }), "bad") : null,
    puts && state !== "dead" ? button("Reschedule all that match …", () => changeAll(topic, "reschedule", { ...body, limit: 1_000_000 }, { title: `Reschedule ${which}`, label: "Reschedule", fields: [due()], more: dueOf })) : null,
    state === "dead" && page.may("admin", topic) ? button("Kick all that match …", () => redrive(topic, body.filter, which)) : null);
}

const due = () => field("Due at (your time)", "due", { type: "datetime-local", step: 1, required: true });
const dueOf = (given) => ({ due_ms: momentOf(given.due) });

/** Bring dead messages back, so many a second. */
export function redrive(topic, filter, which) {
  changeAll(topic, "kick", { filter, limit: 100_000 }, {
    title: `Kick ${which}`, label: "Kick them",
    fields: [field("How many a second (all at once when empty)", "pace", { type: "number", min: 1, max: 1_000_000, inputmode: "numeric" })],
    note: "With a pace so many fall due in each second, whether this page stays open or not.",
    more: (given) => (given.pace ? { pace: Number(given.pace) } : {}),
  });
}

// --- one message --------------------------------------------------------------------------------

export async function messagePage(page) {
  const topic = page.get("topic"), id = page.get("id");
  const gets = page.may("put", topic) || page.may("read", topic);
  if (!gets && !page.sees(topic)) throw new Problem(404, "");
  const message = gets ? (await page.ask("POST", path`v1/topics/${topic}/get`, { ids: [id] })).messages[0] : null;
  const events = page.sees(topic) ? historyOf(page, topic, id) : null;
  const title = page.title("Message ", their(id));
  const missing = gets ? "It is not there: it is done, was cancelled, or never was." : "To see it by its id takes the right to put or to read; here is what happened to it.";
  if (!message) return [title, el("p", {}, missing), events];
  return [title, el("div", { class: "row" }, one(page, message)), facts([
    ["Topic", link(their(topic), "topic", { name: topic })], ["State", message.state], ["Due", time(message.due_ms)],
    ["Lease ends", message.lease_until_ms ? time(message.lease_until_ms) : null], ["Died", message.died_ms ? time(message.died_ms) : null],
    ["Expires", message.expires_ms ? time(message.expires_ms) : null],
    ["Attempt", `${message.attempt} of ${message.max_attempts || "what the topic says"}`], ["Priority", String(message.priority)],
    ["Lease", message.lease_ms ? span(message.lease_ms) : null], ["Key", message.key == null ? null : their(message.key)],
    ["Last error", message.last_error == null ? null : their(message.last_error)],
    ...Object.entries(message.headers ?? {}).map(([name, value]) => [their(`header ${name}`), their(value)]),
  ]), ...bodyOf(message), events];
}

function bodyOf(message) {
  const shown = el("pre", { tabindex: 0, "aria-label": "Body" });
  if (message.body_base64 != null) {
    const data = bytes(message.body_base64);
    const hex = [...data.slice(0, 4096)].map((one) => one.toString(16).padStart(2, "0"));
    fill(shown, hex.join(" ") + (data.length > 4096 ? " …" : ""));
    return [el("h2", {}, "Body"), el("p", {}, `These ${size(data.length)} are no text in UTF-8; here is ${data.length > 4096 ? "how they begin" : "all of it"}, in hexadecimal.`), shown];
  }
  const text = message.body ?? "";
  const all = text.length > LONG ? button(`Show all ${count(text.length)} characters`, () => { fill(shown, their(text)); all.remove(); }) : null;
  fill(shown, their(words(message, LONG)));
  return [el("h2", {}, "Body"), shown, all];
}

/** What can be done to one message. */
function one(page, message) {
  const { topic, id, state } = message;
  const act = (label, verb, body, { kind = "main", fields = [], more = () => ({}) } = {}) => button(`${label} …`, () => confirm({
    title: `${label} ${id}`, label, kind, fields,
    measure: async () => 1,
    run: async (given) => `${label} ${id}: ${(await ask("POST", path`v1/topics/${topic}/` + verb, { ids: [id], ...body, ...more(given) })).results[0]}.`,
  }), kind === "bad" ? "bad" : "");
  const puts = page.may("put", topic) && state !== "leased";
  return [
    puts && state !== "dead" ? act("Reschedule", "reschedule", {}, { fields: [due()], more: dueOf }) : null,
    state === "dead" && page.may("admin", topic) ? act("Kick", "kick", {}) : null,
    puts ? act("Cancel", "cancel", {}, { kind: "bad" }) : null,
    button("Look again", refresh),
  ].filter(Boolean);
}

function historyOf(page, topic, id) {
  const table = new Table("What happened to it, newest last", [
    { label: "When", show: (event) => time(event.time_ms) },
    { label: "What", show: (event) => event.kind },
    { label: "Due then", show: (event) => time(event.due_ms) },
    { label: "Attempt", number: true, show: (event) => String(event.attempt) },
  ], (event) => event.position);
  const status = el("p", { role: "status" }, "Looking …");
  const more = button("Look further back", () => look());
  const events = [];
  let before = null, looked = 0;
  async function look() {
    more.hidden = true;
    const answer = await page.ask("GET", path`v1/topics/${topic}/history/${id}` + (before === null ? "" : `?before=${before}`));
    events.unshift(...answer.events);
    looked += answer.looked;
    before = answer.before;
    table.show(events);
    more.hidden = before === null;
    const end = answer.is_whole ? "Here is all of it, from its put on." : before === null ? "The event log has no more." : `Looked at the last ${many(looked, "event")}; there may be more.`;
    fill(status, `${many(events.length, "event")}. ${end}`);
  }
  look().catch((error) => page.signal.aborted || fill(status, error.message));
  return el("section", {}, el("h2", {}, "History"), status, table.node, more);
}

