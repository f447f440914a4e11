// Filters by field: rows of field, operator and value, as the request's filter and as parts of the URL.

import { byId, element } from "./dom.js";

const EQUALITY = { eq: "is", ne: "is not", in: "is one of", not_in: "is none of" };
const RANGE = { lt: "<", le: "≤", gt: ">", ge: "≥" };
const LISTS = ["in", "not_in"]; // operators whose value is a list, separated by commas
const NUMBERS = ["int64", "float64"];

let kinds = {}; // of the fields, by name

/** Offer filters by these fields; `onChange` is called after every change. */
export function setUpFilters(fields, onChange) {
  kinds = fields;
  byId("filters").hidden = !Object.keys(fields).length;
  byId("filters").addEventListener("change", onChange);
  byId("add-filter").addEventListener("click", () => {
    const row = addRow({ field: Object.keys(kinds)[0], operator: "eq", value: "" });
    row.querySelector("select").focus();
  });
}

/** Replace all rows by those of the URL; what is not of this index is left out. */
export function fillFilters(parts) {
  for (const row of rows()) row.remove();
  for (const part of parts) {
    const [field, operator, ...value] = part.split("|");
    if (Object.hasOwn(kinds, field) && Object.hasOwn(operatorsOf(field), operator)) addRow({ field, operator, value: value.join("|") });
  }
}

/** The rows with a value, as the URL has them. */
export const readFilters = () =>
  rows().map(valuesOf).filter(({ value }) => value).map(({ field, operator, value }) => `${field}|${operator}|${value}`);

/** The filter of a request that these parts of the URL stand for; null without any. */
export function filterOf(parts) {
  const conditions = parts.map((part) => {
    const [field, operator, ...rest] = part.split("|");
    const value = rest.join("|");
    const operand = LISTS.includes(operator) ? value.split(",").map((one) => parse(field, one)) : parse(field, value);
    return { [field]: { [operator]: operand } };
  });
  return conditions.length ? { and: conditions } : null;
}

const rows = () => [...byId("filters").querySelectorAll(".filter")];

function valuesOf(row) {
  const [field, operator, value] = row.querySelectorAll("select, input");
  return { field: field.value, operator: operator.value, value: value.value.trim() };
}

function addRow({ field, operator, value }) {
  const row = element(
    "span",
    { class: "filter" },
    choice("Field", Object.fromEntries(Object.keys(kinds).map((name) => [name, name])), field),
    choice("Condition", operatorsOf(field), operator),
    element("input", { "aria-label": "Value", value, placeholder: kinds[field], autocomplete: "off" }),
    element("button", { type: "button", class: "more", "aria-label": `Remove the filter by ${field}` }, "Remove"),
  );
  row.firstElementChild.addEventListener("change", () => changeField(row));
  row.lastElementChild.addEventListener("click", () => {
    const known = valuesOf(row).value;
    row.remove();
    if (known) byId("filters").dispatchEvent(new Event("change"));
    byId("add-filter").focus();
  });
  byId("add-filter").before(row);
  return row;
}

/** Offer the operators of the field that is chosen now. */
function changeField(row) {
  const { field, operator } = valuesOf(row);
  row.children[1].replaceWith(choice("Condition", operatorsOf(field), Object.hasOwn(operatorsOf(field), operator) ? operator : "eq"));
  row.children[2].placeholder = kinds[field];
  row.lastElementChild.setAttribute("aria-label", `Remove the filter by ${field}`);
}

function choice(label, titles, chosen) {
  const options = Object.entries(titles).map(([value, title]) => element("option", { value }, title));
  const select = element("select", { "aria-label": label }, options);
  select.value = chosen;
  return select;
}

/** A list has its elements as values; neither lists nor booleans have an order. */
const operatorsOf = (field) =>
  ["bool", "list of strings"].includes(kinds[field]) ? EQUALITY : { ...EQUALITY, ...RANGE };

function parse(field, text) {
  const value = text.trim();
  if (kinds[field] === "bool" && ["true", "false"].includes(value)) return value === "true";
  return NUMBERS.includes(kinds[field]) && value !== "" && !Number.isNaN(Number(value)) ? Number(value) : value;
}
