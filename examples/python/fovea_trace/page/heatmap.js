// The block heatmap: rows are query blocks, columns key blocks.  What is in sight is summed into an image
// of at most a pixel a cell, which the canvas then stretches, so a frame costs the same at every zoom.
const heat = { x: 0, y: 0, zoom: 1, sheet: document.createElement("canvas") };
const EDGE = { left: 62, right: 12, top: 4, bottom: 40 };

function heatPlot() {
  const canvas = $("heat");
  return { w: Math.max(1, canvas.clientWidth - EDGE.left - EDGE.right),
    h: Math.max(1, canvas.clientHeight - EDGE.top - EDGE.bottom), nx: keys / heat.zoom, ny: rows / heat.zoom };
}

function clampHeat() {
  heat.zoom = Math.min(Math.max(heat.zoom, 1), Math.max(1, Math.max(keys, rows) / 4));
  const { nx, ny } = heatPlot();
  heat.x = Math.min(Math.max(heat.x, 0), keys - nx);
  heat.y = Math.min(Math.max(heat.y, 0), rows - ny);
}

/** Zooms by `factor` about a point of the plot, given in parts of its size. */
function zoomHeat(factor, px = 0.5, py = 0.5) {
  const before = heatPlot(), x = heat.x + px * before.nx, y = heat.y + py * before.ny;
  heat.zoom *= factor;
  clampHeat();
  const after = heatPlot();
  heat.x = x - px * after.nx;
  heat.y = y - py * after.ny;
  clampHeat();
  draw("heat");
}

function drawHeat() {
  const { c, width, height } = begin($("heat")), { w, h, nx, ny } = heatPlot();
  const xStep = Math.max(1, Math.ceil(nx / w)), yStep = Math.max(1, Math.ceil(ny / h));
  const x0 = Math.floor(heat.x / xStep) * xStep, y0 = Math.floor(heat.y / yStep) * yStep;
  const x1 = Math.min(keys, Math.ceil(heat.x + nx)), y1 = Math.min(rows, Math.ceil(heat.y + ny));
  const part = cells(state.groups, x0, x1, y0, y1, xStep, yStep);
  const sheet = heat.sheet;
  sheet.width = part.nx;
  sheet.height = part.ny;
  const image = new ImageData(part.nx, part.ny);
  paint(image, part, state.range);
  sheet.getContext("2d").putImageData(image, 0, 0);

  const atX = (block) => EDGE.left + (block - heat.x) / nx * w, atY = (block) => EDGE.top + (block - heat.y) / ny * h;
  c.fillStyle = colours.plot;
  c.fillRect(EDGE.left, EDGE.top, w, h);
  c.save();
  c.beginPath();
  c.rect(EDGE.left, EDGE.top, w, h);
  c.clip();
  c.imageSmoothingEnabled = false;
  c.drawImage(sheet, atX(x0), atY(y0), part.nx * xStep / nx * w, part.ny * yStep / ny * h);
  c.strokeStyle = colours.mark;
  c.lineWidth = 1.5;
  const cell = { w: Math.max(w / nx, 4), h: Math.max(h / ny, 4) };
  c.globalAlpha = 0.6;
  c.strokeRect(EDGE.left - 2, atY(state.row), w + 4, cell.h);
  c.globalAlpha = 1;
  c.lineWidth = 2;
  c.strokeRect(atX(state.key), atY(state.row), cell.w, cell.h);
  c.restore();

  c.strokeStyle = colours.line;
  c.strokeRect(EDGE.left, EDGE.top, w, h);
  c.fillStyle = colours.soft;
  const bk = about.block_keys, br = about.block_rows;
  for (const t of ticks(heat.x * bk, (heat.x + nx) * bk, w / 80, true)) {
    c.fillRect(atX(t / bk), EDGE.top + h, 1, 4);
    if (atX(t / bk) < width - 14) label(c, number(t), atX(t / bk), EDGE.top + h + 12);
  }
  for (const t of ticks(heat.y * br, (heat.y + ny) * br, h / 50, true)) {
    c.fillRect(EDGE.left - 4, atY(t / br), 4, 1);
    if (atY(t / br) < EDGE.top + h - 3) label(c, number(t), EDGE.left - 7, Math.max(atY(t / br), EDGE.top + 6), "right");
  }
  label(c, `key position, tokens (blocks of ${bk})`, EDGE.left + w / 2, height - 9);
  upright(c, `query position, tokens (blocks of ${br})`, 9, EDGE.top + h / 2);
}

function drawLegend() {
  const { c, width } = begin($("legend")), left = EDGE.left, w = width - left - EDGE.right - 20, range = state.range;
  for (let i = 0; i < 256; ++i) {
    const p = palette[i];
    c.fillStyle = `rgb(${p & 255},${p >> 8 & 255},${p >> 16 & 255})`;
    c.fillRect(left + i / 256 * w, 2, w / 256 + 1, 11);
  }
  c.fillStyle = colours.soft;
  const places = range.log ? [1e-4, 1e-3, 1e-2, 1e-1, 1] : ticks(range.lo, range.hi, 5);
  for (const x of places) {
    const at = left + scaled(x, range) * w, text = isMass ? (x >= 0.01 || !x ? +(100 * x).toPrecision(3) : 100 * x) + "%" : "" + +x.toPrecision(4);
    c.fillRect(at, 13, 1, 4);
    label(c, text, at, 25);
  }
}

/** The blocks under the pointer; null outside the plot. */
function heatAt(event) {
  const box = $("heat").getBoundingClientRect(), { w, h, nx, ny } = heatPlot();
  const px = (event.clientX - box.left - EDGE.left) / w, py = (event.clientY - box.top - EDGE.top) / h;
  if (px < 0 || px >= 1 || py < 0 || py >= 1) return null;
  return { px, py, key: Math.floor(heat.x + px * nx), row: Math.floor(heat.y + py * ny) };
}

/** Brings the selected block into sight. */
function showSelected() {
  const { nx, ny } = heatPlot();
  if (state.key < heat.x) heat.x = state.key;
  if (state.key + 1 > heat.x + nx) heat.x = state.key + 1 - nx;
  if (state.row < heat.y) heat.y = state.row;
  if (state.row + 1 > heat.y + ny) heat.y = state.row + 1 - ny;
  clampHeat();
}

function listenToHeat() {
  const canvas = $("heat");
  let drag = null;
  canvas.addEventListener("wheel", (event) => {
    const at = heatAt(event);
    if (!at) return;
    event.preventDefault();
    zoomHeat(Math.exp(-Math.max(-200, Math.min(200, event.deltaY)) * 0.003), at.px, at.py);
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX, y: event.clientY, left: heat.x, top: heat.y, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag) {
      const dx = event.clientX - drag.x, dy = event.clientY - drag.y, { w, h, nx, ny } = heatPlot();
      drag.moved ||= Math.hypot(dx, dy) > 4;
      if (!drag.moved) return;
      heat.x = drag.left - dx / w * nx;
      heat.y = drag.top - dy / h * ny;
      clampHeat();
      tip(event, "");
      return draw("heat");
    }
    const at = heatAt(event);
    if (!at) return tip(event, "");
    const { grid } = cells(state.groups, at.key, at.key + 1, at.row, at.row + 1, 1, 1);
    tip(event, `${span("query", at.row, about.block_rows)}\n${span("key", at.key, about.block_keys)}\n` +
      (grid[0] === grid[0] ? `${WEIGHT[about.edge_kind]} ${shown(grid[0])}` : "not kept"));
  });
  canvas.addEventListener("pointerup", (event) => {
    const at = drag && !drag.moved && heatAt(event);
    drag = null;
    if (at) select(at.row, at.key);
  });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("pointerleave", (event) => tip(event, ""));
  canvas.addEventListener("dblclick", (event) => {
    const at = heatAt(event);
    if (at) zoomHeat(2, at.px, at.py);
  });
  canvas.addEventListener("keydown", (event) => {
    const step = event.shiftKey ? 10 : 1, move = { ArrowLeft: [0, -step], ArrowRight: [0, step],
      ArrowUp: [-step, 0], ArrowDown: [step, 0] }[event.key];
    const { nx, ny } = heatPlot();
    const px = Math.min(Math.max((state.key + 0.5 - heat.x) / nx, 0), 1);
    const py = Math.min(Math.max((state.row + 0.5 - heat.y) / ny, 0), 1);
    if (move) {
      select(Math.min(Math.max(state.row + move[0], 0), rows - 1), Math.min(Math.max(state.key + move[1], 0), keys - 1));
      showSelected();
    } else if (event.key === "+" || event.key === "=") zoomHeat(1.5, px, py);
    else if (event.key === "-") zoomHeat(1 / 1.5, px, py);
    else if (event.key === "0") fitHeat();
    else return;
    event.preventDefault();
  });
}

function fitHeat() {
  Object.assign(heat, { x: 0, y: 0, zoom: 1 });
  draw("heat");
}
