# SPDX-License-Identifier: Apache-2.0
"""Convolutional and multi-token attention."""

import dataclasses
import itertools

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from .attention import Attention
from .base import Case, gradient, pairs, size, turned, unrecorded


def mixed(x, mix):
    """(b, h, s, t) with the heads of each group mixed."""
    if mix is None:
        return x
    group = mix.shape[1]
    weight = mix.unflatten(0, (-1, group)).to(x.dtype)
    return torch.einsum("xan,bxnst->bxast", weight, x.unflatten(1, (-1, group))).flatten(1, 2)


def convolved(q, k, v, weight, causal, before=None, after=None):
    """Convolutional attention with every matrix whole, (b, h, s, d) tensors."""
    h, rows, columns = weight.shape
    s, t = q.shape[2], k.shape[2]
    left = (columns - 1) // 2
    x = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    hidden = torch.ones(s, t, dtype=torch.bool, device=q.device).triu(t - s + 1)
    if causal:
        x = x.masked_fill(hidden, 0)
    x = torch.nn.functional.pad(x, (left, columns - 1 - left, rows - 1, 0))
    x = torch.nn.functional.conv2d(x, weight[:, None].to(x.dtype), groups=h)
    x = mixed(x, before)
    if causal:
        x = x.masked_fill(hidden, -torch.inf)
    return mixed(torch.softmax(x, -1), after) @ v


@dataclasses.dataclass(frozen=True)
class ConvAttention(Case):
    """Forward, or with `backward` the gradient alone; with `step` the last row against the cache,
    the rows above it as history.  The peer is eager PyTorch, its logits and conv2d whole."""

    h: int
    n: int
    d: int
    rows: int
    columns: int
    dtype: str
    causal: bool = True
    backward: bool = False
    step: bool = False
    b: int = 1
    family = "conv_attention"
    peer = "torch eager"

    def words(self):
        kind = "decode" if self.step else "backward" if self.backward else "forward"
        yield from (f"conv_{kind}_{self.rows}x{self.columns}", f"d{self.d}")
        yield None if self.step else self.mask
        yield f"n{size(self.n)}"
        yield None if self.b == 1 else f"b{self.b}"
        yield self.unusual_dtype

    @property
    def work(self):
        seen = pairs(1 if self.step else self.n, self.n, self.causal)
        taps = (3 if self.backward else 1) * self.rows * self.columns
        return 2 * seen * self.b * self.h * (self.products[self.backward] * self.d + taps)

    @property
    def limit(self):
        # The peer rounds its logits to the dtype, before and after the convolution.
        return {"f32": 4e-5, "f16": 1e-2, "bf16": 6e-2}[self.dtype]

    @property
    def bytes(self):
        return 4 * self.b * self.n * self.h * self.d * self.itemsize

    @property
    def history(self):
        return self.rows - 1 if self.step else 0

    def weight(self, normal):
        taps = normal(self.h, self.rows, self.columns, dtype=torch.float32)
        return taps / (self.rows * self.columns) ** 0.5

    def inputs(self, normal):
        """q, k, v and, of a backward, dout, as torch lays them."""
        rows = [self.rows if self.step else self.n, self.n, self.n] + [self.n] * self.backward
        return [normal(self.b, self.h, n, self.d) for n in rows]

    def mixes(self, normal, device):
        """The matrices that mix heads, by the names of their fields."""
        return {}

    def setup(self, ctx, device, seed):
        normal = self.draw(device, seed)
        inputs = self.inputs(normal)
        theirs, dout = [*inputs[:3], self.weight(normal)], inputs[3:]
        mixes = self.mixes(normal, device)
        fields = {"causal": self.causal, **{name: x.detach() for name, x in mixes.items()}}
        if self.step:
            fields["history"] = self.history
        also = {f"d{name}": True for name in mixes}
        ours = [*turned(*theirs[:3]), theirs[3].detach()]
        own = self.own(ctx, ours, *turned(*dout), also=also, **fields)
        call = lambda: convolved(*theirs, self.causal, *mixes.values())[:, :, self.history :]
        if not self.backward:
            return own, unrecorded(call)
        return own, gradient(call, [*theirs, *mixes.values()], *dout)


@dataclasses.dataclass(frozen=True)
class ConvOfDense(ConvAttention):
    """ConvAttention beside our dense kernels of the same shape: what the convolution costs."""

    g: int = 0
    limit = 0  # the peer computes something else
    peer = "fovea dense"
    beside = "of_dense"

    def words(self):
        yield from super().words()
        yield f"h{self.h}_g{self.g}" if self.g else None
        yield self.beside

    @property
    def bytes(self):
        rows = 1 if self.step else self.n
        return 2 * self.b * (rows * self.h + self.n * (self.g or self.h)) * self.d * self.itemsize

    def setup(self, ctx, device, seed):
        normal, g = self.draw(device, seed), self.g or self.h
        rows = self.rows if self.step else self.n
        shapes = (rows, self.h), (self.n, g), (self.n, g), (rows, self.h)
        q, k, v, dout = (normal(self.b, n, heads, self.d) for n, heads in shapes)
        fields = {"compared": 0, "causal": self.causal}
        dense = self.own(ctx, (q[:, self.history :], k, v), dout, family="attention", **fields)
        if self.step:
            fields["history"] = self.history
        return self.own(ctx, (q, k, v, self.weight(normal)), dout, **fields), dense


class ConvOfCudnn(ConvOfDense):
    """The same beside cuDNN's dense attention."""

    peer = "torch.sdpa.cudnn"
    beside = "of_cudnn"

    def setup(self, ctx, device, seed):
        ours, _ = super().setup(ctx, device, seed)
        dense = Attention(self.b, self.h, self.n, self.d, self.dtype, self.causal, self.backward)
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            _, theirs = dense.setup(ctx, device, seed)

        def peer():
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                theirs()
            return []

        return ours, peer


@dataclasses.dataclass(frozen=True)
class MultiToken(ConvAttention):
    """ConvAttention with heads mixed before and after the softmax."""

    group: int = 2
    family = "x_multi_token"
    memory = True
    saved = slice(1, None)

    def words(self):
        kind, *words = super().words()
        return kind.replace("conv_", f"multi_token_c{self.group}_"), *words

    def mixes(self, normal, device):
        identity = torch.eye(self.group, device=device).repeat(self.h // self.group, 1)
        return {
            name: identity + normal(self.h, self.group, dtype=torch.float32) / 4
            for name in ("mix_before", "mix_after")
        }


def host():
    for backward in (False, True):
        yield ConvAttention(8, 1024, 128, 6, 11, "f32", backward=backward)
        yield ConvAttention(8, 1024, 64, 3, 3, "f32", backward=backward)
        yield ConvAttention(8, 1024, 64, 7, 7, "f32", False, backward)
        yield MultiToken(8, 1024, 128, 6, 11, "f32", backward=backward)
    yield ConvAttention(8, 1024, 128, 6, 11, "bf16")
    yield ConvAttention(8, 4096, 128, 6, 11, "f32", step=True, b=4)


def cuda():
    both = (False, True)
    kernels = (128, 6, 11), (64, 7, 7)
    for backward in both:
        for n in (1024, 4096):
            for d, rows, columns in kernels:
                yield ConvAttention(16, n, d, rows, columns, "bf16", backward=backward)
            yield MultiToken(16, n, 128, 6, 11, "bf16", backward=backward)
    for kernel, causal in itertools.product(kernels, both):
        for n in (1024, 4096, 16384):
            yield ConvOfDense(16, n, *kernel, "bf16", causal)
        yield ConvOfDense(16, 4096, *kernel, "bf16", causal, backward=True)
    for n, causal, backward in itertools.product((4096, 16384), both, both):
        yield ConvOfCudnn(16, n, 128, 6, 11, "bf16", causal, backward)
    for b, n in itertools.product((1, 16), (8192, 32768)):
        yield ConvOfDense(32, n, 128, 6, 11, "bf16", step=True, b=b, g=8)
