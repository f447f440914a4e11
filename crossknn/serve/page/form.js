// The form: what is asked, and how an address says the same.

import { element } from "./elements.js";
import { counted } from "./figures.js";

const BUDGETS = [25, 500]; // the ends of the slider, where the server allows them
const part = (id) => document.getElementById(id);
const boxes = () => [...part("strategies").querySelectorAll("input")];

/** Set the form up for what the server has. */
export function offer({ limits, strategies }) {
  const most = Math.min(BUDGETS[1], limits.budget);
  Object.assign(part("budget"), { max: most, min: Math.min(BUDGETS[0], most) });
  part("k").dataset.most = limits.k;
  const labels = strategies.map(({ name, title }) =>
    element("label", {}, element("input", { type: "checkbox", value: name }), title),
  );
  part("strategies").append(...labels);
  part("form").hidden = false;
}

/** What the form asks. */
export function readForm() {
  return {
    query: part("query").value.trim(),
    k: part("k").valueAsNumber,
    budget: part("budget").valueAsNumber,
    strategies: boxes().filter((box) => box.checked).map((box) => box.value),
  };
}

/** Fill the form with what an address asks; `defaults` are the server's. */
export function readAddress(search, defaults) {
  const asked = new URLSearchParams(search);
  const chosen = boxes().filter((box) => asked.getAll("strategy").includes(box.value));
  part("query").value = asked.get("q") ?? "";
  part("budget").value = asked.get("budget") ?? defaults.budget;
  part("k").value = asked.get("k") ?? defaults.k;
  for (const box of boxes()) box.checked = chosen.length ? chosen.includes(box) : box.value === defaults.strategy;
  showBudget();
}

/** The address that asks this. */
export function addressOf({ query, k, budget, strategies }) {
  const asked = [["q", query], ["k", k], ["budget", budget], ...strategies.map((name) => ["strategy", name])];
  return `?${new URLSearchParams(asked)}`;
}

/** Say the budget beside its slider; there cannot be more results than calls. */
export function showBudget() {
  const { budget } = readForm();
  part("calls").textContent = counted(budget, "call");
  part("k").max = Math.min(budget, part("k").dataset.most);
}

/** Whether the form can be sent; if not, the browser says why. */
export function checkForm() {
  boxes()[0].setCustomValidity(readForm().strategies.length ? "" : "Choose at least one strategy.");
  return part("form").reportValidity();
}
