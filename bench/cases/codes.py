# SPDX-License-Identifier: Apache-2.0
"""Quantising, beside a copy of as many bytes."""

import dataclasses

import fovea
import torch

from .base import Case, size


@dataclasses.dataclass(frozen=True)
class Codes(Case):
    """What SageAttention2 and FlashAttention-3 ask of q, k and v: x once for each pass over it, and
    the codes."""

    kind: str
    n: int
    h: int = 32
    d: int = 128
    b: int = 1
    dtype: str = "bf16"
    family = "quant"
    op = "quant_quantize"
    limit = 0
    peer = "torch copy, equal work"
    unit, scale = "GB/s", 1e-9

    # passes over x, bytes of a code, the call
    KINDS = {
        "sageq": (1, 1, {"group": "thread_q", "block": 16}),
        "sageq4": (1, 0.5, {"group": "thread_q", "block": 16, "smooth": "block"}),
        "sagek": (2, 1, {"group": "thread_k", "block": 128, "smooth": "sequence"}),
        "sagev": (2, 1, {"group": "channel", "code_order": "v_perm16"}),
        "e4m3": (1, 1, {"block": 128}),
    }

    def words(self):
        yield f"codes_{self.kind}_d{self.d}_n{size(self.n)}_h{self.h}"

    @property
    def work(self):
        passes, code, _ = self.KINDS[self.kind]
        return int((2 * passes + code) * self.b * self.n * self.h * self.d)

    bytes = work

    def setup(self, ctx, device, seed):
        b, n, h, d, fields = self.b, self.n, self.h, self.d, dict(self.KINDS[self.kind][2])
        x = self.draw(device, seed)(b, n, h, d)

        def empty(*shape, dtype=torch.float32):
            return torch.empty(shape, dtype=dtype, device=device)

        if self.kind == "sagev":
            fields |= {"code_t": empty(b, h, d, n, dtype=torch.float8_e4m3fn)}
        elif self.kind == "sageq4":
            fields |= {"code": empty(b, n, h, d // 2, dtype=torch.uint8), "code_format": "i4"}
        else:
            sage = self.kind.startswith("sage")
            dtype = torch.int8 if sage else torch.float8_e4m3fn
            fields |= {"code": empty(b, n, h, d, dtype=dtype)}
        scales = {"thread_q": n // 2, "thread_k": n // 32, "channel": d}
        fields |= {"scale": empty(b, h, scales.get(fields.get("group"), n // 128))}
        means = {"block": n // 128, "sequence": 1}.get(fields.get("smooth"))
        if means:
            fields |= {"mean": empty(b, h, means, d)}
        source, target = (empty(self.work // 2, dtype=torch.uint8) for _ in range(2))

        def own():
            fovea.quant_quantize(ctx, x, **fields)
            return []

        def copy():
            target.copy_(source)
            return []

        return own, copy


def host():
    return ()


def cuda():
    for kind in Codes.KINDS:
        yield Codes(kind, 16384)
