#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""SmolLM2's keys and values as one latent of each token and layer: perplexity beside its rank.

    python examples/python/compact/latent.py --ranks 384 192 96

The 3 key heads and 3 value heads of a layer are 384 numbers of a token, z.  With an orthogonal U of
r columns the cache keeps z U, and z U U' are the keys and values that attention reads.  At r = 384
that is the model itself.  No weight is trained.  U is one of two:

    weights   left singular vectors of the layer's Wk and Wv, one below the other
    text      eigenvectors of the mean of z z' over text: the same of Wk and Wv behind their input

A step is cache_append, cache_get, x_project_forward for keys (turned there) and for values, and
attention_forward."""
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
    from compact.latents import Row

Args = argparse.Namespace
CLOSE = 1e-3  # nats a token: dense and full rank


def main(argv: Sequence[str] | None = None) -> list[Row]:
    rows: list[Row] = []
    with sentences("latent", lambda: f"interrupted after {len(rows)} rows; " + (
            "the table has them" if rows else "no table was written")):
        run(arguments(argv), rows)
    return rows


def run(args: Args, rows: list[Row]) -> None:
    from compact import latents  # first: it finds fovea in a checkout
    from smollm import model, weights
    from smollm.text import distinct_text
    from training.table import write_tsv
    import fovea

    source = weights.open_weights(args.model)
    c = model.Config(**source.fields)
    if max(args.ranks) > (full := 2 * c.key_heads * c.head_dim):
        raise SystemExit(f"latent: --ranks has {max(args.ranks)}, wanted at most {full}, which is "
                         "a layer's keys and values of a token")
    tokens = source.tokenizer().encode(distinct_text(args.text)).ids
    known, held = latents.texts(tokens, args)
    llm = model.load(source, lambda i, of: say(f"unpacking the weights: layer {i} of {of}"))
    files = "latent.tsv", "latent.md", "latent.png"
    with fovea.Context(args.backend, threads=args.threads) as ctx, \
            Folder(args.out, files, args.force) as folder:
        about = (f"SmolLM2-135M, {args.held_out} texts of {args.held_tokens} tokens; the text's U "
                 f"is of {len(known)} texts of {args.held_tokens} other tokens; {ctx!r}, f32")
        bases = {"weights": latents.of_weights(llm), "text": latents.of_text(llm, known, ctx)}
        rows.append(latents.dense(llm, held, ctx))
        for name in bases:
            for rank in sorted(args.ranks, reverse=True):
                say(f"rank {rank} by {name}")
                rows.append(row := latents.judge(llm, name, bases[name], rank, held, ctx))
                if rank == full and not abs(row.loss - rows[0].loss) <= CLOSE:
                    raise SystemExit(f"latent: full rank by {name} has {row.loss:.4f} nats a token "
                                     f"and the model {rows[0].loss:.4f}, wanted the same")
                folder.save(files[0], lambda path: write_tsv(rows, path))
                folder.save(files[1], lambda path: latents.write_md(rows, about, path))
        folder.save(files[2], lambda path: latents.draw(rows, path))
        print((args.out / files[1]).read_text(), end="")


def arguments(argv: Sequence[str] | None) -> Args:
    parser = Parser(prog="latent", description="SmolLM2's keys and values as a latent of lower "
                                               "rank.")
    option = parser.add_argument
    option("--ranks", type=int, nargs="+", default=[384, 320, 256, 192, 128, 96, 64],
           help="numbers that a layer keeps of a token")
    option("--held-out", type=int, default=2, help="texts to judge by")
    option("--held-tokens", type=int, default=1024, help="tokens of a text")
    option("--windows", type=int, default=4, help="other texts, of which the text's U is")
    option("--backend", choices=["host", "cuda"], default="host", help="where fovea computes")
    option("--threads", type=int, default=0, help="threads of the host backend; 0: all")
    option("--out", type=pathlib.Path, default="compact.out", help="folder of table and plot")
    option("--force", action="store_true", help="writes over a table that is there")
    option("--text", type=pathlib.Path, help="a file instead of the Python language reference")
    option("--model", help="another GGUF file of this architecture")
    args = parser.parse_args(argv)
    for name in ("held_out", "held_tokens", "windows"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is {getattr(args, name)}, wanted 1 or more")
    if min(args.ranks) < 1:
        parser.error(f"--ranks has {min(args.ranks)}, wanted 1 or more")
    if args.threads < 0:
        parser.error(f"--threads is {args.threads}, wanted 0 or more")
    if args.text and not args.text.is_file():
        parser.error(f"--text {args.text}: no such file")
    return args


if __name__ == "__main__":
    main()
