"use strict";
/* Building blocks: elements, numbers as text, and text that plotly takes literally. */

/** Make an element. Text is always text: nothing that a user wrote is parsed as HTML. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style")
      for (const [key, v] of Object.entries(value)) element.style.setProperty(key, v);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

/** Escape a text for plotly, which reads a few HTML tags and entities in labels. */
function literal(text) {
  return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

const SHORT = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 3 });
const PLAIN = new Intl.NumberFormat("en-US", {
  minimumSignificantDigits: 3,
  maximumSignificantDigits: 3,
});
const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** A number in three significant digits, or whole from 100 on. */
function number(value) {
  if (value == null || Number.isNaN(value)) return "–";
  if (Math.abs(value) >= 100) return WHOLE.format(value);
  return (Number.isInteger(value) ? SHORT : PLAIN).format(value);
}

function percent(share) {
  return share == null ? "–" : `${number(100 * share)}\u00a0%`;
}

function withUnit(value, unit) {
  return unit && value != null ? `${number(value)} ${unit}` : number(value);
}

/** A text as the beginning of a sentence. */
function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function money(value) {
  return `${number(value)} ${DATA.currency}`;
}

function plural(count, word, words = `${word}s`) {
  return `${WHOLE.format(count)} ${count === 1 ? word : words}`;
}

/** "a", "a and b", "a, b and c". */
function listed(texts) {
  if (texts.length < 2) return texts.join("");
  return `${texts.slice(0, -1).join(", ")} and ${texts[texts.length - 1]}`;
}

function range(count) {
  return Array.from({ length: count }, (_, index) => index);
}

/** A table of texts and elements; cells that hold numbers are aligned right. */
function table(caption, head, rows) {
  const isNumber = head.map((_, column) =>
    rows.every((row) => /^[-–±\d]/.test(row[column] ?? "–")),
  );
  return make(
    "table",
    {},
    make("caption", {}, caption),
    make(
      "thead",
      {},
      make(
        "tr",
        {},
        ...head.map((text, i) => make("th", { scope: "col", class: isNumber[i] && "num" }, text)),
      ),
    ),
    make(
      "tbody",
      {},
      ...rows.map((row) =>
        make(
          "tr",
          {},
          ...row.map((cell, i) =>
            make(
              i ? "td" : "th",
              { scope: i ? null : "row", class: isNumber[i] && "num" },
              cell ?? "–",
            ),
          ),
        ),
      ),
    ),
  );
}
