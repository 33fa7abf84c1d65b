# SPDX-License-Identifier: Apache-2.0
"""Random shapes and options against float64 NumPy."""

import fovea
import numpy as np
import reference
from hypothesis import given, settings, strategies as st

CTX = fovea.Context("host", threads=2)


@st.composite
def cases(draw):
    g = draw(st.integers(1, 3))
    shape = dict(
        b=draw(st.integers(1, 2)),
        s=draw(st.integers(0, 40)),
        t=draw(st.integers(0, 70)),
        g=g,
        h=g * draw(st.integers(1, 3)),
        d=draw(st.integers(1, 72)),
        e=draw(st.integers(1, 72)),
    )
    options = {}
    if draw(st.booleans()):
        options["causal"] = True
    elif draw(st.booleans()):
        options["window_right"] = draw(st.integers(1, 20))
    if draw(st.booleans()):
        options["window_left"] = draw(st.integers(1, 20))
        options["sink_keys"] = draw(st.integers(0, 3))
    if draw(st.booleans()):
        options["softcap"] = draw(st.sampled_from([1.0, 15.0]))
    if draw(st.booleans()):
        options["scale"] = draw(st.sampled_from([0.125, 1.0]))
    extras = draw(st.sets(st.sampled_from(["alibi", "sink_logit", "bias", "key_len"])))
    return shape, options, extras, draw(st.integers(0, 2**32 - 1)), draw(st.booleans())


def arrays(case):
    shape, options, extras, seed, transposed = case
    rng = np.random.default_rng(seed)
    b, s, t, g, h, d, e = (shape[n] for n in "bstghde")

    def normal(*dims):
        x = rng.standard_normal(dims).astype(np.float32)
        return (
            np.swapaxes(np.swapaxes(x, 1, 2).copy(), 1, 2) if transposed and len(dims) == 4 else x
        )

    fields = dict(options)
    if "alibi" in extras:
        fields["alibi"] = abs(normal(b, h))
    if "sink_logit" in extras:
        fields["sink_logit"] = normal(h)
    if "bias" in extras:
        fields["bias"] = np.broadcast_to(normal(b, 1, s, t), (b, h, s, t))
    if "key_len" in extras:
        fields["key_len"] = rng.integers(0, t + 1, b).astype(np.int32)
    return normal(b, s, h, d), normal(b, t, g, d), normal(b, t, g, e), fields


def rms_close(got, want, limit):
    assert np.isfinite(got).all()
    assert np.sqrt(((got - want) ** 2).sum()) <= limit * (np.sqrt((want**2).sum()) + 1e-3), abs(
        got - want
    ).max()


@settings(max_examples=120, deadline=None)
@given(cases())
def test_forward_against_float64(case):
    q, k, v, fields = arrays(case)
    o, lse = fovea.attention_forward(CTX, q, k, v, lse=True, **fields)
    o_want, lse_want = reference.attention(q, k, v, **fields)
    rms_close(o, o_want, 4e-6)
    seen = np.isfinite(lse_want)
    assert (lse[~seen] == lse_want[~seen]).all()
    np.testing.assert_allclose(lse[seen], lse_want[seen], atol=2e-5, rtol=1e-6)


@settings(max_examples=40, deadline=None)
@given(cases(), st.integers(0, 2**32 - 1))
def test_backward_is_the_slope_of_float64(case, seed):
    """<dq, step> + <dk, step> + <dv, step> against a central difference of the float64 forward."""
    q, k, v, fields = arrays(case)
    rng = np.random.default_rng(seed)
    o, lse = fovea.attention_forward(CTX, q, k, v, lse=True, **fields)
    dout = rng.standard_normal(o.shape).astype(np.float32)
    grads = fovea.attention_backward(CTX, q, k, v, o, lse, dout, **fields)
    steps = [rng.standard_normal(x.shape) for x in (q, k, v)]
    h = 1e-5
    up, down = (
        reference.attention(
            *(x.astype(np.float64) + sign * h * step for x, step in zip((q, k, v), steps)), **fields
        )[0]
        for sign in (1, -1)
    )
    slope = ((up - down) / (2 * h) * dout).sum()
    parts = [(g.astype(np.float64) * step) for g, step in zip(grads, steps)]
    size = np.sqrt(sum((p**2).sum() for p in parts)) + 1e-3
    assert abs(sum(p.sum() for p in parts) - slope) <= 2e-5 * size
