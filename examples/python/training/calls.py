# SPDX-License-Identifier: Apache-2.0
"""Calls of fovea on the tape: a forward call makes a Var, whose gradient is the backward call."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import fovea
import fovea.experimental
import numpy as np
from numpy.typing import NDArray

from training.tape import Floats, Var

There = Any  # where fovea computes: NumPy's array or a Buffer


class Calls:
    """Inputs are Vars by the name of their field, numbers are the call's."""

    def __init__(self, ctx: fovea.Context) -> None:
        self.ctx = ctx

    def norm(self, inputs: dict[str, Var], **numbers: Any) -> Var:
        return self.run("norm_gate", "y", inputs["x"].shape, inputs, numbers)

    def run(self, operation: str, out: str, shape: tuple[int, ...], inputs: dict[str, Var],
            numbers: dict[str, Any], carried: Mapping[str, There] = {}) -> Var:
        """carried: states, which have no gradient."""
        given = {field: self.there(x.value) for field, x in inputs.items()}
        y = self.empty(shape)
        self.call(f"{operation}_forward", {**given, **carried, **numbers, out: y})
        wanted = [field for field, x in inputs.items() if x.needs]

        def back(dy: Floats) -> None:
            more: dict[str, Any] = {f"d{field}": False for field in ("q", "k", "v", "x", "weight")
                                    if field in inputs}
            more |= {f"d{field}": self.empty(inputs[field].shape) for field in wanted}
            more["dy" if out == "y" else "dout"] = self.there(dy)
            self.call(f"{operation}_backward", given | numbers | more)
            for field in wanted:
                inputs[field].take(self.here(more[f"d{field}"]))
        return Var(self.here(y), list(inputs.values()), back)

    def call(self, name: str, fields: dict[str, Any]) -> None:
        if name == "norm_gate_backward":  # of its gradients, False is a word for dx alone
            fields = {k: v for k, v in fields.items() if v is not False or k == "dx"}
        getattr(fovea.experimental, name)(self.ctx, **fields)

    def empty(self, shape: tuple[int, ...]) -> There:
        if self.ctx.backend == "host":
            return np.empty(shape, np.float32)
        return self.ctx.empty(shape, "f32")

    def there(self, x: NDArray[Any]) -> There:
        return x if self.ctx.backend == "host" else self.ctx.array(np.ascontiguousarray(x))

    def here(self, x: There) -> Floats:
        y: Floats = x.numpy() if isinstance(x, fovea.Buffer) else x
        return y
