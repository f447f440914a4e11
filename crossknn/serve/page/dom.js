// DOM and SVG elements. Text is always added as text nodes, never parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** An HTML element; attributes and children that are null or undefined are left out. */
export function element(name, attributes = {}, ...children) {
  return build(document.createElement(name), attributes, children);
}

/** An SVG element. */
export function shape(name, attributes = {}, ...children) {
  return build(document.createElementNS(SVG, name), attributes, children);
}

/** Text for screen readers only. */
export function hidden(text) {
  return element("span", { class: "hidden" }, text);
}

/** Text of a user or an item, whose direction of writing does not change that of what surrounds it. */
export function isolated(text) {
  return element("bdi", {}, text);
}

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}
