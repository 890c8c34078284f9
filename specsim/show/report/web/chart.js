/* Cards: a title, what is seen, the chart, and its numbers as a table. */

const CARDS = [];
const LEFT_OUT = []; // cards with nothing to show, and why

/**
 * A card. `why()` says why it is left out, or gives null; `draw(plot)` draws and gives the number of
 * marks; `finding()` says what is seen; `rows()` gives {head, rows} of the table. Most cards need
 * runs that ended and that the filters let through.
 */
function card(id, title, { draw, level = 3, needsRuns = true, rows = null, tools = [], ...given }) {
  const { why = () => null, finding = () => "" } = given;
  const plot = make("div", { class: "plot" });
  const heading = make(`h${level}`, { id: `${id}-title` });
  const seen = make("p", { class: "finding" });
  const alternative = make("div");
  const summary = make("summary", {}, "Numbers as a table");
  const opened = { class: "alternative", ontoggle: () => fill() };
  const details = rows && make("details", opened, summary, alternative);
  const bar = make("div", { class: "tools" }, ...tools);
  const element = make(
    "section",
    { class: "card", id, "data-chart": id, "aria-labelledby": `${id}-title` },
    make("header", {}, make("div", {}, heading, seen), bar),
    plot,
    details,
  );

  function fill() {
    if (!details?.open) return;
    const { head, rows: body } = rows();
    alternative.replaceChildren(table(title(), head, body));
  }

  async function update() {
    const reason = needsRuns && !cells.length ? "no finished run is selected" : why();
    heading.textContent = title();
    element.hidden = Boolean(reason);
    element.dataset.drawn = 0;
    if (reason) {
      LEFT_OUT.push(`${title()} (${reason})`);
      plot.replaceChildren();
      return;
    }
    seen.textContent = finding();
    element.dataset.drawn = await draw(plot);
    fill();
  }
  CARDS.push({ id, element, update, plot });
  return element;
}

/** What a chart needs to know of a metric; see `DrawnMeasure` in `specsim.show.charts.of_study`. */
function slotsOf(name, scale) {
  const { index, unit, better, ...metric } = METRIC.get(name);
  const title = titled({ ...metric, unit });
  return { index, title, unit, is_low_better: better === "low", limit: limitOf(name), scale };
}

/**
 * Draw a chart of `DATA.charts`, and give the number of its marks; the label says to a screen reader
 * what the picture is. `slots` fill what the specification leaves open.
 */
async function paint(plot, name, label, datasets, slots = {}) {
  const text = JSON.stringify(DATA.charts[name]);
  const spec = JSON.parse(text, (_, value) => (value?.$ ? slots[value.$] : value));
  const box = make("div", { role: "img", "aria-label": label, class: "chart" });
  plot.replaceChildren(box);
  const inner = spec.facet ? spec.spec : spec;
  const isStepped = typeof inner.width === "object"; // as wide as its columns, or wider
  const width = plot.clientWidth || 600;
  const count = shown("load").length;
  if (spec.facet) {
    const least = isStepped ? 110 + inner.width.step * count : 290;
    const most = spec.facet.field === "hardware" ? shown("hardware").length : spec.columns;
    spec.columns = Math.max(1, Math.min(spec.columns, most, Math.floor(width / least)));
  }
  const columns = spec.columns ?? 1;
  if (isStepped) {
    const { step } = inner.width;
    const room = (width / columns - 130) / count;
    inner.width = { step: Math.max(step, Math.min(1.6 * step, room)) };
  } else inner.width = Math.floor((width - 60) / columns) - 30;
  const whole = { ...spec, data: { name: "cells" }, datasets, padding: 2 };
  const quiet = { level: () => quiet, warn: () => quiet, info: () => quiet, debug: () => quiet, error: console.error };
  const font = getComputedStyle(document.body).fontFamily;
  const { spec: vega } = vegaCharts.compile(whole, { config: { ...DATA.theme, font }, logger: quiet });
  const view = new vegaCharts.View(vegaCharts.parse(vega, null, { ast: true }), {
    expr: vegaCharts.expressionInterpreter,
    renderer: "svg",
    logger: quiet,
    container: box,
    tooltip: showTooltip,
  });
  await view.runAsync();
  if (!isStepped) await fit(view, box, width, columns);
  plot.tabIndex = plot.scrollWidth > plot.clientWidth ? 0 : -1; // so that the keyboard can scroll it
  return box.querySelectorAll("[role=graphics-symbol], .mark-line path, .mark-area path").length;
}

/** Make a chart as wide as its card: what its axes take is known once it is drawn. */
async function fit(view, box, width, columns) {
  const name = "child_width" in view.getState({ signals: () => true }).signals ? "child_width" : "width";
  for (let round = 0; round < 2; round++) { // other ticks may be wider
    const spare = width - box.querySelector("svg").width.baseVal.value;
    if (round && spare >= 0) return;
    await view.signal(name, view.signal(name) + Math.floor(spare / columns)).resize().runAsync();
  }
}

const TOOLTIP = make("div", { class: "tooltip", hidden: true });

/** Show what a mark says of itself beside the pointer. */
function showTooltip(_, event, item, text) {
  TOOLTIP.hidden = text == null || text === "";
  if (TOOLTIP.hidden) return;
  TOOLTIP.textContent = text;
  document.body.append(TOOLTIP);
  const left = Math.min(event.clientX + 12, innerWidth - TOOLTIP.offsetWidth - 8);
  const isLow = event.clientY + TOOLTIP.offsetHeight + 24 > innerHeight;
  TOOLTIP.style.left = `${Math.max(8, left)}px`;
  TOOLTIP.style.top = `${isLow ? event.clientY - TOOLTIP.offsetHeight - 10 : event.clientY + 14}px`;
}

/** Let the reader choose between dark and light; the choice is kept where the browser allows it. */
function startTheme() {
  const control = document.getElementById("theme");
  const apply = () => {
    if (control.value === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = control.value;
  };
  const remember = (act) => {
    try {
      return act();
    } catch {
      return null; /* not kept */
    }
  };
  control.value = remember(() => localStorage.getItem("specsim-theme")) || "auto";
  if (!control.value) control.value = "auto";
  apply();
  control.addEventListener("change", () => {
    apply();
    remember(() => localStorage.setItem("specsim-theme", control.value));
  });
}
