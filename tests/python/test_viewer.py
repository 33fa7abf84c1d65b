# SPDX-License-Identifier: Apache-2.0
"""The page of a trace in a real browser: Chromium without a window, from file://."""

import json
import os
import pathlib
import statistics
import sys

import numpy as np
import pytest
from browser import Browser, missing

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples/python"))
from fovea_trace import page, record  # noqa: E402

if missing() and not os.environ.get("FOVEA_REQUIRE_ALL"):
    pytest.skip(f"no {' and no '.join(missing())} here", allow_module_level=True)

HOSTILE = "</script><img src=http://example.invalid/ onerror=alert(1)> &lt;b&gt; <!-- "
FRAME_MS = 50
CANVASES = ("heat", "legend", "arcs", "grid", "far", "kept")


def synthetic(layers=10, heads=4, rows=256, keep=15, block=16, kind="mass"):
    """Edges as a session streams them; each row block keeps its own block and others."""
    random = np.random.default_rng(3)
    shape = (layers, heads, rows, keep)
    q = np.broadcast_to(np.arange(rows)[:, None], shape)
    key = (
        q - np.arange(keep) * random.integers(1, max(2, rows // keep), (layers, heads, 1, 1))
    ) % rows
    edges = np.empty(shape, record.RECORD)
    edges["layer"] = np.arange(layers)[:, None, None, None] * 3
    edges["head"] = np.arange(heads)[:, None, None]
    edges["q_block"], edges["k_block"] = q, key
    if kind == "mass":
        edges["weight"] = random.dirichlet(np.full(keep, 0.3), shape[:3]) * block
    else:
        edges["weight"] = random.standard_normal(shape)
        edges["weight"][0, 0, 0, 0] = -np.inf  # the score of NaN
    text = [f"{HOSTILE if rows < 1000 else ''} words of block {i}" for i in range(rows)]
    about = dict(title="synthetic <i>", model="none", tokens=rows * block - 5,
                 layers=[3 * i for i in range(layers)], heads=heads, block_rows=block,
                 block_keys=block, keep=keep, edge_kind=kind)  # fmt: skip
    retained = random.random((layers, heads, rows), dtype=np.float32)
    return record.Trace(about, edges.reshape(-1), retained, text, list(text))


class Page:
    def __init__(self, browser, trace, path):
        self.browser, self.trace = browser, trace
        page.write_page(trace, path)
        browser.open("about:blank")
        browser.log("performance"), browser.log("browser")  # what came before is not the page's
        self.url = path.as_uri()
        browser.open(self.url)
        browser.until("window.foveaTrace !== undefined")
        self.settle()

    def run(self, script, *arguments):
        return self.browser.run(script, *arguments)

    def settle(self):
        """Until what was asked for is drawn."""
        self.browser.run(
            "window.drawn = false;"
            "const look = () => waiting.size ? requestAnimationFrame(look) : (drawn = true);"
            "requestAnimationFrame(() => requestAnimationFrame(look))")  # fmt: skip
        self.browser.until("window.drawn")

    def colours(self, canvas):
        """How many colours a canvas shows."""
        return self.run(
            "const c = document.getElementById(arguments[0]);"
            "const image = c.getContext('2d').getImageData(0, 0, c.width, c.height);"
            "return new Set(new Uint32Array(image.data.buffer)).size", canvas)  # fmt: skip

    def at(self, row, key):
        """Where on the screen the middle of a block is."""
        box = self.run("document.getElementById('heat').scrollIntoView({block: 'center'});"
                       "const b = document.getElementById('heat').getBoundingClientRect();"
                       "const p = heatPlot(); return [b.left + EDGE.left, b.top + EDGE.top,"
                       " p.w, p.h, p.nx, p.ny, heat.x, heat.y]")  # fmt: skip
        left, top, w, h, nx, ny, x, y = box
        return left + (key + 0.5 - x) / nx * w, top + (row + 0.5 - y) / ny * h

    def text(self, name):
        return self.run("return document.getElementById(arguments[0]).textContent", name)


@pytest.fixture(scope="module")
def browser():
    assert not missing(), f"FOVEA_REQUIRE_ALL is set and there is no {missing()}: tools/setup test"
    with Browser() as one:
        yield one


@pytest.fixture(scope="module")
def small(browser, tmp_path_factory):
    trace = synthetic(layers=3, heads=2, rows=40, keep=6)
    return lambda: Page(browser, trace, tmp_path_factory.mktemp("page") / "trace.html")


def test_opens_alone_and_draws_every_view(small):
    opened = small()
    for name in CANVASES:
        assert opened.colours(name) > 5, name
    events = [json.loads(e["message"])["message"] for e in opened.browser.log("performance")]
    asked = [e["params"]["request"]["url"] for e in events
             if e["method"] == "Network.requestWillBeSent"]  # fmt: skip
    assert asked == [opened.url]
    assert opened.browser.log("browser") == []
    source = pathlib.Path(opened.url.removeprefix("file://")).read_text(encoding="utf-8")
    assert "://" not in source.rpartition("<script>")[2]


def test_the_edges_arrive_as_they_were(small):
    opened = small()
    edges = opened.trace.edges
    for name, column in (("weight", "weight"), ("key", "k_block")):
        got = opened.run(f"return Array.from(data.{name})")
        assert np.array_equal(np.array(got, edges[column].dtype), edges[column])
    assert opened.run("return data.start[data.start.length - 1]") == len(edges)
    kept = opened.run("return Array.from(data.retained)")
    assert np.array_equal(np.array(kept, np.float32), opened.trace.retained.ravel())


def test_a_click_shows_the_text_of_both_blocks_as_text(small):
    opened = small()
    edge = opened.trace.edges[-4]
    row, key = int(edge["q_block"]), int(edge["k_block"])
    opened.browser.click(*opened.at(row, key))
    opened.settle()
    assert opened.text("row-text") == opened.trace.row_text[row]
    assert opened.text("key-text") == opened.trace.key_text[key]
    assert f"query block {row}" in opened.text("row-name")
    assert f"key block {key}" in opened.text("key-name")
    assert opened.run("return document.querySelectorAll('img, i, b').length") == 0
    assert opened.text("title") == "synthetic <i>"
    # The list has the row's edges, heaviest first; another line changes the key block.
    lines = "[...document.querySelectorAll('#edge-list button')]"
    keys = opened.run(f"return {lines}.map(b => +b.dataset.key)")
    mine = opened.trace.edges[opened.trace.edges["q_block"] == row]
    assert set(keys) == set(mine["k_block"].tolist())
    opened.run(f"{lines}[1].click()")
    assert opened.text("key-text") == opened.trace.key_text[keys[1]]


def test_cells_are_means_over_the_heads_of_the_scope(small):
    opened = small()
    trace = opened.trace
    grid = lambda area: np.array(opened.run(  # noqa: E731
        f"return Array.from(cells(state.groups, {area}).grid, x => x !== x ? 0 : x)"))  # fmt: skip
    whole = "0, keys, 0, rows, 1, 1"
    want = np.zeros((40, 40))
    np.add.at(want, (trace.edges["q_block"], trace.edges["k_block"]), trace.edges["weight"])
    tokens = np.full(40, 16)
    tokens[-1] = 11
    np.testing.assert_allclose(grid(whole).reshape(40, 40), want / tokens[:, None] / 6, rtol=1e-5)
    # Zoomed out, a cell is three by two blocks.
    sums = want[4:40, 5:35].reshape(18, 2, 10, 3).sum((1, 3))
    per = tokens[4:].reshape(18, 2).sum(1)[:, None] * 6
    np.testing.assert_allclose(grid("5, 35, 4, 40, 3, 2").reshape(18, 10), sums / per, rtol=1e-5)
    opened.run("setScope({layer: 1, head: 0})")
    one = trace.edges[(trace.edges["layer"] == 3) & (trace.edges["head"] == 0)]
    want = np.zeros((40, 40))
    np.add.at(want, (one["q_block"], one["k_block"]), one["weight"])
    np.testing.assert_allclose(grid(whole).reshape(40, 40), want / tokens[:, None], rtol=1e-5)
    assert "layer 3, head 0" in opened.text("heat-what").lower()


def test_mouse_and_keys_zoom_move_and_walk(small):
    opened = small()
    heat = lambda: opened.run("return [heat.x, heat.y, heat.zoom]")  # noqa: E731
    assert heat() == [0, 0, 1]
    x, y = opened.at(20, 20)
    opened.browser.wheel(x, y, -200)
    opened.settle()
    zoomed = heat()
    assert zoomed[2] > 1.5
    assert opened.at(20, 20) == pytest.approx((x, y), abs=2)  # what is under the pointer stays
    opened.browser.drag(x, y, 60, 40)
    opened.settle()
    moved = heat()
    assert moved[0] < zoomed[0] and moved[1] < zoomed[1] and moved[2] == zoomed[2]
    opened.run("document.getElementById('heat').focus()")
    opened.browser.keys("0")
    assert heat() == [0, 0, 1]
    opened.browser.keys("++")
    assert heat()[2] == pytest.approx(2.25)
    before = opened.run("return [state.row, state.key]")
    opened.browser.keys("\ue013\ue014" if before[1] < 39 else "\ue013\ue012")  # up, right or left
    after = opened.run("return [state.row, state.key]")
    assert after[0] == before[0] - 1 and abs(after[1] - before[1]) == 1
    opened.browser.keys("]")
    assert opened.run("return state.scope.head") == 0


def test_the_grid_chooses_a_head(small):
    opened = small()
    place = opened.run(
        "document.getElementById('grid').scrollIntoView({block: 'center'});"
        "const b = document.getElementById('grid').getBoundingClientRect(), {size} = gridSize();"
        "const step = size + GAP;"
        "return [b.left + GRID_LEFT + 2.5 * step, b.top + GRID_TOP + 1.5 * step]")  # fmt: skip
    opened.browser.click(*place)
    assert opened.run("return state.scope") == {"layer": 2, "head": 1}
    assert opened.run("return document.getElementById('layer').value") == "2"


def test_light_and_dark(small):
    opened = small()
    dark = "return document.documentElement.classList.contains('dark')"
    background = "return getComputedStyle(document.body).backgroundColor"
    assert opened.run(dark) is False
    light = opened.run(background)
    opened.run("document.getElementById('theme').click()")
    opened.settle()
    assert opened.run(dark) is True and opened.run(background) != light
    assert all(opened.colours(name) > 5 for name in CANVASES)


def test_scores_instead_of_mass(browser, tmp_path):
    opened = Page(browser, synthetic(2, 2, 30, 4, kind="score"), tmp_path / "trace.html")
    assert opened.run("return document.getElementById('log').disabled") is True
    assert opened.colours("heat") > 20
    assert browser.log("browser") == []


def with_tokens(trace, block, count, top=4):
    """The same with weights of single tokens: row i of head h looks at 3 i + h + 16 j most."""
    random = np.random.default_rng(4)
    shape = (len(trace.layers), trace.heads, count, top)
    row, head, slot = np.ogrid[:count, : trace.heads, :top]
    key = np.broadcast_to((3 * row + head + 16 * slot).transpose(1, 0, 2), shape)
    weight = np.sort(random.dirichlet(np.ones(top), shape[:3]).astype(np.float32))[..., ::-1]
    text = [f"{i}{' <b>' if i % 9 == 0 else ' '}" for i in range(trace.about["tokens"])]
    trace.tokens = record.TokenWeights(block, text, key.astype(np.int32), weight)
    return trace


def test_single_tokens_are_shown_where_they_were_weighed(browser, tmp_path):
    trace = with_tokens(synthetic(2, 2, 30, 4), 29, 11)  # the last block is short
    opened = Page(browser, trace, tmp_path / "trace.html")
    opened.run("select(29, 0); setScope({layer: 1, head: -1}); chooseToken(5)")
    want = np.zeros(16)
    for head in range(2):
        for key, weight in zip(trace.tokens.key[1, head, 5], trace.tokens.weight[1, head, 5]):
            if key < 16:
                want[key] += weight / 2
    coloured = opened.run("return [...document.querySelectorAll('#key-text span')]"
                          ".map(s => s.style.background ? 1 : 0)")  # fmt: skip
    assert coloured == (want > 0).astype(int).tolist() and sum(coloured) == 1
    assert opened.text("key-text") == "".join(trace.tokens.text[:16])
    assert opened.text("row-text") == "".join(trace.tokens.text[29 * 16:])
    assert opened.run("return [...tokenWeights().values()].reduce((a, b) => a + b)") == (
        pytest.approx(1))
    assert len(opened.run("return [...document.querySelectorAll('#token-list button')]"
                          ".map(b => b.textContent)")) == 8  # fmt: skip
    opened.run("document.querySelector('#row-text').focus()")
    opened.browser.keys("\ue014")
    assert opened.run("return tokens.chosen") == 6
    opened.run("select(3, 0)")
    assert opened.text("row-text") == trace.row_text[3]
    opened.run("document.getElementById('tokens-go').click()")
    assert opened.run("return state.row") == 29 and browser.log("browser") == []


def test_two_texts_beside_each_other_follow_each_other(browser, tmp_path):
    traces = synthetic(2, 2, 30, 4, kind="score"), synthetic(2, 2, 20, 3, kind="score")
    traces[1].edges["weight"][5] = 50
    page.write_page(traces[0], tmp_path / "trace.html", traces[1])
    browser.open((tmp_path / "trace.html").as_uri())
    browser.until("[0, 1].every(i => window[i] && window[i].foveaTrace && true)")
    for side, rows in ((0, 30), (1, 20)):
        texts = "return window[arguments[0]].foveaTrace.about.row_text.length"
        assert browser.run(texts, side) == rows
    ranges = browser.run("return [0, 1].map(i => window[i].foveaTrace.state.range)")
    assert ranges[0] == ranges[1] and ranges[0]["hi"] == 50
    scopes = "return [0, 1].map(i => window[i].foveaTrace.state.scope)"
    browser.run("window[0].setScope({layer: 1, head: 0})")
    assert browser.run(scopes) == [{"layer": 1, "head": 0}] * 2
    browser.run("window[1].setScope({layer: 0, head: 1})")
    assert browser.run(scopes) == [{"layer": 0, "head": 1}] * 2
    browser.run("window[1].document.getElementById('theme').click()")
    dark = browser.run("return [0, 1].map(i => window[i].document.documentElement.className)")
    assert dark == ["dark", "dark"]


@pytest.mark.parametrize("width", [1400, 800, 390])
def test_the_names_of_the_arc_axis_keep_apart(browser, tmp_path, width):
    """What is written on the canvas: the places of all texts of a line do not meet."""
    opened = Page(browser, synthetic(1, 1, 27, 3, block=64), tmp_path / "trace.html")
    opened.run("document.getElementById('arcs').style.width = arguments[0] + 'px'", width - 60)
    places = opened.run("""
        const written = [], plain = CanvasRenderingContext2D.prototype.fillText;
        CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
          const w = this.measureText(text).width;
          const by = { center: w / 2, right: w }[this.textAlign] || 0;
          written.push([x - by, x - by + w, text]);
        };
        drawArcs();
        CanvasRenderingContext2D.prototype.fillText = plain;
        return written""")
    places.sort()
    assert places[-1][2] == "tokens" and len(places) > 2
    assert all(left[1] + 4 <= right[0] for left, right in zip(places, places[1:])), places


@pytest.mark.parametrize("count", [0, 1])
def test_hardly_an_edge(browser, tmp_path, count):
    trace = synthetic(1, 1, 1, 1)
    trace.edges = trace.edges[:count]
    opened = Page(browser, trace, tmp_path / "trace.html")
    assert browser.log("browser") == []
    assert opened.text("row-text") == trace.row_text[0]


@pytest.mark.parametrize("layers, heads, rows, keep", [(10, 4, 256, 15), (1, 1, 70_000, 3)])
def test_150_thousand_edges_do_not_freeze_it(browser, tmp_path, layers, heads, rows, keep):
    """Of many heads, and of one over a million tokens, whose blocks are more than 16 bits count."""
    trace = synthetic(layers, heads, rows, keep)
    assert len(trace.edges) > 150_000
    Page(browser, trace, tmp_path / "trace.html")  # the browser's own first time is not the page's
    opened = Page(browser, trace, tmp_path / "trace.html")
    x, y = opened.at(rows // 2, rows // 2)
    for i in range(40):
        browser.wheel(x, y, -60 if i < 20 else 60)
    opened.settle()
    frames = opened.run("return foveaTrace.times.heat")
    tasks = browser.run(
        "const o = new PerformanceObserver(() => 0); o.observe({type: 'longtask', buffered: true});"
        "return o.takeRecords().map(e => Math.round(e.duration))")  # fmt: skip
    assert all(opened.colours(name) > 5 for name in CANVASES)
    print(f"a zoom frame: median {statistics.median(frames):.1f} ms, longest {max(frames):.1f} ms; "
          f"tasks over 50 ms: {tasks}")  # fmt: skip
    assert len(frames) > 20
    assert statistics.median(frames) < FRAME_MS
    # None on an idle machine; one that is also building gives the browser a part of its time.
    assert max(tasks, default=0) < 5 * FRAME_MS
