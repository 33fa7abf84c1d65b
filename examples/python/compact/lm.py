#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Byte models with as many weights, and attention of different kinds: quality beside cache.

    python examples/python/compact/lm.py --kind mha,mla
    cd examples/python && python -m compact.lm --kind all --out folder

Each is trained from scratch by fovea's forward and backward calls, and decodes from paged caches:
MLA is trained expanded and decodes absorbed, MFA-KR keeps keys alone.  The logits over the pages
must be those of training, or the command fails."""
from __future__ import annotations

import signal

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while Python imports: no traceback

import argparse
import dataclasses
import pathlib
import platform
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if __package__ in (None, ""):  # run as a script
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from compact import options
from fovea_trace.output import Folder
from smollm.terminal import Parser, say, sentences  # what needs more is imported in run()

if TYPE_CHECKING:
    from compact.kinds import Kind
    from compact.model import Attention, Model
    from compact.table import Row
    from training.tape import Ints

Args = argparse.Namespace
ROUNDS = 3  # in which all kinds decode, in turns
CLOSE = 1e-3  # of logits over pages and on the tape


def main(argv: Sequence[str] | None = None) -> list[Row]:
    rows: list[Row] = []
    with sentences("compact", lambda: f"interrupted after {len(rows)} kinds; " + (
            "--kept goes on from them" if rows else "no weights were written")):
        run(arguments(argv), rows)
    return rows


def run(args: Args, rows: list[Row]) -> None:
    from compact import model, table  # first: it finds fovea in a checkout
    from compact.kinds import KINDS
    from training.table import names, write_tsv
    from training.text import read
    import fovea

    chosen = names("compact", "kind", args.kind, KINDS)
    text = read("compact", args.text, args.tokens)
    models: list[Model] = []
    files = "lm.tsv", "lm.md", "lm.png"
    with fovea.Context(args.backend, threads=args.threads) as ctx, Folder(
            args.out, (*files, *(f"{name}.npz" for name in chosen)),
            args.force or args.kept) as folder:
        engine = model.Attention(ctx)
        for name in chosen:
            made, row = train(KINDS[name], text, engine, folder, args)
            models.append(made)
            rows.append(row)
        rows[:] = decoded(models, rows, text, args)
        about = (f"{args.steps} steps of {args.rows} x {args.tokens} bytes, {ctx!r}, f32, "
                 f"{platform.machine()}, Python {platform.python_version()}; {args.texts} texts "
                 f"decode at once behind {args.context} bytes each")
        folder.save(files[0], lambda path: write_tsv(rows, path))
        folder.save(files[1], lambda path: table.write_md(rows, about, path))
        folder.save(files[2], lambda path: table.draw(rows, path))
        print((args.out / files[1]).read_text(), end="")


def train(kind: Kind, text: Ints, engine: Attention, folder: Folder,
          args: Args) -> tuple[Model, Row]:
    """A row without its decode."""
    from compact.model import Model
    from compact.table import Row
    from training.text import judge, learn, split

    learned, held_out = split(text)
    model, path = Model(kind, engine, args.seed, args.layers), f"{kind.name}.npz"
    if args.kept and (args.out / path).exists():
        trained_bits, step_seconds = load(model, args.out / path)
    else:
        trained_bits, step_seconds = learn(kind.name, model, learned, args)
        folder.save(path, lambda path: model.save(
            path, trained_bits=trained_bits, step_seconds=step_seconds))
    bits = judge(model, held_out, args.tokens, args.held_out)
    say(f"{kind.name}: {bits:.3f} bits a byte on held-out text, {model.count()} weights", done=True)
    return model, Row(kind.name, bits, trained_bits, model.count(), 0, 0.0, 0.0, 0.0, step_seconds,
                      kind.paper, kind.note)


def load(model: Model, path: pathlib.Path) -> tuple[float, float]:
    """(trained_bits, step_seconds) of the training that made the weights."""
    import numpy as np
    with np.load(path, allow_pickle=False) as arrays:
        for name, w in model.weights.items():
            if name not in arrays or arrays[name].shape != w.shape:
                raise SystemExit(f"compact: {path} has no {name} of shape {w.shape}: it is of "
                                 "another model; leave --kept out, or name another --out")
            w.value = arrays[name]
        return float(arrays["trained_bits"]), float(arrays["step_seconds"])


def decoded(models: Sequence[Model], rows: Sequence[Row], text: Ints, args: Args) -> list[Row]:
    """Rows with what the models do in turns.  A time is that of the best step of all rounds."""
    from training.text import split
    made = list(rows)
    for number in range(ROUNDS):
        for i, model in enumerate(models):
            say(f"{model.kind.name}: decodes, round {number + 1} of {ROUNDS}")
            spoken = decode(model, split(text)[1], args)
            if not spoken.apart <= CLOSE:
                raise SystemExit(f"compact: {model.kind.name}: logits over pages are "
                                 f"{spoken.apart:.1e} from those of training, wanted {CLOSE:g}")
            before = made[i]
            made[i] = dataclasses.replace(
                before, cache_bytes=spoken.cache_bytes, apart=max(before.apart, spoken.apart),
                decode=max(before.decode, 1 / spoken.seconds),
                attention=min(before.attention or 1e9, 1e6 * spoken.attention))
    return made


@dataclasses.dataclass(frozen=True)
class Spoken:
    cache_bytes: int  # a token
    seconds: float  # a token of a text, in the best step
    attention: float  # the part of it in the calls that write and read pages
    apart: float  # of the logits from those on the tape


def decode(model: Model, text: Ints, args: Args) -> Spoken:
    """Texts are read as prompts, and go on a token at a time with what is written there."""
    from compact.model import Pages
    import numpy as np
    whole = args.context + args.spoken
    first = np.linspace(0, len(text) - whole, args.texts).astype(np.int64)
    tokens = text[first[:, None] + np.arange(whole)]
    pages = Pages(model.engine, args.layers, args.texts, whole)
    model.trained = False
    logits = [model.forward(tokens[:, :args.context], pages).value]
    seconds, attention = list[float](), list[float]()
    for at in range(args.context, whole):
        started, before = time.perf_counter(), pages.seconds
        logits.append(model.forward(tokens[:, at:at + 1], pages).value)
        seconds.append(time.perf_counter() - started)
        attention.append(pages.seconds - before)
    apart = max(float(np.abs(found - wanted).max()) for found, wanted in zip(
        np.concatenate(logits, axis=1), (model.forward(one[None]).value for one in tokens)))
    model.trained = True
    return Spoken(round(pages.bytes()), min(seconds) / args.texts, min(attention) / args.texts,
                  apart)


def arguments(argv: Sequence[str] | None) -> Args:
    parser = Parser(prog="compact", description="Byte models with as many weights and attention of "
                                                "different kinds, trained from scratch.")
    option = parser.add_argument
    option("--kind", default="mha,mla", help="names with commas between, or all")
    option("--texts", type=int, default=8, help="texts that decode at once")
    option("--context", type=int, default=1024, help="bytes of their prompts")
    option("--spoken", type=int, default=32, help="bytes that follow one by one")
    option("--kept", action="store_true",
           help="weights that --out has are read, not trained; its tables are written over")
    option("--out", type=pathlib.Path, default="compact.out", help="folder of table, plot, weights")
    options.add(parser)
    args = options.parse(parser, argv, ["texts", "context", "spoken"])
    if args.context + args.spoken > 4096:
        parser.error(f"--context and --spoken are {args.context + args.spoken} bytes, wanted 4096 "
                     "or fewer")
    return args


if __name__ == "__main__":
    main()
