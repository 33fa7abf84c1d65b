# SPDX-License-Identifier: Apache-2.0
"""trace.html: the viewer and the trace, or two beside each other, in one file that asks for
nothing else.

The edges are in the order layer, head, row block, so three columns hold them: how many each row
block of each head has, the key block of each, the weight of each.  They are raw little-endian
bytes in base64, in pieces that a page decodes one at a time, without freezing."""
import base64
import html
import json
import pathlib
from typing import Any

import numpy as np

from fovea_trace.record import About, TokenWeights, Trace

FOLDER = pathlib.Path(__file__).parent / "page"
SCRIPTS = ("data.js", "draw.js", "heatmap.js", "grid.js", "tokens.js", "edges.js",
           "charts.js", "main.js")
PIECE = 3 << 16  # bytes, a multiple of 3 so that pieces of base64 join


def write_page(trace: Trace, path: str | pathlib.Path, beside: Trace | None = None) -> None:
    """One text, or with `beside` a second one of the same layers and heads next to it."""
    script = "\n".join((FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS)
    viewer = (FOLDER / "page.html").read_text(encoding="utf-8")
    viewer = filled(viewer, STYLE=(FOLDER / "style.css").read_text(encoding="utf-8"))
    viewer = filled(viewer, SCRIPT=script)
    if beside is None:
        about, data = parts(trace)
        page = filled(viewer, ABOUT=in_script(about), DATA=data)
    else:
        page = side_by_side(viewer, trace, beside)
    pathlib.Path(path).write_text(page, encoding="utf-8")


def side_by_side(viewer: str, *traces: Trace) -> str:
    """The viewer once and both data: the page makes a frame of each."""
    if (traces[0].layers, traces[0].heads) != (traces[1].layers, traces[1].heads):
        raise ValueError("write_page: beside has other layers or heads than trace: wanted the same")
    about, data = zip(*map(parts, traces))
    for one in about:
        one["range"] = scale(traces)
    page = (FOLDER / "beside.html").read_text(encoding="utf-8")
    page = filled(page, TITLE=html.escape(" and ".join(one["title"] for one in about)))
    for i in range(2):
        page = filled(page, **{f"ABOUT{i}": in_script(about[i]), f"DATA{i}": data[i]})
    return filled(page, VIEWER=in_script(viewer))


def scale(traces: tuple[Trace, ...]) -> list[float]:
    """Least and most finite weight of all traces: what the colours of scores span."""
    weights = np.concatenate([trace.edges["weight"] for trace in traces])
    weights = weights[np.isfinite(weights)]
    if not len(weights) or weights.min() == weights.max():
        return [0.0, 1.0]
    return [float(weights.min()), float(weights.max())]


def filled(page: str, **pieces: str) -> str:
    for name, piece in pieces.items():
        before, mark, after = page.partition(f"@{name}@")
        assert mark, name
        page = before + piece + after
    return page


def in_script(value: Any) -> str:
    return json.dumps(value).replace("<", "\\u003c")  # so that no text ends the element


def parts(trace: Trace) -> tuple[About, str]:
    """What the page is told, and elements with the columns."""
    columns, about = pack(trace)
    data = b"".join(columns)
    about["bytes"] = len(data)
    pieces = (base64.b64encode(data[i:i + PIECE]).decode() for i in range(0, len(data), PIECE))
    return about, "\n".join(f'<script type="text/plain" class="data">{p}</script>' for p in pieces)


def pack(trace: Trace) -> tuple[list[bytes], About]:
    """The columns, widest elements first so that each begins aligned, and what the page is told."""
    edges, n = trace.edges, len(trace.row_text)
    layer = np.searchsorted(trace.layers, edges["layer"])
    group = (layer * trace.heads + edges["head"]) * n + edges["q_block"]
    assert np.all(np.diff(group) >= 0), "edges are out of order"
    counts = np.bincount(group, minlength=len(trace.layers) * trace.heads * n)
    wide = len(trace.key_text) > 65535
    columns = [
        edges["weight"].astype("<f4").tobytes(),
        trace.retained.astype("<f4").tobytes(),
        *token_columns(trace),
        edges["k_block"].astype("<u4" if wide else "<u2").tobytes(),
        counts.astype("<u2").tobytes(),
    ]
    about = dict(
        trace.about, heads=trace.heads, edges=len(edges), wide=wide, row_text=trace.row_text,
        key_text=None if trace.key_text == trace.row_text else trace.key_text)
    if trace.tokens:
        about.update(token_block=trace.tokens.block, token_text=trace.tokens.text,
                     token_top=trace.tokens.key.shape[-1], token_wide=token_wide(trace.tokens))
    return columns, about


def token_columns(trace: Trace) -> list[bytes]:
    if not trace.tokens:
        return []
    key = trace.tokens.key.astype("<u4" if token_wide(trace.tokens) else "<u2")
    return [trace.tokens.weight.astype("<f4").tobytes(), key.tobytes()]


def token_wide(tokens: TokenWeights) -> bool:
    return len(tokens.text) > 65535
