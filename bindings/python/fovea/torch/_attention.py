# SPDX-License-Identifier: Apache-2.0
"""attention, varlen_attention, decode and trace."""

from typing import NamedTuple, Optional

import torch

from .._errors import InvalidArgument
from . import _table
from ._arguments import autocast, bits, flag, integers, need, scaling, single

_WITH_LSE, _ALONE = (True, True), (True, False)


def attention(q, k, v, *, causal=False, scale=None, window_left=0, window_right=0, sink_keys=0,
              local_chunk=0, softcap=0.0, mask=None, bias=None, alibi=None, sink_logit=None,
              query_len=None, key_len=None, key_first=None, return_lse=False):  # fmt: skip
    """Softmax attention of q over k and v, with gradients.

    q (b, s, h, d), k (b, t, g, d), v (b, t, g, e): f32, f16 or bf16; g divides h.  Gives o (b, s,
    h, e), and with return_lse (o, lse), lse (b, h, s) f32, the natural log of each row's sum.

    causal        bottom-right aligned: row i sees keys up to i + t - s
    scale         > 0; None: 1 / sqrt(d)
    window_left   keys seen to the left, the row's own position counted; 0: all
    window_right  keys seen to the right, likewise; 0: all, 1: none after itself, as with causal
    sink_keys     keys below this position stay visible through window_left
    local_chunk   rows see keys of their own chunk of so many positions; 0: off
    softcap       scores become softcap * tanh(score / softcap); 0: off
    mask          bool, True where a row sees a key, (b, h, s, t) or what broadcasts to it; or the
                  same as bits in uint8 (..., ceil(t / 8))
    bias          added to scores, (b, h, s, t) or what broadcasts to it
    alibi         (b, h) or (h): slope times distance is subtracted from scores
    sink_logit    (h): a learned term of the softmax's denominator
    query_len, key_len, key_first   (b): rows and keys in use, keys skipped at the left

    q, k, v, bias, alibi, sink_logit get gradients, through o and lse.  A row that sees no key gives
    o = 0 and no gradient.  Rows past query_len give o = 0, lse = -inf.  There is no second
    derivative."""
    if torch.is_tensor(q):
        q, k, v, bias = autocast(q, k, v, bias)
    if mask is not None:
        mask = bits("attention", mask, need("attention", "k", k).shape[1])
    if query_len is not None or key_len is not None or key_first is not None:
        query_len = integers("attention", "query_len", query_len)
        key_len = integers("attention", "key_len", key_len)
        key_first = integers("attention", "key_first", key_first)
    numbers = (
        0, 0, window_left, window_right, sink_keys, local_chunk, scaling("attention", scale),
        softcap, flag("attention", "causal", causal), False,
    )  # fmt: skip
    tensors = (
        q, k, v, mask, bias, single(alibi), single(sink_logit), None, None, query_len, key_len,
        key_first,
    )  # fmt: skip
    o, lse = _table.attention(tensors, numbers, _WITH_LSE if return_lse else _ALONE)
    return (o, lse) if return_lse else o


def varlen_attention(q, k, v, query_start, key_start=None, *, query_max, key_max=None, causal=False,
                     scale=None, window_left=0, window_right=0, softcap=0.0, alibi=None,
                     sink_logit=None, return_lse=False):  # fmt: skip
    """attention over packed sequences: q (tokens, h, d), k (keys, g, d), v (keys, g, e).

    query_start   (r + 1): first row of each sequence, ascending from 0; the last entry is their end
    key_start     (r + 1): the same of keys; None: that of the rows, or k (r, t, g, d) is padded
    query_max     rows of the longest sequence; key_max its keys, None: as query_max (padded: t)

    alibi is (r, h) or (h).  Gives o (tokens, h, e) and lse (h, tokens).  Rows of no sequence, and
    those past query_max, give o = 0 and lse = -inf.  The rest is attention's."""
    if torch.is_tensor(q):
        if q.dim() != 3:
            raise InvalidArgument(
                f"varlen_attention: q has {q.dim()} dimensions {tuple(q.shape)}, wanted 3: (tokens, "
                "h, d)"
            )
        q, k, v = autocast(q, k, v)
    if key_start is None and need("varlen_attention", "k", k).dim() == 3:
        key_start, key_max = query_start, query_max if key_max is None else key_max
    numbers = (
        query_max, key_max or 0, window_left, window_right, 0, 0,
        scaling("varlen_attention", scale), softcap, flag("varlen_attention", "causal", causal), False,
    )  # fmt: skip
    tensors = (
        q, k, v, None, None, single(alibi), single(sink_logit),
        integers("varlen_attention", "query_start", query_start),
        integers("varlen_attention", "key_start", key_start), None, None, None,
    )  # fmt: skip
    o, lse = _table.attention(tensors, numbers, _WITH_LSE if return_lse else _ALONE)
    return (o, lse) if return_lse else o


def decode(q, k_cache, v_cache, *, page_table=None, key_len=None, cache_row=None, causal=True,
           scale=None, window_left=0, window_right=0, sink_keys=0, local_chunk=0, softcap=0.0,
           alibi=None, sink_logit=None, query_len=None, key_first=None, query_start=None,
           query_max=0, key_max=0, cos=None, sin=None, rope_begin=0, rope_interleaved=False,
           splits=0, return_lse=False):  # fmt: skip
    """attention of new rows over a cache, without gradients.

    q (b, s, h, d); k_cache and v_cache paged (pool, page, g, d) with page_table (rows, pages), or
    (rows, t, g, d).  With query_start q is packed, (tokens, h, d).

    key_len       (b): keys in use, the new rows' own among them; absent: all
    cache_row     (b): row of page_table, or of the caches, that a sequence reads; absent: its own
    causal        row i sees keys up to i + key_len - s
    cos, sin      (positions, half) f32: keys are stored unrotated and turned as they are read;
                  rope_begin is the first rotated column, rope_interleaved pairs neighbours
    splits        parts that the keys of a row are cut into; 0: chosen from shapes

    Gives o, and with return_lse lse (b, h, s) too.  Autocast leaves caches as they are."""
    numbers = (
        query_max, key_max, window_left, window_right, sink_keys, local_chunk,
        scaling("decode", scale), softcap, flag("decode", "causal", causal), rope_begin,
        flag("decode", "rope_interleaved", rope_interleaved), splits,
    )  # fmt: skip
    tensors = (
        q, k_cache, v_cache, single(alibi), single(sink_logit),
        integers("decode", "query_start", query_start),
        integers("decode", "query_len", query_len),
        integers("decode", "key_len", key_len),
        integers("decode", "key_first", key_first),
        integers("decode", "page_table", page_table),
        integers("decode", "cache_row", cache_row), single(cos), single(sin),
    )  # fmt: skip
    o, lse = _table.decode(tensors, numbers, _WITH_LSE if return_lse else _ALONE)
    return (o, lse) if return_lse else o


class Trace(NamedTuple):
    """What trace gives; n row blocks of block_rows rows."""

    selected: torch.Tensor  # (b, h, n, keep) i32: key blocks, -1 empty
    score: torch.Tensor  # (b, h, n, keep) f32: their scores, -inf empty
    o: torch.Tensor  # (b, s, h, e): attention over the selected blocks
    lse: Optional[torch.Tensor]  # (b, h, s) f32, with return_lse
    lse_dense: Optional[torch.Tensor]  # (b, h, s) f32, with return_dense: over all keys
    mass: Optional[torch.Tensor]  # (b, h, n, keep) f32, with return_mass: probability of each block


def trace(q, k, v, *, keep, block_rows=64, block_keys=64, causal=False, scale=None, exact=False,
          keep_row=None, block_mask=None, key_len=None, page_table=None, cache_row=None,
          return_lse=False, return_dense=False, return_mass=False):  # fmt: skip
    """The `keep` key blocks that matter most to each block of rows, and attention over them, as a
    Trace.  Without gradients.

    q (b, s, h, d), k (b, t, g, d), v (b, t, g, e), or caches as in decode.
    scale         > 0, and scores are times scale; None: 1 / sqrt(d) in o, and scores without it
    exact         scores are chains of fused multiply-adds, the same on every backend
    keep_row      (n): blocks kept for each row block, at most keep
    block_mask    uint8 (b, h, n, bytes): a bit for each key block, 1 where the row block may see it
    key_len       (b): keys in use"""
    numbers = (
        keep, scaling("trace", scale), block_rows, block_keys, flag("trace", "exact", exact),
        flag("trace", "causal", causal),
    )  # fmt: skip
    tensors = (
        q, k, v, integers("trace", "keep_row", keep_row), block_mask,
        integers("trace", "key_len", key_len), integers("trace", "page_table", page_table),
        integers("trace", "cache_row", cache_row),
    )  # fmt: skip
    wanted = (True, True, True, bool(return_lse), bool(return_dense), bool(return_mass))
    return Trace(*_table.trace(tensors, numbers, wanted))
