/* The chosen metric over load: a line per policy, a panel per hardware, a band of 95 %. */

function overLoadCard() {
  const onchange = (event) => {
    state.isLog = event.target.checked;
    update();
  };
  const log = make("input", { type: "checkbox", id: "log", checked: state.isLog, onchange });
  const title = () => `${METRIC.get(state.metric).title} by ${LOAD.title.toLowerCase()}`;
  const spreadAt = (h, p) => (l) => spreadCell(interval(valuesOf(cell(h, p, l), state.metric)));
  const spreads = (h, p) => shown("load").map(spreadAt(h, p));
  return card("over-load", () => capital(title()), {
    tools: [make("label", { class: "choice" }, log, "logarithmic")],
    why: () => {
      if (LOAD.labels.length < 2) return `all runs have the same load; sweep ${LOAD.field}`;
      return shown("load").length < 2 ? "a single load is shown" : null;
    },
    draw: drawOverLoad,
    finding: overLoadFinding,
    rows: () => ({
      head: [HARDWARE.title, POLICY.title, ...shown("load").map((l) => loadText(l))],
      rows: shown("hardware").flatMap((h) =>
        shown("policy")
          .filter((p) => hasRuns(h, p))
          .map((p) => [HARDWARE.labels[h], POLICY.labels[p], ...spreads(h, p)]),
      ),
    }),
  });
}

function spread({ mean, half }) {
  return half == null ? number(mean) : `${number(mean)} ± ${number(half)}`;
}

function spreadCell(found) {
  return found.mean == null ? null : valued(spread(found), found.mean);
}

function overLoadFinding() {
  const { title, unit } = METRIC.get(state.metric);
  if (DATA.capacity) return `Each mark is a load that was tried on one ${DATA.capacity.unit}.`;
  const texts = shown("hardware").map((h) => {
    const found = shown("load").map((l) => best(h, l)).filter(Boolean);
    if (!found.length) return null;
    const where = HARDWARE.labels.length > 1 ? ` on ${HARDWARE.labels[h]}` : "";
    const last = found[found.length - 1];
    return `from ${number(found[0].mean)} to ${withUnit(last.mean, unit)}${where}`;
  });
  const bands =
    state.replications.size > 1
      ? " Bands: 95 % intervals over the replications; all policies share their luck, so differences are surer than the bands suggest."
      : "";
  return `From left to right, ${title} of the best policy goes ${texts.filter(Boolean).join(", ")}.${bands} Open markers: the queue kept growing; with a dot: undecided whether it did.`;
}

function drawOverLoad(plot) {
  const { title } = METRIC.get(state.metric);
  const hardware = shown("hardware").filter((h) => shown("policy").some((p) => hasRuns(h, p)));
  const limit = DATA.slo[sloName(state.metric)] ?? 0;
  const traces = hardware.flatMap((h, panel) =>
    shown("policy").flatMap((p) => policyOverLoad(h, p, panel)),
  );
  const values = traces.filter(({ marker }) => marker).flatMap(({ y }) => y);
  const scale = state.isLog
    ? logAxis([...values, limit])
    : { rangemode: "tozero", autorangeoptions: { include: limit } };
  const names = hardware.map((h) => HARDWARE.labels[h]);
  const { layout, height } = panels(plot, names, {
    x: (_, width) => loadAxis(width),
    y: () => ({ title: titled(METRIC.get(state.metric)), ...scale }),
  });
  layout.shapes = hardware.flatMap((_, panel) => sloLine(sloName(state.metric), panel));
  const label = `${title} by ${LOAD.title}. ${overLoadFinding()}`;
  return paint(plot, label, traces, { ...layout, hovermode: "x" }, height);
}

function policyOverLoad(h, p, panel) {
  const { unit } = METRIC.get(state.metric);
  const found = shown("load")
    .map((l) => ({ l, points: cell(h, p, l) }))
    .map((each) => ({ ...each, ...interval(valuesOf(each.points, state.metric)) }))
    .filter((each) => each.mean != null && (!state.isLog || each.mean > 0));
  if (!found.length) return [];
  const x = found.map(({ l }) => loadNumber(l));
  const [ink, shape] = [policyColour(p), DATA.policies[p].symbol];
  const name = literal(POLICY.labels[p]);
  // No axis shows what lies below 0; the text still has all of the interval.
  const floor = (mean) => (state.isLog ? mean / 100 : 0);
  const low = found.map(({ mean, half }) => Math.max(mean - (half ?? 0), floor(mean)));
  const high = found.map(({ mean, half }) => mean + (half ?? 0));
  const edge = { x, mode: "lines", line: { width: 0 }, hoverinfo: "skip", ...onPanel(panel) };
  const band = [
    { ...edge, y: low },
    { ...edge, y: high, fill: "tonexty", fillcolor: faint(ink, 0.16) },
  ];
  const symbol = found.map(({ points }) => markerOf(shape, stabilityOf(points)));
  const means = {
    x,
    y: found.map(({ mean }) => mean),
    mode: "lines+markers",
    name,
    ...onPanel(panel),
    line: { color: ink, width: 1.8 },
    marker: { color: ink, size: 7, symbol },
    text: found.map((each) => `${name}: ${literal(spread(each))} ${literal(unit)}`),
    hoverinfo: "text",
  };
  return found.some(({ half }) => half != null) ? [...band, means] : [means];
}

/* Two maps, as tables of coloured cells: which policy is best, and what speculation gains. */

const OWN_LOADS = "each policy was tried at loads of its own";
const ONE_CASE = "there is one load and one hardware; the ranking stands in the answer";

/** A map: the heads of its rows by what is in them, and the cell of each row at each load. */
function map(caption, rowTitle, rows) {
  const loads = shown("load");
  const heads = [rowTitle, ...loads.map((l) => LOAD.labels[l])];
  const body = rows.map(([head, cellAt]) => line(rowHead({}, ...head), ...loads.map(cellAt)));
  const attributes = { class: loads.length > 4 ? "map wide" : "map" };
  const headCells = heads.map((text) => columnHead({}, text));
  return tableBox(caption, tableOf(caption, headCells, body, attributes));
}

function crossoverCard() {
  return card("crossover", () => `Best policy by ${METRIC.get(state.metric).title}`, {
    why: () => {
      if (DATA.capacity) return OWN_LOADS;
      if (POLICY.labels.length < 2) return "all runs have the same policy; sweep policy";
      return LOAD.labels.length * HARDWARE.labels.length < 2 ? ONE_CASE : null;
    },
    finding: crossoverFinding,
    draw: (plot) => {
      const { unit } = METRIC.get(state.metric);
      const cellOf = (h) => (l) => crossoverCell(best(h, l), unit);
      const rows = shown("hardware").map((h) => [[HARDWARE.labels[h]], cellOf(h)]);
      plot.replaceChildren(map(`Columns: ${titled(LOAD)}`, HARDWARE.title, rows));
      return plot.querySelectorAll("td[data-policy]").length;
    },
  });
}

function crossoverCell(found, unit) {
  if (!found) return dataCell({ class: "none" }, "no run");
  const { p, mean, second, lead, isTied, stability, count } = found;
  const all = state.shown.policy.size;
  const ahead = lead ? `×${lead.mean.toFixed(2)}` : "";
  const mark = isTied ? `= ${POLICY.labels[second.p]}` : ahead;
  const details = [withUnit(mean, unit), stability === "overloaded" ? "all overloaded" : mark];
  if (count < all) details.push(`of ${count} of ${all}`);
  const title = [
    `${POLICY.labels[p]}: ${withUnit(mean, unit)}`,
    second && `next: ${POLICY.labels[second.p]}, ${withUnit(second.mean, unit)}`,
    isTied && "the paired 95 % interval of the difference includes 0",
  ];
  const style = { "--ink-light": DATA.policies[p].light, "--ink-dark": DATA.policies[p].dark };
  return dataCell(
    { "data-policy": p, title: title.filter(Boolean).join("; "), style },
    make("span", { class: "winner" }, policyName(p)),
    ...details.map((text) => make("span", { class: "detail" }, text)),
  );
}

function crossoverFinding() {
  const all = shown("hardware").flatMap((h) => shown("load").map((l) => best(h, l)));
  const wins = new Map();
  const found = all.filter(Boolean);
  for (const { p } of found) wins.set(p, (wins.get(p) ?? 0) + 1);
  const order = [...wins].sort((a, b) => b[1] - a[1]);
  const names = order.map(([p, count]) => `${POLICY.labels[p]} in ${count}`);
  const tie = "; = marks a lead over the next that may be 0 (paired, 95 %)";
  const ties = state.replications.size > 1 ? tie : "";
  return `Best of ${plural(found.length, "case")}: ${listed(names)}. × is the lead over the next policy${ties}.`;
}

/** Policies by the k they always ask for, then those that decide themselves. */
function heatRows() {
  return shown("policy")
    .filter((p) => p !== DATA.baseline)
    .sort((a, b) => (DATA.policies[a].k ?? 1e9) - (DATA.policies[b].k ?? 1e9) || a - b);
}

function heatCard() {
  const title = () => `Speed-up over no speculation, by ${METRIC.get(state.metric).title}`;
  const name = (p) => (DATA.policies[p].k == null ? POLICY.labels[p] : `k = ${DATA.policies[p].k}`);
  const heatMap = (h) => {
    const rows = heatRows().map((p) => [[swatch(p), name(p)], (l) => heatCell(h, p, l)]);
    return map(`${HARDWARE.labels[h]}; columns: ${titled(LOAD)}`, "k", rows);
  };
  return card("speed-up", title, {
    why: () => {
      if (DATA.capacity) return OWN_LOADS;
      if (DATA.baseline == null) return "there is no run without speculation (policy off)";
      if (!state.shown.policy.has(DATA.baseline)) return "no speculation is filtered out";
      if (!heatRows().length) return "there is no run with speculation";
      return LOAD.labels.length * HARDWARE.labels.length < 2 ? ONE_CASE : null;
    },
    finding: heatFinding,
    draw: (plot) => {
      plot.replaceChildren(make("div", { class: "maps" }, ...shown("hardware").map(heatMap)));
      return plot.querySelectorAll("td[data-gain]").length;
    },
  });
}

function whereText({ h, p, l }) {
  return `${POLICY.labels[p]} on ${HARDWARE.labels[h]} at ${loadText(l)}`;
}

function heatCell(h, p, l) {
  const found = gainOverOff(cell(h, p, l), h, l, state.metric);
  if (!found) return dataCell({ class: "none" }, "–");
  const strength = Math.min(1, Math.abs(Math.log(found.mean)) / Math.log(3));
  const bounds = found.low == null ? "" : `; 95 %: ${number(found.low)} to ${number(found.high)}`;
  const stability = stabilityOf(cell(h, p, l));
  const open = STABILITY_TEXTS[stability];
  const times = `×${found.mean.toFixed(2)}`;
  const title = `${whereText({ h, p, l })}: ${times}${bounds}${open && `; ${open}`}`;
  return dataCell(
    {
      "data-gain": found.mean,
      class: found.mean >= 1 ? "gain" : "loss",
      style: { "--strength": `${Math.round(100 * strength)}%` },
      title,
    },
    found.mean.toFixed(2),
    open ? make("sup", { title: open }, SUPERSCRIPTS[stability]) : null,
  );
}

const SUPERSCRIPTS = { overloaded: "o", undecided: "?" };

function heatFinding() {
  const found = shownCells()
    .filter(({ p }) => p !== DATA.baseline)
    .map((each) => ({ ...each, gain: gainOverOff(each.points, each.h, each.l, state.metric) }))
    .filter((each) => each.gain)
    .sort((a, b) => a.gain.mean - b.gain.mean || b.h - a.h || b.p - a.p || b.l - a.l);
  if (!found.length) return "";
  const notes = Object.entries(SUPERSCRIPTS)
    .filter(([name]) => found.some(({ points }) => stabilityOf(points) === name))
    .map(([name, mark]) => ` ${mark}: ${STABILITY_TEXTS[name]}.`);
  const text = (each) => `×${each.gain.mean.toFixed(2)} (${whereText(each)})`;
  return `From ${text(found[0])} to ${text(found[found.length - 1])}.${notes.join("")}`;
}
