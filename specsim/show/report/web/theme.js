/* Dark and light: the colours that plotly is given are those of the style sheet. */

const PREFERS_DARK = matchMedia("(prefers-color-scheme: dark)");

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : PREFERS_DARK.matches;
}

/** Let the reader choose; the choice is kept where the browser allows it. */
function startTheme(redraw) {
  const control = document.getElementById("theme");
  const apply = () => {
    if (control.value === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = control.value;
  };
  try {
    control.value = localStorage.getItem("specsim-theme") || "auto";
  } catch {
    /* not kept */
  }
  if (!control.value) control.value = "auto";
  apply();
  control.addEventListener("change", () => {
    apply();
    try {
      localStorage.setItem("specsim-theme", control.value);
    } catch {
      /* not kept */
    }
    redraw();
  });
  PREFERS_DARK.addEventListener("change", redraw);
}

/** A colour of the style sheet, as it is in the theme of the moment. */
function colour(name) {
  const probe = document.getElementById("theme");
  probe.style.outlineColor = `var(--${name})`;
  const found = getComputedStyle(probe).outlineColor;
  probe.style.outlineColor = "";
  return found;
}

function policyColour(p) {
  return DATA.policies[p][isDark() ? "dark" : "light"];
}

function faint(hex, alpha) {
  const [r, g, b] = [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));
  return `rgba(${r},${g},${b},${alpha})`;
}
