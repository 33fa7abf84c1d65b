#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs SmolLM2 over a text and writes which blocks of it every head of every layer looks back at.

    tools/fovea-trace TEXT_FILE        # trace.npz, .json, .csv and .html in folder trace-TEXT"""
import argparse
import pathlib
import sys
import time

if __package__ in (None, ""):  # run as a script
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

import numpy as np

from fovea_trace import files, page, record
from fovea_trace.watch import WatchedAttention
from smollm import model, weights
from smollm.terminal import say
import fovea

BLOCKS = (16, 32, 64, 128)


def main():
    args = arguments()
    try:
        with fovea.Context(args.backend, threads=args.threads) as ctx:
            trace = run(args, ctx)
    except (fovea.FoveaError, OSError) as why:
        raise SystemExit(f"fovea-trace: {why}") from None
    write(trace, args.out)


def run(args, ctx):
    said = read_text(args.text)
    say("reading the vocabulary of the weights ...")
    source = weights.open_weights(args.model)
    layers = chosen(args.layers, source.fields["layers"])
    encoding = source.tokenizer().encode(said)
    progress = lambda i, of: say(f"unpacking the weights: layer {i} of {of}")  # noqa: E731
    llm = model.load(source, progress, layers[-1] + 1)  # no later layer changes what these do
    c = llm.config
    count = min(len(encoding.ids), args.tokens or c.context, c.context)
    if count < len(encoding.ids):
        say(f"the text has {len(encoding.ids):,} tokens: tracing the first {count:,}"
            + ("" if args.tokens else ", which the model was trained for"), done=True)

    edges, started = bytearray(), time.perf_counter()
    session = fovea.TraceSession(
        ctx, keep=args.keep, block_rows=args.block_rows, block_keys=args.block_keys,
        edge_kind=args.edge, exact=args.exact, causal=True)

    def progress(layer):
        spent = time.perf_counter() - started
        left = f", about {spent / layer * (len(llm.layers) - layer):.0f} s left" if layer else ""
        say(f"tracing {count:,} tokens: layer {layer} of {len(llm.layers)}, "
            f"{len(edges) // record.RECORD.itemsize:,} edges{left}")

    with session.begin(edges.extend):
        attention = WatchedAttention(c, ctx, session, set(layers), args.dtype, progress)
        llm.forward(encoding.ids[:count], attention)
    retained = record.block_mean(np.stack(attention.retained), args.block_rows)
    say(f"traced {count:,} tokens, {len(layers)} layers of {c.heads} heads: "
        f"{session.edges:,} edges, {100 * retained.mean():.1f}% of the attention, "
        f"{time.perf_counter() - started:.1f} s", done=True)
    say(f"backend {ctx!r}, {args.dtype}, kernels: {', '.join(attention.kernels)}", done=True)
    about = dict(
        title=pathlib.Path(args.text).name, model=args.model or "SmolLM2-135M-Instruct",
        tokens=count, layers=layers, heads=c.heads, block_rows=args.block_rows,
        block_keys=args.block_keys, keep=args.keep, edge_kind=args.edge, exact=args.exact,
        causal=True, dtype=args.dtype, backend=repr(ctx), fovea=fovea.__version__)
    offsets = encoding.offsets[:count]
    return record.Trace(
        about, np.frombuffer(edges, record.RECORD), retained,
        record.block_text(said, offsets, args.block_rows),
        record.block_text(said, offsets, args.block_keys))


def write(trace, folder):
    folder.mkdir(parents=True, exist_ok=True)
    progress = lambda what: lambda done, total: say(f"writing {what}: {done:,} of {total:,} edges")
    say("writing trace.npz ...")
    files.write_npz(trace, folder / "trace.npz")
    files.write_json(trace, folder / "trace.json", progress("trace.json"))
    files.write_csv(trace, folder / "trace.csv", progress("trace.csv"))
    say("writing trace.html ...")
    page.write_page(trace, folder / "trace.html")
    for name in ("npz", "json", "csv", "html"):
        path = folder / f"trace.{name}"
        say(f"{path}  {path.stat().st_size / 1e6:.1f} MB", done=True)
    say(f"open {folder / 'trace.html'} in a browser", done=True)


def read_text(path):
    try:
        said = pathlib.Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise SystemExit(f"fovea-trace: {path} is not UTF-8 text") from None
    if not said:
        raise SystemExit(f"fovea-trace: {path} is empty")
    return said


def chosen(words, count):
    """"0-3,7" as ascending numbers; None: every layer."""
    if not words:
        return list(range(count))
    out = set()
    for part in words.split(","):
        first, _, last = part.partition("-")
        try:
            out |= set(range(int(first), int(last or first) + 1))
        except ValueError:
            raise SystemExit(f"fovea-trace: --layers is {words!r}, wanted such as 0-3,7") from None
    if not out or max(out) >= count:
        raise SystemExit(f"fovea-trace: --layers is {words!r}, wanted layers of 0 .. {count - 1}")
    return sorted(out)


def arguments():
    parser = argparse.ArgumentParser(
        prog="fovea-trace", formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        description="Runs SmolLM2 over a text and writes which blocks of it each head looks back "
                    "at, as trace.npz, trace.json, trace.csv and a page to look at, trace.html.")
    option = parser.add_argument
    option("text", help="a UTF-8 text file")
    option("--out", type=pathlib.Path, help="folder for the files; default: trace-TEXT")
    option("--tokens", type=int, default=0, help="most tokens to read; 0: what the model can")
    option("--layers", help="layers to trace, such as 0-3,7; default: all")
    option("--keep", type=int, default=16, help="key blocks that a block of rows keeps, 1 .. 256")
    option("--block-rows", type=int, choices=BLOCKS, default=64, help="query tokens in a block")
    option("--block-keys", type=int, choices=BLOCKS, default=64, help="key tokens in a block")
    option("--edge", choices=["mass", "score", "max_logit"], default="mass",
           help="weight of an edge: attention in the block, or its best score or logit")
    option("--exact", action="store_true", help="scores that are the same bits on every backend")
    option("--backend", choices=["host", "cuda"], default="host", help="where attention runs")
    option("--dtype", choices=["f32", "f16", "bf16"], default="f32", help="of queries and keys")
    option("--threads", type=int, default=0, help="threads of the host backend; 0: all")
    option("--model", help="another GGUF file of this architecture")
    args = parser.parse_args()
    if not 1 <= args.keep <= 256:
        parser.error(f"--keep is {args.keep}, wanted 1 .. 256")
    if args.tokens < 0:
        parser.error(f"--tokens is {args.tokens}, wanted 1 or more, or 0 for all")
    args.out = args.out or pathlib.Path(f"trace-{pathlib.Path(args.text).stem}")
    return args


if __name__ == "__main__":
    main()
