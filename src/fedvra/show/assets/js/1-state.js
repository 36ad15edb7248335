// What is shown, and how numbers are written. Every part of the page draws itself from `view` when `render` is called.
const content = JSON.parse(document.getElementById("content").textContent);
const $ = (id) => document.getElementById(id);

const view = {
  experiment: 0, // -1: all together
  hidden: new Set(), // labels
  axis: "round", // or bytes, seconds
  logX: false,
  target: null,
  smooth: 1, // points that a line is the mean of
  band: "std", // or range, none
  seeds: false, // a thin line per run
  sort: null, // {column, descending}
  pointed: null, // the label whose chip is pointed at
  theme: stored("fedvra-theme") || "auto",
};

function stored(key, value) {
  try { // a page opened from a file may not be allowed to keep anything
    if (value !== undefined) localStorage.setItem(key, value);
    return localStorage.getItem(key);
  } catch { return null; }
}

// -- the address says what is shown, so that it can be kept and sent --------------------------------------------------------

const KEPT = { axis: "round", logX: false, target: null, smooth: 1, band: "std", seeds: false };

function readAddress() {
  const said = new URLSearchParams(location.hash.slice(1));
  for (const [name, plain] of Object.entries(KEPT)) {
    const text = said.get(name);
    if (text !== null) view[name] = typeof plain === "boolean" ? text === "true" : typeof plain === "number" ? Number(text) || plain : text;
  }
  const chosen = Number(said.get("experiment"));
  if (said.has("experiment") && chosen >= -1 && chosen < content.experiments.length) view.experiment = chosen;
  view.hidden = new Set(said.getAll("hide"));
}

function writeAddress() {
  const said = new URLSearchParams();
  for (const [name, plain] of Object.entries(KEPT)) if (view[name] !== plain && name !== "target") said.set(name, view[name]);
  if (view.targetChosen) said.set("target", view.target);
  if (view.experiment) said.set("experiment", view.experiment);
  for (const label of view.hidden) said.append("hide", label);
  try { history.replaceState(null, "", `#${said}`); } catch { /* a page that may not */ }
}

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") made.textContent = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

/** A name as children of an element: lines break between words; a word that is too long for one breaks at signs, not inside a number. */
function breakable(label) {
  return label.split(" ").flatMap((word, k) => {
    const parts = word.split(/(?<=[=:@+/])/).flatMap((part, n) => (n ? [element("wbr"), part] : [part]));
    return [k ? " " : "", element("span", { class: "word" }, ...parts)];
  });
}

// -- groups -------------------------------------------------------------------------------------------------------------

/** The experiments on the page now, and their groups with colours; labels name the experiment where there are several. */
function shownExperiments() {
  return view.experiment < 0 ? content.experiments : [content.experiments[view.experiment]];
}

/** What tells an experiment from the others shown with it: where all are of one task, the options in its title alone. */
function apart(experiment) {
  const [task, ...options] = experiment.title.split(", ");
  const alone = options.length && shownExperiments().every((other) => other.title.split(", ")[0] === task);
  return { task: alone ? task : null, options: alone ? options : [experiment.title] };
}

function allGroups() {
  const experiments = shownExperiments(), together = experiments.length > 1;
  return experiments.flatMap((experiment, e) => experiment.groups.map((group) => {
    return {
      ...group,
      experiment,
      label: together ? [group.label, ...apart(experiment).options].join(", ") : group.label,
      colour: isDark() ? group.look.dark : group.look.light,
      dash: together ? content.dashes[e % content.dashes.length] : group.look.dash, // together, dashes tell experiments apart
    };
  }));
}

const visibleGroups = () => allGroups().filter((group) => !view.hidden.has(group.label));

function union(lists) {
  return [...new Map(lists.flat().map((each) => [each.name ?? each, each])).values()];
}

const targets = () => union(shownExperiments().map((e) => e.targets)).sort((a, b) => (a - b) || isNaN(a) - isNaN(b));
const targetWords = (target) => isNaN(target) ? target.replace("=", " ") : `${target}%`; // an accuracy, or a figure such as f1=0.8

// -- colours ------------------------------------------------------------------------------------------------------------

const systemDark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => view.theme === "dark" || (view.theme === "auto" && systemDark.matches);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function swatch(group) {
  const dash = group.dash.map((each) => 2.4 * each).join(" ");
  const holder = element("span", { "aria-hidden": "true" });
  holder.innerHTML = `<svg width="26" height="10"><line x1="1" y1="5" x2="25" y2="5" stroke="${group.colour}" stroke-width="3"
    stroke-dasharray="${dash}"/></svg>`;
  return holder.firstChild;
}

// -- numbers ------------------------------------------------------------------------------------------------------------

const UNITS = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]];

const TIMES = [[5400, 3600, "h"], [120, 60, "min"], [1, 1, "s"], [0, 1e-3, "ms"]];

function bytes(value) {
  const [size, unit] = UNITS.find(([size]) => Math.abs(value) >= size) || [1, "B"];
  return `${significant(value / size)} ${unit}`;
}

function seconds(value, std = null) {
  const [, size, unit] = TIMES.find(([from]) => value >= from);
  return `${std === null ? significant(value / size) : pair(value / size, std / size)} ${unit}`;
}

function significant(value, digits = 3) {
  if (!Number.isFinite(value)) return "-";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return Number(value.toPrecision(digits)).toExponential().replace("e+", "e");
  return String(Number(value.toPrecision(Math.max(digits, Math.ceil(Math.log10(size + 1))))));
}

/** A mean and its deviation, to as many decimals. */
function pair(mean, std, text = significant(mean)) {
  const decimals = (text.split(".")[1] || "").length;
  return `${text} ± ${text.includes("e") ? significant(std, 2) : std.toFixed(Math.min(decimals, 20))}`;
}

const percentText = ({ mean, std, runs }) => (runs > 1 ? `${pair(100 * mean, 100 * std, (100 * mean).toFixed(2))}%` : `${(100 * mean).toFixed(2)}%`);
const secondsText = ({ mean, std, runs }) => seconds(mean, runs > 1 ? std : null);
const FIRST = "fedvra"; // drawn last, so that nothing covers it
const MAIN = ["model_accuracy", "test_accuracy", "model_loss", "test_loss", "train_loss"]; // the others are further measures
const BEYOND = { mean: Infinity, std: 0, runs: 0 }; // after every figure: a target that some runs did not reach

/** Which of some {mean, std} or null are the best: all within one deviation of the least mean (or the highest); none if all are alike. */
function best(values, highest = false) {
  const means = new Set(values.filter(Boolean).map((each) => each.mean));
  if (means.size < 2) return new Set();
  const first = highest ? Math.max(...means) : Math.min(...means);
  const width = Math.max(...values.filter((each) => each && each.mean === first).map((each) => each.std));
  return new Set([...values.keys()].filter((k) => values[k] && Math.abs(values[k].mean - first) <= width));
}

const isAccuracy = (name) => name.endsWith("accuracy");

const AXES = {
  round: { label: "round", text: (value) => `round ${Math.round(value)}`, tick: (value) => (Number.isInteger(value) ? String(value) : "") },
  bytes: { label: "data sent, up and down", text: bytes, tick: bytes },
  seconds: { label: "time", text: seconds, tick: seconds },
  simulated: { label: "simulated time", text: seconds, tick: seconds },
};

/** Where on the x-axis the points of a group's series lie. */
function positions(group, series) {
  return view.axis === "round" ? series.rounds : series.rounds.map((round) => group.axes[view.axis][round - 1]);
}
