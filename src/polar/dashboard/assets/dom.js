// The values of the page, and how elements are made: text is only ever text, never markup.
const VALUES = JSON.parse(document.getElementById("values").textContent);
const SVG = "http://www.w3.org/2000/svg";

function el(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) element.append(child);
  }
  return element;
}

// Control characters and direction overrides by their numbers: neither may disturb what stands beside them.
function visible(text) {
  return String(text).replace(
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g,
    (character) => "\u27e8" + character.charCodeAt(0).toString(16).padStart(2, "0") + "\u27e9",
  );
}

function counted(number, word) {
  return number.toLocaleString("en") + " " + word + (number === 1 ? "" : "s");
}

function seconds(value) {
  return value < 100 ? value.toFixed(value < 10 ? 2 : 1) + " s" : Math.round(value).toLocaleString("en") + " s";
}

function shownNumber(value) {
  return value === null || value === undefined ? "–" : Number(value).toFixed(3);
}
