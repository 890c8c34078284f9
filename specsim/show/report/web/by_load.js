/* The chosen metric over load, which policy is best where, and what speculation gains. */

const OWN_LOADS = "each was tried at loads of its own";
const ONE_CASE = "there is one load and one hardware; the ranking stands in the answer";

/** A table of hardware and policies by load. */
function byLoad(text) {
  const row = (h, p) => [HARDWARE.labels[h], POLICY.labels[p], ...shown("load").map((l) => text(cell(h, p, l)))];
  return {
    head: [HARDWARE.title, POLICY.title, ...shown("load").map(loadText)],
    rows: shown("hardware").flatMap((h) =>
      shown("policy").filter((p) => hasRuns(h, p)).map((p) => row(h, p)),
    ),
  };
}

function spread({ mean, half }) {
  return half == null ? number(mean) : `${number(mean)} ± ${number(half)}`;
}

function spreadCell(each) {
  const found = intervalOf(each, state.metric);
  return found.mean == null ? null : valued(spread(found), found.mean);
}

function overLoadCard() {
  const onchange = (event) => {
    state.isLog = event.target.checked;
    update();
  };
  const log = make("input", { type: "checkbox", id: "log", checked: state.isLog, onchange });
  const title = () => `${METRIC.get(state.metric).title} by ${LOAD.title.toLowerCase()}`;
  return card("over-load", () => capital(title()), {
    tools: [make("label", { class: "choice" }, log, "logarithmic")],
    why: () => {
      if (LOAD.labels.length < 2) return `all runs have the same load; sweep ${LOAD.field}`;
      return shown("load").length < 2 ? "a single load is shown" : null;
    },
    draw: (plot) => {
      const slots = slotsOf(state.metric, state.isLog ? "log" : "linear");
      return paint(plot, "over-load", `${title()}. ${overLoadFinding()}`, { cells }, slots);
    },
    finding: overLoadFinding,
    rows: () => byLoad(spreadCell),
  });
}

function overLoadFinding() {
  const { title, unit } = METRIC.get(state.metric);
  const marks = " Open markers: the queue kept growing; with a dot: undecided whether it did.";
  if (DATA.capacity) return `Each mark is a load that was tried on one ${DATA.capacity.unit}.${marks}`;
  const texts = shown("hardware").map((h) => {
    const found = shown("load").map((l) => meanOf(best(h, l), state.metric)).filter((mean) => mean != null);
    if (!found.length) return null;
    const where = HARDWARE.labels.length > 1 ? ` on ${HARDWARE.labels[h]}` : "";
    return `from ${number(found[0])} to ${withUnit(found[found.length - 1], unit)}${where}`;
  });
  const bands =
    DATA.replications.length > 1 && state.luck == null
      ? " Bands: 95 % intervals over the replications; all policies share their luck, so differences are surer than the bands suggest."
      : "";
  return `From left to right, ${title} of the best policy goes ${texts.filter(Boolean).join(", ")}.${bands}${marks}`;
}

function crossoverCard() {
  return card("crossover", () => `Best ${POLICY.title.toLowerCase()} by ${METRIC.get(state.metric).title}`, {
    why: () => {
      if (DATA.capacity) return OWN_LOADS;
      if (POLICY.labels.length < 2) return "all runs have the same policy; sweep policy";
      return LOAD.labels.length * HARDWARE.labels.length < 2 ? ONE_CASE : null;
    },
    finding: crossoverFinding,
    draw: (plot) => paint(plot, "crossover", crossoverFinding(), { cells }, slotsOf(state.metric, "log")),
    rows: () => ({
      head: [HARDWARE.title, titled(LOAD), `best ${POLICY.title.toLowerCase()}`, titled(METRIC.get(state.metric)), "next", "keeps up"],
      rows: winners().map(([first, second]) => [
        HARDWARE.labels[first.h],
        LOAD.labels[first.l],
        POLICY.labels[first.p],
        meanOf(first, state.metric),
        second && !DATA.policies[second.p].bound ? POLICY.labels[second.p] : null,
        KEEPS_UP[first.state],
      ]),
    }),
  });
}

/** The ranking of each hardware at each load that was run. */
function winners() {
  const all = shown("hardware").flatMap((h) => shown("load").map((l) => ranked(h, l)));
  return all.filter((found) => found.length);
}

function crossoverFinding() {
  const wins = new Map();
  const found = winners();
  for (const [{ p }] of found) wins.set(p, (wins.get(p) ?? 0) + 1);
  const names = [...wins].sort((a, b) => b[1] - a[1]).map(([p, count]) => `${POLICY.labels[p]} in ${count}`);
  const ties = DATA.replications.length > 1 ? "; = marks a lead over the next that may be 0 (paired, 95 %)" : "";
  const bounds = DATA.policies.some(({ bound }) => bound) ? " Bounds, which no server could run, do not count." : "";
  return `Best of ${plural(found.length, "case")}: ${listed(names)}. × is the lead over the next policy${ties}.${bounds}`;
}

function gained() {
  return cells
    .filter(({ p }) => p !== DATA.baseline)
    .map((each) => ({ ...each, over: gainOf(each, state.metric) }))
    .filter(({ over }) => over);
}

function speedUpCard() {
  const title = () => `Speed-up over no speculation, by ${METRIC.get(state.metric).title}`;
  const text = (each) => {
    const found = each && each.p !== DATA.baseline ? gainOf(each, state.metric) : null;
    return found && valued(found.mean.toFixed(2), found.mean);
  };
  return card("speed-up", title, {
    why: () => {
      if (DATA.capacity) return OWN_LOADS;
      if (DATA.baseline == null) return "there is no run without speculation (policy off)";
      if (!state.shown.policy.has(DATA.baseline)) return "no speculation is filtered out";
      if (!gained().length) return "there is no run with speculation";
      return LOAD.labels.length * HARDWARE.labels.length < 2 ? ONE_CASE : null;
    },
    finding: speedUpFinding,
    draw: (plot) => paint(plot, "speed-up", `${title()}. ${speedUpFinding()}`, { cells }, slotsOf(state.metric, "log")),
    rows: () => byLoad(text),
  });
}

function whereText({ h, p, l }) {
  return `${POLICY.labels[p]} on ${HARDWARE.labels[h]} at ${loadText(l)}`;
}

function speedUpFinding() {
  const found = gained().sort((a, b) => a.over.mean - b.over.mean || b.h - a.h || b.p - a.p || b.l - a.l);
  const marks = { overloaded: "○", undecided: "?" };
  const notes = Object.entries(marks)
    .filter(([name]) => found.some((each) => each.state === name))
    .map(([name, sign]) => ` ${sign}: ${DATA.states[name]}.`);
  const text = (each) => `×${each.over.mean.toFixed(2)} (${whereText(each)})`;
  return `From ${text(found[0])} to ${text(found[found.length - 1])}.${notes.join("")}`;
}
