# SPDX-License-Identifier: Apache-2.0
"""Every failure is an exception of the right class whose text names the operation and the field."""

import re

import fovea
import numpy as np
import pytest

X = np.ones((1, 3, 2, 8), np.float32)


def forward(ctx, **change):
    fields = {"q": X, "k": X, "v": X, **change}
    return fovea.attention_forward(ctx, fields.pop("q"), fields.pop("k"), fields.pop("v"), **fields)


@pytest.mark.parametrize(
    "change, kind, text",
    [
        (dict(q=X[0]), fovea.InvalidArgument, "attention_forward: q has 3 dimensions"),
        (dict(k=X[..., :4]), fovea.InvalidArgument, "attention_forward: k.*d.*is 4, wanted 8"),
        (
            dict(k=X[:, ::-1]),
            fovea.InvalidArgument,
            "attention_forward: k has a negative stride in dimension 1",
        ),
        (dict(k=X.view(np.uint8)), fovea.InvalidArgument, "attention_forward: k"),
        (
            dict(o=np.lib.stride_tricks.as_strided(np.ones(8, np.float32), X.shape, (0, 0, 0, 4))),
            fovea.InvalidArgument,
            "attention_forward: o.stride",
        ),
        (dict(v=X.astype(np.float64)), TypeError, "attention_forward: v has dtype float64"),
        (dict(q=X.astype(">f4")), TypeError, "attention_forward: q .*byte order"),
        (dict(v=X.astype(np.float16)), fovea.InvalidArgument, "attention_forward: v"),
        (dict(key_len=np.ones(1, bool)), TypeError, "attention_forward: key_len has dtype bool"),
        (dict(key_len=np.ones(1, np.int64)), fovea.InvalidArgument, "attention_forward: key_len"),
        (dict(key_len=[3]), TypeError, "attention_forward: key_len is a list, wanted an array"),
        (dict(q=np.ma.array(X, mask=X > 0)), TypeError, "attention_forward: q is a masked array"),
        (dict(scale="big"), TypeError, "attention_forward: scale is 'big'"),
        (dict(scale=-1.0), fovea.InvalidArgument, "attention_forward: scale"),
        (dict(scale=1e60), TypeError, "attention_forward: scale"),
        (dict(causal=2**40), TypeError, "attention_forward: causal"),
        (dict(window_left=-2), fovea.InvalidArgument, "attention_forward: window_left"),
        (dict(dropout=0.1), TypeError, "dropout"),
        (
            dict(o=np.ones((1, 3, 2, 9), np.float32)),
            fovea.InvalidArgument,
            "attention_forward: o.*is 9, wanted 8",
        ),
        (
            dict(o=np.broadcast_to(np.float32(0), X.shape)),
            fovea.InvalidArgument,
            "attention_forward: o is read-only",
        ),
        (dict(lse=np.ones((1, 2, 3), np.float16)), fovea.InvalidArgument, "attention_forward: lse"),
    ],
)
def test_text_and_class(ctx, change, kind, text):
    with pytest.raises(kind, match=re.compile(text, re.S)):
        forward(ctx, **change)


def test_missing_inputs_and_extents(ctx):
    with pytest.raises(TypeError, match="'v'"):
        fovea.attention_forward(ctx, X, X)
    with pytest.raises(TypeError, match="rope_table_get: the extent positions .* pass positions="):
        fovea.rope_table_get(ctx, half=4)
    with pytest.raises(fovea.InvalidArgument, match="dbias needs bias"):
        fovea.attention_backward(ctx, X, X, X, X, np.ones((1, 2, 3), np.float32), X, dbias=True)
    with pytest.raises(fovea.InvalidArgument, match="scaling is 'ntk', wanted one of none, linear"):
        fovea.rope_table_get(ctx, positions=2, half=2, scaling="ntk")


def test_classes():
    assert issubclass(fovea.InvalidArgument, ValueError) and issubclass(
        fovea.OutOfMemory, MemoryError
    )
    for kind in (
        fovea.InvalidArgument,
        fovea.Unsupported,
        fovea.OutOfMemory,
        fovea.DeviceError,
        fovea.InternalError,
    ):
        assert issubclass(kind, fovea.FoveaError)


def test_a_fixed_workspace_that_is_too_small_says_what_it_needs(ctx):
    need = fovea.attention_forward_workspace(ctx, X, X, X, lse=True)
    assert need > 0
    ctx.set_workspace(ctx.empty((need - 1,), "u8"))
    with pytest.raises(fovea.OutOfMemory, match=str(need)):
        forward(ctx)
    ctx.set_workspace(ctx.empty((need,), "u8"))
    forward(ctx)
    ctx.set_workspace(None)
    forward(ctx)


def test_workspace_asks_without_running_or_allocating(ctx):
    with pytest.raises(fovea.InvalidArgument, match="attention_forward: k"):
        fovea.attention_forward_workspace(ctx, X, X[..., :4], X)
    q = np.broadcast_to(np.float32(0), (1, 1 << 40, 1, 8))
    assert isinstance(
        fovea.rope_forward_workspace(
            ctx, q, np.ones((1, 4), np.float32), np.ones((1, 4), np.float32)
        ),
        int,
    )
    assert ctx.last_kernel == ""


def test_a_closed_context_refuses(ctx):
    other = fovea.Context()
    other.close()
    other.close()
    with pytest.raises(fovea.InvalidArgument, match="(?i)ctx|context"):
        forward(other)


def test_unknown_backend_and_device():
    with pytest.raises(KeyError):
        fovea.Context("tpu")
    with pytest.raises(fovea.FoveaError):
        fovea.Context("host", 1)
    if fovea.device_count("cuda") == 0:
        with pytest.raises(fovea.Unsupported):
            fovea.Context("cuda")
