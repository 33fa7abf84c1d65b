#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Multi-query associative recall: which methods find the value of a key again.

    python examples/python/linear/recall.py --method gla,gated_deltanet
    cd examples/python && python -m linear.recall --method all --out folder

A text begins with pairs of a key and a value, drawn anew for every text: k1 v1 k2 v2 ...  Then each
key comes twice more, at places drawn anew between tokens that mean nothing, and the model is to
name its value there.  Two layers of width 64 learn it from scratch.  Accuracy is the share of right
answers on texts that were not trained on."""
from __future__ import annotations

import signal

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while Python imports: no traceback

import argparse
import pathlib
import platform
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if __package__ in (None, ""):  # run as a script
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from fovea_trace.output import Folder
from smollm.terminal import Parser, say, sentences  # what needs more is imported in run()

if TYPE_CHECKING:
    import numpy as np
    from linear.engine import Engine
    from linear.methods import Method
    from linear.model import Model
    from linear.table import Recall
    from training.tape import Ints

Args = argparse.Namespace
HELD_OUT, ASKED = 128, 2  # texts; how often a key is asked for


def main(argv: Sequence[str] | None = None) -> list[Recall]:
    rows: list[Recall] = []
    with sentences("recall", lambda: f"interrupted after {len(rows)} methods; " + (
            "the table has them" if rows else "no table was written")):
        run(arguments(argv), rows)
    return rows


def run(args: Args, rows: list[Recall]) -> None:
    from linear import engine, table  # first: it finds fovea in a checkout
    from linear.methods import METHODS
    from training.table import names, write_tsv
    import fovea

    chosen = names("recall", "method", args.method, METHODS)
    files = "recall.tsv", "recall.md", "recall.png"
    with fovea.Context(args.backend, threads=args.threads) as ctx, \
            Folder(args.out, files, args.force) as folder:
        about = (f"{args.pairs} pairs in {args.tokens} tokens, vocabulary {args.vocabulary}, "
                 f"at most {args.steps} steps of {args.rows} texts, {ctx!r}, f32, "
                 f"{platform.machine()}, Python {platform.python_version()}")
        for name in chosen:
            rows.append(train(METHODS[name], engine.Fovea(ctx), args))
            folder.save(files[0], lambda path: write_tsv(rows, path))
            folder.save(files[1], lambda path: table.write_md(rows, about, path))
        folder.save(files[2], lambda path: table.draw(
            rows, f"right answers, {args.pairs} pairs in {args.tokens} tokens", path))
    print((args.out / files[1]).read_text(), end="")


def texts(random: np.random.Generator, count: int, args: Args) -> tuple[Ints, Ints]:
    """Tokens, and the answer to each; -1 where nothing is asked.  Token 0 means nothing, the lower
    half of the others are keys, the upper values."""
    import numpy as np
    half, pairs = (args.vocabulary - 1) // 2, args.pairs
    keys = 1 + np.argsort(random.random((count, half)), axis=1)[:, :pairs]
    values = random.integers(1 + half, 1 + 2 * half, (count, pairs))
    tokens = np.zeros((count, args.tokens), np.int64)
    answers = np.full((count, args.tokens), -1, np.int64)
    tokens[:, 0:2 * pairs:2], tokens[:, 1:2 * pairs:2] = keys, values
    places = np.argsort(random.random((count, args.tokens - 2 * pairs)), axis=1)
    places = 2 * pairs + places[:, :ASKED * pairs]
    np.put_along_axis(tokens, places, np.tile(keys, ASKED), axis=1)
    np.put_along_axis(answers, places, np.tile(values, ASKED), axis=1)
    return tokens, answers


def train(method: Method, engine: Engine, args: Args) -> Recall:
    from linear.model import Model, Shape, State
    from linear.table import Recall
    from training.adam import Adam
    from training.model import train_step
    import numpy as np

    shape = Shape(args.vocabulary, layers=2, width=64, head_count=2, hidden=64, taps=args.taps)
    model = Model(method, shape, engine, args.seed)
    adam = Adam(model.weights, args.rate, args.steps, min(10, args.steps), most=1.0)
    random = np.random.default_rng(args.seed)
    asked = texts(np.random.default_rng(args.seed + 1), HELD_OUT, args)
    started, right, step = time.perf_counter(), 0.0, 0
    while step < args.steps and right < args.enough:
        step += 1
        loss = train_step(model, adam, *texts(random, args.rows, args))
        if step % 20 == 0 or step == args.steps:
            right = accuracy(model, *asked)
        spent = time.perf_counter() - started
        say(f"{method.name}: step {step} of {args.steps}, loss {loss:.3f}, {right:.1%} right, "
            f"{spent / step:.2f} s a step")
    state = State(shape.layers)
    model.trained = False
    model.forward(asked[0][:1], state)
    say(f"{method.name}: {right:.1%} right after {step} steps, {state.bytes()} bytes of state, "
        f"{spent:.0f} s", done=True)
    return Recall(method.name, right, model.count(), state.bytes(), step, spent / step,
                  method.paper, method.note)


def accuracy(model: Model, tokens: Ints, answers: Ints) -> float:
    import numpy as np
    model.trained = False
    found = np.concatenate([model.forward(some).value.argmax(axis=2)
                            for some in np.array_split(tokens, -(-len(tokens) // 64))])
    model.trained = True
    return float((found == answers)[answers >= 0].mean())


def arguments(argv: Sequence[str] | None) -> Args:
    parser = Parser(prog="recall", description="Multi-query associative recall with linear "
                                               "attention, trained from scratch.")
    option = parser.add_argument
    option("--method", default="gated_deltanet", help="names with commas between, or all")
    option("--steps", type=int, default=400, help="most steps of training")
    option("--enough", type=float, default=0.995, help="accuracy at which training ends")
    option("--rows", type=int, default=16, help="texts of a step")
    option("--tokens", type=int, default=64, help="tokens of a text")
    option("--pairs", type=int, default=8, help="pairs of a text")
    option("--vocabulary", type=int, default=64, help="half are keys, half are values")
    option("--taps", type=int, default=2,
           help="of the short convolution that every method has before a layer; 0: none")
    option("--rate", type=float, default=5e-3, help="learning rate, at its highest")
    option("--seed", type=int, default=0, help="of weights and texts")
    option("--backend", choices=["host", "cuda"], default="host", help="where fovea computes")
    option("--threads", type=int, default=0, help="threads of the host backend; 0: all")
    option("--out", type=pathlib.Path, default="linear.out", help="folder of table and plot")
    option("--force", action="store_true", help="writes over a table that is there")
    args = parser.parse_args(argv)
    for name in ("steps", "rows", "pairs"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} is {getattr(args, name)}, wanted 1 or more")
    for name in ("taps", "threads"):
        if getattr(args, name) < 0:
            parser.error(f"--{name} is {getattr(args, name)}, wanted 0 or more")
    if args.tokens < (least := (2 + ASKED) * args.pairs):
        parser.error(f"--tokens is {args.tokens}, wanted {least} or more for {args.pairs} pairs")
    if args.vocabulary < (least := 1 + 2 * args.pairs):
        parser.error(f"--vocabulary is {args.vocabulary}, wanted {least} or more for "
                     f"{args.pairs} pairs")
    if not args.rate > 0:
        parser.error(f"--rate is {args.rate:g}, wanted more than 0")
    return args


if __name__ == "__main__":
    main()
