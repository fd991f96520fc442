"use strict";
// What the reader has chosen, what the server says, and when which section is drawn.

const PREVIEW = 1000; // points of the rough curve that stands until a long history is read
const LONG = 4 << 20; // bytes of a journal from which on there is one

const state = {
  briefs: new Map(), histories: new Map(), colors: new Map(),
  main: null, over: new Set(), logLoss: false, logSteps: false, alpha: 0.02,

  shown() { return this.main === null ? [] : [this.main, ...[...this.over].filter((model) => model !== this.main && this.briefs.has(model))]; },
  brief() { return this.briefs.get(this.main); },
  mainHistory() { return this.history(this.main); },
  meta() { return this.mainHistory().meta; },
  history(model) {
    if (!this.histories.has(model)) this.histories.set(model, new RunHistory(model));
    return this.histories.get(model);
  },
  /** The same colour for a run as long as it is shown. */
  colorIndex(model) {
    if (!this.colors.has(model)) {
      const taken = new Set(this.colors.values());
      let index = 0;
      while (taken.has(index)) index++;
      this.colors.set(model, index);
    }
    return this.colors.get(model);
  },
};

// -- which steps are shown ---------------------------------------------------------------------------------------------

const zoom = {
  view: null,

  /** The steps that there are, of all runs shown. */
  whole() {
    let min = Infinity, max = 0;
    for (const model of state.shown()) {
      const steps = state.history(model).column("step"), preview = state.history(model).preview;
      if (preview.length) [min, max] = [Math.min(min, preview[0][0]), Math.max(max, preview[preview.length - 1][0])];
      else if (steps.length) [min, max] = [Math.min(min, steps.data[0]), Math.max(max, steps.last())];
    }
    return { min: Number.isFinite(min) ? min : 0, max: Math.max(max, (Number.isFinite(min) ? min : 0) + 1) };
  },
  shown() {
    const { min, max } = this.view || this.whole();
    return state.logSteps ? { min: Math.max(1, min), max: Math.max(2, max) } : { min, max };
  },
  to(min, max) {
    const whole = this.whole();
    const low = Math.max(whole.min, Math.floor(min)), high = Math.min(whole.max, Math.ceil(max));
    this.view = low <= whole.min && high >= whole.max ? null : { min: Math.min(low, high - 2), max: high };
    schedule();
  },
  all() { this.view = null; schedule(); },
  by(factor, shift) {
    const { min, max } = this.view || this.whole(), half = ((max - min) * factor) / 2, middle = (min + max) / 2 + shift * (max - min);
    this.to(middle - half, middle + half);
  },
  in() { this.by(0.5, 0); },
  out() { this.by(2, 0); },
  left() { this.by(1, -0.5); },
  right() { this.by(1, 0.5); },
};

// -- drawing -----------------------------------------------------------------------------------------------------------

const byId = (id) => document.getElementById(id);
const chart = (id, options) => new Chart(byId(id), { zoom, ...options });
const charts = {
  loss: chart("loss", { height: 320, unit: "nats per token", drawn: drawStrip }), bits: chart("bits", { unit: "bits per byte" }), coherence: chart("coherence", { unit: "of 100" }),
  shares: chart("shares", { stacked: true }), rewards: chart("rewards", {}), rate: chart("rate", { height: 180 }), norm: chart("norm", { height: 180 }), speed: chart("speed", { height: 180 }),
};
const samples = new Samples();
const panels = {
  overview: () => { drawState(); drawTiles(); drawLadder(); },
  loss: () => drawLoss(charts.loss), bits: () => drawBits(charts.bits), coherence: () => drawCoherence(charts.coherence),
  shares: () => drawShares(charts.shares), rewards: () => drawRewards(charts.rewards), walk: () => drawWalk(byId("walk")), dice: () => drawDice(byId("dice")),
  sources: () => drawSources(byId("sources")), samples: () => samples.update(),
  rate: () => drawColumn(charts.rate, "learning_rate", { label: "learning rate", floor: 0 }),
  norm: () => drawColumn(charts.norm, "grad_norm", { label: "gradient norm", logarithmic: true }), speed: () => drawSpeed(charts.speed),
};
const visible = new Set(), stale = new Set();
let scheduled = false, all = false;

/** Draw what can be seen of some sections, of all when none are named, before the next frame; the rest when it comes into view. */
function schedule(...ids) {
  if (!ids.length) all = true;
  for (const id of ids.length ? ids : Object.keys(panels)) stale.add(id);
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(render);
}

async function render() {
  scheduled = false;
  const begin = performance.now();
  if (state.main === null) return;
  const { min, max } = zoom.shown();
  byId("span").textContent = `steps ${shown(min)} to ${shown(max)}`;
  for (const id of [...stale]) if (visible.has(id)) drawPanel(id);
  await null; // uPlot draws at the end of the task
  performance.measure(all ? "update" : "touch", { start: begin });
  all = false;
  if (state.mainHistory().preview.length || state.mainHistory().rows) markOnce("first-curve");
  if (state.mainHistory().whole) markOnce("whole-curve");
}

function drawPanel(id) {
  stale.delete(id);
  panels[id]();
}

function markOnce(name) {
  if (!performance.getEntriesByName(name).length) performance.mark(name);
}

const observer = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting) visible.add(target.id);
    else visible.delete(target.id);
    if (isIntersecting && stale.has(target.id) && state.main !== null) drawPanel(target.id);
  }
}, { rootMargin: "200px" });
for (const id of Object.keys(panels)) observer.observe(byId(id));

// -- runs --------------------------------------------------------------------------------------------------------------

/** Fetch what is new of a run; of a long one a rough curve first. */
async function load(model) {
  const history = state.history(model), brief = state.briefs.get(model);
  try {
    if (!history.rows && !history.preview.length && brief.bytes > LONG) {
      const { points } = await getJson(`/loss/${pathOf(model)}?points=${PREVIEW}`);
      if (!history.whole) history.preview = points;
      schedule();
    }
    await history.follow(() => schedule());
    history.failure = "";
  } catch (error) {
    history.failure = `it cannot be read now: ${error.message}`;
    schedule();
  }
}

/** Look at a run. */
function choose(model) {
  if (model === state.main) return;
  state.main = model;
  forget();
  zoom.view = null;
  load(model);
  loadRest(model);
  chosen();
}

/** Lay a run over, or no longer. */
function lay(model, over) {
  if (over) state.over.add(model);
  else state.over.delete(model);
  forget();
  if (over) load(model);
  chosen();
}

/** Give back the colours and the memory of runs that are no longer shown. */
function forget() {
  const shown = new Set(state.shown());
  for (const map of [state.colors, state.histories]) for (const model of map.keys()) if (!shown.has(model)) map.delete(model);
}

function chosen() {
  const hash = `#${state.shown().map(encodeURIComponent).join("&")}`;
  if (location.hash !== hash) history.replaceState(null, "", hash);
  document.title = `${state.main} \u2013 ANDREA`;
  drawRuns();
  schedule();
}

async function loadRest(model) {
  const config = await getJson(`/config/${pathOf(model)}`);
  if (model !== state.main) return;
  byId("config").textContent = JSON.stringify(config, null, 2);
  loadCheckpoints();
}

async function loadCheckpoints() {
  drawCheckpoints((await getJson("/checkpoints")).checkpoints);
}

/** The list of runs: those that go on first, then by name. */
function drawRuns() {
  const wanted = byId("filter").value.toLowerCase();
  const briefs = [...state.briefs.values()].filter((brief) => brief.model.toLowerCase().includes(wanted));
  briefs.sort((a, b) => (b.state === "running") - (a.state === "running") || a.model.localeCompare(b.model, "en", { numeric: true }));
  byId("runs-count").textContent = `${state.briefs.size}`;
  const list = byId("runs"), before = new Map([...list.children].map((item) => [item.dataset.model, item]));
  const items = briefs.map((brief) => before.get(brief.model) || runItem(brief.model));
  if (items.length !== list.children.length || items.some((item, index) => item !== list.children[index])) list.replaceChildren(...items);
  briefs.forEach((brief, index) => fillItem(items[index], brief));
}

function runItem(model) {
  const box = make("input", { type: "checkbox", "aria-label": `Lay ${model} over` });
  box.addEventListener("change", () => lay(model, box.checked));
  const button = make("button", { type: "button" }, make("span", { class: "swatch" }), make("span", { class: "name" }, model));
  button.addEventListener("click", () => choose(model));
  return make("li", { "data-model": model }, box, button, make("span", { class: "facts" }));
}

function fillItem(item, brief) {
  const [box, button, facts] = item.children, shownNow = state.shown().includes(brief.model);
  box.checked = state.over.has(brief.model) || brief.model === state.main;
  box.disabled = brief.model === state.main;
  if (brief.model === state.main) button.setAttribute("aria-current", "true");
  else button.removeAttribute("aria-current");
  button.firstChild.style.setProperty("--color", shownNow ? colorOf(state.colorIndex(brief.model)) : "transparent");
  const step = brief.step === null ? "" : ` \u00b7 ${shown(brief.step)}${brief.steps >= brief.step ? ` of ${shown(brief.steps)}` : ""}`;
  const loss = brief.loss === null ? "" : ` \u00b7 loss ${shown(brief.loss)}`;
  const text = `${STATES[brief.state]}${step}${loss}`;
  if (facts.textContent !== text) facts.textContent = text;
  item.dataset.state = brief.state;
}

// -- what the server says ----------------------------------------------------------------------------------------------

let begun = false, listTimer = 0, saved = new Map();

function listen() {
  const source = new EventSource("/events");
  source.addEventListener("open", () => say("live"));
  source.addEventListener("error", () => say("no connection, trying again"));
  source.addEventListener("run", ({ data }) => runChanged(JSON.parse(data)));
  source.addEventListener("gone", ({ data }) => runGone(JSON.parse(data).model));
  source.addEventListener("system", ({ data }) => {
    drawGauges(JSON.parse(data));
    if (!begun) begin(); // it comes behind the runs
  });
}

function say(text) {
  byId("connection").textContent = text;
  byId("connection").dataset.state = text === "live" ? "live" : "lost";
}

function runChanged(brief) {
  state.briefs.set(brief.model, brief);
  if (!begun) return;
  if (state.main === null) begin();
  const known = state.histories.get(brief.model);
  if (known && known.generation) load(brief.model);
  if (brief.model === state.main && saved.get(brief.model) !== brief.checkpoint) {
    saved.set(brief.model, brief.checkpoint);
    loadCheckpoints();
  }
  if (brief.model === state.main) schedule("overview");
  clearTimeout(listTimer);
  listTimer = setTimeout(drawRuns, 50);
}

function runGone(model) {
  state.briefs.delete(model);
  state.over.delete(model);
  if (model === state.main) {
    state.main = null;
    begin();
  }
  drawRuns();
}

/** Look at the runs that the address names, else at one that goes on, else at the one that changed last. */
function begin() {
  begun = true;
  drawRuns();
  const [named, ...over] = location.hash.slice(1).split("&").map(decoded).filter((model) => state.briefs.has(model));
  const briefs = [...state.briefs.values()];
  briefs.sort((a, b) => (b.state === "running") - (a.state === "running") || b.changed - a.changed);
  const main = named !== undefined ? named : briefs.length ? briefs[0].model : null;
  if (main === null) return;
  over.forEach((model) => state.over.add(model));
  choose(main);
  over.forEach(load);
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return "";
  }
}

// -- controls ----------------------------------------------------------------------------------------------------------

for (const button of document.querySelectorAll("[data-zoom]")) button.addEventListener("click", () => zoom[button.dataset.zoom]());
byId("filter").addEventListener("input", drawRuns);
byId("log-loss").addEventListener("change", ({ target }) => { state.logLoss = target.checked; schedule(); });
byId("log-steps").addEventListener("change", ({ target }) => { state.logSteps = target.checked; schedule(); });
byId("smoothing").addEventListener("input", smooth);

/** The slider's place means 1, 2, 4, ... 1,024 steps. */
function smooth() {
  const steps = 2 ** Number(byId("smoothing").value);
  state.alpha = 2 / (steps + 1);
  byId("smoothing-steps").textContent = `${shown(steps)} ${steps === 1 ? "step" : "steps"}`;
  schedule();
}

/** The theme that was chosen, kept in this browser where it allows that. */
function theme(chosen) {
  if (chosen) document.documentElement.dataset.theme = chosen;
  else delete document.documentElement.dataset.theme;
  drawRuns();
  schedule();
}

byId("theme").addEventListener("change", ({ target }) => {
  try { localStorage.setItem("theme", target.value); } catch { /* a browser that keeps nothing */ }
  theme(target.value);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme(byId("theme").value));
try { byId("theme").value = localStorage.getItem("theme") || ""; } catch { /* as above */ }
if (matchMedia("(max-width: 899px)").matches) byId("runs-fold").open = false;
theme(byId("theme").value);
smooth();
listen();
