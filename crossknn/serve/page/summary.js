// A line for each strategy: what it found, and what that took.

import { countFound } from "./comparing.js";
import { element } from "./elements.js";
import { count, counted, milliseconds, percent, score } from "./figures.js";

/** The answers that are there, in one table; `best` are the ids of the best known. */
export function summaryTable(answers, best) {
  const longest = Math.max(...answers.map(({ result }) => result.seconds));
  const names = ["Strategy", "Found", "Calls", "Best score", "Expected recall", "ms"];
  const heads = names.map((name, place) => element("th", { scope: "col", class: place ? null : "name" }, name));
  const bodies = answers.map((answer) => summaryLines(answer, best, longest));
  return element("table", { class: "summary" }, element("thead", {}, element("tr", {}, heads)), bodies);
}

/** What the table means. */
export function summaryNote(best) {
  const found = `Found: how many it scored of the best ${best.length} that any search of this query has found here.`;
  const recall = "Expected recall: the share of the true best that it expects to have found.";
  return element("p", { class: "quiet note" }, `${found} ${recall}`);
}

function summaryLines({ title, result }, best, longest) {
  const figures = [
    `${countFound(result, best)} of ${best.length}`,
    count(result.calls),
    score(result.hits[0]?.score),
    percent(result.expected_recall),
    milliseconds(result.seconds),
  ];
  const cells = figures.map((figure) => element("td", {}, figure));
  return element(
    "tbody",
    {},
    element("tr", {}, element("th", { scope: "row", class: "name" }, title), cells),
    element("tr", { class: "times" }, element("td", { colspan: 6 }, timeBar(result, longest), timeWords(result))),
  );
}

/** The parts of a search's time, in seconds. */
function partsOf({ seconds, score_seconds: scorer, solve_seconds: solve }) {
  return { scorer, solve, rest: Math.max(0, seconds - scorer - solve) };
}

function timeBar(result, longest) {
  const bars = Object.entries(partsOf(result)).map(([part, seconds]) => {
    const bar = element("i", { class: part });
    bar.style.width = `${(100 * seconds) / (longest || 1)}%`;
    return bar;
  });
  return element("span", { class: "bar", "aria-hidden": "true" }, bars);
}

function timeWords(result) {
  const ended = result.stopped ? element("span", { class: "worse" }, `ended early: ${result.stopped}`) : null;
  const parts = Object.entries(partsOf(result)).map(([part, seconds]) =>
    element("span", { class: `key ${part}` }, `${part} ${milliseconds(seconds)} ms`),
  );
  return element("span", { class: "parts" }, parts, element("span", {}, counted(result.rounds, "round")), ended);
}
