# SPDX-License-Identifier: Apache-2.0
"""Methods by name: fovea.recipe."""

import pathlib
import subprocess
import sys

import fovea
import numpy as np
import pytest


def operands(rows=9):
    rng = np.random.default_rng(3)
    q = rng.standard_normal((1, rows, 4, 8), dtype=np.float32)
    k, v = rng.standard_normal((2, 1, 12, 2, 8), dtype=np.float32)
    return q, k, v


def test_it_is_the_operation_with_the_methods_numbers(ctx):
    q, k, v = operands()
    streaming = fovea.recipe("streamingllm")
    assert streaming.numbers == {"causal": 1, "sink_keys": 4, "window_left": 2000}
    wanted = fovea.attention_forward(ctx, q, k, v, causal=True, sink_keys=4, window_left=3)
    assert np.array_equal(streaming(ctx, q, k, v, window_left=3), wanted)
    assert np.array_equal(streaming(q, k, v, window_left=3, ctx=ctx), wanted)
    o, lse = streaming(ctx, q, k, v, lse=True)
    assert np.array_equal(o, fovea.attention_forward(ctx, q, k, v, causal=True))


def test_an_enum_is_told_by_name():
    assert fovea.recipe("dsa").numbers["measure"] == "relu_weighted"


def test_what_it_needs_is_asked_for():
    q, k, v = operands()
    with pytest.raises(fovea.InvalidArgument, match="^recipe moa: head_window is absent, wanted "):
        fovea.recipe("moa")(q, k, v)
    index = {"index_q": q, "index_k": k}
    for lists in ({}, {"lists": 0}, {"lists": None}):
        with pytest.raises(fovea.InvalidArgument, match="^recipe msa: lists is absent"):
            fovea.recipe("msa")(q, k, v, **index, **lists)
    assert fovea.recipe("msa")(q, k, v, **index, lists=2).shape == q.shape


def test_it_is_prepared_and_asked_as_its_operation_is(ctx):
    q, k, v = operands()
    streaming = fovea.recipe("streamingllm")
    call = fovea.prepare(streaming, ctx, q, k, v)
    assert np.array_equal(call(), streaming(ctx, q, k, v))
    bytes_of = fovea.workspace_bytes(fovea.attention_forward, ctx, q, k, v, causal=True)
    assert fovea.workspace_bytes(streaming, ctx, q, k, v, window_left=0, sink_keys=0) == bytes_of


def test_names():
    with pytest.raises(fovea.InvalidArgument, match="^recipe: there is no 'StreamLLM', wanted streamingllm$"):
        fovea.recipe("StreamLLM")
    with pytest.raises(TypeError, match="name is 3, wanted a str"):
        fovea.recipe(3)
    names = [method.name for method in fovea.recipes()]
    assert names == sorted(names) and "h2o" in names
    for method in fovea.recipes():
        assert repr(method) == repr(fovea.recipe(method.name))
        assert all(text in str(method) for text in (method.paper, method.operation, method.words))


def test_the_command():
    folder = pathlib.Path(fovea.__file__).parents[1]
    env = {"PYTHONPATH": str(folder), "FOVEA_LIBRARY": fovea.library_path}
    command = [sys.executable, "-m", "fovea", "recipes"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "\n\n".join(map(str, fovea.recipes())) + "\n"
