// The edges of the selected query block: arcs over the text, a list, the text of both blocks.
const WEIGHT = { mass: "share of the kept attention", score: "score", max_logit: "largest logit" };
const MOST = 200;  // lines in the list

const span = (kind, block, size) => `${kind} block ${block}\ntokens ${number(block * size)} – ` +
  number(Math.min((block + 1) * size, about.tokens) - 1);

/** {key, weight} of the edges of a row block in the scope, heaviest first. */
function edgesOf(row) {
  const { grid } = cells(state.groups, 0, keys, row, row + 1, 1, 1), out = [];
  for (let key = 0; key < keys; ++key) if (grid[key] === grid[key]) out.push({ key, weight: grid[key] });
  return out.sort((a, b) => b.weight - a.weight || a.key - b.key);
}

function element(name, text, kind) {
  const out = document.createElement(name);
  out.textContent = text;
  if (kind) out.className = kind;
  return out;
}

function fillEdges() {
  const edges = state.edges = edgesOf(state.row), list = $("edge-list"), lines = [];
  for (const { key, weight } of edges.slice(0, MOST)) {
    const button = element("button", "");
    button.type = "button";
    button.append(element("span", `block ${key}`), element("span", shown(weight), "part"),
      element("span", keyText[key].replace(/\s+/g, " ").trim()));
    button.addEventListener("click", () => select(state.row, key));
    button.setAttribute("aria-pressed", key === state.key);
    button.dataset.key = key;
    const line = element("li", "");
    line.append(button);
    lines.push(line);
  }
  if (edges.length > MOST) lines.push(element("li", `and ${number(edges.length - MOST)} more`, "more"));
  list.replaceChildren(...lines);
  $("edge-what").textContent = `${scopeName()}: block ${state.row} keeps ${number(edges.length)} key blocks, which have ` +
    `${percent(state.kept.rows[state.row])} of its attention`;
}

/** Moves the mark in the list, and shows the text of both blocks. */
function fillTexts() {
  for (const button of $("edge-list").querySelectorAll("button")) {
    const pressed = +button.dataset.key === state.key;
    button.setAttribute("aria-pressed", pressed);
    if (pressed) {
      const list = $("edge-list"), top = button.offsetTop - list.offsetTop;
      if (top < list.scrollTop || top > list.scrollTop + list.clientHeight - 24) list.scrollTop = top - 60;
    }
  }
  const edge = state.edges.find(({ key }) => key === state.key);
  $("row-name").textContent = span("query", state.row, about.block_rows);
  $("key-name").textContent = span("key", state.key, about.block_keys) + (edge ? `, ${shown(edge.weight)}` : ", not kept");
  if (showTokens()) return;
  $("row-text").textContent = about.row_text[state.row];
  $("key-text").textContent = keyText[state.key];
}

function drawArcs() {
  const { c, width, height } = begin($("arcs")), left = 8, w = width - 16, base = height - 20;
  const tokens = about.tokens, at = (token) => left + token / tokens * w;
  const rowAt = at((state.row + 0.5) * about.block_rows), keyAt = (key) => at((key + 0.5) * about.block_keys);
  c.fillStyle = colours.plot;
  c.fillRect(left, base, w, 5);
  c.strokeStyle = colours.bar;
  const range = state.range;
  for (const { key, weight } of state.edges.slice(0, MOST).reverse()) {
    const x = keyAt(key), t = scaled(weight, range), middle = (x + rowAt) / 2, rise = Math.min(base - 6, 12 + Math.abs(rowAt - x) * 0.5);
    c.lineWidth = 0.5 + 3.5 * t;
    c.globalAlpha = 0.15 + 0.85 * t;
    c.strokeStyle = key === state.key ? colours.mark : colours.bar;
    c.beginPath();
    if (Math.abs(x - rowAt) < 2) c.arc(x, base - 5, 5, 0, 7);
    else c.ellipse(middle, base, Math.abs(rowAt - x) / 2, rise, 0, Math.PI, 2 * Math.PI);
    c.stroke();
  }
  c.globalAlpha = 1;
  c.fillStyle = colours.mark;
  c.fillRect(at(state.row * about.block_rows), base, Math.max(3, about.block_rows / tokens * w), 5);
  c.fillStyle = colours.soft;
  const unit = width - 8 - c.measureText("tokens").width - 8;  // where the axis's name and its gap begin
  for (const t of ticks(0, tokens, w / 90, true)) {
    const half = c.measureText(number(t)).width / 2, x = Math.max(at(t), left + half);
    if (x + half <= unit) label(c, number(t), x, height - 6);
  }
  label(c, "tokens", width - 8, height - 6, "right");
}
