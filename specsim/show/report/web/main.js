/* What is shown stands in the address, so that it can be kept and passed on. */

const AXIS = { policy: POLICY, hardware: HARDWARE, load: LOAD };
const OPENED = address();

function address() {
  const chosen = (set) => [...set].sort((a, b) => a - b).join(".");
  return {
    ...Object.fromEntries(Object.keys(AXIS).map((role) => [role, chosen(state.shown[role])])),
    replication: state.luck ?? "all",
    slices: state.slices.join("."),
    metric: state.metric,
    scale: state.isLog ? "log" : "linear",
    at: `${state.focus.hardware}.${state.focus.load}`,
  };
}

/** Say what differs from the page as it opens. */
function writeAddress() {
  const changed = Object.entries(address()).filter(([name, text]) => text !== OPENED[name]);
  if (!changed.length && !location.hash.includes("=")) return;
  const hash = changed.length ? `#${new URLSearchParams(changed)}` : "";
  history.replaceState(null, "", `${location.pathname}${location.search}${hash}`);
}

/** Take what the address asks for; what this page does not have is left as it is. */
function readAddress() {
  const asked = new URLSearchParams(location.hash.slice(1));
  const numbers = (name) => (asked.get(name) || null)?.split(".").map(Number) ?? [];
  for (const [role, axis] of Object.entries(AXIS)) {
    const found = numbers(role).filter((place) => place in axis.labels);
    if (found.length) state.shown[role] = new Set(found);
  }
  state.luck = DATA.replications.find((each) => String(each) === asked.get("replication")) ?? null;
  const slices = numbers("slices");
  state.slices = state.slices.map((first, index) => (slices[index] in OTHERS[index].labels ? slices[index] : first));
  if (METRIC.has(asked.get("metric"))) state.metric = asked.get("metric");
  state.isLog = asked.get("scale") !== "linear";
  const [h, l] = numbers("at");
  if (h in HARDWARE.labels && l in LOAD.labels) state.focus = { hardware: h, load: l };
}

/* The page, top to bottom, and what happens when a filter changes. */

let focus = null;

async function update() {
  select();
  writeAddress();
  focus.build();
  LEFT_OUT.length = 0;
  for (const each of CARDS) await each.update();
  for (const group of document.querySelectorAll(".group"))
    group.hidden = !group.querySelector(".card:not([hidden])");
  const left = document.getElementById("left-out");
  left.textContent = LEFT_OUT.length ? `Left out: ${LEFT_OUT.join("; ")}.` : "";
  document.body.dataset.updates = Number(document.body.dataset.updates ?? 0) + 1;
}

function section(id, title, ...content) {
  return make(
    "section",
    { class: "group", id, "aria-labelledby": `${id}-heading` },
    make("h2", { id: `${id}-heading` }, title),
    ...content,
  );
}

function closerSection() {
  const pair = make("div", { class: "pair" }, breakdownCard(), timelineCard());
  return section("closer", "A closer look", focus.element, cdfCard(), pair);
}

function start() {
  document.getElementById("subtitle").textContent = subtitle();
  readAddress();
  addEventListener("hashchange", () => location.hash.includes("=") && location.reload());
  startFilters(update);
  focus = focusControls();
  const body = document.getElementById("sections");
  body.append(
    answerCard(),
    whatIfCard(),
    notices(),
    section(
      "which",
      DATA.plan ? "How latency grows with load" : "Which policy, at which load",
      ...[capacityCard(), crossoverCard(), overLoadCard(), speedUpCard()].filter(Boolean),
    ),
    section("price", "At what cost", costCard()),
    DATA.capacity ? "" : closerSection(),
    section("all", "All runs", overviewCard(), ...[failedCard(), provenanceCard()].filter(Boolean)),
  );
  let width = innerWidth;
  let waiting = 0;
  addEventListener("resize", () => {
    if (innerWidth === width) return; // a phone's address bar changes the height alone
    width = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(update, 150);
  });
  startTheme();
  update();
}

start();
