/* The answer, above all charts, for what the filters let through: which GPUs at what cost, with and
   without speculation, how sure, what binds, and what the figures rest on. */

/** "h100: fitted to measured steps"; those of the same kind together. */
function basisText() {
  const names = shown("hardware").map((h) => HARDWARE.labels[h]);
  const on = (kind) => names.filter((name) => DATA.step_times[name] === kind);
  const kinds = Object.keys(BASIS).filter((kind) => on(kind).length);
  const texts = kinds.map((kind) => `of ${listed(on(kind))} are ${BASIS[kind]}`);
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
  const [first] = real(results, ({ places }) => places[1]).sort((a, b) => costOf(a) - costOf(b));
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
  const [cost, per] = target
    ? [first.cost_per_hour, "per hour"]
    : [first.cost_per_million_tokens, "per million output tokens"];
  const price = cost == null ? "" : `, ${money(cost)} ${per}`;
  const what = target
    ? `${gpuText(first)} ${unit === "unit" ? "GPUs in units of" : "×"} ${HARDWARE.labels[h]}`
    : `${HARDWARE.labels[h]}: ${number(first.requests_per_second)} requests/s per ${unit}`;
  const isHere = tied.every(({ places }) => places[0] === h);
  const names = tied.map((each) => (isHere ? POLICY.labels[each.places[1]] : capacityName(each)));
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
  const { target_rate: target, unit } = DATA.capacity;
  const found = shownResults().filter((result) => result.requests_per_second != null);
  const hour = ({ cost_per_hour: cost, cost_per_hour_interval: ends }) =>
    cost == null ? null : valued(`${number(cost)}${between(ends, number)}`, cost);
  const isOff = ({ places }) => places[1] === DATA.baseline;
  const columns = [
    ["speculation", (each) => (isOff(each) ? "off" : `on: ${POLICY.labels[each.places[1]]}`)],
    [HARDWARE.title, ({ places }) => HARDWARE.labels[places[0]]],
    ...(target ? [["GPUs", gpuText], [`${DATA.currency} per hour`, hour]] : []),
    [`requests/s per ${unit}`, (each) => each.requests_per_second],
    ["95 % interval", intervalText],
    ["what binds", bindsText],
    ["step times", ({ step_times: kind }) => (kind in BASIS ? kind : "")],
  ];
  const rows = onAndOff(found).map((result) => columns.map(([, show]) => show(result)));
  const heads = columns.map(([head]) => head);
  const asked = target
    ? `For ${number(target)} requests/s with ${limitsText()}.`
    : `Within the limits: ${limitsText()}.`;
  return [
    make("p", { class: "headline" }, capacityHeadline(found)),
    make("p", { class: "asked" }, [asked, basisText(), priceDate()].filter(Boolean).join(" ")),
    rows.length ? table("Speculation on and off", heads, rows) : null,
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
  const broken = places.filter((l) => best(h, l).state === "overloaded");
  if (broken.length) return `no policy keeps up from ${loadText(broken[0])} on`;
  const isStable = (l) => real().some((each) => each.h === h && each.l === l && each.state === "stable");
  const unsure = places.filter((l) => !isStable(l));
  if (unsure.length === places.length) return "undecided whether any policy keeps up";
  if (unsure.length) {
    return `some policy keeps up at every load but ${listed(unsure.map(loadText))}, where that is undecided`;
  }
  return `some policy keeps up at every load, up to ${loadText(places[places.length - 1])}`;
}

/** GPUs of all servers and what they cost, where that is known. */
function gpusText(h) {
  const label = HARDWARE.labels[h];
  const known = cells.filter((each) => each.h === h && each.gpus);
  if (!known.length) return label;
  const own = known.filter((each) => each.fleet === "pools" || each.fleet === "drafter");
  const all = own.length ? own : known;
  const between = (values) => [...new Set([Math.min(...values), Math.max(...values)].map(number))].join(" to ");
  const name = own.length
    ? own[0].fleet === "pools" ? "GPUs of both pools" : "GPUs with the drafter's"
    : `× ${label.split("/")[0]}${all.some((each) => each.fleet === "scaled") ? " in the mean" : ""}`;
  const hours = all.map((each) => each.hour);
  const price = hours.includes(null) ? "" : `, ${between(hours)} ${DATA.currency} per hour`;
  return `${between(all.map((each) => each.gpus))} ${name}${price}`;
}

/** Up to which load 99 % of the requests keep their limits, and with which policy. */
function withinLimits(h) {
  if (!METRIC.has("slo_attainment")) return null;
  const here = real().filter((each) => each.h === h);
  const keeping = here.filter((each) => meanOf(each, "slo_attainment") >= 0.99);
  if (!keeping.length) return "at none of these loads do 99 % of the requests keep the SLO";
  const fine = keeping.filter(({ p, l }) =>
    here.every((other) => other.p !== p || other.l > l || keeping.includes(other)));
  if (!fine.length) {
    const loads = [...new Set(keeping.map(({ l }) => l))].sort((a, b) => a - b);
    return `99 % of the requests keep the SLO at ${listed(loads.map(loadText))}, but not at lower loads`;
  }
  const top = Math.max(...fine.map((each) => each.l));
  const names = fine.filter((each) => each.l === top).map((each) => POLICY.labels[each.p]);
  const all = new Set(real().map(({ p }) => p));
  const who = names.length === all.size ? "every policy" : listed(names);
  const policies = POLICY.labels.length > 1 ? `, with ${who}` : "";
  return `99 % of the requests keep the SLO up to ${loadText(top)}${policies}`;
}

/** The limit that is nearest to being missed, or missed by most. */
function nearestLimit(each) {
  const [nearest] = Object.entries(DATA.slo)
    .map(([name, limit]) => [shortName(name), meanOf(each, `p99_${name}`) / limit])
    .sort((a, b) => b[1] - a[1]);
  return nearest ? `p99 ${nearest[0]} at ${percent(nearest[1])} of its limit` : "–";
}

/** At a single load: all policies, best first. */
function ranking(h, l) {
  const ofSlo = (each) => {
    const share = meanOf(each, "slo_attainment");
    return [share == null ? null : valued(percent(share), share), nearestLimit(each)];
  };
  const gainText = (each) => {
    const over = gainOf(each, state.metric);
    const sure = over?.low == null ? "" : ` (${over.low.toFixed(2)} to ${over.high.toFixed(2)})`;
    return over && valued(`×${over.mean.toFixed(2)}${sure}`, over.mean);
  };
  const hasSlo = METRIC.has("slo_attainment");
  const rows = ranked(h, l).map((each) => [
    POLICY.labels[each.p],
    meanOf(each, state.metric),
    gainText(each),
    ...(hasSlo ? ofSlo(each) : []),
    KEEPS_UP[each.state],
  ]);
  const head = [POLICY.title, titled(METRIC.get(state.metric)), "speed-up over off (95 %)"];
  if (hasSlo) head.push("within the SLO", "what binds");
  return table("Policies, best first", [...head, "keeps up"], rows);
}

/** At a single load: the best policy, on which GPUs, at what price. */
function caseHeadline(h, l) {
  const found = best(h, l);
  const { p } = found;
  const over = p === DATA.baseline ? null : gainOf(found, state.metric);
  const share = meanOf(found, "slo_attainment");
  const lead = POLICY.labels.length > 1 ? ` is best by ${METRIC.get(state.metric).title}` : "";
  const texts = [
    `${POLICY.labels[p]}${lead}`,
    over && `×${over.mean.toFixed(2)} over ${POLICY.labels[DATA.baseline]}`,
    share != null && `${percent(share)} of the requests within the SLO`,
    DATA.states[found.state],
  ];
  return `${gpusText(h)}: ${texts.filter(Boolean).join(", ")}.`;
}

/** Per hardware, over several loads, in sentences. */
function findings(hardware) {
  return hardware.flatMap((h) => {
    const texts = [gpusText(h)];
    if (POLICY.labels.length > 1)
      texts.push(`best by ${METRIC.get(state.metric).title}: ${winnersByLoad(h)}`);
    if (IS_LOAD) texts.push(breakingPoint(h), withinLimits(h));
    const text = `${capital(texts.filter(Boolean).join("; "))}.`;
    return [make("dt", {}, HARDWARE.labels[h]), make("dd", {}, text)];
  });
}

/** Of one policy, what there is to compare with other pages. */
function mainNumbers(each) {
  const latencies = ["mean_e2el_ms", "p99_ttft_ms", "mean_tpot_ms"];
  const names = [...latencies, "output_throughput", "tokens_per_step"];
  const known = names.filter((name) => METRIC.has(name)).map((name) => METRIC.get(name));
  const valueText = ({ name, unit }) => withUnit(meanOf(each, name), unit);
  const texts = known.map((metric) => `${metric.title} ${valueText(metric)}`);
  const end = DATA.states[each.state] || "it keeps up with its arrivals";
  return make("p", {}, `${capital(texts.join(", "))}; ${end}.`);
}

/** Of what else was varied, the values that the page shows: on a phone they are folded away. */
function sliceText() {
  const chosen = OTHERS.map(({ title, labels }, index) => labels.length > 1 && `${title} ${labels[state.slices[index]]}`);
  const known = chosen.filter(Boolean);
  return known.length ? `With ${known.join(", ")}; the filters choose others.` : "";
}

function studyAnswer() {
  const slo = Object.keys(DATA.slo).length ? `SLO: ${limitsText()}.` : "";
  const notes = [sliceText(), slo, basisText(), priceDate()].filter(Boolean);
  const asked = make("p", { class: "asked" }, notes.join(" "));
  const hardware = shown("hardware").filter((h) => shown("load").some((l) => best(h, l)));
  const loads = shown("load").filter((l) => hardware.some((h) => best(h, l)));
  if (hardware.length > 1 || loads.length > 1)
    return [make("dl", {}, ...findings(hardware)), asked];
  const [h, l] = [hardware[0], loads[0]];
  const numbers = POLICY.labels.length > 1 ? null : mainNumbers(best(h, l));
  return [make("p", { class: "headline" }, caseHeadline(h, l)), numbers, asked, ranking(h, l)];
}

const planCell = (text) => (/^[\d,.]+$/.test(text) ? valued(text, Number(text.replaceAll(",", ""))) : text === "-" ? null : text);

/** Of `specsim plan`: as the console says it. */
function planAnswer() {
  const { headline, asked, heads, rows, day_heads, day_rows, notes } = DATA.plan;
  const told = (title, head, body) => (body.length ? table(title, head, body.map((row) => row.map(planCell))) : null);
  return [
    make("p", { class: "headline" }, headline),
    make("p", { class: "asked" }, [asked, basisText(), priceDate()].filter(Boolean).join(" ")),
    told("All GPUs that were asked for", heads, rows),
    told("In the course of the day", day_heads, day_rows),
    make("ul", {}, ...notes.map((note) => make("li", {}, note))),
  ];
}

/** Of a plan: what would be rented if one thing were otherwise. */
function whatIfCard() {
  const rows = DATA.plan?.what_ifs ?? [];
  if (rows.length < 2) return "";
  const others = rows.filter(({ change }) => change === "other").length;
  const finding = others
    ? `${others} of ${rows.length - 1} change the hardware or the speculation.`
    : "None of these changes the hardware or the speculation.";
  return card("what-ifs", () => "What the answer hangs on", {
    finding: () => finding,
    draw: (plot) => paint(plot, "what-ifs", `What would be rented otherwise. ${finding}`, { cells: rows }),
    rows: () => ({
      head: ["if", "rented", `${DATA.currency} per hour`],
      rows: rows.map(({ what, rented, cost }) => [what, rented, cost]),
    }),
  });
}

function answerCard() {
  const answer = DATA.plan ? planAnswer : DATA.capacity ? capacityAnswer : studyAnswer;
  return card("answer", () => "The answer", {
    level: 2,
    draw: (plot) => {
      plot.replaceChildren(...answer().filter(Boolean));
      return plot.childElementCount;
    },
  });
}
