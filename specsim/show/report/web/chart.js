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
    const reason = needsRuns && !cells.size ? "no finished run is selected" : why();
    heading.textContent = title();
    element.hidden = Boolean(reason);
    element.dataset.drawn = 0;
    if (reason) {
      LEFT_OUT.push(`${title()} (${reason})`);
      Plotly.purge(plot);
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

/** An axis in the style of the page; `more` says what is special about it. */
function axis(title, more = {}) {
  const text = title == null ? {} : { text: literal(title) };
  return {
    gridcolor: colour("grid"),
    linecolor: colour("line"),
    zeroline: false,
    showline: true,
    ticks: "outside",
    ticklen: 4,
    tickcolor: colour("line"),
    automargin: true,
    title: { ...text, font: { size: 12, color: colour("muted") }, standoff: 8 },
    ...more,
  };
}

/** Horizontal bars, one for each name. */
function bars(names, values, more) {
  return { type: "bar", orientation: "h", y: names, x: values, hoverinfo: "text", ...more };
}

/** The axis on which the names of horizontal bars stand. */
function nameAxis(more = {}) {
  return axis(null, { type: "category", showgrid: false, ticks: "", ...more });
}

/** Draw traces in plotly's terms; the label says to a screen reader what the picture is. */
async function paint(plot, label, traces, layout, height) {
  const { fontFamily: family } = getComputedStyle(document.body);
  const font = { family, size: 12, color: colour("ink") };
  const base = {
    height,
    autosize: true,
    showlegend: false,
    hovermode: "closest",
    dragmode: matchMedia("(pointer: fine)").matches ? "zoom" : false,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 52, r: 12, t: 26, b: 44 },
    font,
    hoverlabel: { bgcolor: colour("surface"), bordercolor: colour("line"), font, align: "left" },
    transition: { duration: 0 },
  };
  plot.setAttribute("role", "img");
  plot.setAttribute("aria-label", label);
  plot.style.height = `${height}px`;
  const axes = Object.keys(layout).filter((name) => name.includes("axis")).length;
  if (plot.dataset.axes !== String(axes)) Plotly.purge(plot); // react() cannot take panels away
  plot.dataset.axes = axes;
  const config = { displayModeBar: false, responsive: true };
  await Plotly.react(plot, traces, { ...base, ...layout }, config);
  return traces.length;
}

const MIN_WIDTH = 300; // of a panel, pixels

/**
 * Panels side by side, as many as fit: their domains, axes and headings.
 * `x(i)` and `y(i)` give the settings of the axes of a panel beyond the common ones.
 */
function panels(plot, titles, { x, y, rowHeight = 300, sharesY = true, perRow = Infinity }) {
  const width = plot.clientWidth || 600;
  const columns = Math.max(1, Math.min(titles.length, perRow, Math.floor(width / MIN_WIDTH)));
  const rows = Math.ceil(titles.length / columns);
  const gapX = sharesY ? Math.min(0.05, 26 / width) : Math.min(0.12, 62 / width);
  const height = rows * rowHeight + 24;
  const gapY = 84 / height;
  const layout = { annotations: [] };
  titles.forEach((title, index) => {
    const [column, row] = [index % columns, Math.floor(index / columns)];
    const w = (1 - gapX * (columns - 1)) / columns;
    const tall = (1 - gapY * (rows - 1)) / rows;
    const [left, top] = [column * (w + gapX), 1 - row * (tall + gapY)];
    const suffix = index ? index + 1 : "";
    const isOuter = column === 0 || !sharesY;
    const { title: xTitle, ...xRest } = x(index, w * width);
    const { title: yTitle, ...yRest } = y(index);
    layout[`xaxis${suffix}`] = axis(xTitle, {
      ...xRest,
      domain: [left, left + w],
      anchor: `y${suffix}`,
    });
    layout[`yaxis${suffix}`] = axis(isOuter ? yTitle : "", {
      ...yRest,
      domain: [Math.max(0, top - tall), top],
      anchor: `x${suffix}`,
      showticklabels: isOuter,
      ticks: isOuter ? "outside" : "",
      ...(sharesY && index ? { matches: "y" } : {}),
    });
    if (title) {
      layout.annotations.push({
        text: `<b>${literal(title)}</b>`,
        showarrow: false,
        xref: "paper",
        yref: "paper",
        x: left,
        y: top,
        xanchor: "left",
        yanchor: "bottom",
        font: { size: 13 },
      });
    }
  });
  return { layout, height };
}

/** A logarithmic axis over some values, whose ticks are whole numbers of 1, 2 and 5, or more where they are few. */
function logAxis(values) {
  const known = values.filter((value) => value > 0);
  if (!known.length) return { type: "log" };
  const [low, high] = [Math.min(...known) / 1.15, Math.max(...known) * 1.15];
  const ticks = (steps) =>
    range(Math.ceil(Math.log10(high / low)) + 2)
      .flatMap((i) => steps.map((step) => step * 10 ** (Math.floor(Math.log10(low)) + i)))
      .filter((tick) => tick >= low && tick <= high);
  const fitting = [[1], [1, 2, 5], [1, 1.5, 2, 3, 5, 7]]
    .map(ticks)
    .find((found) => found.length >= 3);
  const tickvals = fitting ?? ticks([1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9]);
  return {
    type: "log",
    range: [Math.log10(low), Math.log10(high)],
    tickmode: "array",
    tickvals,
    ticktext: tickvals.map((tick) => SHORT.format(tick)),
  };
}

function onPanel(index) {
  return index ? { xaxis: `x${index + 1}`, yaxis: `y${index + 1}` } : {};
}

/** The horizontal axis of what is drawn over load; ticks where runs are, as many as fit. */
function loadAxis(width) {
  const places = shown("load");
  const numbers = LOAD.numbers ?? range(LOAD.labels.length);
  const values = places.map((l) => numbers[l]);
  const isLog =
    LOAD.numbers != null &&
    Math.min(...values) > 0 &&
    Math.max(...values) / Math.min(...values) >= 8;
  const at = (value) => (isLog ? Math.log10(value) : value);
  const [first, last] = [Math.min(...values.map(at)), Math.max(...values.map(at))];
  const margin = (last - first || 1) * 0.05;
  const title = LOAD.unit ? `${LOAD.title}, ${LOAD.unit}` : LOAD.title;
  if (isLog && places.length > 16) return { title, ...logAxis(values) };
  const ticks = [];
  for (const l of places) {
    const previous = ticks.length ? at(numbers[ticks[ticks.length - 1]]) : -Infinity;
    const room = ((at(numbers[l]) - previous) / (last - first || 1)) * width;
    if (room > 14 + 6 * LOAD.labels[l].length) ticks.push(l);
  }
  return {
    title,
    type: isLog ? "log" : "linear",
    range: [first - margin, last + margin],
    tickmode: "array",
    tickvals: ticks.map((l) => numbers[l]),
    ticktext: ticks.map((l) => literal(LOAD.labels[l])),
  };
}

function loadNumber(l) {
  return (LOAD.numbers ?? range(LOAD.labels.length))[l];
}

/** The limit that a metric such as `p99_ttft_ms` is held against. */
function sloName(metric) {
  return metric.replace(/^[a-z0-9]+_/, "");
}

function ends(values) {
  return values.length ? [Math.min(...values), Math.max(...values)] : [];
}

/** A limit of the SLO as a line across a panel; none where there is no such limit. */
function sloLine(name, panel, isVertical = false) {
  const limit = DATA.slo[name];
  if (limit == null) return [];
  const [own, other] = isVertical ? ["x", "y"] : ["y", "x"];
  const axis = (letter) => `${letter}${panel ? panel + 1 : ""}`;
  return [
    {
      type: "line",
      [`${own}ref`]: axis(own),
      [`${own}0`]: limit,
      [`${own}1`]: limit,
      [`${other}ref`]: `${axis(other)} domain`,
      [`${other}0`]: 0,
      [`${other}1`]: 1,
      line: { color: colour("slo"), width: 1.4, dash: "dash" },
      label: {
        text: `SLO ${number(limit)} ms`,
        textposition: "end",
        textangle: 0,
        xanchor: "right",
        yanchor: isVertical ? "top" : "bottom",
        font: { color: colour("slo"), size: 11 },
      },
    },
  ];
}

/* Dark and light: the colours that plotly is given are those of the style sheet. */

const PREFERS_DARK = matchMedia("(prefers-color-scheme: dark)");

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : PREFERS_DARK.matches;
}

/** Let the reader choose; the choice is kept where the browser allows it. */
function startTheme(redraw) {
  const control = document.getElementById("theme");
  const apply = () => {
    if (control.value === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = control.value;
  };
  try {
    control.value = localStorage.getItem("specsim-theme") || "auto";
  } catch {
    /* not kept */
  }
  if (!control.value) control.value = "auto";
  apply();
  control.addEventListener("change", () => {
    apply();
    try {
      localStorage.setItem("specsim-theme", control.value);
    } catch {
      /* not kept */
    }
    redraw();
  });
  PREFERS_DARK.addEventListener("change", redraw);
}

/** A colour of the style sheet, as it is in the theme of the moment. */
function colour(name) {
  const probe = document.getElementById("theme");
  probe.style.outlineColor = `var(--${name})`;
  const found = getComputedStyle(probe).outlineColor;
  probe.style.outlineColor = "";
  return found;
}

function policyColour(p) {
  return DATA.policies[p][isDark() ? "dark" : "light"];
}

function faint(hex, alpha) {
  const [r, g, b] = [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));
  return `rgba(${r},${g},${b},${alpha})`;
}
