// A form that puts a schedule, or changes one.

import { ask, path } from "./api.js";
import { confirm } from "./actions.js";
import { area, el, field, form, nameField, select } from "./dom.js";
import { fieldOf, many, momentOf, spanText } from "./words.js";

const OVERLAPS = [["queue", "put the next one too"], ["skip", "leave it out"], ["replace", "replace the one before"]];
const MISFIRES = [["once", "put the last one"], ["all", "put all of them"], ["skip", "leave them out"]];
const OFF = [["skip", "leave it out"], ["before", "run on the day before"], ["after", "run on the day after"]];
const DIALECTS = ["crontab", "quartz", "eventbridge", "apscheduler", "celery", "robfig"].map((word) => [word, word]);

/** Return the moment of a field; an unchanged field keeps what it cannot show, such as milliseconds. */
const keptMoment = (text, ms) => (text === fieldOf(ms) ? ms ?? null : momentOf(text));

/** Return what the form says of when it fires, as requests have it. */
function whenOf(given, old) {
  const days = given.days_off.split(",").map((day) => day.trim()).filter(Boolean);
  return {
    ...(given.rule === "cron" ? { cron: given.text, dialect: given.dialect } : { [given.rule]: given.text }),
    zone: given.zone || "UTC", start: keptMoment(given.start, old?.start_ms), end: keptMoment(given.end, old?.end_ms), days_off: days, when_off: given.when_off,
  };
}

/** Return the rest of it; a body that was not changed is left out. */
function restOf(given, old) {
  const { topic, body, misfire, overlap } = given;
  const words = { topic, misfire, overlap, jitter: given.jitter || "0s", grace: given.grace || "1m", key: given.key || null };
  return old && body === (old.body ?? "") ? words : { ...words, body };
}

export async function scheduleFormPage(page) {
  const name = page.get("name");
  const old = name ? await page.ask("GET", path`v1/schedules/${name}` + "?runs=0") : null;
  const rule = old ? (old.cron ? "cron" : old.rrule ? "rrule" : "every") : "cron";
  const text = old ? old.cron ?? old.rrule ?? spanText(old.every_ms) : "";
  const put = (given) => {
    const named = name || given.name;
    const when = whenOf(given, old);
    confirm({
      title: `${old ? "Change" : "Put"} schedule ${named}`, label: old ? "Change" : "Put",
      measure: async (signal) => {
        const { runs } = await ask("POST", "v1/schedules/preview", { ...when, count: 5 }, signal);
        return `It fires at ${runs.join(", ")}${runs.length === 5 ? " and so on" : ""}.`;
      },
      run: async () => {
        const { result } = await ask(old ? "PATCH" : "PUT", path`v1/schedules/${named}`, { ...when, ...restOf(given, old) });
        location.hash = `#/schedule?name=${encodeURIComponent(named)}`;
        return `${old ? "Change" : "Put"} schedule ${named}: ${result}.`;
      },
    });
  };
  return [page.title(old ? `Change schedule ${name}` : "Put a schedule"), form("Schedule", put,
    old ? null : nameField("Name", "name"),
    nameField("Topic", "topic", old?.topic),
    select("Fires by", "rule", [["cron", "a line of cron"], ["every", "a span (15m)"], ["rrule", "a recurrence (RFC 5545)"]], rule),
    area("Rule", "text", 2, text),
    select("Written for", "dialect", DIALECTS, "crontab"),
    field("Zone", "zone", { value: old?.zone ?? "UTC", maxlength: 100 }),
    field("From (your time)", "start", { type: "datetime-local", step: 1, value: fieldOf(old?.start_ms) }),
    field("Until (your time)", "end", { type: "datetime-local", step: 1, value: fieldOf(old?.end_ms) }),
    field("Days off (sat, 2030-12-25)", "days_off", { value: (old?.days_off ?? []).join(", ") }),
    select("On a day off", "when_off", OFF, old?.when_off ?? "skip"),
    field("Jitter (30s)", "jitter", { value: old?.jitter_ms ? spanText(old.jitter_ms) : "", maxlength: 40 }),
    select("While the last one is not done", "overlap", OVERLAPS, old?.overlap ?? "queue"),
    select("What was missed", "misfire", MISFIRES, old?.misfire ?? "once"),
    field("Not too late (1m)", "grace", { value: old ? spanText(old.grace_ms) : "", maxlength: 40 }),
    field("Key", "key", { value: old?.key ?? "", maxlength: 256 }),
    old && old.body === undefined ? el("p", { class: "wide soft" }, `The body is not text; it stays as it is unless you write one. It has ${many(atob(old.body_base64 ?? "").length, "byte")}.`) : null,
    area("Body (text)", "body", 8, old?.body ?? ""),
    el("button", { class: "main" }, old ? "Change …" : "Put …"))];
}
