# SPDX-License-Identifier: Apache-2.0
"""Which kernel a call chose and why no better one did: last_plan and last_reasons."""

import fovea
import numpy as np
import pytest


@pytest.fixture(params=["host", "cuda"])
def place(request):
    if not fovea.device_count(request.param):
        pytest.skip("no CUDA device here")
    with fovea.Context(request.param) as ctx:
        yield ctx


def arrays(ctx, d, dtype):
    return [ctx.array(np.ones((1, 4, 2, d), dtype)) for _ in "qkv"]


def test_a_query_chooses_and_runs_nothing(place):
    assert place.last_plan == place.last_reasons == ""
    q, k, v = arrays(place, 64, np.float16)
    fovea.workspace_bytes(fovea.attention_forward, place, q, k, v)
    chosen = place.last_plan
    assert chosen.startswith(f"attention_forward.{place.backend}.")
    assert place.last_kernel == ""
    fovea.attention_forward(place, q, k, v)
    assert place.last_plan == place.last_kernel == chosen
    x = place.array(np.ones((4, 4), np.float32))
    fovea.workspace_bytes(fovea.rope_forward, place, q, x, x)
    assert place.last_plan.startswith("rope_forward.") and place.last_kernel == chosen


def test_a_refused_call_leaves_both(place):
    q, k, v = arrays(place, 64, np.float16)
    fovea.workspace_bytes(fovea.attention_forward, place, q, k, v)
    chosen, reasons = place.last_plan, place.last_reasons
    for call in fovea.attention_forward, fovea.attention_forward_workspace:
        with pytest.raises(fovea.InvalidArgument):
            call(place, q, k, v, scale=-1)
    assert (place.last_plan, place.last_reasons, place.last_kernel) == (chosen, reasons, "")


def test_each_kernel_that_is_passed_over_says_why(place):
    ask = fovea.attention_forward_workspace
    hopper = place.get("architecture") == 90

    def reasons(*call, **options):
        ask(place, *call, **options)
        asked = place.last_plan, place.last_reasons
        fovea.attention_forward(place, *call, **options)
        assert (place.last_plan, place.last_reasons) == asked == (place.last_kernel, asked[1])
        return asked[1]

    half = arrays(place, 64, np.float16)
    if place.backend == "host":  # one kernel, which serves every call
        assert reasons(*half) == reasons(*arrays(place, 81, np.float32)) == ""
        return
    old = f"compute capability is {place.get('architecture') / 10}, wanted 9.0"

    def each(*call, **options):
        """{kernel: reason}; of another GPU than Hopper, Hopper's kernels say that alone."""
        said = dict(row.split(": ", 1) for row in reasons(*call, **options).split("; "))
        if not hopper:
            assert [said.pop(name) for name in ("sm90", "sm90_wide")] == [old] * 2
        return said

    if hopper:
        assert reasons(*half) == ""
    else:
        assert each(*half) == {}
    narrow = "d is 64 and e is 64, wanted one above 256, or q_value"
    bias = place.array(np.zeros((1, 2, 4, 4), np.float16))
    assert each(*half, bias=bias) == (
        {"sm90": "bias has a stride over rows", "sm90_wide": narrow} if hopper else {})
    odd = each(*arrays(place, 81, np.float16))
    assert odd.pop("sm80") == "d is 81, wanted a multiple of 8 up to 256"
    assert not hopper or odd["sm90"] == "d is 81, wanted a multiple of 8"
    single = each(*arrays(place, 64, np.float32))
    assert single == {name: "dtype is f32, wanted f16 or bf16"
                      for name in (*(("sm90", "sm90_wide") if hopper else ()), "sm80")}
    assert reasons(*half) == (  # of this call alone
        "" if hopper else f"sm90: {old}; sm90_wide: {old}")
