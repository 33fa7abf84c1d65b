# SPDX-License-Identifier: Apache-2.0
"""scaled_dot_product_attention: PyTorch's signature and mask rules, computed by fovea."""

import torch

from .._errors import InvalidArgument, Unsupported
from . import _table
from ._arguments import autocast, bits, flag, need, scaling

_OP = "scaled_dot_product_attention"


def scaled_dot_product_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    """torch.nn.functional.scaled_dot_product_attention by fovea: the same arguments, (.., h, s, d).

    What torch computes and this refuses: dropout_p > 0, float64, scale <= 0, nested tensors.
    is_causal is top-left aligned as torch's: row i sees keys up to i.  A row that sees no key gives
    0, as torch's kernels do.  The result has the memory of (b, s, h, d)."""
    if dropout_p:
        raise Unsupported(f"{_OP}: dropout_p is {dropout_p}, wanted 0: fovea has no dropout")
    need(_OP, "query", query), need(_OP, "key", key), need(_OP, "value", value)
    is_causal, enable_gqa = flag(_OP, "is_causal", is_causal), flag(_OP, "enable_gqa", enable_gqa)
    if attn_mask is not None:
        need(_OP, "attn_mask", attn_mask)
    if is_causal and attn_mask is not None:
        raise InvalidArgument(f"{_OP}: attn_mask is given, wanted None with is_causal")
    query, key, value, attn_mask = autocast(query, key, value, attn_mask)
    lead = None
    if query.dim() < 2:
        raise InvalidArgument(f"{_OP}: query has {query.dim()} dimensions {tuple(query.shape)}, "
                              "wanted at least 2")
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4:
        lead = query.shape[:-2]
        query, key, value, attn_mask = _four(query, key, value, attn_mask)
    key, value = _heads(query, key, value, enable_gqa)
    rows, keys = query.shape[2], key.shape[2]
    right = 0
    if is_causal:
        if rows < keys:  # no row sees the keys from here on
            key, value, keys = key[:, :, :rows], value[:, :, :rows], rows
        right = 1 + rows - keys
    mask = bias = None
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            mask = bits(_OP, attn_mask, keys)
        elif attn_mask.dtype not in (query.dtype, torch.float32):
            raise InvalidArgument(
                f"{_OP}: attn_mask has dtype {attn_mask.dtype}, wanted torch.bool, torch.float32 or "
                f"{query.dtype} as query"
            )
        else:
            bias = attn_mask
    numbers = (0, 0, 0, right, 0, 0, scaling(_OP, scale), 0.0, False, True)
    tensors = (query, key, value, mask, bias, None, None, None, None, None, None, None)
    o = _table.attention(tensors, numbers, (True, False))[0]
    return o if lead is None else o.reshape(*lead, rows, o.shape[-1])


def _four(query, key, value, attn_mask):
    """The tensors with exactly two dimensions before tokens and columns: of three the first is
    heads, and all before the heads are one batch."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.dim() != query.dim() or x.dim() < 2:
            raise InvalidArgument(
                f"{_OP}: {name} has {x.dim()} dimensions {tuple(x.shape)}, wanted "
                f"{max(query.dim(), 2)} as query"
            )
    rank = query.dim()
    if rank < 4:
        return *[x[(None,) * (4 - rank)] for x in (query, key, value)], attn_mask
    batch = torch.broadcast_shapes(*[x.shape[:-3] for x in (query, key, value)])
    if attn_mask is not None and attn_mask.dim() > 3:
        attn_mask = attn_mask.expand(*batch, *attn_mask.shape[-3:]).flatten(0, len(batch) - 1)
    wide = [x.expand(*batch, *x.shape[-3:]).flatten(0, len(batch) - 1) for x in (query, key, value)]
    return *wide, attn_mask


def _heads(query, key, value, enable_gqa):
    """Key and value with heads that fovea's grouping reads: equally many, and a divisor of query's.
    Without enable_gqa one head serves all, by broadcasting; so does one batch entry."""
    b, h = query.shape[:2]
    for name, x in (("key", key), ("value", value)):
        heads = x.shape[1]
        if heads != h and heads != 1 and not (enable_gqa and heads and h % heads == 0):
            wanted = f"a divisor of {h}" if enable_gqa else f"{h} as query, or enable_gqa=True"
            raise InvalidArgument(f"{_OP}: {name} has {heads} heads, wanted {wanted}")
    if key.shape[0] != b or value.shape[0] != b:
        key, value = (x.expand(b, -1, -1, -1) if x.shape[0] == 1 else x for x in (key, value))
    if key.shape[1] != value.shape[1]:
        key, value = (x.repeat_interleave(h // x.shape[1], 1) for x in (key, value))
    return key, value
