// Numbers, moments and spans as people read them.

import { el } from "./dom.js";

const two = (number) => String(number).padStart(2, "0");

// A formatter of the browser's takes longer to make than the first page to draw.
export const count = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, ",");
export const many = (number, noun = "message") => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
export const rate = (number) => (number ? (number >= 100 ? count(Math.round(number)) : String(number)) : "0");

export function size(bytes) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let at = 0;
  for (; bytes >= 1000 && at < units.length - 1; at++) bytes /= 1000;
  return `${at ? bytes.toFixed(1) : bytes} ${units[at]}`;
}

/** Return a span in milliseconds in its largest units. */
export function span(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${Math.round(ms * 10) / 10} ms`;
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  let left = Math.round(ms / 1000);
  const words = [];
  for (const [seconds, unit] of parts) {
    if (left >= seconds && words.length < 2) { words.push(`${Math.floor(left / seconds)} ${unit}`); left %= seconds; }
    else if (words.length) break;
  }
  return words.join(" ") || "0 s";
}

/** Return a span in milliseconds as requests have it: 1h30m. */
export function spanText(ms) {
  const units = [[86_400_000, "d"], [3_600_000, "h"], [60_000, "m"], [1000, "s"], [1, "ms"]];
  let left = ms;
  return units.map(([size, unit]) => { const many = Math.floor(left / size); left %= size; return many ? `${many}${unit}` : ""; }).join("") || "0s";
}

/** Return a moment as text, in the zone of who looks. */
export function moment(ms, { seconds = true } = {}) {
  const at = new Date(ms);
  if (Number.isNaN(at.getTime())) return `${ms} ms after 1970`;
  const date = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${date} ${two(at.getHours())}:${two(at.getMinutes())}${seconds ? `:${two(at.getSeconds())}` : ""}`;
}

/** Return a moment as an element that says it in UTC, too. */
export function time(ms) {
  if (!ms) return "–";
  const at = new Date(ms);
  if (Number.isNaN(at.getTime())) return moment(ms);
  return el("time", { datetime: at.toISOString(), title: at.toISOString() }, moment(ms));
}

/** Return milliseconds of what a field for date and time holds, null when that is nothing. */
export const momentOf = (text) => (text ? new Date(text).getTime() : null);

/** Return what such a field is to hold. */
export const fieldOf = (ms) => (ms === null || ms === undefined || ms === "" ? "" : moment(Number(ms)).replace(" ", "T"));
