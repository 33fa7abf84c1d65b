// What is chosen, and who redraws when it changes.
const state = { scope: { layer: -1, head: -1 }, groups: [], row: 0, key: 0, log: isMass, range: null, edges: [] };
const drawing = { heat: drawHeat, legend: drawLegend, grid: drawGrid, arcs: drawArcs, far: drawFar, kept: drawKept };
const waiting = new Set();
const times = {};  // milliseconds of the frames of each view, the last hundred

/** Redraws views in the next frame, and where they take long in those after it. */
function draw(...names) {
  if (!waiting.size) requestAnimationFrame(drawWaiting);
  for (const name of names) waiting.add(name);
}

function drawWaiting() {
  const started = performance.now();
  for (const name of [...waiting]) {
    const began = performance.now();
    if (began - started > 12) break;
    waiting.delete(name);
    drawing[name]();
    times[name] = [...(times[name] || []).slice(-99), performance.now() - began];
  }
  if (waiting.size) requestAnimationFrame(drawWaiting);
}

function scopeName() {
  const { layer, head } = state.scope;
  const words = [layer < 0 ? "all layers" : `layer ${about.layers[layer]}`, head < 0 ? "all heads" : `head ${head}`];
  return words[0][0].toUpperCase() + words.join(", ").slice(1);
}

function setScope(scope) {
  state.scope = scope;
  state.groups = groupsOf(scope);
  $("layer").value = scope.layer;
  $("head").value = scope.head;
  state.distances = distances(state.groups);
  state.kept = meanRetained(state.groups);
  $("heat-what").textContent = scopeName() + ". A cell is " + (!isMass ? `the ${WEIGHT[about.edge_kind]} of the edge.` :
    "the share of the row's kept attention that goes to the column" + (state.groups.length > 1 ? ", mean of the heads." : "."));
  describeCharts();
  setRange();
  fillEdges();
  fillTexts();
  draw("heat", "legend", "arcs", "grid", "far", "kept");
  tellPeer("setScope", scope);
}

function setRange() {
  if (isMass) state.range = { log: state.log, lo: state.log ? 1e-4 : 0, hi: 1 };
  else if (about.range) state.range = { log: false, lo: about.range[0], hi: about.range[1] };
  else if (!state.range) {
    let lo = Infinity, hi = -Infinity;
    for (const w of data.weight) {
      if (w > hi && w < Infinity) hi = w;
      if (w < lo && w > -Infinity) lo = w;
    }
    state.range = { log: false, lo: lo < hi ? lo : 0, hi: lo < hi ? hi : 1 };
  }
}

function select(row, key) {
  const changed = row !== state.row;
  state.row = row;
  state.key = key;
  if (changed) fillEdges();
  fillTexts();
  draw("heat", "arcs", "kept");
}

function setTheme(dark) {
  document.documentElement.classList.toggle("dark", dark);
  readTheme();
  if (!state.range) return;
  draw(...Object.keys(drawing));
  makeGrid();
}

function setLog(log) {
  state.log = $("log").checked = log;
  setRange();
  draw("heat", "legend", "arcs");
  makeGrid();
  tellPeer("setLog", log);
}

/** Has the text beside this one, if there is one, do the same. */
function tellPeer(name, value) {
  const peer = parent !== window && parent.peerOf ? parent.peerOf(window) : null;
  if (!peer || tellPeer.heard || !peer.foveaTrace) return;
  peer.foveaTrace.hear(name, value);
}

function hear(name, value) {
  tellPeer.heard = true;
  ({ setScope, setLog, setTheme })[name](value);
  tellPeer.heard = false;
}

function step(which, by, count) {
  const next = state.scope[which] + by;
  setScope({ ...state.scope, [which]: next >= count ? -1 : next < -1 ? count - 1 : next });
}

function listen() {
  listenToHeat();
  listenToGrid();
  const fill = (id, name, numbers) => {
    $(id).append(new Option(`all ${name}s`, -1), ...numbers.map((n, i) => new Option(`${name} ${n}`, i)));
    $(id).addEventListener("change", () => setScope({ ...state.scope, [id]: +$(id).value }));
  };
  fill("layer", "layer", about.layers);
  fill("head", "head", Array.from({ length: heads }, (_, i) => i));
  $("log").disabled = !isMass;
  $("log").checked = state.log;
  $("log").addEventListener("change", () => setLog($("log").checked));
  $("fit").addEventListener("click", fitHeat);
  $("theme").addEventListener("click", () => {
    const dark = !document.documentElement.classList.contains("dark");
    setTheme(dark);
    tellPeer("setTheme", dark);
  });
  listenToTokens();
  const system = matchMedia("(prefers-color-scheme: dark)");
  system.addEventListener("change", () => setTheme(system.matches));
  addEventListener("resize", () => { draw(...Object.keys(drawing)); makeGrid(); });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const by = { "[": ["head", -1, heads], "]": ["head", 1, heads], "{": ["layer", -1, layers], "}": ["layer", 1, layers] }[event.key];
    if (by) step(...by);
  });
}

async function open() {
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches);
  document.title = `${about.title}: fovea trace`;
  $("title").textContent = about.title;
  $("summary").textContent = `${about.model}: ${number(about.tokens)} tokens, ${layers} layers of ${heads} heads, ` +
    `${number(about.edges)} edges; each block of ${about.block_rows} query tokens keeps at most ${about.keep} blocks of ${about.block_keys} keys`;
  await readData((part) => { $("loading").textContent = `Reading ${number(about.edges)} edges: ${Math.round(100 * part)}%`; });
  $("loading").remove();
  listen();
  await nextTask();
  state.row = rows - 1;
  setScope(state.scope);
  await nextTask();
  select(rows - 1, state.edges.length ? state.edges[0].key : 0);
  await nextTask();
  await makeGrid();
  window.foveaTrace = { about, state, heat, times, hear };  // for tests, and for the curious
}

open();
