/* Latency against cost: each run is a point, and those that nothing beats in both are the front. */

const COST = "cost_per_mtok";

function costPoints() {
  return cells
    .map((each) => ({ ...each, cost: meanOf(each, COST), latency: meanOf(each, latencyMetric()) }))
    .filter((each) => each.cost != null && each.latency != null);
}

/** Those offers that no other beats in cost and latency, by rising cost. */
function front(points) {
  const sorted = real(points).filter(({ offer }) => offer).sort((a, b) => a.cost - b.cost || a.latency - b.latency);
  let lowest = Infinity;
  return sorted.filter((each) => each.latency < lowest && ((lowest = each.latency), true));
}

function priceText() {
  const each = DATA.prices.map(([label, price]) => `${label} ${money(price)}`);
  const date = DATA.price_date ? `, prices of ${DATA.price_date}` : "";
  const priced = new Set(DATA.prices.map(([label]) => label));
  const others = DATA.capacity ? [] : HARDWARE.labels.filter((label) => !priced.has(label));
  const unknown = others.length ? `; no price is known of ${listed(others)}` : "";
  return `${date}${each.length ? `; a server's hour costs on ${listed(each)}` : ""}${unknown}`;
}

function costName(each) {
  const names = [HARDWARE.labels.length > 1 && HARDWARE.labels[each.h], POLICY.labels[each.p]];
  return names.filter(Boolean).join(" ");
}

function drawCosts(plot) {
  const best = front(costPoints());
  const rows = costPoints().map((each) => ({ ...each, front: best.some(({ h, p, l }) => h === each.h && p === each.p && l === each.l) }));
  const label = `Latency against cost, with the Pareto front. ${costFinding()}`;
  return paint(plot, "cost", label, { cells: rows, front: best }, slotsOf(latencyMetric(), "log"));
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

/* What `specsim capacity` found: how much one server sustains, and how many it takes. */

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

function bindsText({ binds, what_binds: what, margins }) {
  if (!binds) return "";
  const left = Object.entries(margins).map(
    ([metric, share]) => `${shortName(metric)} ${Math.round(100 * share)} %`,
  );
  return `${what}${left.length ? `; margins ${listed(left)}` : ""}`;
}

function limitsText() {
  if (DATA.capacity) return DATA.capacity.promise;
  const limits = Object.entries(DATA.slo).map(
    ([name, limit]) => `${shortName(name)} ${number(limit)} ms`,
  );
  return `${percent(0.99)} of the requests within ${listed(limits)}`;
}

function capacityFinding() {
  return `What one ${DATA.capacity.unit} sustains with ${limitsText()}, and its 95 % interval.`;
}

/** The rows of the chart: what is written beside a bar, and what is told when it is pointed at. */
function capacityRows() {
  return shownResults().map((result) => {
    const { sustained, exceeded, requests_per_second_interval: ends } = result;
    return {
      ...result,
      sustained: sustained ?? 0,
      short: sustained == null ? "none" : `${number(sustained)}${between(ends, number)}`,
      text: `${capacityName(result)}: sustained ${number(sustained)}, not ${number(exceeded)} ${LOAD.unit}; 95 % interval ${intervalText(result)} requests/s; ${bindsText(result)}`,
    };
  });
}

function capacityCard() {
  if (!DATA.capacity || DATA.plan) return null; // the answer of a plan has it
  return card("capacity", () => `Capacity of one ${DATA.capacity.unit}`, {
    why: () => (shownResults().length > 1 ? null : "there is only one; it stands in the answer"),
    finding: capacityFinding,
    draw: (plot) => paint(plot, "capacity", capacityFinding(), { cells: capacityRows() }),
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
