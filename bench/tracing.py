#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What trace_forward takes of a CUDA device.

    bench/tracing.py bytes       device memory read and written, by Nsight Compute, beside the bound
    bench/tracing.py memory      peak device memory of a layer of 8 heads, to 1M tokens
    bench/tracing.py split       selection, attention and edges, beside PyTorch, Triton and dense
    bench/tracing.py overlap     layers with edges streamed into host memory, beside none

Prints tab-separated rows; exits 1 where memory is more than a consumer card has."""

import argparse
import csv
import itertools
import pathlib
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "bindings/python")]

import fovea  # noqa: E402
import torch  # noqa: E402
import trace_peer  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

SIZES = [8 << 10, 32 << 10, 128 << 10, 512 << 10, 1 << 20]
D, KEEP, BLOCK = 128, 32, 64
FIELDS = {"keep": KEEP, "block_rows": BLOCK, "block_keys": BLOCK}


def row(*cells):
    print("\t".join(f"{x:.4g}" if isinstance(x, float) else str(x) for x in cells), flush=True)


def normal(*shape, dtype=torch.bfloat16):
    return torch.randn(shape, device="cuda", dtype=torch.float32).to(dtype)


def inputs(h, n):
    return [normal(1, n, h, D) for _ in "qkv"]


def records(count):
    """Outputs of `count` records of 20 bytes."""
    words = torch.zeros(count, 5, dtype=torch.int32, device="cuda")
    end = torch.zeros(1, dtype=torch.int64, device="cuda")
    return words, {
        "edge": words[:, :4],
        "edge_weight": words.view(torch.float32)[:, 4],
        "edge_count": end,
    }


def context():
    return fovea.Context("cuda", stream=torch.cuda.current_stream().cuda_stream)


def milliseconds(run, rounds=7):
    run()
    times = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def heads_of(n):
    return 4 if n <= 128 << 10 else 1


def calls():
    with context() as ctx:
        for n in SIZES:
            q, k, v = inputs(heads_of(n), n)
            fovea.trace_forward(ctx, q, k, v=v, selected=True, o=True, **FIELDS)
            torch.cuda.synchronize()
            del q, k, v


def bytes_moved():
    """Bound: Q once and the kept key blocks once a row block, as the paper counts; what the cache
    holds is read less often, and a value is read as often as a key."""
    metrics = "dram__bytes_read.sum,dram__bytes_write.sum,lts__t_sectors_op_read.sum"
    command = ["ncu", "--clock-control", "none", "--csv", "--print-units", "base", "-k"]
    command += ["regex:fovea", "--kernel-name-base", "demangled", "--metrics", metrics]
    ran = subprocess.run(
        [*command, sys.executable, __file__, "calls"], capture_output=True, text=True
    )
    if ran.returncode:
        sys.exit(f"ncu failed:\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    found = {}
    for line in csv.DictReader(x for x in ran.stdout.splitlines() if x.startswith('"')):
        kernel = found.setdefault(int(line["ID"]), {})
        kernel[line["Metric Name"]] = float(line["Metric Value"].replace(",", ""))
    row("tokens", "heads", "stage", "read MB", "written MB", "L2 read MB", "bound MB", "times")
    kernels = list(found.values())
    per = len(kernels) // len(SIZES)
    for i, n in enumerate(SIZES):
        heads, mega = heads_of(n), 1e-6
        bound = (n * D + n // BLOCK * KEEP * BLOCK * D) * 2 * heads * mega
        total = 0
        for stage, kernel in zip(("selection", "attention"), kernels[i * per :]):
            read, written, sectors = (kernel[x] for x in metrics.split(","))
            total += read + written
            moved = (read + written) * mega
            row(
                n,
                heads,
                stage,
                read * mega,
                written * mega,
                sectors * 32 * mega,
                bound,
                moved / bound,
            )
        row(n, heads, "both", "", "", "", bound, total * mega / bound)


def memory():
    """All of a call: q k v o, selected, masses, records and the workspace."""
    row(
        "tokens", "heads", "MiB of all", "MiB of q k v o", "MiB workspace", "bytes a token and head"
    )
    h = 8
    context().close()
    for n in SIZES:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
        with context() as ctx:
            q, k, v = (torch.empty(1, n, h, D, device="cuda", dtype=torch.bfloat16) for _ in "qkv")
            for x in (q, k, v):
                x.normal_()
            _, edge = records(h * n // BLOCK * KEEP)
            fields = {**FIELDS, "edge_kind": "mass", **edge, "selected": True, "o": True}
            room = fovea.trace_forward_workspace(ctx, q, k, v=v, **fields)
            kept = fovea.trace_forward(ctx, q, k, v=v, **fields)
            torch.cuda.synchronize()
            taken = free - torch.cuda.mem_get_info()[0]
            row(n, h, taken / 2**20, 4 * q.nbytes / 2**20, room / 2**20, taken / n / h)
            del q, k, v, kept, edge, fields, _
    if taken > 16 << 30:
        sys.exit(1)


def split():
    """Times, and the slots in which the two selections differ (normal numbers: near ties may)."""
    row("tokens", "heads", "mask", "who", "selection ms", "attention ms", "edges ms", "slots apart")
    for n, causal in itertools.product(SIZES, (False, True)):
        h = min(32, (1 << 20) // n)
        q, k, v = inputs(h, n)
        heads = [x[0].transpose(0, 1).contiguous() for x in (q, k, v)]
        fields = {**FIELDS, "causal": causal}
        _, edge = records(h * n // BLOCK * KEEP)
        with context() as ctx:
            ours = [
                milliseconds(lambda more=more: fovea.trace_forward(ctx, q, k, **fields, **more))
                for more in (
                    {"selected": True},
                    {"selected": True, "v": v, "o": True},
                    {"selected": True, "v": v, "o": True, **edge},
                )
            ]
            mine = fovea.trace_forward(ctx, q, k, selected=True, **fields)
            mine = (mine[0] if isinstance(mine, tuple) else mine)[0]
        row(
            n,
            h,
            "causal" if causal else "full",
            "fovea",
            ours[0],
            ours[1] - ours[0],
            ours[2] - ours[1],
            0,
        )
        for loops in ("triton", "torch"):
            peer = trace_peer.Peer(KEEP, BLOCK, causal, loops)
            selected, score = peer.select(*heads[:2])
            times = [
                milliseconds(lambda: peer.select(*heads[:2]), 3),
                milliseconds(lambda: peer.attend(*heads, selected), 3),
                milliseconds(lambda: trace_peer.edges(selected, score), 3),
            ]
            apart = int((selected != mine).sum())
            row(n, h, "causal" if causal else "full", loops, *times, f"{apart} of {mine.numel()}")
        dense = [x[None] for x in heads]
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            ms = milliseconds(lambda: scaled_dot_product_attention(*dense, is_causal=causal), 3)
        row(n, h, "causal" if causal else "full", "dense cuDNN", "", ms, "", "")


def overlap():
    """Wall time of 8 layers of 64k tokens.  What a sink takes and the copy it makes are known; one
    after the other they would add up."""
    layers, n, h = 8, 64 << 10, 32
    q, k, v = inputs(h, n)
    fields = {**FIELDS, "causal": True, "o": True}
    most = h * n // BLOCK * KEEP
    row("edges to", "ms", "ms a layer more than none", "if one after the other")

    def timed(run):
        run()
        times = []
        for _ in range(3):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            run()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - begin) * 1e3)
        return statistics.median(times)

    def sleep(ms):
        return lambda _: time.sleep(ms * 1e-3)

    with context() as ctx:

        def plain(**more):
            for _ in range(layers):
                fovea.trace_forward(ctx, q, k, v=v, **fields, **more)

        _, edge = records(most)

        def copied():
            for _ in range(layers):
                fovea.trace_forward(ctx, q, k, v=v, **fields, **edge)
                edge["edge"].untyped_storage().cpu()

        base = timed(plain)
        row("nowhere", base, 0.0, base)
        device = timed(lambda: plain(**edge))
        row("device memory", device, (device - base) / layers, device)
        serial = timed(copied)
        row("device memory, then copied by the caller", serial, (serial - base) / layers, serial)

        for what, sink, cost in (
            ("a session whose sink does nothing", lambda _: None, 0),
            ("a session whose sink takes 5 ms", sleep(5), 5),
            ("a session whose sink takes 10 ms", sleep(10), 10),
            ("a session whose sink copies", bytearray().extend, None),
        ):

            def traced(sink=sink, what=what):
                own = bytearray().extend if "copies" in what else sink
                with fovea.TraceSession(ctx, **fields, buffers=2).begin(own) as session:
                    for _ in range(layers):
                        session.trace(q, k, v=v)

            ms = timed(traced)
            if cost == 0:
                idle = ms
            after = idle + layers * cost if cost is not None else ""
            row(what, ms, (ms - base) / layers, after)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = {
        "bytes": bytes_moved,
        "memory": memory,
        "split": split,
        "overlap": overlap,
        "calls": calls,
    }
    parser.add_argument("what", choices=what, metavar="|".join(list(what)[:-1]))
    torch.manual_seed(0)
    with torch.no_grad():
        what[parser.parse_args().what]()


if __name__ == "__main__":
    main()
