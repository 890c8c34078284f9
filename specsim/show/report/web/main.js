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
  const pair = make("div", { class: "pair" }, timelineCard(), breakdownCard());
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
    notices(),
    section(
      "which",
      "Which policy, at which load",
      ...[capacityCard(), crossoverCard(), overLoadCard(), heatCard()].filter(Boolean),
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
  startTheme(update);
  update();
}

start();
