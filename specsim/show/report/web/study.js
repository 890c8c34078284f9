/* What was run, and what is selected of it. Its statistics are those of `specsim.show.cell_statistics`. */

const DATA = JSON.parse(document.getElementById("data").textContent);
const [HARDWARE, POLICY, LOAD] = DATA.axes;
const OTHERS = DATA.axes.slice(3);
const IS_LOAD = LOAD.field.startsWith("workload.arrivals"); // or any other number that was swept
const METRIC = new Map(DATA.metrics.map((metric, index) => [metric.name, { ...metric, index }]));

const state = {
  shown: { hardware: shownAll(HARDWARE), policy: shownAll(POLICY), load: shownAll(LOAD) },
  luck: null, // one replication, or all
  slices: firstSlices(),
  // Of a capacity, what is missed first; the limit is drawn beside it.
  metric:
    DATA.capacity?.results.map(({ binds }) => atLimit(binds)).find((name) => METRIC.has(name)) ??
    DATA.metrics[0].name,
  isLog: true,
  focus: { hardware: 0, load: Math.floor(LOAD.labels.length / 2) },
};

let cells = []; // that the filters let through, by hardware, load and policy
let closer = []; // at the load and hardware of the closer look, of all replications

/** Places on the other axes of the first runs that came to something. */
function firstSlices() {
  let slice = Math.min(...DATA.cells.map((each) => each.slice));
  return OTHERS.reduceRight((places, { labels: { length } }) => {
    const place = slice % length || 0; // of no run at all, 0
    slice = Math.floor(slice / length);
    return [place, ...places];
  }, []);
}

function shownAll(axis) {
  return new Set(range(axis.labels.length));
}

/** Indices of the values of an axis that the filters let through, in order. */
function shown(role) {
  return [...state.shown[role]].sort((a, b) => a - b);
}

function select() {
  const slice = OTHERS.reduce((n, axis, i) => n * axis.labels.length + state.slices[i], 0);
  const { hardware, policy, load } = state.shown;
  const kept = DATA.cells
    .filter(({ h, p, l }) => hardware.has(h) && policy.has(p) && load.has(l))
    .filter((each) => each.slice === slice)
    .sort((a, b) => a.h - b.h || a.l - b.l || a.p - b.p);
  cells = kept.filter(({ luck }) => luck === state.luck);
  for (const role of ["hardware", "load"]) {
    const distance = (place) => Math.abs(place - state.focus[role]);
    state.focus[role] = shown(role).reduce((nearest, place) =>
      distance(place) < distance(nearest) ? place : nearest,
    );
  }
  const { focus } = state;
  closer = kept.filter(({ h, l, luck }) => luck === null && h === focus.hardware && l === focus.load);
}

function cell(h, p, l) {
  return cells.find((each) => each.h === h && each.p === p && each.l === l);
}

function hasRuns(h, p) {
  return cells.some((each) => each.h === h && each.p === p);
}

/** The mean of a metric, and half its 95 % interval if there are several replications. */
function meanOf(each, name) {
  return METRIC.has(name) ? (each?.mean[METRIC.get(name).index] ?? null) : null;
}

function intervalOf(each, name) {
  return { mean: meanOf(each, name), half: each?.half[METRIC.get(name)?.index] ?? null };
}

/** How many times better than no speculation a cell is; null where that was not run. */
function gainOf(each, name) {
  const [mean, low, high] = each?.gain[METRIC.get(name)?.index] ?? [];
  return mean == null ? null : { mean, low, high };
}

function titled({ title, unit }) {
  return unit ? `${title}, ${unit}` : title;
}

const KEEPS_UP = { overloaded: "no", undecided: "undecided", stable: "yes" };

/** The policies of some hardware at some load that are shown, best first; bounds come last. */
function ranked(h, l, name = state.metric) {
  const place = (each) => each.rank[METRIC.get(name).index];
  return cells
    .filter((each) => each.h === h && each.l === l && place(each) != null)
    .sort((a, b) => place(a) - place(b));
}

/** The cells, or others, of policies that a server could run; all, if there is none of them. */
function real(all = cells, policyOf = ({ p }) => p) {
  const found = all.filter((each) => !DATA.policies[policyOf(each)].bound);
  return found.length ? found : [...all];
}

function best(h, l) {
  return ranked(h, l)[0];
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

/** The percentile of a latency that a limit is held against, such as `p90_ttft_ms`. */
function atLimit(latency) {
  const name = `${DATA.capacity.percentiles[latency]}_${latency}`;
  return METRIC.has(name) ? name : `p99_${latency}`; // of older results
}

/** The limit that a metric is held against; of a capacity, only at the share that was asked. */
function limitOf(metric) {
  const latency = metric.replace(/^[a-z0-9.]+?_/, "");
  if (DATA.capacity && metric !== atLimit(latency)) return null;
  return DATA.slo[latency] ?? null;
}
