/* A closer look at one load on one kind of hardware; and the latency of its requests. */

const LATENCIES = [
  ["ttft_ms", "TTFT"],
  ["tpot_ms", "TPOT"],
  ["e2el_ms", "E2E latency"],
];

/** Where the reader looks closer: two lists above the cards of this section. */
function focusControls() {
  const controls = make("div", { class: "focus" });
  const list = (role, axis, label) => {
    if (axis.labels.length < 2) return null;
    const options = shown(role);
    const chosen = options.indexOf(state.focus[role]);
    const onChange = (value) => {
      state.focus[role] = options[value];
      update();
    };
    return choice(axis.title, options.map(label), chosen, onChange, { id: `focus-${role}` });
  };
  const build = () => {
    const active = document.activeElement?.id;
    const ofHardware = list("hardware", HARDWARE, (h) => HARDWARE.labels[h]);
    const lists = [ofHardware, list("load", LOAD, loadText)];
    controls.replaceChildren(...lists.filter(Boolean));
    if (active?.startsWith("focus-")) document.getElementById(active)?.focus();
  };
  return { element: controls, build };
}

function focusName() {
  const parts = [];
  if (HARDWARE.labels.length > 1) parts.push(HARDWARE.labels[state.focus.hardware]);
  if (LOAD.labels.length > 1 || LOAD.unit) parts.push(loadText(state.focus.load));
  return parts.length ? `, ${parts.join(" at ")}` : "";
}

/** The policies at the focus, with the runs that have some kind of detail. */
function atFocus(has) {
  return shown("policy")
    .map((p) => ({ p, points: cell(state.focus.hardware, p, state.focus.load).filter(has) }))
    .filter(({ points }) => points.length);
}

function missingAtFocus(has, what) {
  if (atFocus(has).length) return null;
  return `no ${what} was kept of the runs here`;
}

/** Quantiles, averaged over the replications: 0 to 100 % in equal steps. */
function quantiles(points, name) {
  const kept = points.map((point) => point.quantiles[name]).filter((values) => values?.length);
  if (!kept.length) return null;
  return kept[0].map((_, i) => kept.reduce((sum, values) => sum + values[i], 0) / kept.length);
}

/** How many replications kept their distributions: of a comparison, the first alone. */
function keptNote(cells) {
  const counts = cells.map(({ points }) => new Set(points.map((each) => each.replication)).size);
  const most = Math.max(...counts);
  if (most > 1) return "Quantiles are averaged over the replications.";
  const [first] = cells[0].points;
  return DATA.replications.length > 1 ? `Of replication ${first.replication} alone.` : "";
}

function quantile(values, share) {
  return values[Math.round(share * (values.length - 1))];
}

const hasQuantiles = (point) => Object.keys(point.quantiles).length > 0;

function cdfFinding() {
  const found = atFocus(hasQuantiles);
  const [ttft, e2el] = ["ttft_ms", "e2el_ms"];
  const tails = found
    .map(({ p, points }) => ({ p, ttft: quantiles(points, ttft), e2el: quantiles(points, e2el) }))
    .filter((each) => each.ttft && each.e2el);
  const tail = (name, title) => {
    const ranked = tails
      .map((each) => [quantile(each[name], 0.99), POLICY.labels[each.p]])
      .sort((a, b) => a[0] - b[0]);
    const [low, high] = [ranked[0], ranked[ranked.length - 1]].map(
      ([value, label]) => `${number(value)} ms (${label})`,
    );
    return `p99 ${title} ${ranked.length === 1 ? low : `from ${low} to ${high}`}`;
  };
  if (!tails.length) return "";
  return `${tail("ttft", "TTFT")}; ${tail("e2el", "E2E latency")}. ${keptNote(found)}`;
}

/** The distribution of one latency under one policy, if it was kept. */
function cdfTrace({ p, points }, [name, title], panel) {
  const values = quantiles(points, name);
  if (!values) return [];
  const label = literal(POLICY.labels[p]);
  const shares = values.map((_, i) => i / (values.length - 1));
  const text = (value, i) => `${label}: ${percent(shares[i])} within ${number(value)} ms ${title}`;
  return {
    x: values,
    y: shares,
    mode: "lines",
    name: label,
    ...onPanel(panel),
    line: { color: policyColour(p), width: 1.8 },
    hoverinfo: "text",
    text: values.map(text),
  };
}

function drawCdf(plot) {
  const found = atFocus(hasQuantiles);
  const kept = LATENCIES.filter(([name]) => found.some(({ points }) => quantiles(points, name)));
  const byPanel = kept.map((each, panel) => found.flatMap((one) => cdfTrace(one, each, panel)));
  const valuesOn = (i) => byPanel[i].flatMap(({ x }) => x).concat(DATA.slo[kept[i][0]] ?? 0);
  const shares = { title: "share of requests", range: [0, 1.02], tickformat: ",.0%", dtick: 0.25 };
  const { layout, height } = panels(plot, kept.map(() => ""), {
    x: (i) => ({ title: `${kept[i][1]}, ms`, ...logAxis(valuesOn(i)) }),
    y: () => shares,
    rowHeight: 260,
  });
  layout.shapes = kept.flatMap(([name], panel) => sloLine(name, panel, true));
  return paint(plot, `Cumulative distributions${focusName()}`, byPanel.flat(), layout, height);
}

function cdfCard() {
  const tails = { p10: 0.1, p50: 0.5, p90: 0.9, p99: 0.99 };
  const headsOf = (title) => Object.keys(tails).map((q) => `${title} ${q}, ms`);
  const cellsOf = (points, name) => {
    const values = quantiles(points, name);
    return Object.values(tails).map((share) => values && quantile(values, share));
  };
  return card("cdf", () => `Latency of the requests${focusName()}`, {
    why: () => missingAtFocus(hasQuantiles, "distribution"),
    finding: cdfFinding,
    draw: drawCdf,
    rows: () => ({
      head: [POLICY.title, ...LATENCIES.flatMap(([, title]) => headsOf(title))],
      rows: atFocus(hasQuantiles).map(({ p, points }) => [
        POLICY.labels[p],
        ...LATENCIES.flatMap(([name]) => cellsOf(points, name)),
      ]),
    }),
  });
}

/* What happens over time at the focus, and where the time went. */

const SERIES = [
  ["running", "running, requests"],
  ["waiting", "waiting, requests"],
  ["kv_usage", "KV cache in use, %"],
  ["draft_len", "k asked for, tokens"],
  ["replicas", "replicas that take requests"],
  ["prefill_replicas", "prefill replicas"],
  ["decode_replicas", "decode replicas"],
  ["sessions", "sessions open"],
];
const PARTS = [
  ["target", "target"],
  ["draft", "drafting"],
  ["overhead", "overhead"],
  ["idle", "idle"],
];

const hasTimeline = (point) => (point.timeline.time_s?.length ?? 0) > 0;

function seriesOf(point, name) {
  const values = point.timeline[name] ?? [];
  return name === "kv_usage" ? values.map((value) => value && 100 * value) : values;
}

/** The first run of each policy at the focus that kept what happened over time. */
function timelines() {
  return atFocus(hasTimeline).map(({ p, points: [point] }) => ({ p, point }));
}

function timelineFinding() {
  const peak = (values) => values.reduce((top, value) => Math.max(top, value ?? 0), 0);
  const highest = (name) =>
    timelines()
      .map(({ p, point }) => ({ p, value: peak(seriesOf(point, name)) }))
      .sort((a, b) => b.value - a.value)[0];
  const [kv, queue] = [highest("kv_usage"), highest("waiting")];
  const waiting = `at most ${plural(Math.round(queue.value), "request")} waiting`;
  const queueText =
    queue.value >= 1 ? `${waiting} (${POLICY.labels[queue.p]})` : "hardly a request waits";
  const first =
    DATA.replications.length > 1 ? ` Replication ${timelines()[0].point.replication}.` : "";
  const used = `KV cache at most ${number(kv.value)} % in use (${POLICY.labels[kv.p]})`;
  return `${used}; ${queueText}.${first}`;
}

function timelineTrace({ p, point }, name, panel) {
  const label = literal(POLICY.labels[p]);
  const [times, values] = [point.timeline.time_s, seriesOf(point, name)];
  const shape = name === "draft_len" || name.endsWith("replicas") ? "hv" : "linear";
  return {
    x: times,
    y: values,
    mode: "lines",
    name: label,
    ...onPanel(panel),
    hoverinfo: "text",
    line: { color: policyColour(p), width: 1.3, shape },
    text: times.map((time, i) => `${label}: ${number(values[i])} at ${number(time)} s`),
  };
}

function drawTimeline(plot) {
  const moves = ([name]) =>
    timelines().some(({ point }) => {
      const [low, high] = ends(seriesOf(point, name).filter((value) => value != null));
      return low !== high;
    });
  const drawn = SERIES.filter(moves); // what never changes is told in the text and the table
  const traces = timelines().flatMap((each) =>
    drawn.map(([name], panel) => timelineTrace(each, name, panel)),
  );
  const isTold = (i) => i === drawn.length - 1 || plot.clientWidth >= 620;
  const { layout, height } = panels(plot, drawn.map(([, title]) => title), {
    x: (i) => ({ title: isTold(i) ? "time, s" : "", rangemode: "tozero" }),
    y: () => ({ title: "", rangemode: "tozero", nticks: 5 }),
    rowHeight: 150,
    sharesY: false,
    perRow: 2,
  });
  const label = `Running and waiting requests, KV cache in use and k over time${focusName()}`;
  return paint(plot, label, traces, layout, height);
}

function timelineCard() {
  const known = () =>
    SERIES.filter(([name]) => timelines().some(({ point }) => name in point.timeline));
  const rowsOf = ({ p, point }) => {
    const times = point.timeline.time_s;
    const stride = Math.max(1, Math.ceil(times.length / 20));
    const columns = known().map(([name]) => seriesOf(point, name));
    return range(times.length)
      .filter((i) => i % stride === 0)
      .map((i) => [POLICY.labels[p], times[i], ...columns.map((values) => values[i])]);
  };
  return card("timeline", () => `Over time${focusName()}`, {
    why: () => missingAtFocus(hasTimeline, "timeline"),
    finding: timelineFinding,
    draw: drawTimeline,
    rows: () => ({
      head: [POLICY.title, "time, s", ...known().map(([, title]) => title)],
      rows: timelines().flatMap(rowsOf),
    }),
  });
}

/** Shares of the time by policy, in the order of `PARTS`, averaged over the replications. */
function timeShares() {
  const sharesOf = ({ breakdown }) => {
    const sum = breakdown.reduce((a, b) => a + b, 0);
    return breakdown.map((seconds) => seconds / sum);
  };
  return atFocus(hasBreakdown).map(({ p, points }) => {
    const all = points.map(sharesOf);
    return { p, parts: PARTS.map((_, i) => interval(all.map((each) => each[i])).mean) };
  });
}

const hasBreakdown = (point) => point.breakdown != null;

function breakdownFinding() {
  const found = timeShares();
  const span = (i) => {
    const [low, high] = ends(found.map(({ parts }) => parts[i]));
    if (percent(low) === percent(high)) return percent(low);
    return `${number(100 * low)} to ${percent(high)}`;
  };
  return `Of the time of all replicas, drafting takes ${span(1)}, and they idle for ${span(3)}.`;
}

function drawBreakdown(plot) {
  const found = timeShares().reverse();
  const names = found.map(({ p }) => wrapped(POLICY.labels[p]));
  const traces = PARTS.map(([name, title], i) => {
    const shares = found.map(({ parts }) => parts[i]);
    const label = (row) => `${literal(POLICY.labels[found[row].p])}: ${title}`;
    return bars(names, shares, {
      name: title,
      marker: { color: colour(`part-${name}`), line: { color: colour("surface"), width: 1 } },
      text: shares.map((share) => (share >= 0.04 ? `${Math.round(100 * share)} %` : "")),
      textposition: "inside",
      insidetextanchor: "middle",
      textangle: 0,
      insidetextfont: { color: colour(`on-${name}`) },
      hovertext: shares.map((share, row) => `${label(row)} ${percent(share)}`),
    });
  });
  const percents = { range: [0, 1.005], dtick: 0.2, tickformat: ",.0%" };
  const isStill = { itemclick: false, itemdoubleclick: false };
  const above = { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", traceorder: "normal" };
  const layout = {
    barmode: "stack",
    bargap: 0.3,
    uniformtext: { minsize: 11, mode: "hide" },
    showlegend: true,
    legend: { ...above, ...isStill },
    xaxis: axis("share of the time of all replicas", percents),
    yaxis: nameAxis(),
    margin: { l: 10, r: 14, t: 34, b: 44 },
  };
  const height = Math.max(170, 96 + 42 * found.length);
  return paint(plot, `Shares of the time by policy${focusName()}`, traces, layout, height);
}

function breakdownCard() {
  const percentsOf = (parts) => parts.map((share) => 100 * share);
  return card("breakdown", () => `Where the time went${focusName()}`, {
    why: () => missingAtFocus(hasBreakdown, "time breakdown"),
    finding: breakdownFinding,
    draw: drawBreakdown,
    rows: () => ({
      head: [POLICY.title, ...PARTS.map(([, title]) => `${title}, %`)],
      rows: timeShares().map(({ p, parts }) => [POLICY.labels[p], ...percentsOf(parts)]),
    }),
  });
}
