# SPDX-License-Identifier: Apache-2.0
"""fovea.levels: known optima, weights, and caches of these levels beside exact attention."""

import fovea
import numpy as np
import pytest

TOKENS, G, D = 512, 2, 64


def error(x, level, weight=1.0):
    return float((weight * (abs(x[:, None] - level).min(1) ** 2)).sum())


def test_lloyd():
    # Clusters far apart are found as they are.
    x = np.repeat([-7.0, -1.0, 2.0, 9.0], [60, 60, 60, 60])
    x = x + np.tile([-0.125, 0.125], x.size)[: x.size]
    level = fovea.levels.lloyd(x[np.random.default_rng(1).permutation(x.size)], 2)
    assert level.dtype == np.float32
    np.testing.assert_allclose(level, [-7, -1, 2, 9], atol=0.03)
    # A normal number's are known: Max (1960), Table I.
    random = np.random.default_rng(2).standard_normal(200000)
    np.testing.assert_allclose(
        fovea.levels.lloyd(random, 2), [-1.510, -0.4528, 0.4528, 1.510], atol=0.02
    )
    # Fewer samples than levels: all are there.
    few = fovea.levels.lloyd([1.0, 2.0, 5.0], 3)
    assert few.shape == (8,)
    assert (np.diff(few) >= 0).all()
    assert {1.0, 2.0, 5.0} <= set(few.tolist())
    for bad in ([], [np.nan], [np.inf]):
        with pytest.raises(ValueError, match="samples"):
            fovea.levels.lloyd(bad, 2)
    with pytest.raises(ValueError, match="bits is 9"):
        fovea.levels.lloyd([1.0], 9)
    for weight in ([1.0, 2.0], [-1.0], [0.0]):
        with pytest.raises(ValueError, match="weight"):
            fovea.levels.lloyd([1.0], 2, weight)


def test_lloyd_counts_weights():
    random = np.random.default_rng(3)
    x = random.standard_normal(4096)
    weight = np.where(x > 0.5, 100.0, 1.0)
    plain, weighted = (fovea.levels.lloyd(x, 3, w) for w in (None, weight))
    assert error(x, weighted, weight) < 0.5 * error(x, plain, weight)
    assert error(x, plain) < error(x, weighted)
    # A weight of n is a sample n times over.
    whole = np.where(x > 0, 3.0, 1.0)
    repeated = np.repeat(x, whole.astype(int))
    np.testing.assert_allclose(
        fovea.levels.lloyd(x, 2, whole), fovea.levels.lloyd(repeated, 2), 1e-5
    )


def test_turboquant():
    np.testing.assert_allclose(
        fovea.levels.turboquant(2, 4) * 2, [-1.510, -0.4528, 0.4528, 1.510], atol=1e-3
    )
    # Mean squared error of a unit row: 0.117, 0.03 and 0.009 in the paper.
    y = np.random.default_rng(4).standard_normal((256, 128))
    y /= np.linalg.norm(y, axis=1, keepdims=True)
    for bits, wanted in ((2, 0.117), (3, 0.034), (4, 0.0095)):
        got = error(y.ravel(), fovea.levels.turboquant(bits, 128)) / len(y)
        assert abs(got - wanted) < 0.03 * wanted + 0.0005, (bits, got)
    with pytest.raises(ValueError, match="width 0"):
        fovea.levels.turboquant(2, 0)


def samples():
    """Keys with channels of their own mean and size, and a few far numbers; values."""
    random = np.random.default_rng(5)
    k = random.standard_normal((TOKENS, G, D)) * np.linspace(0.3, 1.5, D) + np.linspace(-3, 3, D)
    k += 3 * random.standard_normal(k.shape) * (random.random(k.shape) < 0.003)
    return k.astype(np.float16), random.standard_normal((TOKENS, G, D)).astype(np.float16)


def attend(ctx, k, v, bits, format, outliers=0, **tables):
    page, pages = 64, TOKENS // 64
    cache = {
        "k_code": np.zeros((pages, 2, G, D, bits), np.int32),
        "v_code": np.zeros((pages, page, G, D * bits // 32), np.int32),
        "counter": np.zeros((1, 4), np.int32),
        "page_table": np.arange(pages, dtype=np.int32)[None],
        **tables,
    }
    if format == 1:
        cache["v_bound"] = np.zeros((pages, page, 2), np.float32)
        for name in ("k_outlier", "v_outlier") if outliers else ():
            cache[name] = np.zeros((pages, page, outliers), np.int32)
    else:
        for name in ("k_norm", "v_norm"):
            cache[name] = np.zeros((pages, page, G), np.float32)
    fovea.x_kv_append(ctx, k[None], v[None], bits=bits, format=format, **cache)
    assert cache["counter"].tolist() == [[TOKENS, TOKENS, TOKENS, 0]]
    q = np.random.default_rng(6).standard_normal((1, 4, 2 * G, D)).astype(np.float16)
    o = np.empty((1, 4, 2 * G, D), np.float32)
    fovea.x_kv_decode(ctx, q, bits=bits, format=format, o=o, causal=1, **cache)
    exact = np.empty_like(o)
    fovea.attention_forward(ctx, q, k[None], v[None], o=exact, causal=1)
    return float(np.linalg.norm(o - exact) / np.linalg.norm(exact))


def test_kvquant():
    k, v = samples()
    with fovea.Context("host") as ctx:
        found = {}
        for bits in (2, 3, 4):
            for outliers in (0, 2):
                tables = fovea.levels.kvquant(k, v, bits, outliers=0.01 if outliers else 0)
                assert tables["k_level"].shape == (2**bits,)
                assert tables["k_offset"].shape == tables["k_range"].shape == (G, D)
                assert abs(tables["v_level"]).max() <= 1 + 1e-5
                found[bits, outliers] = attend(ctx, k, v, bits, 1, outliers, **tables)
        # Each bit and the outliers count.
        for outliers in (0, 2):
            assert found[2, outliers] > 1.2 * found[3, outliers] > 1.44 * found[4, outliers]
        for bits in (2, 3, 4):
            assert found[bits, 2] < found[bits, 0]
        assert found[4, 2] < 0.2 < found[2, 2], found
    with pytest.raises(ValueError, match="tokens, g, d"):
        fovea.levels.kvquant(k[0], v[0], 2)
    with pytest.raises(ValueError, match="outliers is 0.5"):
        fovea.levels.kvquant(k, v, 2, outliers=0.5)
    with pytest.raises(ValueError, match="a weight has 3 elements"):
        fovea.levels.kvquant(k, v, 2, k_weight=np.ones(3))


def test_turboquant_cache():
    k, v = samples()
    turn = np.linalg.qr(np.random.default_rng(7).standard_normal((D, D)))[0]
    k, v = ((x.astype(np.float64) @ turn).astype(np.float16) for x in (k, v))
    with fovea.Context("host") as ctx:
        level = {bits: fovea.levels.turboquant(bits, D) for bits in (2, 3, 4)}
        found = [
            attend(ctx, k, v, bits, 2, k_level=level[bits], v_level=level[bits])
            for bits in (2, 3, 4)
        ]
    assert found[0] > 1.3 * found[1] > 1.69 * found[2]
    assert found[2] < 0.4, found
