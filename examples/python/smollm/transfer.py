# SPDX-License-Identifier: Apache-2.0
"""Some layers of the model learn to read older keys through a state (attention transfer).

The model reads text once; queries, keys, values and outputs of those layers are kept.  Each layer
then learns its features by itself: the squared error of what it adds to the stream, o Wo, on the
rows that have older keys.  Held-out text judges three models: all keys, the window alone, and the
window with the state."""
from __future__ import annotations

import argparse
import math
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import fovea
import matplotlib
import numpy as np
from linear import engine
from training import table
from training.adam import Adam
from training.tape import Var

from smollm import text
from smollm.model import Config, Floats, Model
from smollm.paged import PagedAttention
from smollm.terminal import say
from smollm.weights import Weights
from smollm.window import WINDOW, Features, WindowAttention, merge, read_older, read_window

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

Args = argparse.Namespace
Learned = dict[int, Features]  # by layer

LEARN_TOKENS = 512  # of a window to learn from
PIECE = 512  # tokens that are read in a step
NAMES = "all keys", "window alone", "window + state"


@dataclass(frozen=True)
class Row:
    reads: str  # of the chosen layers
    loss: float  # nats a token, on held-out text
    perplexity: float
    won_back: float  # of the loss that the window alone costs; NaN where it costs nothing
    bytes_half: int  # kept by a chosen layer after half of --state-tokens
    bytes_whole: int  # and after all


@dataclass
class Seen:
    """A window of text as one layer of the model reads it: arrays (1, s, heads, d)."""

    q: Floats  # before rope
    k: Floats
    v: Floats
    o: Floats  # over all keys
    window: tuple[Floats, Floats]  # (o, lse) over 64 keys


class Recorder(PagedAttention):
    """Keeps what the chosen layers read and answer, of one window of text."""

    def __init__(self, layers: Sequence[int], config: Config, ctx: fovea.Context) -> None:
        super().__init__(config, LEARN_TOKENS, ctx)
        self.layers, self.ours = layers, engine.Fovea(ctx)
        self.seen: dict[int, Seen] = {}

    def attend(self, layer: int, q: Floats, k: Floats, v: Floats) -> Floats:
        o = super().attend(layer, q, k, v)
        if layer in self.layers:
            turned_q, turned_k = self.here(self.turn(q)), self.here(self.turn(k))
            window = read_window(self.ours, turned_q, turned_k, v[None])
            q, k, v = (x[None].copy() for x in (q, k, v))
            self.seen[layer] = Seen(q, k, v, o[None], window)
        return o


def layers_of(words: str, count: int) -> list[int]:
    """Layers of --linear: numbers and ranges with commas between, or all."""
    chosen = set[int]()
    for part in ([f"0-{count - 1}"] if words == "all" else words.split(",")):
        first, dash, last = part.partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
            raise SystemExit(f"smollm: --linear has {part!r}, wanted a layer, "
                             "a range as 5-9, or all")
        chosen |= set(range(int(first), int(last) + 1))
    if max(chosen) >= count:
        raise SystemExit(f"smollm: --linear is {words}, wanted layers from 0 to {count - 1}")
    return sorted(chosen)


def record(llm: Model, ctx: fovea.Context, tokens: Sequence[int], layers: Sequence[int],
           windows: int) -> dict[int, list[Seen]]:
    """What the layers read and answer on windows of the text, the model having all keys."""
    kept: dict[int, list[Seen]] = {layer: [] for layer in layers}
    shorter = Model(llm.config, llm.embedding, llm.layers[:max(layers) + 1], llm.norm)
    for i, first in enumerate(np.linspace(0, len(tokens) - LEARN_TOKENS, windows).astype(int)):
        say(f"the model reads window {i + 1} of {windows}, {LEARN_TOKENS} tokens each")
        attention = Recorder(layers, llm.config, ctx)
        shorter.forward(tokens[first:first + LEARN_TOKENS], attention)
        for layer in layers:
            kept[layer].append(attention.seen[layer])
    return kept


def error(ours: engine.Fovea, phi: Features, seen: Seen, out: Floats) -> Var:
    """Squared error of o Wo on rows with older keys, as a share of o Wo squared; out: Wo'."""
    o, lse = (np.ascontiguousarray(x) for x in (
        seen.window[0][:, WINDOW:], seen.window[1][:, :, WINDOW:]))
    sums = read_older(ours, phi("q", np.ascontiguousarray(seen.q[:, WINDOW:])),
                      phi("k", np.ascontiguousarray(seen.k[:, :-WINDOW])), seen.v[:, :-WINDOW])
    y, wanted = merge(ours, o, lse, sums), seen.o[:, WINDOW:]
    flat = (y.shape[1], -1)
    apart = (y.value - wanted).reshape(flat) @ out
    whole = float(np.square(wanted.reshape(flat) @ out).sum())

    def back(dy: Floats) -> None:
        slope = np.float32(2 / whole) * dy * (apart @ out.T)
        y.take(slope.astype(np.float32, copy=False).reshape(y.shape))
    return Var(np.square(apart).sum() / np.float32(whole), (y,), back)


def learn(ours: engine.Fovea, llm: Model, kept: dict[int, list[Seen]],
          args: Args) -> tuple[Learned, dict[int, list[float]]]:
    """Features of each layer, and the error of each step."""
    learned, curves = Learned(), dict[int, list[float]]()
    for layer, windows in kept.items():
        phi = Features(llm.config, args.features, layer)
        adam = Adam(phi.weights, args.rate, args.steps, eps=1e-10)
        random = np.random.default_rng(layer)
        learned[layer], curves[layer] = phi, []
        out = np.ascontiguousarray(llm.layers[layer].output.T)
        for step in range(args.steps):
            loss = error(ours, phi, windows[random.integers(len(windows))], out)
            loss.backward()
            adam.learn()
            curves[layer].append(float(loss.value))
            say(f"layer {layer}: step {step + 1} of {args.steps}, error {float(loss.value):.3f}")
    return learned, curves


def loss_of(llm: Model, attention: PagedAttention, tokens: Sequence[int], first: int = 0) -> float:
    """Mean nats of the tokens behind number `first`; those before it have been read."""
    attention.rewind(first)
    total = 0.0
    for at in range(first, len(tokens) - 1, PIECE):
        piece = tokens[at:min(at + PIECE, len(tokens) - 1)]
        logits = llm.forward(piece, attention, every=True)
        logits -= logits.max(axis=1, keepdims=True)
        wanted = logits[np.arange(len(piece)), tokens[at + 1:at + 1 + len(piece)]]
        total += float((np.log(np.exp(logits).sum(axis=1)) - wanted).sum())
    return total / (len(tokens) - 1 - first)


def state_bytes(llm: Model, ctx: fovea.Context, learned: Learned, older: bool,
                tokens: Sequence[int]) -> tuple[int, int]:
    """Bytes of the first chosen layer after half of the tokens and after all, which are read."""
    first = min(learned)
    shorter = Model(llm.config, llm.embedding, llm.layers[:first + 1], llm.norm)
    attention = WindowAttention(llm.config, len(tokens), ctx, {first: learned[first]}, older)
    found = list[int]()
    for half in (tokens[:len(tokens) // 2], tokens[len(tokens) // 2:]):
        for at in range(0, len(half), PIECE):
            say(f"the first {first + 1} layers read {attention.length} tokens")
            shorter.forward(half[at:at + PIECE], attention)
        found.append(attention.bytes())
    if found[0] != found[1]:
        raise SystemExit(f"smollm: layer {first} keeps {found[0]} bytes after {len(tokens) // 2} "
                         f"tokens and {found[1]} after {len(tokens)}, wanted the same")
    return found[0], found[1]


def judge(llm: Model, ctx: fovea.Context, learned: Learned, texts: Sequence[Sequence[int]],
          long: Sequence[int]) -> list[Row]:
    losses, kept = list[float](), list[tuple[int, int]]()
    c, most = llm.config, max(len(tokens) for tokens in texts)
    for name in NAMES:
        say(f"held-out text by {name}", done=True)
        if name == NAMES[0]:
            attention = PagedAttention(c, most, ctx)
            a_token = 4 * 2 * c.key_heads * c.head_dim
            kept.append((len(long) // 2 * a_token, len(long) * a_token))
        else:
            older = name == NAMES[2]
            attention = WindowAttention(c, most, ctx, learned, older)
            kept.append(state_bytes(llm, ctx, learned, older, long))
        losses.append(sum(loss_of(llm, attention, tokens) for tokens in texts) / len(texts))
    cost = losses[1] - losses[0]
    share = [(losses[1] - loss) / cost if cost > 0 else math.nan for loss in losses]
    return [Row(name, loss, math.exp(loss), back, *bytes_)
            for name, loss, back, bytes_ in zip(NAMES, losses, share, kept)]


def markdown(rows: Sequence[Row], about: str, tokens: int) -> str:
    lines = [["keys of the chosen layers", "nats a token", "perplexity", "won back",
              f"bytes a layer at {tokens // 2} tokens", f"at {tokens}"], ["---"] * 6]
    lines += [[row.reads, f"{row.loss:.4f}", f"{row.perplexity:.2f}", f"{row.won_back:.1%}",
               str(row.bytes_half), str(row.bytes_whole)] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + f"\n{about}.\n"


def draw(rows: Sequence[Row], curves: dict[int, list[float]], path: pathlib.Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), constrained_layout=True)
    for layer, curve in curves.items():
        left.plot(range(1, len(curve) + 1), curve, linewidth=1, label=f"layer {layer}")
    left.set(title="squared error of a layer's output, as a share", xlabel="step", yscale="log")
    left.legend(fontsize=8)
    right.barh([row.reads for row in rows][::-1], [row.loss for row in rows][::-1],
               color=["#1b7f79", "#c2703d", "#9aa5b1"])
    for at, row in enumerate(rows[::-1]):
        right.annotate(f"{row.loss:.3f}", (row.loss, at), xytext=(4, 0),
                       textcoords="offset points", va="center", fontsize=8)
    right.set(title="held-out text, nats a token", xlim=(0, 1.15 * max(r.loss for r in rows)))
    figure.savefig(path, dpi=110, format="png")
    plt.close(figure)


def save(learned: Learned, path: pathlib.Path) -> None:
    """Each weight by its layer and name, as `5 q w`."""
    with open(path, "wb") as file:  # savez would add .npz to the name
        np.savez(file, allow_pickle=False, **{
            f"{layer} {name}": w.value for layer, phi in learned.items()
            for name, w in phi.weights.items()})


def load(config: Config, layers: Sequence[int], path: pathlib.Path) -> Learned:
    learned = Learned()
    with np.load(path, allow_pickle=False) as arrays:
        there = sorted({int(name.split()[0]) for name in arrays})
        if there != list(layers):
            raise SystemExit(f"smollm: {path} has features of layers {there}, wanted "
                             f"{list(layers)}: give another --linear-out")
        for layer in layers:
            learned[layer] = Features(config, arrays[f"{layer} k b"].shape[1])
            for name, w in learned[layer].weights.items():
                w.value = arrays[f"{layer} {name}"]
    return learned


def transfer(llm: Model, source: Weights, ctx: fovea.Context, layers: Sequence[int],
             args: Args) -> tuple[Learned, list[Row]]:
    """Learns, judges, and writes table, plot and features into args.linear_out."""
    from fovea_trace.output import Folder
    tokens = source.tokenizer().encode(text.distinct_text(None)).ids
    end = len(tokens) - len(tokens) // 10  # the last tenth is held out
    held = [tokens[first:first + args.held_tokens] for first in np.linspace(
        end, len(tokens) - args.held_tokens, args.held_out).astype(int)]
    long = tokens[end:end + args.state_tokens]
    with Folder(args.linear_out, ("linear.tsv", "linear.md", "linear.png", "features.npz"),
                force=True) as folder:
        kept = record(llm, ctx, tokens[:end], layers, args.windows)
        learned, curves = learn(engine.Fovea(ctx), llm, kept, args)
        folder.save("features.npz", lambda path: save(learned, path))
        rows = judge(llm, ctx, learned, held, long)
        about = (f"Layers {', '.join(map(str, layers))} of {llm.config.layers}, {args.features} "
                 f"features, {args.steps} steps a layer on {args.windows} windows of "
                 f"{LEARN_TOKENS} tokens, judged on {args.held_out} of {args.held_tokens}; "
                 f"{ctx!r}, f32")
        told = markdown(rows, about, len(long))
        folder.save("linear.md", lambda path: path.write_text(told))
        folder.save("linear.tsv", lambda path: table.write_tsv(rows, path))
        folder.save("linear.png", lambda path: draw(rows, curves, path))
    say("")
    print(told, flush=True)
    print(verdict(rows), flush=True)
    return learned, rows


def verdict(rows: Sequence[Row]) -> str:
    share = rows[2].won_back
    if math.isnan(share):
        return "the window alone costs nothing here, so there is nothing to win back"
    return (f"{share:.1%} of the loss that the window alone costs is won back: the bar of a half "
            f"is {'met' if share >= 0.5 else 'missed'}")


def attention_of(llm: Model, source: Weights, ctx: fovea.Context, capacity: int,
                 args: Args) -> Any:
    """The attention whose layers --linear are of constant size: learned now, or read."""
    layers = layers_of(args.linear, llm.config.layers)
    kept = args.linear_out / "features.npz"
    if kept.exists():
        learned = load(llm.config, layers, kept)
        say(f"features: {kept}", done=True)
    else:
        learned, _ = transfer(llm, source, ctx, layers, args)
    return WindowAttention(llm.config, capacity, ctx, learned, dtype=args.dtype)
