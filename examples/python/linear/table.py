# SPDX-License-Identifier: Apache-2.0
"""Names of methods, the tables of both commands as text for people and for programs, the plots."""
from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402


@dataclasses.dataclass(frozen=True)
class Row:
    """Of lm.py: bits a byte on held-out text, and on the text of the last ten steps."""

    method: str
    bits: float
    trained_bits: float
    weights: int
    state_bytes: int
    step_seconds: float
    paper: str
    how: str


@dataclasses.dataclass(frozen=True)
class Recall:
    """Of recall.py: the share of questions that are answered right, by pairs of a text."""

    method: str
    accuracy: float
    weights: int
    state_bytes: int
    steps: int
    step_seconds: float
    paper: str
    how: str


HEADS = {"bits": "bits a byte", "trained_bits": "in training", "state_bytes": "bytes of state",
         "step_seconds": "seconds a step"}
FORMS = {"bits": "{:.3f}", "trained_bits": "{:.3f}", "step_seconds": "{:.2f}",
         "accuracy": "{:.1%}"}


def names(command: str, wanted: str, there: Iterable[str]) -> list[str]:
    found = list(there)
    chosen = found if wanted == "all" else [name.strip() for name in wanted.split(",")]
    for name in chosen:
        if name not in found:
            raise SystemExit(f"{command}: --method has {name or 'an empty name'}, "
                             f"wanted some of {', '.join(found)}, or all")
    return list(dict.fromkeys(chosen))


def fields(rows: Sequence[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(rows[0])]


def write_md(rows: Sequence[Any], about: str, path: pathlib.Path) -> None:
    shown = fields(rows)
    lines = [[HEADS.get(name, name) for name in shown], ["---"] * len(shown)]
    lines += [[FORMS.get(name, "{}").format(getattr(row, name)) for name in shown] for row in rows]
    path.write_text("".join(f"| {' | '.join(line)} |\n" for line in lines) + f"\n{about}.\n")


def write_tsv(rows: Sequence[Any], path: pathlib.Path) -> None:
    shown = fields(rows)
    lines = [shown, *([str(getattr(row, name)) for name in shown] for row in rows)]
    path.write_text("".join("\t".join(line) + "\n" for line in lines))


def read_tsv(path: pathlib.Path) -> list[dict[str, str]]:
    shown, *lines = (line.split("\t") for line in path.read_text().splitlines())
    return [dict(zip(shown, line)) for line in lines]


def draw(rows: Sequence[Any], title: str, path: pathlib.Path) -> None:
    """A bar for each method, best first: of bits a byte, or of accuracy."""
    from linear.methods import CORRECTING
    recall = isinstance(rows[0], Recall)
    measured = {row.method: row.accuracy if recall else row.bits for row in rows}
    order = sorted(measured, key=lambda name: -measured[name] if recall else measured[name])
    figure, axes = plt.subplots(figsize=(8, 1.2 + 0.28 * len(rows)), constrained_layout=True)
    values = [measured[name] for name in order]
    colors = ["#1b7f79" if name in CORRECTING else "#9aa5b1" for name in order]
    axes.barh(order[::-1], values[::-1], color=colors[::-1])
    for at, value in enumerate(values[::-1]):
        axes.annotate(FORMS["accuracy" if recall else "bits"].format(value), (value, at),
                      xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_title(f"{title}\ngreen: methods that correct their state (x_delta)", fontsize=9)
    if recall:
        axes.set_xlim(0, 1.12)
        axes.xaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1))
    else:
        low, high = min(values), max(values)
        axes.set_xlim(max(0, low - 0.5 * (high - low) - 0.1), high + 0.15 * (high - low) + 0.05)
    figure.savefig(path, dpi=110, format="png")
    plt.close(figure)
