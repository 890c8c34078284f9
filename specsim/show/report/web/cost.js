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

/** Whether enough requests keep their limits, where that was asked for; overload never does. */
function isOffer({ h, p, l, unstable }) {
  if (unstable) return false;
  const wanted = DATA.capacity?.attainment ?? 0;
  return wanted === 0 || interval(valuesOf(cell(h, p, l), "slo_attainment")).mean >= wanted;
}

/** Those offers that no other beats in cost and latency, by rising cost. */
function front(points) {
  const sorted = points.filter(isOffer).sort((a, b) => a.cost - b.cost || a.latency - b.latency);
  let lowest = Infinity;
  return sorted.filter((each) => each.latency < lowest && ((lowest = each.latency), true));
}

function priceText() {
  const each = DATA.prices.map(([label, price]) => `${label} ${money(price)}`);
  const date = DATA.price_date ? `, prices of ${DATA.price_date}` : "";
  const priced = new Set(DATA.prices.map(([label]) => label));
  const others = DATA.capacity ? [] : HARDWARE.labels.filter((label) => !priced.has(label));
  const unknown = others.length ? `; no price is known of ${listed(others)}` : "";
  return `${date}${each.length ? `; a replica's hour costs on ${listed(each)}` : ""}${unknown}`;
}

function costName(each) {
  const names = [HARDWARE.labels.length > 1 && HARDWARE.labels[each.h], POLICY.labels[each.p]];
  return names.filter(Boolean).join(" ");
}

/** A panel per hardware, all on the same axes, with the front of all of them in each. */
function drawCosts(plot) {
  const points = costPoints();
  const best = front(points);
  const hardware = shown("hardware").filter((h) => points.some((each) => each.h === h));
  const text = (each) =>
    `${literal(costName(each))}, ${literal(loadText(each.l))}: ${number(each.latency)} ms, ${money(each.cost)} per million${each.unstable ? "; the queue kept growing" : ""}`;
  const trace = (found) => ({
    x: found.map((each) => each.cost),
    y: found.map((each) => each.latency),
    mode: "lines+markers",
    text: found.map(text),
    hoverinfo: "text",
  });
  const ofPolicy = (h, p) => {
    const mine = points.filter((each) => each.h === h && each.p === p);
    const [ink, shape] = [policyColour(p), DATA.policies[p].symbol];
    return {
      ...trace(mine),
      name: literal(costName({ h, p })),
      line: { color: faint(ink, 0.35), width: 1 },
      marker: {
        color: faint(ink, 0.7),
        size: 7,
        symbol: mine.map((each) => (each.unstable ? `${shape}-open` : shape)),
      },
    };
  };
  const traces = hardware.flatMap((h, panel) => {
    const own = best.filter((each) => each.h === h);
    const edge = { color: colour("ink"), width: 1.2, shape: "hv" };
    return [
      ...shown("policy").map((p) => ofPolicy(h, p)),
      { ...trace(best), mode: "lines", hoverinfo: "skip", line: edge, name: "Pareto front" },
      {
        ...trace(own),
        mode: "markers",
        name: "on the front",
        marker: {
          size: 11,
          symbol: own.map((each) => DATA.policies[each.p].symbol),
          color: own.map((each) => policyColour(each.p)),
          line: { color: colour("ink"), width: 1.4 },
        },
      },
    ]
      .filter((each) => each.x.length)
      .map((each) => ({ ...each, ...onPanel(panel) }));
  });
  const metric = METRIC.get(latencyMetric());
  const limit = DATA.slo[sloName(metric.name)] ?? 0;
  const { layout, height } = panels(
    plot,
    hardware.map((h) => HARDWARE.labels[h]),
    {
      x: () => ({
        title: `cost, ${METRIC.get(COST).unit}`,
        ...logAxis(points.map((each) => each.cost)),
      }),
      y: () => ({
        title: `${metric.title}, ${metric.unit}`,
        ...logAxis([...points.map((each) => each.latency), limit]),
      }),
    },
  );
  layout.shapes = hardware.flatMap((_, panel) => sloLine(sloName(metric.name), panel));
  return paint(plot, "Latency against cost, with the Pareto front", traces, layout, height);
}

function costCard() {
  return card("cost", () => capital(`${METRIC.get(latencyMetric()).title} against cost`), {
    why: () => {
      if (!METRIC.has(COST) || !costPoints().length) return "no price of this hardware is known";
      return new Set(costPoints().map(({ l }) => l)).size > 1 ? null : "there is one load";
    },
    finding: () => {
      const found = front(costPoints());
      if (!found.length) return "No run keeps up with its arrivals.";
      const text = (each) =>
        `${number(each.latency)} ms at ${money(each.cost)} (${costName(each)}, ${loadText(each.l)})`;
      const [first, last] = [found[0], found[found.length - 1]];
      return `Pareto front: ${found.length === 1 ? text(first) : `from ${text(first)} to ${text(last)}`}. Cost ${METRIC.get(COST).unit.replace(`${DATA.currency} `, "")}${priceText()}.`;
    },
    draw: drawCosts,
    rows: () => ({
      head: [
        HARDWARE.title,
        POLICY.title,
        axisCaption(),
        `cost, ${METRIC.get(COST).unit}`,
        `${METRIC.get(latencyMetric()).title}, ms`,
      ],
      rows: front(costPoints()).map((each) => [
        HARDWARE.labels[each.h],
        POLICY.labels[each.p],
        LOAD.labels[each.l],
        each.cost,
        each.latency,
      ]),
    }),
  });
}
