// The search form and its representation in the URL.

import { byId, element } from "./dom.js";
import { fillFilters, readFilters } from "./filters.js";
import { count, counted } from "./format.js";

const BUDGETS = [25, 500]; // range of the slider, within the server's limit
const MAX_QUERY = 5000; // characters, so that the URL that restores the search stays within the server's limit
const checkboxes = () => [...byId("strategies").querySelectorAll("input")];

/** Set up the form for the strategies and limits of the server. */
export function setUpForm({ limits, strategies }) {
  const max = Math.min(BUDGETS[1], limits.budget);
  Object.assign(byId("budget"), { max, min: Math.min(BUDGETS[0], max) });
  byId("k").dataset.limit = limits.k;
  const labels = strategies.filter(({ by_default }) => by_default).map(({ name, title }) =>
    element("label", {}, element("input", { type: "checkbox", value: name }), title),
  );
  byId("strategies").append(...labels);
  byId("form").hidden = false;
}

export function readForm() {
  return {
    query: byId("query").value.trim(),
    k: byId("k").valueAsNumber,
    budget: byId("budget").valueAsNumber,
    strategies: checkboxes().filter((box) => box.checked).map((box) => box.value),
    filters: readFilters(),
  };
}

/** Fill the form from the query string of a URL; `defaults` are the server's. */
export function fillForm(queryString, defaults) {
  const given = new URLSearchParams(queryString);
  const chosen = checkboxes().filter((box) => given.getAll("strategy").includes(box.value));
  byId("query").value = given.get("q") ?? "";
  byId("budget").value = given.get("budget") ?? defaults.budget;
  byId("k").value = given.get("k") ?? defaults.k;
  for (const box of checkboxes()) box.checked = chosen.length ? chosen.includes(box) : box.value === defaults.strategy;
  fillFilters(given.getAll("filter"));
  updateBudget();
}

/** The query string that describes a search. */
export function queryStringOf({ query, k, budget, strategies, filters }) {
  const several = [...strategies.map((name) => ["strategy", name]), ...filters.map((filter) => ["filter", filter])];
  return `?${new URLSearchParams([["q", query], ["k", k], ["budget", budget], ...several])}`;
}

/** Show the budget next to its slider, and limit the number of results to it. */
export function updateBudget() {
  const { budget } = readForm();
  byId("calls").textContent = counted(budget, "call");
  byId("k").max = Math.min(budget, byId("k").dataset.limit);
}

/** Mark a query that is too long, which the browser does not send. */
export function checkQuery() {
  const { length } = byId("query").value;
  byId("query").setCustomValidity(length > MAX_QUERY ? `Queries have at most ${count(MAX_QUERY)} characters here.` : "");
}

/** Whether the form is valid; if not, the browser shows why. */
export function checkForm() {
  checkQuery();
  checkboxes()[0].setCustomValidity(readForm().strategies.length ? "" : "Choose at least one strategy.");
  return byId("form").reportValidity();
}
