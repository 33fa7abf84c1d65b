# SPDX-License-Identifier: Apache-2.0
"""conv_attention, and the module of multi-token attention that stands on it."""

import math

import torch

from .._errors import InvalidArgument
from . import _table
from ._arguments import autocast, flag, integers, need, scaling, single


_OP = "conv_attention"


def conv_attention(q, k, v, weight, *, mix_before=None, mix_after=None, causal=False, scale=None,
                   query_len=None, key_len=None, query_start=None, key_start=None, query_max=0,
                   key_max=0, history=0, return_lse=False):  # fmt: skip
    """Multi-token attention: logits convolved over rows and keys before the softmax, with gradients
    to q, k, v, weight and the mixes.

    q (b, s, h, d), k (b, t, g, d), v (b, t, g, e): f32, f16 or bf16; g divides h.

    weight       (h, rows, columns) of q's dtype or f32, at most 16 x 31 taps: the last row is the
                 row itself, and its column (columns - 1) // 2 is the key itself
    mix_before, mix_after   (h, group_heads): head a takes mix[a, n] times head n of its group,
                 before or after the softmax (experimental, without tensor cores)
    history      so many first rows of each sequence feed the convolution only; o is without them
    query_len, key_len   (b): rows and keys in use
    query_start, key_start   (r + 1): packed sequences, as in varlen_attention

    Gives o (b, s - history, h, e), and with return_lse (o, lse).  lse has no gradient."""
    q, k, v = autocast(q, k, v)
    if query_start is not None and key_start is None and need(_OP, "k", k).dim() == 3:
        key_start, key_max = query_start, key_max or query_max
    numbers = (query_max, key_max, history, scaling(_OP, scale), flag(_OP, "causal", causal))
    lengths = (
        integers(_OP, "query_start", query_start), integers(_OP, "key_start", key_start),
        integers(_OP, "query_len", query_len), integers(_OP, "key_len", key_len),
    )
    wanted = (True, bool(return_lse))
    if mix_before is None and mix_after is None:
        o, lse = _table.conv_attention((q, k, v, weight, *lengths), numbers, wanted)
    else:
        mixes = single(mix_before), single(mix_after)
        o, lse = _table.multi_token((q, k, v, weight, *mixes, *lengths), numbers, wanted)
    return (o, lse.detach()) if return_lse else o


class MultiTokenAttention(torch.nn.Module):
    """The attention layer of Multi-Token Attention (2504.00927): projections, a convolution of the
    logits for each head, mixed heads, and a norm of each head scaled by depth.

    It begins as ordinary attention: the taps and mixes start as the identity.

    embed_dim, num_heads, num_kv_heads, head_dim   as in any attention layer
    kernel_rows, kernel_columns   taps over rows and keys, at most 16 x 31
    group_heads   heads that are mixed with each other, a divisor of num_heads; 0: none are
    mix           "before" or "after" the softmax, or "both"
    norm          a root-mean-square norm of each head, with a gain
    layer         depth of the layer from 0: the norm is scaled by 1 - lambda, with lambda = 0.8 -
                  0.6 exp(-0.3 layer); None: not scaled"""

    def __init__(self, embed_dim, num_heads, *, num_kv_heads=None, head_dim=None, kernel_rows=6,
                 kernel_columns=11, group_heads=0, mix="after", norm=True, layer=None, causal=True,
                 bias=False, eps=1e-5, device=None, dtype=None):  # fmt: skip
        super().__init__()
        kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if head_dim is None:
            if embed_dim % num_heads:
                raise InvalidArgument(
                    f"MultiTokenAttention: embed_dim is {embed_dim}, wanted a multiple of num_heads "
                    f"({num_heads}), or head_dim"
                )
            head_dim = embed_dim // num_heads
        if num_heads % kv_heads:
            raise InvalidArgument(
                f"MultiTokenAttention: num_kv_heads is {kv_heads}, wanted a divisor of {num_heads}"
            )
        if group_heads and num_heads % group_heads:
            raise InvalidArgument(
                f"MultiTokenAttention: group_heads is {group_heads}, wanted a divisor of {num_heads}"
            )
        if mix not in ("before", "after", "both"):
            raise InvalidArgument(
                f"MultiTokenAttention: mix is {mix!r}, wanted one of before, after, both"
            )
        kind = {"device": device, "dtype": dtype}
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, kv_heads, head_dim
        self.group_heads, self.causal, self.layer, self.eps = group_heads, causal, layer, eps
        self.q_proj = torch.nn.Linear(embed_dim, num_heads * head_dim, bias, **kind)
        self.k_proj = torch.nn.Linear(embed_dim, kv_heads * head_dim, bias, **kind)
        self.v_proj = torch.nn.Linear(embed_dim, kv_heads * head_dim, bias, **kind)
        self.out_proj = torch.nn.Linear(num_heads * head_dim, embed_dim, bias, **kind)
        self.weight = _parameter((num_heads, kernel_rows, kernel_columns), kind)
        for name in ("before", "after"):
            mixes = group_heads and mix in (name, "both")
            made = _parameter((num_heads, group_heads), kind) if mixes else None
            self.register_parameter(f"mix_{name}", made)
        gain = _parameter((num_heads, head_dim), kind) if norm else None
        self.register_parameter("gain", gain)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self):
        """Projections as torch.nn.Linear has them; taps and mixes the identity, gains 1."""
        for projection in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            projection.reset_parameters()
        self.weight.zero_()
        self.weight[:, -1, (self.weight.shape[2] - 1) // 2] = 1
        for mix in (self.mix_before, self.mix_after):
            if mix is not None:
                own = torch.arange(self.num_heads, device=mix.device) % self.group_heads
                mix.copy_(torch.nn.functional.one_hot(own, self.group_heads))
        if self.gain is not None:
            self.gain.fill_(1)

    def forward(self, x, *, query_len=None, rotate=None):
        """x (b, s, embed_dim) -> the same shape.

        query_len (b): tokens in use, of rows and keys alike.  rotate: (q, k) -> (q, k), for rotary
        positions; both are (b, s, heads, head_dim)."""
        q = self.q_proj(x).unflatten(-1, (self.num_heads, self.head_dim))
        k = self.k_proj(x).unflatten(-1, (self.num_kv_heads, self.head_dim))
        v = self.v_proj(x).unflatten(-1, (self.num_kv_heads, self.head_dim))
        if rotate is not None:
            q, k = rotate(q, k)
        o = conv_attention(
            q, k, v, _fitting(self.weight, q), mix_before=self.mix_before, mix_after=self.mix_after,
            causal=self.causal, query_len=query_len, key_len=query_len,
        )  # fmt: skip
        if self.gain is not None:
            query_len = integers("MultiTokenAttention", "query_len", query_len)
            depth = 0.0 if self.layer is None else 0.2 + 0.6 * math.exp(-0.3 * self.layer)
            numbers = (depth, float(self.eps))
            (o,) = _table.group_norm((o, _fitting(self.gain, o), query_len), numbers)
        return self.out_proj(o.flatten(2))

    def extra_repr(self):
        return (
            f"heads={self.num_heads}, kv_heads={self.num_kv_heads}, "
            f"kernel={tuple(self.weight.shape[1:])}, group_heads={self.group_heads}, "
            f"causal={self.causal}"
        )


def _parameter(shape, kind):
    return torch.nn.Parameter(torch.empty(shape, **kind))


def _fitting(parameter, x):
    """A parameter in x's dtype or f32, which the library reads."""
    return parameter if parameter.dtype in (x.dtype, torch.float32) else parameter.float()
