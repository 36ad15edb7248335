// Bars, as elements of the page: text that wraps, can be read aloud and selected.

/** Rows of {group, bars: [{mean, std, runs, hatched}] | [], text, note}; lengths are relative to the longest. */
function drawBars(holder, rows) {
  const most = Math.max(...rows.flatMap((row) => row.bars.map((bar) => bar.mean + (bar.runs > 1 ? bar.std : 0))), 0);
  const share = (value) => `${most ? (100 * Math.max(0, value)) / most : 0}%`;
  holder.replaceChildren(...rows.map((row) => {
    const track = element("div", { class: "track", "aria-hidden": "true" });
    for (const bar of row.bars) {
      const fill = element("div", { class: bar.hatched ? "fill hatched" : "fill" });
      fill.style.width = share(bar.mean);
      fill.style.color = fill.style.background = row.group.colour;
      track.append(fill);
    }
    const [first] = row.bars;
    if (first && first.runs > 1 && first.std > 0) {
      const whisker = element("div", { class: "whisker" });
      whisker.style.left = share(first.mean - first.std);
      whisker.style.width = share(Math.min(2 * first.std, first.mean + first.std));
      track.append(whisker);
    }
    const made = element("div", { class: "bar" }, element("div", { text: row.group.label }), track,
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
    onclick: () => { view.target = target; drawTargets(); drawHeadlines(); $("targets").querySelector("[aria-checked=true]").focus(); },
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
  const reached = (target) => groups.filter((group) => group.rounds_to[target]).length;
  return known.filter((target) => reached(target) > groups.length / 2).pop() ?? known.filter(reached).pop() ?? known[0];
}

const runsNote = (spread, group) => (spread.runs < group.counted ? `${spread.runs} of ${group.counted} runs` : "");
const missing = (group) => ({ group, bars: [], text: `not in ${group.rounds} rounds` });

function roundsRow(group) {
  const spread = group.rounds_to[view.target];
  if (!spread) return missing(group);
  return { group, bars: [spread], text: roundsText(spread), note: runsNote(spread, group) };
}

function bytesRow(group) {
  const here = group.bytes_to.here[view.target], original = group.bytes_to.original[view.target];
  if (!here) return missing(group);
  const { up, down } = group.published;
  const differs = Math.abs(original.mean / here.mean - 1) > 0.01;
  const note = differs ? `published: ${bytes(original.mean)}, with ${up} vectors up and ${down} down per client and round` : "";
  return { group, bars: [here, { ...original, runs: 1, hatched: true }], text: bytes(here.mean), note };
}

function drawTime() {
  drawBars($("time-bars"), visibleGroups().filter((group) => group.seconds_per_round).map((group) => ({
    group, bars: [group.seconds_per_round], text: secondsText(group.seconds_per_round),
    note: group.training ? `${Math.round(100 * group.training.mean)}% of it training` : "",
  })));
}

function drawHeadlines() {
  const groups = visibleGroups();
  const least = (value) => groups.filter((group) => value(group)).sort((a, b) => value(a).mean - value(b).mean)[0];
  const said = [];
  const best = least((group) => group.final && { mean: -group.final.mean });
  if (best) said.push(["Best final accuracy", best.label, percentText(best.final)]);
  const fastest = least((group) => group.rounds_to[view.target]);
  if (fastest) said.push([`Fewest rounds to ${targetWords(view.target)}`, fastest.label, roundsText(fastest.rounds_to[view.target])]);
  const cheapest = least((group) => group.bytes_to.here && group.bytes_to.here[view.target]);
  if (cheapest) said.push([`Least data to ${targetWords(view.target)}`, cheapest.label, bytes(cheapest.bytes_to.here[view.target].mean)]);
  const quickest = least((group) => group.seconds_per_round);
  if (quickest) said.push(["Shortest round", quickest.label, secondsText(quickest.seconds_per_round)]);
  $("headlines").replaceChildren(...(groups.length > 1 ? said : []).map(([what, who, figure]) => element("div", { class: "headline" },
    element("span", { class: "muted small", text: what }), element("b", { text: who }), element("span", { text: figure }))));
}
