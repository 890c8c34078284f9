/* Cards: a title, what is seen, the chart, and its numbers as a table. */

const CARDS = [];
const LEFT_OUT = []; // cards with nothing to show, and why

/**
 * A card. `why()` says why it is left out, or gives null; `draw(plot)` draws and gives the number of
 * marks; `finding()` says what is seen; `rows()` gives {head, rows} of the table. Most cards need
 * runs that ended and that the filters let through.
 */
function card(
  id,
  title,
  {
    why = () => null,
    draw,
    finding = () => "",
    rows = null,
    tools = [],
    needsRuns = true,
    level = 3,
  },
) {
  const plot = make("div", { class: "plot" });
  const heading = make(`h${level}`, { id: `${id}-title` });
  const seen = make("p", { class: "finding" });
  const alternative = make("div");
  const details =
    rows &&
    make(
      "details",
      { class: "alternative", ontoggle: () => fill() },
      make("summary", {}, "Numbers as a table"),
      alternative,
    );
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

function axisStyle() {
  return {
    gridcolor: colour("grid"),
    linecolor: colour("line"),
    zeroline: false,
    showline: true,
    ticks: "outside",
    ticklen: 4,
    tickcolor: colour("line"),
    automargin: true,
    title: { font: { size: 12, color: colour("muted") }, standoff: 8 },
  };
}

/** Draw traces in plotly's terms; the label says to a screen reader what the picture is. */
async function paint(plot, label, traces, layout, height) {
  const style = getComputedStyle(document.body);
  const base = {
    height,
    autosize: true,
    showlegend: false,
    hovermode: "closest",
    dragmode: matchMedia("(pointer: fine)").matches ? "zoom" : false,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 52, r: 12, t: 26, b: 44 },
    font: { family: style.fontFamily, size: 12, color: colour("ink") },
    hoverlabel: {
      bgcolor: colour("surface"),
      bordercolor: colour("line"),
      font: { family: style.fontFamily, size: 12, color: colour("ink") },
      align: "left",
    },
    transition: { duration: 0 },
  };
  plot.setAttribute("role", "img");
  plot.setAttribute("aria-label", label);
  plot.style.height = `${height}px`;
  const axes = Object.keys(layout).filter((name) => name.includes("axis")).length;
  if (plot.dataset.axes !== String(axes)) Plotly.purge(plot); // react() cannot take panels away
  plot.dataset.axes = axes;
  await Plotly.react(
    plot,
    traces,
    { ...base, ...layout },
    { displayModeBar: false, responsive: true },
  );
  return traces.length;
}

/**
 * Panels side by side, as many as fit: their domains, axes and headings.
 * `x(i)` and `y(i)` give the settings of the axes of a panel beyond the common ones.
 */
function panels(
  plot,
  titles,
  { x, y, minWidth = 300, rowHeight = 300, sharesY = true, perRow = Infinity },
) {
  const width = plot.clientWidth || 600;
  const columns = Math.max(1, Math.min(titles.length, perRow, Math.floor(width / minWidth)));
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
    const domain = { x: [left, left + w], y: [Math.max(0, top - tall), top] };
    const { title: xTitle, ...xRest } = x(index, w * width);
    const { title: yTitle, ...yRest } = y(index);
    layout[`xaxis${suffix}`] = { ...axisStyle(), ...xRest, domain: domain.x, anchor: `y${suffix}` };
    layout[`yaxis${suffix}`] = {
      ...axisStyle(),
      ...yRest,
      domain: domain.y,
      anchor: `x${suffix}`,
      showticklabels: isOuter,
      ticks: isOuter ? "outside" : "",
      ...(sharesY && index ? { matches: "y" } : {}),
    };
    layout[`xaxis${suffix}`].title = { ...axisStyle().title, text: literal(xTitle ?? "") };
    layout[`yaxis${suffix}`].title = {
      ...axisStyle().title,
      text: isOuter ? literal(yTitle ?? "") : "",
    };
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
