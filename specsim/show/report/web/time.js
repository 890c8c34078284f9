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

function timelineCard() {
  const has = (point) => (point.timeline.time_s?.length ?? 0) > 0;
  const peak = (values) => values.reduce((top, value) => Math.max(top, value ?? 0), 0);
  const series = (point, name) =>
    (point.timeline[name] ?? []).map((value) =>
      name === "kv_usage" && value != null ? 100 * value : value,
    );
  const moves = ([name]) =>
    atFocus(has).some(({ points: [point] }) => {
      const [low, high] = ends(series(point, name).filter((value) => value != null));
      return low !== high;
    });
  const known = () =>
    SERIES.filter(([name]) => atFocus(has).some(({ points: [point] }) => name in point.timeline));
  const rows = (pick) => atFocus(has).map(({ p, points: [point] }) => pick(p, point));
  return card("timeline", () => `Over time${focusName()}`, {
    why: () => missingAtFocus(has, "timeline"),
    finding: () => {
      const peaks = rows((p, point) => ({
        p,
        kv: peak(series(point, "kv_usage")),
        waiting: peak(series(point, "waiting")),
      }));
      const [kv] = [...peaks].sort((a, b) => b.kv - a.kv);
      const [queue] = [...peaks].sort((a, b) => b.waiting - a.waiting);
      const queueText =
        queue.waiting >= 1
          ? `at most ${plural(Math.round(queue.waiting), "request")} waiting (${POLICY.labels[queue.p]})`
          : "hardly a request waits";
      const first =
        DATA.replications.length > 1
          ? ` Replication ${atFocus(has)[0].points[0].replication}.`
          : "";
      return `KV cache at most ${number(kv.kv)} % in use (${POLICY.labels[kv.p]}); ${queueText}.${first}`;
    },
    draw: (plot) => {
      const drawn = SERIES.filter(moves); // what never changes is told in the text and the table
      const traces = rows((p, point) =>
        drawn.map(([name], panel) => ({
          x: point.timeline.time_s,
          y: series(point, name),
          mode: "lines",
          name: literal(POLICY.labels[p]),
          ...onPanel(panel),
          hoverinfo: "text",
          line: {
            color: policyColour(p),
            width: 1.3,
            shape: name === "draft_len" || name.endsWith("replicas") ? "hv" : "linear",
          },
          text: point.timeline.time_s.map(
            (time, i) =>
              `${literal(POLICY.labels[p])}: ${number(series(point, name)[i])} at ${number(time)} s`,
          ),
        })),
      ).flat();
      const { layout, height } = panels(
        plot,
        drawn.map(([, title]) => title),
        {
          x: (i) => ({
            title: i < drawn.length - 1 && plot.clientWidth < 620 ? "" : "time, s",
            rangemode: "tozero",
          }),
          y: () => ({ title: "", rangemode: "tozero", nticks: 5 }),
          rowHeight: 150,
          sharesY: false,
          perRow: 2,
        },
      );
      return paint(
        plot,
        `Running and waiting requests, KV cache in use and k over time${focusName()}`,
        traces,
        layout,
        height,
      );
    },
    rows: () => ({
      head: [POLICY.title, "time, s", ...known().map(([, title]) => title)],
      rows: rows((p, point) => {
        const stride = Math.max(1, Math.ceil(point.timeline.time_s.length / 20));
        return range(point.timeline.time_s.length)
          .filter((i) => i % stride === 0)
          .map((i) => [
            POLICY.labels[p],
            point.timeline.time_s[i],
            ...known().map(([name]) => series(point, name)[i]),
          ]);
      }).flat(),
    }),
  });
}

function breakdownCard() {
  const has = (point) => point.breakdown != null;
  const shares = () =>
    atFocus(has).map(({ p, points }) => {
      const all = points.map(({ breakdown }) => {
        const sum = breakdown.reduce((a, b) => a + b, 0);
        return breakdown.map((seconds) => seconds / sum);
      });
      return { p, parts: PARTS.map((_, i) => interval(all.map((each) => each[i])).mean) };
    });
  return card("breakdown", () => `Where the time went${focusName()}`, {
    why: () => missingAtFocus(has, "time breakdown"),
    finding: () => {
      const found = shares();
      const span = (i) => {
        const values = found.map(({ parts }) => parts[i]);
        const [low, high] = [Math.min(...values), Math.max(...values)];
        return percent(low) === percent(high)
          ? percent(low)
          : `${number(100 * low)} to ${percent(high)}`;
      };
      return `Of the time of all replicas, drafting takes ${span(1)}, and they idle for ${span(3)}.`;
    },
    draw: (plot) => {
      const found = shares().reverse();
      const names = found.map(({ p }) => wrapped(POLICY.labels[p]));
      const traces = PARTS.map(([name, title], i) => ({
        type: "bar",
        orientation: "h",
        y: names,
        x: found.map(({ parts }) => parts[i]),
        name: title,
        marker: { color: colour(`part-${name}`), line: { color: colour("surface"), width: 1 } },
        text: found.map(({ parts }) => (parts[i] >= 0.04 ? `${Math.round(100 * parts[i])} %` : "")),
        textposition: "inside",
        insidetextanchor: "middle",
        textangle: 0,
        insidetextfont: { color: colour(`on-${name}`) },
        hoverinfo: "text",
        hovertext: found.map(
          ({ p, parts }) => `${literal(POLICY.labels[p])}: ${title} ${percent(parts[i])}`,
        ),
      }));
      const layout = {
        barmode: "stack",
        bargap: 0.3,
        uniformtext: { minsize: 11, mode: "hide" },
        showlegend: true,
        legend: {
          orientation: "h",
          x: 0,
          y: 1.02,
          yanchor: "bottom",
          traceorder: "normal",
          itemclick: false,
          itemdoubleclick: false,
        },
        xaxis: {
          ...axisStyle(),
          range: [0, 1.005],
          dtick: 0.2,
          tickformat: ",.0%",
          title: { ...axisStyle().title, text: "share of the time of all replicas" },
        },
        yaxis: { ...axisStyle(), type: "category", showgrid: false, ticks: "" },
        margin: { l: 10, r: 14, t: 34, b: 44 },
      };
      return paint(
        plot,
        `Shares of the time by policy${focusName()}`,
        traces,
        layout,
        Math.max(170, 96 + 42 * found.length),
      );
    },
    rows: () => ({
      head: [POLICY.title, ...PARTS.map(([, title]) => `${title}, %`)],
      rows: shares().map(({ p, parts }) => [
        POLICY.labels[p],
        ...parts.map((share) => 100 * share),
      ]),
    }),
  });
}
