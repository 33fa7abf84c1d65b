#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How a byte model learns where attention is rounded: f32, bf16, and SageBwd's 8 bits.

    python examples/python/compact/curve.py
    cd examples/python && python -m compact.curve --attention bf16,sagebwd --seeds 3 --out folder

The model is lm.py's with grouped queries.  A seed begins with the same weights and reads the same
windows in each arithmetic, so that curves differ by rounding alone."""
from __future__ import annotations

import signal

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while Python imports: no traceback

import argparse
import dataclasses
import pathlib
import platform
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if __package__ in (None, ""):  # run as a script
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from compact import options
from fovea_trace.output import Folder
from smollm.terminal import Parser, say, sentences  # what needs more is imported in run()

if TYPE_CHECKING:
    from compact.model import Attention
    from training.tape import Floats, Ints

Args = argparse.Namespace
NAMES = "f32", "bf16", "sagebwd"
MEAN = 20  # steps that a point of a curve is the mean of


@dataclasses.dataclass(frozen=True)
class Row:
    attention: str
    seed: int
    bits: float  # a byte, on held-out text
    exact_bits: float  # the same weights, with attention in f32
    trained_bits: float  # on the text of the last ten steps
    apart: float  # of the curve from that of the first attention, the largest


HEADS = {"bits": "bits a byte", "exact_bits": "read in f32", "trained_bits": "in training",
         "apart": "curve apart by, bits"}
FORMS = {"bits": "{:.3f}", "exact_bits": "{:.3f}", "trained_bits": "{:.3f}", "apart": "{:.3f}"}


def main(argv: Sequence[str] | None = None) -> list[Row]:
    rows: list[Row] = []
    with sentences("curve", lambda: f"interrupted after {len(rows)} curves; none was written"):
        run(arguments(argv), rows)
    return rows


def run(args: Args, rows: list[Row]) -> None:
    from compact import model  # first: it finds fovea in a checkout
    from compact.rounded import ENGINES
    from training.table import names, write_md, write_tsv
    from training.text import read
    import fovea

    assert tuple(ENGINES) == NAMES
    chosen = names("curve", "attention", args.attention, NAMES)
    text = read("curve", args.text, args.tokens)
    with fovea.Context(args.backend, threads=args.threads) as ctx, Folder(
            args.out, ("curve.tsv", "curve.md", "curve.png"), args.force) as folder:
        exact = model.Attention(ctx)
        for name in chosen:
            probe(ENGINES[name](ctx))
        curves: dict[tuple[str, int], Floats] = {}
        for seed in range(args.seed, args.seed + args.seeds):
            for name in chosen:
                first = curves.get((chosen[0], seed))
                row, curves[name, seed] = train(name, ENGINES[name](ctx), exact, text, seed, first,
                                                args)
                rows.append(row)
        about = (f"{args.steps} steps of {args.rows} x {args.tokens} bytes, {ctx!r}, "
                 f"{platform.machine()}, Python {platform.python_version()}")
        folder.save("curve.tsv", lambda path: write_tsv(rows, path))
        folder.save("curve.md", lambda path: write_md(rows, about, path, HEADS, FORMS))
        folder.save("curve.png", lambda path: draw(curves, chosen, path))
        print((args.out / "curve.md").read_text(), end="")


def probe(engine: Attention) -> None:
    """What it cannot do here is said before anything is trained."""
    from compact.kinds import KINDS
    from compact.model import Model
    from training.tape import cross_entropy
    import numpy as np
    tokens = np.zeros((1, 2), np.int64)
    cross_entropy(Model(KINDS["gqa"], engine, layers=1).forward(tokens), tokens).backward()


def train(name: str, engine: Attention, exact: Attention, text: Ints, seed: int,
          first: Floats | None, args: Args) -> tuple[Row, Floats]:
    """A row, and the mean bits of each MEAN steps.  first: the curve that it is held to."""
    from compact.kinds import KINDS
    from compact.model import Model
    from training.text import judge, learn, split
    import numpy as np

    learned, held_out = split(text)
    model, bits = Model(KINDS["gqa"], engine, seed, args.layers), list[float]()
    trained_bits, _ = learn(
        f"{name}, seed {seed}", model, learned, argparse.Namespace(**{**vars(args), "seed": seed}),
        bits)
    width = min(MEAN, len(bits))
    curve = np.convolve(bits, np.full(width, 1 / width), "valid")
    own = judge(model, held_out, args.tokens, args.held_out)
    model.engine = exact
    read = judge(model, held_out, args.tokens, args.held_out)
    apart = float(np.abs(curve - first).max()) if first is not None else 0.0
    say(f"{name}, seed {seed}: {own:.3f} bits a byte on held-out text", done=True)
    return Row(name, seed, own, read, trained_bits, apart), curve


def draw(curves: Mapping[tuple[str, int], Floats], chosen: Sequence[str],
         path: pathlib.Path) -> None:
    """Curves of the first seed, and how far each curve is from the first attention's."""
    import matplotlib
    import numpy as np
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), constrained_layout=True)
    colors = dict(zip(NAMES, ("#8a8a8a", "#1b7f79", "#c8553d")))
    first = min(seed for _, seed in curves)
    for (name, seed), curve in curves.items():
        steps = np.arange(len(curve)) + 1 + MEAN / 2
        if seed == first:
            left.plot(steps, curve, color=colors[name], linewidth=1.2, label=name)
        if name != chosen[0]:
            right.plot(steps, curve - curves[chosen[0], seed], color=colors[name], linewidth=0.9,
                       label=name if seed == first else None)
    left.set(title="bits a byte in training", xlabel="step", yscale="log")
    left.yaxis.set_major_formatter("{x:.0f}")
    left.yaxis.set_minor_formatter("{x:.0f}")
    right.set(title=f"less those of {chosen[0]}, each seed", xlabel="step")
    right.axhline(0, color=colors[chosen[0]], linewidth=0.8)
    for axes in (left, right):
        axes.grid(color="#dddddd", linewidth=0.5)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=110, format="png")
    plt.close(figure)


def arguments(argv: Sequence[str] | None) -> Args:
    parser = Parser(prog="curve", description="How a byte model learns where attention is rounded.")
    option = parser.add_argument
    option("--attention", default="all", help=f"some of {', '.join(NAMES)}, with commas between; "
                                              "the first is what the others are held to")
    option("--seeds", type=int, default=1, help="how many")
    option("--out", type=pathlib.Path, default="curve.out", help="folder of table and plot")
    options.add(parser)
    return options.parse(parser, argv, ["seeds"])


if __name__ == "__main__":
    main()
