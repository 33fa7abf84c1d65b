# SPDX-License-Identifier: Apache-2.0
"""States that a call is asked for without memory for them: their rows, dtype and numbers."""
import fovea
import numpy as np
import pytest

x_ = fovea.experimental
S, D = 7, 16


def rand(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


def gla(ctx, x, **fields):
    return x_.gla_forward(ctx, x, x, x, **fields)


def delta(ctx, x, **fields):
    return x_.delta_forward(ctx, x, x, x, l2_norm=True, **fields)


@pytest.mark.parametrize("call", [gla, delta])
def test_rows_of_a_state_follow_from_the_call(ctx, call):
    x = rand(3, S, 2, D)
    given = np.zeros((3, 2, D, D), np.float32)
    call(ctx, x, state_out=given)
    assert np.abs(given).max() > 0
    np.testing.assert_array_equal(call(ctx, x, state_out=True), given)  # one a sequence of a batch
    pool = rand(5, 2, D, D)
    rows = np.array([4, -1, 0], np.int32)
    state = call(ctx, x, state_in=pool, state_row=rows, state_out=True, state_out_row=rows)
    assert state.shape == pool.shape  # as many as are read
    packed = x.reshape(1, 3 * S, 2, D)
    start = np.array([0, S, 2 * S, 3 * S], np.int32)
    state = call(ctx, packed, start=start, token_max=S, state_out=True)
    np.testing.assert_array_equal(state, given)  # one a packed sequence


@pytest.mark.parametrize("call", [gla, delta])
def test_rows_that_only_the_caller_knows_are_asked_for(ctx, call):
    x, rows = rand(3, S, 2, D), np.array([8, 0, 3], np.int32)
    with pytest.raises(TypeError, match="slots_out"):
        call(ctx, x, state_out=True, state_out_row=rows)
    state = call(ctx, x, state_out=True, state_out_row=rows, slots_out=9)
    np.testing.assert_array_equal(state[rows], call(ctx, x, state_out=True))


@pytest.mark.parametrize("call", [gla, delta])
def test_states_of_halves_are_floats_unless_one_is_given(ctx, call):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    x = rand(2, S, 2, D).astype(bfloat16)
    state = call(ctx, x, state_out=True)
    assert state.dtype == np.float32
    state = call(ctx, x, state_in=state.astype(bfloat16), state_out=True)
    assert state.dtype == bfloat16


def test_rows_of_tails(ctx):
    x, weight = rand(2, S, 8), rand(8, 4)
    tail = x_.conv1d_forward(ctx, x, weight, state_out=True, tail=3)
    np.testing.assert_array_equal(tail, x[:, -3:].transpose(0, 2, 1))
