// The trace: columns of typed arrays in the order layer, head, row block.  A group is a head of a layer.
const about = JSON.parse(document.getElementById("about").textContent);
const rows = about.row_text.length;
const keyText = about.key_text || about.row_text;
const keys = keyText.length;
const heads = about.heads, layers = about.layers.length, groups = heads * layers;
const isMass = about.edge_kind === "mass";
const data = {};

const nextTask = () => new Promise((resolve) => setTimeout(resolve));

/** Decodes the pieces of base64, each in a task of its own, so that the page stays alive. */
async function readData(progress) {
  const bytes = new Uint8Array(about.bytes), value = new Uint8Array(128);
  const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (let i = 0; i < 64; ++i) value[letters.charCodeAt(i)] = i;
  let at = 0;
  for (const piece of document.querySelectorAll("script.data")) {
    const text = piece.textContent;
    for (let i = 0; i + 3 < text.length; i += 4) {
      const word = value[text.charCodeAt(i)] << 18 | value[text.charCodeAt(i + 1)] << 12 |
        value[text.charCodeAt(i + 2)] << 6 | value[text.charCodeAt(i + 3)];
      bytes[at++] = word >> 16;  // what padding stands for falls off the end of the array
      bytes[at++] = word >> 8;
      bytes[at++] = word;
    }
    piece.remove();
    progress(Math.min(1, at / about.bytes));
    await nextTask();
  }
  let offset = 0;
  const column = (Type, length) => {
    const out = new Type(bytes.buffer, offset, length);
    offset += length * Type.BYTES_PER_ELEMENT;
    return out;
  };
  data.weight = column(Float32Array, about.edges);
  data.retained = column(Float32Array, groups * rows);
  if (about.token_block !== undefined) {
    const length = groups * rowTokens(about.token_block) * about.token_top;
    data.tokenWeight = column(Float32Array, length);
    data.tokenKey = column(about.token_wide ? Uint32Array : Uint16Array, length);
  }
  data.key = column(about.wide ? Uint32Array : Uint16Array, about.edges);
  const count = column(Uint16Array, groups * rows);
  data.start = new Uint32Array(groups * rows + 1);
  for (let i = 0; i < count.length; ++i) {
    data.start[i + 1] = data.start[i] + count[i];
    if (i % 500000 === 499999) await nextTask();
  }
}

/** Groups of a scope {layer, head}: places in about.layers and head numbers, -1 for all. */
function groupsOf(scope) {
  const out = [];
  for (let l = 0; l < layers; ++l)
    for (let h = 0; h < heads; ++h)
      if ((scope.layer < 0 || scope.layer === l) && (scope.head < 0 || scope.head === h)) out.push(l * heads + h);
  return out;
}

const rowTokens = (row) => Math.min(about.tokens - row * about.block_rows, about.block_rows);

/** Cells of `step` blocks over the row blocks [y0, y1) and key blocks [x0, x1).  With mass a cell is
 *  the mean part of its rows' attention that goes to its keys; with scores it is the largest. NaN: no edge. */
function cells(groupList, x0, x1, y0, y1, xStep, yStep) {
  const nx = Math.ceil((x1 - x0) / xStep), ny = Math.ceil((y1 - y0) / yStep);
  const grid = new Float32Array(nx * ny).fill(NaN);
  const { key, weight, start } = data;
  for (const g of groupList) {
    for (let y = y0; y < y1; ++y) {
      const line = Math.floor((y - y0) / yStep) * nx, end = start[g * rows + y + 1];
      for (let e = start[g * rows + y]; e < end; ++e) {
        const x = key[e] - x0;
        if (x < 0 || key[e] >= x1) continue;
        const at = line + (xStep === 1 ? x : Math.floor(x / xStep)), before = grid[at];
        if (before !== before) grid[at] = weight[e];
        else grid[at] = isMass ? before + weight[e] : Math.max(before, weight[e]);
      }
    }
  }
  if (isMass) {
    for (let j = 0; j < ny; ++j) {
      const first = y0 + j * yStep, last = Math.min(first + yStep, y1) - 1;
      const per = 1 / (groupList.length * ((last - first) * about.block_rows + rowTokens(last)));
      for (let i = j * nx; i < (j + 1) * nx; ++i) grid[i] *= per;
    }
  }
  return { grid, nx, ny };
}
