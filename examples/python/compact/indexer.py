#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A lightning indexer distilled from SmolLM2's attention, and DSA by it: perplexity beside top-k.

    python examples/python/compact/indexer.py --counts 64 256 1024

The indexer of a layer is three matrices.  From the turned queries q and keys k of a token, all
heads side by side, it makes 9 queries and one key of width 64, and 9 weights:

    score(row, key) = sum over heads n of (q W + b)_n relu(<(q A)_n, k B>)

It begins as the model's own scores between the 64 principal components of its keys.  x_kl_indexer
trains it: the softmax of a row's scores is to be the mean of the model's 9 distributions.  Then
every layer reads the best keys alone, one list for all heads: the recipe dsa over the pages of
keys, values and the indexer's keys."""
from __future__ import annotations

import signal

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while Python imports: no traceback

import argparse
import pathlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if __package__ in (None, ""):  # run as a script
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from fovea_trace.output import Folder
from smollm.terminal import Parser, say, sentences  # what needs more is imported in run()

if TYPE_CHECKING:
    from compact.indexed import Row

Args = argparse.Namespace


def main(argv: Sequence[str] | None = None) -> list[Row]:
    rows: list[Row] = []
    with sentences("indexer", lambda: f"interrupted after {len(rows)} rows; " + (
            "the table has them" if rows else "no table was written")):
        run(arguments(argv), rows)
    return rows


def run(args: Args, rows: list[Row]) -> None:
    from compact import indexed  # first: it finds fovea in a checkout
    from smollm import model, weights
    from smollm.text import distinct_text
    from training.table import write_tsv
    import fovea

    source = weights.open_weights(args.model)
    c = model.Config(**source.fields)
    if args.width > (most := c.key_heads * c.head_dim):
        raise SystemExit(f"indexer: --width is {args.width}, wanted at most {most}, which is a "
                         "layer's keys of a token")
    tokens = source.tokenizer().encode(distinct_text(args.text)).ids
    known, held = indexed.texts(tokens, args)
    llm = model.load(source, lambda i, of: say(f"unpacking the weights: layer {i} of {of}"))
    files = "indexer.tsv", "indexer.md", "indexer.png"
    with fovea.Context(args.backend, threads=args.threads) as ctx, \
            Folder(args.out, files, args.force) as folder:
        learned, before, after = indexed.learn(llm, known, ctx, args)
        about = (f"SmolLM2-135M, all {llm.config.layers} layers, the last {args.judged} of "
                 f"{args.length} tokens. The indexers learned in {args.steps} steps of "
                 f"{args.rows} rows from {args.windows} other texts of that length: KL of a row "
                 f"{before:.3f} -> {after:.3f} nats. They keep {args.width} numbers of a token; "
                 f"{ctx!r}, f32")
        for row in indexed.judge(llm, learned, held, ctx, args):
            rows.append(row)
            folder.save(files[0], lambda path: write_tsv(rows, path))
            folder.save(files[1], lambda path: indexed.write_md(rows, about, path))
        folder.save(files[2], lambda path: indexed.draw(rows, path))
        print((args.out / files[1]).read_text(), end="")


def arguments(argv: Sequence[str] | None) -> Args:
    parser = Parser(prog="indexer", description="DSA on SmolLM2 by an indexer distilled from it.")
    option = parser.add_argument
    option("--counts", type=int, nargs="+", default=[64, 128, 256, 512, 1024, 2048],
           help="keys that a row reads")
    option("--length", type=int, default=4096, help="tokens of the text that judges")
    option("--judged", type=int, default=512, help="of these the last, which read as DSA does")
    option("--windows", type=int, default=4, help="other texts of that length, to learn from")
    option("--steps", type=int, default=100, help="of each layer's indexer")
    option("--rows", type=int, default=64, help="rows of a step, behind any number of keys")
    option("--width", type=int, default=64, help="of its queries and keys")
    option("--rate", type=float, default=3e-5, help="learning rate, at its highest")
    option("--seed", type=int, default=0, help="of weights and rows")
    option("--backend", choices=["host", "cuda"], default="host", help="where fovea computes")
    option("--threads", type=int, default=0, help="threads of the host backend; 0: all")
    option("--out", type=pathlib.Path, default="compact.out", help="folder of table and plot")
    option("--force", action="store_true", help="writes over a table that is there")
    option("--text", type=pathlib.Path, help="a file instead of the Python language reference")
    option("--model", help="another GGUF file of this architecture")
    args = parser.parse_args(argv)
    for name in ("judged", "windows", "steps", "rows", "width"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} is {getattr(args, name)}, wanted 1 or more")
    if args.length < args.judged + 2:
        parser.error(f"--length is {args.length}, wanted at least {args.judged + 2}: two more than "
                     "--judged")
    if args.length < args.rows:
        parser.error(f"--length is {args.length}, wanted {args.rows} or more, as --rows")
    if min(args.counts) < 5:
        parser.error(f"--counts has {min(args.counts)}, wanted 5 or more")
    if args.threads < 0:
        parser.error(f"--threads is {args.threads}, wanted 0 or more")
    if not args.rate > 0:
        parser.error(f"--rate is {args.rate:g}, wanted more than 0")
    if args.text and not args.text.is_file():
        parser.error(f"--text {args.text}: no such file")
    return args


if __name__ == "__main__":
    main()
