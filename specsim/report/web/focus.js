/* What happens at one load on one kind of hardware: distributions, time, and where it went. */

const LATENCIES = [["ttft_ms", "TTFT"], ["tpot_ms", "TPOT"], ["e2el_ms", "E2E latency"]];
const SERIES = [["running", "running, requests"], ["waiting", "waiting, requests"], ["kv_usage", "KV cache in use, %"], ["draft_len", "k asked for, tokens"]];
const PARTS = [["target", "target"], ["draft", "drafting"], ["overhead", "overhead"], ["idle", "idle"]];

/** Where the reader looks closer: two lists above the cards of this section. */
function focusControls() {
  const controls = make("div", { class: "focus" });
  const build = () => {
    const list = (role, axis, label) => {
      const options = shown(role);
      if (axis.labels.length < 2) return null;
      return choice(axis.title, options.map(label), options.indexOf(state.focus[role]), (value) => { state.focus[role] = options[value]; update(); }, { id: `focus-${role}` });
    };
    const active = document.activeElement?.id;
    controls.replaceChildren(...[list("hardware", HARDWARE, (h) => HARDWARE.labels[h]), list("load", LOAD, loadText)].filter(Boolean));
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
  return shown("policy").map((p) => ({ p, points: cell(state.focus.hardware, p, state.focus.load).filter(has) }))
    .filter(({ points }) => points.length);
}

function missingAtFocus(has, what) {
  if (atFocus(has).length) return null;
  return cells.size ? `Not drawn: no ${what} was kept of the runs here${focusName()}.` : "Not drawn: no finished run is selected.";
}

/** Quantiles, averaged over the replications: 0 to 100 % in equal steps. */
function quantiles(points, name) {
  const kept = points.map((point) => point.quantiles[name]).filter((values) => values?.length);
  if (!kept.length) return null;
  return kept[0].map((_, i) => kept.reduce((sum, values) => sum + values[i], 0) / kept.length);
}

function quantile(values, share) {
  return values[Math.round(share * (values.length - 1))];
}

function cdfCard() {
  const has = (point) => Object.keys(point.quantiles).length > 0;
  return card("cdf", () => `Latency of the requests${focusName()}`, {
    why: () => missingAtFocus(has, "distribution"),
    finding: () => {
      const tails = atFocus(has).map(({ p, points }) => ({ p, ttft: quantiles(points, "ttft_ms"), e2el: quantiles(points, "e2el_ms") })).filter((each) => each.ttft && each.e2el);
      const tail = (name, title) => {
        const ranked = tails.map((each) => [quantile(each[name], 0.99), POLICY.labels[each.p]]).sort((a, b) => a[0] - b[0]);
        const [low, high] = [ranked[0], ranked[ranked.length - 1]];
        return ranked.length === 1 ? `p99 ${title} ${number(low[0])} ms (${low[1]})` : `p99 ${title} from ${number(low[0])} ms (${low[1]}) to ${number(high[0])} ms (${high[1]})`;
      };
      return tails.length ? `${tail("ttft", "TTFT")}; ${tail("e2el", "E2E latency")}. Quantiles are averaged over the replications.` : "";
    },
    draw: (plot) => {
      const traces = atFocus(has).flatMap(({ p, points }) => LATENCIES.map(([name, title], panel) => {
        const values = quantiles(points, name);
        if (!values) return null;
        const shares = values.map((_, i) => i / (values.length - 1));
        return {
          x: values, y: shares, mode: "lines", name: literal(POLICY.labels[p]), ...onPanel(panel), line: { color: policyColour(p), width: 1.8 }, hoverinfo: "text",
          text: values.map((value, i) => `${literal(POLICY.labels[p])}: ${percent(shares[i])} within ${number(value)} ms ${title}`),
        };
      })).filter(Boolean);
      const { layout, height } = panels(plot, ["", "", ""], {
        x: (i) => ({ title: `${LATENCIES[i][1]}, ms`, ...logAxis(traces.filter((trace) => (trace.xaxis ?? "x") === `x${i ? i + 1 : ""}`).flatMap((trace) => trace.x)) }),
        y: () => ({ title: "share of requests", range: [0, 1.02], tickformat: ",.0%", dtick: 0.25 }), rowHeight: 260,
      });
      return paint(plot, `Cumulative distributions${focusName()}`, traces, layout, height);
    },
    rows: () => ({
      head: [POLICY.title, ...LATENCIES.flatMap(([, title]) => ["p10", "p50", "p90", "p99"].map((q) => `${title} ${q}, ms`))],
      rows: atFocus(has).map(({ p, points }) => [POLICY.labels[p], ...LATENCIES.flatMap(([name]) => {
        const values = quantiles(points, name);
        return [0.1, 0.5, 0.9, 0.99].map((share) => number(values && quantile(values, share)));
      })]),
    }),
  });
}

function timelineCard() {
  const has = (point) => (point.timeline.time_s?.length ?? 0) > 0;
  const peak = (values) => values.reduce((top, value) => Math.max(top, value ?? 0), 0);
  const series = (point, name) => (point.timeline[name] ?? []).map((value) => (name === "kv_usage" && value != null ? 100 * value : value));
  const rows = (pick) => atFocus(has).map(({ p, points: [point] }) => pick(p, point));
  return card("timeline", () => `Over time${focusName()}`, {
    why: () => missingAtFocus(has, "timeline"),
    finding: () => {
      const peaks = rows((p, point) => ({ p, kv: peak(series(point, "kv_usage")), waiting: peak(series(point, "waiting")) }));
      const [kv] = [...peaks].sort((a, b) => b.kv - a.kv);
      const [queue] = [...peaks].sort((a, b) => b.waiting - a.waiting);
      const queueText = queue.waiting >= 1 ? `at most ${plural(Math.round(queue.waiting), "request")} waiting (${POLICY.labels[queue.p]})` : "hardly a request waits";
      const first = DATA.replications.length > 1 ? ` Replication ${atFocus(has)[0].points[0].replication}.` : "";
      return `KV cache at most ${number(kv.kv)} % in use (${POLICY.labels[kv.p]}); ${queueText}.${first}`;
    },
    draw: (plot) => {
      const traces = rows((p, point) => SERIES.map(([name], panel) => ({
        x: point.timeline.time_s, y: series(point, name), mode: "lines", name: literal(POLICY.labels[p]), ...onPanel(panel), hoverinfo: "text",
        line: { color: policyColour(p), width: 1.3, shape: name === "draft_len" ? "hv" : "linear" },
        text: point.timeline.time_s.map((time, i) => `${literal(POLICY.labels[p])}: ${number(series(point, name)[i])} at ${number(time)} s`),
      }))).flat();
      const { layout, height } = panels(plot, SERIES.map(([, title]) => title), {
        x: (i) => ({ title: i < SERIES.length - 1 && plot.clientWidth < 620 ? "" : "time, s", rangemode: "tozero" }),
        y: () => ({ title: "", rangemode: "tozero", nticks: 5 }), rowHeight: 150, sharesY: false, perRow: 2,
      });
      return paint(plot, `Running and waiting requests, KV cache in use and k over time${focusName()}`, traces, layout, height);
    },
    rows: () => ({
      head: [POLICY.title, "time, s", ...SERIES.map(([, title]) => title)],
      rows: rows((p, point) => {
        const stride = Math.max(1, Math.ceil(point.timeline.time_s.length / 20));
        return range(point.timeline.time_s.length).filter((i) => i % stride === 0).map((i) => [POLICY.labels[p], number(point.timeline.time_s[i]), ...SERIES.map(([name]) => number(series(point, name)[i]))]);
      }).flat(),
    }),
  });
}

function breakdownCard() {
  const has = (point) => point.breakdown != null;
  const shares = () => atFocus(has).map(({ p, points }) => {
    const all = points.map(({ breakdown }) => { const sum = breakdown.reduce((a, b) => a + b, 0); return breakdown.map((seconds) => seconds / sum); });
    return { p, parts: PARTS.map((_, i) => interval(all.map((each) => each[i])).mean) };
  });
  return card("breakdown", () => `Where the time went${focusName()}`, {
    why: () => missingAtFocus(has, "time breakdown"),
    finding: () => {
      const found = shares();
      const span = (i) => { const values = found.map(({ parts }) => parts[i]); const [low, high] = [Math.min(...values), Math.max(...values)]; return percent(low) === percent(high) ? percent(low) : `${number(100 * low)} to ${percent(high)}`; };
      return `Of the time of all replicas, drafting takes ${span(1)}, and they idle for ${span(3)}.`;
    },
    draw: (plot) => {
      const found = shares().reverse();
      const names = found.map(({ p }) => literal(POLICY.labels[p]));
      const traces = PARTS.map(([name, title], i) => ({
        type: "bar", orientation: "h", y: names, x: found.map(({ parts }) => parts[i]), name: title,
        marker: { color: colour(`part-${name}`), line: { color: colour("surface"), width: 1 } },
        text: found.map(({ parts }) => (parts[i] >= 0.04 ? `${Math.round(100 * parts[i])} %` : "")), textposition: "inside", insidetextanchor: "middle", textangle: 0,
        insidetextfont: { color: colour(`on-${name}`) }, hoverinfo: "text",
        hovertext: found.map(({ p, parts }) => `${literal(POLICY.labels[p])}: ${title} ${percent(parts[i])}`),
      }));
      const layout = {
        barmode: "stack", bargap: 0.3, uniformtext: { minsize: 11, mode: "hide" }, showlegend: true, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", traceorder: "normal", itemclick: false, itemdoubleclick: false },
        xaxis: { ...axisStyle(), range: [0, 1.005], dtick: 0.2, tickformat: ",.0%", title: { ...axisStyle().title, text: "share of the time of all replicas" } },
        yaxis: { ...axisStyle(), type: "category", showgrid: false, ticks: "" }, margin: { l: 10, r: 14, t: 34, b: 44 },
      };
      return paint(plot, `Shares of the time by policy${focusName()}`, traces, layout, Math.max(170, 96 + 42 * found.length));
    },
    rows: () => ({ head: [POLICY.title, ...PARTS.map(([, title]) => `${title}, %`)], rows: shares().map(({ p, parts }) => [POLICY.labels[p], ...parts.map((share) => number(100 * share))]) }),
  });
}
