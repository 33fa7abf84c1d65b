#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A byte language model with linear attention, trained from scratch: every method by its name.

    python examples/python/linear/lm.py --method gated_deltanet
    cd examples/python && python -m linear.lm --method all --steps 100 --out folder

NumPy multiplies matrices; fovea mixes the tokens, forward and backward: x_gla or x_delta, x_conv1d
and x_norm_gate.  Then the model goes on from a prompt, with a state of constant size.  It reads the
prompt at once, in uneven pieces, and byte by byte: the three texts and their logits have the same
bits, or the command fails."""
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
    from linear.engine import Engine
    from linear.methods import Method
    from linear.model import Model
    from linear.table import Row
    from training.tape import Floats, Ints

Args = argparse.Namespace
PIECES = (1, 7, 2, 31, 5, 16)  # of a prompt that is read in pieces, again and again
CHECKED, CHECK_ROWS, CHECK_TOKENS = 36, 4, 32  # --check: steps, windows of a step, their bytes
CLOSE = 1e-3  # of the losses, relative


def main(argv: Sequence[str] | None = None) -> list[Row]:
    rows: list[Row] = []
    with sentences("lm", lambda: f"interrupted after {len(rows)} methods; " + (
            "the table has them" if rows else "no table was written")):
        run(arguments(argv), rows)
    return rows


def run(args: Args, rows: list[Row]) -> None:
    from linear import engine, table  # first: it finds fovea in a checkout
    from linear.methods import METHODS
    from training.table import names, write_tsv
    from training.text import read
    import fovea

    chosen = names("lm", "method", args.method, METHODS)
    text = read("lm", args.text, args.tokens)
    with fovea.Context(args.backend, threads=args.threads) as ctx:
        ours = engine.Fovea(ctx)
        if args.check:
            for name in chosen:
                check(METHODS[name], text, ours, args.seed)
            return
        files = "lm.tsv", "lm.md", "lm.png"
        with Folder(args.out, (*files, *(f"{name}.npz" for name in chosen)), args.force) as folder:
            about = (f"{args.steps} steps of {args.rows} x {args.tokens} bytes, {ctx!r}, f32, "
                     f"{platform.machine()}, Python {platform.python_version()}")
            for name in chosen:
                model, row = train(METHODS[name], text, ours, args)
                folder.save(f"{name}.npz", model.save)
                rows.append(row)
                folder.save(files[0], lambda path: write_tsv(rows, path))
                folder.save(files[1], lambda path: table.write_md(rows, about, path))
                if args.write:
                    print(f"{name} writes:\n{written(model, text, args).rstrip()}\n", flush=True)
            folder.save(files[2], lambda path: table.draw(
                rows, f"bits a byte on held-out text, {args.steps} steps", path))
            print((args.out / files[1]).read_text(), end="")


def train(method: Method, text: Ints, engine: Engine, args: Args) -> tuple[Model, Row]:
    from linear.model import Model, Shape, State
    from linear.table import Row
    from training.text import judge, learn, split

    learned, held_out = split(text)
    model = Model(method, Shape(layers=args.layers), engine, args.seed)
    started = time.perf_counter()
    trained_bits, step_seconds = learn(method.name, model, learned, args)
    bits = judge(model, held_out, args.tokens, args.held_out)
    state = State(args.layers)
    model.trained = False
    model.forward(held_out[None, :8], state)
    say(f"{method.name}: {bits:.3f} bits a byte on held-out text, {model.count()} weights, "
        f"{state.bytes()} bytes of state, {time.perf_counter() - started:.0f} s", done=True)
    return model, Row(method.name, bits, trained_bits, model.count(), state.bytes(), step_seconds,
                      method.paper, method.note)


def written(model: Model, text: Ints, args: Args) -> str:
    """The prompt and what follows it, from a state.  Three ways to read the prompt must give the
    same bits of the logits.  From 64 bytes on fovea reads in chunks, which round another way: then
    the logits must be near."""
    from training.text import split
    import numpy as np
    prompt = (np.frombuffer(args.prompt.encode(), np.uint8).astype(np.int64) if args.prompt
              else split(text)[1][:63])
    ways = {"at once": [len(prompt)], "in pieces": pieces(len(prompt)),
            "byte by byte": [1] * len(prompt)}
    model.trained = False
    made = {way: follow(model, prompt, cuts, args) for way, cuts in ways.items()}
    model.trained = True
    first, last, size = made["at once"]
    for way, (other, logits, its_size) in made.items():
        same = np.array_equal(other, first) and np.array_equal(logits, last)
        near = len(prompt) >= 64 and np.allclose(logits, last, rtol=1e-3, atol=1e-3)
        if not ((same or near) and its_size == size):
            raise SystemExit(f"lm: {model.method.name}: the prompt read {way} gives another text "
                             "than read at once")
    say(f"{model.method.name}: at once, in pieces and byte by byte the logits are "
        f"{'the same bits' if len(prompt) < 64 else 'the same to 1e-3'}; "
        f"{size} bytes of state", done=True)
    return bytes(np.concatenate([prompt, first]).astype(np.uint8)).decode(errors="replace")


def follow(model: Model, prompt: Ints, cuts: Sequence[int],
           args: Args) -> tuple[Ints, Floats, int]:
    """The bytes that follow, the logits of each, the size of the state."""
    from linear.model import State
    import numpy as np
    state, at, logits = State(model.shape.layers), 0, None
    for n in cuts:
        logits = model.forward(prompt[None, at:at + n], state).value[0, -1]
        at += n
    assert logits is not None
    random, found, seen = np.random.default_rng(args.seed), list[int](), [logits]
    for _ in range(args.write):
        p = np.exp((logits - logits.max()).astype(np.float64) / args.temperature)
        found.append(int(random.choice(len(p), p=p / p.sum())))
        logits = model.forward(np.array([found[-1:]]), state).value[0, -1]
        seen.append(logits)
    return np.array(found), np.stack(seen), state.bytes()


def pieces(n: int) -> list[int]:
    found, left = list[int](), n
    while left:
        found.append(min(left, PIECES[len(found) % len(PIECES)]))
        left -= found[-1]
    return found


def check(method: Method, text: Ints, ours: Engine, seed: int) -> float:
    """The largest relative distance between the losses of a step, by fovea and by the recurrence in
    NumPy."""
    from linear.engine import Recurrence
    from linear.model import Model, Shape
    from training.adam import Adam
    from training.model import train_step
    from training.text import split, windows
    import numpy as np
    curves: list[Floats] = []
    learned = split(text)[0]
    for engine in (ours, Recurrence()):
        model = Model(method, Shape(layers=2, width=32, head_count=2, hidden=32), engine, seed)
        adam, random = Adam(model.weights, 1e-3, CHECKED, 5, most=1.0), np.random.default_rng(seed)
        curve = list[float]()
        for step in range(CHECKED):
            first = random.integers(0, len(learned) - CHECK_TOKENS, CHECK_ROWS)
            curve.append(train_step(model, adam, *windows(learned, first, CHECK_TOKENS)))
            say(f"{method.name}: step {step + 1} of {CHECKED} by {type(engine).__name__}")
        curves.append(np.array(curve, np.float32))
    apart = float(np.abs(curves[0] / curves[1] - 1).max())
    say("")
    print(f"{method.name}: the loss goes from {curves[0][0]:.4f} to {curves[0][-1]:.4f}; "
          f"the recurrence in NumPy is within {apart:.1e}", flush=True)
    if not apart <= CLOSE:
        raise SystemExit(f"lm: {method.name}: wanted within {CLOSE:g}")
    return apart


def arguments(argv: Sequence[str] | None) -> Args:
    parser = Parser(prog="lm", description="A byte language model with linear attention, trained "
                                           "from scratch.")
    option = parser.add_argument
    option("--method", default="gated_deltanet", help="names with commas between, or all")
    option("--steps", type=int, default=200, help="steps of training")
    option("--rows", type=int, default=16, help="windows of a step")
    option("--tokens", type=int, default=128, help="bytes of a window")
    option("--layers", type=int, default=4, help="layers of width 128, with 4 heads")
    option("--rate", type=float, default=4e-3, help="learning rate, at its highest")
    option("--seed", type=int, default=0, help="of weights, windows and the text that is written")
    option("--held-out", type=int, default=64, help="windows of held-out text that are judged")
    option("--write", type=int, default=160, help="bytes to write after training; 0: none")
    option("--prompt", help="what the written text follows; default: 64 bytes of held-out text")
    option("--temperature", type=float, default=0.6, help="of the written text")
    option("--check", action="store_true",
           help=f"trains {CHECKED} small steps twice instead, once by the recurrence in NumPy")
    option("--backend", choices=["host", "cuda"], default="host", help="where fovea computes")
    option("--threads", type=int, default=0, help="threads of the host backend; 0: all")
    option("--out", type=pathlib.Path, default="linear.out", help="folder of table, plot, weights")
    option("--force", action="store_true", help="writes over a table that is there")
    option("--text", type=pathlib.Path, help="a file instead of the Python language reference")
    args = parser.parse_args(argv)
    for name in ("steps", "rows", "tokens", "layers", "held_out"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is {getattr(args, name)}, wanted 1 or more")
    for name in ("threads", "write"):
        if getattr(args, name) < 0:
            parser.error(f"--{name} is {getattr(args, name)}, wanted 0 or more")
    for name in ("rate", "temperature"):
        if not getattr(args, name) > 0:
            parser.error(f"--{name} is {getattr(args, name):g}, wanted more than 0")
    if args.prompt == "":
        parser.error("--prompt is empty")
    if args.text and not args.text.is_file():
        parser.error(f"--text {args.text}: no such file")
    return args


if __name__ == "__main__":
    main()
