/* A closer look at one load on one kind of hardware; and the latency of its requests. */

const LATENCIES = [
  ["ttft_ms", "TTFT"],
  ["tpot_ms", "TPOT"],
  ["e2el_ms", "E2E latency"],
];

/** Where the reader looks closer: two lists above the cards of this section. */
function focusControls() {
  const controls = make("div", { class: "focus" });
  const build = () => {
    const list = (role, axis, label) => {
      const options = shown(role);
      if (axis.labels.length < 2) return null;
      return choice(
        axis.title,
        options.map(label),
        options.indexOf(state.focus[role]),
        (value) => {
          state.focus[role] = options[value];
          update();
        },
        { id: `focus-${role}` },
      );
    };
    const active = document.activeElement?.id;
    controls.replaceChildren(
      ...[
        list("hardware", HARDWARE, (h) => HARDWARE.labels[h]),
        list("load", LOAD, loadText),
      ].filter(Boolean),
    );
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

function cdfCard() {
  const has = (point) => Object.keys(point.quantiles).length > 0;
  return card("cdf", () => `Latency of the requests${focusName()}`, {
    why: () => missingAtFocus(has, "distribution"),
    finding: () => {
      const tails = atFocus(has)
        .map(({ p, points }) => ({
          p,
          ttft: quantiles(points, "ttft_ms"),
          e2el: quantiles(points, "e2el_ms"),
        }))
        .filter((each) => each.ttft && each.e2el);
      const tail = (name, title) => {
        const ranked = tails
          .map((each) => [quantile(each[name], 0.99), POLICY.labels[each.p]])
          .sort((a, b) => a[0] - b[0]);
        const [low, high] = [ranked[0], ranked[ranked.length - 1]];
        return ranked.length === 1
          ? `p99 ${title} ${number(low[0])} ms (${low[1]})`
          : `p99 ${title} from ${number(low[0])} ms (${low[1]}) to ${number(high[0])} ms (${high[1]})`;
      };
      return tails.length
        ? `${tail("ttft", "TTFT")}; ${tail("e2el", "E2E latency")}. ${keptNote(atFocus(has))}`
        : "";
    },
    draw: (plot) => {
      const kept = LATENCIES.filter(([name]) =>
        atFocus(has).some(({ points }) => quantiles(points, name)),
      );
      const traces = atFocus(has)
        .flatMap(({ p, points }) =>
          kept.map(([name, title], panel) => {
            const values = quantiles(points, name);
            if (!values) return null;
            const shares = values.map((_, i) => i / (values.length - 1));
            return {
              x: values,
              y: shares,
              mode: "lines",
              name: literal(POLICY.labels[p]),
              ...onPanel(panel),
              line: { color: policyColour(p), width: 1.8 },
              hoverinfo: "text",
              text: values.map(
                (value, i) =>
                  `${literal(POLICY.labels[p])}: ${percent(shares[i])} within ${number(value)} ms ${title}`,
              ),
            };
          }),
        )
        .filter(Boolean);
      const { layout, height } = panels(
        plot,
        kept.map(() => ""),
        {
          x: (i) => ({
            title: `${kept[i][1]}, ms`,
            ...logAxis(
              traces
                .filter((trace) => (trace.xaxis ?? "x") === `x${i ? i + 1 : ""}`)
                .flatMap((trace) => trace.x)
                .concat(DATA.slo[kept[i][0]] ?? 0),
            ),
          }),
          y: () => ({
            title: "share of requests",
            range: [0, 1.02],
            tickformat: ",.0%",
            dtick: 0.25,
          }),
          rowHeight: 260,
        },
      );
      layout.shapes = kept.flatMap(([name], panel) => sloLine(name, panel, true));
      return paint(plot, `Cumulative distributions${focusName()}`, traces, layout, height);
    },
    rows: () => ({
      head: [
        POLICY.title,
        ...LATENCIES.flatMap(([, title]) =>
          ["p10", "p50", "p90", "p99"].map((q) => `${title} ${q}, ms`),
        ),
      ],
      rows: atFocus(has).map(({ p, points }) => [
        POLICY.labels[p],
        ...LATENCIES.flatMap(([name]) => {
          const values = quantiles(points, name);
          return [0.1, 0.5, 0.9, 0.99].map((share) => values && quantile(values, share));
        }),
      ]),
    }),
  });
}
