/* Latency against cost: each run is a point, and those that nothing beats in both are the front. */

const COST = "cost_per_mtok";

function costPoints() {
  const name = latencyMetric();
  return shown("hardware")
    .flatMap((h) =>
      shown("policy").flatMap((p) =>
        shown("load").map((l) => {
          const points = cell(h, p, l);
          return {
            h,
            p,
            l,
            cost: interval(valuesOf(points, COST)).mean,
            latency: interval(valuesOf(points, name)).mean,
            unstable: isUnstable(points),
          };
        }),
      ),
    )
    .filter((each) => each.cost != null && each.latency != null);
}

/** Those that no other point beats in cost and latency, by rising cost. Overload is no offer. */
function front(points) {
  const sorted = points
    .filter((each) => !each.unstable)
    .sort((a, b) => a.cost - b.cost || a.latency - b.latency);
  let lowest = Infinity;
  return sorted.filter((each) => each.latency < lowest && ((lowest = each.latency), true));
}

function costCard() {
  const name = (each) =>
    [HARDWARE.labels.length > 1 && HARDWARE.labels[each.h], POLICY.labels[each.p]]
      .filter(Boolean)
      .join(" ");
  return card("cost", () => capital(`${METRIC.get(latencyMetric()).title} against cost`), {
    why: () =>
      METRIC.has(COST) && costPoints().length
        ? null
        : "Not drawn: no price of this hardware is known, so there is no cost.",
    finding: () => {
      const found = front(costPoints());
      if (!found.length) return "No run keeps up with its arrivals.";
      const text = (each) =>
        `${number(each.latency)} ms at $${number(each.cost)} (${name(each)}, ${loadText(each.l)})`;
      const [first, last] = [found[0], found[found.length - 1]];
      return `Pareto front: ${found.length === 1 ? text(first) : `from ${text(first)} to ${text(last)}`}. Cost per million output tokens; prices${DATA.price_date ? ` of ${DATA.price_date}` : ""}: ${DATA.prices.map(([label, price]) => `${label} $${number(price)}/h`).join(", ")}.`;
    },
    draw: (plot) => {
      const points = costPoints();
      const best = front(points);
      const text = (each) =>
        `${literal(name(each))}, ${literal(loadText(each.l))}: ${number(each.latency)} ms, $${number(each.cost)} per million${each.unstable ? "; the queue kept growing" : ""}`;
      const lines = shown("hardware")
        .flatMap((h) =>
          shown("policy").map((p) => {
            const mine = points.filter((each) => each.h === h && each.p === p);
            const [ink, shape] = [policyColour(p), DATA.policies[p].symbol];
            return {
              x: mine.map((each) => each.cost),
              y: mine.map((each) => each.latency),
              mode: "lines+markers",
              name: literal(name({ h, p })),
              text: mine.map(text),
              hoverinfo: "text",
              line: { color: faint(ink, 0.35), width: 1 },
              marker: {
                color: faint(ink, 0.7),
                size: 7,
                symbol: mine.map((each) => (each.unstable ? `${shape}-open` : shape)),
              },
            };
          }),
        )
        .filter((trace) => trace.x.length);
      const edge = {
        x: best.map((each) => each.cost),
        y: best.map((each) => each.latency),
        mode: "lines+markers",
        name: "Pareto front",
        text: best.map(text),
        hoverinfo: "text",
        line: { color: colour("ink"), width: 1.6, shape: "hv" },
        marker: {
          size: 11,
          symbol: best.map((each) => `${DATA.policies[each.p].symbol}`),
          color: best.map((each) => policyColour(each.p)),
          line: { color: colour("ink"), width: 1.4 },
        },
      };
      const metric = METRIC.get(latencyMetric());
      const layout = {
        xaxis: {
          ...axisStyle(),
          ...logAxis(points.map((each) => each.cost)),
          title: { ...axisStyle().title, text: "cost, US$ per million output tokens" },
        },
        yaxis: {
          ...axisStyle(),
          ...logAxis(points.map((each) => each.latency)),
          title: { ...axisStyle().title, text: literal(`${metric.title}, ${metric.unit}`) },
        },
      };
      return paint(
        plot,
        "Latency against cost, with the Pareto front",
        [...lines, edge],
        layout,
        400,
      );
    },
    rows: () => ({
      head: [
        HARDWARE.title,
        POLICY.title,
        axisCaption(),
        "cost, $ per million",
        `${METRIC.get(latencyMetric()).title}, ms`,
      ],
      rows: front(costPoints()).map((each) => [
        HARDWARE.labels[each.h],
        POLICY.labels[each.p],
        LOAD.labels[each.l],
        number(each.cost),
        number(each.latency),
      ]),
    }),
  });
}
