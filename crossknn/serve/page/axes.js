// What the points of a picture stand on: scales, grid, names of the axes, and the diagonal.

import { shape } from "./elements.js";
import { tick } from "./figures.js";

const LETTER = 4; // pixels from the middle of a tick's text to its baseline

/** A function from values to pixels, with the `domain` of its values. */
export function scale([low, high], [from, to]) {
  const at = (value) => from + ((value - low) / (high - low)) * (to - from);
  at.domain = [low, high];
  return at;
}

/** A range with some room at its ends. */
export function pad([low, high]) {
  const room = 0.05 * (high - low || Math.abs(high) || 1);
  return [low - room, high + room];
}

/** Lines at even scores, across all panels. */
export function scoreLines({ left, right, top, bottom }, y) {
  const lines = ticks(y.domain).map(([value, said]) => [
    shape("line", { class: "grid", x1: left, x2: right, y1: y(value), y2: y(value) }),
    shape("text", { x: left - 6, y: y(value) + LETTER, "text-anchor": "end" }, said),
  ]);
  const middle = (top + bottom) / 2;
  const turned = { x: 10, y: middle, "text-anchor": "middle", transform: `rotate(-90 10 ${middle})` };
  return [...lines.flat(), shape("text", turned, "score")];
}

/** The axis of estimates, and where the score is what was expected. */
export function estimateAxis([left, right], bottom, x, y) {
  const marks = ticks(x.domain).map(([value, said]) =>
    shape("text", { x: x(value), y: bottom + 17, "text-anchor": "middle" }, said),
  );
  return [...plainAxis([left, right], bottom, "estimate before the call"), ...marks, ...diagonal(x, y)];
}

/** An axis with a name and without values. */
export function plainAxis([left, right], bottom, name) {
  return [
    shape("line", { class: "base", x1: left, x2: right, y1: bottom, y2: bottom }),
    shape("text", { x: (left + right) / 2, y: bottom + 36, "text-anchor": "middle" }, name),
  ];
}

function diagonal(x, y) {
  const [from, to] = [Math.max(x.domain[0], y.domain[0]), Math.min(x.domain[1], y.domain[1])];
  return from < to ? [shape("line", { class: "diagonal", x1: x(from), y1: y(from), x2: x(to), y2: y(to) })] : [];
}

/** About five even values of a range, each with how it is written. */
function ticks([low, high]) {
  const rough = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * power).find((one) => one >= rough);
  const first = Math.ceil(low / step);
  const values = Array.from({ length: Math.floor(high / step) - first + 1 }, (_, place) => (first + place) * step);
  return values.map((value) => [value, tick(value, step)]);
}
