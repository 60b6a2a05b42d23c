// The coming load: how much falls due when, by minute, hour and day, to a year ahead.

import { chart } from "./chart.js";
import { el, field, fill, form, link, place, select, Table } from "./dom.js";
import { count, many, moment, time } from "./words.js";

const MINUTE = 60_000, HOUR = 60 * MINUTE, DAY = 24 * HOUR;
const UNITS = {
  minute: { span: MINUTE, count: 120, label: "by minute, two hours" },
  hour: { span: HOUR, count: 168, label: "by hour, a week" },
  day: { span: DAY, count: 366, label: "by day, a year" },
};
const FINER = { day: "hour", hour: "minute", minute: null };

/** Return the beginning of the span in which a moment is, in the zone of who looks. */
function floor(ms, span) {
  const zone = new Date(ms).getTimezoneOffset() * MINUTE;
  return Math.floor((ms - zone) / span) * span + zone;
}

export async function loadPage(page) {
  const unit = UNITS[page.get("unit")] ? page.get("unit") : "hour";
  const { span, count: number } = UNITS[unit];
  const topic = page.get("topic").trim();
  const asked = () => ({ start_ms: Math.max(0, page.get("from") ? Number(page.get("from")) : floor(page.now(), span)), span_ms: span, count: number, topics: topic ? [topic] : [] });
  const body = asked();
  const { start_ms: start } = body;
  const at = (place) => moment(start + place * span, { seconds: false });
  const pick = (which) => {
    const from = start + which * span;
    if (FINER[unit]) location.hash = place("load", { unit: FINER[unit], from, topic });
    else if (topic) location.hash = place("messages", { topic, state: "delayed", from, to: from + span });
  };
  const drawn = el("div", {});
  const sum = el("p", { role: "status" });
  const table = new Table("Spans in which something falls due", [
    { label: "From", show: (row) => time(row.from) },
    { label: "Messages", number: true, show: (row) => (FINER[unit] ? link(count(row.count), "load", { unit: FINER[unit], from: row.from, topic })
      : topic ? link(count(row.count), "messages", { topic, state: "delayed", from: row.from, to: row.from + span }) : count(row.count)) },
  ], (row) => row.from);
  const draw = ({ counts }) => {
    const total = counts.reduce((some, one) => some + one, 0);
    const most = Math.max(...counts);
    const peak = total ? `, the most, ${count(most)}, from ${at(counts.indexOf(most))}` : "";
    fill(sum, `${many(total)} fall due from ${at(0)} to ${at(number)}${peak}.`);
    fill(drawn, chart(`Messages that fall due ${UNITS[unit].label} from ${at(0)}`, counts, at, pick));
    table.show(counts.map((one, place) => ({ from: start + place * span, count: one })).filter((one) => one.count));
  };
  draw(await page.ask("POST", "v1/load", body));
  page.watch({ load: body }, (kind, data) => draw(data));
  // The spans of now begin anew with each of them.
  if (!page.get("from")) page.every(5000, () => floor(page.now(), span) !== start && dispatchEvent(new Event("dwell-refresh")));
  return [page.title("Coming load"),
    form("What to count", (given) => { location.hash = place("load", given); },
      select("Chart", "unit", Object.entries(UNITS).map(([word, { label }]) => [word, label]), unit),
      field("Topic (all when empty)", "topic", { value: topic, maxlength: 200 }), el("button", { class: "main" }, "Show")),
    sum, drawn,
    el("div", { class: "row" },
      link("Earlier", "load", { unit, topic, from: Math.max(0, start - number * span) }),
      link("From now", "load", { unit, topic }),
      start + number * span < page.now() + 366 * DAY ? link("Later", "load", { unit, topic, from: start + number * span }) : null),
    el("details", {}, el("summary", {}, "As a table"), table.node)];
}
