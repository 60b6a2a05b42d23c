// Dead letters, by the reason why they are dead.

import { path, query } from "./api.js";
import { changeAll } from "./actions.js";
import { button, el, fill, link, Table, their } from "./dom.js";
import { redrive } from "./messages.js";
import { count, many } from "./words.js";

export async function deadPage(page) {
  return page.get("topic") ? reasonsPage(page, page.get("topic")) : topicsWithDead(page);
}

async function topicsWithDead(page) {
  const asked = { sort: "dead", limit: 200 };
  const table = new Table("Topics with dead letters", [
    { label: "Topic", show: (row) => link(their(row.name), "dead", { topic: row.name }) },
    { label: "Dead", number: true, show: (row) => count(row.dead) },
  ], (row) => row.name);
  const status = el("p", { role: "status" });
  const draw = (found) => {
    const some = found.topics.filter((row) => row.dead);
    table.show(some);
    fill(status, some.length ? `${many(found.sums.dead)} in ${many(some.length, "topic")}${some.length === asked.limit ? " and more" : ""}.` : "There are none.");
  };
  draw(await page.ask("GET", `v1/overview${query(asked)}`));
  page.watch({ overview: asked }, (kind, data) => draw(data));
  return [page.title("Dead letters"), status, table.node];
}

async function reasonsPage(page, topic) {
  const reasons = new Map();
  const status = el("p", { role: "status" });
  const more = button("Look further", () => look());
  const table = new Table(`Why messages of ${topic} are dead`, [
    { label: "Reason", show: (row) => (row.reason ? their(row.reason) : el("span", { class: "soft" }, "none was given")) },
    { label: "Messages", number: true, show: (row) => link(count(row.messages), "messages", { topic, state: "dead", error: row.reason }) },
    { label: "One of them", show: (row) => link(their(row.id), "message", { topic, id: row.id }) },
    { label: "What to do", show: (row) => acts(row) },
  ], (row) => row.reason);
  const acts = (row) => {
    if (!row.reason) return "–";
    const filter = { error: row.reason, states: ["dead"] };
    const which = `all of ${topic} whose error has “${row.reason.slice(0, 80)}”`;
    return el("span", { class: "row" }, page.may("admin", topic) ? button("Kick …", () => redrive(topic, filter, which)) : null,
      page.may("put", topic) ? button("Cancel …", () => changeAll(topic, "cancel", { filter }, { title: `Cancel ${which}`, label: "Cancel them", kind: "bad" }), "bad") : null);
  };
  let place = 0;
  async function look() {
    more.disabled = true;
    const answer = await page.ask("GET", path`v1/topics/${topic}/reasons` + `?place=${place}`).finally(() => { more.disabled = false; });
    for (const row of answer.reasons) {
      const known = reasons.get(row.reason);
      reasons.set(row.reason, known ? { ...known, messages: known.messages + row.messages } : row);
    }
    place = answer.next_place;
    const all = [...reasons.values()].sort((one, other) => other.messages - one.messages);
    table.show(all);
    const total = all.reduce((sum, row) => sum + row.messages, 0);
    fill(status, place === null ? `${many(total)} for ${many(all.length, "reason")}.` : `${many(total)} so far; looked at ${count(place)} of ${count(answer.places)} places.`);
    more.hidden = place === null;
  }
  await look();
  // The counts are those of a look; another one is due when there are more dead letters, or fewer.
  let known = null;
  page.watch({ overview: { match: topic, limit: 200 } }, async (kind, data) => {
    const dead = data.topics.find((row) => row.name === topic)?.dead ?? 0;
    if (dead === known || more.disabled) return;
    known = dead;
    reasons.clear();
    place = 0;
    await look();
  });
  return [page.title("Dead letters of ", their(topic)), status,
    el("div", { class: "row" }, page.may("admin", topic) ? button("Kick all …", () => redrive(topic, { states: ["dead"] }, `all dead letters of ${topic}`)) : null, link("All topics", "dead")),
    table.node, more];
}
