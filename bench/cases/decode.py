# SPDX-License-Identifier: Apache-2.0
"""One row a sequence against a cache."""

import dataclasses

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from .base import Case, size, turned, unrecorded


@dataclasses.dataclass(frozen=True)
class Decode(Case):
    """One query row a sequence against a cache; page 0 means a contiguous cache, `lengths` and pages
    that fovea is told how many keys each sequence has.  torch gets the contiguous cache in either
    case, the group folded into its query rows, which suits it best, but for cuDNN, which folds by
    itself.  `of_contiguous`: the peer is ours, over contiguous keys with lengths."""

    b: int
    h: int
    g: int
    t: int
    d: int
    dtype: str
    page: int = 0
    lengths: bool = False
    of_contiguous: bool = False
    unit, scale = "GB/s", 1e-9

    @property
    def peer(self):
        return "fovea contiguous" if self.of_contiguous else None

    def words(self):
        usual = (self.h, self.g, self.d) == (32, 8, 128)
        yield f"decode_b{self.b}_n{size(self.t)}"
        yield f"page{self.page}" if self.page else None
        yield "lengths" if self.lengths else None
        yield None if usual else f"h{self.h}_g{self.g}_d{self.d}"
        yield self.unusual_dtype
        yield "of_contiguous" if self.of_contiguous else None

    @property
    def work(self):
        return (2 * self.t * self.g + 2 * self.h) * self.b * self.d * self.itemsize

    bytes = work

    def setup(self, ctx, device, seed):
        normal = self.draw(device, seed)
        q = normal(self.b, self.h, 1, self.d)
        k, v = (normal(self.b, self.g, self.t, self.d) for _ in "kv")
        ours, key_len = turned(q, k, v), torch.full((self.b,), self.t, device=device).int()
        contiguous = self.own(ctx, ours, key_len=key_len)
        fields = {"key_len": key_len} if self.lengths or self.page else {}
        if self.page:
            order = normal(self.b * self.t // self.page, dtype=torch.float32).argsort()
            pages = (x.reshape(-1, self.page, self.g, self.d)[order] for x in ours[1:])
            ours = [ours[0], *pages]
            fields["page_table"] = torch.argsort(order).reshape(self.b, -1).int()
        fold = torch.backends.cuda.flash_sdp_enabled()
        rows = q.view(self.b, self.g, self.h // self.g, self.d) if fold else q
        peer = unrecorded(lambda: sdpa(rows, k, v, enable_gqa=not fold).view_as(q))
        return self.own(ctx, ours, **fields), contiguous if self.of_contiguous else peer


@dataclasses.dataclass(frozen=True)
class Codes(Decode):
    """The same over a cache of codes with a scale for each token and head, beside our own cache of
    `dtype`.  Its rate is that of the bytes that it reads."""

    codes: str = "e4m3"
    limit = 0
    peer = "fovea, cache of dtype"

    def words(self):
        yield from super().words()
        yield self.codes

    @property
    def work(self):
        keys = 2 * self.t * self.g * (self.d + 4)
        return (keys + 2 * self.h * self.d * self.itemsize) * self.b

    bytes = work

    def setup(self, ctx, device, seed):
        own, _ = super().setup(ctx, device, seed)
        q, k, v = own.inputs[1:4]
        kinds = {"e4m3": (torch.float8_e4m3fn, 448.0), "i8": (torch.int8, 127.0)}
        kind, largest = kinds[self.codes]

        def coded(x):
            scale = x.abs().amax(-1, keepdim=True).float() / largest
            values = x.float() / scale
            return (values if kind.is_floating_point else values.round()).to(kind), scale

        (k8, k_scale), (v8, v_scale) = coded(k), coded(v)
        fields = {**own.fields, "k_scale": k_scale, "v_scale": v_scale}
        return self.own(ctx, (q, k8, v8), compared=0, **fields), own


@dataclasses.dataclass(frozen=True)
class Latent(Case):
    """Absorbed MLA: a row of h heads a sequence against one latent a token, 576 wide, whose first
    512 columns are the values.  torch gets the contiguous cache and two batched products."""

    h: int
    b: int
    t: int
    page: int = 0
    peer = "torch, two products"
    width, values, head = 576, 512, 192

    def words(self):
        yield f"mla_decode_h{self.h}_b{self.b}_n{size(self.t)}"
        yield f"page{self.page}" if self.page else None

    # Up to 64 heads the bytes bound it, more heads the products.
    @property
    def unit(self):
        return "GB/s" if self.h <= 64 else "TFLOP/s"

    @property
    def scale(self):
        return 1e-9 if self.h <= 64 else 1e-12

    @property
    def bytes(self):
        return (self.t * self.width + self.h * (self.width + self.values)) * self.b * self.itemsize

    @property
    def work(self):
        products = 2 * self.b * self.h * self.t * (self.width + self.values)
        return self.bytes if self.h <= 64 else products

    def setup(self, ctx, device, seed):
        normal = self.draw(device, seed)
        q, k = normal(self.b, 1, self.h, self.width), normal(self.b, self.t, 1, self.width)
        scale, fields = self.head**-0.5, {}
        ours = k
        if self.page:
            order = normal(self.b * self.t // self.page, dtype=torch.float32).argsort()
            ours = k.reshape(-1, self.page, 1, self.width)[order]
            fields["page_table"] = torch.argsort(order).reshape(self.b, -1).int()
            fields["key_len"] = torch.full((self.b,), self.t, device=device).int()
        rows, keys = q[:, 0], k[:, :, 0]

        def products():
            weights = torch.softmax(rows @ keys.mT * scale, -1)
            return (weights @ keys[..., : self.values])[:, :, None]

        inputs = q, ours, ours[..., : self.values]
        return self.own(ctx, inputs, scale=scale, **fields), unrecorded(products)


class LatentCodes(Latent):
    """The same over FP8-MLA's records of 656 bytes: 512 codes of e4m3, four scales, 64 rotated columns
    in bf16.  Beside it our own cache in bf16."""

    limit = 0
    peer = "fovea, cache of bf16"
    record = 656

    def words(self):
        yield from super().words()
        yield "fp8"

    @property
    def bytes(self):
        queries = self.h * (self.width + self.values) * self.itemsize
        return (self.t * self.record + queries) * self.b

    def setup(self, ctx, device, seed):
        own, _ = super().setup(ctx, device, seed)
        q, k = own.inputs[1:3]
        parts = k[..., : self.values].unflatten(-1, (4, -1)).float()
        scale = parts.abs().amax(-1, keepdim=True) / 448
        record = k.new_empty(*k.shape[:3], self.record, dtype=torch.uint8)
        codes, scales, turned = record.split([self.values, 16, 128], -1)
        codes, scales = codes.view(torch.float8_e4m3fn), scales.view(torch.float32)
        codes.copy_((parts / scale).flatten(-2)), scales.copy_(scale[..., 0])
        turned = turned.view(k.dtype).copy_(k[..., self.values :])
        inputs = q[..., self.values :].contiguous(), turned, codes
        q_value = q[..., : self.values].contiguous()
        fields = {**own.fields, "q_value": q_value, "v_scale": scales}
        return self.own(ctx, inputs, compared=0, **fields), own


MFA = (64, 8192, 0), (64, 8192, 64), (8, 32768, 0), (1, 131072, 0)


def host():
    for page in (0, 16):
        yield Decode(4, 32, 8, 4096, 128, "f32", page)
        yield Decode(1, 32, 8, 4096, 128, "f32", page)
        yield Decode(1, 32, 8, 32768, 128, "f32", page)
    yield Decode(4, 8, 8, 4096, 64, "f32")
    yield Decode(4, 8, 1, 4096, 128, "f32")
    yield Decode(4, 32, 8, 4001, 128, "f32")


def cuda():
    for b, t in ((1, 8192), (1, 131072), (16, 8192), (64, 8192), (16, 32768)):
        yield from (Decode(b, 32, 8, t, 128, "bf16", page) for page in (0, 16))
        yield Decode(b, 32, 8, t, 128, "bf16", lengths=True)
        yield Decode(b, 32, 8, t, 128, "bf16", 16, of_contiguous=True)
    yield from (Decode(32, 8, 1, 8192, 128, "bf16", page) for page in (0, 16))
    # MFA: 64 heads of 256 on one key head.
    yield from (Decode(b, 64, 1, t, 256, "bf16", page) for b, t, page in MFA)
    for h in (8, 16, 32, 64, 128):
        yield from (Latent(h, 128, 8192, page) for page in (0, 64, 1))
    yield from (Latent(h, 1, 131072) for h in (16, 128))
    for h in (16, 128):
        for b, t in ((1, 8192), (8, 8192), (128, 1024), (128, 8192)):
            yield from (LatentCodes(h, b, t, page) for page in (0, 64))
    for b, t in ((1, 8192), (16, 8192), (64, 8192), (16, 32768)):
        for codes in ("e4m3", "i8"):
            yield from (Codes(b, 32, 8, t, 128, "bf16", page, codes=codes) for page in (0, 16))
