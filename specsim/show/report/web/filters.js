/* The bar of filters: it is the legend as well, and acts on all charts and tables. */

/** Colour and marker of a policy, for text that names it. */
function swatch(p) {
  const { colour, path } = DATA.policies[p];
  const attributes = { viewBox: "-1.3 -1.3 2.6 2.6", class: "swatch", "aria-hidden": "true" };
  return make("svg", attributes, make("path", { d: path, style: { fill: colour } }));
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
    replicationFilter(onChange),
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

/** All replications together, or one by itself. */
function replicationFilter(onChange) {
  const all = [null, ...DATA.replications];
  if (all.length < 3) return null;
  const pick = (index) => {
    state.luck = all[index];
    onChange();
  };
  const labels = all.map((each) => (each == null ? "all" : String(each)));
  return choice("Replication", labels, all.indexOf(state.luck), pick, { "data-filter": "replication" });
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
