// How far back the edges of the scope reach, and how much of the attention they are.

/** Classes of distance in tokens: same place, then doubling; the share of weight and of edges in each. */
function distances(groupList) {
  const count = 33, { key, start, weight: mass } = data, weight = new Float64Array(count), edges = new Float64Array(count);
  const least = Math.min(about.block_rows, about.block_keys), perRow = about.block_rows / least, perKey = about.block_keys / least;
  for (const g of groupList) {
    for (let row = 0; row < rows; ++row) {
      const place = row * perRow, end = start[g * rows + row + 1];
      for (let e = start[g * rows + row]; e < end; ++e) {
        const at = 32 - Math.clz32(Math.abs(place - key[e] * perKey));  // 1 + the whole part of log2; 0 for 0
        edges[at] += 1;
        if (isMass) weight[at] += mass[e];
      }
    }
  }
  const share = (column) => {
    const sum = column.reduce((a, b) => a + b, 0) || 1;
    return Array.from(column, (x) => x / sum);
  };
  let last = count;
  while (last > 1 && !edges[last - 1]) --last;
  return { least, weight: share(weight).slice(0, last), edges: share(edges).slice(0, last) };
}

const short = (tokens) => tokens >= 1 << 20 ? (tokens >> 20) + "M" : tokens >= 1024 ? tokens / 1024 + "k" : "" + tokens;

/** A frame with a vertical axis in percent; gives the place of a share. */
function frame(c, width, height, left, bottom, top, title) {
  const at = (share) => height - bottom - share / top * (height - bottom - 8);
  c.strokeStyle = colours.line;
  c.fillStyle = colours.soft;
  for (const share of ticks(0, top, 4)) {
    c.beginPath();
    c.moveTo(left, at(share));
    c.lineTo(width - 8, at(share));
    c.stroke();
    label(c, +(100 * share).toPrecision(3) + "%", left - 5, at(share), "right");
  }
  upright(c, title, 8, (height - bottom) / 2);
  return at;
}

function drawFar() {
  const { c, width, height } = begin($("far")), found = state.distances, n = found.edges.length, left = 56, bottom = 40;
  const top = Math.max(...found.edges, ...found.weight, 0.01) * 1.05, at = frame(c, width, height, left, bottom, top, "share");
  const step = (width - left - 8) / n, bar = step * (isMass ? 0.38 : 0.7);
  for (let i = 0; i < n; ++i) {
    const x = left + i * step + step * 0.11;
    if (isMass) {
      c.fillStyle = colours.bar;
      c.fillRect(x, at(found.weight[i]), bar, at(0) - at(found.weight[i]));
    }
    c.strokeStyle = colours.soft;
    c.strokeRect((isMass ? x + bar + 2 : x) + 0.5, at(found.edges[i]), bar, at(0) - at(found.edges[i]));
  }
  c.fillStyle = colours.soft;
  const name = (i, whole) => i ? short(found.least * 2 ** (i - 1)) + (whole ? "–" + short(found.least * 2 ** i) : "") : "same";
  const widest = (whole) => Math.max(...found.edges.map((_, i) => c.measureText(name(i, whole)).width)) + 6;
  const whole = widest(true) <= step, every = whole ? 1 : Math.ceil(widest(false) / step);  // narrow: where it begins
  for (let i = 0; i < n; i += every) label(c, name(i, whole), left + (i + 0.5) * step, height - bottom + 12);
  const long = "distance from the query's block to the key's, tokens";
  label(c, c.measureText(long).width < width - left ? long : "distance of the blocks, tokens", left + (width - left) / 2, height - 9);
}

/** Mean, least and most over the groups, of each row block, and the mean of all. */
function meanRetained(groupList) {
  const mean = new Float64Array(rows), least = new Float64Array(rows).fill(1), most = new Float64Array(rows);
  let sum = 0;
  for (const g of groupList) {
    for (let row = 0; row < rows; ++row) {
      const x = data.retained[g * rows + row];
      mean[row] += x / groupList.length;
      least[row] = Math.min(least[row], x);
      most[row] = Math.max(most[row], x);
      sum += x * rowTokens(row);
    }
  }
  return { rows: mean, least, most, mean: sum / groupList.length / about.tokens };
}

function drawKept() {
  const { c, width, height } = begin($("kept")), kept = state.kept, left = 56, bottom = 40, w = width - left - 8;
  const at = frame(c, width, height, left, bottom, 1, "attention kept");
  const x = (row) => left + Math.min((row + 0.5) * about.block_rows, about.tokens) / about.tokens * w;
  const step = Math.ceil(rows / w), points = [];  // at most a point a pixel: a longer path takes seconds to fill
  for (let row = 0; row < rows; row += step) {
    const end = Math.min(row + step, rows), point = { x: x((row + end - 1) / 2), mean: 0, least: 1, most: 0 };
    for (let i = row; i < end; ++i) {
      point.mean += kept.rows[i] / (end - row);
      point.least = Math.min(point.least, kept.least[i]);
      point.most = Math.max(point.most, kept.most[i]);
    }
    points.push(point);
  }
  c.fillStyle = colours.band;
  c.beginPath();
  for (const point of points) c.lineTo(point.x, at(point.most));
  for (const point of points.reverse()) c.lineTo(point.x, at(point.least));
  c.fill();
  c.strokeStyle = colours.bar;
  c.lineWidth = 2;
  c.beginPath();
  for (const point of points) c.lineTo(point.x, at(point.mean));
  c.stroke();
  c.strokeStyle = colours.mark;
  c.lineWidth = 1;
  c.beginPath();
  c.moveTo(x(state.row), at(0));
  c.lineTo(x(state.row), at(1));
  c.stroke();
  c.fillStyle = colours.soft;
  for (const t of ticks(0, about.tokens, w / 70, true))
    label(c, number(t), Math.min(left + t / about.tokens * w, width - 18), height - bottom + 12);
  label(c, "query position, tokens", left + w / 2, height - 9);
}

function describeCharts() {
  const far = state.distances, half = far.weight.findIndex((_, i) => far.weight.slice(0, i + 1).reduce((a, b) => a + b) >= 0.5);
  $("far-what").textContent = isMass ?
    `Filled: share of the kept attention; outline: share of the edges. Half of the attention goes less than ` +
    `${number(far.least * 2 ** half)} tokens back.` : "Outline: share of the edges.";
  $("kept-what").textContent = `${scopeName()}: ${percent(state.kept.mean)} of the attention goes to the kept blocks.` +
    (state.groups.length > 1 ? " Line: mean of the heads; band: least to most." : "");
}
