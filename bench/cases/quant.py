# SPDX-License-Identifier: Apache-2.0
"""Attention of 8 bits, and SageBwd's gradient."""

import dataclasses

import fovea
import fovea.experimental
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from .attention import Prefill
from .base import turned, unrecorded


@dataclasses.dataclass(frozen=True)
class Quant(Prefill):
    """FP8 forward over codes made beforehand, or with `quantising` from bf16 tensors in every call.
    `sage`: SageAttention2, q and k in i8 with scales of threads, less the mean of k.  `four`: the
    same in i4, q less the means of blocks.  `sage1`: SageAttention, scales of blocks, v in f16, or
    (`bf16_v`) as it is.  `sagebwd`: q, k, v and weights in i8 with scales of blocks of 64, k less
    its mean.  `page`: keys in pages of as many tokens, in any order, with one scale of v (and
    e4m3's k) a head.  The peer attends to these tensors in bf16, or (`product`) multiplies 8-bit
    matrices, the machine's limit: as many flops, nothing compared."""

    b: int
    h: int
    n: int
    d: int
    causal: bool = False
    quantising: bool = False
    product: bool = False
    sage: bool = False
    sage1: bool = False
    bf16_v: bool = False
    four: bool = False
    sagebwd: bool = False
    page: int = 0
    family = "quant"

    @property
    def limit(self):  # of the quantised specification, for normal numbers
        return 0 if self.product else 3e-1 if self.four else 7e-2

    @property
    def peer(self):
        return "torch._scaled_mm, equal work" if self.product else None

    def words(self):
        yield from super().words()
        kinds = {
            "sage1": self.sage1,
            "sage2": self.sage,
            "sage2_int4": self.four,
            "sagebwd": self.sagebwd,
        }
        yield next((name for name, chosen in kinds.items() if chosen), "e4m3")
        yield "bf16_v" if self.bf16_v else None
        yield f"page{self.page}" if self.page else None
        yield "quantising" if self.quantising else None
        yield "of_product" if self.product else None

    @property
    def bytes(self):
        return (6 if self.sage1 else 5) * self.b * self.n * self.h * self.d

    def setup(self, ctx, device, seed):
        normal = self.draw(device, seed)
        theirs = [normal(self.b, self.h, self.n, self.d) for _ in "qkv"]
        ours = turned(*theirs)
        o = torch.empty_like(ours[0])
        order = {"code_order": "v_perm16"}
        if self.page:  # a pool: one row of tokens
            ours = [ours[0], *(x.reshape(1, -1, self.h, self.d) for x in ours[1:])]
        columns = (ours[2].shape[1] + 127) // 128 * 128

        def sage():
            def integers(x, group, block, parts, **smooth):
                return fovea.quant_quantize(
                    ctx,
                    x,
                    code=torch.empty_like(x, dtype=torch.int8),
                    group=group,
                    block=block,
                    n=parts * -(-x.shape[1] // block),
                    **smooth,
                )

            q, q_scale = integers(ours[0], "thread_q", 16, 8)
            k, k_scale, mean = integers(
                ours[1], "thread_k", 128, 4, smooth="sequence", mean=True, means=1
            )
            v_t, v_scale = fovea.quant_quantize(
                ctx, ours[2], code_t=True, n=self.d, padded=columns, group="channel", **order
            )
            scales = {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale, "k_mean": mean}
            groups = {"q_group": "thread_q", "k_group": "thread_k", "v_group": "channel"}
            blocks = {"q_block": 16, "k_block": 128, "p_format": "e4m3_448"}
            return (q, k), {"v_t": v_t, "q_plain": ours[0], **scales, **groups, **blocks}

        def four():
            def packed(x, group, block, parts, **smooth):
                shape = (*x.shape[:-1], self.d // 2)
                return fovea.quant_quantize(
                    ctx,
                    x,
                    code=torch.empty(shape, dtype=torch.uint8, device=device),
                    code_format="i4",
                    group=group,
                    block=block,
                    n=parts * -(-x.shape[1] // block),
                    mean=True,
                    **smooth,
                )

            k, k_scale, k_mean = packed(ours[1], "thread_k", 128, 4, smooth="sequence", means=1)
            blocks = -(-self.n // 128)
            less = {"smooth": "block", "means": blocks, "k": ours[1], "k_mean": k_mean}
            q, q_scale, _, delta = packed(
                ours[0], "thread_q", 16, 8, delta=True, deltas=blocks, **less
            )
            _, more = sage()
            more |= {"q_scale": q_scale, "k_scale": k_scale, "k_mean": k_mean, "delta": delta}
            return (q, k), {"code_format": "i4", **more}

        def sagebwd():
            blocks = {"block": 64, "n": -(-self.n // 64)}
            to = [torch.empty_like(x, dtype=torch.int8) for x in ours[:2]]
            v_to = torch.empty(self.b, self.h, self.d, columns, dtype=torch.int8, device=device)
            q, q_scale = fovea.quant_quantize(ctx, ours[0], code=to[0], **blocks)
            k, k_scale, mean = fovea.quant_quantize(
                ctx, ours[1], code=to[1], smooth="sequence", mean=True, means=1, **blocks
            )
            v_t, v_scale = fovea.quant_quantize(ctx, ours[2], code_t=v_to, **blocks, **order)
            scales = {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale, "k_mean": mean}
            form = {"q_block": 64, "k_block": 64, "v_block": 64, "p_format": "i8"}
            return (q, k), {"v_t": v_t, "q_plain": ours[0], "accumulate": "f32", **scales, **form}

        def sage1():
            q, q_scale = fovea.quant_quantize(
                ctx,
                ours[0],
                code=torch.empty_like(ours[0], dtype=torch.int8),
                block=128,
                n=-(-self.n // 128),
            )
            k, k_scale, mean = fovea.quant_quantize(
                ctx,
                ours[1],
                code=torch.empty_like(ours[1], dtype=torch.int8),
                block=64,
                n=-(-self.n // 64),
                smooth="sequence",
                mean=True,
                means=1,
            )
            scales = {"q_scale": q_scale, "k_scale": k_scale, "k_mean": mean, "q_plain": ours[0]}
            form = {"q_block": 128, "k_block": 64, "p_format": "half", "accumulate": "half_64"}
            v = ours[2] if self.bf16_v else ours[2].half()
            return (q, k), {"v": v, "code_order": "plain", **scales, **form}

        def codes():
            if self.sage:
                return sage()
            if self.sage1:
                return sage1()
            if self.four:
                return four()
            if self.sagebwd:
                return sagebwd()
            (q, q_scale), (k, k_scale) = (
                fovea.quant_quantize(ctx, x, code=True, n=1) for x in ours[:2]
            )
            v_t, v_scale = fovea.quant_quantize(
                ctx, ours[2], code_t=True, n=1, padded=columns, **order
            )
            scales = {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale}
            return (q, k), {"v_t": v_t, **scales}

        if self.page:
            places = normal(columns // self.page, dtype=torch.float32).argsort()
            made = self.scattered(*codes(), places)
        else:
            made = codes()

        def forward():
            inputs, more = codes() if self.quantising else made
            fovea.quant_forward(ctx, *inputs, o=o, causal=self.causal, **{**order, **more})
            return [] if self.product else [o.transpose(1, 2)]

        peer = unrecorded(lambda: sdpa(*theirs, is_causal=self.causal))
        return forward, self.multiply(normal, device) if self.product else peer

    def scattered(self, inputs, more, places):
        """The codes of one row of tokens as pages of a pool: number i at places[i]."""
        q, k = inputs
        pool, order = len(places), places.argsort()

        def pages(x, axis, columns=0):
            parts = x.view(torch.uint8 if x.itemsize == 1 else x.dtype).unflatten(axis, (pool, -1))
            parts = parts.movedim(axis, 0).squeeze(1)[order]
            spare = max(0, columns - parts.shape[-1])
            return torch.nn.functional.pad(parts, (0, spare)).view(x.dtype)

        more = {name: x for name, x in more.items() if name not in ("q_plain", "k_mean")}
        columns = (self.page + 127) // 128 * 128
        more["v_t"] = pages(more["v_t"], 3, columns)
        for name in ("k_scale", "v_scale"):
            of_tokens = name == "k_scale" and self.sage
            more[name] = pages(more[name], 2) if of_tokens else more[name].expand(pool, -1, -1)
        more["page_table"] = places.reshape(self.b, -1).int()
        return (q, pages(k, 1)), more

    def multiply(self, normal, device):
        side = 8192
        rows = max(16, round(self.work / (2 * side * side) / 16) * 16)
        x, y = (normal(n, side, dtype=torch.float8_e4m3fn) for n in (rows, side))
        one = torch.ones((), device=device)

        def product():
            torch._scaled_mm(x, y.t(), one, one, out_dtype=torch.bfloat16)
            return []

        return product


@dataclasses.dataclass(frozen=True)
class Training(Prefill):
    """SageBwd beside our own bf16: the gradient alone, or with `both` the forward too."""

    b: int
    h: int
    n: int
    d: int
    causal: bool = False
    both: bool = False
    backward = True
    family = "x_quant"
    peer = "fovea bf16"
    limit = 0  # the peer does not round

    def words(self):
        yield from super().words()
        yield "sagebwd"
        yield "both" if self.both else None

    @property
    def products(self):
        return 2, 7 if self.both else 5

    @property
    def bytes(self):
        return 4 * self.b * self.n * self.h * self.d * self.itemsize

    def setup(self, ctx, device, seed):
        normal = self.draw(device, seed)
        *inputs, dout = turned(*(normal(self.b, self.h, self.n, self.d) for _ in range(4)))
        codes, mask = fovea.recipe("sagebwd"), {"causal": self.causal}

        def attend(call, gradient, **fields):
            saved = call()

            def run():
                gradient(ctx, *inputs, *(call() if self.both else saved), dout, **mask, **fields)
                return []

            return run

        return attend(
            lambda: codes(ctx, *inputs, lse=True, **mask),
            fovea.experimental.quant_backward,
            k_smooth=fovea.Smooth.SEQUENCE,
        ), attend(
            lambda: fovea.attention_forward(ctx, *inputs, lse=True, **mask),
            fovea.attention_backward,
        )


def host():
    yield from (Quant(1, 8, 1024, 64, page=page) for page in (0, 64))


def cuda():
    for b, n in ((4, 4096), (1, 16384)):
        yield from (Quant(b, 16, n, 128, causal) for causal in (False, True))
        yield from (Quant(b, 16, n, 128, quantising=x, product=True) for x in (False, True))
        yield from (Quant(b, 16, n, 128, causal, sage=True) for causal in (False, True))
        yield from (Quant(b, 16, n, 128, causal, four=True) for causal in (False, True))
        yield from (Quant(b, 16, n, 128, True, sage=x, page=128) for x in (False, True))
        yield from (Quant(b, 16, n, 128, True, page=page) for page in (64, 32, 16))
        for x in (False, True):
            yield Quant(b, 16, n, 128, quantising=x, product=True, sage=True)
    for h, d in ((32, 64), (16, 128)):
        yield from (Quant(1, h, 16384, d, causal, sagebwd=True) for causal in (False, True))
        yield from (Quant(1, h, 16384, d, causal, sage1=True) for causal in (False, True))
    yield from (Quant(1, 16, 16384, 128, x, sage1=True, bf16_v=True) for x in (False, True))
    for h, d in ((32, 64), (8, 256)):
        yield from (Quant(4, h, 4096, d, page=page) for page in (0, 64, 16))
    for h, d in ((32, 64), (16, 128)):
        yield from (Training(1, h, 16384, d, True, both) for both in (False, True))
    yield Training(1, 16, 16384, 128)
