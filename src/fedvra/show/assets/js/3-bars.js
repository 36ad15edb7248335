// Bars, as elements of the page: text that wraps, can be read aloud and selected.

/** Rows of {group, bars: [{mean, std, runs, hatched}] | [], text, note}; lengths are relative to the longest. */
function drawBars(holder, rows) {
  const most = Math.max(...rows.flatMap((row) => row.bars.map((bar) => bar.mean + (bar.runs > 1 ? bar.std : 0))), 0);
  const share = (value) => `${most ? (100 * Math.max(0, value)) / most : 0}%`;
  holder.replaceChildren(...rows.map((row) => {
    const track = element("div", { class: "track", "aria-hidden": "true" });
    for (const bar of row.bars) {
      const fill = element("div", { class: `fill${bar.hatched ? " hatched" : ""}${bar.complete === false ? " bound" : ""}` });
      fill.style.width = share(bar.mean);
      fill.style.color = fill.style.background = row.group.colour;
      track.append(fill);
    }
    const [first] = row.bars;
    if (first && first.runs > 1 && first.std > 0 && first.complete !== false) {
      const whisker = element("div", { class: "whisker" });
      whisker.style.left = share(first.mean - first.std);
      whisker.style.width = share(Math.min(2 * first.std, first.mean + first.std));
      track.append(whisker);
    }
    const made = element("div", { class: "bar" }, element("div", {}, ...breakable(row.group.label)), track,
      element("div", { class: row.bars.length ? "value" : "value muted", text: row.text }));
    if (row.note) made.append(element("div", { class: "note", text: row.note }));
    return made;
  }));
}

function drawTargets() {
  const known = targets();
  $("targets-section").hidden = !known.length;
  if (!known.includes(view.target)) view.target = hardestReached(known);
  $("targets").replaceChildren(...known.map((target) => element("button", {
    type: "button", role: "radio", "aria-checked": String(target === view.target), text: targetWords(target),
    tabindex: target === view.target ? "0" : "-1",
    onclick: () => { view.target = target; view.targetChosen = true; writeAddress(); charts.forEach((chart) => chart.draw()); drawTargets(); drawHeadlines(); $("targets").querySelector("[aria-checked=true]").focus(); },
    onkeydown: (event) => {
      const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (by) { event.preventDefault(); $("targets").children[(known.indexOf(target) + by + known.length) % known.length].click(); }
    },
  })));
  const groups = visibleGroups();
  drawBars($("rounds-bars"), groups.map(roundsRow));
  $("bytes-card").hidden = !groups.some((group) => group.bytes_to.here);
  drawBars($("bytes-bars"), groups.filter((group) => group.bytes_to.here).map(bytesRow));
}

/** The highest target that most of the groups reach: where they can be told apart. */
function hardestReached(known) {
  const groups = allGroups();
  const reached = (target) => groups.filter((group) => group.rounds_to[target]?.runs).length;
  return known.filter((target) => reached(target) > groups.length / 2).pop() ?? known.filter(reached).pop() ?? known[0];
}

const runsNote = (reached, group) => (reached.complete ? "" : `${reached.runs} of ${group.counted} runs reached it; the others count with all they had`);
const missing = (group) => ({ group, bars: [], text: group.whole ? `not in ${group.rounds} rounds` : "diverged" });

function roundsRow(group) {
  const reached = group.rounds_to[view.target];
  if (!group.whole || !reached?.runs) return missing(group);
  return { group, bars: [reached], text: reached.text.replace(/ \(.*/, ""), note: runsNote(reached, group) };
}

function bytesRow(group) {
  const here = group.bytes_to.here[view.target], original = group.bytes_to.original[view.target];
  if (!group.whole || !here?.runs) return missing(group);
  const { up, down } = group.published;
  const differs = Math.abs(original.mean / here.mean - 1) > 0.01;
  const note = differs ? `published: ${bytes(original.mean)}, with ${up} vectors up and ${down} down per client and round` : "";
  return { group, bars: [here, { ...original, runs: 1, hatched: true }], text: `${here.complete ? "" : ">"}${bytes(here.mean)}`, note };
}

function drawTime() {
  drawBars($("time-bars"), visibleGroups().filter((group) => group.seconds_per_round).map((group) => ({
    group, bars: [group.seconds_per_round], text: secondsText(group.seconds_per_round),
    note: group.training ? `${Math.round(100 * group.training.mean)}% of it training` : "",
  })));
}

/** The best of what is shown: all that lie within one deviation of the first. What diverged or has not finished is not among them. */
function drawHeadlines() {
  const groups = visibleGroups().filter((group) => group.wins), said = [];
  const tell = (what, value, text, highest = false) => {
    const values = groups.map((group) => { const found = value(group); return found?.complete === false ? BEYOND : found; });
    const known = groups.filter((group, k) => values[k]);
    if (known.length < 2 || values.every((each) => !each || each === BEYOND)) return;
    const among = best(values, highest), winners = groups.filter((group, k) => among.has(k));
    const sorted = winners.sort((a, b) => (value(a).mean - value(b).mean) * (highest ? -1 : 1));
    if (!sorted.length) said.push([what, "all alike", text(value(known[0]))]);
    else said.push([what, sorted[0].label, text(value(sorted[0])), sorted.length > 2 && sorted.length === known.length ? ["all others"] : sorted.slice(1).map((group) => group.label)]);
  };
  tell("Best final accuracy", (group) => group.final, percentText, true);
  tell(`Fewest rounds to ${targetWords(view.target)}`, (group) => group.rounds_to[view.target], (reached) => reached.text);
  tell(`Least data to ${targetWords(view.target)}`, (group) => group.bytes_to.here && group.bytes_to.here[view.target], (sent) => bytes(sent.mean));
  tell("Shortest round", (group) => group.seconds_per_round, secondsText);
  $("headlines").replaceChildren(...said.map(([what, who, figure, others = []]) => element("div", { class: "headline" },
    element("span", { class: "muted small", text: what }), element("b", {}, ...breakable(who)), element("span", { text: figure }),
    ...(others.length ? [element("span", { class: "muted small also", text: `within one standard deviation: ${others.join(", ")}` })] : []))));
}
