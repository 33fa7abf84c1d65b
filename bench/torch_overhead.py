#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Host time of a call from PyTorch: what fovea.torch adds to the library's own call, beside torch's
scaled_dot_product_attention.  Tensors are tiny, so that on CUDA the time is that of enqueueing.

    bench/torch_overhead.py          # CPU, or CUDA where there is one
    bench/torch_overhead.py cpu

Prints a row for each way to call: microseconds, the median over 31 runs of 300 calls.  A run on CUDA
ends with a synchronization that is not counted."""

import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bindings/python"))
import torch  # noqa: E402

import fovea  # noqa: E402
import fovea.torch  # noqa: E402

RUNS, CALLS = 31, 300
SHAPE = (1, 2, 2, 64)  # (b, s, h, d)
sdpa = torch.nn.functional.scaled_dot_product_attention


def median(call, device):
    def wait():
        if device == "cuda":
            torch.cuda.synchronize()

    times = []
    for _ in range(RUNS):
        wait()
        begin = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        times.append((time.perf_counter_ns() - begin) / CALLS)
        wait()
    return statistics.median(times) / 1000


def rows(device):
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    q, k, v = (torch.randn(SHAPE, device=device, dtype=dtype) for _ in range(3))
    heads_first = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    ctx = fovea.torch.context(device if device == "cpu" else torch.device("cuda", q.get_device()))
    call = fovea.prepare(fovea.attention_forward, ctx, q, k, v)
    yield "the C call", median(lambda: ctx_run(call), device)
    yield "fovea.prepare", median(call, device)
    yield "fovea.attention_forward", median(
        lambda: fovea.attention_forward(ctx, q, k, v), device
    )
    yield "fovea.torch.attention", median(lambda: fovea.torch.attention(q, k, v), device)
    yield "fovea.torch.scaled_dot_product_attention", median(
        lambda: fovea.torch.scaled_dot_product_attention(*heads_first), device
    )
    yield "torch's", median(lambda: sdpa(*heads_first), device)
    key_len = torch.full((1,), 2, dtype=torch.int32, device=device)
    yield "fovea.torch.decode, key_len", median(
        lambda: fovea.torch.decode(q, k, v, key_len=key_len), device
    )
    for x in (q, k, v, *heads_first):
        x.requires_grad_()
    yield "recording: fovea.torch.attention", median(
        lambda: fovea.torch.attention(q, k, v), device
    )
    yield "recording: fovea.torch.scaled_dot_product_attention", median(
        lambda: fovea.torch.scaled_dot_product_attention(*heads_first), device
    )
    yield "recording: torch's", median(lambda: sdpa(*heads_first), device)
    for name, attend in (
        ("fovea.torch.scaled_dot_product_attention", fovea.torch.scaled_dot_product_attention),
        ("torch's", sdpa),
    ):
        dout = torch.ones_like(attend(*heads_first))
        yield f"forward and backward: {name}", median(
            lambda: torch.autograd.grad(attend(*heads_first), heads_first, dout), device
        )
    op = torch.ops.fovea.attention
    tensors = (*(x.detach() for x in (q, k, v)), *[None] * 9)
    numbers = (0, 0, 0, 0, 0, 0, 0.0, 0.0, False, False)
    yield "torch.ops.fovea.attention (compiled code)", median(
        lambda: op(*tensors, *numbers), device
    )


def ctx_run(call):
    call.op.run(call.ctx._handle, call.params)


def main(device="cuda" if torch.cuda.is_available() else "cpu"):
    torch.set_num_threads(1)
    place = torch.cuda.get_device_name() if device == "cuda" else "CPU, one thread"
    print(f"torch {torch.__version__}, {place}\n\n| call | us |\n| --- | --- |")
    for name, us in rows(device):
        print(f"| {name} | {us:.1f} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
