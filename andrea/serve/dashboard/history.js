"use strict";
// The histories of runs as the page holds them: columns that grow by what is fetched behind them.

const ARRAYS = { int32: Int32Array, float64: Float64Array, float32: Float32Array, uint16: Uint16Array, uint64: BigUint64Array };

/** A typed array that grows. */
class Column {
  constructor(Type) {
    this.data = new Type(1024);
    this.length = 0;
  }

  append(values) {
    const needed = this.length + values.length;
    if (needed > this.data.length) {
      const grown = new this.data.constructor(Math.max(needed, 2 * this.data.length));
      grown.set(this.data.subarray(0, this.length));
      this.data = grown;
    }
    this.data.set(values, this.length);
    this.length = needed;
  }

  /** The last value, NaN when there is none. */
  last() {
    return this.length ? this.data[this.length - 1] : NaN;
  }
}

/** A JSON answer of the server; an error with its words when it refuses. */
async function getJson(address) {
  const answer = await fetch(address);
  const value = await answer.json();
  if (!answer.ok) throw new Error(value.error || answer.statusText);
  return value;
}

/** The path of a run: a slash in its name stays one, everything else is escaped. */
function pathOf(model) {
  return model.split("/").map(encodeURIComponent).join("/");
}

/** What is known of the steps of one run. */
class RunHistory {
  constructor(model) {
    this.model = model;
    this.preview = []; // [step, loss]: a rough curve, until the history is whole
    this.clear();
  }

  clear() {
    this.generation = 0;
    this.columns = {};
    this.evaluations = [];
    this.meta = { sources: [], coherence: [], phases: [], sampled: [], scores: [], weights: [], speeds: [], chance: null };
    this.complete = false;
    this.whole = false; // was complete once in this generation
    this.ema = new Column(Float32Array);
  }

  get rows() {
    return this.columns.step ? this.columns.step.length : 0;
  }

  column(name) {
    return this.columns[name] || new Column(Float64Array);
  }

  /** Fetch what is new, part by part, and say so after each; one call at a time does the work. */
  async follow(changed) {
    this.again = true;
    if (this.following) return;
    this.following = true;
    try {
      while (this.again) {
        this.again = false;
        do {
          const query = `generation=${this.generation}&first=${this.rows}`;
          const answer = await fetch(`/history/${pathOf(this.model)}?${query}`);
          if (!answer.ok) throw new Error((await answer.json()).error);
          this.take(await answer.arrayBuffer());
          changed(this);
        } while (!this.complete);
      }
    } finally {
      this.following = false;
    }
  }

  /** Take over an answer: a header in JSON and columns, as docs/dashboard.md describes them. */
  take(buffer) {
    const [size] = new Uint32Array(buffer, 0, 1);
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, size)));
    if (header.generation !== this.generation) {
      this.clear();
      this.generation = header.generation;
    }
    let at = 8 + size;
    for (const { name, type, length } of header.columns) {
      const values = new ARRAYS[type](buffer, at, length);
      at += Math.ceil(values.byteLength / 8) * 8;
      (this.columns[name] = this.columns[name] || new Column(ARRAYS[type])).append(values);
    }
    merge(this.evaluations, header.evaluations, (line) => line.step);
    this.meta = header;
    this.complete = header.complete;
    this.whole = this.whole || header.complete;
    if (this.whole) this.preview = [];
  }

  /** The phases of the dice that lie within some steps, at most the last so many. */
  phasesOfDice(min, max, most) {
    const [starts, lengths, focus, joined] = ["start", "length", "focus", "joined"].map((name) => this.column(`dice_${name}`));
    const found = [];
    for (let index = starts.length - 1; index >= 0 && found.length < most; index--) {
      const start = starts.data[index], length = lengths.data[index];
      if (start + length < min) break;
      if (start <= max) found.unshift({ start, length, focus: bitsOf(focus.data[index]), joined: bitsOf(joined.data[index]) });
    }
    return found;
  }

  /** The exponential moving average of the loss, brought up to its last step; a plain mean as long as that is shorter. */
  smoothed(alpha) {
    const loss = this.column("loss");
    if (this.alpha !== alpha) {
      this.alpha = alpha;
      this.ema = new Column(Float32Array);
    }
    const fresh = new Float32Array(loss.length - this.ema.length);
    let average = this.ema.last();
    for (let index = 0, row = this.ema.length; index < fresh.length; index++, row++) {
      const value = loss.data[row];
      if (Number.isFinite(value)) average = Number.isFinite(average) ? average + Math.max(alpha, 1 / (row + 1)) * (value - average) : value;
      fresh[index] = average;
    }
    this.ema.append(fresh);
    return this.ema;
  }
}

/** The indexes of the bits that are set in a big integer. */
function bitsOf(mask) {
  const found = [];
  for (let index = 0n; mask >> index; index++) if ((mask >> index) & 1n) found.push(Number(index));
  return found;
}

/** Add items behind those that are there; one with the key of the last ones replaces it. */
function merge(items, more, key) {
  for (const item of more) {
    while (items.length && key(items[items.length - 1]) >= key(item)) items.pop();
    items.push(item);
  }
}
