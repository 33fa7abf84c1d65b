# SPDX-License-Identifier: Apache-2.0
"""SageAttention's methods from Python: how far codes are from the truth, and that halves merge."""

import fovea
import numpy as np
import pytest
import reference
from fovea import CodeFormat, CodeOrder, PFormat, ScaleGroup, Smooth

TOKENS, WIDTH = 1024, 128


def inputs(kind, tokens=TOKENS, heads=2, seed=3):
    """Normal numbers; with a bias of channels; with rare outliers."""
    random = np.random.default_rng(seed)
    q, k, v = random.standard_normal((3, 1, tokens, heads, WIDTH))
    if kind == "channels":
        q += 0.5 * random.standard_normal((heads, WIDTH))
        bias = 0.5 * random.standard_normal((heads, WIDTH))
        bias[:, random.choice(WIDTH, 4, replace=False)] += 8 * random.choice([-1, 1], 4)
        k += bias
        v += 0.3 * random.standard_normal((heads, WIDTH))
    if kind == "outliers":
        for x in (q, k, v):
            x += (random.random(x.shape) < 0.001) * 10 * random.standard_normal(x.shape)
    return [x.astype(np.float16).astype(np.float32) for x in (q, k, v)]


def up(x, y):
    return -(-x // y)


def quantised(ctx, x, group, block=0, form=0, dtype=np.int8, **more):
    """(codes, scales, mean and what else there is) of q or k."""
    tokens, width = x.shape[1], x.shape[3]
    parts = {ScaleGroup.THREAD_Q: 8, ScaleGroup.THREAD_K: 4}.get(group, 1)
    count = parts * up(tokens, block) if block else 1
    micro = {ScaleGroup.MICRO16: 16, ScaleGroup.MICRO32: 32}.get(group)
    scale = {}
    if micro:
        count = tokens * up(width, micro)
        if micro == 32:
            scale["scale"] = np.empty((*x.shape[:1], x.shape[2], count), np.uint8)
        else:
            scale["scale"] = empty_e4m3((x.shape[0], x.shape[2], count))
    shape = (*x.shape[:3], width // 2) if form else x.shape
    code = np.empty(shape, np.uint8 if form else dtype)
    return fovea.quant_quantize(
        ctx, x, code=code, n=count, group=group, block=block, code_format=form, **scale, **more
    )


def empty_e4m3(shape):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    return np.empty(shape, ml_dtypes.float8_e4m3fn)


def attend(ctx, method, q, k, v, causal=False, smooth=True, lse=False):
    tokens = k.shape[1]
    padded = up(tokens, 128) * 128
    fp4 = method in ("nvfp4", "mxfp4")
    groups = {
        "sage1": (ScaleGroup.BLOCK, 128, ScaleGroup.BLOCK, 64),
        "sagebwd": (ScaleGroup.BLOCK, 64, ScaleGroup.BLOCK, 64),
        "nvfp4": (ScaleGroup.MICRO16, 0, ScaleGroup.MICRO16, 0),
        "mxfp4": (ScaleGroup.MICRO32, 0, ScaleGroup.MICRO32, 0),
    }.get(method, (ScaleGroup.THREAD_Q, 16, ScaleGroup.THREAD_K, 128))
    form = CodeFormat.E2M1 if fp4 else CodeFormat.I4 if method == "sage2_i4" else 0
    fields = {"causal": causal, "q_group": groups[0], "q_block": groups[1]}
    fields |= {"k_group": groups[2], "k_block": groups[3], "code_format": form}
    k_more = {"smooth": Smooth.SEQUENCE, "mean": True, "means": 1} if smooth else {}
    kc, ks, *k_mean = quantised(ctx, k, groups[2], groups[3], form, **k_more)
    q_more = {}
    if form and smooth:
        blocks = up(q.shape[1], 128)
        q_more = {"smooth": Smooth.BLOCK, "mean": True, "means": blocks, "k": k, "delta": True}
        q_more |= {"k_mean": k_mean[0], "deltas": blocks, "t": tokens}
    qc, qs, *q_rest = quantised(ctx, q, groups[0], groups[1], form, **q_more)
    if smooth:
        fields |= {"k_mean": k_mean[0], "q_plain": q}
    if q_more:
        fields["delta"] = q_rest[1]
    h, d = v.shape[2:]
    if method == "sage1":
        fields |= {"v": v.astype(np.float16), "p_format": PFormat.HALF}
        fields["accumulate"] = fovea.Accumulate.HALF_64
    elif method == "sagebwd":
        code, scale = quantised(ctx, v, ScaleGroup.BLOCK, 64)
        fields |= {"v": code, "v_scale": scale, "v_block": 64, "p_format": PFormat.I8}
    elif fp4:
        run = 16 if method == "nvfp4" else 32
        group = ScaleGroup.MICRO16_T if run == 16 else ScaleGroup.MICRO32_T
        shape = (1, h, d * padded // run)
        code, scale = fovea.quant_quantize(
            ctx,
            v,
            code_t=np.empty((1, h, d, padded // 2), np.uint8),
            scale=empty_e4m3(shape) if run == 16 else np.empty(shape, np.uint8),
            group=group,
            code_format=CodeFormat.E2M1,
        )
        fields |= {"v_t": code, "v_scale": scale, "v_group": group, "v_format": CodeFormat.E2M1}
        fields["p_format"] = PFormat.E2M1_TWO if run == 16 else PFormat.E2M1_ONE
    else:
        code, scale = fovea.quant_quantize(
            ctx,
            v,
            code_t=True,
            n=d,
            padded=padded,
            group=ScaleGroup.CHANNEL,
            code_order=CodeOrder.V_PERM16,
            scale_max=2.25 if method == "sage2pp" else 0,
        )
        fields |= {"v_t": code, "v_scale": scale, "v_group": ScaleGroup.CHANNEL}
        fields |= {"code_order": CodeOrder.V_PERM16, "p_format": PFormat.E4M3_448}
        if method == "sage2pp":
            fields["accumulate"] = fovea.Accumulate.HALF_64
    o = np.empty((*q.shape[:3], d), np.float32)
    return fovea.quant_forward(
        ctx, qc, kc, o=o, q_scale=qs, k_scale=ks, lse=True if lse else None, **fields
    )


def distance(o, want):
    return np.linalg.norm(o - want) / np.linalg.norm(want)


# Relative Frobenius error at 1024 tokens, 128 columns: normal numbers, channels, outliers.
LIMITS = {
    "sage1": (2e-2, 1e-2, 1e-1),
    "sage2": (5.5e-2, 2.2e-2, 7e-2),
    "sage2pp": (5.5e-2, 2.2e-2, 7e-2),
    "sage2_i4": (2.8e-1, 1.1e-1, None),
    "nvfp4": (2.6e-1, 1.1e-1, 2.8e-1),
    "mxfp4": (3.3e-1, 1.6e-1, 0.55),
    "sagebwd": (3e-2, 1.2e-2, 1e-1),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("method", LIMITS)
def test_near_the_truth(ctx, method, causal):
    for kind, limit in zip(("normal", "channels", "outliers"), LIMITS[method], strict=True):
        if limit is None:
            continue
        q, k, v = inputs(kind)
        want = reference.attention(q, k, v, causal=causal)
        o, lse = attend(ctx, method, q, k, v, causal, lse=True)
        assert distance(o, want[0]) < limit, (method, kind)
        four_bits = method in ("sage2_i4", "nvfp4", "mxfp4")
        assert np.abs(lse - want[1]).mean() < (2e-1 if four_bits else 5e-2), (method, kind)


@pytest.mark.parametrize(("method", "least"), [("sage1", 1.4), ("sage2_i4", 1.5)])
def test_means_help_biased_channels(ctx, method, least):
    q, k, v = inputs("channels")
    want = reference.attention(q, k, v)[0]
    smoothed = distance(attend(ctx, method, q, k, v), want)
    assert distance(attend(ctx, method, q, k, v, smooth=False), want) > least * smoothed


@pytest.mark.parametrize("method", ["sage2", "sagebwd"])
def test_halves_with_means_of_their_own_merge(ctx, method):
    q, k, v = inputs("channels", tokens=512)
    k[:, 256:] += 3  # another mean
    whole, whole_lse = attend(ctx, method, q, k, v, lse=True)
    parts = [
        attend(ctx, method, q, k[:, i], v[:, i], lse=True) for i in (slice(256), slice(256, None))
    ]
    lse = np.logaddexp(parts[0][1], parts[1][1])
    o = sum(np.exp(x - lse).swapaxes(1, 2)[..., None] * y for y, x in parts)
    want, want_lse = reference.attention(q, k, v)
    assert np.abs(lse - want_lse).max() < 1e-1
    assert np.abs(whole_lse - want_lse).max() < 1e-1
    assert distance(o, want) < 5.5e-2
    assert distance(whole, want) < 5.5e-2


def test_a_value_that_is_not_seen_counts_for_nothing():
    """On the host; 0 times NaN would be NaN."""
    q, k, v = (x.astype(np.float16) for x in inputs("normal", 200, 1))
    v[0, -1, 0, 5] = np.nan
    with fovea.Context("host") as ctx:
        o = fovea.recipe("sageattention")(ctx, q, k, v, causal=1)[0, :, 0]
    assert np.isfinite(o[:-1]).all() and np.isnan(o[-1, 5])
    assert np.isfinite(np.delete(o[-1], 5)).all()
