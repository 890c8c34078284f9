/* All runs: a row per case, sortable by every column; what failed; what was run, and by what. */

const COLUMNS = [
  ...["mean_e2el_ms", "p99_e2el_ms", "p50_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms"],
  ...["output_throughput", "request_goodput", "tokens_per_step", "spec_decode_acceptance_rate"],
  ...["num_preemptions", "pools.mean_prefill_ms", "pools.mean_transfer_ms"],
  ...["pools.transferred_tokens", "hits.gpu_share", "hits.host_share", "hits.disk_share", COST],
];

const sorting = { column: null, falls: false };

/** A number whose bounds are told when it is pointed at. */
function withBounds(value, text, bounds) {
  return make("span", { "data-value": value, title: bounds }, text);
}

function placeColumn(axis, key) {
  return {
    title: axis.title,
    unit: axis.unit,
    value: (row) => (axis.numbers ?? range(axis.labels.length))[row[key]],
    show: (row) => (key === "p" ? policyName(row.p) : axis.labels[row[key]]),
  };
}

function metricColumn(name) {
  const found = (row) => intervalOf(row, name);
  const show = (row) => {
    const { mean, half } = found(row);
    return withBounds(mean, number(mean), half == null ? null : `± ${number(half)}`);
  };
  const { title, unit } = METRIC.get(name);
  return { title, unit, isNumber: true, value: (row) => found(row).mean, show };
}

const GAIN_COLUMN = {
  title: "speed-up",
  unit: "",
  isNumber: true,
  value: (row) => gainOf(row, "mean_e2el_ms")?.mean ?? null,
  show: (row) => {
    const gain = gainOf(row, "mean_e2el_ms");
    if (gain == null) return "–";
    const bounds = gain.low == null ? null : `95 %: ${number(gain.low)} to ${number(gain.high)}`;
    return withBounds(gain.mean, gain.mean.toFixed(2), bounds);
  },
};
const STABLE_COLUMN = {
  title: "keeps up",
  unit: "",
  value: (row) => ["stable", "undecided", "overloaded"].indexOf(row.state),
  show: (row) => KEEPS_UP[row.state],
};

function hasGains() {
  return DATA.baseline != null && !DATA.capacity;
}

function overviewColumns() {
  const axes = [[HARDWARE, "h"], [POLICY, "p"], [LOAD, "l"]];
  const places = axes.filter(([axis, key]) => axis.labels.length > 1 || key === "p");
  return [
    ...places.map(([axis, key]) => placeColumn(axis, key)),
    ...(hasGains() ? [GAIN_COLUMN] : []),
    ...COLUMNS.filter((name) => METRIC.has(name)).map(metricColumn),
    STABLE_COLUMN,
  ];
}

function drawOverview(plot) {
  const redraw = () => CARDS.find((each) => each.id === "overview").update();
  drawSortable(plot, "All cases", overviewColumns(), cells, sorting, redraw);
  return cells.length;
}

function overviewCard() {
  const gains = hasGains() ? "Speed-up of mean E2E latency over no speculation. " : "";
  return card("overview", () => "All cases", {
    finding: () =>
      `${plural(cells.length, "case")}, ${DATA.capacity ? "means over the runs of each load" : state.luck == null ? `means over ${plural(DATA.replications.length, "replication")}` : `replication ${state.luck}`}. ${gains}Sort with the buttons in the heads.`,
    draw: drawOverview,
  });
}

/** What to know before believing the numbers, after the answer. */
function notices() {
  const found = [];
  const missing = DATA.num_expected - DATA.num_ended - DATA.failed.length;
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
    .map((axis) => `${axis.labels.length} of ${axis.title.toLowerCase()}`);
  if (parts.length) parts[0] = parts[0].replace(" of ", " choices of ");
  if (DATA.replications.length > 1) parts.push(`${DATA.replications.length} replications`);
  const fixed = [HARDWARE, LOAD]
    .filter((axis) => axis.labels.length === 1)
    .map(({ labels: [label], unit }) => (unit ? `${label} ${unit}` : label));
  const count = plural(DATA.num_ended, DATA.capacity ? "load" : "run");
  const runs = parts.length ? `${count}: ${parts.join(", ")}` : count;
  return [runs, ...fixed, `specsim ${DATA.version}`].join(" · ");
}

/** The axes along which runs differ: their titles, and where a run stands on them. */
function differing() {
  const axes = DATA.axes.filter((axis) => axis.labels.length > 1);
  const labelOf = (axis, point) => axis.labels[point.places[DATA.axes.indexOf(axis)]];
  const labelsOf = (point) => axes.map((axis) => labelOf(axis, point));
  return { titles: axes.map((axis) => axis.title), labelsOf };
}

function failedCard() {
  if (!DATA.failed.length) return null;
  const { titles, labelsOf } = differing();
  const rows = DATA.failed.map((point) => [
    String(point.number),
    ...labelsOf(point),
    String(point.replication),
    point.error,
  ]);
  const head = ["run", ...titles, "replication", "error"];
  return card("failed", () => "Failed runs", {
    needsRuns: false,
    finding: () =>
      `${plural(DATA.failed.length, "run")} came to nothing, whatever the filters say.`,
    draw: (plot) => {
      plot.replaceChildren(table("Failed runs", head, rows, "tall"));
      return rows.length;
    },
  });
}

function provenanceCard() {
  const facts = [
    ["specsim", DATA.version],
    ["runs", `${DATA.num_ended + DATA.failed.length} of ${DATA.num_expected}`],
    ["seeds", DATA.seeds.join(", ")],
    ["configurations", DATA.hashes.length === 1 ? DATA.hashes[0][0] : `${DATA.hashes.length}, by hash below`],
  ];
  const { titles, labelsOf } = differing();
  const hashes = DATA.hashes.map(([hash, places]) => [hash, ...labelsOf({ places })]);
  const folded = (title, content, attributes = {}) =>
    make("details", attributes, make("summary", {}, title), content);
  const isShort = DATA.config.split("\n").length < 60;
  const terms = facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]);
  const config = make("pre", { tabindex: "0" }, DATA.config);
  return card("provenance", () => "Configuration and provenance", {
    needsRuns: false,
    draw: (plot) => {
      plot.replaceChildren(
        make("dl", { class: "facts" }, ...terms),
        folded("Configuration", config, { open: isShort }),
      );
      const rows = DATA.hashes.length > 1 && table("Hashes", ["hash", ...titles], hashes, "tall");
      if (rows) plot.append(folded("Hash of each configuration", rows));
      return facts.length;
    },
  });
}
