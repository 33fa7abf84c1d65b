# SPDX-License-Identifier: Apache-2.0
"""trace.html: the viewer and the trace in one file that asks for nothing else.

The edges are in the order layer, head, row block, so three columns hold them: how many each row
block of each head has, the key block of each, the weight of each.  They are raw little-endian
bytes in base64, in pieces that a page decodes one at a time, without freezing."""
import base64
import json
import pathlib

import numpy as np

FOLDER = pathlib.Path(__file__).parent / "page"
SCRIPTS = ("data.js", "draw.js", "heatmap.js", "grid.js", "edges.js", "charts.js", "main.js")
PIECE = 3 << 16  # bytes, a multiple of 3 so that pieces of base64 join


def write_page(trace, path):
    columns, about = pack(trace)
    data = b"".join(columns)
    about["bytes"] = len(data)
    pieces = (base64.b64encode(data[i:i + PIECE]).decode() for i in range(0, len(data), PIECE))
    script = "\n".join((FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS)
    parts = {
        "STYLE": (FOLDER / "style.css").read_text(encoding="utf-8"),
        "ABOUT": json.dumps(about).replace("<", "\\u003c"),  # so that no text ends the element
        "DATA": "\n".join(f'<script type="text/plain" class="data">{p}</script>' for p in pieces),
        "SCRIPT": script,
    }
    page = (FOLDER / "page.html").read_text(encoding="utf-8")
    for name, part in parts.items():
        before, mark, after = page.partition(f"@{name}@")
        assert mark, name
        page = before + part + after
    pathlib.Path(path).write_text(page, encoding="utf-8")


def pack(trace):
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
        edges["k_block"].astype("<u4" if wide else "<u2").tobytes(),
        counts.astype("<u2").tobytes(),
    ]
    about = dict(
        trace.about, heads=trace.heads, edges=len(edges), wide=wide, row_text=trace.row_text,
        key_text=None if trace.key_text == trace.row_text else trace.key_text)
    return columns, about
