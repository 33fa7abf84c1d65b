#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""call_overhead.c from Python: one line `language<tab>p50_ns` for each way to call."""

import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bindings/python"))
import fovea  # noqa: E402

SAMPLES, CALLS = 2000, 64


def p50(call, inputs):
    samples = []
    for _ in range(SAMPLES):
        begin = time.perf_counter_ns()
        for i in range(CALLS):
            call(inputs[i & 1])
        samples.append((time.perf_counter_ns() - begin) / CALLS)
    return round(statistics.median(samples))


def report(language, ctx, make):
    xs = [make((0, s, 2, 64)) for s in (3, 4)]
    print(
        f"{language}\t{p50(lambda x: fovea.attention_forward(ctx, x, x, x, o=x), xs)}", flush=True
    )
    call = fovea.prepare(fovea.attention_forward, ctx, xs[0], xs[0], xs[0], o=xs[0])
    print(f"{language}, prepared\t{p50(lambda x: call(), xs)}", flush=True)


def main(backend="host"):
    with fovea.Context(backend) as ctx:
        if backend == "host":
            import numpy

            report("python, numpy", ctx, lambda shape: numpy.zeros(shape, numpy.float32))
        try:
            import torch
        except ImportError:
            return
        device = "cpu" if backend == "host" else "cuda"
        report("python, torch", ctx, lambda shape: torch.zeros(shape, device=device))


if __name__ == "__main__":
    main(*sys.argv[1:])
