#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a language model over a text and writes which blocks of it every head of every layer looks
back at.

    tools/fovea-trace README.md            # trace.npz, .json, .csv and .html in folder trace-README
    tools/fovea-trace A.txt --beside B.txt # both, in one page"""
from __future__ import annotations

import signal

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while Python imports: no traceback

import argparse
import pathlib
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if __package__ in (None, ""):  # run as a script
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from smollm.terminal import Parser, say, sentences  # what needs more is imported where it is used

if TYPE_CHECKING:
    import fovea
    from fovea_trace.output import Folder
    from fovea_trace.record import Trace
    from fovea_trace.watch import Watcher

Args = argparse.Namespace
Reader = Callable[[str, str, "fovea.Context"], "tuple[Trace, bool]"]  # of a text and its title
BLOCKS = (16, 32, 64, 128)
KINDS = ("npz", "json", "csv")


def main() -> None:
    told = ["interrupted: nothing was saved"]
    with sentences("fovea-trace", lambda: told[-1]):
        args = arguments()
        texts = [read_text(path) for path in (args.text, args.beside) if path]
        from fovea_trace.output import Folder
        import fovea
        names = [f"{stem}.{kind}" for stem in ("trace", "beside")[:len(texts)] for kind in KINDS]
        with Folder(args.out, [*names, "trace.html"], args.force) as folder:
            with fovea.Context(args.backend, threads=args.threads) as ctx:
                traces, cut = run(args, texts, ctx)
            told.append(f"interrupted: {folder.path} is as it was")
            write(traces, folder, told)
            if cut:
                told.append(f"interrupted: {folder.path} holds the layers up to "
                            f"{traces[0].layers[-1]}")
                raise KeyboardInterrupt


def run(args: Args, texts: list[str], ctx: fovea.Context) -> tuple[list[Trace], bool]:
    """The traces, and whether Ctrl-C cut the first one short."""
    reader = of_hugging_face(args) if args.hf else of_smollm(args, texts)
    traces = []
    for said, path in zip(texts, (args.text, args.beside)):
        watched, left = reader(said, pathlib.Path(path).name, ctx)
        traces.append(watched)
        if left and args.beside:
            raise KeyboardInterrupt  # two texts of different layers are no page
    return traces, left


def of_smollm(args: Args, texts: list[str]) -> Reader:
    from smollm import model, weights
    from fovea_trace import record
    from fovea_trace.watch import WatchedAttention, Watcher

    say("reading the vocabulary of the weights ...")
    source = weights.open_weights(args.model)
    layers, tokenizer = chosen(args.layers, source.fields["layers"]), source.tokenizer()
    encodings = {said: tokenizer.encode(said) for said in texts}
    for said in texts:
        count_of(args, len(encodings[said].ids), source.fields["context"])
    progress = lambda i, of: say(f"unpacking the weights: layer {i} of {of}")  # noqa: E731
    llm = model.load(source, progress, layers[-1] + 1)  # no later layer changes what these do

    def read(said: str, title: str, ctx: fovea.Context) -> tuple[Trace, bool]:
        ids, offsets = encodings[said].ids, encodings[said].offsets
        count = count_of(args, len(ids), llm.config.context, say)
        watcher = Watcher(ctx, layers, args.tokens_of, Progress(count, layers), **fields(args))
        left = False
        try:
            with watcher.begin():
                llm.forward(ids[:count], WatchedAttention(llm.config, watcher, args.dtype))
        except KeyboardInterrupt:
            left = stopped(watcher)
        about = dict(title=title, model=args.model or "SmolLM2-135M-Instruct", dtype=args.dtype)
        trace = watcher.trace(about, record.block_text(said, offsets[:count], 1))
        return told(trace, watcher), left

    return read


def of_hugging_face(args: Args) -> Reader:
    from fovea_trace import hf

    say(f"loading {args.hf} ...")
    model, tokenizer = hf.load(args.hf, args.dtype, args.backend)
    config = model.config.get_text_config()
    layers = chosen(args.layers, config.num_hidden_layers)

    def read(said: str, title: str, ctx: fovea.Context) -> tuple[Trace, bool]:
        ids = tokenizer(said).input_ids
        count = count_of(args, len(ids), config.max_position_embeddings, say)
        progress, left = Progress(count, layers), []
        try:
            trace = hf.trace_model(
                model, ids[:count], tokenizer=tokenizer, layers=layers, title=title, ctx=ctx,
                tokens_of=args.tokens_of, progress=progress,
                stopped=lambda watcher: left.append(stopped(watcher)), **fields(args))
        except hf.Unseen as why:
            raise SystemExit(f"fovea-trace: {why}") from None
        return told(trace), bool(left)

    return read


def fields(args: Args) -> dict[str, Any]:
    return dict(keep=args.keep, block_rows=args.block_rows, block_keys=args.block_keys,
                edge_kind=args.edge, exact=args.exact)


def count_of(args: Args, there: int, most: int,
             tell: Callable[[str, bool], object] = lambda line, done: None) -> int:
    """Tokens to trace."""
    count = min(there, args.tokens or most, most)
    if count < there:
        tell(f"the text has {there:,} tokens: tracing the first {count:,}"
             + ("" if args.tokens else ", which the model was trained for"), True)
    blocks = -(-count // args.block_rows)
    if args.tokens_of is not None and not 0 <= args.tokens_of < blocks:
        raise SystemExit(f"fovea-trace: --tokens-of is {args.tokens_of}, wanted a block of rows of "
                         f"0 .. {blocks - 1}")
    return count


class Progress:
    def __init__(self, count: int, layers: list[int]) -> None:
        self.count, self.total, self.started = count, layers[-1] + 1, time.perf_counter()

    def __call__(self, layer: int, edges: int) -> None:
        spent = time.perf_counter() - self.started
        left = f", about {spent / layer * (self.total - layer):.0f} s left" if layer else ""
        say(f"tracing {self.count:,} tokens: layer {layer} of {self.total}, {edges:,} edges{left}")


def stopped(watcher: Watcher) -> bool:
    """After Ctrl-C: True, or Ctrl-C again where no layer is done."""
    if not watcher.retained:
        raise KeyboardInterrupt
    say(f"interrupted: writing the {len(watcher.retained)} layers that are done; "
        "Ctrl-C again stops at once", done=True)
    return True


def told(trace: Trace, watcher: Watcher | None = None) -> Trace:
    about = trace.about
    say(f"traced {about['tokens']:,} tokens, {len(trace.layers)} layers of {trace.heads} heads: "
        f"{len(trace.edges):,} edges, {100 * trace.retained.mean():.1f}% of the attention",
        done=True)
    kernels = f", kernels: {', '.join(watcher.kernels)}" if watcher else ""
    say(f"backend {about['backend']}, {about['dtype']}{kernels}", done=True)
    return trace


def write(traces: list[Trace], folder: Folder, told: list[str]) -> None:
    from fovea_trace import files, page

    def progress(what: str) -> files.Progress:
        return lambda done, total: say(f"writing {what}: {done:,} of {total:,} edges")

    for trace, stem in zip(traces, ("trace", "beside")):
        say(f"writing {stem}.npz ...")
        save(folder, f"{stem}.npz", lambda path: files.write_npz(trace, path), told)
        for kind, make in (("json", files.write_json), ("csv", files.write_csv)):
            name = f"{stem}.{kind}"
            save(folder, name, lambda path: make(trace, path, progress(name)), told)
    say("writing trace.html ...")
    save(folder, "trace.html", lambda path: page.write_page(traces[0], path, *traces[1:]), told)
    for name in folder.saved:
        say(f"{folder.path / name}  {(folder.path / name).stat().st_size / 1e6:.1f} MB", done=True)
    say(f"open {folder.path / 'trace.html'} in a browser", done=True)


def save(folder: Folder, name: str, write: Callable[[pathlib.Path], object],
         told: list[str]) -> None:
    folder.save(name, write)
    told.append(f"interrupted: {folder.path} holds {', '.join(folder.saved)}")


def read_text(path: str) -> str:
    try:
        said = pathlib.Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise SystemExit(f"fovea-trace: {path} is not UTF-8 text") from None
    if not said.strip():
        raise SystemExit(f"fovea-trace: {path} has no text")
    return said


def chosen(words: str | None, count: int) -> list[int]:
    """"0-3,7" as ascending numbers; None: every layer."""
    if not words:
        return list(range(count))
    out = set[int]()
    for part in words.split(","):
        first, _, last = part.partition("-")
        try:
            out |= set(range(int(first), int(last or first) + 1))
        except ValueError:
            raise SystemExit(f"fovea-trace: --layers is {words!r}, wanted such as 0-3,7") from None
    if not out or max(out) >= count:
        raise SystemExit(f"fovea-trace: --layers is {words!r}, wanted layers of 0 .. {count - 1}")
    return sorted(out)


def arguments() -> Args:
    parser = Parser(
        prog="fovea-trace",
        description="Runs SmolLM2, or a Hugging Face model, over a text and writes which blocks of "
                    "it each head looks back at, as trace.npz, trace.json, trace.csv and a page to "
                    "look at, trace.html.")
    option = parser.add_argument
    option("text", help="a UTF-8 text file")
    option("--beside", metavar="TEXT", help="a second text, in the same page and colours; its "
                                            "files are beside.npz, .json, .csv")
    option("--out", type=pathlib.Path, help="folder for the files; default: trace-TEXT")
    option("--force", action="store_true", help="write over an earlier trace in that folder")
    option("--tokens", type=int, default=0, help="most tokens to read; 0: what the model can")
    option("--layers", help="layers to trace, such as 0-3,7; default: all")
    option("--keep", type=int, default=16, help="key blocks that a block of rows keeps, 1 .. 256")
    option("--block-rows", type=int, choices=BLOCKS, default=64, help="query tokens in a block")
    option("--block-keys", type=int, choices=BLOCKS, default=64, help="key tokens in a block")
    option("--tokens-of", type=int, metavar="BLOCK",
           help="weigh the single tokens that this block of rows looks at, exactly")
    option("--edge", choices=["mass", "score", "max_logit"], default="mass",
           help="weight of an edge: attention in the block, or its best score or logit")
    option("--exact", action="store_true", help="scores that are the same bits on every backend")
    option("--backend", choices=["host", "cuda"], default="host", help="where attention runs")
    option("--dtype", choices=["f32", "f16", "bf16"], default="f32", help="of queries and keys")
    option("--threads", type=int, default=0, help="threads of the host backend; 0: all")
    option("--model", help="another GGUF file of SmolLM2's architecture")
    option("--hf", metavar="NAME", help="a Hugging Face model: a local folder or a name on the hub")
    args = parser.parse_args()
    for name, least, most in (("keep", 1, 256), ("tokens", 0, None), ("threads", 0, None)):
        value = getattr(args, name)
        if value < least or (most and value > most):
            parser.error(f"--{name} is {value}, wanted {least} " + (f".. {most}" if most else
                                                                    "or more"))
    for name in ("beside", "layers", "model", "hf"):
        if getattr(args, name) == "":
            parser.error(f"--{name} is empty")
    if args.hf and args.model:
        parser.error("--hf and --model are two models")
    stem = "-beside-".join(pathlib.Path(t).stem for t in (args.text, args.beside) if t)
    args.out = args.out or pathlib.Path(f"trace-{stem}")
    return args


if __name__ == "__main__":
    main()
