#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small transformer on one long text that is cut over two processes, then writes on.

    examples/python/long_train.py        # the Python reference's first 4096 bytes, on the CPU
    examples/python/long_train.py TEXT --tokens 65536 --ranks 2
    torchrun --nproc-per-node 2 examples/python/long_train.py --device cuda

Every process has its share of the tokens of every layer; attention goes round the ring.  One
process takes the same steps first: the losses must agree to rounding, or the command fails.  Then
both write the same bytes, from a cache that lies on one process and on all."""

import argparse
import datetime
import multiprocessing
import os
import pathlib
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Optional

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bindings/python"))
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import fovea.distributed as fd  # noqa: E402

Args = argparse.Namespace
Run = tuple[list[float], float, bytes]
Group = Optional[dist.ProcessGroup]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # layer, q, k, v to o
WIDTH, HEADS, KEY_HEADS, LAYERS = 64, 4, 2, 2
TOLERANCE = 1e-4  # nats, of sums in another order


def turn(x: Tensor, places: Tensor) -> Tensor:
    """Rope by the places in the whole text."""
    half = x.shape[-1] // 2
    angle = places[:, None].float() * 10000 ** -(torch.arange(half, device=x.device) / half)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Layer(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.d = number, WIDTH // HEADS
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv = nn.Linear(WIDTH, (HEADS + 2 * KEY_HEADS) * self.d)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor, places: Tensor, attend: Attend) -> Tensor:
        heads = self.qkv(self.norms[0](x)).unflatten(-1, (-1, self.d))
        q, k, v = heads.split((HEADS, KEY_HEADS, KEY_HEADS), dim=2)
        o = attend(self.number, turn(q, places), turn(k, places), v)
        x = x + self.out(o.flatten(2))
        y: Tensor = self.mlp(self.norms[1](x))
        return x + y


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.head = nn.Embedding(256, WIDTH), nn.Linear(WIDTH, 256)
        self.layers = nn.ModuleList(Layer(i) for i in range(LAYERS))

    def forward(self, text: Tensor, places: Tensor, attend: Attend) -> Tensor:
        x = self.bytes(text)
        for layer in self.layers:
            x = layer(x, places, attend)
        scores: Tensor = self.head(x)
        return scores


def train(model: Model, text: Tensor, steps: int, group: Group) -> list[float]:
    """The loss of each step over the tokens of all ranks, in nats."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return fd.ring_attention(q, k, v, group, causal=True)

    own, following = fd.shard(text[:, :-1], group), fd.shard(text[:, 1:], group)
    places = fd.positions(own.shape[1], group, device=text.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = list[float]()
    for _ in range(steps):
        scores = model(own, places, attend)
        scores, wanted = scores.flatten(0, 1), following.flatten()
        loss = nn.functional.cross_entropy(scores, wanted, reduction="sum") / (text.shape[1] - 1)
        optimizer.zero_grad()
        loss.backward()
        total = loss.detach()
        for x in (total, *[p.grad for p in model.parameters() if p.grad is not None]):
            dist.all_reduce(x, group=group)  # the parts of a sum over tokens
        optimizer.step()
        losses.append(total.item())
    return losses


@torch.no_grad()
def write(model: Model, text: Tensor, count: int, group: Group) -> bytes:
    """`count` likely bytes behind the text.  Rank r keeps the keys of the r-th part of it, the last
    rank those of new bytes too."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    caches: list[tuple[Tensor, Tensor]] = []

    def first(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        more = count if rank == size - 1 else 0
        k_cache, v_cache = (nn.functional.pad(x, (0, 0, 0, 0, 0, more)) for x in (k, v))
        caches.append((k_cache, v_cache))
        return fd.ring_attention(q, k, v, group, causal=True, layout="contiguous")

    own = fd.shard(text, group, layout="contiguous")
    held, length = own.shape[1], text.shape[1]
    places = fd.positions(held, group, layout="contiguous", device=text.device)
    scores = fd.unshard(model(own, places, first)[:, -1:], group, layout="contiguous")[:, -1:]

    def later(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k_cache, v_cache = caches[layer]
        if rank == size - 1:
            at = length - 1 - rank * held
            k_cache[:, at], v_cache[:, at] = k[:, 0], v[:, 0]
        total = torch.tensor([length], dtype=torch.int32, device=q.device)
        return fd.decode(q, k_cache, v_cache, group, context_len=total, key_begin=rank * held)

    made = list[int]()
    for _ in range(count):
        token = scores[:, -1].argmax(-1, keepdim=True)
        made.append(int(token))
        length += 1
        scores = model(token, torch.tensor([length - 1], device=text.device), later)
    return bytes(made)


def run(args: Args, data: bytes, group: Group, device: torch.device) -> Run:
    """Losses, tokens a second, and what is written."""
    torch.manual_seed(0)
    model, text = Model().to(device), torch.tensor([list(data)], device=device)
    began = time.perf_counter()
    losses = train(model, text, args.steps, group)
    speed = args.steps * (len(data) - 1) / (time.perf_counter() - began)
    return losses, speed, write(model, text[:, : args.prompt], args.write, group)


def work(args: Args, data: bytes) -> None:
    """One rank: alone where it is the first, then with the others."""
    rank, size = dist.get_rank(), dist.get_world_size()
    cuda = args.device == "cuda"
    device = torch.device("cpu")
    if cuda:
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(args.threads)
    single = dist.new_group([0])
    alone = run(args, data, single, device) if rank == 0 else None
    dist.barrier()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    losses, speed, written = run(args, data, None, device)
    if cuda:
        peak = torch.cuda.max_memory_allocated()
    else:
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peaks = [0] * size
    dist.all_gather_object(peaks, peak >> 20)
    if alone:
        for step, (one, all_of) in enumerate(zip(alone[0], losses), 1):
            print(f"step {step}: loss {one:.6f} by one process, {all_of:.6f} by {size}")
        off = max(abs(a - b) for a, b in zip(alone[0], losses))
        print(f"largest difference {off:.1e} nats")
        print(f"tokens/s: {alone[1]:.0f} by one process, {speed:.0f} by {size}; MiB a rank: {peaks}")
        print(f"written by one process and by {size}: {written!r}")
        if off > TOLERANCE or alone[2] != written:
            raise SystemExit(f"long_train: one process and {size} do not agree: {alone[2]!r}")
    dist.destroy_process_group()


def start(rank: int, args: Args, data: bytes, store: str) -> None:
    dist.init_process_group(
        "nccl" if args.device == "cuda" else "gloo", init_method=f"file://{store}", rank=rank,
        world_size=args.ranks, timeout=datetime.timedelta(seconds=300),
    )  # fmt: skip
    work(args, data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    option = parser.add_argument
    option("text", nargs="?", type=pathlib.Path, help="default: the reference of Python")
    option("--tokens", type=int, default=4096, help="bytes of the text that are read")
    option("--steps", type=int, default=4)
    option("--ranks", type=int, default=2)
    option("--threads", type=int, default=1, help="of a process on the CPU")
    option("--prompt", type=int, default=256, help="bytes that are read before writing")
    option("--write", type=int, default=24, help="bytes to write")
    option("--device", choices=("cpu", "cuda"), default="cpu")
    args = parser.parse_args()
    if "RANK" in os.environ:  # torchrun
        args.ranks = int(os.environ["WORLD_SIZE"])
    wanted = ("tokens", args.tokens, 2 * args.ranks), ("prompt", args.prompt, args.ranks)
    for name, value, divisor in wanted:
        if value < divisor or value % divisor:
            words = f"wanted a multiple of {divisor} for {args.ranks} ranks"
            parser.error(f"--{name} is {value}, {words}")
    if args.text:
        data = args.text.read_bytes()
    else:
        from pydoc_data.topics import topics

        data = "\n\n".join(topics.values()).encode()
    if len(data) <= args.tokens or args.prompt > args.tokens:
        parser.error(f"the text has {len(data)} bytes, wanted more than --tokens {args.tokens}")
    data = data[: args.tokens + 1]
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
        work(args, data)
        return
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        spawned, ranks = multiprocessing.get_context("spawn"), range(args.ranks)
        jobs = [spawned.Process(target=start, args=(rank, args, data, store)) for rank in ranks]
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()
    if any(job.exitcode for job in jobs):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
