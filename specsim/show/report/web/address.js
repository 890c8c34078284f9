/* What is shown stands in the address, so that it can be kept and passed on. */

const AXIS = { policy: POLICY, hardware: HARDWARE, load: LOAD };
const OPENED = address();

function address() {
  const chosen = (set) => [...set].sort((a, b) => a - b).join(".");
  return {
    ...Object.fromEntries(Object.keys(AXIS).map((role) => [role, chosen(state.shown[role])])),
    replications: chosen(state.replications),
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
  const luck = numbers("replications").filter((each) => DATA.replications.includes(each));
  if (luck.length) state.replications = new Set(luck);
  const slices = numbers("slices");
  state.slices = OTHERS.map((axis, index) => (slices[index] in axis.labels ? slices[index] : 0));
  if (METRIC.has(asked.get("metric"))) state.metric = asked.get("metric");
  state.isLog = asked.get("scale") !== "linear";
  const [h, l] = numbers("at");
  if (h in HARDWARE.labels && l in LOAD.labels) state.focus = { hardware: h, load: l };
}
