// Comparison of the strategies that searched one query: a summary table, and which items each one missed.

import { element } from "./dom.js";
import { count, milliseconds, percent, score } from "./format.js";

/** The scores of all items that any search for the current query has found on this page. */
export class KnownScores {
  #search = null;
  #scores = new Map();

  /** Add the scores of a search; another query or another index starts over. */
  add(result) {
    const search = JSON.stringify([result.query, result.index]);
    if (search !== this.#search) this.#scores.clear();
    this.#search = search;
    for (const { id, score } of result.trace) this.#scores.set(id, score);
  }

  /** The ids of the `k` highest scores. */
  best(k) {
    const order = [...this.#scores].sort(([, one], [, other]) => other - one);
    return order.slice(0, k).map(([id]) => id);
  }
}

/** The titles of the other answers that never scored this item. */
export function missedBy(id, others) {
  return others.filter(({ result }) => isComplete(result) && !scoredIds(result).has(id)).map((other) => other.title);
}

/** Whether the trace has every call; that of exact search has only the hits. */
export const isComplete = ({ trace, calls }) => trace.length === calls;

/** One row for each finished answer; `best` are the ids of the highest known scores. */
export function summaryTable(answers, best) {
  const longest = Math.max(...answers.map(({ result }) => result.seconds));
  const names = ["Strategy", "Found", "Cross-encoder calls", "Rounds", "Best score", "Expected recall", "Time (ms)"];
  const heads = names.map((name, place) => element("th", { scope: "col", class: place ? null : "name" }, name));
  const bodies = answers.map((answer) => summaryRows(answer, best, longest));
  return element("table", { class: "summary" }, element("thead", {}, element("tr", {}, heads)), bodies);
}

/** The explanation of the table's columns. */
export function summaryNote(best) {
  const found = `Found: how many of the ${best.length} best items known for this query the strategy has scored.`;
  const recall = "Expected recall: the share of the true best items that the strategy expects to have scored.";
  return element("p", { class: "quiet note" }, `${found} ${recall}`);
}

function summaryRows({ title, result }, best, longest) {
  const scored = scoredIds(result);
  const values = [
    `${best.filter((id) => scored.has(id)).length} of ${best.length}`,
    count(result.calls),
    count(result.rounds),
    score(result.hits[0]?.score),
    percent(result.expected_recall),
    milliseconds(result.seconds),
  ];
  const cells = values.map((value) => element("td", {}, value));
  const times = element("td", { colspan: values.length + 1 }, timeBar(result, longest), timeLegend(result));
  return element(
    "tbody",
    {},
    element("tr", {}, element("th", { scope: "row", class: "name" }, title), cells),
    element("tr", { class: "times" }, times),
  );
}

/** The parts of a search's time: class, name and seconds. */
function timeParts({ seconds, score_seconds: scorer, solve_seconds: solve }) {
  const other = Math.max(0, seconds - scorer - solve);
  return [["scorer", "cross-encoder", scorer], ["solve", "model updates", solve], ["rest", "other", other]];
}

function timeBar(result, longest) {
  const bars = timeParts(result).map(([kind, , seconds]) => {
    const bar = element("i", { class: kind });
    bar.style.width = `${(100 * seconds) / (longest || 1)}%`;
    return bar;
  });
  return element("span", { class: "bar", "aria-hidden": "true" }, bars);
}

function timeLegend(result) {
  const parts = timeParts(result).map(([kind, name, seconds]) =>
    element("span", { class: `key ${kind}` }, `${name} ${milliseconds(seconds)} ms`),
  );
  const stopped = result.stopped ? element("span", { class: "worse" }, `stopped early: ${result.stopped}`) : null;
  return element("span", { class: "parts" }, parts, stopped);
}

const idSets = new WeakMap();

function scoredIds(result) {
  if (!idSets.has(result)) idSets.set(result, new Set(result.trace.map(({ id }) => id)));
  return idSets.get(result);
}
