#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What trace_forward is held to on a CUDA device.

    bench/trace_checks.py decisions   scores and decisions of exact = 0 against float64
    bench/trace_checks.py bits        one hash, however the trace is called

Prints tab-separated rows; exits 1 where a promise is broken."""

import argparse
import hashlib
import itertools
import sys

import torch
import trace_peer
from tracing import BLOCK, FIELDS, KEEP, D, context, fovea, normal, records, row


def exact_scores(q, k, causal):
    """(h, n) of every row block with every key block, in float64; (s, h, d) tensors."""
    s, h, d = q.shape
    q, k = (x.transpose(0, 1).double() for x in (q, k))
    out = []
    for begin in range(0, s, 1024):
        x = q[:, begin : begin + 1024] @ k.transpose(1, 2)
        if causal:
            last = torch.arange(begin, begin + x.shape[1], device="cuda")[:, None]
            x.masked_fill_(torch.arange(s, device="cuda") > last, -torch.inf)
        out.append(x.view(h, -1, BLOCK, s // BLOCK, BLOCK).amax((2, 4)))
    return torch.cat(out, 1)


class Replay(trace_peer.Peer):
    """The definition over scores of all blocks that are given; counts what it decides."""

    def over(self, table, exact, bound, q, k):
        self.tables, self.counts = (table, exact, bound), [0, 0, 0]
        return self.select(q, k)[0]

    def score(self, q, k, block):
        table, exact, bound = self.tables
        at = block.clamp(min=0)
        own = table.gather(-1, at).masked_fill(block < 0, -torch.inf)
        # Representatives of a list, pair by pair; all others keep their order by the error alone.
        true = exact.gather(-1, at).masked_fill(block < 0, -torch.inf)
        ours = own[..., :, None] > own[..., None, :]
        theirs = true[..., :, None] > true[..., None, :]
        near = (true[..., :, None] - true[..., None, :]).abs() < bound
        there = (block >= 0)[..., :, None] & (block >= 0)[..., None, :]
        apart = (ours != theirs) & there
        self.counts[0] += int((block >= 0).sum())
        self.counts[1] += int((near & there).sum() - (block >= 0).sum()) // 2
        self.counts[2] += int((apart & ~near).sum())
        return own


def decisions():
    """Keeping every block tells exact = 0's score of each.  What it selects must be the definition
    over these, and each must be nearer to float64's than half the bound: then no decision differs
    between scores that are further apart than the bound.  A decision: a new half that is ranked."""
    row(
        "dtype", "d", "keep", "mask", "decisions", "near", "against", "slots apart", "error / bound"
    )
    total = wrong = 0
    cells = (
        (torch.bfloat16, 128, 32, 16), (torch.float16, 64, 24, 16),
        (torch.bfloat16, 128, 16, 16), (torch.float16, 256, 16, 8),
    )  # fmt: skip
    n = 16 << 10
    with context() as ctx:
        for (dtype, d, keep, h), causal in itertools.product(cells, (False, True)):
            q, k = (normal(1, n, h, d, dtype=dtype) for _ in "qk")
            fields = {"block_rows": BLOCK, "block_keys": BLOCK, "causal": causal}
            mine = fovea.trace_forward(ctx, q, k, selected=True, score=True, keep=keep, **fields)
            every = fovea.trace_forward(ctx, q, k, selected=True, score=True, keep=256, **fields)
            at, score = (x[0] for x in every)
            table = torch.full(at.shape, -torch.inf, device="cuda")
            head, own, slot = (at >= 0).nonzero(as_tuple=True)
            table[head, own, at[head, own, slot].long()] = score[head, own, slot]
            exact = exact_scores(q[0], k[0], causal)
            bound = 2.0**-20 * d * float(q.abs().max()) * float(k.abs().max())
            seen = table > -torch.inf
            error = float((table.double() - exact)[seen].abs().max()) / bound
            heads = [x[0].transpose(0, 1) for x in (q, k)]
            replay = Replay(keep, BLOCK, causal)
            want = replay.over(table, exact, bound, *heads)
            apart = int((want != mine[0][0]).sum())
            count, near, against = replay.counts
            total, wrong = total + count, wrong + against + apart + (error > 0.5)
            name = str(dtype).split(".")[1]
            row(name, d, keep, "causal" if causal else "full", count, near, against, apart, error)
    row("all", "", "", "", total, "", wrong, "", "")
    if wrong or total < 1_000_000:
        sys.exit(1)


def bits():
    """What a call makes, hashed, whatever else the call is asked for and however it is cut."""
    b, n, h = 2, 8 << 10, 4
    most = b * h * n // BLOCK * KEEP
    hashes = {}

    def note(what, *tensors):
        torch.cuda.synchronize()
        digest = hashlib.sha256(b"".join(x.cpu().numpy().tobytes() for x in tensors)).hexdigest()
        hashes.setdefault(what.split(",")[0], {}).setdefault(digest, []).append(what)

    q, k, v = (normal(b, n, h, D).contiguous() for _ in "qkv")
    common = {**FIELDS, "causal": True}

    def edges_of(ctx, q, k, v, cap, **more):
        words, edge = records(cap)
        out = fovea.trace_forward(ctx, q, k, v=v, edge_kind="mass", **edge, **common, **more)
        torch.cuda.synchronize()
        return out, words[: int(edge["edge_count"])]

    def whole(ctx, what):
        out, words = edges_of(ctx, q, k, v, most, selected=True, o=True)
        note("selected, " + what, out[0])
        note("o, " + what, out[1].view(torch.int16))
        note("edges, " + what, words)

    with context() as ctx:
        for i in range(100):
            whole(ctx, f"run {i}")
        note("selected, alone", fovea.trace_forward(ctx, q, k, selected=True, **common))
        _, words = edges_of(ctx, q, k, None, most)
        note("edges, alone", words)
        _, words = edges_of(ctx, q, k, None, most + 1000)
        note("edges, a longer list", words)
        words, edge = records(most // 3)
        fovea.trace_forward(ctx, q, k, edge_kind="mass", **edge, **common)
        torch.cuda.synchronize()
        longest = edges_of(ctx, q, k, None, most)[1]
        note("first third of the edges, a list that is full", words)
        note("first third of the edges, of the whole", longest[: most // 3])
        fields = {**common, "selected": True, "o": True}
        room = ctx.empty((fovea.trace_forward_workspace(ctx, q, k, v=v, **fields),), "u8")
        torch.as_tensor(room, device="cuda").fill_(0xFF)
        ctx.set_workspace(room)
        out = fovea.trace_forward(ctx, q, k, v=v, selected=True, o=True, **common)
        note("selected, poisoned workspace of the caller", out[0])
        note("o, poisoned workspace of the caller", out[1].view(torch.int16))
        ctx.set_workspace(None)
        parts, rows = [], []
        for i in range(b):
            for j in range(h):
                one = [x[i : i + 1, :, j : j + 1] for x in (q, k, v)]
                out, words = edges_of(ctx, *one, most, selected=True, o=True)
                words[:, 1] += i * h + j
                parts.append(out[:2]), rows.append(words)
        note("selected, a head a call", torch.cat([x[0] for x in parts]).view(b, h, -1, KEEP))
        o = torch.stack([x[1][0, :, 0] for x in parts]).view(b, h, n, D).transpose(1, 2)
        note("o, a head a call", o.contiguous().view(torch.int16))
        note("edges, a head a call", torch.cat(rows))
        chain, end = records(most)[0], torch.zeros(1, dtype=torch.int64, device="cuda")
        for i in range(b):
            one = [x[i : i + 1] for x in (q, k)]
            fovea.trace_forward(
                ctx, *one, edge=chain[:, :4], edge_weight=chain.view(torch.float32)[:, 4],
                edge_kind="mass", edge_count=end, edge_offset=end, **common,
            )  # fmt: skip
            torch.cuda.synchronize()
            chain[int(end) - int(end) // (i + 1) : int(end), 1] += i * h
        note("edges, a chain of calls", chain[: int(end)])
        inner = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
        out = fovea.trace_forward(ctx, *inner[:2], v=inner[2], selected=True, o=True, **common)
        note("selected, heads outermost", out[0])
        note("o, heads outermost", out[1].contiguous().view(torch.int16))
        pages = torch.randperm(b * n // BLOCK, device="cuda")
        table = pages.view(b, -1).int()
        pools = []
        for x in (k, v):
            pool = torch.empty(b * n // BLOCK, BLOCK, h, D, device="cuda", dtype=x.dtype)
            pool[pages] = x.reshape(-1, BLOCK, h, D)
            pools.append(pool)
        out = fovea.trace_forward(
            ctx, q, pools[0], v=pools[1], page_table=table, selected=True, o=True, **common
        )
        note("selected, shuffled pages", out[0])
        note("o, shuffled pages", out[1].view(torch.int16))
    streams = [torch.cuda.Stream() for _ in range(2)]
    both = [fovea.Context("cuda", stream=x.cuda_stream) for x in streams]
    torch.cuda.synchronize()
    out = []
    for ctx, stream in zip(both, streams):
        with torch.cuda.stream(stream):
            out.append(fovea.trace_forward(ctx, q, k, v=v, selected=True, o=True, **common))
    torch.cuda.synchronize()
    for x in out:
        note("selected, one of two streams at once", x[0])
        note("o, one of two streams at once", x[1].view(torch.int16))
    for ctx in both:
        ctx.close()
    row("what", "hashes", "ways", "first hash")
    for what, each in hashes.items():
        row(what, len(each), sum(len(x) for x in each.values()), next(iter(each))[:16])
        if len(each) > 1:
            for digest, ways in each.items():
                row("", digest[:16], len(ways), "; ".join(ways[:3]))
    if any(len(each) > 1 for each in hashes.values()):
        sys.exit(1)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = {"decisions": decisions, "bits": bits}
    parser.add_argument("what", choices=what)
    torch.manual_seed(0)
    with torch.no_grad():
        what[parser.parse_args().what]()


if __name__ == "__main__":
    main()
