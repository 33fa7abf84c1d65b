#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Distils a sparse-attention indexer from SmolLM2's own attention; the loss is fovea's KL.

    python examples/python/distill.py --out distill.png

An indexer is a cheap guess of the keys that a row attends to, so that attention may read those
alone.  Here it is a matrix for each head, which narrows the model's queries and keys (after rope,
as a cache holds them) from d = 64 to f = 16:

    q_student = q A_head,  k_student = k B_key_head
    loss = mean over rows of KL(softmax(q k' / sqrt(d)) || softmax(q_student k_student' / sqrt(f)))

kl_forward and kl_backward give the loss and its gradients by q_student and k_student without any
s x t array; the chain rule through A and B is two matrix products; Adam does the rest.  A and B
begin as noise.  What counts is recall on text that was not trained on: how many of the keys that a
row of the model attends to most are among those that the indexer puts first.

`--loss numpy` has the same loss from whole s x t arrays, for comparison: the curve is the same."""
import argparse
import math
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

try:
    import matplotlib
    import numpy as np
    from smollm import model, weights
    from numpy.typing import NDArray
    from smollm.paged import PagedAttention, There
    from smollm.terminal import Parser, say, sentences
    from smollm.text import distinct_text
    import fovea  # last: smollm finds it in a checkout
except ModuleNotFoundError as why:
    needs = pathlib.Path(__file__).parent / "smollm/requirements.txt"
    raise SystemExit(f"distill: {why}: pip install matplotlib -r {needs}") from None

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402


Args = argparse.Namespace
Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]
# (loss, dq_student, dk_student) of q, k, q_student, k_student, each (b, heads, s, width)
Loss = Callable[[Floats, Floats, Floats, Floats], tuple[Any, Floats, Floats]]
Found = dict[int, tuple[float, float]]  # (recall, mass) by step


class Recorder(PagedAttention):
    """The attention of the SmolLM2 example; q and k of some layers are kept after rope."""

    def __init__(self, layers: Sequence[int], *rest: Any) -> None:
        super().__init__(*rest)
        self.layers = layers
        self.queries: list[Floats] = []
        self.keys: list[Floats] = []

    def attend(self, layer: int, q: Floats, k: Floats, v: Floats) -> Floats:
        if layer in self.layers:
            for kept, x in ((self.queries, q), (self.keys, k)):
                kept.append(self.here(self.turn(x))[0].swapaxes(0, 1))
        return super().attend(layer, q, k, v)


def record(args: Args, ctx: fovea.Context) -> tuple[Floats, Floats]:
    """The teacher: q (n, h, s, d) and k (n, g, s, d) of n windows of text, the last ones held out.
    Heads of all recorded layers stand side by side: to the loss a layer is more heads."""
    source = weights.open_weights(args.model)
    tokens = source.tokenizer().encode(distinct_text(args.text)).ids
    n = args.windows + args.held_out
    if len(tokens) < n * args.tokens:
        raise SystemExit(f"distill: {n} windows of {args.tokens} tokens are more than the "
                         f"{len(tokens)} of the text: lower --windows, --held-out or --tokens")
    count = source.fields["layers"]
    if not 0 <= min(args.layers) <= max(args.layers) < count:
        raise SystemExit(f"distill: --layers go from 0 to {count - 1}, got {args.layers}")
    progress = lambda i, of: say(f"unpacking the weights: layer {i} of {of}")  # noqa: E731
    llm = model.load(source, progress, max(args.layers) + 1)  # the rest is not asked
    q, k = list[Floats](), list[Floats]()
    for i, first in enumerate(np.linspace(0, len(tokens) - args.tokens, n).astype(int)):
        say(f"the model reads window {i + 1} of {n}, {args.tokens} tokens each")
        attention = Recorder(args.layers, llm.config, args.tokens, ctx)
        llm.forward(tokens[first:first + args.tokens], attention)
        q.append(np.concatenate(attention.queries))
        k.append(np.concatenate(attention.keys))
    return np.stack(q), np.stack(k)


class FoveaLoss:
    def __init__(self, ctx: fovea.Context) -> None:
        self.ctx = ctx
        self.one = self.there(np.ones(1, np.float32))

    def __call__(self, *distributions: Floats) -> tuple[Any, Floats, Floats]:
        """(loss, dq_student, dk_student) of q, k, q_student, k_student, each (b, heads, s, width).
        fovea wants (b, s, heads, width), which is a view."""
        inputs = [self.there(x.swapaxes(1, 2)) for x in distributions]
        *saved, loss = fovea.kl_forward(self.ctx, *inputs, kl=True, lse_teacher=True,
                                        lse_student=True, total=True, causal=1, mean=1)
        dq, dk = fovea.kl_backward(self.ctx, *inputs, *saved, dtotal=self.one, dq_teacher=False,
                                   dk_teacher=False, causal=1, mean=1)
        return self.here(loss)[0], self.here(dq).swapaxes(1, 2), self.here(dk).swapaxes(1, 2)

    def there(self, x: Floats) -> There:
        return x if self.ctx.backend == "host" else self.ctx.array(np.ascontiguousarray(x))

    def here(self, x: There) -> Floats:
        return x.numpy() if isinstance(x, fovea.Buffer) else x


def numpy_loss(q: Floats, k: Floats, q_student: Floats,
               k_student: Floats) -> tuple[Any, Floats, Floats]:
    """The same from s x t arrays, which FoveaLoss never has."""
    log_p, log_r = log_softmax(q, k), log_softmax(q_student, k_student)
    p = np.exp(log_p)
    loss = (p * (log_p - log_r)).sum(axis=-1).mean()
    b, h, s, f = q_student.shape
    dy: Any = (np.exp(log_r) - p) / np.float32(b * h * s * np.sqrt(f))
    dk = (dy.swapaxes(2, 3) @ q_student).reshape(b, k.shape[1], -1, s, f).sum(axis=2)
    return loss, dy @ for_each_query_head(k_student, h), dk


def for_each_query_head(k: Floats, h: int) -> Floats:
    return np.repeat(k, h // k.shape[1], axis=1)


def logits(q: Floats, k: Floats, rows: slice = slice(None)) -> Floats:
    """Of some rows; those of keys that a row does not see are far below all others."""
    k = for_each_query_head(k, q.shape[1])
    x = q[:, :, rows] @ k.swapaxes(2, 3) / np.float32(np.sqrt(q.shape[3]))
    place = np.arange(k.shape[2])
    return np.where(place <= place[rows, None], x, np.float32(-1e9))


def log_softmax(q: Floats, k: Floats, rows: slice = slice(None)) -> Floats:
    x = logits(q, k, rows)
    x -= x.max(axis=-1, keepdims=True)
    y: Floats = x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
    return y


class Indexer:
    """A (h, d, f) and B (g, d, f), trained by Adam."""

    def __init__(self, h: int, g: int, d: int, f: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.weights = [random.standard_normal((n, d, f), np.float32) / d**0.5 for n in (h, g)]
        self.mean, self.square = ([np.zeros_like(w) for w in self.weights] for _ in range(2))
        self.step = 0

    def project(self, q: Floats, k: Floats) -> tuple[Floats, Floats]:
        return q @ self.weights[0], k @ self.weights[1]

    def learn(self, inputs: Sequence[Floats], gradients: Sequence[Floats], rate: float) -> None:
        """inputs are q and k, gradients those of their projections."""
        self.step += 1
        for w, m, v, x, dy in zip(self.weights, self.mean, self.square, inputs, gradients):
            dw = (x.swapaxes(2, 3) @ dy).sum(axis=0)
            m += 0.1 * (dw - m)
            v += 0.01 * (dw * dw - v)
            w -= rate * (m / (1 - 0.9**self.step)) / (np.sqrt(v / (1 - 0.99**self.step)) + 1e-8)


class Judge:
    """How well an indexer finds the keys that matter most, on q and k that it has not seen."""

    def __init__(self, q: Floats, k: Floats, keep: int) -> None:
        self.q, self.k, self.keep = q, k, keep
        self.rows = slice(q.shape[2] // 2, None, 4)  # rows that have many more keys than they keep
        self.p = np.exp(log_softmax(q, k, self.rows))
        self.wanted = self.first(logits(q, k, self.rows))
        self.most = self.mass(self.wanted)
        self.chance = (keep / (1 + np.arange(q.shape[2])[self.rows])).mean()

    def first(self, x: Floats) -> Flags:
        return x >= np.partition(x, -self.keep, axis=-1)[..., -self.keep, None]

    def mass(self, chosen: Flags) -> float:
        return float((self.p * chosen).sum(axis=-1).mean())

    def __call__(self, indexer: Indexer) -> tuple[float, float]:
        """(recall, mass): of the right keys, and of the attention, the share that is found."""
        chosen = self.first(logits(*indexer.project(self.q, self.k), self.rows))
        return float((chosen & self.wanted).sum() / self.wanted.sum()), self.mass(chosen)


def train(q: Floats, k: Floats, args: Args, loss: Loss,
          judge: Judge) -> tuple[list[float], Found, float]:
    """Returns the loss of each step, (recall, mass) by step, and the seconds spent in the loss."""
    indexer = Indexer(q.shape[1], k.shape[1], q.shape[3], args.width, args.seed)
    random = np.random.default_rng(args.seed)
    losses, found, spent = list[float](), {0: judge(indexer)}, 0.0
    for step in range(1, args.steps + 1):
        batch = random.choice(len(q), min(args.batch, len(q)), replace=False)
        inputs = q[batch], k[batch]
        students = indexer.project(*inputs)
        started = time.perf_counter()
        value, *gradients = loss(*inputs, *students)
        spent += time.perf_counter() - started
        decay = 0.5 + 0.5 * math.cos(math.pi * (step - 1) / args.steps)
        indexer.learn(inputs, gradients, args.rate * decay)
        losses.append(float(value))
        if step % 25 == 0 or step == args.steps:
            found[step] = judge(indexer)
        say(f"step {step} of {args.steps}: loss {value:.3f}, recall {found[max(found)][0]:.1%}")
    return losses, found, spent


def draw(losses: list[float], found: Found, judge: Judge, args: Args) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), constrained_layout=True)
    left.loglog(range(1, len(losses) + 1), losses, color="#1b7f79")
    left.set(title="loss: mean KL of a row, in nats", xlabel="step")
    for axis in (left.xaxis, left.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("")
    ticks = (0.1, 0.2, 0.5, 1, 2, 5, 10)
    left.set_yticks([y for y in ticks if min(losses) / 2 < y < 2 * max(losses)])
    recall, mass = zip(*found.values())
    right.plot(list(found), recall, "o-", color="#1b7f79", markersize=3,
               label=f"recall of the teacher's first {args.keep} keys")
    right.plot(list(found), mass, "s-", color="#c2703d", markersize=3,
               label=f"attention on the indexer's first {args.keep} keys")
    right.axhline(judge.most, color="#c2703d", linestyle=":",
                  label="attention on the teacher's own first keys")
    right.axhline(judge.chance, color="#1b7f79", linestyle=":", label="recall of a random choice")
    right.set(title="held-out text", xlabel="step", ylim=(0, 1))
    right.legend(loc="center right", bbox_to_anchor=(1, 0.35), fontsize=8)
    for axes in (left, right):
        axes.grid(color="#dddddd", linewidth=0.5)
    figure.savefig(args.out, dpi=110)
    plt.close(figure)


def arguments(argv: Sequence[str] | None) -> Args:
    parser = Parser(
        prog="distill", description="Distils a sparse-attention indexer from SmolLM2's attention.")
    option = parser.add_argument
    option("--out", type=pathlib.Path, default="distill.png", help="the plot: .png, .svg or .pdf")
    option("--loss", choices=["fovea", "numpy"], default="fovea")
    option("--backend", choices=["host", "cuda"], default="host", help="where fovea computes")
    option("--threads", type=int, default=0, help="threads of the host backend; 0: all")
    option("--steps", type=int, default=300)
    option("--batch", type=int, default=2, help="windows a step")
    option("--rate", type=float, default=0.01, help="of Adam; a cosine brings it to 0")
    option("--width", type=int, default=16, help="of the indexer's queries and keys")
    option("--keep", type=int, default=32, help="keys that the indexer is to find")
    option("--layers", type=int, nargs="+", default=[5, 10, 15], help="of the model, from 0")
    option("--tokens", type=int, default=512, help="of a window of text")
    option("--windows", type=int, default=20, help="to train on")
    option("--held-out", type=int, default=4, help="windows to judge by")
    option("--text", type=pathlib.Path, help="a file instead of the Python language reference")
    option("--model", help="another GGUF file of this architecture")
    option("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    for name in ("steps", "batch", "width", "keep", "windows", "held_out"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if args.tokens < 2 * args.keep:
        parser.error(f"--tokens must be at least twice --keep, got {args.tokens} and {args.keep}")
    if args.out.suffix not in (".png", ".svg", ".pdf") or not args.out.parent.is_dir():
        parser.error(f"--out {args.out}: wanted a .png, .svg or .pdf file in an existing folder")
    if args.text and not args.text.is_file():
        parser.error(f"--text {args.text}: no such file")
    return args


def main(argv: Sequence[str] | None = None) -> tuple[list[float], Found, Judge]:
    args = arguments(argv)
    started = time.perf_counter()
    with sentences("distill"), fovea.Context(args.backend, threads=args.threads) as ctx:
        q, k = record(args, ctx)
        say(f"teacher: {len(q)} windows of {args.tokens} tokens, {q.shape[1]} heads of layers "
            f"{args.layers}, in {time.perf_counter() - started:.0f} s", done=True)
        n = args.windows
        judge = Judge(q[n:], k[n:], args.keep)
        loss = FoveaLoss(ctx) if args.loss == "fovea" else numpy_loss
        losses, found, spent = train(q[:n], k[:n], args, loss, judge)
        draw(losses, found, judge, args)
        tell(losses, found, judge, args, spent)
        print(f"{args.out}, after {time.perf_counter() - started:.0f} s in all")
    return losses, found, judge


def tell(losses: list[float], found: Found, judge: Judge, args: Args, spent: float) -> None:
    (recall, mass), (recall_before, mass_before) = found[args.steps], found[0]
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} in {args.steps} steps; "
          f"{args.loss} takes {1e3 * spent / args.steps:.0f} ms a step for it and its gradient")
    print(f"held out: recall of the first {args.keep} keys {recall_before:.1%} -> {recall:.1%} "
          f"(a random choice {judge.chance:.1%}), attention on the keys found "
          f"{mass_before:.1%} -> {mass:.1%} (at most {judge.most:.1%})")


if __name__ == "__main__":
    main()
