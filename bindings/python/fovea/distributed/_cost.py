# SPDX-License-Identifier: Apache-2.0
"""cost: what a split of attention moves and computes, and how long a model of a machine takes."""

from __future__ import annotations

import math
from typing import NamedTuple

from .._errors import InvalidArgument

SPLITS = ("ring", "heads", "mesh", "decode", "state")
MOST_HEAD_PARTS = 8  # of the heads of a state; each costs its launches
MULTIPROCESSORS = 132  # of an H100 or H200: a part of the heads has a block for each


class Cost(NamedTuple):
    """Of one rank, the one with the most."""

    flops: float  # multiplications and additions, twice the products
    memory_bytes: float  # read from the device's memory, decode and state alone
    sent_bytes: float
    messages: int  # exchanges that wait for one another
    compute_seconds: float  # of a state, with the wait for the ranks before
    exchange_seconds: float
    exposed_seconds: float  # of the exchange, what no computation hides
    seconds: float
    speedup: float  # over one device, by the same model
    simulated: bool  # no measurement of this split with so many ranks stands behind it


def cost(split, ranks, tokens, *, heads=16, key_heads=None, width=128, value_width=None, batch=1,
         causal=True, backward=False, window_left=0, second=1, layers=1, element_bytes=2,
         device_flops=600e12, device_bytes=3.0e12, link_bytes=300e9, latency=10e-6):
    """A model of one attention layer times `layers`, for 1 to 1024 ranks.

    split         "ring", "heads", "mesh" (ring over ranks / second, heads over second), "decode"
                  (one new row over `tokens` keys), "state" (delta and gla; a pipeline where
                  batch and heads are many, else delta's scan)
    backward      the forward and the gradient
    device_flops, device_bytes   what a kernel reaches a second, not the data sheet's peak
    link_bytes    bytes a second that a rank sends while it receives as many
    latency       seconds of an exchange without bytes

    Attention hides what a hop sends under the hop before it; all-to-alls, gathers and scans are not
    hidden.  Bytes of attention's splits are those that the code sends.  Times are simulated: they
    are this model's, for any number of ranks."""
    g, e = key_heads or heads, value_width or width
    for name, x in (("ranks", ranks), ("tokens", tokens), ("heads", heads), ("key_heads", g),
                    ("width", width), ("value_width", e), ("batch", batch), ("second", second),
                    ("layers", layers)):  # fmt: skip
        if isinstance(x, bool) or not isinstance(x, int):
            raise TypeError(f"cost: {name} is {x!r}, wanted an integer")
        if x < 1:
            raise InvalidArgument(f"cost: {name} is {x}, wanted 1 or more")
    if split not in SPLITS:
        raise InvalidArgument(f"cost: split is {split!r}, wanted one of {', '.join(SPLITS)}")
    if ranks > 1024:
        raise InvalidArgument(f"cost: ranks is {ranks}, wanted at most 1024")
    if heads % g:
        raise InvalidArgument(f"cost: key_heads is {g}, wanted a divisor of {heads}, the heads")
    second = {"mesh": second, "heads": ranks}.get(split, 1)
    if ranks % second or heads % second:
        raise InvalidArgument(
            f"cost: {'ranks' if split == 'heads' else 'second'} is {second}, wanted a divisor of "
            f"{ranks} ranks and {heads} heads"
        )
    link = link_bytes, latency
    if split == "decode":
        made = _decode(ranks, tokens * batch, heads * batch, g, width + e, e, element_bytes,
                       device_flops, device_bytes, link)  # fmt: skip
    elif split == "state":
        made = _state(ranks, tokens * batch, heads, g, width, e, batch, backward, element_bytes,
                      device_flops, link)  # fmt: skip
    else:
        made = _attention(ranks, second, tokens, batch, heads, g, width, e, causal, backward,
                          window_left, element_bytes, device_flops, link)  # fmt: skip
    *counts, compute, exchange, exposed, alone = made
    total = compute + exposed
    counts = [n * layers for n in counts]
    times = [x * layers for x in (compute, exchange, exposed, total)]
    return Cost(*counts[:3], int(counts[3]), *times, alone / total, True)


def _decode(ranks, keys, rows, g, columns, e, size, flops, memory, link):
    work, read = 2 * keys / ranks * rows * columns, keys / ranks * g * columns * size
    sent = (ranks - 1) * rows * (e + 1) * 4
    time = max(work / flops, read / memory)
    alone = max(2 * keys * rows * columns / flops, keys * g * columns * size / memory)
    steps = math.ceil(math.log2(ranks))
    exchange = sent / link[0] + steps * link[1]
    return work, read, sent, steps, time, exchange, exchange, alone


def parts_of_heads(counts, ranks, most):
    """Parts of the heads, `most` at most, in which ranks of gla and delta are a pipeline: `counts`
    are the heads of its tensors.  None where all ranks at once take less time: n parts take
    (n + ranks - 1) / n of a walk, a scan takes two walks or three."""
    common = math.gcd(*counts)
    n = max(n for n in range(1, max(1, min(most, MOST_HEAD_PARTS)) + 1) if common % n == 0)
    return n if n >= ranks else None


def _state(ranks, tokens, heads, g, d, e, batch, backward, size, flops, link):
    """One walk is 6 d e operations a token and head, the gradient's 2.5 times as much.  Ranks that
    are no pipeline walk before it for psi, 4 d e, and past two ranks for phi, 4 d d."""
    walk, times = 6 * tokens * heads * d * e, 3.5 if backward else 1.0
    read = tokens / ranks * heads * 2 * (d + e) * size
    chains = batch * heads * -(-e // 64)
    parts = parts_of_heads((heads, g), ranks, chains // MULTIPROCESSORS)
    if parts and ranks > 1:
        passes = 2 if backward else 1
        work, sent = walk / ranks * times, passes * batch * heads * d * e * 4
        steps = passes * (ranks - 1)
        exchange = sent / link[0] + passes * parts * link[1]
        wait = work * (ranks - 1) / parts  # for the ranks before, or behind
        exposed = sent / parts / link[0] * (ranks - 1) + steps * link[1]
        times = walk * times / flops
        return work, read, sent, steps, (work + wait) / flops, exchange, exposed, times
    first = 0 if ranks == 1 else tokens * heads / ranks * 4 * d * e * times
    first += tokens * heads / ranks * 4 * d * d if ranks > 2 else 0
    steps = 0 if ranks == 1 else 1 + math.ceil(math.log2(max(ranks - 1, 1)))
    steps *= 2 if backward else 1
    sent = steps * batch * heads * d * (d + e) * 4
    exchange = sent / link[0] + steps * link[1]
    work = walk / ranks * times + first
    return work, read, sent, steps, work / flops, exchange, exchange, walk * times / flops


def _attention(ranks, second, tokens, batch, heads, g, d, e, causal, backward, window, size, flops,
               link):  # fmt: skip
    ring, times = ranks // second, 3.5 if backward else 1.0
    pairs = tokens * tokens * (0.5 if causal else 1.0)
    if window:
        pairs = min(pairs, tokens * window * (1.0 if causal else 2.0))
    whole = 2 * batch * heads * pairs * (d + e) * times
    work, shard = whole / ranks, batch * tokens / ranks
    # The ring: k and v of a hop; in the backward again, and their gradients back, in f32.
    columns = (d + e) * math.lcm(g, second) / second
    hops = ring - 1
    if window and hops:
        hops = min(hops, 1 + math.ceil(2 * window * ring / tokens), ring - 1)
    passes, each = (3, 2 * size + 4) if backward else (1, size)
    sent = hops * shard * second * columns * each
    compute = work / flops
    ring_time = sent / link[0] + hops * passes * link[1]
    under = compute * hops / (hops + 1) if hops else 0.0
    exposed = max(0.0, ring_time - under) + (passes * link[1] if hops else 0.0)
    # Heads: q, k, v there and o back; in the backward the same of their gradients.
    around = 0.0
    turns = 0
    if second > 1:
        around = shard * size * (heads * (d + e) + math.lcm(g, second) * (d + e))
        around *= (second - 1) / second * (2 if backward else 1)
        turns = 4 * (2 if backward else 1)
    turn = around / link[0] + turns * link[1]
    exchange = ring_time + turn
    read = shard * (heads + g) * (d + e) * size
    alone = whole / flops
    messages = hops * passes + turns
    return work, read, sent + around, messages, compute, exchange, exposed + turn, alone
