#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sparse attention methods beside dense attention: quality, keys read and speed on long text.

    python examples/python/long_context/command.py --length 2048 --methods quest,nsa
    cd examples/python && python -m long_context --length 4096 --out folder"""
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
    from long_context.trial import Row

Args = argparse.Namespace
LEAST, CONTEXT = 1152, 8192  # of --length: 1024 tokens are judged; what the model was trained for


def main(argv: Sequence[str] | None = None) -> list[Row]:
    rows: list[Row] = []
    with sentences("long_context", lambda: f"interrupted after {len(rows)} methods; " + (
            "the table has them" if rows else "no table was written")):
        run(arguments(argv), rows)
    return rows


def run(args: Args, rows: list[Row]) -> None:
    from long_context import table, trial
    from long_context.methods import METHODS
    from smollm import model, weights
    from smollm.text import distinct_text
    import fovea  # last: smollm finds it in a checkout

    chosen = names(args.methods, list(METHODS))
    tsv, md, png = (f"{args.length}.{kind}" for kind in ("tsv", "md", "png"))
    with Folder(args.out, (tsv, md, png), args.force) as folder, \
            fovea.Context(args.backend, threads=args.threads) as ctx:
        say("reading the vocabulary of the weights and the text ...")
        source = weights.open_weights(args.model)
        made = trial.texts(distinct_text(args.text), args.length, source.tokenizer())
        llm = model.load(source, lambda i, of: say(f"unpacking the weights: layer {i} of {of}"))
        methods = [METHODS[name](args.keep, args.length) for name in chosen]
        judge = trial.Trial(llm, ctx, made, args.dtype, say)
        judge.prepare(methods)
        about = (f"{args.length} tokens, keep {args.keep:g}, {ctx!r}, {args.dtype}, "
                 f"{platform.machine()}, Python {platform.python_version()}")
        for i, method in enumerate(methods):
            started = time.perf_counter()
            rows.append(judge.run(method))
            say(f"{i + 1} of {len(methods)}: {told(rows[-1])}, "
                f"{time.perf_counter() - started:.0f} s", done=True)
            folder.save(tsv, lambda path: table.write_tsv(rows, path))
            folder.save(md, lambda path: table.write_md(rows, about, path))
        folder.save(png, lambda path: table.draw(rows, f"SmolLM2-135M, {about}", path))
    print((args.out / md).read_text(), end="")


def told(row: Row) -> str:
    keys = "" if row.keys is None else f", {row.keys:.1%} of the keys"
    return (f"{row.method}: perplexity {row.perplexity:.3f}, KL {row.kl:.4f}, "
            f"{row.hits.count('1')} of {len(row.hits)} found{keys}")


def names(wanted: str, there: Sequence[str]) -> list[str]:
    """Dense first, each once."""
    chosen = list(there) if wanted == "all" else [name.strip() for name in wanted.split(",")]
    for name in chosen:
        if name not in there:
            raise SystemExit(f"long_context: --methods has {name or 'an empty name'}, "
                             f"wanted some of {', '.join(there)}, or all")
    return list(dict.fromkeys(["dense", *chosen]))


def arguments(argv: Sequence[str] | None) -> Args:
    parser = Parser(prog="long_context",
                    description="Sparse attention methods beside dense attention on long text.")
    option = parser.add_argument
    option("--methods", default="all", help="names with commas between; dense is always the first")
    option("--length", type=int, default=2048, help="tokens of the text")
    option("--keep", type=float, default=0.125,
           help="share of the keys that a row is to read; 1: methods read every key")
    option("--backend", choices=["host", "cuda"], default="host", help="where fovea computes")
    option("--dtype", choices=["f32", "f16", "bf16"], default="f32", help="of queries and cache")
    option("--threads", type=int, default=0, help="threads of the host backend; 0: all")
    option("--out", type=pathlib.Path, default="long_context.out", help="folder of table and plot")
    option("--force", action="store_true", help="writes over a table that is there")
    option("--text", type=pathlib.Path, help="a file instead of the Python language reference")
    option("--model", help="another GGUF file of this architecture")
    args = parser.parse_args(argv)
    if not LEAST <= args.length <= CONTEXT:
        parser.error(f"--length is {args.length}, wanted {LEAST} to {CONTEXT}")
    if not 0 < args.keep <= 1:
        parser.error(f"--keep is {args.keep:g}, wanted more than 0 and at most 1")
    if args.threads < 0:
        parser.error(f"--threads is {args.threads}, wanted 0 or more")
    if args.text and not args.text.is_file():
        parser.error(f"--text {args.text}: no such file")
    return args


if __name__ == "__main__":
    main()
