// The health of the server and its store.

import { el, facts, fill, Table } from "./dom.js";
import { count, size, span, time } from "./words.js";

const NAMES = {
  segments: "Journal segments", journal_bytes: "Journal", snapshot_bytes: "Newest snapshot", since_snapshot_bytes: "Journal since the snapshot",
  events: "Events that are kept", disk_free_bytes: "Free on the disk", shards: "Shards", damaged_messages: "Damaged messages", answer_us: "The engine answers within",
  memory_budget_bytes: "Budget of memory", memory_mapped_bytes: "Memory that counts against it", scratch_bytes: "Scratch file",
};
const shown = (name, value) =>
  name.endsWith("_bytes") ? size(value) : name.endsWith("_us") ? span(value / 1000) : typeof value === "number" ? count(value) : value;

export async function healthPage(page) {
  const status = el("p", { role: "status" });
  const store = el("div", {}), server = el("div", {});
  const table = new Table("How long things take; p50 and p99 are upper bounds", [
    { label: "What", show: ([name]) => ({ lateness: "From due to the first take", fsync: "Sync of the journal", write: "Write to the journal" })[name] ?? name },
    { label: "Count", number: true, show: ([, one]) => count(one.count) },
    { label: "Mean", number: true, show: ([, one]) => span(one.mean_ms) },
    { label: "p50", number: true, show: ([, one]) => span(one.p50_ms) },
    { label: "p99", number: true, show: ([, one]) => span(one.p99_ms) },
  ], ([name]) => name);
  const draw = (found) => {
    fill(status, found.problem ? el("strong", { class: "bad" }, found.problem) : el("strong", { class: "good" }, "The store takes messages."));
    fill(store, facts(Object.entries(found.store).map(([name, value]) => [NAMES[name] ?? name, shown(name, value)])));
    fill(server, facts([
      ["Since", time(found.started_ms)], ["Memory", size(found.memory_bytes)], ["Requests under way", count(found.requests)],
      ["Takers that wait", count(found.waiting)], ["Consoles that watch", count(found.watchers)], ["Refused as too many", count(found.refused)],
    ]));
    table.show(Object.entries(found.timings));
  };
  draw(await page.ask("GET", "v1/health"));
  page.watch({ health: true }, (kind, data) => draw(data));
  return [page.title("Health"), status, el("h2", {}, "Store"), store, el("h2", {}, "Times"), table.node, el("h2", {}, "Server"), server];
}
