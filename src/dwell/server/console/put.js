// Putting a message.

import { ask, path } from "./api.js";
import { confirm } from "./actions.js";
import { area, el, field, form, nameField, select } from "./dom.js";
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
    nameField("Topic", "topic", page.get("topic")),
    field("Delay (30m, 1h30m)", "delay", { maxlength: 40 }),
    field("or due at (your time)", "due", { type: "datetime-local", step: 1 }),
    field("Id (made when empty)", "id", { maxlength: 256 }), field("Key", "key", { maxlength: 256 }),
    select("If the id is there", "on_conflict", [["keep", "keep what is there"], ["replace", "replace it"], ["error", "refuse"]], "keep"),
    area("Body (text)", "body", 8),
    el("button", { class: "main" }, "Put …"))];
}
