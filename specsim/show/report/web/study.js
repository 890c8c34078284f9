/* What was run, what is selected, and the statistics of it. */

const DATA = JSON.parse(document.getElementById("data").textContent);
const [HARDWARE, POLICY, LOAD] = DATA.axes;
const OTHERS = DATA.axes.slice(3);
const IS_LOAD = LOAD.field.startsWith("workload.arrivals"); // or any other number that was swept
const METRIC = new Map(DATA.metrics.map((metric, index) => [metric.name, { ...metric, index }]));

const state = {
  shown: { hardware: shownAll(HARDWARE), policy: shownAll(POLICY), load: shownAll(LOAD) },
  replications: new Set(DATA.replications),
  slices: OTHERS.map(() => 0),
  // Of a capacity, what is missed first; the limit is drawn beside it.
  metric:
    DATA.capacity?.results.map(({ binds }) => `p99_${binds}`).find((name) => METRIC.has(name)) ??
    DATA.metrics[0].name,
  isLog: true,
  focus: { hardware: 0, load: Math.floor(LOAD.labels.length / 2) },
};

let cells = new Map();

function shownAll(axis) {
  return new Set(range(axis.labels.length));
}

/** Indices of the values of an axis that the filters let through, in order. */
function shown(role) {
  return [...state.shown[role]].sort((a, b) => a - b);
}

/** Sort the selected runs into cells: those that differ in nothing but the replication. */
function select() {
  cells = new Map();
  for (const point of DATA.points) {
    if (!state.replications.has(point.replication)) continue;
    if (!OTHERS.every((_, index) => point.places[index + 3] === state.slices[index])) continue;
    const [h, p, l] = point.places;
    if (!state.shown.hardware.has(h) || !state.shown.policy.has(p) || !state.shown.load.has(l))
      continue;
    const key = `${h} ${p} ${l}`;
    if (!cells.has(key)) cells.set(key, []);
    cells.get(key).push(point);
  }
  for (const role of ["hardware", "load"]) {
    const distance = (place) => Math.abs(place - state.focus[role]);
    state.focus[role] = shown(role).reduce((nearest, place) =>
      distance(place) < distance(nearest) ? place : nearest,
    );
  }
}

function cell(h, p, l) {
  return cells.get(`${h} ${p} ${l}`) ?? [];
}

/** All that the filters let through, by hardware, load and policy; no cell is empty. */
function shownCells() {
  const row = (h, l) => shown("policy").map((p) => ({ h, l, p, points: cell(h, p, l) }));
  const all = shown("hardware").flatMap((h) => shown("load").flatMap((l) => row(h, l)));
  return all.filter(({ points }) => points.length);
}

function hasRuns(h, p) {
  return shown("load").some((l) => cell(h, p, l).length);
}

function valueOf(point, name) {
  const metric = METRIC.get(name);
  return metric ? point.metrics[metric.index] : null;
}

function valuesOf(points, name) {
  return points.map((point) => valueOf(point, name)).filter((value) => value != null);
}

function meanOf(points, name) {
  return interval(valuesOf(points, name)).mean;
}

/** How many times better than no speculation some runs are; null where that was not run. */
function gainOverOff(points, h, l, name) {
  return DATA.baseline == null ? null : gain(points, cell(h, DATA.baseline, l), name);
}

function titled({ title, unit }) {
  return unit ? `${title}, ${unit}` : title;
}

/** Mean, and half the 95 % interval of Student's t if there are several values. */
function interval(values) {
  const count = values.length;
  if (!count) return { mean: null, half: null, count };
  const mean = values.reduce((sum, value) => sum + value, 0) / count;
  if (count < 2) return { mean, half: null, count };
  const variance = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (count - 1);
  return { mean, half: studentT(count - 1) * Math.sqrt(variance / count), count };
}

function studentT(freedom) {
  return DATA.student_t[Math.min(freedom, DATA.student_t.length) - 1];
}

/** How many times better one cell is than another, paired by replication: a geometric mean. */
function gain(candidate, reference, name) {
  const isLow = METRIC.get(name).better === "low";
  const ratios = [];
  for (const point of candidate) {
    const other = reference.find((each) => each.replication === point.replication);
    const [mine, theirs] = [valueOf(point, name), other && valueOf(other, name)];
    if (mine > 0 && theirs > 0) ratios.push(Math.log(isLow ? theirs / mine : mine / theirs));
  }
  const { mean, half, count } = interval(ratios);
  if (mean == null) return null;
  const [low, high] = half == null ? [null, null] : [Math.exp(mean - half), Math.exp(mean + half)];
  return { mean: Math.exp(mean), low, high, count };
}

/** What runs of one setting say together: what some say and none denies. */
function stabilityOf(points) {
  const answer = (point) => ["overloaded", "undecided"].find((name) => valueOf(point, name)) ?? "stable";
  const said = new Set(points.map(answer));
  if (said.size > 1) said.delete("undecided");
  return said.size === 1 ? [...said][0] : "undecided";
}

/** Open where the queue kept growing, with a dot in it where that is undecided. */
function markerOf(shape, stability) {
  return shape + { overloaded: "-open", undecided: "-open-dot", stable: "" }[stability];
}

const KEEPS_UP = { overloaded: "no", undecided: "undecided", stable: "yes" };

const STABILITY_TEXTS = {
  overloaded: "the queue kept growing",
  undecided: "undecided whether it keeps up",
  stable: "",
};

/** Only the replications that all of them have, if there are any: others met other requests. */
function onSameLuck(all) {
  const has = (each, replication) => each.points.some((point) => point.replication === replication);
  const shared = DATA.replications.filter((number) => all.every((each) => has(each, number)));
  if (!shared.length) return all;
  const kept = (points) => points.filter((point) => shared.includes(point.replication));
  return all.map((each) => ({ ...each, points: kept(each.points) }));
}

/** The best policy of some hardware at some load; those that keep up come first. */
function best(h, l, name = state.metric) {
  const sign = METRIC.get(name).better === "low" ? 1 : -1;
  const ran = shown("policy")
    .map((p) => ({ p, points: cell(h, p, l) }))
    .filter((each) => each.points.length);
  const ranked = onSameLuck(ran)
    .map((each) => ({
      ...each,
      mean: meanOf(each.points, name),
      stability: stabilityOf(each.points),
    }))
    .filter((each) => each.mean != null)
    .sort((a, b) => (a.stability === "overloaded") - (b.stability === "overloaded") || sign * (a.mean - b.mean));
  if (!ranked.length) return null;
  const [first, second] = ranked;
  const lead = second ? gain(first.points, second.points, name) : null;
  const isTied = lead?.low != null && lead.low <= 1 && lead.high >= 1;
  return { ...first, second, lead, isTied, count: ranked.length, ranked };
}

function loadText(l) {
  const label = LOAD.labels[l];
  if (LOAD.unit) return `${label} ${LOAD.unit}`;
  return IS_LOAD ? label : `${LOAD.title} ${label}`;
}

/** The metric that is shown, if it is a latency, or else the mean latency. */
function latencyMetric() {
  return METRIC.get(state.metric).unit === "ms" ? state.metric : DATA.metrics[0].name;
}
