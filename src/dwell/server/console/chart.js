// A chart of bars, drawn by hand: what falls due in each span.

import { draw } from "./dom.js";
import { count } from "./words.js";

const WIDTH = 1000, HEIGHT = 260, LEFT = 70, BOTTOM = 30, TOP = 12;

/** Return a drawing of some counts; `label(at)` names the span, `onpick(at)` is told which was clicked. */
export function chart(title, counts, label, onpick) {
  const most = Math.max(1, ...counts);
  const wide = (WIDTH - LEFT - 8) / counts.length;
  const tall = HEIGHT - TOP - BOTTOM;
  const node = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "img", "aria-label": title });
  for (const part of [0, 0.5, 1]) {
    const y = TOP + tall * (1 - part);
    node.append(draw("line", { x1: LEFT, x2: WIDTH - 8, y1: y, y2: y }));
    node.append(draw("text", { x: LEFT - 8, y: y + 4, "text-anchor": "end" }, count(Math.round(most * part))));
  }
  counts.forEach((number, at) => {
    const height = number ? Math.max(2, (tall * number) / most) : 0;
    const x = LEFT + at * wide;
    node.append(draw("rect", { x: x + wide * 0.08, width: wide * 0.84, y: TOP + tall - height, height }));
    const hit = draw("rect", { x, width: wide, y: TOP, height: tall, class: "hit", onclick: () => onpick(at) });
    hit.append(draw("title", {}, `${label(at)}: ${count(number)}`));
    node.append(hit);
  });
  const step = Math.ceil(counts.length / 6);
  for (let at = 0; at < counts.length; at += step) {
    node.append(draw("text", { x: LEFT + at * wide, y: HEIGHT - 9 }, label(at)));
  }
  return node;
}
