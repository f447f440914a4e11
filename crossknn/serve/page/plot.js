// A scatter plot of one search: a point for each cross-encoder call, its estimate along x, its score along y.

import { isComplete } from "./comparison.js";
import { element, shape } from "./dom.js";
import { count, counted, score, shortened, tick } from "./format.js";

const MARGIN = { left: 40, right: 10, top: 10, bottom: 42 }; // pixels
const SIDE_PANEL = 0.22; // share of the width for the calls without an estimate
const PANEL_GAP = 14; // pixels
const HOVER_DISTANCE = 30; // pixels between a pointer and the point it selects
const MAX_LEGEND_ROUNDS = 12;
const BASELINE_OFFSET = 4; // pixels from the middle of a tick label to its baseline
const HINT = "Hover over a point, or step through the calls with the arrow keys.";

/** The ranges that the plots of these searches share, so that they can be compared. */
export function sharedRanges(results) {
  const calls = results.flatMap((result) => result.trace);
  const estimates = calls.map(estimateOf).filter((value) => value !== null);
  return { score: rangeOf(calls.map((call) => call.score)), estimate: rangeOf(estimates) };
}

/** The plot with its legend, a description of the selected call, and the calls as a table. */
export function plot({ title, result }, ranges) {
  const frame = element("div", { class: "frame" });
  const readout = element("p", { class: "readout", role: "status" }, HINT);
  new ResizeObserver(() => redraw(frame, (width) => draw(title, result, ranges, readout, width))).observe(frame);
  return element("figure", {}, element("h3", {}, title), frame, legend(result), readout, table(result));
}

/** Draw again when the width has changed. */
function redraw(frame, drawAt) {
  const width = Math.round(frame.clientWidth);
  if (!width || frame.dataset.width === String(width)) return;
  frame.dataset.width = width;
  frame.replaceChildren(drawAt(width));
}

function draw(title, result, ranges, readout, width) {
  const height = Math.min(Math.max(0.7 * width, 240), 400);
  const box = { left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: height - MARGIN.bottom };
  const [side, main] = panels(result.trace, box);
  const y = scale(pad(ranges.score), [box.bottom, box.top]);
  const x = main && scale(pad(ranges.estimate), main);
  const label = `${title}: ${callsOf(result)} by estimate and score`;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": label });
  svg.append(...scoreAxis(box, y));
  if (side) svg.append(...axis(side, box.bottom, main ? "no estimate" : callOrder(result)));
  if (main) svg.append(...estimateAxis(main, box.bottom, x, y));
  const points = makePoints(result, side, x, y);
  svg.append(...points);
  listen(svg, points, result, readout);
  return svg;
}

/** The estimate of an item on the scale of scores; that of a retriever is on another scale. */
function estimateOf({ proposed_by: proposer, ranks, estimate }) {
  return proposer in ranks ? null : estimate;
}

/** The extent along x of the panels for calls without and with an estimate; null for an empty one. */
function panels(trace, { left, right }) {
  const missing = trace.filter((call) => estimateOf(call) === null).length;
  if (!missing) return [null, [left, right]];
  if (missing === trace.length) return [[left, right], null];
  const border = left + SIDE_PANEL * (right - left);
  return [[left, border - PANEL_GAP / 2], [border + PANEL_GAP / 2, right]];
}

function callOrder({ trace }) {
  const proposers = [...new Set(trace.map((call) => call.proposed_by))];
  return `no estimate, in order of ${proposers.length === 1 ? proposers[0] : "the calls"}`;
}

// Axes

/** The lowest and the highest number; null if there is none. */
function rangeOf(numbers) {
  return numbers.length ? [Math.min(...numbers), Math.max(...numbers)] : null;
}

/** A range with some space at its ends. */
function pad([low, high]) {
  const space = 0.05 * (high - low || Math.abs(high) || 1);
  return [low - space, high + space];
}

/** A linear function from values to pixels. */
function scale([low, high], [from, to]) {
  const toPixels = (value) => from + ((value - low) / (high - low)) * (to - from);
  toPixels.domain = [low, high];
  return toPixels;
}

/** About five round values in a range, with their labels. */
function ticks([low, high]) {
  const rough = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough);
  const first = Math.ceil(low / step);
  const values = Array.from({ length: Math.floor(high / step) - first + 1 }, (_, place) => (first + place) * step);
  return values.map((value) => [value, tick(value, step)]);
}

/** Grid lines across all panels, and the name of the axis. */
function scoreAxis({ left, right, top, bottom }, y) {
  const lines = ticks(y.domain).map(([value, label]) => [
    shape("line", { class: "grid", x1: left, x2: right, y1: y(value), y2: y(value) }),
    shape("text", { x: left - 6, y: y(value) + BASELINE_OFFSET, "text-anchor": "end" }, label),
  ]);
  const middle = (top + bottom) / 2;
  const rotated = { x: 10, y: middle, "text-anchor": "middle", transform: `rotate(-90 10 ${middle})` };
  return [...lines.flat(), shape("text", rotated, "score")];
}

/** The axis of estimates, and the diagonal where the score equals the estimate. */
function estimateAxis([left, right], bottom, x, y) {
  const labels = ticks(x.domain).map(([value, label]) =>
    shape("text", { x: x(value), y: bottom + 17, "text-anchor": "middle" }, label),
  );
  const [from, to] = [Math.max(x.domain[0], y.domain[0]), Math.min(x.domain[1], y.domain[1])];
  const diagonal = shape("line", { class: "diagonal", x1: x(from), y1: y(from), x2: x(to), y2: y(to) });
  return [...axis([left, right], bottom, "estimate before the call"), ...labels, ...(from < to ? [diagonal] : [])];
}

/** An axis with a name and without ticks. */
function axis([left, right], bottom, name) {
  return [
    shape("line", { class: "base", x1: left, x2: right, y1: bottom, y2: bottom }),
    shape("text", { x: (left + right) / 2, y: bottom + 36, "text-anchor": "middle" }, name),
  ];
}

// Points

/** A point for each call; calls without an estimate are spread evenly along x, in order. */
function makePoints(result, side, x, y) {
  const withoutEstimate = result.trace.filter((call) => estimateOf(call) === null);
  const order = side && scale([-1, withoutEstimate.length], side);
  const shade = roundShade(result);
  return result.trace.map((call) => {
    const estimate = estimateOf(call);
    const cx = estimate === null ? order(withoutEstimate.indexOf(call)) : x(estimate);
    return makePoint(call, isHit(call, result), shade(call.round), { cx: cx.toFixed(1), cy: y(call.score).toFixed(1) });
  });
}

function makePoint(call, hit, shade, position) {
  const point = shape("circle", {
    ...position,
    class: hit ? "point hit" : "point",
    r: hit ? 5 : 3.5,
    role: "img",
    tabindex: -1,
    "aria-label": `${shortened(call.text || call.id)}: ${describe(call, hit)}`,
  });
  point.style.setProperty("--at", shade);
  return point;
}

const isHit = (call, result) => result.hits.some((hit) => hit.id === call.id);

/** The position of a round between the first color and the last, in percent. */
function roundShade({ trace }) {
  const last = Math.max(...trace.map((call) => call.round));
  return (round) => `${last > 1 ? (100 * (round - 1)) / (last - 1) : 0}%`;
}

function describe(call, hit) {
  const estimate = estimateOf(call);
  const deviation = call.deviation === null ? "" : ` ± ${score(call.deviation)}`;
  const origin = estimate === null ? `proposed by ${call.proposed_by}` : `estimate ${score(estimate)}${deviation}`;
  return `round ${call.round}, ${origin}, score ${score(call.score)}${hit ? ", in the results" : ""}`;
}

/** The pointer selects the nearest point; arrow keys step from call to call. */
function listen(svg, points, result, readout) {
  const select = (number) => {
    const call = result.trace[number];
    points.forEach((point, place) => {
      point.setAttribute("tabindex", place === number ? 0 : -1);
      point.classList.toggle("shown", place === number);
    });
    const description = element("span", { class: "quiet" }, describe(call, isHit(call, result)));
    readout.replaceChildren(element("span", { class: "text", dir: "auto" }, call.text || call.id), description);
  };
  points[0]?.setAttribute("tabindex", 0);
  points.forEach((point, number) => point.addEventListener("focus", () => select(number)));
  for (const name of ["pointermove", "pointerdown"]) {
    svg.addEventListener(name, (event) => {
      const nearest = nearestPoint(points, event);
      if (nearest !== null) select(nearest);
    });
  }
  svg.addEventListener("keydown", (event) => step(event, points));
}

function nearestPoint(points, { clientX, clientY }) {
  const distances = points.map((point) => {
    const { left, top, width, height } = point.getBoundingClientRect();
    return Math.hypot(left + width / 2 - clientX, top + height / 2 - clientY);
  });
  const least = Math.min(...distances);
  return least <= HOVER_DISTANCE ? distances.indexOf(least) : null;
}

function step(event, points) {
  const now = points.indexOf(event.target);
  const last = points.length - 1;
  const next = { ArrowRight: now + 1, ArrowDown: now + 1, ArrowLeft: now - 1, ArrowUp: now - 1, Home: 0, End: last };
  if (now < 0 || !(event.key in next)) return;
  event.preventDefault();
  points[Math.min(Math.max(next[event.key], 0), last)].focus();
}

// Legend and table

function legend(result) {
  const shade = roundShade(result);
  const rounds = [...new Set(result.trace.map((call) => call.round))];
  const every = Math.ceil(rounds.length / MAX_LEGEND_ROUNDS);
  const shown = rounds.filter((_, place) => place % every === 0 || place === rounds.length - 1);
  const keys = shown.map((round) => {
    const dot = element("span", { class: "dot" });
    dot.style.setProperty("--at", shade(round));
    return element("li", {}, dot, count(round));
  });
  const ring = element("li", {}, element("span", { class: "dot ring" }), "in the results");
  const dash = element("li", {}, element("span", { class: "dash" }), "score = estimate");
  const hasDiagonal = result.trace.some((call) => estimateOf(call) !== null);
  return element("ul", { class: "legend" }, element("li", {}, "Round"), keys, ring, hasDiagonal ? dash : null);
}

function callsOf(result) {
  const all = counted(result.calls, "cross-encoder call");
  return isComplete(result) ? all : `${count(result.trace.length)} of ${all}`;
}

/** The calls as a table, which is filled when it is opened. */
function table(result) {
  const details = element("details", {}, element("summary", {}, `${callsOf(result)} as a table`));
  details.addEventListener("toggle", () => {
    if (details.open && details.childElementCount === 1) details.append(callTable(result));
  });
  return details;
}

function callTable({ trace }) {
  const heads = ["Call", "Round", "Item", "Estimate", "Score"].map((name) => element("th", { scope: "col" }, name));
  const rows = trace.map((call, number) => {
    const item = element("div", { dir: "auto" }, call.text || call.id);
    const cells = [number + 1, call.round, item, score(estimateOf(call)), score(call.score)];
    return element("tr", {}, cells.map((cell) => element("td", {}, cell)));
  });
  const head = element("thead", {}, element("tr", {}, heads));
  return element("table", { class: "calls" }, head, element("tbody", {}, rows));
}
