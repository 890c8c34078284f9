/* What `specsim capacity` found: how much one replica sustains, and how many it takes. */

function capacityName(result) {
  const [h, p] = result.places;
  return HARDWARE.labels.length > 1
    ? `${HARDWARE.labels[h]}, ${POLICY.labels[p]}`
    : POLICY.labels[p];
}

function shownResults() {
  return DATA.capacity.results.filter(
    ({ places: [h, p] }) => state.shown.hardware.has(h) && state.shown.policy.has(p),
  );
}

function capacityFinding() {
  const { attainment, slo, target_rate: target } = DATA.capacity;
  const limits = Object.entries(slo).map(
    ([name, limit]) => `${name.replace("_ms", "").toUpperCase()} ${number(limit)} ms`,
  );
  const found = shownResults().filter((result) => result.sustained != null);
  const asked = `${percent(attainment)} of the requests within ${listed(limits)}.`;
  if (!found.length) return `None of these sustains any load with ${asked}`;
  const most = found.reduce((a, b) => (b.sustained > a.sustained ? b : a));
  const priced = found.filter((result) => result.cost_per_million_tokens != null);
  const texts = [`Most: ${capacityName(most)}, ${number(most.sustained)} ${LOAD.unit} per replica`];
  if (priced.length) {
    const cheap = priced.reduce((a, b) =>
      b.cost_per_million_tokens < a.cost_per_million_tokens ? b : a,
    );
    const replicas = cheap.replicas
      ? `, ${plural(cheap.replicas, "replica")} for ${number(target)} requests/s`
      : "";
    texts.push(
      `cheapest: ${capacityName(cheap)}, ${money(cheap.cost_per_million_tokens)} per million output tokens${replicas}`,
    );
  }
  return `${texts.join("; ")}. With ${asked}`;
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
      y: hardware.map((h) => literal(HARDWARE.labels[h])),
      x: mine.map((result) => result?.sustained ?? 0),
      marker: { color: policyColour(p) },
      text: mine.map((result) => (result?.sustained == null ? "none" : number(result.sustained))),
      textposition: "outside",
      cliponaxis: false,
      hoverinfo: "text",
      hovertext: mine.map((result) =>
        result
          ? `${literal(capacityName(result))}: sustained ${number(result.sustained)}, not ${number(result.exceeded)} ${LOAD.unit}`
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
      title: { ...axisStyle().title, text: `${LOAD.unit} that one replica sustains` },
    },
    yaxis: { ...axisStyle(), type: "category", autorange: "reversed", showgrid: false, ticks: "" },
    margin: { l: 10, r: 50, t: 8, b: 44 },
  };
  const height = 70 + 24 * traces.length * hardware.length + 12 * hardware.length;
  return paint(plot, capacityFinding(), traces, layout, height);
}

function capacityCard() {
  if (!DATA.capacity) return null;
  return card("capacity", () => "Capacity of one replica", {
    why: () => (shownResults().length ? null : "Not drawn: all of them are filtered out."),
    finding: capacityFinding,
    draw: drawCapacity,
    rows: () => ({
      head: [
        HARDWARE.title,
        POLICY.title,
        `sustained, ${LOAD.unit}`,
        `not sustained, ${LOAD.unit}`,
        `${DATA.currency} per million output tokens`,
        "replicas",
        "GPUs",
        `${DATA.currency} per hour`,
        "costs measured",
      ],
      rows: shownResults().map((result) => [
        HARDWARE.labels[result.places[0]],
        POLICY.labels[result.places[1]],
        number(result.sustained),
        number(result.exceeded),
        number(result.cost_per_million_tokens),
        number(result.replicas),
        number(result.replicas && result.replicas * result.gpus_per_replica),
        number(result.cost_per_hour),
        result.is_measured ? "yes" : "no, a roofline",
      ]),
    }),
  });
}
