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

/** Those of a ranking that are shown; more than one: intervals overlap, and none is named first. */
function leaders(what, ranking, said) {
  const shownNow = ranking.filter((each) =>
    shownResults().some(
      ({ places: [h, p] }) =>
        HARDWARE.labels[h] === each.hardware && POLICY.labels[p] === each.policy,
    ),
  );
  if (!shownNow.length || shownNow.length < ranking.length) return null;
  const names = shownNow.map(({ hardware, policy }) =>
    HARDWARE.labels.length > 1 ? `${hardware}, ${policy}` : policy,
  );
  return names.length > 1
    ? `${what}: no difference shown between ${listed(names)}`
    : `${what}: ${names[0]}, ${said(shownNow[0].value)}`;
}

function intervalText(result) {
  const between = result.requests_per_second_interval;
  return between ? `${number(between[0])} to ${number(between[1])}` : "";
}

function bindsText({ binds, resource, margins }) {
  const name = (metric) => metric.replace("_ms", "").replace(/^(ttft|tpot|e2el)$/, (m) => m.toUpperCase());
  const left = Object.entries(margins).map(([metric, share]) => `${name(metric)} ${percent(share)}`);
  if (!binds) return "";
  return `${name(binds)} (${resource.replaceAll("_", " ")})${left.length ? `; margins ${listed(left)}` : ""}`;
}

function capacityFinding() {
  const { attainment, slo, target_rate: target } = DATA.capacity;
  const limits = Object.entries(slo).map(
    ([name, limit]) => `${name.replace("_ms", "").toUpperCase()} ${number(limit)} ms`,
  );
  const found = shownResults().filter((result) => result.sustained != null);
  const asked = `${percent(attainment)} of the requests within ${listed(limits)}.`;
  if (!found.length) return `None of these sustains any load with ${asked}`;
  const per = target ? `for ${number(target)} requests/s` : "at full load";
  const unit = target ? "per hour" : "per million output tokens";
  const texts = [
    leaders("most", DATA.capacity.most, (value) => `${number(value)} requests/s per replica`),
    leaders(`cheapest ${per}`, DATA.capacity.cheapest, (value) => `${money(value)} ${unit}`),
  ].filter(Boolean);
  if (!texts.length) texts.push(`${found.length} sustain a load`);
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
        "95 % interval, requests/s",
        "what binds",
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
        intervalText(result),
        bindsText(result),
        number(result.cost_per_million_tokens),
        number(result.replicas),
        number(result.replicas && result.replicas * result.gpus_per_replica),
        number(result.cost_per_hour),
        result.is_measured ? "yes" : "no, a roofline",
      ]),
    }),
  });
}
