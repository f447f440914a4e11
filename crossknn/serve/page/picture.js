// How the rounds of one search found its items: a point for each call, what was expected along x, its score along y.

import { estimateAxis, pad, plainAxis, scale, scoreLines } from "./axes.js";
import { expected, isWhole, rangeOf } from "./comparing.js";
import { element, shape } from "./elements.js";
import { count, counted, score } from "./figures.js";

const ROOM = { left: 40, right: 10, top: 10, bottom: 42 }; // around the panels, in pixels
const SIDE = 0.22; // of the width: the panel of calls without an estimate, beside the others
const GAP = 14; // pixels between the two
const REACH = 30; // pixels between a pointer and the point it shows
const MOST_KEYS = 12; // rounds in the legend; of more only some
const HINT = "Point at a dot, or step through the calls with the arrow keys.";

/** The ranges that the pictures of these searches share, so that they can be compared. */
export function sharedRanges(results) {
  const calls = results.flatMap((result) => result.trace);
  const estimates = calls.map(expected).filter((value) => value !== null);
  return { score: rangeOf(calls.map((call) => call.score)), estimate: rangeOf(estimates) };
}

/** The picture with its legend, what it says of one call, and the calls as a table. */
export function picture({ title, result }, ranges) {
  const frame = element("div", { class: "frame" });
  const readout = element("p", { class: "readout", role: "status" }, HINT);
  new ResizeObserver(() => redraw(frame, (width) => draw(title, result, ranges, readout, width))).observe(frame);
  return element("figure", {}, element("h3", {}, title), frame, legend(result), readout, table(result));
}

/** Draw again where the width is another one. */
function redraw(frame, drawn) {
  const width = Math.round(frame.clientWidth);
  if (!width || frame.dataset.width === String(width)) return;
  frame.dataset.width = width;
  frame.replaceChildren(drawn(width));
}

function draw(title, result, ranges, readout, width) {
  const height = Math.min(Math.max(0.7 * width, 240), 400);
  const box = { left: ROOM.left, right: width - ROOM.right, top: ROOM.top, bottom: height - ROOM.bottom };
  const [side, main] = split(result.trace, box);
  const y = scale(pad(ranges.score), [box.bottom, box.top]);
  const x = main && scale(pad(ranges.estimate), main);
  const label = `${title}: ${callsOf(result)}, each by what was expected of it and its score`;
  const drawn = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": label });
  drawn.append(...scoreLines(box, y));
  if (side) drawn.append(...plainAxis(side, box.bottom, main ? "no estimate" : orderOf(result)));
  if (main) drawn.append(...estimateAxis(main, box.bottom, x, y));
  const points = makePoints(result, side, x, y);
  drawn.append(...points);
  listen(drawn, points, result, readout);
  return drawn;
}

/** Where the panels lie along x, of calls without an estimate and of the others; null where there are none. */
function split(trace, { left, right }) {
  const without = trace.filter((call) => expected(call) === null).length;
  if (!without) return [null, [left, right]];
  if (without === trace.length) return [[left, right], null];
  const border = left + SIDE * (right - left);
  return [[left, border - GAP / 2], [border + GAP / 2, right]];
}

function orderOf({ trace }) {
  const names = [...new Set(trace.map((call) => call.proposed_by))];
  return `no estimate: in the order of ${names.length === 1 ? names[0] : "the calls"}`;
}

/** A point for each call: along x its estimate, or its turn among those without one. */
function makePoints(result, side, x, y) {
  const without = result.trace.filter((call) => expected(call) === null);
  const turn = side && scale([-1, without.length], side);
  const shade = shadeOf(result);
  return result.trace.map((call) => {
    const before = expected(call);
    const cx = before === null ? turn(without.indexOf(call)) : x(before);
    return makePoint(call, isHit(call, result), shade(call.round), { cx: cx.toFixed(1), cy: y(call.score).toFixed(1) });
  });
}

function makePoint(call, hit, shade, at) {
  const made = shape("circle", {
    ...at,
    class: hit ? "point hit" : "point",
    r: hit ? 5 : 3.5,
    role: "img",
    tabindex: -1,
    "aria-label": `${call.text || call.id}: ${describe(call, hit)}`,
  });
  made.style.setProperty("--at", shade);
  return made;
}

const isHit = (call, result) => result.hits.some((hit) => hit.id === call.id);

/** How late a round was, as a share of the way from the first colour to the last. */
function shadeOf({ trace }) {
  const last = Math.max(...trace.map((call) => call.round));
  return (round) => `${last > 1 ? (100 * (round - 1)) / (last - 1) : 0}%`;
}

function describe(call, hit) {
  const before = expected(call);
  const deviation = call.deviation === null ? "" : ` ± ${score(call.deviation)}`;
  const guess = before === null ? `proposed by ${call.proposed_by}` : `estimate ${score(before)}${deviation}`;
  return `round ${call.round}, ${guess}, score ${score(call.score)}${hit ? ", in the results" : ""}`;
}

/** A pointer shows the nearest point; arrow keys go from call to call. */
function listen(drawn, points, result, readout) {
  const show = (number) => {
    const call = result.trace[number];
    points.forEach((one, place) => {
      one.setAttribute("tabindex", place === number ? 0 : -1);
      one.classList.toggle("shown", place === number);
    });
    const facts = element("span", { class: "quiet" }, describe(call, isHit(call, result)));
    readout.replaceChildren(element("span", { class: "text" }, call.text || call.id), facts);
  };
  points[0]?.setAttribute("tabindex", 0);
  points.forEach((one, number) => one.addEventListener("focus", () => show(number)));
  for (const name of ["pointermove", "pointerdown"]) {
    drawn.addEventListener(name, (event) => {
      const near = nearest(points, event);
      if (near !== null) show(near);
    });
  }
  drawn.addEventListener("keydown", (event) => step(event, points));
}

function nearest(points, { clientX, clientY }) {
  const distances = points.map((one) => {
    const { left, top, width, height } = one.getBoundingClientRect();
    return Math.hypot(left + width / 2 - clientX, top + height / 2 - clientY);
  });
  const least = Math.min(...distances);
  return least <= REACH ? distances.indexOf(least) : null;
}

function step(event, points) {
  const now = points.indexOf(event.target);
  const last = points.length - 1;
  const next = { ArrowRight: now + 1, ArrowDown: now + 1, ArrowLeft: now - 1, ArrowUp: now - 1, Home: 0, End: last };
  if (now < 0 || !(event.key in next)) return;
  event.preventDefault();
  points[Math.min(Math.max(next[event.key], 0), last)].focus();
}

function legend(result) {
  const shade = shadeOf(result);
  const rounds = [...new Set(result.trace.map((call) => call.round))];
  const every = Math.ceil(rounds.length / MOST_KEYS);
  const shown = rounds.filter((_, place) => place % every === 0 || place === rounds.length - 1);
  const keys = shown.map((round) => {
    const dot = element("span", { class: "dot" });
    dot.style.setProperty("--at", shade(round));
    return element("li", {}, dot, count(round));
  });
  const ring = element("li", {}, element("span", { class: "dot ring" }), "in the results");
  const dash = element("li", {}, element("span", { class: "dash" }), "score as expected");
  const hasDiagonal = result.trace.some((call) => expected(call) !== null);
  return element("ul", { class: "legend" }, element("li", {}, "Round"), keys, ring, hasDiagonal ? dash : null);
}

function callsOf(result) {
  const all = counted(result.calls, "call");
  return isWhole(result) ? all : `${count(result.trace.length)} of ${all}`;
}

/** The calls in words, made when it is opened. */
function table(result) {
  const made = element("details", {}, element("summary", {}, `${callsOf(result)} as a table`));
  made.addEventListener("toggle", () => made.open && made.childElementCount === 1 && made.append(callTable(result)));
  return made;
}

function callTable({ trace }) {
  const heads = ["Call", "Round", "Item", "Estimate", "Score"].map((name) => element("th", { scope: "col" }, name));
  const rows = trace.map((call, number) => {
    const cells = [number + 1, call.round, call.text || call.id, score(expected(call)), score(call.score)];
    return element("tr", {}, cells.map((cell) => element("td", {}, String(cell))));
  });
  const head = element("thead", {}, element("tr", {}, heads));
  return element("table", { class: "calls" }, head, element("tbody", {}, rows));
}
