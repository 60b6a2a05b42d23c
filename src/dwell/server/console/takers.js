// Takers: who holds what under lease, and who waits for messages.

import { el, fill, link, Table, their } from "./dom.js";
import { count, many, span } from "./words.js";

export async function takersPage(page) {
  const held = new Table("Leases that are held, the most first", [
    { label: "Owner", show: (row) => (row.owner ? their(row.owner) : el("span", { class: "soft" }, "without a name")) },
    { label: "Topic", show: (row) => link(their(row.topic), "topic", { name: row.topic }) },
    { label: "Messages", number: true, show: (row) => link(count(row.messages), "messages", { topic: row.topic, state: "leased" }) },
    { label: "First lease ends", number: true, show: (row) => (row.until_ms > page.now() ? `in ${span(row.until_ms - page.now())}` : "now") },
  ], (row) => `${row.topic} ${row.owner}`);
  const waiting = new Table("Takers of this server that wait", [
    { label: "Topic", show: ([name]) => link(their(name), "topic", { name }) },
    { label: "Takers", number: true, show: ([, number]) => count(number) },
  ], ([name]) => name);
  const status = el("p", { role: "status" });
  let found = await page.ask("GET", "v1/holders");
  const draw = () => {
    held.show(found.holders);
    const takers = Object.entries(found.waiting).sort();
    waiting.show(takers);
    const total = found.holders.reduce((sum, row) => sum + row.messages, 0);
    fill(status, `${many(total)} under lease${found.holders.length >= 1000 ? " with the first 1,000 of those who hold any" : ""}; ${many(takers.reduce((sum, [, number]) => sum + number, found.waiting_others), "taker")} wait${found.waiting_others ? `, ${count(found.waiting_others)} of them on topics beyond the first 1,000` : ""}.`);
  };
  draw();
  page.watch({ holders: true }, (kind, data) => { found = data; draw(); }, draw);
  return [page.title("Takers and leases"), status, held.node, waiting.node];
}
