# SPDX-License-Identifier: Apache-2.0
"""Every file of tests/golden (format: tests/harness/golden.h), then the specification's numbers."""

import json
import pathlib

import fovea
import ml_dtypes
import numpy as np
import pytest

FILES = sorted((pathlib.Path(__file__).resolve().parents[1] / "golden").glob("*.safetensors"))
DTYPES = {
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "I32": np.int32,
    "I64": np.int64,
    "U8": np.uint8,
    "I8": np.int8,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
}


def read(path):
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    meta = header.pop("__metadata__")
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        data = np.frombuffer(raw[8 + size + begin : 8 + size + end], DTYPES[entry["dtype"]])
        tensors[name] = data.reshape(entry["shape"])
    return meta, tensors


def assert_close(name, got, want, tolerance):
    if got.dtype.kind in "iu":
        assert np.array_equal(got, want), name
        return
    got, want = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(invalid="ignore"):
        same = (
            (got == want)
            | (np.isnan(got) & np.isnan(want))
            | (abs(got - want) <= tolerance * (1 + abs(want)))
        )
    assert same.all(), f"{name}: {np.argwhere(~same)[:4].tolist()} of {got.shape}"


def test_golden_files_exist():
    assert FILES
    methods = {read(path)[0].get("recipe") for path in FILES}
    assert {method.name for method in fovea.recipes()} <= methods


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_golden(ctx, path):
    meta, tensors = read(path)
    op = fovea.recipe(meta["recipe"]) if "recipe" in meta else getattr(fovea, meta["op"])
    expected, fields = {}, {}
    outputs = meta["outputs"].split(",")
    for name, array in tensors.items():
        if name.endswith(".after"):
            expected[name.removesuffix(".after")] = array
        elif name in outputs and f"{name}.after" not in tensors:
            expected[name] = array
            fields[name] = np.full_like(array, 7)
        else:
            fields[name] = array.copy()
    assert set(expected) == set(outputs)
    op(ctx, **fields, **json.loads(meta["params"]))
    assert ctx.last_kernel.startswith(meta["op"])
    for name, want in expected.items():
        assert_close(name, fields[name], want, float(meta["tolerance"]))


# The golden vectors of the dense specification: one head, d = 2, three queries, four keys.
Q = np.array([[1, 0], [0, 2], [1, -1]], np.float32).reshape(1, 3, 1, 2)
K = np.array([[1, 1], [0, 1], [-1, 0.5], [2, 0]], np.float32).reshape(1, 4, 1, 2)
V = np.array([[1, 2], [3, -1], [0, 4], [-2, 0.5]], np.float32).reshape(1, 4, 1, 2)
DOUT = np.array([[1, 0], [0, 1], [1, 1]], np.float32).reshape(1, 3, 1, 2)
FOURTH = dict(
    causal=True,
    softcap=2.0,
    alibi=np.array([[0.5]], np.float32),
    sink_logit=np.array([0.3], np.float32),
)
FORWARD = {
    "full": (
        {},
        [[-0.418942, 0.928049], [1.284184, 1.130710], [-0.965519, 0.831319]],
        [2.032669, 2.420778, 1.783819],
    ),
    "causal": (
        dict(causal=1),
        [[1.660477, 1.009285], [1.604448, 1.192215], [-0.965519, 0.831319]],
        [1.107940, 2.327728, 1.783819],
    ),
    "window": (
        dict(window_left=2, window_right=1),
        [[1.660477, 1.009285], [2.009285, 0.651192], [-1.844723, 0.771735]],
        [1.107940, 1.815047, 1.495032],
    ),
    "causal, softcap, alibi, sink": (
        FOURTH,
        [[1.183348, 0.392605], [1.117561, 1.258489], [-1.113159, 0.534209]],
        [1.265802, 1.889316, 1.680575],
    ),
}
BACKWARD = {
    "causal": (
        dict(causal=1),
        [[-0.312797, 0], [-0.163554, -0.196332], [-1.132423, 0.582335]],
        [[0.059516, 0.085909], [0.437801, -1.368556], [0.170034, 0.615296], [-0.667351, 0.667351]],
        [[0.837757, 0.569107], [0.413072, 0.483945], [0.058165, 0.255940], [0.691007, 0.691007]],
    ),
    "causal, softcap, alibi, sink": (
        FOURTH,
        [[-0.038690, 0.323575], [-0.449279, 0.006248], [-0.516630, 0.214157]],
        [[0.066490, 0.018847], [0.418327, -0.678887], [0.105830, 0.916755], [-0.257990, 0.257990]],
        [[0.378871, 0.229508], [0.316761, 0.344620], [0.042773, 0.340890], [0.629483, 0.629483]],
    ),
}


@pytest.mark.parametrize("case", FORWARD)
def test_specified_forward(ctx, case):
    fields, o_want, lse_want = FORWARD[case]
    o, lse = fovea.attention_forward(ctx, Q, K, V, lse=True, **fields)
    np.testing.assert_allclose(o.reshape(3, 2), o_want, atol=2e-6)
    np.testing.assert_allclose(lse.reshape(3), lse_want, atol=2e-6)


@pytest.mark.parametrize("case", BACKWARD)
def test_specified_backward(ctx, case):
    fields, *wanted = BACKWARD[case]
    o, lse = fovea.attention_forward(ctx, Q, K, V, lse=True, **fields)
    got = fovea.attention_backward(ctx, Q, K, V, o, lse, DOUT, **fields)
    for g, want in zip(got, wanted, strict=True):
        np.testing.assert_allclose(g.reshape(-1, 2), want, atol=2e-6)
    if "sink_logit" in fields:
        dsink = fovea.attention_backward(
            ctx, Q, K, V, o, lse, DOUT, dq=False, dk=False, dv=False, dsink_logit=True, **fields
        )
        np.testing.assert_allclose(dsink, [-0.561721], atol=2e-6)


def test_specified_merge(ctx):
    o_part = np.array([[1, 2], [3, -1], [9, 9]], np.float32).reshape(3, 1, 1, 1, 2)
    lse_part = np.array([0.5, 1.5, -np.inf], np.float32).reshape(3, 1, 1, 1)
    o, lse = fovea.merge_forward(ctx, o_part, lse_part, lse=True)
    np.testing.assert_allclose(o.reshape(2), [2.462117, -0.193176], atol=1e-6)
    np.testing.assert_allclose(lse.reshape(1), [1.813262], atol=1e-6)


@pytest.mark.parametrize(
    "interleaved, want",
    [
        (0, [-1.217058, 1.715331, 2.918693, 4.130090]),
        (1, [-0.560071, 2.164791, 2.712882, 4.200033]),
    ],
)
def test_specified_rope(ctx, interleaved, want):
    cos, sin = fovea.rope_table_get(ctx, positions=8, half=2)
    x = np.array([1, 2, 3, 4], np.float32).reshape(1, 1, 1, 4)
    y = fovea.rope_forward(
        ctx, x, cos, sin, position=np.array([[7]], np.int32), rope_interleaved=interleaved
    )
    np.testing.assert_allclose(y.reshape(4), want, atol=2e-6)
    back = fovea.rope_forward(
        ctx,
        y,
        cos,
        sin,
        position=np.array([[7]], np.int32),
        rope_interleaved=interleaved,
        inverse=1,
    )
    np.testing.assert_allclose(back, x, atol=2e-6)
