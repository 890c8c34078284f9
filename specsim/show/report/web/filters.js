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
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  svg.setAttribute("viewBox", "0 0 14 14");
  svg.setAttribute("class", "swatch");
  svg.setAttribute("aria-hidden", "true");
  path.setAttribute("d", symbolPath(DATA.policies[p].symbol));
  path.style.fill = `light-dark(${DATA.policies[p].light}, ${DATA.policies[p].dark})`;
  svg.append(path);
  return svg;
}

function policyName(p) {
  return make("span", { class: "policy" }, swatch(p), POLICY.labels[p]);
}

/** A row of buttons, one per value; pressed means shown. None left means all again. */
function toggles(title, labels, chosen, onChange, adorn = () => null) {
  const all = make(
    "button",
    {
      type: "button",
      class: "all",
      onclick: () => {
        range(labels.length).forEach((i) => chosen.add(i));
        onChange();
      },
    },
    "all",
  );
  const buttons = labels.map((label, index) =>
    make(
      "button",
      {
        type: "button",
        class: "chip",
        "data-index": index,
        title: "Click: show or hide. Double click: this one alone.",
        onclick: () => {
          if (!chosen.delete(index)) chosen.add(index);
          if (!chosen.size) range(labels.length).forEach((i) => chosen.add(i));
          onChange();
        },
        ondblclick: () => {
          chosen.clear();
          chosen.add(index);
          onChange();
        },
      },
      adorn(index),
      label,
    ),
  );
  const refresh = () => {
    buttons.forEach((button, index) => button.setAttribute("aria-pressed", chosen.has(index)));
    all.disabled = chosen.size === labels.length;
  };
  refresh();
  return {
    refresh,
    element: make(
      "div",
      { class: "toggles", role: "group", "aria-label": title },
      make("span", { class: "label" }, title),
      ...buttons,
      all,
    ),
  };
}

function choice(title, labels, value, onChange, attributes = {}) {
  const options = labels.map((label, index) =>
    make("option", { value: index, selected: index === value }, label),
  );
  return make(
    "label",
    { class: "choice" },
    title,
    make(
      "select",
      { ...attributes, onchange: (event) => onChange(Number(event.target.value)) },
      ...options,
    ),
  );
}

/** Fill the bar; `onChange` is called after every change. */
function startFilters(onChange) {
  const groups = [];
  const changed = () => {
    groups.forEach((group) => group.refresh());
    onChange();
  };
  const add = (axis, role, adorn) => {
    if (axis.labels.length < 2 && role !== "policy") return null;
    const title = axis.unit ? `${axis.title}, ${axis.unit}` : axis.title;
    const group = toggles(title, axis.labels, state.shown[role], changed, adorn);
    group.element.dataset.filter = role;
    groups.push(group);
    return group.element;
  };
  const policies = add(POLICY, "policy", swatch);
  const more = [add(HARDWARE, "hardware"), DATA.capacity ? null : add(LOAD, "load")];
  if (DATA.replications.length > 1) {
    const labels = DATA.replications.map(String);
    const chosen = new Set(
      range(labels.length).filter((i) => state.replications.has(DATA.replications[i])),
    );
    const group = toggles("Replication", labels, chosen, () => {
      state.replications = new Set([...chosen].map((index) => DATA.replications[index]));
      changed();
    });
    group.element.dataset.filter = "replication";
    groups.push(group);
    more.push(group.element);
  }
  OTHERS.forEach((axis, index) => {
    if (axis.labels.length < 2) return;
    more.push(
      choice(
        axis.title,
        axis.labels,
        state.slices[index],
        (value) => {
          state.slices[index] = value;
          onChange();
        },
        { "data-filter": axis.title },
      ),
    );
  });
  more.push(
    choice(
      "Shown",
      DATA.metrics.map((metric) => metric.title),
      METRIC.get(state.metric).index,
      (value) => {
        state.metric = DATA.metrics[value].name;
        onChange();
      },
      { id: "metric" },
    ),
  );
  const rest = make("div", { class: "more" }, ...more.filter(Boolean));
  const toggle = make(
    "button",
    {
      type: "button",
      class: "fold",
      "aria-expanded": "false",
      onclick: () => {
        const isOpen = rest.classList.toggle("open");
        toggle.setAttribute("aria-expanded", isOpen);
      },
    },
    "Filters",
  );
  document
    .getElementById("filters")
    .append(make("div", { class: "first" }, policies, toggle), rest);
}
