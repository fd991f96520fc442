"use strict";
// The sections of the page, one function each: what of the state it shows. `state` and `zoom` are those of main.js.

const LABELS = {
  random: "as good as guessing",
  frequency: "knows how often tokens occur",
  structure: "knows what follows what",
  coherence: "writes without loops",
  knowledge: "knows more than how texts go on",
};

/** A column of a preview's points, as those of a history are. */
function columnOf(values) {
  return { data: values, length: values.length };
}

/** Places for a chart of so many points at most. */
function grid(most) {
  return gridOf(zoom.shown(), most, state.logSteps);
}

/** Pulls and rewards of the run that is looked at, by source and place: counted once for all who draw them. */
function pulls() {
  const history = state.mainHistory(), { min, max } = zoom.shown(), places = grid(Math.max(2, Math.min(120, (max - min) / 10)));
  const key = [history.generation, history.rows, history.meta.sources.length, places[0], places[1], places.length, state.logSteps].join();
  if (history.counted?.key !== key) {
    const counted = pullsIn(history, places, history.meta.sources.length);
    history.counted = { key, places, ...counted, shares: sharesOf(counted.count) };
  }
  return history.counted;
}

/** The runs that are shown, the one that is looked at first: [{history, color, name}]. */
function shownRuns() {
  const many = state.shown().length > 1;
  return state.shown().map((model) => ({
    history: state.history(model), color: (alpha) => colorOf(state.colorIndex(model), alpha), name: many ? `${model} ` : "",
    first: model === state.main,
  }));
}

/** What happened at steps, as lines over the union of these steps: each of `rows` is {points: [[step, value]], ...line}. */
function byStep(rows) {
  const steps = [...new Set(rows.flatMap((row) => row.points.map(([step]) => step)))].sort((a, b) => a - b);
  const index = new Map(steps.map((step, place) => [step, place]));
  const lines = rows.map(({ points, ...line }) => {
    const values = new Array(steps.length).fill(null);
    for (const [step, value] of points) if (Number.isFinite(value)) values[index.get(step)] = value;
    return { ...line, values };
  });
  return [steps, lines];
}

// -- curves ------------------------------------------------------------------------------------------------------------

function drawLoss(chart) {
  const places = grid(600), lines = [];
  for (const { history, color, name, first } of shownRuns()) {
    const preview = history.preview.length > 0;
    const steps = preview ? columnOf(history.preview.map(([step]) => step)) : history.column("step");
    const loss = preview ? columnOf(history.preview.map(([, value]) => (value === null ? NaN : value))) : history.column("loss");
    if (!steps.length) continue;
    const [values, high] = extremes(steps, loss, places);
    lines.push({ label: `${name}loss`, values, high, color: color(preview ? 0.8 : 0.3), hidden: !first });
    if (preview) continue;
    lines.push({ label: `${name}EMA`, values: lasts(steps, history.smoothed(state.alpha), places), color: color(1), width: first ? 2.5 : 1.5 });
    lines.push({ label: `${name}SMMA`, values: lasts(steps, history.column("smma"), places), color: color(1), dash: [5, 4], width: 1.5, hidden: !first });
  }
  const chance = state.meta().chance;
  if (lines.length && chance) {
    const style = getComputedStyle(document.documentElement);
    lines.push({ label: "guessing", values: places.map(() => chance), color: style.getPropertyValue("--faint"), dash: [2, 4], width: 1 });
  }
  chart.set(places, lines, { logarithmic: state.logLoss, logSteps: state.logSteps });
}

/** The phases of learning as a strip below the loss, on the same axis; called when that is drawn. */
function drawStrip(chart) {
  const strip = document.getElementById("phase-strip"), phases = state.meta().phases;
  strip.hidden = !phases.length;
  if (strip.previousSibling !== chart.canvas) chart.canvas.after(strip);
  const { offsetLeft, clientWidth } = chart.plot.over, last = state.mainHistory().column("step").last();
  strip.replaceChildren(...phases.map(([step, phase], index) => {
    const start = chart.share(step), width = chart.share(index + 1 < phases.length ? phases[index + 1][0] : last) - start;
    const part = make("span", { class: `phase-${phase}`, title: `${phase} from step ${shown(step)}` }, width * clientWidth > 80 ? phase : "");
    part.style.left = `${offsetLeft + start * clientWidth}px`;
    part.style.width = `${width * clientWidth}px`;
    part.hidden = width <= 0;
    return part;
  }));
}

function drawBits(chart) {
  const rows = [];
  for (const { history, color, name, first } of shownRuns()) {
    const mean = history.evaluations.map((line) => [line.step, meanOf(line.bits_per_byte)]);
    if (!mean.length) continue;
    rows.push({ label: `${name}mean`, points: mean, color: first ? getComputedStyle(document.documentElement).getPropertyValue("--ink") : color(1), width: 2.5, dash: first ? undefined : [7, 4] });
    if (!first) continue;
    history.meta.sources.forEach((source, index) => {
      const points = history.evaluations.map((line) => [line.step, Number(line.bits_per_byte[source])]);
      rows.push({ label: source, points, color: colorOf(index), dash: index >= 8 ? [6, 3] : undefined });
    });
  }
  const [xs, lines] = byStep(rows);
  lines.forEach((line) => (line.points = xs.length < 40));
  chart.set(xs, lines, { logSteps: state.logSteps });
}

function drawCoherence(chart) {
  const rows = [];
  for (const { history, color, name } of shownRuns()) {
    if (history.meta.coherence.length) rows.push({ label: `${name}score`, points: history.meta.coherence, color: color(1), width: 2 });
  }
  const [xs, lines] = byStep(rows);
  lines.forEach((line) => (line.points = xs.length < 40));
  if (lines.length) lines.push({ label: "threshold", values: xs.map(() => 30), color: "#c0392b", dash: [4, 4], width: 1 });
  chart.set(xs, lines, { logSteps: state.logSteps, floor: 0 });
}

/** Curves of one column of every run: a band where many steps share a place. */
function drawColumn(chart, column, options) {
  const places = grid(500), lines = [];
  for (const { history, color, name, first } of shownRuns().reverse()) {
    const steps = history.column("step");
    if (!steps.length) continue;
    const [values, high] = extremes(steps, history.column(column), places);
    lines.push({ label: `${name}${options.label}`, values, high, color: color(first ? 0.8 : 0.5) });
  }
  chart.set(places, lines, { ...options, logSteps: state.logSteps, backwards: true });
}

function drawSpeed(chart) {
  const rows = [];
  for (const { history, color, name } of shownRuns()) {
    if (history.meta.speeds.length) rows.push({ label: `${name}tokens/s`, points: history.meta.speeds, color: color(1) });
  }
  const [xs, lines] = byStep(rows);
  chart.set(xs, lines, { floor: 0, logSteps: state.logSteps });
}

// -- sources -----------------------------------------------------------------------------------------------------------

function drawShares(chart) {
  const history = state.mainHistory(), sources = state.meta().sources, { places, shares } = pulls();
  const lines = [], total = new Array(places.length).fill(null);
  sources.forEach((source, index) => {
    shares[index].forEach((share, bucket) => (total[bucket] = share === null ? null : (total[bucket] || 0) + share));
    lines.unshift({ label: source, values: [...total], said: shares[index], color: colorOf(index), width: 0.5 });
  });
  chart.set(places, history.rows ? lines : [], { floor: 0, logSteps: state.logSteps, backwards: true });
}

function drawRewards(chart) {
  const history = state.mainHistory(), sources = state.meta().sources, { places, count, reward } = pulls();
  const lines = sources.map((source, index) => ({
    label: source, values: places.map((_, bucket) => (count[index][bucket] ? reward[index][bucket] / count[index][bucket] : null)),
    color: colorOf(index), dash: index >= 8 ? [6, 3] : undefined,
  }));
  chart.set(places, history.rows ? lines : [], { logSteps: state.logSteps });
}

const SVG = "http://www.w3.org/2000/svg";

function draw(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** The mix over time as a path in the polygon whose corners are the sources. */
function drawWalk(section) {
  const sources = state.meta().sources, { places, shares } = pulls();
  const known = places.map((_, bucket) => bucket).filter((bucket) => sources.length && shares[0][bucket] !== null);
  section.classList.toggle("without", !known.length);
  if (!known.length) return;
  const points = smoothed(known.map((bucket) => mixedAt(shares, bucket).map((value) => value * 100)), 5);
  const corners = sources.map((_, index) => cornerOf(index, sources.length).map((value) => value * 100));
  const last = known[known.length - 1], mix = sources.map((source, index) => `${source} ${Math.round(100 * shares[index][last])}%`);
  const text = `Shares from step ${shown(places[known[0]])} on, now ${mix.join(", ")}.`;
  const picture = draw("svg", { viewBox: "-175 -125 350 250", role: "img", "aria-label": `Walk of the shares. ${text}` });
  picture.append(draw("polygon", { points: corners.map((c) => c.join()).join(" "), class: "frame" }));
  corners.forEach(([x, y], index) => {
    const anchor = Math.abs(x) < 5 ? "middle" : x > 0 ? "start" : "end", name = sources[index];
    const label = draw("text", { x: x * 1.08, y: y * 1.1 + 3, "text-anchor": anchor }, name.length > 14 ? `${name.slice(0, 13)}\u2026` : name);
    picture.append(draw("circle", { cx: x, cy: y, r: 3.5, fill: colorOf(index) }), label);
  });
  for (let index = 1; index < points.length; index++) {
    const [[x1, y1], [x2, y2]] = [points[index - 1], points[index]];
    picture.append(draw("line", { x1, y1, x2, y2, class: "step", "stroke-opacity": 0.15 + (0.85 * index) / points.length }));
  }
  picture.append(draw("circle", { cx: points[0][0], cy: points[0][1], r: 3, class: "begin" }));
  picture.append(draw("circle", { cx: points[points.length - 1][0], cy: points[points.length - 1][1], r: 4.5, class: "end" }));
  section.querySelector(".drawing").replaceChildren(picture, make("p", { class: "note" }, `${text} Open circle: first, full circle: last; each point is the mean of five places.`));
}

/** The latest phases of the dice within the steps shown: in full the focus, pale what joined it. */
function drawDice(section) {
  const history = state.mainHistory(), sources = state.meta().sources, [min, max] = [zoom.shown().min, zoom.shown().max];
  const phases = history.phasesOfDice(min, max, 40);
  section.classList.toggle("without", !phases.length);
  if (!phases.length) return;
  const first = phases[0].start, last = phases[phases.length - 1], end = last.start + last.length, height = 20;
  const names = (indexes) => indexes.map((index) => sources[index]).join(", ") || "none";
  const text = `Steps ${shown(last.start)} to ${shown(end - 1)}: focus ${names(last.focus)}; joined by ${names(last.joined)}.`;
  const picture = draw("svg", { viewBox: `0 0 400 ${sources.length * height}`, role: "img", "aria-label": `The last ${phases.length} phases. ${text}` });
  const x = (step) => 100 + (300 * (step - first)) / (end - first);
  sources.forEach((source, index) => {
    const name = source.length > 16 ? `${source.slice(0, 15)}\u2026` : source;
    picture.append(draw("text", { x: 94, y: index * height + 14, "text-anchor": "end" }, name));
    picture.append(draw("rect", { x: 100, y: index * height + 1, width: 300, height: height - 2, class: "row" }));
  });
  for (const phase of phases) {
    for (const [group, opacity] of [[phase.focus, 1], [phase.joined, 0.4]]) {
      for (const index of group) {
        const width = Math.max(0.6, x(phase.start + phase.length) - x(phase.start) - 0.6);
        picture.append(draw("rect", { x: x(phase.start), y: index * height + 2, width, height: height - 4, fill: colorOf(index), "fill-opacity": opacity }));
      }
    }
  }
  section.querySelector(".drawing").replaceChildren(picture, make("p", { class: "note" }, `${phases.length} phases, steps ${shown(first)} to ${shown(end - 1)}. Now: ${text}`));
}

function drawSources(section) {
  const history = state.mainHistory(), meta = state.meta(), sources = meta.sources;
  section.classList.toggle("without", !sources.length);
  const { all, late, rewards, pulls } = latestPulls(history, sources.length, 1000);
  const evaluation = history.evaluations[history.evaluations.length - 1];
  const heads = ["source", "pulls", "share lately", "reward lately", "score", "weight", "bits per byte"];
  const rows = sources.map((source, index) => {
    const swatch = make("span", { class: "swatch" });
    swatch.style.setProperty("--color", colorOf(index));
    const score = meta.scores[index] === null ? "untried" : shown(meta.scores[index]);
    const cells = [shown(all[index]), pulls ? `${((100 * late[index]) / pulls).toFixed(1)}%` : "\u2013", shown(late[index] ? rewards[index] / late[index] : null), score,
      shown(meta.weights[index]), shown(evaluation ? Number(evaluation.bits_per_byte[source]) : null)];
    return make("tr", {}, make("th", { scope: "row" }, swatch, source), ...cells.map((cell) => make("td", {}, cell)));
  });
  const head = make("tr", {}, ...heads.map((text) => make("th", { scope: "col" }, text)));
  section.querySelector(".scroll").replaceChildren(make("table", {}, make("caption", {}, "Lately: the last 1,000 pulls"), make("thead", {}, head), make("tbody", {}, ...rows)));
}

// -- the run in figures ------------------------------------------------------------------------------------------------

function drawTiles() {
  const brief = state.brief(), history = state.mainHistory(), meta = state.meta();
  const smma = history.column("smma").last(), coherence = meta.coherence[meta.coherence.length - 1];
  const last = history.evaluations[history.evaluations.length - 1];
  const bits = meanOf(last ? last.bits_per_byte : brief.bits_per_byte);
  const tiles = [
    ["step", brief.step === null ? "\u2013" : shown(brief.step), brief.steps >= brief.step ? `of ${shown(brief.steps)}` : ""],
    ["loss", shown(Number.isFinite(smma) ? smma : brief.loss), Number.isFinite(smma) ? "SMMA, nats per token" : "last step"],
    ["perplexity", shown(Number.isFinite(smma) ? Math.exp(smma) : null), "of SMMA"],
    ["bits per byte", shown(bits), "held out, mean"],
    ["coherence", coherence ? coherence[1].toFixed(0) : "\u2013", "of 100"],
    ["tokens/s", shown(brief.tokens_per_second && Math.round(brief.tokens_per_second)), brief.tokens_per_second ? "lately" : "of a running run"],
    ["learning rate", shown(brief.learning_rate, 3), ""],
    ["gradient norm", shown(brief.grad_norm, 3), meta.skipped ? `${shown(meta.skipped)} updates skipped` : ""],
    ["tokens", meta.tokens ? short(meta.tokens) : "\u2013", "seen"],
  ];
  document.getElementById("tiles").replaceChildren(...tiles.map(([name, value, note]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, value, make("small", {}, note)))));
}

function drawLadder() {
  const phases = state.meta().phases, now = phases.length ? phases[phases.length - 1][1] : null;
  const began = new Map();
  for (const [step, phase] of phases) if (!began.has(phase)) began.set(phase, step);
  document.getElementById("ladder").replaceChildren(...Object.entries(LABELS).map(([phase, text]) => {
    const since = began.has(phase) ? `from step ${shown(began.get(phase))}` : "";
    return make("li", { class: `phase-${phase}`, title: text, "aria-current": phase === now ? "step" : null }, make("b", {}, phase), make("small", {}, since));
  }));
}

function drawState() {
  const brief = state.brief(), history = state.mainHistory();
  document.getElementById("run-title").textContent = brief.model;
  const reasons = Object.entries(brief.reasons).map(([name, reason]) => `${name}: ${reason}`).join("; ");
  const reading = !history.whole && brief.step ? ` Reading its history: ${Math.min(99, Math.floor((100 * history.rows) / brief.step))}%.` : "";
  document.getElementById("run-state").textContent = `${STATES[brief.state]}${reasons && ` \u2013 ${reasons}`}.${reading}`;
  const damaged = history.meta.damaged ? `${shown(history.meta.damaged)} lines of its journal could not be read` : "";
  const problem = [brief.problem, damaged, history.failure].filter(Boolean).join("; ");
  const place = document.getElementById("problem");
  place.hidden = !problem;
  if (place.textContent !== problem) place.textContent = problem;
}

const STATES = {
  empty: "has not made a step yet", running: "running", finished: "finished", stopped: "stopped by a plugin", interrupted: "interrupted",
};

function drawGauges(figures) {
  const gigabytes = (value) => `${(value / 2 ** 30).toFixed(1)} GiB`;
  const rows = [
    ["GPU", figures.gpu_util, 100, (value) => `${value}%`],
    ["GPU memory", figures.gpu_mem_used, figures.gpu_mem_total, (value, most) => `${gigabytes(value)} of ${gigabytes(most)}`],
    ["GPU power", figures.gpu_power_w, figures.gpu_power_limit_w, (value, most) => `${Math.round(value)} W${most ? ` of ${Math.round(most)} W` : ""}`],
    ["GPU temperature", figures.gpu_temp_c, 100, (value) => `${value} \u00b0C`],
    ["CPU load", figures.cpu_load_1m, figures.cpu_cores, (value, most) => `${value.toFixed(1)} on ${most} cores`],
    ["memory", figures.mem_used, figures.mem_total, (value, most) => `${gigabytes(value)} of ${gigabytes(most)}`],
  ];
  const known = rows.filter(([, value]) => value !== null);
  const items = known.map(([name, value, most, words]) => {
    const text = words(value, most);
    const meter = most ? [make("meter", { min: 0, max: most, value: Math.min(value, most), "aria-label": `${name}: ${text}` })] : [];
    return make("div", {}, make("dt", {}, name), make("dd", {}, ...meter, text));
  });
  if (figures.gpu_util === null && figures.gpu_mem_total === null) items.unshift(make("div", {}, make("dt", {}, "GPU"), make("dd", {}, "none is seen")));
  document.getElementById("gauges").replaceChildren(...items);
}

function drawCheckpoints(found) {
  const section = document.getElementById("checkpoints");
  const mine = found.filter((checkpoint) => checkpoint.model === state.main).reverse();
  section.classList.toggle("without", !mine.length);
  const head = make("tr", {}, make("th", { scope: "col" }, "step"), make("th", { scope: "col" }, "size"));
  const rows = mine.map(({ step, size_bytes: size }) => make("tr", {}, make("th", { scope: "row" }, shown(step)), make("td", {}, `${shown(size / 2 ** 20)} MiB`)));
  section.querySelector(".scroll").replaceChildren(make("table", {}, make("caption", {}, "The latest first"), make("thead", {}, head), make("tbody", {}, ...rows)));
}

// -- samples -----------------------------------------------------------------------------------------------------------

/** The samples of the run that is looked at: the latest, until the reader goes to another one. */
class Samples {
  constructor() {
    this.section = document.getElementById("samples");
    this.slider = document.getElementById("sample-step");
    this.label = document.getElementById("sample-label");
    this.texts = document.getElementById("texts");
    this.latest = true;
    this.slider.addEventListener("input", () => this.go(Number(this.slider.value)));
    document.getElementById("sample-before").addEventListener("click", () => this.go(Number(this.slider.value) - 1));
    document.getElementById("sample-after").addEventListener("click", () => this.go(Number(this.slider.value) + 1));
  }

  /** Take over which steps have samples. */
  update() {
    this.steps = state.meta().sampled;
    if (this.model !== state.main) Object.assign(this, { model: state.main, latest: true, step: null });
    this.section.classList.toggle("without", !this.steps.length);
    this.slider.max = Math.max(0, this.steps.length - 1);
    const place = this.latest ? this.steps.length - 1 : Math.max(0, this.steps.indexOf(this.step));
    this.slider.value = place;
    if (this.steps[place] !== undefined && this.steps[place] !== this.step) this.show(this.steps[place]);
  }

  go(place) {
    if (place < 0 || place >= this.steps.length) return;
    this.slider.value = place;
    this.latest = place === this.steps.length - 1;
    this.show(this.steps[place]);
  }

  async show(step) {
    this.step = step;
    const model = this.model;
    const { samples } = await getJson(`/samples/${pathOf(model)}?from=${step}&to=${step}`);
    if (this.step !== step || this.model !== model) return;
    const loss = samples.length ? `, loss ${shown(samples[0].loss)}` : "";
    this.label.textContent = `after step ${shown(step)}${loss}, ${samples.length} texts`;
    this.slider.setAttribute("aria-valuetext", `after step ${shown(step)}`);
    this.texts.replaceChildren(...samples.map(({ text }, index) => sampleText(text, index + 1)));
  }
}

/** A sample as text: whatever a model writes is no markup. */
function sampleText(text, number) {
  return make("pre", { ".textContent": text, tabindex: "0", role: "region", "aria-label": `text ${number}` });
}
