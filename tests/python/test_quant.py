# SPDX-License-Identifier: Apache-2.0
"""FP8 attention from Python: ml_dtypes and torch codes, and how far codes are from the truth."""

import fovea
import numpy as np
import pytest
import reference


def padded(tokens):
    return (tokens + 127) // 128 * 128


def inputs(outliers=False, tokens=256, width=128):
    random = np.random.default_rng(5)
    x = random.standard_normal((3, 1, tokens, 2, width)).astype(np.float32)
    if outliers:
        rare = random.random(x[:2].shape) < 0.001
        x[:2] += rare * 10 * random.standard_normal(x[:2].shape)
    return list(x)


def quantised(ctx, x, block=0, **fields):
    tokens = x.shape[1]
    count = -(-tokens // block) if block else 1
    if fields.pop("values", False):
        return fovea.quant_quantize(
            ctx, x, code_t=True, n=1, padded=padded(tokens), code_order="v_perm16"
        )
    return fovea.quant_quantize(ctx, x, code=True, n=count, block=block, **fields)


def attend(ctx, q, k, v, block=0, hadamard=0, **fields):
    q, q_scale = quantised(ctx, q, block, hadamard=hadamard)
    k, k_scale = quantised(ctx, k, block, hadamard=hadamard)
    v_t, v_scale = quantised(ctx, v, values=True)
    return fovea.quant_forward(
        ctx,
        q,
        k,
        v_t=v_t,
        q_scale=q_scale,
        k_scale=k_scale,
        v_scale=v_scale,
        q_block=block,
        k_block=block,
        code_order=fovea.CodeOrder.V_PERM16,
        **fields,
    )


def distance(o, want):
    return np.linalg.norm(o - want) / np.linalg.norm(want)


def test_codes_are_ml_dtypes(ctx):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = inputs(tokens=70, width=16)[0]
    code, scale = quantised(ctx, x)
    assert code.dtype == ml_dtypes.float8_e4m3fn and scale.shape == (1, 2, 1)
    factor = scale.transpose(0, 2, 1)[..., None]
    # A rounding is at most 1 / 16 of a normal number and half a step of 2^-9 below.
    off = np.abs(code.astype(np.float32) * factor - x)
    assert np.all(off <= np.maximum(np.abs(x) / 16, factor * 2.0**-10) * 1.001)
    assert np.abs(code.astype(np.float32)).max(axis=(1, 3)) == pytest.approx(448)


@pytest.mark.parametrize("causal", [False, True])
def test_near_the_truth(ctx, causal):
    q, k, v = inputs()
    want = reference.attention(*(x.astype(np.float64) for x in (q, k, v)), causal=causal)
    o, lse = attend(ctx, q, k, v, lse=True, causal=causal)
    assert o.dtype == np.float32
    assert distance(o, want[0]) < 7e-2
    assert np.sqrt(np.mean((lse - want[1]) ** 2)) < 2e-2


def test_rotation_spreads_outliers(ctx):
    q, k, v = inputs(outliers=True)
    want = reference.attention(*(x.astype(np.float64) for x in (q, k, v)))[0]
    plain = distance(attend(ctx, q, k, v), want)
    rotated = distance(attend(ctx, q, k, v, block=128, hadamard=1), want)
    assert rotated < 8e-2 and rotated < plain < 1.2e-1


# How far codes of normal numbers are from these, and what the formats of SageAttention ask for.
@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"group": "thread_q", "block": 16, "n": 128}, 9e-3),
        ({"group": "thread_k", "block": 64, "n": 16, "smooth": "sequence", "means": 1}, 9e-3),
        ({"group": "token", "n": 256, "smooth": "block", "means": 2}, 9e-3),
        ({"group": "thread_q", "block": 16, "n": 128, "code_format": "i4"}, 0.2),
        ({"group": "micro16", "n": 2048, "code_format": "e2m1"}, 0.11),
        ({"group": "micro32", "n": 1024, "code_format": "e2m1"}, 0.15),
    ],
)
def test_there_and_back(ctx, fields, limit):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = inputs()[0]
    format = fields.get("code_format", "dtype")
    columns = x.shape[-1] if format == "dtype" else x.shape[-1] // 2
    code = np.zeros((*x.shape[:-1], columns), np.int8 if format == "dtype" else np.uint8)
    scales = {"micro16": ml_dtypes.float8_e4m3fn, "micro32": np.uint8}
    scale = np.zeros((1, 2, fields.pop("n")), scales.get(fields["group"], np.float32))
    means = fields.pop("means", None)
    mean = {} if means is None else {"mean": np.zeros((1, 2, means, 128), np.float32)}
    fovea.quant_quantize(ctx, x, code=code, scale=scale, **mean, **fields)
    y = fovea.quant_dequantize(ctx, y=np.empty_like(x), code=code, scale=scale, **mean, **fields)
    assert 0.2 * limit < distance(y, x) < limit


def test_delta_restores_scores(ctx):
    q, k, _ = (x + 2 for x in inputs(tokens=200, width=64))
    code = np.zeros((1, 200, 2, 64), np.int8)
    mean, k_mean = np.zeros((1, 2, 2, 64), np.float32), np.zeros((1, 2, 1, 64), np.float32)
    delta = np.zeros((1, 2, 2, 200), np.float32)
    scale = np.zeros((1, 2, 200), np.float32)
    rows = {"code": code, "scale": scale, "group": "token"}
    fovea.quant_quantize(ctx, k, mean=k_mean, smooth="sequence", **rows)
    fovea.quant_quantize(
        ctx, q, mean=mean, smooth="block", k=k, k_mean=k_mean, delta=delta, **rows
    )
    k = k - k_mean.transpose(0, 2, 1, 3)
    block = np.arange(200) // 128
    centred = q - mean[:, :, block].transpose(0, 2, 1, 3)
    got = np.einsum("bshd,bthd->bhst", centred, k) + delta[:, :, block]
    assert np.allclose(got, np.einsum("bshd,bthd->bhst", q, k), atol=1e-3)


# A pool is quantised as if its pages were a batch, and read as it is.
@pytest.mark.parametrize("page", [48, 128])
def test_pages(ctx, page):
    q, k, v = inputs(tokens=5 * page - 7, width=64)
    k = k + 3  # a mean that is no sequence's
    want = reference.attention(*(x.astype(np.float64) for x in (q, k, v)), causal=True)
    table = np.array([[6, 2, 5, 0, 3]], np.int32)
    pool = np.full((2, 7, page, 2, 64), 1e4, np.float32)
    for x, to in zip((k, v), pool, strict=True):
        to[table[0]] = np.pad(x[0], ((0, 7), (0, 0), (0, 0))).reshape(5, page, 2, 64)
    code, scale = np.zeros(pool[0].shape, np.int8), np.zeros((7, 2, -(-page // 64)), np.float32)
    mean = np.zeros((7, 2, 1, 64), np.float32)
    fovea.quant_quantize(
        ctx, pool[0], code=code, scale=scale, mean=mean, block=64, smooth="sequence"
    )
    v_t, v_scale = quantised(ctx, pool[1], values=True)
    q_code, q_scale = np.zeros(q.shape, np.int8), np.zeros((1, 2, q.shape[1]), np.float32)
    fovea.quant_quantize(ctx, q, code=q_code, scale=q_scale, group="token")
    o, lse = fovea.quant_forward(
        ctx,
        q_code,
        code,
        v_t=v_t,
        q_scale=q_scale,
        k_scale=scale,
        v_scale=v_scale,
        k_mean=mean,
        page_table=table,
        key_len=np.array([q.shape[1]], np.int32),
        q_group="token",
        k_block=64,
        code_order="v_perm16",
        p_format="e4m3_448",
        causal=True,
        lse=True,
    )
    assert distance(o, want[0]) < 7e-2
    assert np.sqrt(np.mean((lse - want[1]) ** 2)) < 2e-2


def test_torch_codes(ctx):
    torch = pytest.importorskip("torch")
    arrays = inputs(tokens=130, width=64)
    q, k, v = (torch.from_numpy(x) for x in arrays)
    code, scale = quantised(ctx, q)
    assert code.dtype == torch.float8_e4m3fn and scale.dtype == torch.float32
    o = torch.empty(q.shape, dtype=torch.bfloat16)
    assert attend(ctx, q, k, v, o=o) is o
    want = reference.attention(*(x.astype(np.float64) for x in arrays))[0]
    assert distance(o.float().numpy(), want) < 7e-2
