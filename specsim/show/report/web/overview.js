/* The overview: a row per cell, sortable by every column. */

const COLUMNS = [
  "mean_e2el_ms",
  "p99_e2el_ms",
  "p50_ttft_ms",
  "p99_ttft_ms",
  "mean_tpot_ms",
  "p99_tpot_ms",
  "output_throughput",
  "request_goodput",
  "tokens_per_step",
  "spec_decode_acceptance_rate",
  "num_preemptions",
  "pools.mean_prefill_ms",
  "pools.mean_transfer_ms",
  "pools.transferred_tokens",
  "hits.gpu_share",
  "hits.host_share",
  "hits.disk_share",
  "cost_per_mtok",
];

const sorting = { column: null, falls: false };

function overviewColumns() {
  const metrics = COLUMNS.filter((name) => METRIC.has(name)).map((name) => METRIC.get(name));
  const places = [
    [HARDWARE, "h"],
    [POLICY, "p"],
    [LOAD, "l"],
  ]
    .filter(([axis, key]) => axis.labels.length > 1 || key === "p")
    .map(([axis, key]) => ({
      title: axis.title,
      unit: axis.unit,
      value: (row) => (axis.numbers ? axis.numbers[row[key]] : row[key]),
      show: (row) => (key === "p" ? policyName(row.p) : axis.labels[row[key]]),
    }));
  const gained =
    DATA.baseline == null || DATA.capacity
      ? []
      : [
          {
            title: "speed-up",
            unit: "",
            isNumber: true,
            value: (row) => row.gain?.mean ?? null,
            show: (row) =>
              row.gain == null
                ? "–"
                : make(
                    "span",
                    {
                      "data-value": row.gain.mean,
                      title:
                        row.gain.low == null
                          ? null
                          : `95 %: ${number(row.gain.low)} to ${number(row.gain.high)}`,
                    },
                    row.gain.mean.toFixed(2),
                  ),
          },
        ];
  return [
    ...places,
    ...gained,
    ...metrics.map((metric) => ({
      title: metric.title,
      unit: metric.unit,
      isNumber: true,
      value: (row) => interval(valuesOf(row.points, metric.name)).mean,
      show: (row) => {
        const found = interval(valuesOf(row.points, metric.name));
        return make(
          "span",
          {
            "data-value": found.mean,
            title: found.half == null ? null : `± ${number(found.half)}`,
          },
          number(found.mean),
        );
      },
    })),
    {
      title: "keeps up",
      unit: "",
      value: (row) => (isUnstable(row.points) ? 1 : 0),
      show: (row) => (isUnstable(row.points) ? "no" : "yes"),
    },
  ];
}

function overviewRows() {
  const rows = [];
  for (const h of shown("hardware")) {
    for (const l of shown("load")) {
      for (const p of shown("policy")) {
        const points = cell(h, p, l);
        if (points.length)
          rows.push({
            h,
            p,
            l,
            points,
            gain:
              DATA.baseline == null
                ? null
                : gain(points, cell(h, DATA.baseline, l), "mean_e2el_ms"),
          });
      }
    }
  }
  return rows;
}

function overviewCard() {
  return card("overview", () => "All cases", {
    finding: () =>
      `${plural(overviewRows().length, "case")}, means over ${plural(state.replications.size, "replication")}. ${DATA.capacity || DATA.baseline == null ? "" : "Speed-up of mean E2E latency over no speculation. "}Sort with the buttons in the heads.`,
    draw: (plot) => {
      const columns = overviewColumns();
      const rows = overviewRows();
      const { column, falls } = sorting;
      if (column != null) {
        const key = (row) => columns[column].value(row) ?? (falls ? -Infinity : Infinity);
        rows.sort((a, b) => (key(a) - key(b)) * (falls ? -1 : 1));
      }
      const head = columns.map((each, index) =>
        make(
          "th",
          {
            scope: "col",
            class: each.isNumber && "num",
            "aria-sort": index !== column ? "none" : falls ? "descending" : "ascending",
          },
          make(
            "button",
            { type: "button", "data-sort": index, onclick: () => sortBy(index, plot) },
            each.title,
            each.unit ? make("small", {}, each.unit) : null,
          ),
        ),
      );
      const body = rows.map((row) =>
        make(
          "tr",
          {},
          ...columns.map((each, i) =>
            make(
              i ? "td" : "th",
              { scope: i ? null : "row", class: each.isNumber && "num" },
              each.show(row),
            ),
          ),
        ),
      );
      const element = make(
        "table",
        { class: "overview" },
        make("caption", {}, "All cases"),
        make("thead", {}, make("tr", {}, ...head)),
        make("tbody", {}, ...body),
      );
      const { scrollTop, scrollLeft } = plot.querySelector(".scroll") ?? {};
      plot.replaceChildren(tableBox("All cases", element, "tall"));
      plot.querySelector(".scroll").scrollTo(scrollLeft ?? 0, scrollTop ?? 0);
      return rows.length;
    },
  });
}

function sortBy(index, plot) {
  Object.assign(sorting, {
    column: index,
    falls: sorting.column === index ? !sorting.falls : false,
  });
  CARDS.find((each) => each.id === "overview")
    .update()
    .then(() => plot.querySelector(`[data-sort="${index}"]`).focus());
}
