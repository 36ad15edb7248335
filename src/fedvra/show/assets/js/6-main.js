// The controls, and drawing everything once.
let charts = [];

function render() {
  const experiments = shownExperiments(), [first] = experiments;
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
  $("title").textContent = experiments.length === 1 ? first.heading
    : content.searches.length === 1 ? `${content.searches[0].title}: ${content.searches[0].settings.length} settings` : "All experiments";
  const going = allGroups().filter((group) => group.going).map((group) => group.going);
  $("going").hidden = !going.length;
  $("going").textContent = going.length ? `still running: ${going.map(({ label, round, of }) => `${label}, round ${round} of ${of}`).join("; ")}` : "";
  const seeds = new Set(allGroups().map((group) => group.seeds.length));
  const each = seeds.size === 1 && !seeds.has(1) ? `, ${[...seeds][0]} seeds` : "";
  $("about").textContent = experiments.length === 1 ? first.about + each : aboutAll(experiments);
  drawSearches();
  drawChips();
  drawAxisChoice();
  drawTargets();
  drawHeadlines();
  drawCharts();
  drawTable();
  drawTime();
  drawPartition();
  drawConfig();
}

function drawChips() {
  const chip = (group) => element("button", {
    type: "button", "aria-pressed": String(!view.hidden.has(group.label)), title: `Show or hide ${group.label}; shift-click or double-click shows it alone`,
    onpointerenter: () => point(group.label), onpointerleave: () => point(null),
    ondblclick: () => { solo(group.label); },
    onclick: (event) => {
      if (event.shiftKey) { solo(group.label); return; }
      if (!view.hidden.delete(group.label)) view.hidden.add(group.label);
      refresh([...$("groups").children].findIndex((each) => each === document.activeElement));
    },
  }, swatch(group), group.label + status(group));
  const all = element("button", { type: "button", class: "all", text: "show all", onclick: () => { view.hidden.clear(); refresh(0); } });
  $("groups").replaceChildren(...allGroups().map(chip), ...(view.hidden.size ? [all] : []));
}

function solo(label) {
  view.hidden = new Set(allGroups().map((group) => group.label).filter((each) => each !== label));
  refresh(allGroups().findIndex((group) => group.label === label));
}

/** Its line is drawn stronger and, among many, with its band. */
function point(label) {
  view.pointed = label;
  if (visibleGroups().length > FEW || label === null) charts.forEach((chart) => chart.draw());
}

/** Seeds where groups differ in them, and whether something is the matter with some of the runs. */
function status(group) {
  const words = { finished: null, interrupted: "unfinished" };
  const said = Object.entries(group.statuses).map(([kind, number]) => [kind in words ? words[kind] : kind, number]).filter(([word]) => word);
  const total = group.seeds.length;
  const notes = [...(allGroups().some((each) => each.seeds.length !== total) ? [total === 1 ? "1 seed" : `${total} seeds`] : []), ...said.map(([word, number]) => (total > 1 ? `${number} ${word}` : word))];
  return notes.length ? ` · ${notes.join(", ")}` : "";
}

/** Of several experiments at once: what they differ in. */
function aboutAll(experiments) {
  const groups = allGroups().length, { task } = apart(experiments[0]);
  if (task === null) return `${experiments.length} experiments, ${groups} groups of runs`;
  const names = union(experiments.flatMap((experiment) => apart(experiment).options.map((option) => option.split(" ")[0])));
  return `${task}: ${groups} groups of runs; they also differ in ${names.join(", ")}`;
}

/** After a change of what is shown: the keyboard's focus stays on the control that made it. */
function refresh(focused) {
  writeAddress();
  drawChips();
  $("groups").children[Math.max(0, Math.min(focused, $("groups").children.length - 1))].focus();
  drawTargets();
  drawHeadlines();
  charts.forEach((chart) => chart.draw());
  drawTable();
  drawTime();
  drawConfig();
}

function drawAxisChoice() {
  const possible = Object.keys(AXES).filter((axis) => axis === "round" || allGroups().some((group) => group.axes[axis]));
  if (!possible.includes(view.axis)) view.axis = "round";
  const names = { round: "rounds", bytes: "data sent", seconds: "time", simulated: "simulated time" };
  $("axis").replaceChildren(...possible.map((axis) => element("option", { value: axis, selected: axis === view.axis, text: names[axis] })));
}

function drawCharts() {
  const measures = union(shownExperiments().map((experiment) => experiment.measures));
  const deployed = new Set(measures.map((measure) => measure.name.replace("model_", "test_")).filter((name) => measures.some((each) => each.name === name.replace("test_", "model_"))));
  const isMain = ({ name }) => MAIN.includes(name) && !(name.startsWith("test_") && deployed.has(name)); // x0 is a further measure where another model is deployed
  const main = measures.filter(isMain), others = measures.filter((measure) => !isMain(measure));
  const wide = main.length === 3 || main.length === 1;
  charts.forEach((chart) => chart.u.destroy());
  const made = main.map((measure, k) => new Chart(measure, k === 0 && wide && innerWidth > 760 ? 360 : 280));
  const further = others.map((measure) => new Chart(measure, 230));
  $("charts").replaceChildren(...made.map((chart) => chart.card));
  $("further-charts").replaceChildren(...further.map((chart) => chart.card));
  $("further").hidden = !further.length;
  charts = [...made, ...further];
  charts.forEach((chart) => chart.draw());
  globalThis.fedvraCharts = charts; // for tests, and for those who look
}

function start() {
  const experiments = content.experiments;
  const lonely = experiments.every((experiment) => experiment.groups.length === 1);
  const searched = content.searches.length > 0; // over options too: every setting belongs together
  if (experiments.length > 1 && (lonely || searched)) view.experiment = -1; // nothing to compare within any of them
  readAddress();
  hideTheRest();
  view.targetChosen = view.target !== null;
  const options = experiments.map((experiment, k) => element("option", { value: k, text: experiment.title, selected: k === view.experiment }));
  if (experiments.length > 1) options.push(element("option", { value: -1, text: "all together", selected: view.experiment < 0 }));
  $("experiment").replaceChildren(...options);
  $("experiment-label").hidden = experiments.length < 2;
  $("experiment").addEventListener("change", (event) => { view.experiment = Number(event.target.value); view.hidden.clear(); view.target = null; view.targetChosen = false; writeAddress(); render(); });
  const redraw = () => { writeAddress(); charts.forEach((chart) => chart.draw()); };
  const bind = (id, name, read) => $(id).addEventListener("change", (event) => { view[name] = read(event.target); redraw(); });
  bind("axis", "axis", (control) => control.value);
  bind("log-x", "logX", (control) => control.checked);
  bind("smooth", "smooth", (control) => Number(control.value));
  bind("band", "band", (control) => control.value);
  bind("seeds", "seeds", (control) => control.checked);
  $("log-x").checked = view.logX;
  $("seeds").checked = view.seeds;
  $("smooth").value = String(view.smooth);
  $("band").value = view.band;
  const several = content.experiments.some((experiment) => experiment.groups.some((group) => group.counted > 1));
  $("band").parentElement.hidden = $("seeds").parentElement.hidden = $("of-seeds").hidden = !several;
  $("of-several").hidden = lonely && experiments.length === 1;
  $("copy-csv").addEventListener("click", () => copy("csv", "CSV"));
  $("copy-latex").addEventListener("click", () => copy("latex", "LaTeX"));
  const names = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" }, next = { auto: "light", light: "dark", dark: "auto" };
  const nameTheme = () => {
    $("theme").textContent = names[view.theme];
    $("theme").setAttribute("aria-label", `Colours: ${view.theme === "auto" ? "as the system has them" : view.theme}; change`);
  };
  nameTheme();
  $("theme").addEventListener("click", () => { view.theme = next[view.theme]; stored("fedvra-theme", view.theme); nameTheme(); render(); });
  systemDark.addEventListener("change", render);
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; charts.forEach((chart) => chart.resize()); } });
  $("version").textContent = content.version;
  render();
}

start();
