// What the console does: each is asked back with how many messages it touches, and told with what
// it did.

import { ask, path } from "./api.js";
import { button, el, fill, form } from "./dom.js";
import { count, many } from "./words.js";

const dialog = document.getElementById("dialog");
const said = document.getElementById("said");

/** Say what was done, until it is put away. */
export function say(words, isBad = false) {
  said.replaceChildren(el("p", { class: isBad ? "bad" : "" }, el("span", {}, words), button("Close", () => said.replaceChildren())));
}

export const refresh = () => dispatchEvent(new Event("dwell-refresh"));

/** Ask back, do it, and say what it did.
 *  `title` says what is done; `measure(signal, onpart)` counts what it touches; `fields` ask for more;
 *  `run(given, signal, onpart)` does it, and returns what to say. */
export function confirm({ title, measure, fields = [], run, label = title, kind = "main", note = null }) {
  const stop = new AbortController();
  const touched = el("p", { role: "status" }, "Counting …");
  const go = el("button", { class: kind, disabled: true }, label);
  const work = async (given) => {
    go.disabled = true;
    fill(touched, "At work …");
    try {
      say(await run(given, stop.signal, (words) => fill(touched, words)));
      dialog.close();
      refresh();
    } catch (error) {
      if (stop.signal.aborted) return say("Given up: what was done until then is done.", true);
      fill(touched, el("span", { class: "bad", role: "alert" }, error.message));
      go.disabled = false;
    }
    return null;
  };
  dialog.replaceChildren(el("h2", { id: "dialog-title" }, title), touched,
    form(title, work, fields, note ? el("p", { class: "soft" }, note) : null,
      el("div", { class: "row" }, go, button("Back", () => dialog.close()))));
  dialog.addEventListener("close", () => stop.abort(), { once: true });
  dialog.showModal();
  count_of(measure, stop.signal, touched, go);
}

async function count_of(measure, signal, touched, go) {
  try {
    const found = await measure(signal, (words) => fill(touched, words));
    fill(touched, typeof found === "number" ? `This touches ${many(found)}.` : found);
    go.disabled = found === 0;
    if (!go.disabled && !dialog.contains(document.activeElement?.closest("input, select"))) go.focus();
  } catch (error) {
    if (!signal.aborted) fill(touched, el("span", { class: "bad", role: "alert" }, error.message));
  }
}

/** Do a verb to all that a filter chooses, in as many requests as it takes; return what became of them. */
export async function change(topic, verb, body, signal, onpart) {
  const done = { matched: 0, results: {} };
  let cursor = null;
  do {
    const asked = { ...body, cursor, ...(body.pace ? { paced: done.matched } : {}) };
    const found = await ask("POST", path`v1/topics/${topic}/` + verb, asked, signal);
    done.matched += found.matched;
    for (const [word, number] of Object.entries(found.results)) done.results[word] = (done.results[word] ?? 0) + number;
    cursor = found.cursor;
    if (cursor) onpart(`${many(done.matched)} so far, up to ${place(cursor)} …`);
  } while (cursor && (verb !== "reschedule" || body.dry_run));
  return done;
}

/** Return where a search stands as people read it. */
export function place(cursor) {
  const [, due] = /(?:[a-z]+\.)?(-?\d+)\.\d+$/.exec(cursor) ?? [];
  const at = new Date(Number(due));
  return Number.isNaN(at.getTime()) ? "an end" : at.toISOString().replace("T", " ").slice(0, 19);
}

/** Return what became of messages, word by word. */
export function told(results) {
  const words = Object.entries(results).map(([word, number]) => `${count(number)} ${word}`);
  return words.join(", ") || "nothing was there any more";
}

/** Count with a dry run what a filter chooses. */
export const measured = (topic, verb, body) => async (signal, onpart) =>
  (await change(topic, verb, { ...body, pace: undefined, dry_run: true }, signal, onpart)).matched;

/** Ask back and do a verb to all that a filter chooses. */
export function changeAll(topic, verb, body, { title, label, fields, kind, note, more = () => ({}) }) {
  const known = verb === "reschedule" ? { ...body, shift_ms: 0 } : body;
  confirm({
    title, label, fields, kind, note,
    measure: measured(topic, verb, known),
    run: async (given, signal, onpart) => {
      const done = await change(topic, verb, { ...body, ...more(given) }, signal, onpart);
      return `${title}: ${told(done.results)}.`;
    },
  });
}
