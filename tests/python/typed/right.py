# SPDX-License-Identifier: Apache-2.0
"""What mypy --strict must take, with the types it must find.  Never run: see test_stubs.py."""

from typing import Any, assert_type

import fovea
import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


def calls(q: F32, k: F32, v: F32, cache: NDArray[np.int8], view: memoryview) -> None:
    ctx = fovea.Context("cuda:1", threads=2)
    assert_type(fovea.attention_forward(q, k, v, causal=True, scale=0.5), F32)
    assert_type(fovea.attention_forward(ctx, q, k, v, window_left=np.int64(3)), F32)
    assert_type(fovea.attention_forward(q, k, v, ctx=ctx, scale=1), F32)
    assert_type(fovea.attention_forward(ctx=ctx, q=q, k=k, v=v, mask=view), F32)
    o, lse = fovea.attention_forward(q, k, v, lse=True, o=np.empty_like(q))
    assert_type(lse, F32)
    assert_type(fovea.attention_forward(ctx, q, k, v, lse=None), F32)
    assert_type(fovea.attention_backward(q, k, v, o, lse, o), tuple[F32, F32, F32])
    four = fovea.attention_backward(ctx, q, k, v, o, lse, o, bias=q, dbias=True)
    assert_type(four, tuple[F32, F32, F32, F32])
    only: F32 = fovea.attention_backward(q, k, v, o, lse, o, dq=False, dk=False)
    assert_type(fovea.kl_forward(q, k, q, k, kl=True, direction="student_teacher"), F32)
    kl, total = fovea.kl_forward(q, k, q, k, kl=True, total=True)
    assert_type(fovea.cache_append(k_new=k, k=cache, key_len=np.array([3], np.int32)), None)
    assert_type(fovea.cache_copy(k, k, np.array([[0, 1]], np.int32)), None)
    cos, sin = fovea.rope_table_get(positions=8, half=4, scaling=fovea.ops.Scaling.YARN)
    assert_type(fovea.rope_forward(q, cos, sin), F32)
    assert_type(fovea.experimental.kl_indexer_forward(q, k, q, k, v, kl=True), F32)
    assert_type(fovea.attention_forward(view, k, v), Any)
    assert_type(fovea.attention_forward(ctx.array(q), k, v), fovea.Buffer)
    print(only, kl, total)


def around(ctx: fovea.Context, q: F32) -> None:
    assert_type(fovea.workspace_bytes(fovea.attention_forward, ctx, q, q, q), int)
    call = fovea.prepare(fovea.attention_forward, ctx, q, q, q, causal=True)
    call(q=q)
    assert_type(fovea.default_context("cuda:0").get("threads"), int)
    assert_type(ctx.last_kernel, str)
    assert_type(ctx.last_plan, str)
    assert_type(ctx.last_reasons, str)
    assert_type(fovea.build("git") + fovea.__version__, str)
    assert_type(fovea.collect_env()["git"], str)
    assert_type(ctx.empty((2, 3), "bf16").nbytes, int)
    with ctx, fovea.TraceSession(ctx, keep=4).begin(bytearray().extend) as session:
        session.trace(q, q)
    try:
        np.asarray(ctx.array(q))
    except (fovea.InvalidArgument, fovea.Unsupported) as why:
        print(why, fovea.device_count(), fovea.library_path)
