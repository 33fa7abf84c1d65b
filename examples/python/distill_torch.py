#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Distils SmolLM2's attention into one with fewer key heads, in PyTorch; the loss is fovea's KL.

    python examples/python/distill_torch.py --layers 10 --out distill_torch.png

The model has 9 query heads on 3 key heads.  The student of a layer keeps the query heads and has
--key-heads key heads: projections of its own from what the layer reads, begun as the mean of the
teacher's.  Its cache is smaller, and it learns to look where the teacher looks:

    loss = mean over rows of KL(softmax(q k' / sqrt(d)) || softmax(q_student k_student' / sqrt(d)))

`fovea.torch.kl_loss` gives the loss and its gradients without an s x t array.  `--compare` trains
with the same loss from whole arrays too, and prints the speed and the largest tensor of both."""

import argparse
import importlib.util
import math
import os
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

if importlib.util.find_spec("fovea") is None:  # not installed: this checkout's binding
    sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "bindings/python"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the weights are a file
try:
    import matplotlib
    import torch
    from finetune import COLORS, Args, Row, Trainer, checked, pack, pieces
    from smollm.terminal import say
    from smollm.weights import open_weights
    from torch import Tensor
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
    import fovea.torch
except ModuleNotFoundError as why:
    raise SystemExit(
        f"distill_torch: {why}: pip install torch transformers gguf tokenizers matplotlib"
    ) from None

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402


Rope = tuple[Tensor, Tensor]  # cos, sin
Pair = tuple[Tensor, Tensor]  # q and k, (b, s, heads, d)
Run = tuple[list[float], float]  # losses, seconds spent in them


def streamed_loss(q: Tensor, k: Tensor, q_student: Tensor, k_student: Tensor) -> Tensor:
    """Of (b, s, heads, d)."""
    return fovea.torch.kl_loss(q, k, q_student, k_student, causal=True)


def eager_loss(q: Tensor, k: Tensor, q_student: Tensor, k_student: Tensor) -> Tensor:
    """The same from s x s arrays."""
    log_p, log_r = log_softmax(q, k), log_softmax(q_student, k_student)
    return (log_p.exp() * (log_p - log_r).masked_fill(log_p == -torch.inf, 0)).sum(-1).mean()


def log_softmax(q: Tensor, k: Tensor) -> Tensor:
    q, k = q.transpose(1, 2), k.transpose(1, 2).repeat_interleave(q.shape[2] // k.shape[2], 1)
    x = q @ k.transpose(2, 3) / math.sqrt(q.shape[3])
    unseen = ~torch.ones_like(x[0, 0], dtype=torch.bool).tril()
    return x.masked_fill(unseen, -torch.inf).log_softmax(-1)


LOSSES = {"fovea": streamed_loss, "eager": eager_loss}


class Student(torch.nn.Module):
    """Queries and keys for one attention layer of a Llama: q (b, s, h, d), k (b, s, g, d)."""

    def __init__(self, teacher: Any, key_heads: int) -> None:
        super().__init__()
        d, wide = teacher.head_dim, teacher.k_proj.in_features
        q, k = (x.weight.detach().unflatten(0, (-1, d)) for x in (teacher.q_proj, teacher.k_proj))
        if k.shape[0] % key_heads or key_heads > k.shape[0]:
            raise ValueError(f"--key-heads is {key_heads}, wanted a divisor of {k.shape[0]}")
        mean = k.unflatten(0, (key_heads, -1)).mean(1)
        self.d, self.q = d, torch.nn.Parameter(q.reshape(-1, wide).clone())
        self.k = torch.nn.Parameter(mean.reshape(-1, wide).clone())

    def forward(self, x: Tensor, rope: Rope) -> Pair:
        return rotated(x @ self.q.T, x @ self.k.T, self.d, rope)


def rotated(q: Tensor, k: Tensor, d: int, rope: Rope) -> Pair:
    q, k = (y.unflatten(-1, (-1, d)).transpose(1, 2) for y in (q, k))
    q, k = apply_rotary_pos_emb(q, k, *rope)
    return q.transpose(1, 2), k.transpose(1, 2)


class Teacher:
    """What chosen layers of the model read, and their queries and keys after rope."""

    def __init__(self, model: Any, layers: Sequence[int]) -> None:
        self.model, self.layers = model.model.eval(), layers
        self.read: dict[int, tuple[Tensor, Rope]] = {}
        for i in layers:
            self.model.layers[i].self_attn.register_forward_pre_hook(
                self.keep(i), with_kwargs=True
            )

    def keep(self, i: int) -> Callable[..., None]:
        def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            x = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
            self.read[i] = x, kwargs["position_embeddings"]

        return hook

    @torch.no_grad()
    def __call__(self, ids: Tensor) -> list[tuple[Tensor, Rope, Tensor, Tensor]]:
        """For each layer (x, rope, q, k)."""
        self.model(ids, use_cache=False)
        out = []
        for i in self.layers:
            x, rope = self.read.pop(i)
            part = self.model.layers[i].self_attn
            out.append((x, rope, *rotated(part.q_proj(x), part.k_proj(x), part.head_dim, rope)))
        return out


def train(name: str, teacher: Teacher, rows: Sequence[Row], args: Args) -> Run:
    """Losses by step, and seconds spent in the loss and its gradient."""
    parts = [teacher.model.layers[i].self_attn for i in args.layers]
    students = torch.nn.ModuleList(Student(part, args.key_heads) for part in parts)
    adam = torch.optim.Adam(students.parameters(), lr=args.rate)
    losses, spent, started = list[float](), 0.0, time.perf_counter()
    for step, (ids, *_) in enumerate(rows, 1):
        adam.zero_grad()
        total = 0.0
        for (x, rope, q, k), student in zip(teacher(ids.to(args.device)), students):
            made = student(x, rope)
            pair = [y.detach().requires_grad_() for y in made]
            began = now(args)
            loss = LOSSES[name](q, k, *pair)
            loss.backward()
            spent += now(args) - began
            torch.autograd.backward(made, [y.grad for y in pair])
            total += loss.item() / len(students)
        adam.step()
        losses.append(total)
        left = (time.perf_counter() - started) / step * (len(rows) - step)
        say(f"{name}: step {step} of {len(rows)}, loss {total:.4f}, {left:.0f} s left")
    say(f"{name}: {len(rows)} steps in {time.perf_counter() - started:.1f} s", done=True)
    return losses, spent


def now(args: Args) -> float:
    if args.device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter()


class Largest(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts the bytes of the largest tensor that an operation of torch makes."""

    bytes = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        for x in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(x, torch.Tensor):
                self.bytes = max(self.bytes, x.numel() * x.element_size())
        return made


def largest(name: str, teacher: Teacher, row: Row, args: Args) -> int:
    """Bytes of the largest tensor that the loss and its gradient make."""
    x, rope, q, k = teacher(row[0].to(args.device))[0]
    student = Student(teacher.model.layers[args.layers[0]].self_attn, args.key_heads)
    pair = [y.detach().requires_grad_() for y in student(x, rope)]
    seen = Largest()  # type: ignore[no-untyped-call]  # torch's own
    with seen:
        LOSSES[name](q, k, *pair).backward()
    return seen.bytes


def arguments(argv: Sequence[str] | None) -> Args:
    parser = argparse.ArgumentParser(
        prog="distill_torch",
        description="Distils SmolLM2's attention into one with fewer key heads.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    option = parser.add_argument
    option("--steps", type=int, default=60)
    option("--tokens", type=int, default=512, help="in a step")
    option("--layers", type=int, nargs="+", default=[10], help="of the model, from 0")
    option("--key-heads", type=int, default=1, help="of the student; the teacher has 3")
    option("--loss", choices=list(LOSSES), default="fovea")
    option("--compare", action="store_true", help="trains with both losses")
    option("--rate", type=float, default=1e-3, help="of Adam")
    return checked(parser, argv, "distill_torch.png")


def main(argv: Sequence[str] | None = None) -> dict[str, Run]:
    args = arguments(argv)
    try:
        tokenizer = open_weights(args.model).tokenizer()
        rows = pack(pieces(args.text, tokenizer, args.tokens), args.steps, args.tokens, args.seed)
        model = Trainer(args).model
        model.set_attn_implementation("fovea")
        count = model.config.num_hidden_layers
        if not 0 <= min(args.layers) <= max(args.layers) < count:
            raise ValueError(f"--layers go from 0 to {count - 1}, got {args.layers}")
        model.model.layers = model.model.layers[: max(args.layers) + 1]  # the rest is not asked
        teacher = Teacher(model, args.layers)
        names = tuple(LOSSES) if args.compare else (args.loss,)
        runs = {name: train(name, teacher, rows, args) for name in names}
        sizes = {name: largest(name, teacher, rows[0], args) for name in names}
        draw(runs, args)
    except KeyboardInterrupt:
        raise SystemExit("\ndistill_torch: stopped, nothing is written") from None
    except (ValueError, OSError, UnicodeError, fovea.FoveaError) as why:
        raise SystemExit(f"distill_torch: {why}") from None
    for name, (losses, spent) in runs.items():
        tokens = args.steps * args.tokens * len(args.layers)
        print(f"{name}: loss {losses[0]:.4f} -> {losses[-1]:.4f} nats a row; the loss and its "
              f"gradient: {tokens / spent:.0f} tokens/s, largest tensor "
              f"{sizes[name] / 2**20:.2f} MiB")  # fmt: skip
    if args.compare:
        most = max(abs(a - b) for a, b in zip(runs["fovea"][0], runs["eager"][0]))
        print(f"largest difference of the two losses: {most:.2e} nats")
    print(args.out)
    return runs


def draw(runs: dict[str, Run], args: Args) -> None:
    figure, axes = plt.subplots(figsize=(7, 4), constrained_layout=True)
    for (name, (losses, _)), style in zip(runs.items(), ("-", "--")):
        color = COLORS["fovea" if name == "fovea" else "sdpa"]
        axes.semilogy(range(1, len(losses) + 1), losses, style, color=color, label=name)
    axes.set(title="distilling attention", xlabel="step", ylabel="mean KL of a row, in nats")
    axes.grid(color="#dddddd", linewidth=0.5)
    axes.legend()
    figure.savefig(args.out, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main()
