/* Two maps, as tables of coloured cells: which policy is best, and what speculation gains. */

const OWN_LOADS = "each policy was tried at loads of its own";
const ONE_CASE = "there is one load and one hardware; the ranking stands in the answer";

function mapTable(caption, rowTitle, rows) {
  const loads = shown("load");
  return tableBox(
    caption,
    make(
      "table",
      { class: loads.length > 4 ? "map wide" : "map" },
      make("caption", {}, caption),
      make(
        "thead",
        {},
        make(
          "tr",
          {},
          make("th", { scope: "col" }, rowTitle),
          ...loads.map((l) => make("th", { scope: "col" }, LOAD.labels[l])),
        ),
      ),
      make("tbody", {}, ...rows),
    ),
  );
}

function axisCaption() {
  return LOAD.unit ? `${LOAD.title}, ${LOAD.unit}` : LOAD.title;
}

function crossoverCard() {
  return card("crossover", () => `Best policy by ${METRIC.get(state.metric).title}`, {
    why: () => {
      if (DATA.capacity) return OWN_LOADS;
      if (POLICY.labels.length < 2) return "all runs have the same policy; sweep policy";
      return LOAD.labels.length * HARDWARE.labels.length < 2 ? ONE_CASE : null;
    },
    finding: crossoverFinding,
    draw: (plot) => {
      const { unit } = METRIC.get(state.metric);
      const rows = shown("hardware").map((h) =>
        make(
          "tr",
          {},
          make("th", { scope: "row" }, HARDWARE.labels[h]),
          ...shown("load").map((l) => crossoverCell(best(h, l), unit)),
        ),
      );
      plot.replaceChildren(mapTable(`Columns: ${axisCaption()}`, HARDWARE.title, rows));
      return plot.querySelectorAll("td[data-policy]").length;
    },
  });
}

function crossoverCell(found, unit) {
  if (!found) return make("td", { class: "none" }, "no run");
  const { p, mean, second, lead, isTied, unstable, count } = found;
  const missing = state.shown.policy.size - count;
  const mark = unstable
    ? "all unstable"
    : isTied
      ? `= ${POLICY.labels[second.p]}`
      : lead
        ? `×${lead.mean.toFixed(2)}`
        : "";
  const title = [
    `${POLICY.labels[p]}: ${withUnit(mean, unit)}`,
    second && `next: ${POLICY.labels[second.p]}, ${withUnit(second.mean, unit)}`,
    isTied && "the paired 95 % interval of the difference includes 0",
  ]
    .filter(Boolean)
    .join("; ");
  return make(
    "td",
    {
      "data-policy": p,
      title,
      style: { "--ink-light": DATA.policies[p].light, "--ink-dark": DATA.policies[p].dark },
    },
    make("span", { class: "winner" }, policyName(p)),
    make("span", { class: "detail" }, withUnit(mean, unit)),
    make("span", { class: "detail" }, mark),
    missing ? make("span", { class: "detail" }, `of ${count} of ${state.shown.policy.size}`) : null,
  );
}

function crossoverFinding() {
  const wins = new Map();
  let total = 0;
  for (const h of shown("hardware")) {
    for (const l of shown("load")) {
      const found = best(h, l);
      if (!found) continue;
      total += 1;
      wins.set(found.p, (wins.get(found.p) ?? 0) + 1);
    }
  }
  const order = [...wins]
    .sort((a, b) => b[1] - a[1])
    .map(([p, count]) => `${POLICY.labels[p]} in ${count}`);
  const tie =
    state.replications.size > 1
      ? "; = marks a lead over the next that may be 0 (paired, 95 %)"
      : "";
  return `Best of ${plural(total, "case")}: ${listed(order)}. × is the lead over the next policy${tie}.`;
}

/** Policies by the k they always ask for, then those that decide themselves. */
function heatRows() {
  return shown("policy")
    .filter((p) => p !== DATA.baseline)
    .sort((a, b) => (DATA.policies[a].k ?? 1e9) - (DATA.policies[b].k ?? 1e9) || a - b);
}

function heatCard() {
  return card(
    "speed-up",
    () => `Speed-up over no speculation, by ${METRIC.get(state.metric).title}`,
    {
      why: () => {
        if (DATA.capacity) return OWN_LOADS;
        if (DATA.baseline == null) return "there is no run without speculation (policy off)";
        if (!state.shown.policy.has(DATA.baseline)) return "no speculation is filtered out";
        if (!heatRows().length) return "there is no run with speculation";
        return LOAD.labels.length * HARDWARE.labels.length < 2 ? ONE_CASE : null;
      },
      finding: heatFinding,
      draw: (plot) => {
        plot.replaceChildren(
          make(
            "div",
            { class: "maps" },
            ...shown("hardware").map((h) =>
              mapTable(
                `${HARDWARE.labels[h]}; columns: ${axisCaption()}`,
                "k",
                heatRows().map((p) =>
                  make(
                    "tr",
                    {},
                    make(
                      "th",
                      { scope: "row" },
                      swatch(p),
                      DATA.policies[p].k == null ? POLICY.labels[p] : `k = ${DATA.policies[p].k}`,
                    ),
                    ...shown("load").map((l) => heatCell(h, p, l)),
                  ),
                ),
              ),
            ),
          ),
        );
        return plot.querySelectorAll("td[data-gain]").length;
      },
    },
  );
}

function heatCell(h, p, l) {
  const found = gain(cell(h, p, l), cell(h, DATA.baseline, l), state.metric);
  if (!found) return make("td", { class: "none" }, "–");
  const strength = Math.min(1, Math.abs(Math.log(found.mean)) / Math.log(3));
  const bounds = found.low == null ? "" : `; 95 %: ${number(found.low)} to ${number(found.high)}`;
  const isOpen = isUnstable(cell(h, p, l));
  return make(
    "td",
    {
      "data-gain": found.mean,
      class: found.mean >= 1 ? "gain" : "loss",
      style: { "--strength": `${Math.round(100 * strength)}%` },
      title: `${POLICY.labels[p]} on ${HARDWARE.labels[h]} at ${loadText(l)}: ×${found.mean.toFixed(2)}${bounds}${isOpen ? "; the queue kept growing" : ""}`,
    },
    found.mean.toFixed(2),
    isOpen ? make("sup", { title: "the queue kept growing" }, "u") : null,
  );
}

function heatFinding() {
  let [top, bottom] = [null, null];
  let anyUnstable = false;
  for (const h of shown("hardware")) {
    for (const p of heatRows()) {
      for (const l of shown("load")) {
        const found = gain(cell(h, p, l), cell(h, DATA.baseline, l), state.metric);
        if (!found) continue;
        anyUnstable ||= isUnstable(cell(h, p, l));
        const here = {
          ...found,
          where: `${POLICY.labels[p]} on ${HARDWARE.labels[h]} at ${loadText(l)}`,
        };
        if (!top || here.mean > top.mean) top = here;
        if (!bottom || here.mean < bottom.mean) bottom = here;
      }
    }
  }
  if (!top) return "";
  const open = anyUnstable ? " u: the queue kept growing." : "";
  return `From ×${bottom.mean.toFixed(2)} (${bottom.where}) to ×${top.mean.toFixed(2)} (${top.where}).${open}`;
}
