// One plot with its tools: drag or keys to zoom, hover or arrows to read, a logarithmic axis on request.
class Chart {
  constructor(measure, height) {
    this.measure = measure;
    this.height = height;
    this.log = !MAIN.includes(measure.name) && spansDecades(measure.name);
    this.heading = element("h3", { id: `plot-${measure.name}`, text: measure.label });
    const tool = (text, label, action) => element("button", { type: "button", text, title: label, "aria-label": label, onclick: action });
    this.logButton = tool("log", "Logarithmic axis", () => { this.log = !this.log; this.draw(); });
    this.tools = element("div", { class: "tools" }, this.logButton, tool("−", "Zoom out", () => this.zoom(2)),
      tool("+", "Zoom in", () => this.zoom(0.5)), tool("reset", "Show all", () => this.reset()));
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
      const spread = (series.std ?? series.mean.map(() => 0)).map((v) => scale * v);
      found.push({ group, x: positions(group, series), y: series.mean.map(convert), spread, signed: series.mean.some((v) => v < 0) });
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
    const floor = Math.min(...lines.flatMap((line) => line.y.filter((v) => v > 0))) / 3;
    const visible = (v) => (!this.log ? v : v > 0 ? v : null);
    const ceiling = this.unit ? 100 : Infinity; // no band says what no run could: an accuracy above 100%, a loss below 0
    const tables = lines.map((line) => [
      line.x, line.y.map(visible), line.y.map((v, k) => visible(Math.min(v + line.spread[k], ceiling))),
      line.y.map((v, k) => (this.log ? Math.max(v - line.spread[k], floor) : Math.max(v - line.spread[k], line.signed ? -Infinity : 0))),
    ]);
    const data = tables.length ? uPlot.join(tables) : [[0, 1]];
    const series = [{}], bands = [];
    const scaling = this.scaling();
    lines.forEach((line, k) => {
      const { group, x } = line, auto = scaling.includes(line); // one that went off to 1e31 leaves no room for the others
      series.push({ auto, stroke: group.colour, width: 2.2, dash: group.dash.map((each) => 2.2 * each), spanGaps: true,
        points: { show: x.length === 1, size: 8, fill: group.colour } });
      const edge = { auto, stroke: "transparent", width: 0, spanGaps: true, points: { show: false } };
      series.push({ ...edge }, { ...edge });
      bands.push({ series: [3 * k + 2, 3 * k + 3], fill: `${group.colour}30` });
    });
    this.u = new uPlot(this.options(series, bands), data, this.plot);
    this.plot.append(this.tip);
    this.tip.hidden = true;
    this.plot.setAttribute("aria-description", this.description(lines));
    if (kept) this.u.setScale("x", kept);
  }

  options(series, bands) {
    const axis = { stroke: css("--muted"), font: "12px system-ui, sans-serif", grid: { stroke: css("--grid"), width: 1 },
      ticks: { stroke: css("--grid"), width: 1, size: 5 } };
    return {
      width: Math.max(200, this.plot.clientWidth),
      height: this.height,
      series, bands,
      legend: { show: false },
      scales: { x: { time: false, distr: view.logX ? 3 : 1 }, y: { distr: this.log ? 3 : 1, ...this.ranged() } },
      axes: [
        { ...axis, label: AXES[view.axis].label, labelFont: axis.font, labelSize: 18, size: 30, gap: 3, labelGap: 0, space: view.axis === "round" ? 45 : 75,
          values: (u, ticks) => ticks.map((v) => (v === null ? "" : AXES[view.axis].tick(v))) },
        { ...axis, size: 58, values: (u, ticks, i, space, step) => ticks.map((v) => (v === null ? "" : tickText(v, this.log ? 0 : step) + this.unit)) },
      ],
      cursor: { drag: { x: true, y: false, dist: 6 }, y: false, points: { show: (u, k) => k % 3 === 1, size: 8 },
        dataIdx: (u, k, hovered) => nearest(u.data[k], hovered) },
      hooks: {
        setCursor: [(u) => this.read(u)],
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
    const edges = (from) => lines.flatMap(({ y, spread }) => y.flatMap((v, k) => (k < from(y.length) ? [] : [v - spread[k], v + spread[k]])));
    const clip = (v) => (this.unit ? Math.min(100, Math.max(0, v)) : v);
    const all = edges(() => 0).map(clip), later = Math.min(...edges((length) => Math.floor(length / 10)).map(clip));
    const least = Math.min(...all), most = Math.max(...all), signed = lines.some((line) => line.signed);
    return {
      range: (u, min, max) => {
        if (min === null) return this.unit ? [0, 100] : [0, 1];
        const cut = this.unit && !this.whole && min <= least && max >= most && later - least > (most - least) / 3;
        const low = cut ? Math.max(min, later - 0.6 * (max - later)) : min;
        this.note.textContent = cut ? `from ${tickText(low, 0.1)}% up; reset shows the first rounds too` : "";
        const margin = Math.max(0.05 * (max - low), this.unit ? 0.05 : Math.abs(max) * 1e-3, 1e-12);
        return [signed ? low - margin : Math.max(0, low - margin), this.unit ? Math.min(100, max + margin) : max + margin];
      },
    };
  }

  /** The lines that axes are made for: those that did not diverge, where there are any. */
  scaling() {
    const whole = this.drawn.filter(({ group }) => group.whole);
    return whole.length ? whole : this.drawn;
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
    const left = u.over.offsetLeft + u.cursor.left, width = this.tip.offsetWidth;
    const beside = left + 16 + width < this.plot.clientWidth ? left + 16 : left - 16 - width;
    this.tip.style.left = `${Math.max(0, beside)}px`;
  }

  figure(line, k) {
    const text = this.unit ? line.y[k].toFixed(2) : significant(line.y[k], 4);
    return (line.group.counted > 1 ? pair(line.y[k], line.spread[k], text) : text) + this.unit;
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
    const all = this.u.data[0];
    this.u.setScale("x", { min: all[0], max: all[all.length - 1] });
  }

  noteZoom(u) {
    const all = u.data[0], { min, max } = u.scales.x;
    this.zoomed = min > all[0] || max < all[all.length - 1];
    this.zoomedAxis = view.axis;
  }

  /** What is written along the y-axis, for tests. */
  ticks() { return this.u.axes[1]._values.filter(Boolean); }

  resize() { this.u.setSize({ width: Math.max(200, this.plot.clientWidth), height: this.height }); }
}

/** A tick with as many decimals as tell it from the next. */
function tickText(value, step) {
  if (!step || Math.abs(value) >= 1e6 || (value !== 0 && Math.abs(value) < 1e-4)) return significant(value);
  return value.toFixed(Math.min(6, Math.max(0, Math.ceil(-Math.log10(step) - 1e-9))));
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
