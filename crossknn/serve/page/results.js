// The hits of one strategy as a list.

import { missedBy } from "./comparing.js";
import { element, hidden } from "./elements.js";
import { MISSING, count, score } from "./figures.js";

/** A column: the strategy's name and its hits, or why there are none. `others` are the other answers that are there. */
export function column(answer, others) {
  const { title, result, problem, waiting } = answer;
  const busy = waiting ? element("small", {}, "searching …") : null;
  const made = element("article", { "aria-busy": String(waiting) }, element("h3", {}, title, busy));
  if (problem) made.append(element("p", { class: "problem", role: "alert" }, problem));
  else if (result?.hits.length) made.append(element("ol", {}, result.hits.map((hit) => line(hit, others))));
  else if (result) made.append(element("p", { class: "quiet" }, "Nothing was found."));
  return made;
}

/** Long texts are cut after some lines: give those a button that shows all. The column must be on the page. */
export function addButtons(parent) {
  const cut = [...parent.querySelectorAll(".text")].filter((text) => text.scrollHeight > text.clientHeight + 1);
  for (const text of cut) text.after(moreButton(text));
}

function line(hit, others) {
  const round = element("span", {}, "round ", strong(hit.round));
  const places = Object.entries(hit.ranks).map(([name, rank]) =>
    element("span", {}, `${name} `, rank === null ? nowhere() : strong(rank)),
  );
  return element(
    "li",
    {},
    element("div", {}, element("p", { class: "text" }, hit.text || hit.id)),
    element("span", { class: "score" }, hidden("score "), score(hit.score)),
    element("p", { class: "origin" }, mark(hit, others), round, places, id(hit)),
  );
}

const strong = (number) => element("b", {}, count(number));
const nowhere = () => element("span", {}, element("span", { "aria-hidden": "true" }, MISSING), hidden("nowhere"));
const id = (hit) => (hit.text ? element("span", { class: "id" }, hit.id) : null);

/** Who else missed this hit. */
function mark(hit, others) {
  const missed = missedBy(hit.id, others);
  if (!missed.length) return null;
  const all = missed.length === others.length;
  return element("span", { class: all ? "only" : "missed" }, all ? "only here" : `missed by ${missed.join(", ")}`);
}

function moreButton(text) {
  const button = element("button", { type: "button", class: "more", "aria-expanded": "false" }, "Show all");
  button.addEventListener("click", () => {
    const open = text.classList.toggle("whole");
    button.setAttribute("aria-expanded", String(open));
    button.textContent = open ? "Show less" : "Show all";
  });
  return button;
}
