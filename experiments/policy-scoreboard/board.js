
/* The board: a row per controller, sorted by the column whose head is pressed. */

const DATA = JSON.parse(document.getElementById("data").textContent);
const sorting = { column: null, falls: false };

function signed(value, digits) {
  return `${value < 0 ? "\u2212" : "+"}${Math.abs(value).toFixed(digits)}`;
}

/** A regret: strong if it is one for certain, emphasised if a gain is; its bounds when pointed at. */
function regret(found) {
  if (found == null) return "–";
  const { mean, low, high, p } = found;
  const tag = p >= 0.05 ? "span" : mean > 0 ? "strong" : "em";
  const title = `${signed(low, 1)} to ${signed(high, 1)} %, for all at once; p = ${p}`;
  return make(tag, { "data-value": mean, title }, signed(mean, 1));
}

function textColumn(title, at) {
  const texts = [...new Set(DATA.rows.map((row) => row[at]))].sort();
  const style = { display: "inline-block", "max-width": "36ch", "white-space": "normal" };
  const show = (row) => make("span", { style }, row[at]);
  return { title, value: (row) => texts.indexOf(row[at]), show };
}

function numberColumn(title, unit, at, show) {
  return { title, unit, isNumber: true, value: (row) => row[at], show: (row) => show(row[at]) };
}

const AFTER = 2 + DATA.places.length;
const COLUMNS = [
  textColumn("policy", 0),
  textColumn("source", 1),
  ...DATA.places.map((title, place) => ({
    ...numberColumn(title, "%", 2 + place, regret),
    value: (row) => row[2 + place]?.mean,
  })),
  numberColumn("worst cell", "%", AFTER, (worst) => valued(signed(worst, 0), worst)),
  numberColumn("decision", "us", AFTER + 1, (time) => valued(number(time), time)),
];

function draw() {
  const plot = document.getElementById("sections");
  drawSortable(plot, "Board of controllers", COLUMNS, DATA.rows, sorting, draw);
  plot.querySelector(".scroll").style.maxHeight = "none"; // it is all there is on the page
  document.body.dataset.updates = Number(document.body.dataset.updates ?? 0) + 1;
}

for (const unused of ["#filters", ".theme", "#left-out"]) document.querySelector(unused).remove();
document.getElementById("subtitle").textContent =
  `Regret of mean end-to-end latency against the best fixed k of each cell; bold: worse, italic: better, at 5 % for all of the table together. Press a head to sort. ${DATA.made}`;
document.getElementById("sections").className = "card";
draw();
