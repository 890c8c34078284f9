/* What the runs say, in sentences: above all charts, and for what the filters let through. */

/** "static:k=5 up to 8, goodput at 16, off from 24 requests/s". */
function winnersByLoad(h) {
  const runs = [];
  for (const l of shown("load")) {
    const found = best(h, l);
    if (!found) continue;
    const last = runs[runs.length - 1];
    if (last?.p === found.p) last.to = l;
    else runs.push({ p: found.p, from: l, to: l });
  }
  return runs
    .map(({ p, from, to }, index) => {
      const name = POLICY.labels[p];
      if (runs.length === 1) return `${name} ${IS_LOAD ? "at every load" : "everywhere"}`;
      if (index === 0) return `${name} up to ${LOAD.labels[to]}`;
      if (index === runs.length - 1) return `${name} from ${loadText(from)}`;
      return from === to
        ? `${name} at ${LOAD.labels[from]}`
        : `${name} from ${LOAD.labels[from]} to ${LOAD.labels[to]}`;
    })
    .join(", ");
}

/** From which load on the queue keeps growing, whatever the policy. */
function breakingPoint(h) {
  const places = shown("load").filter((l) => best(h, l));
  const broken = places.filter((l) => best(h, l).unstable);
  if (broken.length) return `no policy keeps up from ${loadText(broken[0])} on`;
  return `some policy keeps up at every load, up to ${loadText(places[places.length - 1])}`;
}

/** The largest load at which 99 % of the requests keep their limits, and with which policy. */
function withinLimits(h) {
  if (!METRIC.has("slo_attainment")) return null;
  const fine = shown("load")
    .flatMap((l) =>
      shown("policy").map((p) => ({
        l,
        p,
        share: interval(valuesOf(cell(h, p, l), "slo_attainment")).mean,
      })),
    )
    .filter((each) => each.share != null && each.share >= 0.99);
  if (!fine.length) return "at none of these loads do 99 % of the requests keep the SLO";
  const top = Math.max(...fine.map((each) => each.l));
  const names = fine.filter((each) => each.l === top).map((each) => POLICY.labels[each.p]);
  const who =
    names.length === shown("policy").length ? "with every policy" : `with ${listed(names)}`;
  return `99 % of the requests keep the SLO up to ${loadText(top)}${POLICY.labels.length > 1 ? `, ${who}` : ""}`;
}

/** All policies, best first: what there is to say of a single load. */
function ranking(h, l) {
  const { unit } = METRIC.get(state.metric);
  return best(h, l)
    .ranked.map(({ p, mean, points, unstable }) => {
      const over =
        DATA.baseline == null || p === DATA.baseline
          ? null
          : gain(points, cell(h, DATA.baseline, l), state.metric);
      const notes = [
        over && `×${over.mean.toFixed(2)} over ${POLICY.labels[DATA.baseline]}`,
        unstable && "the queue kept growing",
      ].filter(Boolean);
      return `${POLICY.labels[p]} ${withUnit(mean, unit)}${notes.length ? ` (${notes.join(", ")})` : ""}`;
    })
    .join(", ");
}

/** The main numbers of a single run. */
function mainNumbers(h, p, l) {
  const points = cell(h, p, l);
  const texts = [
    "mean_e2el_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
    "output_throughput",
    "tokens_per_step",
  ]
    .filter((name) => METRIC.has(name))
    .map(
      (name) =>
        `${METRIC.get(name).title} ${withUnit(interval(valuesOf(points, name)).mean, METRIC.get(name).unit)}`,
    );
  return `${texts.join(", ")}; ${isUnstable(points) ? "the queue kept growing" : "it keeps up with its arrivals"}`;
}

function findings() {
  return shown("hardware")
    .filter((h) => shown("load").some((l) => best(h, l)))
    .map((h) => {
      const texts = [];
      const by = `by ${METRIC.get(state.metric).title}`;
      const [first, ...others] = shown("load").filter((l) => best(h, l));
      if (POLICY.labels.length > 1)
        texts.push(
          others.length
            ? `best ${by}: ${winnersByLoad(h)}`
            : `${by}, best first: ${ranking(h, first)}`,
        );
      else if (!others.length) texts.push(mainNumbers(h, shown("policy")[0], first));
      if (LOAD.labels.length > 1 && IS_LOAD) texts.push(breakingPoint(h), withinLimits(h));
      return { title: HARDWARE.labels[h], text: `${capital(texts.filter(Boolean).join("; "))}.` };
    });
}

function findingsCard() {
  return card("findings", () => "In short", {
    draw: (plot) => {
      plot.replaceChildren(
        make(
          "dl",
          {},
          ...findings().flatMap(({ title, text }) => [make("dt", {}, title), make("dd", {}, text)]),
        ),
      );
      return findings().length;
    },
  });
}
