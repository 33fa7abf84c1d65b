#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Simulated speed-ups of fovea.distributed, 2 to 1024 ranks: the table and the picture of
docs/guides/distributed.md.

    bench/simulate_ranks.py                                    # the table
    bench/simulate_ranks.py --draw docs/guides/distributed.png     # the picture too

No machine is asked: the numbers are those of fovea.distributed.cost."""

import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bindings/python"))
import fovea.distributed as fd  # noqa: E402

RANKS = [2**n for n in range(1, 11)]
TOKENS = 1 << 20
MODEL = {"heads": 32, "key_heads": 8, "width": 128}
SPLITS = {  # the heading, and what cost is asked
    "ring": ("ring", {**MODEL, "backward": True}),
    "heads": ("heads", {**MODEL, "backward": True}),
    "mesh, 8 ranks for heads": ("mesh", {**MODEL, "backward": True, "second": 8}),
    "decode": ("decode", MODEL),
    "state": ("state", {"heads": 16, "width": 128, "backward": True}),
}
COLORS = ["#1b7f79", "#c2703d", "#3d5a98", "#8a6fb0", "#777777"]


def speedup(name, ranks):
    """Over one device; None where heads do not divide."""
    split, options = SPLITS[name]
    parts = options.get("second", ranks if split == "heads" else 1)
    if ranks % parts or options["heads"] % parts:
        return None
    return fd.cost(split, ranks, TOKENS, **options).speedup


def table():
    """The rows of the guide's table, as text."""
    rows = [["ranks", *SPLITS], ["---"] * (1 + len(SPLITS))]
    for ranks in RANKS:
        cells = [speedup(name, ranks) for name in SPLITS]
        rows.append([str(ranks), *["-" if x is None else f"{x:.3g}" for x in cells]])
    return ["| " + " | ".join(row) + " |" for row in rows]


def draw(path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    axes.plot(RANKS, RANKS, color="#cccccc", linestyle="--", label="as many times as ranks")
    for name, color in zip(SPLITS, COLORS):
        dots = [(n, x) for n in RANKS if (x := speedup(name, n)) is not None]
        axes.plot(*zip(*dots), color=color, marker="o", markersize=4, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(RANKS, [str(n) for n in RANKS])
    axes.set_yticks([1, *RANKS], [str(n) for n in [1, *RANKS]])
    axes.set_xlabel("ranks")
    axes.set_ylabel("times as fast as one device")
    axes.set_title("Simulated, not measured: a text of 1M tokens", fontsize=11)
    axes.grid(color="#eeeeee")
    axes.legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draw", type=pathlib.Path, help="where the picture goes")
    args = parser.parse_args()
    print("\n".join(table()))
    if args.draw:
        draw(args.draw)


if __name__ == "__main__":
    main()
