/* Latency against cost: each run is a point, and those that nothing beats in both are the front. */

const COST = "cost_per_mtok";

function costPoints() {
  return shownCells()
    .map((each) => ({
      ...each,
      cost: meanOf(each.points, COST),
      latency: meanOf(each.points, latencyMetric()),
      stability: stabilityOf(each.points),
    }))
    .filter((each) => each.cost != null && each.latency != null);
}

/** Whether enough requests keep their limits, where that was asked for; overload never does. */
function isOffer({ points, stability }) {
  const wanted = DATA.capacity?.attainment ?? 0;
  return stability !== "overloaded" && (wanted === 0 || meanOf(points, "slo_attainment") >= wanted);
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

function costTrace(found) {
  const text = (each) =>
    `${literal(costName(each))}, ${literal(loadText(each.l))}: ${number(each.latency)} ms, ${money(each.cost)} per million${STABILITY_TEXTS[each.stability] && `; ${STABILITY_TEXTS[each.stability]}`}`;
  return {
    x: found.map((each) => each.cost),
    y: found.map((each) => each.latency),
    mode: "lines+markers",
    text: found.map(text),
    hoverinfo: "text",
  };
}

/** The runs of a policy, with open markers where they do not keep up for sure. */
function costsOfPolicy(points, h, p) {
  const mine = points.filter((each) => each.h === h && each.p === p);
  const [ink, shape] = [policyColour(p), DATA.policies[p].symbol];
  const symbol = mine.map((each) => markerOf(shape, each.stability));
  return {
    ...costTrace(mine),
    name: literal(costName({ h, p })),
    line: { color: faint(ink, 0.35), width: 1 },
    marker: { color: faint(ink, 0.7), size: 7, symbol },
  };
}

/** The front of all hardware as a line, and what of it is on this one as markers. */
function frontTraces(best, h) {
  const own = best.filter((each) => each.h === h);
  const edge = { color: colour("ink"), width: 1.2, shape: "hv" };
  const marker = {
    size: 11,
    symbol: own.map((each) => DATA.policies[each.p].symbol),
    color: own.map((each) => policyColour(each.p)),
    line: { color: colour("ink"), width: 1.4 },
  };
  return [
    { ...costTrace(best), mode: "lines", hoverinfo: "skip", line: edge, name: "Pareto front" },
    { ...costTrace(own), mode: "markers", name: "on the front", marker },
  ];
}

/** A panel per hardware, all on the same axes, with the front of all of them in each. */
function drawCosts(plot) {
  const points = costPoints();
  const best = front(points);
  const hardware = shown("hardware").filter((h) => points.some((each) => each.h === h));
  const ofPolicies = (h) => shown("policy").map((p) => costsOfPolicy(points, h, p));
  const traces = hardware.flatMap((h, panel) =>
    [...ofPolicies(h), ...frontTraces(best, h)]
      .filter((each) => each.x.length)
      .map((each) => ({ ...each, ...onPanel(panel) })),
  );
  const metric = METRIC.get(latencyMetric());
  const limit = DATA.slo[sloName(metric.name)] ?? 0;
  const costs = points.map((each) => each.cost);
  const latencies = [...points.map((each) => each.latency), limit];
  const names = hardware.map((h) => HARDWARE.labels[h]);
  const { layout, height } = panels(plot, names, {
    x: () => ({ title: `cost, ${METRIC.get(COST).unit}`, ...logAxis(costs) }),
    y: () => ({ title: titled(metric), ...logAxis(latencies) }),
  });
  layout.shapes = hardware.flatMap((_, panel) => sloLine(sloName(metric.name), panel));
  return paint(plot, "Latency against cost, with the Pareto front", traces, layout, height);
}

function costFinding() {
  const found = front(costPoints());
  if (!found.length) return "No run keeps up with its arrivals.";
  const text = (each) =>
    `${number(each.latency)} ms at ${money(each.cost)} (${costName(each)}, ${loadText(each.l)})`;
  const [first, last] = [found[0], found[found.length - 1]];
  const unit = METRIC.get(COST).unit.replace(`${DATA.currency} `, "");
  return `Pareto front: ${found.length === 1 ? text(first) : `from ${text(first)} to ${text(last)}`}. Cost ${unit}${priceText()}.`;
}

function costCard() {
  return card("cost", () => capital(`${METRIC.get(latencyMetric()).title} against cost`), {
    why: () => {
      if (!METRIC.has(COST) || !costPoints().length) return "no price of this hardware is known";
      return new Set(costPoints().map(({ l }) => l)).size > 1 ? null : "there is one load";
    },
    finding: costFinding,
    draw: drawCosts,
    rows: () => {
      const numbers = [`cost, ${METRIC.get(COST).unit}`, titled(METRIC.get(latencyMetric()))];
      const row = ({ h, p, l, cost, latency }) =>
        [HARDWARE.labels[h], POLICY.labels[p], LOAD.labels[l], cost, latency];
      const head = [HARDWARE.title, POLICY.title, titled(LOAD), ...numbers];
      return { head, rows: front(costPoints()).map(row) };
    },
  });
}

/* What `specsim capacity` found: how much one replica sustains, and how many it takes. */

function capacityName({ places: [h, p] }) {
  return costName({ h, p });
}

function shownResults() {
  return DATA.capacity.results.filter(
    ({ places: [h, p] }) => state.shown.hardware.has(h) && state.shown.policy.has(p),
  );
}

function intervalText(result) {
  const between = result.requests_per_second_interval;
  return between ? `${number(between[0])} to ${number(between[1])}` : "";
}

/** "TTFT" for `ttft_ms`; what is no latency stays as it is. */
function shortName(metric) {
  return metric.replace("_ms", "").replace(/^(ttft|tpot|itl|e2el)$/, (m) => m.toUpperCase());
}

function bindsText({ binds, resource, margins }) {
  if (!binds) return "";
  const left = Object.entries(margins).map(
    ([metric, share]) => `${shortName(metric)} ${Math.round(100 * share)} %`,
  );
  return `${shortName(binds)} (${resource.replaceAll("_", " ")})${left.length ? `; margins ${listed(left)}` : ""}`;
}

function limitsText() {
  const limits = Object.entries(DATA.slo).map(
    ([name, limit]) => `${shortName(name)} ${number(limit)} ms`,
  );
  const share = DATA.capacity ? DATA.capacity.attainment : 0.99;
  return `${percent(share)} of the requests within ${listed(limits)}`;
}

function capacityFinding() {
  return `What one ${DATA.capacity.unit} sustains with ${limitsText()}, and its 95 % interval.`;
}

/** What is written beside a bar, and what is told of it when it is pointed at. */
function capacityTexts(result) {
  if (!result) return ["none", ""];
  const { sustained, exceeded, requests_per_second_interval: ends } = result;
  return [
    sustained == null ? "none" : `${number(sustained)}${between(ends, number)}`,
    `${literal(capacityName(result))}: sustained ${number(sustained)}, not ${number(exceeded)} ${LOAD.unit}<br>95 % interval ${intervalText(result)} requests/s<br>${bindsText(result)}`,
  ];
}

function drawCapacity(plot) {
  const hardware = shown("hardware");
  const names = hardware.map((h) => wrapped(HARDWARE.labels[h]));
  const resultOf = (h, p) =>
    shownResults().find(({ places }) => places[0] === h && places[1] === p);
  const traces = shown("policy").map((p) => {
    const mine = hardware.map((h) => resultOf(h, p));
    return bars(names, mine.map((result) => result?.sustained ?? 0), {
      name: literal(POLICY.labels[p]),
      marker: { color: policyColour(p) },
      text: mine.map((result) => capacityTexts(result)[0]),
      textposition: "outside",
      cliponaxis: false,
      hovertext: mine.map((result) => capacityTexts(result)[1]),
    });
  });
  const layout = {
    barmode: "group",
    bargap: 0.25,
    xaxis: axis(`${LOAD.unit} that one ${DATA.capacity.unit} sustains`, { rangemode: "tozero" }),
    yaxis: nameAxis({ autorange: "reversed" }),
    margin: { l: 10, r: 120, t: 8, b: 44 },
  };
  const height = 70 + 24 * traces.length * hardware.length + 12 * hardware.length;
  return paint(plot, capacityFinding(), traces, layout, height);
}

function capacityCard() {
  if (!DATA.capacity) return null;
  return card("capacity", () => `Capacity of one ${DATA.capacity.unit}`, {
    why: () => (shownResults().length > 1 ? null : "there is only one; it stands in the answer"),
    finding: capacityFinding,
    draw: drawCapacity,
    rows: () => ({
      head: [
        ...[HARDWARE.title, POLICY.title, `sustained, ${LOAD.unit}`, `not sustained, ${LOAD.unit}`],
        ...["95 % interval, requests/s", "what binds"],
        `${DATA.currency} per million output tokens at full load`,
        ...[`${DATA.capacity.unit}s`, "GPUs", `${DATA.currency} per hour`, "step times"],
      ],
      rows: shownResults().map((result) => [
        HARDWARE.labels[result.places[0]],
        POLICY.labels[result.places[1]],
        result.sustained,
        result.exceeded,
        intervalText(result),
        bindsText(result),
        result.cost_per_million_tokens,
        result.replicas,
        result.replicas && result.replicas * result.gpus_per_replica,
        result.cost_per_hour,
        BASIS[result.step_times] ?? "",
      ]),
    }),
  });
}
