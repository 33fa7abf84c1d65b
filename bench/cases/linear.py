# SPDX-License-Identifier: Apache-2.0
"""Linear attention's companions: the short causal convolution beside conv1d and silu of PyTorch."""

import dataclasses

import fovea
from torch.nn import functional

from .base import Case, gradient, size, unrecorded


def convolved(x, weight):
    """silu of the grouped convolution of (b, s, f), zeros before the first token."""
    taps = weight.shape[1]
    channels = functional.pad(x.transpose(1, 2), (taps - 1, 0))
    z = functional.conv1d(channels, weight[:, None], groups=weight.shape[0])
    return functional.silu(z).transpose(1, 2)


@dataclasses.dataclass(frozen=True)
class Conv1d(Case):
    """Forward, or with `backward` the gradient alone.  Its rate is that of the bytes that must
    move: x and y, or x, dy and dx."""

    b: int
    n: int
    f: int
    taps: int = 4
    dtype: str = "bf16"
    backward: bool = False
    family = "x_conv1d"
    peer = "torch conv1d, silu"
    mask = ""
    unit, scale = "TB/s", 1e-12

    def words(self):
        yield "conv1d_backward" if self.backward else "conv1d_forward"
        yield f"f{self.f}"
        yield f"taps{self.taps}" if self.taps != 4 else None
        yield f"n{size(self.n)}"
        yield None if self.b == 1 else f"b{self.b}"
        yield self.unusual_dtype

    @property
    def work(self):
        return (3 if self.backward else 2) * self.b * self.n * self.f * self.itemsize

    bytes = work

    @property
    def limit(self):
        # The peer rounds the sum before silu; its dweight is a sum of rounded products.
        return {"f32": 1e-5, "bf16": 2e-2}[self.dtype]

    def setup(self, ctx, device, seed):
        normal = self.draw(device, seed)
        x, weight = normal(self.b, self.n, self.f), normal(self.f, self.taps) / 2
        dy = normal(self.b, self.n, self.f)
        silu = fovea.experimental.Conv1dActivation.SILU
        theirs = x.clone(), weight.clone()

        def own():
            if self.backward:
                return fovea.experimental.conv1d_backward(
                    ctx, x, weight, dy, dx=True, dweight=True, activation=silu
                )
            return [fovea.experimental.conv1d_forward(ctx, x, weight, y=True, activation=silu)]

        own.workspace = 0
        if self.backward:
            return own, gradient(lambda: convolved(*theirs), theirs, dy)
        return own, unrecorded(lambda: convolved(*theirs))


def host():
    for backward in (False, True):
        yield Conv1d(1, 2048, 1024, dtype="f32", backward=backward)


def cuda():
    for backward in (False, True):
        yield Conv1d(2, 16384, 2048, backward=backward)
        yield Conv1d(1, 65536, 2048, backward=backward)
    yield Conv1d(2, 16384, 2048, taps=3)
    yield Conv1d(2, 16384, 2048, dtype="f32")
    yield Conv1d(128, 1, 8192)
