# SPDX-License-Identifier: Apache-2.0
import array

import fovea


def floats(values, *shape):
    return memoryview(array.array("f", values)).cast("B").cast("f", shape)


ctx = fovea.Context("host")
x = floats([1, 2, 3, 4, 5, 6, 7, 8], 1, 4, 1, 2)
weight, bias, y = floats([0.5, 1], 1, 2), floats([-4], 1), floats([0] * 8, 1, 4, 1, 2)
fovea.toy_forward(ctx, x, weight, bias=bias, y=y, activation=1)
ctx.synchronize()
print(*(f"{value:.1f}" for value in memoryview(y).cast("B").cast("f")))
