// Comparison of the strategies that searched one query: a summary table, and which items each one missed.

import { element } from "./dom.js";
import { count, milliseconds, percent, score } from "./format.js";

/** The scores of all items that any search for the current query has found on this page. */
export class KnownScores {
  #search = null;
  #scores = new Map();

  /** Add the scores of a search; another query, filter or index starts over. */
  add(result) {
    const search = JSON.stringify([result.query, result.filters, result.index]);
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

/** Columns of the summary: what stands in one, by heading, of a finished answer. */
const COLUMNS = {
  Found: ({ result }, best) => `${countFound(result, best)} of ${best.length}`,
  "Cross-encoder calls": ({ result }) => count(result.calls),
  Rounds: ({ result }) => count(result.rounds),
  "Best score": ({ result }) => score(result.hits[0]?.score),
  "Expected recall": ({ result }) => percent(result.expected_recall),
  "Time (ms)": ({ result }) => milliseconds(result.seconds),
};

/** The columns for these answers: one alone has found all that is known. */
const columnsFor = (answers) => Object.entries(COLUMNS).filter(([name]) => name !== "Found" || answers.length > 1);

/** One row for each finished answer; `best` are the ids of the highest known scores. */
export function summaryTable(answers, best) {
  const longest = Math.max(...answers.map(({ result }) => result.seconds));
  const columns = columnsFor(answers);
  const heads = ["Strategy", ...columns.map(([name]) => name)].map((name) =>
    element("th", { scope: "col", class: classOf(name) }, name),
  );
  const bodies = answers.map((answer) => summaryRows(answer, columns, best, longest));
  return element("table", { class: "summary" }, element("thead", {}, element("tr", {}, heads)), bodies);
}

/** The explanation of the table's columns. */
export function summaryNote(answers, best) {
  const found = `Found: how many of the ${best.length} best items known for this query the strategy has scored. `;
  const recall = "Expected recall: the share of the true best items that the strategy expects to have scored.";
  return element("p", { class: "quiet note" }, answers.length > 1 ? found : null, recall);
}

/** The class of a column's cells: the best score is left out on a narrow screen, where the first result shows it. */
const classOf = (name) => ({ Strategy: "name", "Best score": "best" })[name];

function countFound(result, best) {
  const scored = scoredIds(result);
  return best.filter((id) => scored.has(id)).length;
}

function summaryRows(answer, columns, best, longest) {
  const { title, result } = answer;
  const cells = columns.map(([name, value]) => element("td", { class: classOf(name) }, value(answer, best)));
  const times = element("td", { colspan: cells.length + 1 }, timeBar(result, longest), timeLegend(result));
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
