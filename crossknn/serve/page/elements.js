// Elements of the page. Text is always added as text, never read as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An element with these attributes and children; what is null or undefined is left out. */
export function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** The same for SVG. */
export function shape(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

/** Text for screen readers only. */
export function hidden(text) {
  return element("span", { class: "hidden" }, text);
}

function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}
