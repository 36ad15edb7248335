// One plot with its tools: drag or keys to zoom, hover or arrows to read, a logarithmic axis on request.
class Chart {
  constructor(measure, height) {
    this.measure = measure;
    this.height = height;
    this.log = !MAIN.includes(measure.name) && spansDecades(measure.name);
    this.heading = element("h3", { id: `plot-${measure.name}`, text: measure.label });
    const tool = (text, label, action) => element("button", { type: "button", text, title: label, "aria-label": label, onclick: action });
    this.logButton = tool("log y", "Logarithmic axis", () => { this.log = !this.log; this.draw(); });
    this.tools = element("div", { class: "tools" }, this.logButton, tool("−", "Zoom out", () => this.zoom(2)),
      tool("+", "Zoom in", () => this.zoom(0.5)), tool("reset", "Show all", () => this.reset()), this.saving());
    this.plot = element("div", { class: "plot", tabindex: "0", role: "group", "aria-labelledby": this.heading.id,
      "aria-roledescription": "plot", onkeydown: (event) => this.key(event), onblur: () => this.leave() });
    this.note = element("span", { class: "muted small" });
    this.tip = element("div", { class: "tip", role: "status", hidden: true });
    this.card = element("div", { class: "card" }, element("div", { class: "heading" }, element("div", {}, this.heading, this.note), this.tools), this.plot);
    this.plot.addEventListener("pointermove", (event) => this.touch(event));
  }

  /** Lines in the units of the plot: accuracies in per cent, on a logarithmic axis as errors, which is where they differ. */
  lines() {
    const found = [];
    for (const group of visibleGroups()) {
      const series = group.series[this.measure.name];
      if (!series || (view.axis !== "round" && !group.axes[view.axis])) continue;
      const convert = !isAccuracy(this.measure.name) ? (v) => v : this.log ? (v) => 100 - 100 * v : (v) => 100 * v;
      const scale = isAccuracy(this.measure.name) ? 100 : 1;
      const y = smoothed(series.mean).map(convert);
      const std = smoothed(series.std ?? series.mean.map(() => 0)).map((v) => scale * v);
      const runs = (series.runs ?? []).map((run) => smoothed(run).map(convert));
      const edge = (pick, sign) => y.map((v, k) => (view.band === "range" && runs.length ? pick(...runs.map((run) => run[k]))
        : view.band === "std" ? v + sign * std[k] : v));
      found.push({ group, x: positions(group, series), y, std, runs, low: edge(Math.min, -1), high: edge(Math.max, 1), signed: series.mean.some((v) => v < 0) });
    }
    return found.sort((a, b) => (a.group.algorithm === FIRST) - (b.group.algorithm === FIRST)); // FedVRA on top
  }

  draw() {
    const kept = this.u && this.zoomed && this.zoomedAxis === view.axis ? { ...this.u.scales.x } : null;
    if (this.u) this.u.destroy();
    this.logButton.setAttribute("aria-pressed", this.log);
    const error = this.log && isAccuracy(this.measure.name);
    this.heading.textContent = error ? this.measure.label.replace(/accuracy/i, "error") : this.measure.label;
    this.unit = isAccuracy(this.measure.name) ? "%" : "";
    const lines = (this.drawn = this.lines());
    this.room = this.space();
    const floor = Math.min(...lines.flatMap((line) => line.y.filter((v) => v > 0))) / 3;
    const visible = (v) => (!this.log ? v : v > 0 ? v : null);
    const ceiling = this.unit ? 100 : Infinity; // no band says what no run could: an accuracy above 100%, a loss below 0
    for (const line of lines) {
      line.high = line.high.map((v) => Math.min(v, ceiling));
      line.low = line.low.map((v) => (this.log ? Math.max(v, floor) : line.signed ? v : Math.max(v, 0)));
    }
    const tables = lines.map((line) => [line.x, line.y.map(visible), line.high.map(visible), line.low,
      ...(view.seeds ? line.runs.map((run) => run.map(visible)) : [])]);
    const data = tables.length ? uPlot.join(tables) : [[0, 1]];
    const series = [{}], bands = [];
    const scaling = this.scaling(), few = lines.length <= FEW;
    lines.forEach((line) => {
      const { group, x } = line, auto = scaling.includes(line); // one that went off to 1e31 leaves no room for the others
      const first = series.length, pointed = !few && view.pointed === group.label, dash = group.dash.map((each) => 2.2 * each);
      series.push({ auto, stroke: group.colour, width: pointed ? 3.4 : 2.2, dash, spanGaps: true,
        points: { show: x.length === 1, size: 8, fill: group.colour } });
      const edge = { auto, stroke: "transparent", width: 0, spanGaps: true, points: { show: false } };
      series.push({ ...edge }, { ...edge });
      line.banded = view.band !== "none" && auto && (few || pointed); // many are mud
      if (line.banded) bands.push({ series: [first + 1, first + 2], fill: `${group.colour}30` });
      if (view.seeds) line.runs.forEach(() => series.push({ auto, stroke: `${group.colour}70`, width: 1, spanGaps: true, points: { show: false } }));
    });
    this.u = new uPlot(this.options(series, bands), data, this.plot);
    this.plot.append(this.tip);
    this.tip.hidden = true;
    this.plot.setAttribute("aria-description", this.description(lines));
    if (kept) this.u.setScale("x", kept);
  }

  options(series, bands) {
    const axis = { stroke: css("--muted"), font: NAME_FONT(1), grid: { stroke: css("--grid"), width: 1 },
      ticks: { stroke: css("--grid"), width: 1, size: 5 } };
    return {
      width: Math.max(200, this.plot.clientWidth),
      height: this.height,
      series, bands,
      legend: { show: false },
      padding: [null, this.named() ? this.room : null, null, null],
      scales: { x: { time: false, distr: view.logX ? 3 : 1 }, y: { distr: this.log ? 3 : 1, ...this.ranged() } },
      axes: [
        { ...axis, label: AXES[view.axis].label, labelFont: axis.font, labelSize: 18, size: 30, gap: 3, labelGap: 0, space: view.axis === "round" ? 45 : 75,
          ...(view.axis === "round" && !view.logX ? { incrs: WHOLE } : {}),
          values: (u, ticks) => ticks.map((v) => (v === null ? "" : AXES[view.axis].tick(v))) },
        { ...axis, size: 58, values: (u, ticks, i, space, step) => ticks.map((v) => (v === null ? "" : tickText(v, this.log ? 0 : step) + this.unit)) },
      ],
      cursor: { drag: { x: true, y: false, dist: 6 }, y: false, points: { size: 9, width: 2 },
        dataIdx: (u, k, hovered) => nearest(u.data[k], hovered) },
      hooks: {
        setCursor: [(u) => this.read(u)],
        draw: [(u) => this.drawTargets(u), (u) => this.drawNames(u)],
        setScale: [(u, key) => { if (key === "x") this.noteZoom(u); }],
      },
    };
  }

  /**
   * The first rounds of an accuracy are a cliff that would leave the rest a flat line: they may leave the plot below, but nothing
   * after the first tenth of the rounds does. Zooming in, or showing all, shows them. What diverged has no say: see draw.
   */
  ranged() {
    if (this.log || !this.drawn.length) return {};
    const lines = this.scaling();
    const edges = (from) => lines.flatMap(({ low, high }) => low.flatMap((v, k) => (k < from(low.length) ? [] : [v, high[k]])));
    const clip = (v) => (this.unit ? Math.min(100, Math.max(0, v)) : v);
    const all = edges(() => 0).map(clip), later = Math.min(...edges((length) => Math.floor(length / 10)).map(clip));
    const least = Math.min(...all), most = Math.max(...all), signed = lines.some((line) => line.signed);
    return {
      range: (u, min, max) => {
        if (min === null) return this.unit ? [0, 100] : [0, 1];
        const cut = this.unit && !this.whole && min <= least && max >= most && later - least > (most - least) / 3;
        const low = cut ? Math.max(min, later - 0.6 * (max - later)) : min;
        const beyond = this.beyond();
        this.note.textContent = cut ? `from ${tickText(low, 0.1)}% up; reset shows the first rounds too`
          : beyond.length ? `beyond the axis: ${beyond.join(", ")}; reset shows all` : "";
        const margin = Math.max(0.05 * (max - low), this.unit ? 0.05 : Math.abs(max) * 1e-3, 1e-12);
        return [signed ? low - margin : Math.max(0, low - margin), this.unit ? Math.min(100, max + margin) : max + margin];
      },
    };
  }

  /**
   * The lines that axes are made for: those that did not diverge, where there are any. A loss that towers above all others
   * (a run that blew up and was not stopped) would flatten them, so it may leave the plot too; a note says so.
   */
  scaling() {
    if (this.whole) return this.drawn;
    const finished = this.drawn.filter(({ group }) => group.whole), lines = finished.length ? finished : this.drawn;
    if (!this.measure.name.endsWith("loss") || this.log) return lines;
    const height = (line) => Math.max(...line.y), lowest = Math.min(...lines.map(height));
    return lines.filter((line) => height(line) <= TOWERING * lowest);
  }

  /** The labels of lines that go beyond an end of the axis. */
  beyond() {
    const shown = this.scaling(), top = Math.max(...shown.flatMap((line) => line.high)), bottom = Math.min(...shown.flatMap((line) => line.low));
    return this.drawn.filter((line) => !shown.includes(line) && (Math.max(...line.y) > top || Math.min(...line.y) < bottom)).map((line) => line.group.label);
  }

  /** In words, for those who do not see the plot. */
  description(lines) {
    const last = (line) => `${line.group.label} ends at ${significant(line.y[line.y.length - 1])}${this.unit}`;
    return `Over ${AXES[view.axis].label}. ${lines.map(last).join("; ")}.`;
  }

  // -- reading ----------------------------------------------------------------------------------------------------------

  read(u) {
    if (u.cursor.left === null || u.cursor.left < 0 || !this.drawn.length) { this.tip.hidden = true; return; }
    const at = u.posToVal(u.cursor.left, "x");
    const rows = this.drawn.map((line) => ({ line, k: closest(line.x, at) })).sort((a, b) => b.line.y[b.k] - a.line.y[a.k]);
    const common = closest(this.drawn[0].x, at);
    const body = element("table", {}, ...rows.map(({ line, k }) => element("tr", {}, element("td", {}, swatch(line.group)),
      element("td", { text: line.group.label }),
      element("td", { class: "number", text: this.figure(line, k) }))));
    const where = AXES[view.axis].text(view.axis === "round" ? this.drawn[0].x[common] : at);
    this.tip.replaceChildren(element("b", { text: where }), body);
    this.tip.hidden = false;
    // At the far side: what one points at stays in sight.
    const right = u.cursor.left < u.over.clientWidth / 2, width = this.tip.offsetWidth;
    this.tip.style.left = `${right ? u.over.offsetLeft + u.over.clientWidth - width - 6 : u.over.offsetLeft + 6}px`;
  }

  figure(line, k) {
    const text = this.unit ? line.y[k].toFixed(2) : significant(line.y[k], 4);
    return (line.group.counted > 1 ? pair(line.y[k], line.std[k], text) : text) + this.unit;
  }

  leave() { this.u.setCursor({ left: -10, top: -10 }); }

  touch(event) {
    if (event.pointerType === "mouse") return;
    const box = this.u.over.getBoundingClientRect();
    this.u.setCursor({ left: event.clientX - box.left, top: event.clientY - box.top });
  }

  key(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1 };
    if (event.key in steps) this.step(steps[event.key] * (event.shiftKey ? 10 : 1));
    else if (event.key === "+" || event.key === "=") this.zoom(0.5);
    else if (event.key === "-") this.zoom(2);
    else if (event.key === "0" || event.key === "Escape") this.reset();
    else return;
    event.preventDefault();
  }

  step(by) {
    const x = this.u.data[0], { min, max } = this.u.scales.x;
    const now = this.u.cursor.left >= 0 ? closest(x, this.u.posToVal(this.u.cursor.left, "x")) : closest(x, by > 0 ? min : max) - by;
    const value = x[Math.min(x.length - 1, Math.max(0, now + by))];
    this.u.setCursor({ left: this.u.valToPos(Math.min(max, Math.max(min, value)), "x"), top: 10 });
  }

  // -- zooming ----------------------------------------------------------------------------------------------------------

  zoom(factor) {
    const { min, max } = this.u.scales.x, all = this.u.data[0];
    const middle = this.u.cursor.left >= 0 ? this.u.posToVal(this.u.cursor.left, "x") : (min + max) / 2;
    const low = Math.max(all[0], middle - (middle - min) * factor), high = Math.min(all[all.length - 1], middle + (max - middle) * factor);
    if (high > low) this.u.setScale("x", { min: low, max: high });
  }

  reset() {
    this.whole = !this.whole && !this.zoomed;
    this.zoomed = false;
    this.draw();
  }

  noteZoom(u) {
    const all = u.data[0], { min, max } = u.scales.x;
    this.zoomed = min > all[0] || max < all[all.length - 1];
    this.zoomedAxis = view.axis;
  }

  // -- what stands in the plot besides the lines --------------------------------------------------------------------------

  drawTargets(u) {
    if (!["model_accuracy", "test_accuracy"].includes(this.measure.name)) return;
    const { ctx } = u, { left, width } = u.bbox;
    ctx.save();
    ctx.setLineDash([3, 5]);
    for (const target of targets().map(Number).filter((each) => !isNaN(each))) {
      const value = this.log ? 100 - target : target;
      if (!(value > u.scales.y.min && value < u.scales.y.max)) continue;
      const chosen = String(target) === view.target;
      ctx.strokeStyle = css(chosen ? "--accent" : "--line");
      ctx.lineWidth = (chosen ? 1.5 : 1) * devicePixelRatio;
      ctx.beginPath();
      ctx.moveTo(left, u.valToPos(value, "y", true));
      ctx.lineTo(left + width, u.valToPos(value, "y", true));
      ctx.stroke();
    }
    ctx.restore();
  }

  /** Beyond a few lines a legend is no help: each is named where it ends, in full, unless that would leave the lines no room. */
  named() { return this.room > 0; }

  /** Pixels beside the plot for the names of its lines; 0 where they are not named. */
  space() {
    if (this.drawn.length <= FEW || this.plot.clientWidth <= 520 || this.height <= 240) return 0;
    const context = element("canvas", {}).getContext("2d");
    context.font = NAME_FONT(1);
    const widest = 16 + Math.ceil(Math.max(...this.drawn.map((line) => context.measureText(line.group.label).width)));
    return widest <= MOST_FOR_NAMES * this.plot.clientWidth ? widest : 0;
  }

  drawNames(u) {
    if (!this.named()) return;
    const { ctx } = u, scale = devicePixelRatio, gap = 14 * scale;
    const ends = this.ends((value) => u.valToPos(value, "y", true), u.bbox.top, u.bbox.top + u.bbox.height, gap);
    ctx.save();
    ctx.font = NAME_FONT(scale);
    ctx.textBaseline = "middle";
    ctx.textAlign = "left"; // the axes leave another
    for (const { line, at } of ends) {
      ctx.fillStyle = line.group.colour;
      ctx.fillText(line.group.label, u.bbox.left + u.bbox.width + 6 * scale, at);
    }
    ctx.restore();
  }

  /** Where each line's name stands: at its end, but clear of the others and within the plot. */
  ends(place, top, bottom, gap) {
    const found = this.drawn.map((line) => ({ line, at: place(line.y[line.y.length - 1]) }))
      .filter(({ at }) => at >= top - 1 && at <= bottom + 1).sort((a, b) => a.at - b.at);
    found.forEach((end, k) => { if (k) end.at = Math.max(end.at, found[k - 1].at + gap); });
    const last = found.length - 1;
    for (let k = last; k >= 0; k--) found[k].at = Math.min(found[k].at, k === last ? bottom : found[k + 1].at - gap);
    return found;
  }

  // -- to keep ------------------------------------------------------------------------------------------------------------

  saving() {
    const choice = element("select", { class: "save", "aria-label": `Save ${this.measure.label}`, title: "Save the plot or its data" },
      ...["save", "SVG", "PNG", "CSV"].map((text) => element("option", { value: text, text })));
    choice.addEventListener("change", () => { this.save(choice.value); choice.value = "save"; });
    return choice;
  }

  save(kind) {
    const made = { SVG: () => ["image/svg+xml", this.svg()], CSV: () => ["text/csv", this.csv()] }[kind];
    const [type, text] = made ? made() : ["", ""];
    const href = made ? `data:${type};charset=utf-8,${encodeURIComponent(text)}` : this.plot.querySelector("canvas").toDataURL("image/png");
    const link = element("a", { href, download: `${this.measure.name.replace("/", "-")}.${kind.toLowerCase()}` });
    document.body.append(link);
    link.click();
    link.remove();
  }

  csv() {
    const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
    const most = Math.max(0, ...this.drawn.map((line) => line.runs.length)), runs = [...Array(most).keys()];
    const rows = this.drawn.flatMap((line) => line.x.map((x, k) => [quoted(line.group.label), x, line.y[k], line.low[k], line.high[k],
      ...runs.map((run) => line.runs[run]?.[k] ?? "")].join(",")));
    return [["label", view.axis, "mean", "low", "high", ...runs.map((run) => `run_${run + 1}`)].join(","), ...rows].join("\n") + "\n";
  }

  /** The plot as it is now, as lines that can be scaled and edited. */
  svg() {
    const { u } = this, width = u.width, height = u.height, box = u.over;
    const [left, top, w, h] = [box.offsetLeft, box.offsetTop, box.clientWidth, box.clientHeight];
    const X = (v) => (left + u.valToPos(v, "x")).toFixed(1), Y = (v) => (top + u.valToPos(v, "y")).toFixed(1);
    const safe = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;");
    const shown = (line, values) => line.x.map((x, k) => [x, values[k]]).filter(([x, v]) => x >= u.scales.x.min && x <= u.scales.x.max && v !== null && (!this.log || v > 0));
    const path = (points) => points.map(([x, v]) => `${X(x)},${Y(v)}`).join(" ");
    const marks = (axis, at) => axis._splits.map((v, k) => [v, axis._values[k]]).filter(([, text]) => text !== "" && text !== null).map(at).join("");
    const parts = this.drawn.map((line) => {
      const band = !line.banded ? "" : `<polygon points="${path([...shown(line, line.high), ...shown(line, line.low).reverse()])}" fill="${line.group.colour}" opacity="0.18"/>`;
      const dash = line.group.dash.map((each) => 2.2 * each).join(" ");
      const runs = view.seeds ? line.runs.map((run) => `<path d="M${path(shown(line, run)).replaceAll(" ", "L")}" fill="none" stroke="${line.group.colour}" opacity="0.44"/>`) : [];
      return `${band}${runs.join("")}<polyline points="${path(shown(line, line.y))}" fill="none" stroke="${line.group.colour}" stroke-width="2.2" stroke-dasharray="${dash}"><title>${safe(line.group.label)}</title></polyline>`;
    });
    const name = (line, x, y, anchor) => `<text x="${x}" y="${y}" text-anchor="${anchor}" dominant-baseline="middle" fill="${line.group.colour}">${safe(line.group.label)}</text>`;
    const legend = this.named() ? this.ends((v) => top + u.valToPos(v, "y"), top, top + h, 14).map(({ line, at }) => name(line, left + w + 6, at, "start"))
      : this.drawn.map((line, k) => name(line, left + w - 8, isAccuracy(this.measure.name) ? top + h - 14 - 16 * (this.drawn.length - 1 - k) : top + 10 + 16 * k, "end"));
    return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" font-family="sans-serif" font-size="12" fill="${css("--ink")}">`
      + `<rect width="${width}" height="${height}" fill="${css("--card")}"/><clipPath id="c"><rect x="${left}" y="${top}" width="${w}" height="${h}"/></clipPath>`
      + marks(u.axes[0], ([v, text]) => `<text x="${X(v)}" y="${top + h + 16}" text-anchor="middle">${safe(text)}</text>`)
      + marks(u.axes[1], ([v, text]) => `<line x1="${left}" x2="${left + w}" y1="${Y(v)}" y2="${Y(v)}" stroke="${css("--grid")}"/><text x="${left - 6}" y="${Y(v)}" text-anchor="end" dominant-baseline="middle">${safe(text)}</text>`)
      + `<text x="${left + w / 2}" y="${top + h + 32}" text-anchor="middle">${AXES[view.axis].label}</text><g clip-path="url(#c)">${parts.join("")}</g>${legend.join("")}</svg>`;
  }

  /** What is written along the y-axis, for tests. */
  ticks() { return this.u.axes[1]._values.filter(Boolean); }

  resize() {
    if (this.space() !== this.room) this.draw(); // there is room for names now, or none any more
    else this.u.setSize({ width: Math.max(200, this.plot.clientWidth), height: this.height });
  }
}

const FEW = 6; // lines that a plot can tell apart with their bands
const TOWERING = 10; // times as high as the lowest line gets: too high to share an axis with it
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 1e4, 1e5, 1e6];

const MOST_FOR_NAMES = 0.4; // of a plot's width
const NAME_FONT = (scale) => `${12 * scale}px system-ui, sans-serif`;

/** Means over the last few points. */
function smoothed(values) {
  if (view.smooth <= 1) return values;
  return values.map((_, k) => {
    const last = values.slice(Math.max(0, k + 1 - view.smooth), k + 1);
    return last.reduce((sum, v) => sum + v, 0) / last.length;
  });
}

/** A tick with as many decimals as tell it from the next. */
function tickText(value, step) {
  if (!step || Math.abs(value) >= 1e6 || (value !== 0 && Math.abs(value) < 1e-4)) return significant(value);
  return value.toFixed((String(Number(step.toPrecision(3))).split(".")[1] ?? "").length); // as many as the step has
}

/** Whether a measure is positive throughout and goes through more than two powers of ten: then a straight axis hides most of it. */
function spansDecades(name) {
  const values = allGroups().filter((group) => group.whole).flatMap((group) => group.series[name]?.mean ?? []);
  if (!values.length) return false;
  return Math.min(...values) > 0 && Math.max(...values) > 100 * Math.min(...values);
}

/** The index whose value is nearest. */
function closest(sorted, value) {
  let low = 0, high = sorted.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle; else high = middle;
  }
  return Math.abs(sorted[low] - value) <= Math.abs(sorted[high] - value) ? low : high;
}

/** The index nearest to one where there is a value: lines over data sent or time do not share their points. */
function nearest(values, index) {
  for (let away = 0; away < values.length; away++) {
    if (values[index - away] != null) return index - away;
    if (values[index + away] != null) return index + away;
  }
  return index;
}
