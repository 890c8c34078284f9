"use strict";
/* Building blocks: elements, tables, and numbers as text. */

/** Make an element. Text is always text: nothing that a user wrote is parsed as HTML. */
function make(tag, attributes = {}, ...children) {
  const element = /^(svg|path|line|text)$/.test(tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
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

const SHORT = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 3 });
const DIGITS = { minimumSignificantDigits: 3, maximumSignificantDigits: 3 };
const PLAIN = new Intl.NumberFormat("en-US", DIGITS);
const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** A number in three significant digits, or whole from 100 on. */
function number(value) {
  if (value == null || Number.isNaN(value)) return "–";
  if (Math.abs(value) >= 100) return WHOLE.format(value);
  return (Number.isInteger(value) ? SHORT : PLAIN).format(value);
}

/** What step times rest on, as `specsim.run.validity.step_times` says it. */
const BASIS = {
  fitted: "fitted to measured steps",
  kernels: "composed of kernels measured one by one",
  roofline: "a roofline of data sheets, not measured",
};

/** Near all, two decimals, cut: a share that misses a limit, or all, does not look like it. */
function percent(share) {
  if (share == null) return "–";
  const text = share > 0.9 && share < 1 ? String(Math.floor(1e4 * share + 1e-6) / 100) : number(100 * share);
  return `${text}\u00a0%`;
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

/** A mean that a table shows with half its interval, and a CSV without. */
function valued(text, value) {
  return make("span", { "data-value": value }, text);
}

/** A table of numbers, texts and elements, that can be scrolled and downloaded. */
function table(caption, head, rows, tall = "") {
  const isValue = (cell) => cell == null || typeof cell === "number" || cell.dataset?.value;
  const kinds = head.map((_, i) => ({ class: rows.every((row) => isValue(row[i])) && "num" }));
  const content = (cell) => (typeof cell === "number" ? valued(number(cell), cell) : (cell ?? "–"));
  const cell = (each, i) =>
    (i ? dataCell : rowHead)({ ...kinds[i], "data-head": head[i] }, content(each));
  const heads = head.map((text, i) => columnHead(kinds[i], text));
  const body = rows.map((row) => line(...row.map(cell)));
  return tableBox(caption, tableOf(caption, heads, body), tall);
}

/** What is too wide for the page scrolls by itself, by the keyboard, too. */
function tableBox(caption, element, tall = "") {
  const scroll = { class: `scroll ${tall}`, tabindex: "0", role: "region", "aria-label": caption };
  const text = [...element.rows].map((row) => [...row.cells].map(csvCell).join(",")).join("\n");
  const link = {
    class: "csv",
    download: `${caption.replace(/[^A-Za-z0-9]+/g, "-").toLowerCase()}.csv`,
    href: `data:text/csv;charset=utf-8,${encodeURIComponent(`${text}\n`)}`,
    "aria-label": `Download as CSV: ${caption}`,
  };
  return make("div", { class: "table" }, make("div", scroll, element), make("a", link, "CSV"));
}

/** The full number where there is one; no text that a spreadsheet would take for a formula. */
function csvCell(cell) {
  const value = (cell.dataset.value ? cell : cell.querySelector("[data-value]"))?.dataset.value;
  const texts = (node) => (node.data ? [node.data] : [...node.childNodes].flatMap(texts));
  const shown = texts(cell).join(" ");
  const text = (value ?? (shown === "–" ? "" : shown)).replace(/^(?=[=+@\t]|-\D)/, "'");
  return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/* Parts of tables, whose roles are spelled out: on a phone some are laid out as blocks, and stay tables. */
const columnHead = (attributes, ...content) =>
  make("th", { role: "columnheader", scope: "col", ...attributes }, ...content);
const rowHead = (attributes, ...content) =>
  make("th", { role: "rowheader", scope: "row", ...attributes }, ...content);
const dataCell = (attributes, ...content) =>
  make("td", { role: "cell", ...attributes }, ...content);
const line = (...cells) => make("tr", { role: "row" }, ...cells);

function tableOf(caption, heads, rows, attributes = {}) {
  return make(
    "table",
    { role: "table", ...attributes },
    make("caption", {}, caption),
    make("thead", { role: "rowgroup" }, line(...heads)),
    make("tbody", { role: "rowgroup" }, ...rows),
  );
}

/** Draw a table whose heads are buttons that sort it; a column says what it sorts by and shows of a row. */
function drawSortable(plot, caption, columns, rows, sorting, redraw) {
  const { column, falls } = sorting;
  const key = (row) => columns[column].value(row) ?? (falls ? -Infinity : Infinity);
  const ordered = [...rows];
  if (column != null) ordered.sort((a, b) => (key(a) - key(b)) * (falls ? -1 : 1));
  const heads = columns.map(({ title, unit, isNumber }, index) => {
    const onclick = async () => {
      Object.assign(sorting, { column: index, falls: column === index && !falls });
      await redraw();
      plot.querySelector(`[data-sort="${index}"]`).focus();
    };
    const order = index !== column ? "none" : falls ? "descending" : "ascending";
    const content = [title, unit ? make("small", {}, unit) : null];
    const button = make("button", { type: "button", "data-sort": index, onclick }, ...content);
    return columnHead({ class: isNumber && "num", "aria-sort": order }, button);
  });
  const cellOf = (row) => (each, i) =>
    (i ? dataCell : rowHead)({ class: each.isNumber && "num" }, each.show(row));
  const body = ordered.map((row) => line(...columns.map(cellOf(row))));
  const { scrollTop, scrollLeft } = plot.querySelector(".scroll") ?? {};
  const element = tableOf(caption, heads, body, { class: "overview" });
  plot.replaceChildren(tableBox(caption, element, "tall"));
  plot.querySelector(".scroll").scrollTo(scrollLeft ?? 0, scrollTop ?? 0);
}
