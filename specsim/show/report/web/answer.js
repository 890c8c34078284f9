/* The answer, above all charts, for what the filters let through: which GPUs at what cost, with and
   without speculation, how sure, what binds, and what the figures rest on. */

const BASIS = {
  fitted: "fitted to measured steps",
  kernels: "composed of kernels measured one by one",
  roofline: "a roofline of data sheets, not measured",
};

/** "h100: fitted to measured steps"; those of the same kind together. */
function basisText() {
  const kinds = Object.keys(BASIS)
    .map((kind) => [
      kind,
      shown("hardware").filter((h) => DATA.step_times[HARDWARE.labels[h]] === kind),
    ])
    .filter(([, those]) => those.length);
  const texts = kinds.map(
    ([kind, those]) => `of ${listed(those.map((h) => HARDWARE.labels[h]))} are ${BASIS[kind]}`,
  );
  return texts.length ? `Step times ${texts.join("; those ")}.` : "";
}

function priceDate() {
  return DATA.price_date && (DATA.prices.length || DATA.capacity)
    ? `Prices of ${DATA.price_date.replaceAll("-", "\u2011")}.`
    : "";
}

/** What results are compared by: cost, at the asked load if there is one, or else what they sustain. */
function costOf(result) {
  return result.cost_per_hour ?? result.cost_per_million_tokens ?? -result.requests_per_second;
}

/** The best of the results that are shown, and those that no interval tells from it. */
function leader(results) {
  const [first] = [...results].sort((a, b) => costOf(a) - costOf(b));
  if (!first) return null;
  const names = DATA.capacity.cheapest.length ? DATA.capacity.cheapest : DATA.capacity.most;
  const isOf = (each) => (name) =>
    name.hardware === HARDWARE.labels[each.places[0]] &&
    name.policy === POLICY.labels[each.places[1]];
  const isTied = (each) => each !== first && names.some(isOf(first)) && names.some(isOf(each));
  return { first, tied: results.filter(isTied) };
}

function between(interval, show) {
  return interval && show(interval[0]) !== show(interval[1])
    ? ` (${show(interval[0])} to ${show(interval[1])})`
    : "";
}

function gpuText({ replicas, replicas_interval: ends, gpus_per_replica: each }) {
  return replicas == null
    ? "–"
    : `${number(replicas * each)}${between(ends, (count) => number(count * each))}`;
}

function capacityHeadline(found) {
  if (!found.length) return `None of these sustains any load with ${limitsText()}.`;
  const { first, tied } = leader(found);
  const { target_rate: target, unit } = DATA.capacity;
  const [h, p] = first.places;
  const cost = target ? first.cost_per_hour : first.cost_per_million_tokens;
  const price =
    cost == null ? "" : `, ${money(cost)} ${target ? "per hour" : "per million output tokens"}`;
  const what = target
    ? `${gpuText(first)} ${unit === "unit" ? "GPUs in units of" : "×"} ${HARDWARE.labels[h]}`
    : `${HARDWARE.labels[h]}: ${number(first.requests_per_second)} requests/s per ${unit}`;
  const names = tied.every(({ places }) => places[0] === h)
    ? tied.map(({ places }) => POLICY.labels[places[1]])
    : tied.map(capacityName);
  const tie = tied.length ? `; no difference is shown from ${listed(names)}` : "";
  return `${what}${price}, with policy ${POLICY.labels[p]}${tie}.`;
}

/** Per hardware, the best result without speculation and the best with it. */
function onAndOff(found) {
  return shown("hardware").flatMap((h) => {
    const mine = found.filter(({ places }) => places[0] === h);
    const isOff = ({ places }) => places[1] === DATA.baseline;
    return [mine.filter(isOff), mine.filter((each) => !isOff(each))].flatMap(
      (some) => leader(some)?.first ?? [],
    );
  });
}

function capacityAnswer() {
  const { target_rate: target } = DATA.capacity;
  const found = shownResults().filter((result) => result.requests_per_second != null);
  const head = [
    "speculation",
    HARDWARE.title,
    "GPUs",
    `${DATA.currency} per hour`,
    `requests/s per ${DATA.capacity.unit}`,
    "95 % interval",
    "what binds",
    "step times",
  ];
  const rows = onAndOff(found).map((result) => [
    result.places[1] === DATA.baseline ? "off" : `on: ${POLICY.labels[result.places[1]]}`,
    HARDWARE.labels[result.places[0]],
    ...(target
      ? [
          gpuText(result),
          result.cost_per_hour == null
            ? null
            : valued(
                `${number(result.cost_per_hour)}${between(result.cost_per_hour_interval, number)}`,
                result.cost_per_hour,
              ),
        ]
      : []),
    result.requests_per_second,
    intervalText(result),
    bindsText(result),
    { fitted: "fitted", kernels: "kernels", roofline: "roofline" }[result.step_times] ?? "",
  ]);
  const asked = target
    ? `For ${number(target)} requests/s with ${limitsText()}.`
    : `Within the limits: ${limitsText()}.`;
  return [
    make("p", { class: "headline" }, capacityHeadline(found)),
    make("p", { class: "asked" }, [asked, basisText(), priceDate()].filter(Boolean).join(" ")),
    rows.length
      ? table(
          "Speculation on and off",
          target ? head : head.filter((_, i) => i !== 2 && i !== 3),
          rows,
        )
      : null,
  ];
}

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

/** GPUs of all replicas and what they cost, where that is known. */
function gpusText(h) {
  const [label, point] = [
    HARDWARE.labels[h],
    [...cells.values()].flat().find(({ places }) => places[0] === h),
  ];
  const price = new Map(DATA.prices).get(label);
  if (!point || !DATA.gpus[label]) return label;
  // Of pools, which may be on other hardware, the point itself says it.
  const hasPools = "gpus" in point;
  const gpus = hasPools ? point.gpus : DATA.gpus[label] * point.replicas;
  const hour = hasPools ? point.hour : price == null ? null : price * point.replicas;
  if (!gpus) return label;
  const name = hasPools ? "GPUs of both pools" : `× ${label.split("/")[0]}`;
  return `${gpus} ${name}${hour == null ? "" : `, ${money(hour)} per hour`}`;
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

/** The limit that is nearest to being missed, or missed by most. */
function nearestLimit(points) {
  const [nearest] = Object.entries(DATA.slo)
    .map(([name, limit]) => [
      name.replace("_ms", "").toUpperCase(),
      interval(valuesOf(points, `p99_${name}`)).mean / limit,
    ])
    .sort((a, b) => b[1] - a[1]);
  return nearest ? `p99 ${nearest[0]} at ${percent(nearest[1])} of its limit` : "–";
}

/** At a single load: all policies, best first. */
function ranking(h, l) {
  const { title, unit } = METRIC.get(state.metric);
  const hasSlo = METRIC.has("slo_attainment");
  const rows = best(h, l).ranked.map(({ p, mean, points, unstable }) => {
    const over =
      DATA.baseline == null ? null : gain(points, cell(h, DATA.baseline, l), state.metric);
    const sure = over?.low == null ? "" : ` (${over.low.toFixed(2)} to ${over.high.toFixed(2)})`;
    const share = hasSlo ? interval(valuesOf(points, "slo_attainment")).mean : null;
    return [
      POLICY.labels[p],
      mean,
      over && valued(`×${over.mean.toFixed(2)}${sure}`, over.mean),
      ...(hasSlo
        ? [share == null ? null : valued(percent(share), share), nearestLimit(points)]
        : []),
      unstable ? "no" : "yes",
    ];
  });
  const head = [
    POLICY.title,
    unit ? `${title}, ${unit}` : title,
    "speed-up over off (95 %)",
    ...(hasSlo ? ["within the SLO", "what binds"] : []),
    "keeps up",
  ];
  return table("Policies, best first", head, rows);
}

/** At a single load: the best policy, on which GPUs, at what price. */
function caseHeadline(h, l) {
  const { p, points } = best(h, l);
  const over =
    DATA.baseline == null || p === DATA.baseline
      ? null
      : gain(points, cell(h, DATA.baseline, l), state.metric);
  const share = METRIC.has("slo_attainment")
    ? interval(valuesOf(points, "slo_attainment")).mean
    : null;
  const texts = [
    `${POLICY.labels[p]}${POLICY.labels.length > 1 ? ` is best by ${METRIC.get(state.metric).title}` : ""}`,
    over && `×${over.mean.toFixed(2)} over ${POLICY.labels[DATA.baseline]}`,
    share != null && `${percent(share)} of the requests within the SLO`,
    isUnstable(points) && "the queue kept growing",
  ];
  return `${gpusText(h)}: ${texts.filter(Boolean).join(", ")}.`;
}

/** Per hardware, over several loads, in sentences. */
function findings() {
  return shown("hardware")
    .filter((h) => shown("load").some((l) => best(h, l)))
    .map((h) => {
      const texts = [gpusText(h)];
      if (POLICY.labels.length > 1)
        texts.push(`best by ${METRIC.get(state.metric).title}: ${winnersByLoad(h)}`);
      if (IS_LOAD) texts.push(breakingPoint(h), withinLimits(h));
      return [
        make("dt", {}, HARDWARE.labels[h]),
        make("dd", {}, `${capital(texts.filter(Boolean).join("; "))}.`),
      ];
    });
}

function studyAnswer() {
  const note = [
    Object.keys(DATA.slo).length ? `SLO: ${limitsText()}.` : "",
    basisText(),
    priceDate(),
  ];
  const hardware = shown("hardware").filter((h) => shown("load").some((l) => best(h, l)));
  const loads = shown("load").filter((l) => hardware.some((h) => best(h, l)));
  const asked = make("p", { class: "asked" }, note.filter(Boolean).join(" "));
  if (hardware.length > 1 || loads.length > 1) return [make("dl", {}, ...findings().flat()), asked];
  const [h, l] = [hardware[0], loads[0]];
  const numbers =
    POLICY.labels.length > 1 ? null : make("p", {}, `${capital(mainNumbers(h, best(h, l).p, l))}.`);
  return [make("p", { class: "headline" }, caseHeadline(h, l)), numbers, asked, ranking(h, l)];
}

function answerCard() {
  return card("answer", () => "The answer", {
    level: 2,
    draw: (plot) => {
      plot.replaceChildren(...(DATA.capacity ? capacityAnswer() : studyAnswer()).filter(Boolean));
      return plot.childElementCount;
    },
  });
}
