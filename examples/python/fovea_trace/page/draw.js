// Colours, canvases that are sharp on every screen, axes, numbers.
const $ = (id) => document.getElementById(id);
const number = (x) => x.toLocaleString("en");
const percent = (x) => x >= 0.1 ? (100 * x).toFixed(1) + "%" : x >= 1e-4 ? (100 * x).toPrecision(2) + "%" :
  x > 0 ? "<0.01%" : "0%";
const shown = (x) => isMass ? percent(x) : x === -Infinity ? "−∞" : x.toPrecision(4);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Little is near the page's own colour, much is far from it: pale to dark blue, or viridis from its dark end.
const LIGHT = [[237, 248, 177], [199, 233, 180], [127, 205, 187], [65, 182, 196], [29, 145, 192], [34, 94, 168],
  [37, 52, 148], [8, 20, 70]];
const DARK = [[68, 1, 84], [72, 36, 117], [65, 68, 135], [53, 95, 141], [42, 120, 142], [33, 145, 140],
  [34, 168, 132], [68, 191, 112], [122, 209, 81], [189, 223, 38], [253, 231, 37]];
let palette = new Uint32Array(256), colours = {};

function readTheme() {
  const dark = document.documentElement.classList.contains("dark");
  for (let i = 0; i < 256; ++i) {
    const stops = dark ? DARK : LIGHT, at = i / 255 * (stops.length - 1), a = Math.min(Math.floor(at), stops.length - 2);
    const [r, g, b] = stops[a].map((c, k) => Math.round(c + (stops[a + 1][k] - c) * (at - a)));
    palette[i] = (255 << 24 | b << 16 | g << 8 | r) >>> 0;
  }
  for (const name of ["ink", "soft", "line", "plot", "mark", "bar", "band", "card"]) colours[name] = css("--" + name);
}

/** A canvas's context in CSS pixels, cleared; the size is the element's. */
function begin(canvas, width = canvas.clientWidth, height = canvas.clientHeight) {
  const ratio = window.devicePixelRatio || 1, w = Math.round(width * ratio), h = Math.round(height * ratio);
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
  const c = canvas.getContext("2d");
  c.setTransform(ratio, 0, 0, ratio, 0, 0);
  c.clearRect(0, 0, width, height);
  c.font = '12px system-ui, "DejaVu Sans", sans-serif';
  c.lineWidth = 1;
  return { c, width, height };
}

/** What a weight's place between lo and hi is, 0 to 1. */
function scaled(x, range) {
  if (range.log) x = Math.log(x / range.lo) / Math.log(range.hi / range.lo);
  else x = range.hi > range.lo ? (x - range.lo) / (range.hi - range.lo) : 1;
  return x > 0 ? Math.min(x, 1) : 0;
}

/** Colours a grid of cells into an image of a pixel each. */
function paint(image, { grid, nx, ny }, range, left = 0, top = 0) {
  const pixels = new Uint32Array(image.data.buffer), low = range.lo, scale = range.log ?
    255 / Math.log(range.hi / range.lo) : 255 / (range.hi - range.lo || 1);
  for (let j = 0, i = 0; j < ny; ++j) {
    let at = (top + j) * image.width + left;
    for (let k = 0; k < nx; ++k, ++i, ++at) {
      const x = grid[i];
      if (x !== x) continue;
      const t = range.log ? Math.log(x / low) * scale : (x - low) * scale;
      pixels[at] = palette[t > 255 ? 255 : t > 0 ? t | 0 : 0];
    }
  }
}

/** Round places between lo and hi, about `count` of them. */
function ticks(lo, hi, count, powersOfTwo) {
  const raw = (hi - lo) / count;
  if (!(raw > 0)) return [lo];
  let step = powersOfTwo ? Math.max(1, 2 ** Math.ceil(Math.log2(raw))) : 10 ** Math.floor(Math.log10(raw));
  if (!powersOfTwo) step *= raw / step > 5 ? 10 : raw / step > 2 ? 5 : raw / step > 1 ? 2 : 1;
  const out = [];
  for (let x = Math.ceil(lo / step) * step; x <= hi + step * 1e-9; x += step) out.push(x);
  return out;
}

function label(c, text, x, y, align = "center", baseline = "middle") {
  c.textAlign = align;
  c.textBaseline = baseline;
  c.fillText(text, x, y);
}

function upright(c, text, x, y) {
  c.save();
  c.translate(x, y);
  c.rotate(-Math.PI / 2);
  label(c, text, 0, 0);
  c.restore();
}

function tip(event, text) {
  const box = $("tip");
  box.hidden = !text;
  if (!text) return;
  box.textContent = text;
  box.style.left = Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 8) + "px";
  box.style.top = Math.min(event.clientY + 14, innerHeight - box.offsetHeight - 8) + "px";
}
