/* The bar of filters: it is the legend as well, and acts on all charts and tables. */

function symbolPath(symbol) {
  const paths = {
    circle: "M7 2.5a4.5 4.5 0 1 0 .01 0z",
    square: "M3 3h8v8h-8z",
    diamond: "M7 1.5l5.5 5.5-5.5 5.5-5.5-5.5z",
    "triangle-up": "M7 2l5.5 9.5h-11z",
    "triangle-down": "M7 12l5.5-9.5h-11z",
    cross: "M5.2 2h3.6v3.2h3.2v3.6h-3.2v3.2h-3.6v-3.2h-3.2v-3.6h3.2z",
    x: "M4 2l3 3 3-3 2 2-3 3 3 3-2 2-3-3-3 3-2-2 3-3-3-3z",
    pentagon: "M7 2l5 3.8-1.9 5.8h-6.2l-1.9-5.8z",
    hexagon: "M7 1.8l4.6 2.6v5.2l-4.6 2.6-4.6-2.6v-5.2z",
    star: "M7 1l1.7 4h4.3l-3.4 2.7 1.3 4.3-3.9-2.6-3.9 2.6 1.3-4.3-3.4-2.7h4.3z",
    "triangle-left": "M2 7l9.5-5.5v11z",
    "triangle-right": "M12 7l-9.5-5.5v11z",
  };
  return paths[symbol] ?? paths.circle;
}

/** Colour and marker of a policy, for text that names it. */
function swatch(p) {
  const { symbol, light, dark } = DATA.policies[p];
  const fill = { fill: `light-dark(${light}, ${dark})` };
  const attributes = { viewBox: "0 0 14 14", class: "swatch", "aria-hidden": "true" };
  return make("svg", attributes, make("path", { d: symbolPath(symbol), style: fill }));
}

function policyName(p) {
  return make("span", { class: "policy" }, swatch(p), POLICY.labels[p]);
}

/** A row of buttons, one per value; pressed means shown. None left means all again. */
function toggles(title, labels, chosen, onChange, adorn = () => null) {
  const showAll = () => range(labels.length).forEach((i) => chosen.add(i));
  const changes = (change) => () => {
    change();
    if (!chosen.size) showAll();
    onChange();
  };
  const hint = "Click: show or hide. Double click: this one alone.";
  const chip = (label, index) => {
    const onclick = changes(() => chosen.delete(index) || chosen.add(index));
    const ondblclick = changes(() => {
      chosen.clear();
      chosen.add(index);
    });
    const attributes = { type: "button", class: "chip", "data-index": index, title: hint };
    return make("button", { ...attributes, onclick, ondblclick }, adorn(index), label);
  };
  const all = make("button", { type: "button", class: "all", onclick: changes(showAll) }, "all");
  const buttons = labels.map(chip);
  const refresh = () => {
    buttons.forEach((button, index) => button.setAttribute("aria-pressed", chosen.has(index)));
    all.disabled = chosen.size === labels.length;
  };
  refresh();
  const group = { class: "toggles", role: "group", "aria-label": title };
  const element = make("div", group, make("span", { class: "label" }, title), ...buttons, all);
  return { refresh, element };
}

function choice(title, labels, value, onChange, attributes = {}) {
  const options = labels.map((label, index) =>
    make("option", { value: index, selected: index === value }, label),
  );
  const onchange = (event) => onChange(Number(event.target.value));
  const list = make("select", { ...attributes, onchange }, ...options);
  return make("label", { class: "choice" }, title, list);
}

/** Fill the bar; `onChange` is called after every change. */
function startFilters(onChange) {
  const groups = [];
  const changed = () => {
    groups.forEach((group) => group.refresh());
    onChange();
  };
  const addGroup = (name, ...given) => {
    const group = toggles(...given);
    group.element.dataset.filter = name;
    groups.push(group);
    return group.element;
  };
  const ofAxis = (axis, role, adorn) =>
    axis.labels.length > 1 || role === "policy"
      ? addGroup(role, titled(axis), axis.labels, state.shown[role], changed, adorn)
      : null;
  const policies = ofAxis(POLICY, "policy", swatch);
  const more = [
    ofAxis(HARDWARE, "hardware"),
    DATA.capacity ? null : ofAxis(LOAD, "load"),
    replicationFilter(addGroup, changed),
    ...OTHERS.map((axis, index) => sliceFilter(axis, index, onChange)),
    metricFilter(onChange),
  ];
  const rest = make("div", { class: "more" }, ...more.filter(Boolean));
  const onclick = () => toggle.setAttribute("aria-expanded", rest.classList.toggle("open"));
  const attributes = { type: "button", class: "fold", "aria-expanded": "false", onclick };
  const toggle = make("button", attributes, "Filters");
  const bar = document.getElementById("filters");
  bar.append(make("div", { class: "first" }, policies, toggle), rest);
}

function replicationFilter(addGroup, changed) {
  const all = DATA.replications;
  if (all.length < 2) return null;
  const chosen = new Set(range(all.length).filter((i) => state.replications.has(all[i])));
  return addGroup("replication", "Replication", all.map(String), chosen, () => {
    state.replications = new Set([...chosen].map((index) => all[index]));
    changed();
  });
}

/** The value of an axis at which the page cuts through the runs. */
function sliceFilter(axis, index, onChange) {
  if (axis.labels.length < 2) return null;
  const slice = (value) => {
    state.slices[index] = value;
    onChange();
  };
  return choice(axis.title, axis.labels, state.slices[index], slice, { "data-filter": axis.title });
}

function metricFilter(onChange) {
  const titles = DATA.metrics.map((metric) => metric.title);
  const show = (value) => {
    state.metric = DATA.metrics[value].name;
    onChange();
  };
  return choice("Shown", titles, METRIC.get(state.metric).index, show, { id: "metric" });
}
