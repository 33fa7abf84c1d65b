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
    why = "" if hopper else f"sm90: compute capability is {place.get('architecture') / 10}, wanted 9.0"
    assert reasons(*half) == why
    bias = place.array(np.zeros((1, 2, 4, 4), np.float16))
    assert reasons(*half, bias=bias) == (why or "sm90: bias is given, wanted none")
    odd = reasons(*arrays(place, 81, np.float16))
    assert odd.startswith((why or "sm90: d is 81, wanted a multiple of 8") + "; ")
    assert odd.endswith("; sm80: d is 81, wanted a multiple of 8 up to 256")
    single = reasons(*arrays(place, 64, np.float32))
    assert single.split("; ") == [
        "sm90: dtype is f32, wanted f16 or bf16",
        "sm80: dtype is f32, wanted f16 or bf16",
    ]
    assert reasons(*half) == why  # of this call alone
