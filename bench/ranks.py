#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""fovea.distributed over the GPUs of one host, beside one of them and beside PyTorch.

    bench/ranks.py                        # every case; appends to results/<n>-x-<device>.tsv
    bench/ranks.py --filter ring          # or some of them; --list, --dry, --ranks 2, --rounds 10
    bench/ranks.py --timeline FILE.tsv    # keeps what a rank's GPU does in ring_backward_128k
    bench/ranks.py --draw FILE.tsv        # draws it, as FILE.png
    bench/ranks.py --small                # small shapes, on CPUs over gloo where there are no GPUs

A time is the slowest rank's, by events on its GPU, between two barriers; medians.  Results are
compared with one device's.  Ranks compare no arguments (check=False) but where a case says so.

Peers: one device; PyTorch's context parallel; and ring attention in zig-zag order (the algorithm of
ring-flash-attention) written here over PyTorch's cuDNN attention."""

import argparse
import datetime
import functools
import os
import pathlib
import re
import statistics
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "bindings/python"))
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import fovea  # noqa: E402
import fovea.distributed as fd  # noqa: E402
import fovea.torch as ft  # noqa: E402
import table  # noqa: E402

ONE = "fovea, one device"
TORCH = "torch context_parallel"
RING = "zig-zag ring of torch.sdpa.cudnn"


class Case:
    """alone(): one device's call.  together(): a rank's.  Both give tensors; those of alone() are of
    the whole text.  peers(): {name: a rank's call}, of results as together()'s."""

    op, unit, scale, limit = "", "TFLOP/s", 1e-12, 2e-2

    def __init__(self, name, work):
        self.name, self.work = name, work

    def peers(self):
        return {}

    def whole(self, made):
        """A rank's results as one device has them."""
        return made


def randn(*shape, seed, device, dtype=torch.bfloat16, factor=1.0):
    """The same on every rank."""
    source = torch.Generator(device).manual_seed(seed)
    return torch.randn(*shape, generator=source, device=device, dtype=dtype) * factor


class Ring(Case):
    def __init__(self, tokens, heads, backward, place):
        pairs = tokens * (tokens + 1) // 2 * heads
        super().__init__(
            f"causal_n{tokens // 1024}k_h{heads}", pairs * 128 * 4 * (3.5 if backward else 1)
        )
        self.op = f"ranks_ring_{'backward' if backward else 'forward'}"
        self.backward, self.place = backward, place
        made = [randn(1, tokens, heads, 128, seed=i, device=place.device) for i in range(4)]
        self.inputs, self.dout = made[:3], made[3]
        self.own = [fd.shard(x).contiguous() for x in made]

    def run(self, call, inputs, dout):
        if not self.backward:
            with torch.no_grad():
                return (call(*inputs),)
        leaves = [x.detach().requires_grad_() for x in inputs]
        o = call(*leaves)
        return (o.detach(), *torch.autograd.grad(o, leaves, dout))

    def alone(self):
        return self.run(lambda q, k, v: ft.attention(q, k, v, causal=True), self.inputs, self.dout)

    def together(self):
        def ring(q, k, v):
            return fd.ring_attention(q, k, v, causal=True, check=False)

        return self.run(ring, self.own[:3], self.own[3])

    def whole(self, made):
        return [fd.unshard(x.contiguous()) for x in made]

    def peers(self):
        if not self.place.cuda:
            return {}
        return {TORCH: ContextParallel(self), RING: self.zigzag}

    def zigzag(self):
        def turned(x):
            return x.transpose(1, 2)

        run = self.run(
            lambda q, k, v: turned(Zigzag.apply(turned(q), turned(k), turned(v))),
            self.own[:3], self.own[3],
        )  # fmt: skip
        return run


class ContextParallel:
    """PyTorch's context parallel: it cuts its buffers when entered and joins them when left."""

    def __init__(self, case):
        self.case, self.context = case, None

    def __enter__(self):
        from torch.distributed.tensor.experimental import context_parallel
        from torch.nn.attention import SDPBackend, sdpa_kernel

        mesh = dist.init_device_mesh("cuda", (dist.get_world_size(),))
        self.buffers = [x.transpose(1, 2).clone() for x in (*self.case.inputs, self.case.dout)]
        self.context = context_parallel(
            mesh, buffers=self.buffers, buffer_seq_dims=[2] * 4,
            no_restore_buffers=set(self.buffers),
        )  # fmt: skip
        self.kernel = sdpa_kernel(SDPBackend.CUDNN_ATTENTION)
        self.context.__enter__()
        self.kernel.__enter__()
        return self

    def __exit__(self, *what):
        self.kernel.__exit__(*what)
        self.context.__exit__(*what)

    def __call__(self):
        def call(q, k, v):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

        made = self.case.run(call, self.buffers[:3], self.buffers[3])
        return [x.transpose(1, 2) for x in made]


def cudnn(q, k, v, causal):
    made = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal)
    return made[0], made[1].reshape(q.shape[:3])


def cudnn_backward(dout, q, k, v, o, lse, causal):
    zero = torch.zeros((), dtype=torch.int64, device=q.device)
    return torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        dout, q, k, v, o, lse[..., None], zero, zero, None, None, None, q.shape[2], k.shape[2], 0.0,
        causal,
    )  # fmt: skip


class Zigzag(torch.autograd.Function):
    """(b, h, s, d).  Keys go to the next rank while a hop is computed; in the backward their
    gradients, in f32, follow one hop behind."""

    @staticmethod
    def send(tensors, step):
        rank, size = dist.get_rank(), dist.get_world_size()
        rooms = [torch.empty_like(x) for x in tensors]
        works = dist.batch_isend_irecv([
            dist.P2POp(f, x, at % size)
            for f, xs, at in ((dist.isend, tensors, rank + 1), (dist.irecv, rooms, rank - 1))
            for x in xs
        ])  # fmt: skip
        return works, rooms, tensors

    @staticmethod
    def wait(sent):
        for work in sent[0]:
            work.wait()
        return sent[1]

    @staticmethod
    def spans(step, half):
        """Rows and keys of a hop."""
        if step == 0:
            return slice(None), slice(None)
        if step <= dist.get_rank():
            return slice(None), slice(0, half)
        return slice(half, None), slice(None)

    @staticmethod
    def forward(ctx, q, k, v):
        size, half, o = dist.get_world_size(), q.shape[2] // 2, None
        k, v = held = [x.contiguous() for x in (k, v)]
        for step in range(size):
            coming = Zigzag.send(held, step) if step + 1 < size else None
            rows, keys = Zigzag.spans(step, half)
            part, part_lse = cudnn(q[:, :, rows], held[0][:, :, keys], held[1][:, :, keys], step == 0)
            if o is None:
                o, lse = part.float(), part_lse
            else:
                old, was = o[:, :, rows], lse[:, :, rows]
                old -= torch.sigmoid(part_lse - was)[..., None] * (old - part)
                was.copy_(torch.logaddexp(was, part_lse))
            held = Zigzag.wait(coming) if coming else None
        o = o.to(q.dtype)
        ctx.save_for_backward(q, k, v, o, lse)
        return o

    @staticmethod
    def backward(ctx, dout):
        q, k, v, o, lse = ctx.saved_tensors
        dout = dout.contiguous()
        size, half = dist.get_world_size(), q.shape[2] // 2
        held, going, sums = [k, v], None, None
        dq = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        for step in range(size):
            coming = Zigzag.send(held, step) if step + 1 < size else None
            rows, keys = Zigzag.spans(step, half)
            made = cudnn_backward(
                *[x[:, :, rows].contiguous() for x in (dout, q)],
                *[x[:, :, keys].contiguous() for x in held],
                *[x[:, :, rows].contiguous() for x in (o, lse)], step == 0,
            )  # fmt: skip
            dq[:, :, rows] += made[0]
            if going is None:
                sums = [torch.zeros(x.shape, dtype=torch.float32, device=x.device) for x in (k, v)]
            else:
                sums = Zigzag.wait(going)
            for total, part in zip(sums, made[1:]):
                total[:, :, keys] += part
            held = Zigzag.wait(coming) if coming else None
            going = Zigzag.send(sums, step)
        dk, dv = Zigzag.wait(going)
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def replayed(call):
    """What runs a call again and again: a CUDA graph of it, as engines decode."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # NCCL's own thread goes on
        made = call()

    def run():
        graph.replay()
        return made

    return run


class Decode(Case):
    """A row over a cache.  In a graph, on GPUs, where `graph` is set: of one device too."""

    op, unit, scale = "ranks_decode", "GB/s", 1e-9

    def __init__(self, tokens, place, check=False, graph=False):
        heads, keys, d = 32, 8, 128
        name = f"n{tokens // 1024}k_h{heads}_g{keys}"
        name += "_checked" if check else "_graph" if graph else ""
        super().__init__(name, 2 * tokens * keys * d * 2)
        rank, size, device = dist.get_rank(), dist.get_world_size(), place.device
        self.q = randn(1, 1, heads, d, seed=1, device=device)
        self.cache = [randn(1, tokens, keys, d, seed=2 + i, device=device) for i in range(2)]
        held = tokens // size
        self.own = [x[:, rank * held : (rank + 1) * held].contiguous() for x in self.cache]
        self.length = torch.tensor([tokens], dtype=torch.int32, device=device)
        self.check, self.graph, self.graphs = check, graph and place.cuda, {}

    def run(self, name, call):
        if not self.graph:
            return call()
        if name not in self.graphs:
            self.graphs[name] = replayed(call)
        return self.graphs[name]()

    def alone(self):
        return self.run(
            "alone", lambda: (ft.decode(self.q, *self.cache, key_len=self.length),)
        )

    def together(self):
        return self.run("together", lambda: (
            fd.decode(self.q, *self.own, context_len=self.length, check=self.check),
        ))  # fmt: skip


class Divergence(Case):
    def __init__(self, tokens, heads, backward, place):
        pairs = tokens * (tokens + 1) // 2 * heads
        # per pair and column: two products forward, and six more in the gradient of the student
        super().__init__(f"causal_n{tokens // 1024}k_h{heads}", pairs * 128 * (12 if backward else 4))
        self.op = f"ranks_kl_{'backward' if backward else 'forward'}"
        self.backward = backward
        self.inputs = [
            randn(1, tokens, heads, 128, seed=i, device=place.device) for i in range(4)
        ]
        self.own = [fd.shard(x).contiguous() for x in self.inputs]

    def run(self, call, inputs):
        student = [x.detach().requires_grad_(self.backward) for x in inputs[2:]]
        loss = call(*inputs[:2], *student)
        if not self.backward:
            return (loss.detach().reshape(1),)
        return (loss.detach().reshape(1), *torch.autograd.grad(loss, student))

    def alone(self):
        return self.run(lambda *x: ft.kl_loss(*x, causal=True), self.inputs)

    def together(self):
        return self.run(lambda *x: fd.kl_loss(*x, causal=True, check=False), self.own)

    def whole(self, made):
        return [made[0], *[fd.unshard(x.contiguous()) for x in made[1:]]]


class State(Case):
    unit, scale = "TB/s", 1e-12

    def __init__(self, tokens, heads, backward, place):
        super().__init__(f"gdn_n{tokens // 1024}k_h{heads}", tokens * heads * 128 * 2 * (11 if backward else 4))
        self.op = f"ranks_delta_{'backward' if backward else 'forward'}"
        self.backward, device = backward, place.device
        q, k, v, self.dout = [
            randn(1, tokens, heads, 128, seed=i, device=device) for i in range(4)
        ]
        gate = -torch.rand((1, tokens, heads), generator=torch.Generator(device).manual_seed(5),
                           device=device) / 8  # fmt: skip
        beta = randn(1, tokens, heads, seed=6, device=device).sigmoid()
        k = torch.nn.functional.normalize(k.float(), dim=-1).to(k.dtype)
        self.inputs = {"q": q / 11.3, "k": k, "v": v, "gate_head": gate, "beta": beta}
        self.own = {n: fd.shard(x, layout="contiguous").contiguous() for n, x in self.inputs.items()}
        self.own_dout = fd.shard(self.dout, layout="contiguous").contiguous()
        self.single = place.single

    def run(self, inputs, dout, group):
        leaves = {n: x.detach().requires_grad_(self.backward) for n, x in inputs.items()}
        o = fd.delta(**leaves, group=group, check=False)
        if not self.backward:
            return (o.detach(),)
        return (o.detach(), *torch.autograd.grad(o, list(leaves.values()), dout))

    def alone(self):
        return self.run(self.inputs, self.dout, self.single)

    def together(self):
        return self.run(self.own, self.own_dout, None)

    def whole(self, made):
        return [fd.unshard(x.contiguous(), layout="contiguous") for x in made]


class Tracing(Case):
    op, unit, scale = "ranks_trace", "Mrow/s", 1e-6

    def __init__(self, tokens, heads, place):
        super().__init__(f"causal_n{tokens // 1024}k", tokens * heads)
        self.inputs = [randn(1, tokens, heads, 128, seed=i, device=place.device) for i in range(3)]
        self.own = [fd.shard(x).contiguous() for x in self.inputs]
        self.numbers = {"keep": 16, "block_rows": 64, "block_keys": 64, "causal": True}

    def alone(self):
        made = ft.trace(*self.inputs, **self.numbers)
        return made.o, made.selected.float()

    def together(self):
        made = fd.trace(*self.own, check=False, **self.numbers)
        return made.o, made.selected.float()

    def whole(self, made):
        return [fd.unshard(x.contiguous(), dim=1 + i) for i, x in enumerate(made)]


class Place:
    def __init__(self, args, rank):
        self.cuda = torch.cuda.is_available()
        self.device = torch.device("cuda", rank) if self.cuda else torch.device("cpu")
        if self.cuda:
            torch.cuda.set_device(self.device)
        self.name = torch.cuda.get_device_name() if self.cuda else "CPU"

    def finish(self):
        if self.cuda:
            torch.cuda.synchronize()

    def time(self, call, group):
        """ms of the slowest rank of a group, or of this one."""
        self.finish()
        if group:
            dist.barrier()
        if self.cuda:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            end.synchronize()
            ms = begin.elapsed_time(end)
        else:
            begun = time.perf_counter()
            call()
            ms = 1e3 * (time.perf_counter() - begun)
        if not group:
            return ms
        worst = torch.tensor([ms], device=self.device)
        dist.all_reduce(worst, dist.ReduceOp.MAX)
        return worst.item()


def chosen(args, place):
    """{name: what makes the case}: a case's tensors live no longer than it is measured."""
    k = 4 if args.small else 1024
    made = {}
    for backward in (False, True):
        way = "backward" if backward else "forward"
        for thousands in (128, 32):
            made[f"ring_{way}_{thousands}k"] = functools.partial(
                Ring, thousands * k, 16, backward, place
            )
        made[f"kl_{way}"] = functools.partial(Divergence, 256 * k, 2, backward, place)
        made[f"delta_{way}"] = functools.partial(State, 1024 * k, 4, backward, place)
    made["decode"] = functools.partial(Decode, 1024 * k, place)
    made["decode_checked"] = functools.partial(Decode, 1024 * k, place, check=True)
    made["decode_graph"] = functools.partial(Decode, 1024 * k, place, graph=True)
    made["trace"] = functools.partial(Tracing, 2048 * k, 1, place)
    return {name: make for name, make in made.items() if re.search(args.filter, name)}


def apart(ours, theirs):
    return max(
        float((a.double() - b.double()).norm() / b.double().norm().clamp(min=1e-30))
        for a, b in zip(ours, theirs, strict=True)
    )


def median(args, place, call, group):
    first = min(place.time(call, group) for _ in range(2))
    rounds = max(3, min(args.rounds, int(2500 / max(first, 1e-3))))
    return statistics.median(place.time(call, group) for _ in range(rounds))


def rows(args, place, case):
    """A row for each peer, made on all ranks and told by the first."""
    rank, size = dist.get_rank(), dist.get_world_size()
    made = case.together()
    kernel = f"{size} ranks"
    ms = median(args, place, case.together, True)
    whole, off = case.whole(made), 0.0
    if rank == 0:
        off = apart(whole, case.alone())
        alone = median(args, place, case.alone, False)
    del whole
    place.finish()
    dist.barrier()
    found = [(ONE, alone if rank == 0 else 0.0, off)]
    for name, peer in case.peers().items():
        try:
            entered = peer.__enter__() if hasattr(peer, "__enter__") else None
            theirs = peer()
            off = apart([made[0]] if entered else made, [theirs[0]] if entered else theirs)
            if entered:  # its order of tokens is its own: sums are compared
                off = abs(float(made[0].float().norm() / theirs[0].float().norm()) - 1)
            found.append((name, median(args, place, peer, True), off))
            if entered:
                peer.__exit__(None, None, None)
        except Exception as why:  # noqa: BLE001: a peer's failure is told, and the rest goes on
            if rank == 0:
                print(f"{case.op}/{case.name}: {name}: {type(why).__name__}: {str(why)[:300]}", flush=True)
    out = []
    for name, peer_ms, off in found if rank == 0 else ():
        rate = case.work / ms * 1e3 * case.scale
        wrong = "" if off <= case.limit else "  WRONG"
        print(f"{case.op + '/' + case.name:45} {ms:9.3f} ms {rate:9.2f} {case.unit:8} {name:34} "
              f"{peer_ms:9.3f} {peer_ms / ms:6.3f}  {off:.1e}{wrong}", flush=True)  # fmt: skip
        row = {"op": case.op, "case": case.name, "kernel": kernel, "ms": f"{ms:.4f}"}
        row |= {"tflops_or_gbs": f"{rate:.3f}", "peer": name, "peer_ms": f"{peer_ms:.4f}"}
        if not wrong:
            out.append(row | {"ratio": f"{peer_ms / ms:.3f}"})
    return out


def spans_of(place, case):
    """(begin, end, name) of each kernel of this rank in one run, us from its begin."""
    from torch.profiler import ProfilerActivity, profile

    for _ in range(2):
        case.together()
    place.finish()
    dist.barrier()
    with profile(activities=[ProfilerActivity.CUDA]) as kept:
        case.together()
        place.finish()
    events = [e for e in kept.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    spans = sorted((e.time_range.start, e.time_range.end, e.name) for e in events)
    spans = [s for s in spans if s[1] > s[0] and not s[2].startswith("nccl:")]
    zero = spans[0][0]
    return [(a - zero, b - zero, name) for a, b, name in spans]


def hidden(spans):
    """us of exchange, and of those under other kernels."""
    exchange = [s for s in spans if "nccl" in s[2].lower()]
    rest = [s for s in spans if "nccl" not in s[2].lower()]
    total = under = 0.0
    for a, b, _ in exchange:
        total += b - a
        at = a
        for c, d, _ in rest:
            low, high = max(at, c), min(b, d)
            if high > low:
                under += high - low
                at = high
    return total, under


def timeline(path, place, case):
    """Writes the spans of the first rank, under a line that says what they are of."""
    spans = spans_of(place, case)
    if dist.get_rank():
        return
    of = f"{case.op}, {case.name}, first of {dist.get_world_size()} ranks, {place.name}"
    print(f"timeline of {of}: {told(spans)}", flush=True)
    lines = [f"{a:.1f}\t{b:.1f}\t{name[:80]}" for a, b, name in spans]
    path.write_text("\n".join([of, *lines]) + "\n")


def told(spans):
    total, under = hidden(spans)
    return (f"{under / max(total, 1e-9):.1%} of {total / 1e3:.2f} ms of exchange under computation, "
            f"{max(b for _, b, _ in spans) / 1e3:.1f} ms in all")  # fmt: skip


def lane(name):
    if "nccl" in name.lower():
        return 2
    return 1 if "at::" in name or "Memset" in name or "Memcpy" in name else 0


def draw(path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    of, *lines = path.read_text().splitlines()
    spans = [(float(a), float(b), name) for a, b, name in (line.split("\t") for line in lines)]
    figure, axes = plt.subplots(figsize=(9, 2.6), layout="constrained")
    for a, b, name in spans:
        color = ("#1b7f79", "#8a6fb0", "#c2703d")[lane(name)]
        axes.barh(lane(name), (b - a) / 1e3, left=a / 1e3, height=0.7, color=color)
    axes.set_yticks(range(3), ["fovea", "sums and casts", "exchange (NCCL)"])
    axes.invert_yaxis()
    axes.set_xlabel("ms")
    axes.set_title(f"{of}\n{told(spans)}", fontsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path.with_suffix(".png"), dpi=110, metadata={"Software": None})


def work(rank, args, store):
    size = args.ranks
    place = Place(args, rank)
    torch.set_num_threads(1)
    kind = {"device_id": place.device} if place.cuda else {}
    dist.init_process_group(
        "nccl" if place.cuda else "gloo", init_method=f"file://{store}", rank=rank, world_size=size,
        timeout=datetime.timedelta(minutes=5), **kind,
    )  # fmt: skip
    singles = [dist.new_group([r]) for r in range(size)]
    place.single = singles[rank]
    made = []
    for name, make in chosen(args, place).items():
        case = make()
        try:
            now = rows(args, place, case)
        except fovea.FoveaError as why:
            print(f"{name}: rank {rank}: {why}", flush=True)
            now = []
        made += now
        if args.timeline and name == "ring_backward_128k":
            timeline(args.timeline, place, case)
        del case
        if place.cuda:
            torch.cuda.empty_cache()
        if rank == 0 and now and not args.dry:
            keep(place, size, now)
    dist.barrier()
    dist.destroy_process_group()


def keep(place, size, rows):
    import bench

    backend = "cuda" if place.cuda else "host"
    device = f"{size} x {place.name}"
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%MZ")
    more = {"date": now, "device": device, "commit": os.environ.get("FOVEA_COMMIT") or bench.commit(),
            "driver": bench.driver(backend), "torch": torch.__version__}  # fmt: skip
    table.append(HERE / "results" / f"{table.slug(device)}.tsv", [row | more for row in rows])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    count = torch.cuda.device_count()
    parser.add_argument("--ranks", type=int, default=count or 2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--filter", default="", help="regular expression on a case's name")
    parser.add_argument("--timeline", type=pathlib.Path, help="where kernels and their times go")
    parser.add_argument("--draw", type=pathlib.Path, help="a timeline to draw")
    parser.add_argument("--small", action="store_true", help="a 256th of the tokens; appends nothing")
    parser.add_argument("--dry", action="store_true", help="append nothing to results/")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    args.dry |= args.small
    if args.draw:
        return draw(args.draw)
    if args.list:
        return print("\n".join(chosen(args, None)))
    if not count and not args.small:
        parser.error("no GPU: --small runs on CPUs")
    if count and args.ranks > count:
        parser.error(f"--ranks is {args.ranks}, wanted at most {count}, the GPUs here")
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(
            work, (args, os.path.join(folder, "store")), nprocs=args.ranks
        )  # fmt: skip


if __name__ == "__main__":
    main()
