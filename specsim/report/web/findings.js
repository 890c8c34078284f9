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
  return runs.map(({ p, from, to }, index) => {
    const name = POLICY.labels[p];
    if (runs.length === 1) return `${name} at every load`;
    if (index === 0) return `${name} up to ${LOAD.labels[to]}`;
    if (index === runs.length - 1) return `${name} from ${loadText(from)}`;
    return from === to ? `${name} at ${LOAD.labels[from]}` : `${name} from ${LOAD.labels[from]} to ${LOAD.labels[to]}`;
  }).join(", ");
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
  const fine = shown("load").flatMap((l) => shown("policy").map((p) => ({ l, p, share: interval(valuesOf(cell(h, p, l), "slo_attainment")).mean })))
    .filter((each) => each.share != null && each.share >= 0.99);
  if (!fine.length) return "at none of these loads do 99 % of the requests keep the SLO";
  const top = fine.reduce((high, each) => (each.l > high.l || (each.l === high.l && each.share > high.share) ? each : high));
  return `99 % of the requests keep the SLO up to ${loadText(top.l)} (${POLICY.labels[top.p]})`;
}

function findings() {
  if (POLICY.labels.length < 2 && LOAD.labels.length < 2) return [];
  return shown("hardware").filter((h) => shown("load").some((l) => best(h, l))).map((h) => {
    const texts = [];
    if (POLICY.labels.length > 1) texts.push(`best by ${METRIC.get(state.metric).title.toLowerCase()}: ${winnersByLoad(h)}`);
    if (LOAD.labels.length > 1) texts.push(breakingPoint(h), withinLimits(h));
    return { title: HARDWARE.labels[h], text: `${texts.filter(Boolean).join("; ")}.` };
  });
}

function findingsCard() {
  return card("findings", () => "In short", {
    why: () => (findings().length ? null : "Nothing to compare: all runs have one policy and one load."),
    draw: (plot) => {
      plot.replaceChildren(make("dl", {}, ...findings().flatMap(({ title, text }) => [make("dt", {}, title), make("dd", {}, text)])));
      return findings().length;
    },
  });
}
