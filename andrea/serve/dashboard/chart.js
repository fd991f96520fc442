"use strict";
// A chart: uPlot for the drawing; around it a legend of buttons, keys to walk and zoom, and the figures as a table.

const EMPHASIS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#b58900", "#7a5cc2", "#c0392b"];
const EMPHASIS_DARK = ["#4aa8e0", "#ff8c42", "#2fc79a", "#e39ac4", "#8fd0f7", "#e6c34a", "#ab90ec", "#ff7b6b"];

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

/** The colour of the run or source of an index: eight that also colour-blind people tell apart, then hues in between. */
function colorOf(index, alpha = 1) {
  const base = (isDark() ? EMPHASIS_DARK : EMPHASIS)[index];
  if (!base) return `hsla(${Math.round(index * 137.5) % 360}, ${isDark() ? "60%, 68%" : "55%, 42%"}, ${alpha})`;
  return base + Math.round(alpha * 255).toString(16).padStart(2, "0");
}

/** A number as a person reads it. */
function shown(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "\u2013";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e15) return value.toLocaleString("en");
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return value.toPrecision(digits);
}

/** A new element with attributes, properties by a leading dot, and children. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name[0] === ".") element[name.slice(1)] = value;
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

/**
 * One chart of a section.
 *
 * A line is {label, values, color} and may have: high (then `values` is the low edge of a band), width, dash, hidden
 * (at first), of (the label of the line with which it is switched on and off), said (values to show in place of those
 * drawn). Later lines lie over earlier ones; `backwards` lists them in the legend with the last one first.
 */
class Chart {
  constructor(section, { height = 240, unit = "", zoom, stacked = false, drawn = null }) {
    Object.assign(this, { section, height, unit, zoom, stacked, drawn });
    this.title = section.querySelector("h3").textContent;
    this.place = section.querySelector(".chart");
    this.canvas = make("div", { class: "canvas", tabindex: "0", role: "group" });
    this.legend = make("div", { class: "legend" });
    this.at = make("p", { class: "at" });
    this.table = make("details", { class: "table" }, make("summary", {}, "As a table"));
    this.place.append(this.canvas, this.legend, this.at, this.table);
    this.off = new Map(); // label -> whether the reader has switched it off
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.table.addEventListener("toggle", () => this.fillTable());
    new ResizeObserver(() => this.resize()).observe(this.canvas);
  }

  /** Show lines over places on the axis of steps. */
  set(xs, lines, { logarithmic = false, logSteps = false, floor = null, backwards = false } = {}) {
    Object.assign(this, { xs, lines, logSteps, backwards });
    this.section.classList.toggle("without", !lines.length);
    const shape = JSON.stringify([logarithmic, logSteps, floor, isDark(), lines.map((l) => [l.label, l.color, l.dash, l.width, !!l.high])]);
    const data = [xs];
    for (const line of lines) {
      for (const values of line.high ? [line.values, line.high] : [line.values]) {
        data.push(logarithmic ? values.map((value) => (value > 0 ? value : null)) : values);
      }
    }
    if (shape === this.shape && this.plot) this.plot.setData(data);
    else this.create(shape, data, logarithmic, logSteps, floor);
    this.say(null);
    this.fillTable();
  }

  create(shape, data, logarithmic, logSteps, floor) {
    this.shape = shape;
    if (this.plot) this.plot.destroy();
    const series = [{}], bands = [];
    for (const line of this.lines) {
      const show = !this.isOff(line);
      const stroke = line.color, width = line.width || 1.5, points = { show: line.points || false, size: 5 };
      const base = { label: line.label, scale: "y", stroke, width, dash: line.dash, show, points, spanGaps: true };
      if (line.high) {
        bands.push({ series: [series.length + 1, series.length], fill: line.color });
        series.push({ ...base, width: 1 }, { ...base, width: 1 });
      } else series.push({ ...base, fill: this.stacked ? line.color : undefined });
    }
    const style = getComputedStyle(document.documentElement);
    const axis = { stroke: style.getPropertyValue("--faint"), grid: { stroke: style.getPropertyValue("--grid"), width: 1 },
      ticks: { stroke: style.getPropertyValue("--grid"), width: 1, size: 4 }, font: "11px system-ui, sans-serif" };
    const options = {
      width: Math.max(120, this.canvas.clientWidth), height: this.height, series, bands, legend: { show: false },
      padding: [8, 8, 0, 0],
      scales: {
        x: { time: false, distr: logSteps ? 3 : 1, range: () => this.span() },
        y: { distr: logarithmic ? 3 : 1, range: (plot, low, high) => this.range(low, high, logarithmic, floor) },
      },
      axes: [
        { ...axis, size: 26, space: 60, values: (plot, ticks) => ticks.map((tick) => (tick === null ? "" : short(tick))) },
        { ...axis, scale: "y", size: 52, values: (plot, ticks) => ticks.map((tick) => (tick === null ? "" : short(tick))) },
      ],
      cursor: { sync: { key: "steps", scales: ["x", null], setSeries: false }, drag: { x: true, y: false, setScale: false },
        points: { size: 6 }, bind: { dblclick: () => () => this.zoom.all() } },
      hooks: {
        setCursor: [(plot) => this.say(plot.cursor.idx)],
        setSelect: [(plot) => this.select(plot)],
        draw: this.drawn ? [() => this.drawn(this)] : [],
      },
    };
    this.plot = new uPlot(options, data, this.canvas);
    this.fillLegend();
  }

  /** The steps shown. */
  span() {
    const { min, max } = this.zoom.shown();
    return [min, max];
  }

  /** Where a step lies, as a share of the width between the first and the last that are shown. */
  share(step) {
    const [min, max] = this.span(), place = this.logSteps ? Math.log : Number;
    return (place(Math.min(Math.max(step, min), max)) - place(min)) / (place(max) - place(min));
  }

  range(low, high, logarithmic, floor) {
    if (low === null || high === null || low === undefined || high === undefined) return logarithmic ? [0.1, 10] : [0, 1];
    if (logarithmic) return [roundLog(low, [5, 2, 1], (edge) => edge <= low * 1.0001), roundLog(high, [1, 2, 5, 10], (edge) => edge >= high / 1.0001)];
    if (floor !== null) return [floor, this.stacked ? high : Math.max(high * 1.05, floor + 1e-9)];
    const room = (high - low) * 0.05 || Math.abs(high) * 0.05 || 0.5;
    return [low - room, high + room];
  }

  select(plot) {
    if (plot.select.width < 4) return;
    const min = plot.posToVal(plot.select.left, "x"), max = plot.posToVal(plot.select.left + plot.select.width, "x");
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    this.zoom.to(min, max);
  }

  resize() {
    const width = Math.max(120, this.canvas.clientWidth);
    if (this.plot && width !== this.plot.width) this.plot.setSize({ width, height: this.height });
  }

  /** Walk with the arrow keys, zoom with + and -, see all again with 0. */
  key(event) {
    const actions = { "+": "in", "=": "in", "-": "out", "0": "all", PageUp: "left", PageDown: "right" };
    if (event.ctrlKey || event.metaKey || event.altKey || !this.plot) return;
    if (actions[event.key]) this.zoom[actions[event.key]]();
    else if (event.key === "ArrowLeft" || event.key === "ArrowRight") this.walk(event.key === "ArrowLeft" ? -1 : 1);
    else return;
    event.preventDefault();
  }

  walk(direction) {
    const [min, max] = this.span();
    const known = (index) => this.xs[index] >= min && this.xs[index] <= max && this.lines.some((line) => line.values[index] !== null);
    let index = this.plot.cursor.idx;
    if (index === null || index === undefined) index = direction < 0 ? this.xs.length : -1;
    do index += direction;
    while (index >= 0 && index < this.xs.length && !known(index));
    if (index < 0 || index >= this.xs.length) return;
    const left = this.plot.valToPos(this.xs[index], "x");
    this.plot.setCursor({ left, top: this.height / 2 });
    this.at.setAttribute("aria-live", "polite");
    this.at.textContent = `${this.title}, ${this.words(index)}`;
  }

  /** What the lines say at an index; at their ends when it is null. */
  words(index) {
    const step = index === null ? "latest" : `step ${shown(this.xs[index])}`;
    const parts = this.lines.filter((line) => !this.isOff(line)).map((line) => `${line.label} ${this.value(line, index)}`);
    return `${step}: ${parts.join(", ")}`;
  }

  value(line, index) {
    const values = line.said || line.values;
    let at = index === null ? values.length - 1 : index;
    if (index === null) while (at > 0 && values[at] === null) at--;
    if (!line.high) return shown(values[at]);
    return line.values[at] === line.high[at] ? shown(values[at]) : `${shown(values[at])} to ${shown(line.high[at])}`;
  }

  /** Bring the legend's values to an index, and the name of the chart to what it shows last. */
  say(index) {
    const at = index === undefined ? null : index;
    for (const [line, output] of this.outputs || []) output.textContent = this.value(this.lines[line], at);
    if (at === null) this.canvas.setAttribute("aria-label", `Chart: ${this.title}${this.unit && `, ${this.unit}`}. ${this.words(null)}. Arrow keys read values, plus and minus zoom.`);
    else this.at.textContent = `step ${shown(this.xs[at])}`;
    if (at === null) this.at.textContent = "";
  }

  isOff(line) {
    const label = line.of || line.label;
    return this.off.has(label) ? this.off.get(label) : !!line.hidden;
  }

  fillLegend() {
    this.outputs = [];
    const keys = this.lines.flatMap((line, index) => {
      if (line.of) return [];
      const output = make("span", { class: "value" });
      this.outputs.push([index, output]);
      const swatch = make("span", { class: `swatch${line.dash ? " dashed" : ""}` });
      swatch.style.setProperty("--color", line.color);
      if (this.stacked) return [make("span", { class: "key" }, swatch, line.label, " ", output)]; // one less would leave a hole
      const button = make("button", { type: "button", "aria-pressed": String(!this.isOff(line)) }, swatch, line.label, " ", output);
      button.addEventListener("click", () => this.toggle(line, button));
      return [button];
    });
    this.legend.replaceChildren(...(this.backwards ? keys.reverse() : keys));
  }

  toggle(line, button) {
    this.off.set(line.label, !this.isOff(line));
    button.setAttribute("aria-pressed", String(!this.isOff(line)));
    let index = 0;
    for (const other of this.lines) {
      for (let part = 0; part < (other.high ? 2 : 1); part++) {
        index++;
        if ((other.of || other.label) === line.label) this.plot.setSeries(index, { show: !this.isOff(line) });
      }
    }
    this.say(null);
  }

  /** The figures shown, in about twenty rows, while the table is open. */
  fillTable() {
    if (!this.table.open || !this.lines) return;
    const lines = this.lines.filter((line) => !this.isOff(line));
    const [min, max] = this.span();
    const known = this.xs.map((_, index) => index).filter((index) => this.xs[index] >= min && this.xs[index] <= max && lines.some((line) => line.values[index] !== null));
    const every = Math.ceil(known.length / 20) || 1;
    const rows = known.filter((_, number) => (known.length - 1 - number) % every === 0);
    const head = make("tr", {}, ...["step", ...lines.map((line) => line.label)].map((label) => make("th", { scope: "col" }, label)));
    const body = rows.map((index) => make("tr", {}, make("th", { scope: "row" }, shown(this.xs[index])), ...lines.map((line) => make("td", {}, this.value(line, index)))));
    const table = make("table", {}, make("caption", {}, this.title), make("thead", {}, head), make("tbody", {}, ...body));
    this.table.replaceChildren(this.table.firstChild, make("div", { class: "scroll" }, table));
  }
}

/** The first of some multiples of the power of ten of a value that fits: where a logarithmic axis begins or ends. */
function roundLog(value, multiples, fits) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * (multiples.find((multiple) => fits(multiple * power)) || 1);
}

/** A tick's number: 20,000 is 20k. */
function short(value) {
  const size = Math.abs(value);
  if (size >= 1e9) return `${+(value / 1e9).toPrecision(4)}B`;
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(4)}M`;
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(4)}k`;
  if (size !== 0 && size < 1e-3) return value.toExponential(0);
  return String(+value.toPrecision(6));
}
