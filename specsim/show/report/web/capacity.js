/* What `specsim capacity` found: how much one replica sustains, and how many it takes. */

function capacityName(result) {
  const [h, p] = result.places;
  return HARDWARE.labels.length > 1
    ? `${HARDWARE.labels[h]} ${POLICY.labels[p]}`
    : POLICY.labels[p];
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

function bindsText({ binds, resource, margins }) {
  const name = (metric) =>
    metric.replace("_ms", "").replace(/^(ttft|tpot|e2el)$/, (m) => m.toUpperCase());
  const left = Object.entries(margins).map(
    ([metric, share]) => `${name(metric)} ${Math.round(100 * share)} %`,
  );
  if (!binds) return "";
  return `${name(binds)} (${resource.replaceAll("_", " ")})${left.length ? `; margins ${listed(left)}` : ""}`;
}

function limitsText() {
  const limits = Object.entries(DATA.slo).map(
    ([name, limit]) => `${name.replace("_ms", "").toUpperCase()} ${number(limit)} ms`,
  );
  const share = DATA.capacity ? DATA.capacity.attainment : 0.99;
  return `${percent(share)} of the requests within ${listed(limits)}`;
}

function capacityFinding() {
  return `What one ${DATA.capacity.unit} sustains with ${limitsText()}, and its 95 % interval.`;
}

function drawCapacity(plot) {
  const hardware = shown("hardware");
  const traces = shown("policy").map((p) => {
    const mine = hardware.map((h) =>
      shownResults().find(({ places }) => places[0] === h && places[1] === p),
    );
    return {
      type: "bar",
      orientation: "h",
      name: literal(POLICY.labels[p]),
      y: hardware.map((h) => wrapped(HARDWARE.labels[h])),
      x: mine.map((result) => result?.sustained ?? 0),
      marker: { color: policyColour(p) },
      text: mine.map((result) =>
        result?.sustained == null
          ? "none"
          : `${number(result.sustained)}${between(result.requests_per_second_interval, number)}`,
      ),
      textposition: "outside",
      cliponaxis: false,
      hoverinfo: "text",
      hovertext: mine.map((result) =>
        result
          ? `${literal(capacityName(result))}: sustained ${number(result.sustained)}, not ${number(result.exceeded)} ${LOAD.unit}<br>95 % interval ${intervalText(result)} requests/s<br>${bindsText(result)}`
          : "",
      ),
    };
  });
  const layout = {
    barmode: "group",
    bargap: 0.25,
    xaxis: {
      ...axisStyle(),
      rangemode: "tozero",
      title: { ...axisStyle().title, text: `${LOAD.unit} that one ${DATA.capacity.unit} sustains` },
    },
    yaxis: { ...axisStyle(), type: "category", autorange: "reversed", showgrid: false, ticks: "" },
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
        HARDWARE.title,
        POLICY.title,
        `sustained, ${LOAD.unit}`,
        `not sustained, ${LOAD.unit}`,
        "95 % interval, requests/s",
        "what binds",
        `${DATA.currency} per million output tokens at full load`,
        `${DATA.capacity.unit}s`,
        "GPUs",
        `${DATA.currency} per hour`,
        "step times",
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
