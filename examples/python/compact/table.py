# SPDX-License-Identifier: Apache-2.0
"""The row of lm.py's table, and the plot."""
from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence

import matplotlib

import training.table

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402


@dataclasses.dataclass(frozen=True)
class Row:
    kind: str
    bits: float  # a byte, on held-out text
    trained_bits: float  # on the text of the last ten steps
    weights: int
    cache_bytes: int  # a token, in all layers
    decode: float  # tokens a second, of all texts
    attention: float  # microseconds of a token, in the calls that write and read pages
    apart: float  # of logits over the pages from those of training, the largest
    step_seconds: float
    paper: str
    how: str


HEADS = {"bits": "bits a byte", "trained_bits": "in training",
         "cache_bytes": "cache, bytes a token", "decode": "decode, tokens a second",
         "attention": "of it attention, us a token",
         "apart": "pages and training differ by", "step_seconds": "seconds a step"}
FORMS = {"bits": "{:.3f}", "trained_bits": "{:.3f}", "decode": "{:.0f}", "attention": "{:.0f}",
         "apart": "{:.1e}", "step_seconds": "{:.2f}"}


def write_md(rows: Sequence[Row], about: str, path: pathlib.Path) -> None:
    training.table.write_md(rows, about, path, HEADS, FORMS)


def draw(rows: Sequence[Row], path: pathlib.Path) -> None:
    """Quality and time of a token, by the cache."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), constrained_layout=True)
    for axes, points, title in (
            (left, [row.bits for row in rows], "bits a byte on held-out text"),
            (right, [row.attention for row in rows], "attention of a token, microseconds")):
        axes.scatter([row.cache_bytes for row in rows], points, color="#1b7f79", s=22, zorder=2)
        axes.set(title=title, xlabel="cache, bytes a token")
        axes.set_xscale("log", base=2)
        least, most = (fit(row.cache_bytes for row in rows) for fit in (min, max))
        axes.set_xlim(least / 1.2, 1.6 * most)
        axes.grid(color="#dddddd", linewidth=0.5)
        axes.set_xticks([2**n for n in range(6, 24) if least / 1.2 < 2**n < 1.6 * most])
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.xaxis.set_minor_formatter("")
        figure.canvas.draw()
        training.table.label(axes, [(row.kind, (row.cache_bytes, point))
                                    for row, point in zip(rows, points)])
    right.set_ylim(bottom=0)
    figure.savefig(path, dpi=110, format="png")
    plt.close(figure)
