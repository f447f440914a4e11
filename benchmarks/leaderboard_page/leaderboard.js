// The filters, plots and table of the leaderboard. Text is always added as text nodes, never parsed as HTML.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const table = JSON.parse(document.getElementById("rows").textContent);
const rows = table.rows.map((values) => Object.fromEntries(table.columns.map((name, place) => [name, values[place]])));
const form = document.getElementById("filters");
const COLORS = 12;
const SHAPES = [
  "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0Z", // circle
  "M-4,-4H4V4H-4Z", // square
  "M0,-5L5,4H-5Z", // triangle
  "M0,-5.5L5.5,0L0,5.5L-5.5,0Z", // diamond
  "M0,5L5,-4H-5Z", // triangle, downwards
];
const names = [...new Set(rows.map((row) => row.strategy))].sort((a, b) => common(b) - common(a) || a.localeCompare(b));
const hidden = new Set(names.filter((name) => name.includes(", λ"))); // settings that were tried on the test queries
let order = { key: "recall", sign: -1 };

const OFFLINE = {
  any: () => true,
  none: (row) => row.offline === 0,
  "up to 10": (row) => row.offline !== null && row.offline <= 10,
  "more than 10": (row) => row.offline !== null && row.offline > 10,
  "not recorded": (row) => row.offline === null,
};
const COLUMNS = [
  ["Strategy", "strategy", -1],
  ["Budget", "budget", 1],
  ["Recall", "recall", -1],
  ["Interval", "low", -1],
  ["Difference", "gap", -1],
  ["nDCG@10", "ndcg", -1],
  ["Calls", "calls", 1],
  ["Offline", "offline", 1],
  ["ms", "time", 1],
  ["Queries", "queries", -1],
  ["File", "file", 1],
];
for (const row of rows) {
  row.models = `${row.scorer}; ${row.encoder}`;
  row.gap = row.difference && row.difference[0];
  row.time = row.milliseconds ?? row.beside;
}

function common(name) {
  return new Set(rows.filter((row) => row.strategy === name).map((row) => row.set)).size;
}

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}
const element = (name, attributes = {}, ...children) => build(document.createElement(name), attributes, children);
const shape = (name, attributes = {}, ...children) => build(document.createElementNS(SVG, name), attributes, children);
const style = (name) => ({ color: `var(--s${names.indexOf(name) % COLORS})`, path: SHAPES[names.indexOf(name) % SHAPES.length] });
const fixed = (value) => (value === null || value === undefined ? "–" : value.toFixed(1));
const signed = (value) => (value > 0 ? "+" : value < 0 ? "−" : "") + Math.abs(value).toFixed(1);
const unique = (key, among) => [...new Set(among.map((row) => row[key]))];

/** A small mark of a strategy, as in the plots. */
function key(name) {
  const { color, path } = style(name);
  const mark = shape("path", { d: path, transform: "translate(7 7)", stroke: color, style: `fill:${color}` });
  return shape("svg", { width: 14, height: 14, "aria-hidden": "true" }, mark);
}

// Filters

/** Fill a select; what was chosen stays, else the preferred value is chosen, else the first. */
function fill(name, values, preferred) {
  const select = form.elements[name];
  const wanted = [select.value, preferred].find((value) => values.map(String).includes(String(value)));
  select.replaceChildren(...values.map((value) => element("option", { value }, String(value))));
  select.value = wanted ?? values[0];
}

/** The rows of the chosen set, models and k; the other filters are applied to them. */
function narrow() {
  fill("set", unique("set", rows).sort(), "scifact");
  let chosen = rows.filter((row) => row.set === form.elements.set.value);
  fill("models", unique("models", chosen));
  chosen = chosen.filter((row) => row.models === form.elements.models.value);
  fill("k", unique("k", chosen).sort((a, b) => a - b), 10);
  chosen = chosen.filter((row) => row.k === Number(form.elements.k.value));
  fill("budget", ["all", ...unique("budget", chosen).sort((a, b) => a - b)], 100);
  fill("offline", Object.keys(OFFLINE), "any");
  return chosen.filter(OFFLINE[form.elements.offline.value]);
}

function showStrategies(chosen) {
  const here = names.filter((name) => chosen.some((row) => row.strategy === name));
  const boxes = here.map((name) => {
    const box = element("input", { type: "checkbox", value: name });
    box.checked = !hidden.has(name);
    return element("label", {}, box, key(name), name);
  });
  document.getElementById("strategies").replaceChildren(...boxes);
}

/** The chosen filters as the address of the page, so that a view can be linked to. */
function remember() {
  const state = new URLSearchParams([...new FormData(form)]);
  history.replaceState(null, "", `?${state}${location.hash}`);
}

function recall() {
  const state = new URLSearchParams(location.search);
  narrow();
  for (const [name, value] of state) {
    const select = form.elements[name];
    if (select && [...select.options].some((option) => option.value === value)) select.value = value;
    narrow(); // the choices of a filter depend on those before it
  }
}

// Table

function showTable(chosen) {
  const budget = form.elements.budget.value;
  const kept = withoutRepeats(chosen.filter((row) => budget === "all" || row.budget === Number(budget)));
  kept.sort((a, b) => compare(a[order.key], b[order.key]));
  const heads = COLUMNS.map(([label, name, sign]) => {
    const sorted = order.key === name ? (order.sign < 0 ? "descending" : "ascending") : null;
    const button = element("button", { type: "button" }, label, sorted ? (order.sign < 0 ? " ↓" : " ↑") : "");
    button.addEventListener("click", () => {
      order = { key: name, sign: order.key === name ? -order.sign : sign };
      update(false);
      document.querySelectorAll("#results th button")[COLUMNS.findIndex((column) => column[1] === name)].focus();
    });
    return element("th", { scope: "col", class: name === "strategy" ? "name" : null, "aria-sort": sorted }, button);
  });
  document.querySelector("#results thead tr").replaceChildren(...heads);
  document.querySelector("#results tbody").replaceChildren(...kept.map(tableRow));
  const [first] = chosen;
  const about = first ? `${first.items.toLocaleString("en")} items. ` : "";
  document.getElementById("count").textContent = `${about}${kept.length} rows.`;
}

/** Of rows from two files with the same recall, the one with a paired difference. */
function withoutRepeats(chosen) {
  const search = (row) => `${row.strategy} ${row.budget} ${row.queries} ${fixed(row.recall)}`;
  const paired = new Set(chosen.filter((row) => row.difference).map(search));
  return chosen.filter((row) => row.difference || !paired.has(search(row)));
}

function compare(a, b) {
  if (a === null || b === null) return (a === null) - (b === null);
  return order.sign * (typeof a === "string" ? a.localeCompare(b) : a - b);
}

function tableRow(row) {
  const cell = (text, attributes = {}) => element("td", attributes, text);
  const interval = row.low === null ? "–" : `${fixed(row.low)}–${fixed(row.high)}`;
  const time = row.time === null ? "–" : `${row.milliseconds === null ? "+" : ""}${row.time < 9.95 ? fixed(row.time) : row.time.toFixed(0)}`;
  const name = element("th", { scope: "row", class: "name" }, key(row.strategy), row.strategy, row.oracle ? " (oracle)" : "");
  return element("tr", { class: row.oracle ? "oracle" : null }, name,
    cell(String(row.budget)), element("td", { class: "recall" }, origin(row, fixed(row.recall))),
    cell(interval, { class: "interval" }), difference(row), cell(fixed(row.ndcg)), cell(row.calls === null ? "–" : String(Math.round(10 * row.calls) / 10)),
    cell(row.offline === null ? "–" : fixed(row.offline).replace(/\.0$/, "")), cell(time), cell(String(row.queries)), element("td", {}, origin(row, row.file.replace(/\.json$/, "")), stale(row)));
}

/** A link to what the page says of the row's result file, which opens it. */
function origin(row, text) {
  const title = `${row.file}: command, commit, hardware and seed`;
  return element("a", { href: `#${row.file}`, title }, text);
}

function stale(row) {
  const state = document.getElementById(row.file).querySelector(".state").textContent;
  return state === "stale" ? element("small", { class: "stale" }, " stale") : null;
}

function difference(row) {
  if (!row.difference) return element("td", {}, "–");
  const [mean, low, high] = row.difference;
  const kind = low > 0 ? "better" : high < 0 ? "worse" : null;
  const interval = element("small", { class: "paired interval" }, `${signed(low)} to ${signed(high)}`);
  return element("td", { class: kind, title: `to ${row.baseline}` }, signed(mean), interval);
}

// Plots

const SIZE = { height: 340, left: 34, right: 12, top: 30, bottom: 44 }; // pixels
const WIDTH = { least: 280, most: 560 };

function showPlots(chosen) {
  const timed = chosen.filter((row) => row.milliseconds !== null);
  const beside = chosen.filter((row) => row.beside !== null);
  const figures = [plot(chosen, (row) => row.calls ?? row.budget, "Recall against calls", "calls per query")];
  if (timed.length) figures.push(plot(timed, (row) => row.milliseconds, "Recall against milliseconds", "milliseconds per query"));
  else if (beside.length) {
    figures.push(plot(beside, (row) => row.beside, "Recall against milliseconds", "milliseconds per query beside the scorer"));
  }
  document.getElementById("plots").replaceChildren(...figures);
}

function plot(among, at, title, unit) {
  const { height, left, right, top, bottom } = SIZE;
  const room = document.getElementById("plots").clientWidth;
  const width = Math.min(Math.max(room > 850 ? room / 2 - 12 : room, WIDTH.least), WIDTH.most);
  const points = among.filter((row) => at(row) > 0);
  const label = `${title}, in percent of the true top ${form.elements.k.value}`;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": label });
  svg.append(shape("text", { class: "title", x: 0, y: 14 }, title));
  if (!points.length) {
    svg.append(shape("text", { x: left, y: height / 2 }, "Nothing is chosen that was measured."));
    return element("figure", {}, svg);
  }
  const xs = points.map(at), lows = points.map((row) => row.low ?? row.recall), highs = points.map((row) => row.high ?? row.recall);
  const [from, to] = [Math.log(Math.min(...xs) / 1.1), Math.log(Math.max(...xs) * 1.1)];
  const low = Math.max(0, Math.floor(Math.min(...lows) / 10) * 10), high = Math.min(100, Math.ceil(Math.max(...highs) / 10) * 10);
  const x = (value) => left + ((Math.log(value) - from) / (to - from)) * (width - left - right);
  const y = (value) => height - bottom - ((value - low) / (high - low || 1)) * (height - top - bottom);
  for (let value = low; value <= high; value += high - low > 50 ? 20 : 10) {
    svg.append(shape("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
      shape("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, String(value)));
  }
  svg.append(shape("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));
  for (const value of ticks(Math.exp(from), Math.exp(to), xs)) {
    svg.append(shape("text", { x: x(value), y: height - bottom + 18, "text-anchor": "middle" }, String(value)));
  }
  svg.append(shape("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, unit));
  for (const series of seriesOf(points)) drawSeries(svg, series, (row) => x(at(row)), y, at, unit);
  return element("figure", {}, svg);
}

/** The values themselves if they are few, else 1, 2 and 5 times powers of ten; none too near to another. */
function ticks(from, to, values) {
  const own = [...new Set(values)].sort((a, b) => a - b);
  const powers = Array.from({ length: 12 }, (_, place) => 10 ** (place - 4)).flatMap((power) => [power, 2 * power, 5 * power]);
  const wanted = own.length <= 8 && own.every(Number.isInteger) ? own : powers.filter((value) => value >= from && value <= to);
  const gap = Math.log(to / from) / 9;
  return wanted.reduce((kept, value) => (kept.length && Math.log(value / kept.at(-1)) < gap ? kept : [...kept, Number(value.toPrecision(3))]), []);
}

/** The points of each strategy and file, by budget. */
function seriesOf(points) {
  const series = new Map();
  for (const row of points) {
    const name = `${row.strategy} ${row.file} ${row.queries}`;
    series.set(name, [...(series.get(name) ?? []), row]);
  }
  return [...series.values()].map((one) => one.sort((a, b) => a.budget - b.budget));
}

function drawSeries(svg, series, x, y, at, unit) {
  const { color, path } = style(series[0].strategy);
  const line = series.map((row, place) => `${place ? "L" : "M"}${x(row).toFixed(1)},${y(row.recall).toFixed(1)}`).join("");
  const dashes = series[0].baseline === null ? "5 3" : null;
  svg.append(shape("path", { class: "line", d: line, stroke: color, "stroke-dasharray": dashes }));
  for (const row of series) {
    if (row.low !== null) {
      svg.append(shape("line", { class: "band", stroke: color, x1: x(row), x2: x(row), y1: y(row.low), y2: y(row.high) }));
    }
  }
  series.forEach((row, place) => {
    const text = `${row.strategy}, ${row.budget} calls: recall ${fixed(row.recall)}${row.low === null ? "" : ` (${fixed(row.low)}–${fixed(row.high)})`}, ${Number(at(row).toPrecision(3))} ${unit}, ${row.file}`;
    const mark = shape("path", { class: "mark", d: path, transform: `translate(${x(row).toFixed(1)} ${y(row.recall).toFixed(1)})`,
      stroke: color, style: `fill:${dashes ? "var(--paper)" : color}`, tabindex: place ? -1 : 0, role: "img", "aria-label": text });
    for (const event of ["focus", "pointerenter", "click"]) mark.addEventListener(event, () => read(row, text));
    svg.append(mark);
  });
  const marks = [...svg.querySelectorAll(".mark")].slice(-series.length);
  marks.forEach((mark, place) => mark.addEventListener("keydown", (event) => {
    const next = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: marks.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    marks[Math.min(Math.max(next, 0), marks.length - 1)].focus();
  }));
}

function read(row, text) {
  document.getElementById("readout").replaceChildren(key(row.strategy), " ", text.slice(0, text.lastIndexOf(", ")), ", ", origin(row, row.file));
}

// All of it

function update(refill = true) {
  const chosen = narrow();
  if (refill) showStrategies(chosen);
  const shown = chosen.filter((row) => !hidden.has(row.strategy));
  showPlots(shown);
  showTable(shown);
  remember();
}

/** Open the result file that the address names. */
function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target instanceof HTMLDetailsElement) {
    target.open = true;
    target.scrollIntoView();
  }
}

form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("change", ({ target }) => {
  if (target.type !== "checkbox") return update();
  hidden[target.checked ? "delete" : "add"](target.value);
  return update(false);
});
for (const [id, change] of [["all", "delete"], ["none", "add"]]) {
  document.getElementById(id).addEventListener("click", () => {
    for (const row of narrow()) hidden[change](row.strategy);
    update();
  });
}
window.addEventListener("hashchange", openTarget);
window.addEventListener("resize", () => showPlots(narrow().filter((row) => !hidden.has(row.strategy))));
recall();
update();
openTarget();
