# SPDX-License-Identifier: Apache-2.0
"""What mypy --strict must refuse: the words behind `wrong` are in the error of their line, and no
other line has one.  Never run: see test_stubs.py."""

import fovea
import numpy as np
from numpy.typing import NDArray


def calls(q: NDArray[np.float32], ctx: fovea.Context) -> None:
    fovea.attention_forward(q, q, q, casual=True)  # wrong: did you mean "causal"?
    fovea.attention_forward(q, q, q, scale="big")  # wrong: No overload
    fovea.attention_forward(q, q, q, window_left=1.5)  # wrong: No overload
    fovea.attention_forward(q, q, q, key_len=[3])  # wrong: No overload
    fovea.attention_forward([1.0], q, q)  # wrong: No overload
    fovea.attention_forward(q, q)  # wrong: No overload
    fovea.attention_forward(ctx, q, q)  # wrong: No overload
    fovea.attention_forward("cuda", q, q, q)  # wrong: No overload
    fovea.attention_forward(q, q, q, ctx="cuda")  # wrong: No overload
    fovea.attention_forwards(q, q, q)  # wrong: maybe "attention_forward"
    fovea.rope_table_get(positions=2, half=2, scaling="ntk")  # wrong: Literal['ntk']
    fovea.kl_forward(q, q, q, q, direction="sideways")  # wrong: No overload
    fovea.x_kl_pool_forward(q, q, q, q)  # wrong: has no attribute
    fovea.cache_copy(q, q, q, o=True)  # wrong: Unexpected keyword
    one: int = fovea.attention_forward(q, q, q)  # wrong: Incompatible types
    two: fovea.Buffer = fovea.attention_forward(q, q, q, lse=True)  # wrong: Incompatible types
    fovea.Context("host", treads=2)  # wrong: did you mean "threads"?
    fovea.Context(threads="2")  # wrong: expected "int"
    ctx.last_kernal  # wrong: has no attribute
    fovea.prepare("attention_forward", ctx)  # wrong: expected "Callable
    fovea.build(3)  # wrong: incompatible type "int"
    print(one, two)
