// The table and its copies, and the configuration.

function drawTable() {
  const experiments = shownExperiments(), groups = sorted(visibleGroups());
  const columns = union(experiments.map((experiment) => experiment.header));
  const cell = (group, column) => group.cells[group.experiment.header.indexOf(column)] ?? "";
  const rows = groups.map((group) => columns.map((column, k) => (k ? cell(group, column) : cell(group, column).replace(
    group.experiment.groups.find((each) => each.cells === group.cells).label, group.label))));
  const figure = (group, column) => {
    const found = column === "seconds" ? null : group.figures[group.experiment.header.indexOf(column) - 1] ?? null;
    return found?.mean === null ? BEYOND : found;
  };
  const marked = columns.map((column, k) => (k ? best(groups.map((group) => figure(group, column)), upwards(column)) : new Set()));
  $("results").replaceChildren(
    element("thead", {}, element("tr", {}, ...columns.map((column) => element("th", { scope: "col", "aria-sort": sortedBy(column) },
      element("button", { type: "button", class: "sort", text: column, title: `Sort by ${column}`, onclick: () => sortBy(column) }))))),
    element("tbody", {}, ...rows.map((row, r) => element("tr", {}, ...row.map((text, k) => (k
      ? element("td", { text, class: marked[k].has(r) ? "best" : false }) : element("th", { scope: "row" }, element("span", {}, ...breakable(text)))))))),
  );
  const several = groups.some((group) => group.counted > 1);
  const failed = groups.some((group) => group.statuses.diverged), falls = columns.includes("worst fall");
  $("table-note").textContent = `${several ? "Mean ± standard deviation over seeds. " : ""}Rounds are the first at or above the target; `
    + "> is a lower bound: runs that never reached it count with all their rounds. "
    + (falls ? "Worst fall: the largest drop in accuracy between two tests, in points, from round 20 on. " : "")
    + (failed ? "Runs that diverged are in no mean, and an algorithm with one is never the best. " : "")
    + `Bold: the best${several ? " and all within one standard deviation of it" : ""}.`;
  drawMessages(groups);
}

/** Whether more is better in that column. */
function upwards(column) {
  const { header, upwards: known } = shownExperiments().find((experiment) => experiment.header.includes(column));
  return known[header.indexOf(column)];
}

const sortedBy = (column) => (view.sort?.column !== column ? "none" : view.sort.descending ? "descending" : "ascending");

function sortBy(column) {
  const up = upwards(column);
  if (view.sort?.column !== column) view.sort = { column, descending: up };
  else view.sort = view.sort.descending === up ? { column, descending: !up } : null;
  drawTable();
  [...$("results").querySelectorAll("th button")].find((each) => each.textContent === column)?.focus();
}

/** Groups in the order asked for; what has no figure, or only a bound, comes after what has. */
function sorted(groups) {
  if (!view.sort) return groups;
  const { column, descending } = view.sort, sign = descending ? -1 : 1;
  const key = (group) => {
    const k = group.experiment.header.indexOf(column), text = group.cells[k] ?? "";
    if (k === 0) return [0, group.label];
    const number = parseFloat(text.replace(">", ""));
    return [isNaN(number) ? 2 : text.startsWith(">") ? 1 : 0, isNaN(number) ? 0 : number];
  };
  return groups.map((group) => [key(group), group]).sort(([[a, x]], [[b, y]]) => a - b || (x < y ? -sign : x > y ? sign : 0)).map(([, group]) => group);
}

/** Why runs did not finish. */
function drawMessages(groups) {
  const said = groups.flatMap((group) => group.messages.map((message) => ({ group, ...message })));
  $("messages").hidden = !said.length;
  $("messages").replaceChildren(...said.map(({ group, seed, status, text }) => element("li", {},
    element("b", { text: `${group.label}, seed ${seed}` }), ` ${status}: ${text}`)));
}

/** The lines that are shown, experiment by experiment, as their text in that format. */
function tableText(format) {
  const groups = visibleGroups();
  return shownExperiments().map((experiment) => {
    const lines = groups.filter((group) => group.experiment === experiment).map((group) => group[format]);
    return lines.length ? experiment[format].before + lines.join("") + experiment[format].after : "";
  }).filter(Boolean).join("\n");
}

async function copy(format, name) {
  const text = tableText(format);
  let done = false;
  try {
    await navigator.clipboard.writeText(text);
    done = true;
  } catch { // older browsers, and pages that are not secure
    const area = element("textarea", { "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    done = document.execCommand("copy");
    area.remove();
  }
  $("copied").textContent = done ? `Copied as ${name}.` : "The browser did not let this page copy.";
}

function drawConfig() {
  const experiments = shownExperiments(), groups = visibleGroups();
  const options = (group) => {
    const { differ, same } = group.experiment.config;
    const k = group.experiment.groups.findIndex((each) => each.cells === group.cells);
    return new Map([...differ.map((each) => [each.name, each.values[k]]), ...same.map((each) => [each.name, each.value])]);
  };
  const held = groups.map(options);
  const names = union(experiments.map(({ config }) => [...config.differ, ...config.same].map((each) => each.name)));
  const values = (name) => held.map((each) => each.get(name) ?? "-");
  const differ = names.filter((name) => new Set(values(name)).size > 1), same = names.filter((name) => !differ.includes(name));
  $("differ").parentElement.hidden = !differ.length;
  $("differ").replaceChildren(
    element("thead", {}, element("tr", {}, element("th", { scope: "col", text: "differs" }), ...groups.map((group) => element("th", { scope: "col" }, ...breakable(group.label))))),
    element("tbody", {}, ...differ.map((name) => element("tr", {}, element("th", { scope: "row", text: name }), ...values(name).map((value) => (
      value === "-" ? element("td", { class: "none", text: "-" }) : element("td", {}, element("mark", { text: value }))))))),
  );
  $("same-summary").textContent = groups.length > 1 ? "The same in all" : "Options";
  $("same").replaceChildren(...same.filter((name) => held.length && values(name)[0] !== "-").map((name) => element("div", {},
    element("dt", { text: name }), element("dd", { text: values(name)[0] }))));
  $("made").replaceChildren(...Object.entries(content.made).map(([name, value]) => element("div", {}, element("dt", { text: name }), element("dd", { text: value }))));
  $("folders").replaceChildren(...groups.flatMap((group) => group.folders.map((folder) => element("li", {},
    element("code", { text: folder }), ` (${group.label})`))));
}

function drawPartition() {
  const [experiment] = shownExperiments();
  const found = shownExperiments().length === 1 ? experiment.partition : null;
  const spread = shownExperiments().length === 1 ? experiment.clients : null;
  $("clients").hidden = !spread;
  if (spread) $("clients").querySelector("img").src = spread;
  $("partition").hidden = !found;
  if (!found) return;
  const picture = $("partition").querySelector("img");
  picture.src = found.picture;
  picture.alt = `How many samples of each class each client holds (${experiment.about}), seed ${found.seed}.`;
}
