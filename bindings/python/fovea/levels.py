# SPDX-License-Identifier: Apache-2.0
"""Levels of low-bit caches, for x_kv_append and x_kv_decode in the formats of levels and norms, and
the rotation that TurboQuant and KVarN want.

    tables = fovea.levels.kvquant(k, v, bits=3, k_weight=gradient_of_k**2)
    fovea.x_kv_append(k_new, v_new, ..., bits=3, format=1, **tables)

    turn = fovea.levels.hadamard(128)
    fovea.x_kv_append(k_new @ turn, v_new @ turn, ..., bits=4, v_bits=2, group=128, format=3)
    o = fovea.recipe("kvarn")(q @ turn, ...) @ turn.T

Needs NumPy.  The same samples give the same levels."""

from __future__ import annotations

import math
from typing import Any

STEPS = 50


def lloyd(samples: Any, bits: int, weight: Any = None, steps: int = STEPS) -> Any:
    """2^bits ascending levels with the least weighted squared distance to the samples, as Lloyd's
    steps find it from the quantiles on.

    weight: >= 0, as samples: how much an error there counts; none: 1.  A level that is nearest to
    nothing stays.  float32."""
    import numpy

    x = numpy.asarray(samples, numpy.float64).ravel()
    if not 1 <= bits <= 8:
        raise ValueError(f"bits is {bits}, wanted 1 .. 8")
    if not x.size or not numpy.isfinite(x).all():
        raise ValueError("samples are wanted, and finite")
    w = numpy.ones_like(x) if weight is None else numpy.asarray(weight, numpy.float64).ravel()
    if w.shape != x.shape or not (w >= 0).all() or not 0 < w.sum() < math.inf:
        raise ValueError("weight has other elements than samples, or a sum that is not above 0")
    order = numpy.argsort(x, kind="stable")
    x, w = x[order], w[order]
    # Sums up to each sample: a level's part is between two of them.
    mass = numpy.concatenate([[0.0], numpy.cumsum(w)])
    first = numpy.concatenate([[0.0], numpy.cumsum(w * x)])
    n = 2**bits
    at = (numpy.arange(n) + 0.5) / n * mass[-1]
    level = x[numpy.minimum(numpy.searchsorted(mass[1:], at), x.size - 1)]
    for _ in range(steps):
        edges = numpy.searchsorted(x, (level[:-1] + level[1:]) / 2, side="right")
        begin, end = numpy.append(0, edges), numpy.append(edges, x.size)
        part = mass[end] - mass[begin]
        mean = (first[end] - first[begin]) / numpy.where(part > 0, part, 1)
        new = numpy.sort(numpy.where(part > 0, mean, level))
        if (new == level).all():
            break
        level = new
    return level.astype(numpy.float32)


def kvquant(
    k: Any,
    v: Any,
    bits: int,
    *,
    outliers: float = 0.01,
    k_weight: Any = None,
    v_weight: Any = None,
) -> dict[str, Any]:
    """k_level, v_level, k_offset and k_range (KVQuant, 2401.18079) from samples of a layer: keys
    before rotation (tokens, g, d), values (tokens, g, e).

    outliers: their share, which k_outlier and v_outlier then hold: outliers * g * d entries a key.
    k_weight, v_weight: as k and v: squared gradients (Fisher); none: 1."""
    import numpy

    k, v = numpy.asarray(k, numpy.float64), numpy.asarray(v, numpy.float64)
    if k.ndim != 3 or v.ndim != 3 or k.shape[:2] != v.shape[:2] or not k.size or not v.size:
        raise ValueError(
            f"k is {k.shape} and v {v.shape}, wanted (tokens, g, d) and (tokens, g, e)"
        )
    if not 0 <= outliers < 0.5:
        raise ValueError(f"outliers is {outliers}, wanted 0 .. 0.5")
    low, high = numpy.quantile(k, [outliers / 2, 1 - outliers / 2], axis=0)
    offset = ((low + high) / 2).astype(numpy.float32)
    half = ((high - low) / 2).astype(numpy.float32)
    half[half == 0] = 1
    # Values by token, without the outliers that x_kv_append takes out.
    rows = v.reshape(len(v), -1)
    taken = math.ceil(outliers / 2 * rows.shape[1])
    taken = min(taken, (rows.shape[1] - 1) // 2)
    ordered = numpy.sort(rows, axis=1)
    least, most = ordered[:, taken, None], ordered[:, rows.shape[1] - 1 - taken, None]
    radius = (most - least) / 2
    radius[radius == 0] = 1
    return {
        "k_level": _inner((k - offset) / half, bits, k_weight),
        "v_level": _inner((rows - (least + most) / 2) / radius, bits, v_weight),
        "k_offset": offset,
        "k_range": half,
    }


def _inner(y: Any, bits: int, weight: Any) -> Any:
    """Levels of what is no outlier."""
    import numpy

    y = y.ravel()
    inside = abs(y) <= 1 + 1e-6
    if weight is not None:
        weight = numpy.asarray(weight, numpy.float64).ravel()
        if weight.shape != y.shape:
            raise ValueError(f"a weight has {weight.size} elements, wanted {y.size}")
        weight = weight[inside]
    return lloyd(y[inside], bits, weight)


def turboquant(bits: int, width: int, steps: int = 2000) -> Any:
    """The levels of Lloyd and Max for a coordinate of a random direction in `width` dimensions, as
    TurboQuant (2504.19874) has them for wide rows: of a normal number of variance 1 / width."""
    import numpy

    if not 1 <= bits <= 8 or width < 1:
        raise ValueError(f"bits is {bits} and width {width}, wanted 1 .. 8 and >= 1")
    n = 2**bits
    level = 4 * (numpy.arange(n) + 0.5) / n - 2
    below = numpy.vectorize(lambda x: 0.5 * math.erfc(-x / math.sqrt(2)))
    for _ in range(steps):
        edge = numpy.concatenate([[-40.0], (level[:-1] + level[1:]) / 2, [40.0]])
        density = numpy.exp(-(edge**2) / 2) / math.sqrt(2 * math.pi)
        level = (density[:-1] - density[1:]) / numpy.diff(below(edge))
    return (level / math.sqrt(width)).astype(numpy.float32)


def hadamard(width: int) -> Any:
    """(width, width), orthogonal: Hadamard's matrix of the largest power of two that divides width,
    over columns that are width / power apart.  float32."""
    import numpy

    if width < 1:
        raise ValueError(f"width is {width}, wanted >= 1")
    power = width & -width
    turn = numpy.ones((1, 1))
    while len(turn) < power:
        turn = numpy.block([[turn, turn], [turn, -turn]])
    spread = numpy.kron(turn / math.sqrt(power), numpy.eye(width // power))
    return spread.astype(numpy.float32)
