// Schedules, with their next runs.

import { ask, path } from "./api.js";
import { confirm } from "./actions.js";
import { button, el, facts, fill, link, Table, their } from "./dom.js";
import { many, span, time } from "./words.js";

const PART = 100;
const when = (row) => (row.cron ? el("code", {}, their(row.cron)) : row.rrule ? el("code", {}, their(row.rrule)) : `every ${span(row.every_ms)}`);
const state = (row) => (row.state === "dead" ? el("span", { class: "bad" }, "cannot fire") : row.paused ? el("span", { class: "badge" }, "paused") : "fires");

export async function schedulesPage(page) {
  const parts = [];
  for (const [word, label] of [["delayed", "Schedules"], ["dead", "Schedules that cannot fire"]]) parts.push(await listed(page, word, label));
  return [page.title("Schedules"), page.may("admin", "dwell:schedules") ? el("p", {}, link("Put a schedule", "scheduleform")) : null, ...parts];
}

async function listed(page, word, label) {
  const rows = [];
  const status = el("p", { role: "status" });
  const more = button("Show more", () => look());
  const table = new Table(label, [
    { label: "Name", show: (row) => link(their(row.name), "schedule", { name: row.name }) },
    { label: "When", show: when }, { label: "Zone", show: (row) => their(row.zone) },
    { label: "Topic", show: (row) => link(their(row.topic), "topic", { name: row.topic }) },
    { label: "Next", show: (row) => (row.paused || !row.next_ms ? "–" : time(row.next_ms)) },
    { label: "Last", show: (row) => (row.last_ms ? time(row.last_ms) : "–") }, { label: "State", show: state },
  ], (row) => row.name);
  let cursor = null;
  async function look() {
    const answer = await page.ask("GET", `v1/schedules?state=${word}&limit=${PART}${cursor ? `&cursor=${cursor}` : ""}`);
    rows.push(...answer.schedules);
    cursor = answer.cursor;
    table.show(rows);
    more.hidden = cursor === null;
    fill(status, `${many(rows.length, "schedule")}${cursor ? " so far" : ""}.`);
  }
  await look();
  // The first of them are shown as they are now.
  page.every(2000, async () => {
    if (rows.length > PART) return;
    const answer = await ask("GET", `v1/schedules?state=${word}&limit=${PART}`, undefined, page.signal);
    rows.splice(0, rows.length, ...answer.schedules);
    table.show(rows);
  });
  return rows.length || word === "delayed" ? el("section", {}, el("h2", {}, label), status, table.node, more) : null;
}

export async function schedulePage(page) {
  const name = page.get("name");
  const row = await page.ask("GET", path`v1/schedules/${name}` + "?runs=10");
  const act = (label, method, verb, kind = "") => button(`${label} …`, () => confirm({
    title: `${label} schedule ${name}`, label, kind: kind || "main",
    measure: async () => "This touches one schedule; what it has put stays.",
    run: async () => {
      const { result } = await ask(method, path`v1/schedules/${name}` + verb);
      if (method === "DELETE") location.hash = "#/schedules";
      return `${label} schedule ${name}: ${result}.`;
    },
  }), kind);
  const past = page.may("read", row.topic) ? await page.ask("GET", path`v1/schedules/${name}/runs` + "?count=20") : null;
  const runs = past && new Table("Last runs", [
    { label: "Moment", show: (run) => link(time(run.moment_ms), "message", { topic: row.topic, id: run.id }) },
    { label: "Put", show: (run) => time(run.put_ms) }, { label: "State", show: (run) => (run.state === "dead" ? el("span", { class: "bad" }, "dead") : run.state) },
    { label: "Since", show: (run) => time(run.last_ms) }, { label: "Attempts", show: (run) => run.attempt },
  ], (run) => run.id);
  runs?.show(past.runs);
  return [page.title("Schedule ", their(name)),
    page.may("admin", "dwell:schedules")
      ? el("div", { class: "row" }, row.paused ? act("Resume", "POST", "/resume") : act("Pause", "POST", "/pause"), act("Run now", "POST", "/run"), link("Change", "scheduleform", { name }), act("Delete", "DELETE", "", "bad")) : null,
    facts([
      ["State", state(row)], ["Problem", row.problem ? el("span", { class: "bad" }, their(row.problem)) : null], ["When", when(row)], ["Zone", their(row.zone)],
      ["Topic", link(their(row.topic), "topic", { name: row.topic })], ["From", row.start_ms ? time(row.start_ms) : null], ["Until", row.end_ms ? time(row.end_ms) : null],
      ["Jitter", row.jitter_ms ? span(row.jitter_ms) : null], ["What was missed", row.misfire], ["While the last one is not done", row.overlap], ["Last", row.last_ms ? time(row.last_ms) : null],
      ["Days off", row.days_off?.length ? `${row.days_off.join(", ")}: ${row.when_off}` : null],
      ["Declared by", row.app ? their(row.app) : null],
    ]),
    el("h2", {}, "Next runs"), row.runs?.length ? el("ol", {}, row.runs.map((run) => el("li", {}, their(run)))) : el("p", {}, "None."),
    past && el("h2", {}, "Last runs"), past && (past.runs.length ? runs.node : el("p", {}, past.is_whole ? "None in the event log." : "None in the part of the event log that was searched.")),
    el("h2", {}, "Body"), el("pre", { tabindex: 0, "aria-label": "Body" }, their(row.body ?? `${row.body_base64 ?? ""} (in base64)`))];
}
