// The topics, and one of them.

import { ask, path, Problem } from "./api.js";
import { changeAll, confirm } from "./actions.js";
import { button, el, facts, field, fill, form, link, place, Table, their } from "./dom.js";
import { count, many, rate, span, time } from "./words.js";

const messages = (topic, state, number) => (number ? link(count(number), "messages", { topic, state }) : "0");

const columns = (page) => [
  { label: "Topic", sort: "name", show: (row) => [link(their(row.name), "topic", { name: row.name }), row.paused ? el("span", { class: "badge" }, "paused") : null] },
  { label: "Delayed", number: true, sort: "delayed", show: (row) => messages(row.name, "delayed", row.delayed) },
  { label: "Ready", number: true, sort: "ready", show: (row) => messages(row.name, "ready", row.ready) },
  { label: "Leased", number: true, sort: "leased", show: (row) => messages(row.name, "leased", row.leased) },
  { label: "Dead", number: true, sort: "dead", show: (row) => (row.dead ? link(count(row.dead), "dead", { topic: row.name }) : "0") },
  { label: "Put/s", number: true, sort: "put_rate", show: (row) => rate(row.put_rate) },
  { label: "Taken/s", number: true, sort: "take_rate", show: (row) => rate(row.take_rate) },
  { label: "Acked/s", number: true, show: (row) => rate(row.ack_rate) },
  { label: "Late p50", number: true, show: (row) => span(row.late_p50_ms) },
  { label: "Late p99", number: true, sort: "late_p99_ms", show: (row) => span(row.late_p99_ms) },
  { label: "Oldest due", number: true, sort: "oldest", show: (row) => (row.oldest_ms ? `${span(page.now() - row.oldest_ms)} ago` : "–") },
  { label: "Takers", number: true, show: (row) => count(row.waiting) },
];

export function sums(found) {
  const pairs = [["topics", found.topics], ["delayed", found.delayed], ["ready", found.ready], ["leased", found.leased], ["dead", found.dead], ["put/s", rate(found.put_rate)], ["taken/s", rate(found.take_rate)], ["acked/s", rate(found.ack_rate)]];
  return pairs.map(([name, number]) => el("li", {}, el("b", {}, typeof number === "number" ? count(number) : number), name));
}

export async function topicsPage(page) {
  const asked = first.part(page.get);
  const go = (more) => { location.hash = place("topics", { ...asked, offset: 0, limit: null, ...more }); };
  const table = new Table("Rates and lateness are of the last half minute, or of the last 10,000 events", columns(page), (row) => row.name, { onsort: (sort) => go({ sort }) });
  table.sorted(asked.sort);
  const list = el("ul", { class: "sums", "aria-label": "All topics" });
  const turn = el("div", { class: "row" });
  const empty = el("p", { class: "soft" });
  let found = await page.ask("GET", first.overview(asked));
  const draw = () => {
    fill(list, sums(found.sums));
    table.show(found.topics);
    fill(empty, found.topics.length ? "" : "No topic is there.");
    const last = asked.offset + found.topics.length;
    fill(turn, [
      el("span", { class: "soft" }, `${found.topics.length ? asked.offset + 1 : 0}–${last} of ${many(found.sums.topics, "topic")}`),
      asked.offset ? link("Previous", "topics", { ...asked, limit: null, offset: Math.max(0, asked.offset - asked.limit) }) : null,
      found.next ? link("Next", "topics", { ...asked, limit: null, offset: found.next }) : null,
    ]);
  };
  draw();
  page.watch({ overview: asked }, (kind, data) => { found = data; draw(); }, draw);
  return [page.title("Topics"), list,
    form("Look for a topic", (given) => go({ match: given.match }), field("Name has", "match", { value: asked.match, maxlength: 200 }), el("button", {}, "Look")),
    table.node, empty, turn];
}

export async function topicPage(page) {
  const name = page.get("name");
  const asked = { match: name, limit: 200 };
  const row = (found) => found.topics.find((one) => one.name === name);
  if (!page.sees(name)) throw new Problem(404, "");
  const [settings, found] = await Promise.all([page.ask("GET", path`v1/topics/${name}/settings`), page.ask("GET", first.overview(asked))])
    .catch(async (error) => {
      // The settings are for those who read or put.
      if (error.status !== 403) throw error;
      return [null, await page.ask("GET", first.overview(asked))];
    });
  let one = row(found);
  const shown = el("div", {});
  const draw = () => fill(shown, facts([
    ["Delayed", messages(name, "delayed", one?.delayed ?? 0)], ["Ready", messages(name, "ready", one?.ready ?? 0)],
    ["Leased", messages(name, "leased", one?.leased ?? 0)], ["Dead", one?.dead ? link(count(one.dead), "dead", { topic: name }) : "0"],
    ["Put, taken, acked a second", `${rate(one?.put_rate ?? 0)}, ${rate(one?.take_rate ?? 0)}, ${rate(one?.ack_rate ?? 0)}`],
    ["Late p50, p99", `${span(one?.late_p50_ms)}, ${span(one?.late_p99_ms)}`],
    ["Oldest due", one?.oldest_ms ? time(one.oldest_ms) : "–"], ["Takers that wait", count(one?.waiting ?? 0)],
  ]));
  draw();
  page.watch({ overview: asked }, (kind, data) => { one = row(data); draw(); });
  return [page.title("Topic ", their(name), settings?.paused ? " (paused)" : ""), shown,
    el("div", { class: "row" },
      settings && page.may("admin", name) ? pause(name, settings) : null,
      page.may("put", name) ? link("Put a message", "put", { topic: name }) : null,
      link("Coming load", "load", { topic: name }),
      page.may("put", name) ? button("Cancel all …", () => cancelAll(name), "bad") : null),
    settings ? el("h2", {}, "Settings") : null, settings ? facts(shownSettings(settings)) : null];
}

function cancelAll(topic) {
  changeAll(topic, "cancel", { filter: {} }, { title: `Cancel all of ${topic} that nobody has taken`, label: "Cancel them", kind: "bad", note: "They are forgotten for good." });
}

function pause(topic, settings) {
  const paused = !settings.paused;
  const title = paused ? `Pause ${topic}` : `Resume ${topic}`;
  return button(`${paused ? "Pause" : "Resume"} …`, () => confirm({
    title, label: paused ? "Pause" : "Resume",
    note: paused ? "Nothing is taken from it until it is resumed; what was taken stays with its takers." : "What is ready can be taken again.",
    measure: async (signal) => {
      const { shards } = await ask("GET", path`v1/topics/${topic}/sizes`, undefined, signal);
      const pending = shards.reduce((sum, one) => sum + one.delayed + one.ready, 0);
      return `${many(pending)} wait in it.`;
    },
    run: async () => {
      await ask("PATCH", path`v1/topics/${topic}/settings`, { paused });
      return `${topic} is ${paused ? "paused" : "resumed"}.`;
    },
  }));
}

const shownSettings = (settings) => [
  ["Lease", span(settings.lease_ms)], ["Most attempts", count(settings.max_attempts)],
  ["Retries after", settings.retry_delays_ms.map(span).join(", ")], ["Ids are remembered for", span(settings.remember_ms)],
  ["Most pending", settings.max_pending ? `${count(settings.max_pending)}, then ${settings.on_full}` : "no bound"],
  ["Most taken a second", settings.rate ? count(+settings.rate.toFixed(3)) : "no bound"],
  ["Most leased", settings.most_leased ? count(settings.most_leased) : "no bound"],
  ["Keys", [settings.ordered && "one message at a time, in order", settings.fair && "take turns"].filter(Boolean).join(", ") || "do not matter"],
  ["Dead messages are kept", settings.keep_dead_ms ? `for ${span(settings.keep_dead_ms)}` : "for ever"],
];
