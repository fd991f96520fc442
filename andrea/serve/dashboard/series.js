"use strict";
// What is drawn of a history: a few hundred points, however many steps it has. Nothing here touches the page.

/** The index of the first value that is at least `wanted`, in an ascending array of so many. */
function firstAtLeast(values, length, wanted) {
  let low = 0, high = length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low;
}

/**
 * Places on the axis of steps: edges of buckets, ascending. On a linear axis they are multiples of one width, so that
 * they stay where they are while a run grows; on a logarithmic one they grow by one factor.
 */
function gridOf(view, most, logarithmic) {
  const edges = [];
  if (logarithmic) {
    const first = Math.max(1, view.min), last = Math.max(first + 1, view.max);
    const factor = Math.pow(last / first, 1 / most);
    for (let edge = first; edge < last; edge = Math.max(Math.floor(edge) + 1, edge * factor)) edges.push(Math.floor(edge));
    edges.push(last);
    return edges;
  }
  const width = niceWidth((view.max - view.min) / most);
  for (let edge = Math.floor(view.min / width) * width; edge <= view.max; edge += width) edges.push(edge);
  return edges;
}

/** The next of 1, 2, 5, 10, 20, 50, ...: widths that change seldom while a run grows. */
function niceWidth(wanted) {
  let width = 1;
  while (width < wanted) width *= width.toString()[0] === "2" ? 2.5 : 2;
  return width;
}

/** For every bucket of a grid the index of its first row, and behind them the end of the last one. */
function rowsOf(steps, grid) {
  const bounds = new Int32Array(grid.length + 1);
  for (let bucket = 0; bucket < grid.length; bucket++) bounds[bucket] = firstAtLeast(steps.data, steps.length, grid[bucket]);
  bounds[grid.length] = steps.length;
  return bounds;
}

/** The least and the greatest value of every bucket; null where there is none. */
function extremes(steps, column, grid) {
  const low = new Array(grid.length).fill(null), high = new Array(grid.length).fill(null);
  const bounds = rowsOf(steps, grid), values = column.data;
  for (let bucket = 0; bucket < grid.length; bucket++) {
    let least = Infinity, greatest = -Infinity;
    for (let row = bounds[bucket]; row < bounds[bucket + 1]; row++) {
      const value = values[row];
      if (value < least && value !== -Infinity) least = value; // a comparison with NaN is false
      if (value > greatest && value !== Infinity) greatest = value;
    }
    if (least <= greatest) [low[bucket], high[bucket]] = [least, greatest];
  }
  return [low, high];
}

/** The last finite value of every bucket. */
function lasts(steps, column, grid) {
  const bounds = rowsOf(steps, grid);
  return grid.map((_, bucket) => {
    for (let row = bounds[bucket + 1] - 1; row >= bounds[bucket]; row--) {
      if (Number.isFinite(column.data[row])) return column.data[row];
    }
    return null;
  });
}

/** By source and bucket: pulls, and the sum of their rewards. */
function pullsIn(history, grid, sources) {
  const count = Array.from({ length: sources }, () => new Float64Array(grid.length));
  const reward = Array.from({ length: sources }, () => new Float64Array(grid.length));
  const bounds = rowsOf(history.column("step"), grid), rows = history.column("pull_row");
  const source = history.column("pull_source").data, rewards = history.column("pull_reward").data;
  let pull = firstAtLeast(rows.data, rows.length, bounds[0]);
  for (let bucket = 0; bucket < grid.length; bucket++) {
    for (; pull < rows.length && rows.data[pull] < bounds[bucket + 1]; pull++) {
      count[source[pull]][bucket] += 1;
      if (Number.isFinite(rewards[pull])) reward[source[pull]][bucket] += rewards[pull];
    }
  }
  joinLast(count, reward, grid.length);
  return { count, reward };
}

/** Put what the last bucket has into the one before while it has but a few pulls: a share of three says nothing. */
function joinLast(count, reward, buckets) {
  const total = (bucket) => count.reduce((sum, source) => sum + source[bucket], 0);
  let last = buckets - 1;
  while (last > 0 && !total(last)) last--;
  if (last < 1 || 3 * total(last) >= total(last - 1)) return;
  for (const table of [...count, ...reward]) {
    table[last - 1] += table[last];
    table[last] = 0;
  }
}

/** Shares of the pulls of every bucket, by source; null where nothing was pulled. */
function sharesOf(count) {
  const buckets = count.length ? count[0].length : 0;
  const totals = Array.from({ length: buckets }, (_, bucket) => count.reduce((sum, source) => sum + source[bucket], 0));
  return count.map((source) => totals.map((total, bucket) => (total ? source[bucket] / total : null)));
}

/** Where a mix of sources lies in the regular polygon whose corners they are, within the unit circle. */
function cornerOf(source, sources) {
  const angle = (2 * Math.PI * source) / sources - Math.PI / 2;
  return [Math.cos(angle), Math.sin(angle)];
}

function mixedAt(shares, bucket) {
  let x = 0, y = 0;
  for (let source = 0; source < shares.length; source++) {
    const [cornerX, cornerY] = cornerOf(source, shares.length);
    x += shares[source][bucket] * cornerX;
    y += shares[source][bucket] * cornerY;
  }
  return [x, y];
}

/** Every point as the mean of the last so many. */
function smoothed(points, most) {
  return points.map((_, index) => {
    const some = points.slice(Math.max(0, index + 1 - most), index + 1);
    return [0, 1].map((axis) => some.reduce((sum, point) => sum + point[axis], 0) / some.length);
  });
}

/** How often each source was pulled, in all and of late, and the rewards of the latter: in the last so many pulls. */
function latestPulls(history, sources, most) {
  const source = history.column("pull_source"), reward = history.column("pull_reward");
  const all = new Float64Array(sources), late = new Float64Array(sources), rewards = new Float64Array(sources);
  const data = source.data, first = Math.max(0, source.length - most);
  for (let pull = 0; pull < source.length; pull++) all[data[pull]] += 1;
  for (let pull = first; pull < source.length; pull++) {
    late[data[pull]] += 1;
    if (Number.isFinite(reward.data[pull])) rewards[data[pull]] += reward.data[pull];
  }
  return { all, late, rewards, pulls: source.length - first };
}

/** The mean of an object's numbers, null of none. */
function meanOf(byName) {
  const values = Object.values(byName || {}).map(Number).filter(Number.isFinite);
  return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
}
