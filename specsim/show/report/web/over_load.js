/* The chosen metric over load: a line per policy, a panel per hardware, a band of 95 %. */

function overLoadCard() {
  const metric = () => METRIC.get(state.metric);
  const log = make("input", {
    type: "checkbox",
    id: "log",
    checked: state.isLog,
    onchange: (event) => {
      state.isLog = event.target.checked;
      update();
    },
  });
  return card("over-load", () => capital(`${metric().title} by ${LOAD.title.toLowerCase()}`), {
    tools: [make("label", { class: "choice" }, log, "logarithmic")],
    why: () =>
      LOAD.labels.length < 2
        ? `all runs have the same load; sweep ${LOAD.field}`
        : shown("load").length < 2
          ? "a single load is shown"
          : null,
    draw: drawOverLoad,
    finding: overLoadFinding,
    rows: () => ({
      head: [HARDWARE.title, POLICY.title, ...shown("load").map((l) => loadText(l))],
      rows: shown("hardware").flatMap((h) =>
        shown("policy")
          .filter((p) => hasRuns(h, p))
          .map((p) => [
            HARDWARE.labels[h],
            POLICY.labels[p],
            ...shown("load").map((l) =>
              spreadCell(interval(valuesOf(cell(h, p, l), state.metric))),
            ),
          ]),
      ),
    }),
  });
}

function spread({ mean, half }) {
  return half == null ? number(mean) : `${number(mean)} ± ${number(half)}`;
}

function spreadCell(found) {
  return found.mean == null ? null : valued(spread(found), found.mean);
}

function overLoadFinding() {
  const { title, unit } = METRIC.get(state.metric);
  if (DATA.capacity) return `Each mark is a load that was tried on one ${DATA.capacity.unit}.`;
  const texts = shown("hardware")
    .map((h) => {
      const found = shown("load")
        .map((l) => best(h, l))
        .filter(Boolean);
      if (!found.length) return null;
      const where = HARDWARE.labels.length > 1 ? ` on ${HARDWARE.labels[h]}` : "";
      return `from ${number(found[0].mean)} to ${withUnit(found[found.length - 1].mean, unit)}${where}`;
    })
    .filter(Boolean);
  const bands =
    state.replications.size > 1
      ? " Bands: 95 % intervals over the replications; all policies share their luck, so differences are surer than the bands suggest."
      : "";
  return `From left to right, ${title} of the best policy goes ${texts.join(", ")}.${bands} Open markers: the queue kept growing.`;
}

function drawOverLoad(plot) {
  const { title, unit } = METRIC.get(state.metric);
  const traces = [];
  const hardware = shown("hardware").filter((h) => shown("policy").some((p) => hasRuns(h, p)));
  const limit = DATA.slo[sloName(state.metric)] ?? 0;
  hardware.forEach((h, panel) => {
    for (const p of shown("policy")) traces.push(...policyOverLoad(h, p, panel));
  });
  const { layout, height } = panels(
    plot,
    hardware.map((h) => HARDWARE.labels[h]),
    {
      x: (_, width) => loadAxis(width),
      y: () => ({
        title: unit ? `${title}, ${unit}` : title,
        ...(state.isLog
          ? logAxis([...traces.filter(({ marker }) => marker).flatMap(({ y }) => y), limit])
          : { rangemode: "tozero", autorangeoptions: { include: limit } }),
      }),
    },
  );
  layout.shapes = hardware.flatMap((_, panel) => sloLine(sloName(state.metric), panel));
  return paint(
    plot,
    `${title} by ${LOAD.title}. ${overLoadFinding()}`,
    traces,
    { ...layout, hovermode: "x" },
    height,
  );
}

function policyOverLoad(h, p, panel) {
  const { unit } = METRIC.get(state.metric);
  const found = shown("load")
    .map((l) => ({ l, points: cell(h, p, l) }))
    .filter((each) => each.points.length)
    .map((each) => ({ ...each, ...interval(valuesOf(each.points, state.metric)) }))
    .filter((each) => each.mean != null && (!state.isLog || each.mean > 0));
  if (!found.length) return [];
  const x = found.map(({ l }) => loadNumber(l));
  const [ink, shape] = [policyColour(p), DATA.policies[p].symbol];
  // No axis shows what lies below 0; the text still has all of the interval.
  const low = found.map(({ mean, half }) =>
    Math.max(mean - (half ?? 0), state.isLog ? mean / 100 : 0),
  );
  const edge = { x, mode: "lines", line: { width: 0 }, hoverinfo: "skip", ...onPanel(panel) };
  const band = found.some(({ half }) => half != null)
    ? [
        { ...edge, y: low },
        {
          ...edge,
          y: found.map(({ mean, half }) => mean + (half ?? 0)),
          fill: "tonexty",
          fillcolor: faint(ink, 0.16),
        },
      ]
    : [];
  return [
    ...band,
    {
      x,
      y: found.map(({ mean }) => mean),
      mode: "lines+markers",
      name: literal(POLICY.labels[p]),
      ...onPanel(panel),
      line: { color: ink, width: 1.8 },
      marker: {
        color: ink,
        size: 7,
        symbol: found.map(({ points }) => (isUnstable(points) ? `${shape}-open` : shape)),
      },
      text: found.map(
        (each) => `${literal(POLICY.labels[p])}: ${literal(spread(each))} ${literal(unit)}`,
      ),
      hoverinfo: "text",
    },
  ];
}
