// What a search over settings came to: a heat map of two hyper-parameters, parallel axes of more, and every setting, best first.

function drawSearches() {
  $("searches").hidden = !content.searches.length;
  $("search-cards").replaceChildren(...content.searches.map(searchCard));
}

function searchCard(search) {
  const [first] = search.settings, worst = search.settings.some((setting) => !setting.whole);
  const note = `Judged by ${search.judged}${search.least ? ", less is better" : ""}.${worst ? " Grey: stopped early or diverged, shown as far as it went." : ""}`;
  return element("div", { class: "card search" },
    element("h3", { text: `${search.title}: ${search.settings.length} settings` }),
    element("p", { class: "small" }, "Best: ", element("code", { text: search.options }), first.figure === null ? "" : ` (${figureText(search, first)})`,
      ...search.edges.map((edge) => element("span", { class: "muted", text: ` ${edge}.` }))),
    search.names.length > 2 ? parallelAxes(search) : heatMap(search),
    element("p", { class: "muted small", text: note }),
    settingsTable(search));
}

function figureText(search, setting) {
  if (setting.diverged) return "diverged";
  if (setting.figure === null) return `>${setting.rounds}`; // rounds to a target that not every seed reached
  return search.percent ? `${(100 * setting.figure).toFixed(2)}%` : significant(setting.figure, 4);
}

/** From 0, the worst, to 1, the best, among the settings that were run to the end. */
function merit(search, setting) {
  const figures = search.settings.filter((each) => each.whole && each.figure !== null).map((each) => each.figure);
  if (!setting.whole || setting.figure === null) return null;
  const low = Math.min(...figures), high = Math.max(...figures), share = high > low ? (setting.figure - low) / (high - low) : 1;
  return search.least && high > low ? 1 - share : share;
}

function rampColour(share) {
  const colours = content.ramp[isDark() ? "dark" : "light"];
  return colours[Math.round(share * (colours.length - 1))];
}

/** Black or white, whichever is read more easily on that colour. */
function inkOn(colour) {
  const [r, g, b] = [1, 3, 5].map((k) => parseInt(colour.slice(k, k + 2), 16) / 255);
  return 0.2126 * r ** 2.2 + 0.7152 * g ** 2.2 + 0.0722 * b ** 2.2 > 0.18 ? "#000000" : "#ffffff";
}

function heatMap(search) {
  const [across, down] = search.names, columns = search.values[across], rows = down ? search.values[down] : [null];
  const cell = (column, row) => {
    const setting = search.settings.find((each) => each.given[across] === column && (row === null || each.given[down] === row));
    if (!setting) return element("td", { text: "" });
    const share = merit(search, setting), made = element("td", { class: share === null ? "grey" : setting === search.settings[0] ? "winner" : false,
      title: `${search.names.map((name) => `${name}=${setting.given[name]}`).join(", ")}: ${figureText(search, setting)} after ${setting.rounds} rounds` },
    element("span", { text: figureText(search, setting) }),
    ...(setting.whole ? [] : [element("small", { text: setting.diverged ? "" : `round ${setting.rounds}` })]));
    if (share !== null) { made.style.background = rampColour(share); made.style.color = inkOn(rampColour(share)); }
    return made;
  };
  const head = element("tr", {}, element("th", { scope: "col", text: down ? `${down} \\ ${across}` : across }), ...columns.map((text) => element("th", { scope: "col", text })));
  return element("div", { class: "scroll heat", tabindex: "0", role: "region", "aria-label": `Heat map of ${search.judged}` }, element("table", {}, element("thead", {}, head),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, element("th", { scope: "row", text: row ?? search.judged }), ...columns.map((column) => cell(column, row)))))));
}

function parallelAxes(search) {
  const names = [...search.names, search.judged], width = Math.max(520, 150 * names.length), height = 300, top = 44, bottom = height - 24, side = 60;
  const x = (k) => side + (k * (width - 2 * side)) / (names.length - 1);
  const spot = (share) => bottom - share * (bottom - top);
  const known = search.settings.filter((each) => each.figure !== null && !each.diverged).map((each) => each.figure);
  const low = Math.min(...known), high = Math.max(...known);
  const y = (setting, k) => {
    if (k < search.names.length) {
      const values = search.values[names[k]];
      return spot(values.length > 1 ? values.indexOf(setting.given[names[k]]) / (values.length - 1) : 0.5);
    }
    if (setting.figure === null || setting.diverged) return spot(0) + 10;
    const share = high > low ? (setting.figure - low) / (high - low) : 1;
    return spot(search.least ? 1 - share : share);
  };
  const safe = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll('"', "&quot;");
  const ink = css("--muted"), best = search.settings[0];
  const line = (setting) => {
    const share = merit(search, setting), points = names.map((_, k) => `${x(k).toFixed(1)},${y(setting, k).toFixed(1)}`).join(" ");
    const label = `${search.names.map((name) => `${name}=${setting.given[name]}`).join(", ")}: ${figureText(search, setting)} after ${setting.rounds} rounds`;
    return `<polyline points="${points}" fill="none" stroke="${share === null ? css("--line") : rampColour(share)}" stroke-width="${setting === best ? 4 : share === null ? 1.2 : 2}"><title>${safe(label)}</title></polyline>`;
  };
  const axis = (name, k) => {
    const last = k === search.names.length, ticks = last ? [[0, search.least ? high : low], [1, search.least ? low : high]].map(([at, value]) => [spot(at), figureText(search, { figure: value })])
      : search.values[name].map((text, i, all) => [spot(all.length > 1 ? i / (all.length - 1) : 0.5), text]);
    return `<line x1="${x(k)}" x2="${x(k)}" y1="${top}" y2="${bottom}" stroke="${ink}"/><text x="${x(k)}" y="18" text-anchor="middle" font-weight="600" fill="${css("--ink")}">${safe(name)}</text>`
      + ticks.map(([at, text]) => `<text x="${x(k) + 6}" y="${at + 4}" fill="${css("--ink")}" paint-order="stroke" stroke="${css("--card")}" stroke-width="4">${safe(text)}</text>`).join("");
  };
  const drawn = [...search.settings].sort((a, b) => (merit(search, a) ?? -1) - (merit(search, b) ?? -1) || (a === best) - (b === best)); // the best on top
  const holder = element("div", { class: "scroll parallel", tabindex: "0", role: "region", "aria-label": "Parallel axes, may be scrolled" });
  holder.innerHTML = `<svg viewBox="0 0 ${width} ${height}" width="${width}" role="img" aria-label="Every setting as a line through its values to ${safe(search.judged)}" font-size="12">`
    + `${drawn.map(line).join("")}${names.map(axis).join("")}</svg>`;
  return holder;
}

function settingsTable(search) {
  const head = [...search.names, "rounds", search.judged];
  const table = element("table", {}, element("thead", {}, element("tr", {}, ...head.map((text) => element("th", { scope: "col", text })))),
    element("tbody", {}, ...search.settings.map((setting) => element("tr", { class: setting.whole ? false : "early" },
      ...search.names.map((name, k) => element(k ? "td" : "th", { ...(k ? {} : { scope: "row" }), text: setting.given[name] })),
      element("td", { text: setting.rounds }), element("td", { text: figureText(search, setting) })))));
  return element("details", { open: search.settings.length <= 12 }, element("summary", { text: "Every setting, the best first" }),
    element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Every setting" }, table));
}

/** Of a search only the best settings are drawn at first: dozens of curves show nothing. */
function hideTheRest() {
  const best = content.searches.flatMap((search) => search.settings.slice(0, FEW).map((setting) => `${setting.folder}/`));
  if (!best.length || location.hash.length > 1) return;
  view.hidden = new Set(allGroups().filter((group) => !group.folders.some((folder) => best.some((each) => folder.startsWith(each)))).map((group) => group.label));
}
