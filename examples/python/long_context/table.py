# SPDX-License-Identifier: Apache-2.0
"""The table, as text for people and for programs, and the plot."""
from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np

from long_context.trial import Row
from training.table import label

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

HEADS = ("method", "perplexity", "KL to dense", "recall", "answer", "hits", "keys", "prefill",
         "decode", "of attention", "how")


def number(value: float | None, form: str = "{:.3f}") -> str:
    return "-" if value is None else form.format(value)


def cells(row: Row) -> list[str]:
    """What a person reads of a row."""
    share = "{:.1%}"
    return [row.method, number(row.perplexity), number(row.kl, "{:.4f}"),
            number(row.recall, share), number(row.answer, "{:.1f}"),
            f"{row.hits.count('1')} of {len(row.hits)}", number(row.keys, share),
            number(row.prefill, "{:.0f}"), number(row.decode, "{:.1f}"),
            f"{row.prefill_attention:.0f}, {row.decode_attention:.0f}", row.note]


def write_md(rows: Sequence[Row], about: str, path: pathlib.Path) -> None:
    lines = [HEADS, ("---",) * len(HEADS), *map(cells, rows)]
    path.write_text("".join(f"| {' | '.join(line)} |\n" for line in lines) + f"\n{about}.\n")


def write_tsv(rows: Sequence[Row], path: pathlib.Path) -> None:
    names = [field.name for field in dataclasses.fields(Row)]
    lines = [names, *(["" if (value := getattr(row, name)) is None else str(value)
                       for name in names] for row in rows)]
    path.write_text("".join("\t".join(line) + "\n" for line in lines))


def read_tsv(path: pathlib.Path) -> list[dict[str, str]]:
    names, *lines = (line.split("\t") for line in path.read_text().splitlines())
    return [dict(zip(names, line)) for line in lines]


def draw(rows: Sequence[Row], title: str, path: pathlib.Path) -> None:
    """Quality against keys read: methods of which both are known."""
    told = [row for row in rows if row.keys is not None and row.recall is not None]
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5.6), constrained_layout=True)
    figure.suptitle(title, fontsize=10)
    left.set_yscale("log")
    for axes, shown, name in (
            (left, [(row, row.kl) for row in told if row.kl > 0], "KL to dense, in nats"),
            (right, [(row, row.recall) for row in told], "dense's top-64 mass that is read")):
        axes.set(title=name, xlabel="keys read, of those that a row may see", xlim=(0, 1.15))
        axes.xaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1))
        axes.set_xticks(np.linspace(0, 1, 6))
        axes.grid(color="#dddddd", linewidth=0.5)
        axes.scatter([row.keys for row, _ in shown], [value for _, value in shown],
                     color="#1b7f79", s=18, zorder=2)
        bottom, top = axes.get_ylim()
        if axes is right:  # room above for the names of the many that read nearly all
            axes.set(ylim=(bottom, top + 0.25 * (top - bottom)))
            axes.set_yticks([tick for tick in axes.get_yticks() if bottom < tick <= 1])
        figure.canvas.draw()
        label(axes, [(row.method, (row.keys, value)) for row, value in shown])
    figure.savefig(path, dpi=110, format="png")
    plt.close(figure)
