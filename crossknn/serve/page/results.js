// The hits of one strategy as a list.

import { missedBy } from "./comparison.js";
import { element, hidden, isolated } from "./dom.js";
import { MISSING, count, counted, score } from "./format.js";

const MAX_VALUE = 120; // characters of a field that are shown

/** A column: the strategy's name and its hits, or an error. `others` are the other finished answers. */
export function column(answer, others) {
  const { title, result, problem, waiting, live } = answer;
  const progress = live ? `after ${counted(result.calls, "call")} …` : "searching …";
  const busy = waiting ? element("small", {}, progress) : null;
  const article = element("article", { "aria-busy": String(waiting && !live) }, element("h3", {}, title, busy));
  if (problem) article.append(element("p", { class: "problem", role: "alert" }, problem));
  else if (result?.hits.length) article.append(element("ol", {}, result.hits.map((hit) => hitItem(hit, others))));
  else if (result) article.append(element("p", { class: "quiet" }, "No results."));
  return article;
}

/** Add a button "Show all" to every text that is cut off. The column must be on the page. */
export function addShowAllButtons(parent) {
  const texts = [...parent.querySelectorAll(".text")].filter((text) => text.scrollHeight > text.clientHeight + 1);
  for (const text of texts) text.after(showAllButton(text));
}

function hitItem(hit, others) {
  return element(
    "li",
    {},
    element("div", {}, element("p", { class: "text", dir: "auto" }, hit.text ? highlighted(hit) : hit.id), fieldList(hit)),
    element("span", { class: "score" }, hidden("score "), score(hit.score)),
    element("p", { class: "origin", "aria-label": "Why this hit" }, whyThisHit(hit, others)),
  );
}

/** The text of a hit with the words of the query marked; their places count code points. */
function highlighted({ text, matches }) {
  if (!matches.length) return text;
  const characters = Array.from(text);
  const ends = [0, ...matches.map(([, end]) => end)];
  const part = (start, end) => characters.slice(start, end).join("");
  const marked = matches.map(([start, end], place) => [part(ends[place], start), element("mark", {}, part(start, end))]);
  return [...marked.flat(), part(ends.at(-1))];
}

/** The fields that the item has, or nothing. */
function fieldList(hit) {
  const known = Object.entries(hit.fields ?? {}).filter(([, value]) => value !== null);
  if (!known.length) return null;
  const pairs = known.map(([name, value]) =>
    element("div", {}, element("dt", {}, isolated(name)), element("dd", {}, isolated(shownValue(value)))),
  );
  return element("dl", { class: "fields", "aria-label": "Fields" }, pairs);
}

/** The round in which a hit was scored, if it was, its rank by each retriever, and the strategies that missed it. */
function whyThisHit(hit, others) {
  const scored = hit.score !== null;
  const round = scored ? element("span", {}, "round ", strong(hit.round)) : element("span", {}, "not scored in time");
  const ranks = Object.entries(hit.ranks).map(([retriever, rank]) =>
    element("span", {}, `${retriever} rank `, rank === null ? notRetrieved() : strong(rank)),
  );
  const id = hit.text ? element("span", { class: "id" }, "id ", isolated(hit.id)) : null;
  return [scored ? missedLabel(hit, others) : null, round, ...ranks, id];
}

const shownValue = (value) => {
  const text = [value].flat().join(", ");
  return text.length > MAX_VALUE ? `${text.slice(0, MAX_VALUE)}…` : text;
};
const strong = (number) => element("b", {}, count(number));
const notRetrieved = () =>
  element("span", {}, element("span", { "aria-hidden": "true" }, MISSING), hidden("not retrieved"));

function missedLabel(hit, others) {
  const missed = missedBy(hit.id, others);
  if (!missed.length) return null;
  const all = missed.length === others.length;
  return element("span", { class: all ? "only" : "missed" }, all ? "found only here" : `missed by ${missed.join(", ")}`);
}

function showAllButton(text) {
  const button = element("button", { type: "button", class: "more", "aria-expanded": "false" }, "Show all");
  button.addEventListener("click", () => {
    const open = text.classList.toggle("whole");
    button.setAttribute("aria-expanded", String(open));
    button.textContent = open ? "Show less" : "Show all";
  });
  return button;
}
