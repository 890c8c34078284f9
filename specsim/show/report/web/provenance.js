/* What was run, by what, and what did not work. */

/** What to know before believing the numbers, after the answer. */
function notices() {
  const found = [];
  const missing = DATA.num_expected - DATA.points.length - DATA.failed.length;
  if (missing > 0)
    found.push(
      `Not finished: ${WHOLE.format(DATA.num_expected - missing)} of ${plural(DATA.num_expected, "run")} are there. The page shows those; run the sweep with --resume for the rest.`,
    );
  if (DATA.failed.length)
    found.push(`${plural(DATA.failed.length, "run")} failed; see Failed runs.`);
  const texts = [...found, ...DATA.warnings].map((text) => make("li", {}, text));
  return texts.length ? make("ul", { class: "notice", "aria-label": "Warnings" }, ...texts) : "";
}

function subtitle() {
  const parts = [HARDWARE, POLICY, LOAD, ...OTHERS]
    .filter((axis) => axis.labels.length > 1 && !(DATA.capacity && axis === LOAD))
    .map((axis) => `${axis.labels.length} × ${axis.title.toLowerCase()}`);
  if (DATA.replications.length > 1) parts.push(`${DATA.replications.length} replications`);
  const fixed = [HARDWARE, LOAD]
    .filter((axis) => axis.labels.length === 1)
    .map((axis) => (axis.unit ? `${axis.labels[0]} ${axis.unit}` : axis.labels[0]));
  return [
    `${plural(DATA.points.length, DATA.capacity ? "load" : "run")}${parts.length ? `: ${parts.join(", ")}` : ""}`,
    ...fixed,
    `specsim ${DATA.version}`,
  ].join(" · ");
}

function failedCard() {
  if (!DATA.failed.length) return null;
  return card("failed", () => "Failed runs", {
    needsRuns: false,
    finding: () =>
      `${plural(DATA.failed.length, "run")} came to nothing, whatever the filters say.`,
    draw: (plot) => {
      const axes = DATA.axes.filter((axis) => axis.labels.length > 1);
      const rows = DATA.failed.map((point) => [
        String(point.number),
        ...axes.map((axis) => axis.labels[point.places[DATA.axes.indexOf(axis)]]),
        String(point.replication),
        point.error,
      ]);
      plot.replaceChildren(
        table(
          "Failed runs",
          ["run", ...axes.map((axis) => axis.title), "replication", "error"],
          rows,
          "tall",
        ),
      );
      return rows.length;
    },
  });
}

function provenanceCard() {
  return card("provenance", () => "Configuration and provenance", {
    needsRuns: false,
    draw: (plot) => {
      const hashes = new Set([...DATA.points, ...DATA.failed].map((point) => point.hash));
      const seeds = [...new Set([...DATA.points, ...DATA.failed].map((point) => point.seed))].sort(
        (a, b) => a - b,
      );
      const facts = [
        ["specsim", DATA.version],
        ["runs", `${DATA.points.length + DATA.failed.length} of ${DATA.num_expected}`],
        ["seeds", seeds.join(", ")],
        ["configurations", hashes.size === 1 ? [...hashes][0] : `${hashes.size}, by hash below`],
      ];
      const rows = hashes.size > 1 ? provenanceRows() : null;
      plot.replaceChildren(
        make(
          "dl",
          { class: "facts" },
          ...facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]),
        ),
        make(
          "details",
          { open: DATA.config.split("\n").length < 60 },
          make("summary", {}, "Configuration"),
          make("pre", { tabindex: "0" }, DATA.config),
        ),
        (rows && make("details", {}, make("summary", {}, "Hash of each configuration"), rows)) ||
          "",
      );
      return facts.length;
    },
  });
}

function provenanceRows() {
  const axes = DATA.axes.filter((axis) => axis.labels.length > 1);
  const byHash = new Map([...DATA.points, ...DATA.failed].map((point) => [point.hash, point]));
  return table(
    "Hashes",
    ["hash", ...axes.map((axis) => axis.title)],
    [...byHash].map(([hash, point]) => [
      hash,
      ...axes.map((axis) => axis.labels[point.places[DATA.axes.indexOf(axis)]]),
    ]),
    "tall",
  );
}
