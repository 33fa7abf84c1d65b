#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/results/<device>.tsv -> <device>.png: the peer's time over fovea's, latest rows.
bench/plot.py [FILE.tsv ...], every file without arguments."""

import csv
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

RESULTS = pathlib.Path(__file__).resolve().parent / "results"
AHEAD, BEHIND, INK, FAINT = "#1b7f79", "#c2703d", "#222222", "#bbbbbb"


def latest(path):
    with path.open() as lines:
        rows = {(row["op"], row["case"]): row for row in csv.DictReader(lines, delimiter="\t")}
    return sorted(rows.values(), key=lambda row: row["op"], reverse=True)  # forward above backward


def rate(row):
    value = float(row["tflops_or_gbs"])
    if "decode" in row["case"]:
        return f"{value:.0f} GB/s"
    return f"{value:.0f} TFLOP/s" if value >= 10 else f"{1000 * value:.0f} GFLOP/s"


def draw(path):
    rows = latest(path)
    ratios = [float(row["ratio"]) for row in rows]
    peers = sorted({row["peer"] for row in rows})
    figure, axes = plt.subplots(figsize=(9, 1.3 + 0.32 * len(rows)), constrained_layout=True)
    spots = range(len(rows))
    axes.barh(spots, ratios, height=0.66, color=[AHEAD if r >= 1 else BEHIND for r in ratios])
    axes.axvline(1, color=INK, linewidth=1)
    for spot, row, ratio in zip(spots, rows, ratios):
        axes.text(
            max(ratio, 1.01),
            spot,
            f" {ratio:.2f}  ({float(row['ms']):.3g} ms, {rate(row)})",
            va="center",
            fontsize=8,
            color=INK,
        )
    axes.set_yticks(
        spots,
        [f"{row['op'].removeprefix('attention_')}  {row['case']}" for row in rows],
        fontsize=8,
    )
    axes.invert_yaxis()
    axes.set_xlim(0, max([1.1, *ratios]) * 1.45)
    axes.set_xlabel(
        f"time of {' or '.join(peers)} / time of fovea  (1 = the same, longer = fovea is faster)",
        fontsize=9,
    )
    axes.set_title(
        f"{rows[0]['device']}: attention against PyTorch, one process, medians",
        loc="left",
        fontsize=11,
    )
    axes.grid(axis="x", color=FAINT, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    target = path.with_suffix(".png")
    figure.savefig(target, dpi=150)
    plt.close(figure)
    print(target)


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(RESULTS.glob("*.tsv")):
        draw(pathlib.Path(name))
