/* A closer look at one load on one kind of hardware; and the latency of its requests. */

/** Where the reader looks closer: two lists above the cards of this section. */
function focusControls() {
  const controls = make("div", { class: "focus" });
  const list = (role, axis, label) => {
    if (axis.labels.length < 2) return null;
    const options = shown(role);
    const chosen = options.indexOf(state.focus[role]);
    const onChange = (value) => {
      state.focus[role] = options[value];
      update();
    };
    return choice(axis.title, options.map(label), chosen, onChange, { id: `focus-${role}` });
  };
  const build = () => {
    const active = document.activeElement?.id;
    const ofHardware = list("hardware", HARDWARE, (h) => HARDWARE.labels[h]);
    const lists = [ofHardware, list("load", LOAD, loadText)];
    controls.replaceChildren(...lists.filter(Boolean));
    if (active?.startsWith("focus-")) document.getElementById(active)?.focus();
  };
  return { element: controls, build };
}

function focusName() {
  const parts = [];
  if (HARDWARE.labels.length > 1) parts.push(HARDWARE.labels[state.focus.hardware]);
  if (LOAD.labels.length > 1 || LOAD.unit) parts.push(loadText(state.focus.load));
  return parts.length ? `, ${parts.join(" at ")}` : "";
}

/** Why nothing is drawn: what no cell of the closer look has. */
function missingIn(field, what) {
  const isThere = ({ [field]: found }) => found && Object.keys(found).length;
  return closer.some(isThere) ? null : `no ${what} was kept of the runs here`;
}

/** Of which replications quantiles were kept: of a comparison, the first alone. */
function keptNote({ kept }) {
  if (kept.length > 1) return "Quantiles are averaged over the replications.";
  return DATA.replications.length > 1 ? `Of replication ${kept[0]} alone.` : "";
}

function tailOf(each, name, percentile) {
  return each.tails[name]?.[DATA.tails.indexOf(percentile)] ?? null;
}

function cdfFinding() {
  const text = (name) => {
    const found = closer
      .map((each) => [tailOf(each, name, 99), POLICY.labels[each.p]])
      .filter(([value]) => value != null)
      .sort((a, b) => a[0] - b[0]);
    if (!found.length) return null;
    const [low, high] = [found[0], found[found.length - 1]].map(([value, label]) => `${number(value)} ms (${label})`);
    return `p99 ${DATA.latencies[name]} ${found.length === 1 ? low : `from ${low} to ${high}`}`;
  };
  const texts = ["ttft_ms", "e2el_ms"].map(text).filter(Boolean);
  return texts.length ? `${texts.join("; ")}. ${keptNote(closer.find(({ kept }) => kept.length))}` : "";
}

function cdfCard() {
  const names = Object.keys(DATA.latencies);
  const heads = names.flatMap((name) => DATA.tails.map((q) => `${DATA.latencies[name]} p${q}, ms`));
  const values = (each) => names.flatMap((name) => DATA.tails.map((q) => tailOf(each, name, q)));
  return card("cdf", () => `Latency of the requests${focusName()}`, {
    why: () => missingIn("quantiles", "distribution"),
    finding: cdfFinding,
    draw: (plot) => paint(plot, "cdf", `Cumulative distributions${focusName()}. ${cdfFinding()}`, { cells: closer }),
    rows: () => ({
      head: [POLICY.title, ...heads],
      rows: closer.filter(({ kept }) => kept.length).map((each) => [POLICY.labels[each.p], ...values(each)]),
    }),
  });
}

/* What happens over time there, and where the time went. */

function timelines() {
  return closer.filter(({ timeline }) => timeline);
}

function timelineFinding() {
  const peak = ({ timeline }, name) => Math.max(0, ...(timeline[name] ?? []));
  const highest = (name) =>
    timelines()
      .map((each) => ({ p: each.p, value: peak(each, name) }))
      .sort((a, b) => b.value - a.value)[0];
  const [kv, queue] = [highest("kv_usage"), highest("waiting")];
  const waiting = `at most ${plural(Math.round(queue.value), "request")} waiting`;
  const queueText =
    queue.value >= 1 ? `${waiting} (${POLICY.labels[queue.p]})` : "hardly a request waits";
  const first = DATA.replications.length > 1 ? ` Replication ${timelines()[0].timed}.` : "";
  const used = `KV cache at most ${number(kv.value)} % in use (${POLICY.labels[kv.p]})`;
  const width = Math.max(...timelines().map(({ timeline: { time_s: at } }) => (at[1] ?? 3 * at[0]) - at[0]));
  return `${used}; ${queueText}, in the mean of ${number(width)} s each.${first}`;
}

function timelineCard() {
  const known = () => Object.keys(DATA.series).filter((name) => timelines().some(({ timeline }) => name in timeline));
  const rowsOf = ({ p, timeline }) => {
    const stride = Math.max(1, Math.ceil(timeline.time_s.length / 20));
    return range(timeline.time_s.length)
      .filter((i) => i % stride === 0)
      .map((i) => [POLICY.labels[p], timeline.time_s[i], ...known().map((name) => timeline[name]?.[i] ?? null)]);
  };
  return card("timeline", () => `Over time${focusName()}`, {
    why: () => missingIn("timeline", "timeline"),
    finding: timelineFinding,
    draw: (plot) => paint(plot, "timeline", `Requests, KV cache and k over time${focusName()}. ${timelineFinding()}`, { cells: timelines() }),
    rows: () => ({
      head: [POLICY.title, "time, s", ...known().map((name) => DATA.series[name])],
      rows: timelines().flatMap(rowsOf),
    }),
  });
}

function divided() {
  return closer.filter(({ parts }) => parts.length);
}

function breakdownFinding() {
  const span = (i) => {
    const shares = divided().map(({ parts }) => parts[i]);
    const [low, high] = [Math.min(...shares), Math.max(...shares)];
    return percent(low) === percent(high) ? percent(low) : `${percent(low).split("\u00a0")[0]} to ${percent(high)}`;
  };
  return `Of the time of all servers, drafting takes ${span(1)}, and they idle for ${span(3)}.`;
}

function breakdownCard() {
  return card("breakdown", () => `Where the time went${focusName()}`, {
    why: () => missingIn("parts", "time breakdown"),
    finding: breakdownFinding,
    draw: (plot) => paint(plot, "breakdown", `Shares of the time by policy${focusName()}. ${breakdownFinding()}`, { cells: divided() }),
    rows: () => ({
      head: [POLICY.title, ...Object.values(DATA.parts).map((title) => `${title}, %`)],
      rows: divided().map(({ p, parts }) => [POLICY.labels[p], ...parts.map((share) => 100 * share)]),
    }),
  });
}
