// Putting a message.

import { ask, path } from "./api.js";
import { confirm } from "./actions.js";
import { el, field, form, select } from "./dom.js";
import { momentOf } from "./words.js";

export async function putPage(page) {
  const put = (given) => {
    const { topic, body, delay, due, id, key, on_conflict } = given;
    const message = { body, ...(delay ? { delay } : {}), ...(due ? { due_ms: momentOf(due) } : {}), ...(id ? { id } : {}), ...(key ? { key } : {}) };
    confirm({
      title: `Put a message into ${topic}`, label: "Put",
      measure: async () => "This makes one message.",
      run: async () => {
        const { results: [done] } = await ask("POST", path`v1/topics/${topic}/messages` + `?on_conflict=${encodeURIComponent(on_conflict)}`, message);
        return `Put into ${topic}: ${done.result} as ${done.id}.`;
      },
    });
  };
  return [page.title("Put a message"), form("Put a message", put,
    field("Topic", "topic", { value: page.get("topic"), required: true, maxlength: 200, pattern: "[A-Za-z0-9._:\\-]+" }),
    field("Delay (30m, 1h30m)", "delay", { maxlength: 40 }),
    field("or due at (your time)", "due", { type: "datetime-local", step: 1 }),
    field("Id (made when empty)", "id", { maxlength: 256 }), field("Key", "key", { maxlength: 256 }),
    select("If the id is there", "on_conflict", [["keep", "keep what is there"], ["replace", "replace it"], ["error", "refuse"]], "keep"),
    el("label", { class: "wide" }, "Body (text)", el("textarea", { name: "body", rows: 8, spellcheck: "false" })),
    el("button", { class: "main" }, "Put …"))];
}
