# SPDX-License-Identifier: Apache-2.0
"""decode: new rows over a cache that lies on several ranks."""

from __future__ import annotations

import torch

from .. import ops
from .._errors import InvalidArgument
from ..torch._arguments import flag, integers, number, scaling, single
from ..torch._place import place_of
from . import _peers


@_peers.eager
@torch.no_grad()
def decode(q, k_cache, v_cache, group=None, *, context_len, key_begin=None, page_table=None,
           cache_row=None, causal=True, scale=None, window_left=0, sink_keys=0, softcap=0.0,
           sink_logit=None, splits=0, return_lse=False, check=True):  # fmt: skip
    """Attention of new rows over a cache whose keys lie on several ranks, without gradients.

    q (b, s, h, d): the same on every rank.  k_cache, v_cache: this rank's keys, (rows, t, g, d), or
    paged (pool, page, g, d) with page_table (rows, pages).  Gives o (b, s, h, e) on every rank, the
    same bits, and with return_lse (o, lse), lse (b, h, s) f32.

    context_len   (b) int32, the same on every rank: keys of all ranks in use, the new rows' own
                  among them
    key_begin     position of this rank's first key; None: rank times the keys that a cache row
                  holds.  Keys of position key_begin + t and on are those of other ranks
    causal        row i sees keys up to i + context_len - s

    The parts (o, lse) of all ranks are exchanged in one all-gather of b s h (e + 1) f32 and merged
    in the order of the ranks.  The rest is as in fovea.torch.decode."""
    op = "decode"
    peers = _peers.Peers(op, group)
    state = {}

    def describe():
        words = _peers.tensors(op, {"q": 4, "k_cache": 4, "v_cache": 4, "sink_logit": 1}, q=q,
                               k_cache=k_cache, v_cache=v_cache, context_len=context_len,
                               sink_logit=sink_logit)  # fmt: skip
        words[1:3] = []  # ranks may have caches of other sizes
        if v_cache.shape[:3] != k_cache.shape[:3]:
            raise InvalidArgument(
                f"{op}: v_cache is {tuple(v_cache.shape)}, wanted {tuple(k_cache.shape[:3])} first "
                "as k_cache"
            )
        if context_len.shape != (q.shape[0],):
            raise InvalidArgument(
                f"{op}: context_len is {tuple(context_len.shape)}, wanted {(q.shape[0],)}"
            )
        held = k_cache.shape[1] * (1 if page_table is None else page_table.shape[1])
        begin = peers.rank * held if key_begin is None else key_begin
        state["held"], state["begin"] = held, _peers.count(op, "key_begin", begin)
        state["numbers"] = {
            "window_left": _peers.count(op, "window_left", window_left),
            "sink_keys": _peers.count(op, "sink_keys", sink_keys),
            "causal": int(flag(op, "causal", causal)), "scale": scaling(op, scale),
            "softcap": float(number(op, "softcap", softcap)),
            "splits": _peers.count(op, "splits", splits),
        }  # fmt: skip
        words.append(f"k_cache has heads and columns {tuple(k_cache.shape[2:])}")
        words.append(f"v_cache has columns {v_cache.shape[3]}")
        return words + [f"{name} is {value}" for name, value in state["numbers"].items()]

    peers.agree(check, describe)
    (b, s, h, _), e = q.shape, v_cache.shape[3]
    total = integers(op, "context_len", context_len)
    fields = {
        "context_len": total, "key_shift": state["begin"],
        "key_len": (total - state["begin"]).clamp(0, state["held"]),
        "page_table": integers(op, "page_table", page_table),
        "cache_row": integers(op, "cache_row", cache_row),
        "sink_logit": single(sink_logit) if peers.rank == 0 else None,
    }  # fmt: skip
    place = place_of(q.device)
    place.follow()
    # o and behind it lse: one exchange, and rows of o that tensor cores' kernels can store
    part = torch.empty(b * s * h * (e + 1), dtype=torch.float32, device=q.device)

    def rows_of(x):
        o, lse = x.split((b * s * h * e, b * s * h), -1)
        return o.unflatten(-1, (b, s, h, e)), lse.unflatten(-1, (b, h, s))

    o, lse = rows_of(part)
    ops.attention_forward(
        place.context, q, k_cache, v_cache, o=o, lse=lse, **fields, **state["numbers"]
    )
    parts = rows_of(peers.gather(part))
    o = torch.empty((b, s, h, e), dtype=q.dtype, device=q.device)
    lse = torch.empty((b, h, s), dtype=torch.float32, device=q.device)
    ops.merge_forward(place.context, *parts, o=o, lse=lse)
    return (o, lse) if return_lse else o
