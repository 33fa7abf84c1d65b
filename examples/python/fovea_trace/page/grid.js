// Every head of every layer: columns are layers, rows are heads, each a heatmap of a few pixels.
const gridView = { sheet: document.createElement("canvas"), made: "" };
const GAP = 3, GRID_LEFT = 46, GRID_TOP = 18;

function gridSize() {
  const room = $("grid-view").clientWidth - 30 - GRID_LEFT;
  const size = Math.max(14, Math.min(72, Math.floor(room / layers) - GAP));
  return { size, width: GRID_LEFT + layers * (size + GAP), height: GRID_TOP + heads * (size + GAP) };
}

/** Draws the small heatmaps, a few a task; a later call takes over from an earlier one. */
async function makeGrid() {
  const { size } = gridSize(), ratio = window.devicePixelRatio || 1, dots = Math.round(size * ratio);
  const made = [dots, state.log, document.documentElement.className].join();
  if (made === gridView.made) return draw("grid");
  gridView.made = made;
  const sheet = document.createElement("canvas");
  sheet.width = layers * dots;
  sheet.height = heads * dots;
  const c = sheet.getContext("2d"), xStep = Math.max(1, Math.ceil(keys / dots)), yStep = Math.max(1, Math.ceil(rows / dots));
  const small = document.createElement("canvas");
  c.imageSmoothingEnabled = false;
  let began = performance.now();
  for (let g = 0; g < groups; ++g) {
    const part = cells([g], 0, keys, 0, rows, xStep, yStep), image = new ImageData(part.nx, part.ny);
    paint(image, part, state.range);
    small.width = part.nx;
    small.height = part.ny;
    small.getContext("2d").putImageData(image, 0, 0);
    c.drawImage(small, 0, 0, part.nx, part.ny, Math.floor(g / heads) * dots, g % heads * dots, dots, dots);
    if (performance.now() - began > 12) {
      await nextTask();
      if (gridView.made !== made) return;
      began = performance.now();
    }
  }
  gridView.sheet = sheet;
  draw("grid");
}

function drawGrid() {
  const canvas = $("grid"), { size, width, height } = gridSize();
  canvas.style.width = width + "px";
  canvas.style.height = height + "px";
  const { c } = begin(canvas, width, height), dots = gridView.sheet.width / layers;
  c.imageSmoothingEnabled = false;
  const every = Math.ceil(26 / (size + GAP));
  for (let l = 0; l < layers; ++l) {
    const x = GRID_LEFT + l * (size + GAP);
    for (let h = 0; h < heads; ++h) {
      const y = GRID_TOP + h * (size + GAP);
      c.fillStyle = colours.plot;
      c.fillRect(x, y, size, size);
      c.drawImage(gridView.sheet, l * dots, h * dots, dots, dots, x, y, size, size);
      const inScope = (state.scope.layer < 0 || state.scope.layer === l) && (state.scope.head < 0 || state.scope.head === h);
      if (!inScope) continue;
      if (state.groups.length === groups) continue;
      c.strokeStyle = colours.mark;
      c.lineWidth = 2;
      c.strokeRect(x - 1, y - 1, size + 2, size + 2);
    }
    c.fillStyle = colours.soft;
    if (l % every === 0) label(c, about.layers[l], x + size / 2, 9);
  }
  for (let h = 0; h < heads; ++h)
    if (size > 9 || h % 2 === 0) label(c, `head ${h}`, GRID_LEFT - 5, GRID_TOP + h * (size + GAP) + size / 2, "right");
  label(c, "layer", GRID_LEFT - 5, 9, "right");
}

function gridAt(event) {
  const box = $("grid").getBoundingClientRect(), { size } = gridSize();
  const layer = Math.floor((event.clientX - box.left - GRID_LEFT) / (size + GAP));
  const head = Math.floor((event.clientY - box.top - GRID_TOP) / (size + GAP));
  return layer >= 0 && layer < layers && head >= 0 && head < heads ? { layer, head } : null;
}

function listenToGrid() {
  const canvas = $("grid");
  canvas.addEventListener("click", (event) => {
    const at = gridAt(event);
    if (at) setScope(at);
  });
  canvas.addEventListener("pointermove", (event) => {
    const at = gridAt(event);
    if (!at) return tip(event, "");
    const kept = meanRetained([at.layer * heads + at.head]).mean;
    tip(event, `layer ${about.layers[at.layer]}, head ${at.head}\nretained mass ${percent(kept)}`);
  });
  canvas.addEventListener("pointerleave", (event) => tip(event, ""));
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (move) {
      setScope({ layer: Math.min(Math.max(state.scope.layer + move[0], 0), layers - 1),
        head: Math.min(Math.max(state.scope.head + move[1], 0), heads - 1) });
    } else if (event.key === "Escape") setScope({ layer: -1, head: -1 });
    else return;
    event.preventDefault();
  });
}
