#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What kl_forward and kl_backward take of a GPU's memory beside inputs and outputs, by length.

    bench/kl_memory.py [--heads N] [--width N] [--lengths 4096 ...]

Own: the workspace query, the context's workspace after the calls, and what the device's free memory
lost by them.  Peer: eager PyTorch's peak by its allocator's counters, where it fits.  The last
row's divergence is compared with float64."""

import argparse
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "bindings/python")]

import torch  # noqa: E402

import fovea  # noqa: E402

MIB = 2.0**20
COLUMNS = (
    "MiB",
    "forward query",
    "backward query",
    "workspace",
    "device lost",
    "peer forward",
    "peer backward",
    "apart",
)


def last_row(q, k):
    """Log-probabilities of the last row of each head, which sees every key, in float64."""
    x = torch.einsum("bhd,bthd->bht", q[:, -1].double(), k.double())
    return (x * q.shape[3] ** -0.5).log_softmax(2)


def eager(q_t, k_t, q_s, k_s):
    hidden = torch.ones(q_t.shape[1], k_t.shape[1], dtype=torch.bool, device=q_t.device).triu(1)

    def log_probability(q, k):
        x = (q.transpose(1, 2) @ k.permute(0, 2, 3, 1)).float() * q.shape[3] ** -0.5
        return x.masked_fill_(hidden, -1e30).log_softmax(3)

    p, r = log_probability(q_t, k_t), log_probability(q_s, k_s)
    return torch.nn.functional.kl_div(r, p, reduction="none", log_target=True).sum(3)


def peer_peak(inputs, backward):
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    try:
        with torch.set_grad_enabled(backward):
            students = [x.detach().requires_grad_(backward) for x in inputs[2:]]
            result = eager(*inputs[:2], *students)
            if backward:
                torch.autograd.grad(result, students, torch.ones_like(result))
        torch.cuda.synchronize()
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return "out of memory"
    return f"{(torch.cuda.max_memory_allocated() - before) / MIB:.0f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument(
        "--lengths", type=int, nargs="*", default=[4096, 8192, 16384, 32768, 65536, 131072]
    )
    args = parser.parse_args()
    print("\t".join(COLUMNS))
    saved = dict.fromkeys(("kl", "lse_teacher", "lse_student"), True)
    for n in args.lengths:
        generator = torch.Generator("cuda").manual_seed(0)
        shape = (1, n, args.heads, args.width)
        inputs = [
            torch.randn(shape, generator=generator, device="cuda").to(torch.bfloat16)
            for _ in range(4)
        ]
        dkl = torch.ones(1, args.heads, n, device="cuda")
        grads = [torch.empty_like(x) for x in inputs[2:]]
        fields = {"dkl": dkl, "causal": True, "dq_teacher": False, "dk_teacher": False}
        fields |= {"dq_student": grads[0], "dk_student": grads[1]}
        with fovea.Context("cuda") as ctx:
            forward = fovea.kl_forward_workspace(ctx, *inputs, causal=True, **saved)
            stats = fovea.kl_forward(ctx, *inputs, causal=True, **saved)
            backward = fovea.kl_backward_workspace(ctx, *inputs, *stats, **fields)
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            free = torch.cuda.mem_get_info()[0]
            outputs = dict(zip(saved, stats, strict=True))
            fovea.kl_forward(ctx, *inputs, causal=True, **outputs)
            fovea.kl_backward(ctx, *inputs, *stats, **fields)
            ctx.synchronize()
            torch.cuda.synchronize()
            lost = free - torch.cuda.mem_get_info()[0]
            own = ctx.get("workspace_bytes")
        p, r = last_row(*inputs[:2]), last_row(*inputs[2:])
        want = (p.exp() * (p - r)).sum(2)
        apart = float((stats[0][:, :, -1].double() - want).abs().max())
        finite = all(bool(x.isfinite().all()) for x in (*stats, *grads))
        del p, r, stats, outputs, grads, fields, dkl
        peers = [peer_peak(inputs, x) if n <= 32768 else "-" for x in (False, True)]
        row = [str(n), *(f"{x / MIB:.1f}" for x in (forward, backward, own, lost)), *peers]
        row.append(f"{apart:.1e}{'' if finite else ' NOT FINITE'}")
        print("\t".join(row), flush=True)


if __name__ == "__main__":
    main()
