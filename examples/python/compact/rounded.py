# SPDX-License-Identifier: Apache-2.0
"""Attention of fewer bits on the tape: bf16, and SageBwd's codes of 8 bits."""
from __future__ import annotations

from typing import Any

import fovea
import fovea.experimental
import ml_dtypes
import numpy as np

from compact.model import Attention
from training.calls import There
from training.tape import Floats, Var


class Rounded(Attention):
    """q, k, v and the gradient of o are bf16, and so is what attention makes of them.  Softmax and
    sums are f32, as on a GPU."""

    def read(self, recipe: str, q: Var, k: Var, v: Var) -> Var:
        inputs = {"q": q, "k": k, "v": v}
        given = {name: self.there(bf16(x.value)) for name, x in inputs.items()}
        o, lse = self.forward(recipe, given)

        def back(dy: Floats) -> None:
            made = {f"d{name}": self.rounded(x.shape) for name, x in inputs.items()}
            self.backward(**given, **made, o=o, lse=lse, dout=self.there(bf16(dy)))
            for name, x in inputs.items():
                x.take(self.here(made[f"d{name}"]).astype(np.float32))
        return Var(self.here(o).astype(np.float32), list(inputs.values()), back)

    def rounded(self, shape: tuple[int, ...]) -> There:
        if self.ctx.backend == "host":
            return np.empty(shape, ml_dtypes.bfloat16)
        return self.ctx.empty(shape, "bf16")

    def forward(self, recipe: str, given: dict[str, There]) -> tuple[There, There]:
        made: tuple[There, There] = self.recipes[recipe](self.ctx, **given, lse=True)
        return made

    def backward(self, **fields: Any) -> None:
        fovea.attention_backward(self.ctx, causal=1, **fields)


class SageBwd(Rounded):
    """Codes in place of the method that is asked for: queries of several heads on one key head."""

    def forward(self, recipe: str, given: dict[str, There]) -> tuple[There, There]:
        made: tuple[There, There] = self.recipes["sagebwd"](
            self.ctx, **given, lse=True, causal=1)
        return made

    def backward(self, **fields: Any) -> None:
        fovea.experimental.quant_backward(
            self.ctx, causal=1, k_smooth=fovea.Smooth.SEQUENCE, **fields)


def bf16(x: Floats) -> Any:
    return x.astype(ml_dtypes.bfloat16)


ENGINES = {"f32": Attention, "bf16": Rounded, "sagebwd": SageBwd}
