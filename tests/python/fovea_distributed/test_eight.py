# SPDX-License-Identifier: Apache-2.0
"""Eight ranks against one process: a case or two of each function, by the tests of two and four."""

import pytest
import test_decode
import test_kl
import test_ring
import test_state
import test_trace
import torch
from ranks import CUDA, Ranks


@pytest.fixture(scope="module")
def eight():
    if CUDA and torch.cuda.device_count() < 8:
        pytest.skip(f"8 ranks are wanted, there are {torch.cuda.device_count()} GPUs")
    with Ranks(8) as made:
        yield made


SPLITS = {
    "zigzag": {"how": "ring_attention", "layout": "zigzag", "shape": {}},
    "contiguous": {"how": "ring_attention", "layout": "contiguous", "shape": {}},
    "window": {"how": "ring_attention", "layout": "zigzag", "shape": {}, "window_left": 7},
    "packed": {"how": "ring_attention", "layout": "zigzag", "shape": {}, "starts": test_ring.PACKED},
    "heads": {"how": "head_attention", "layout": "contiguous", "shape": {"h": 16, "g": 8}},
    "mesh": {"how": "attention", "layout": "zigzag", "shape": {"h": 4, "g": 2}, "mesh": (4, 2)},
}


@pytest.mark.parametrize("name", SPLITS)
def test_attention(eight, name):
    for same, errors in eight.run(8, test_ring.together, causal=True, **SPLITS[name]):
        assert same and max(errors) < 2e-6, errors


@pytest.mark.parametrize("name", ["one row", "a draft", "sink", "pages"])
def test_decode_of_a_cache(eight, name):
    lengths = [190, 40, 97]
    made = eight.run(8, test_decode.together, size=8, **{**test_decode.CASES[name], "lengths": lengths})
    for (o, lse), stable, errors in made:
        assert stable and max(errors) < 2e-6, errors
        assert torch.equal(o, made[0][0][0]) and torch.equal(lse, made[0][0][1])


@pytest.mark.parametrize("name", ["mean", "rows", "packed"])
def test_kl_loss(eight, name):
    for stable, errors in eight.run(8, test_kl.together, layout="zigzag", **test_kl.CASES[name]):
        assert stable and max(errors) < 5e-6, errors


@pytest.mark.parametrize("heads", [2, 8])
@pytest.mark.parametrize("name", ["keys", "gated delta"])
def test_states(eight, name, heads):
    op, extra = test_state.CASES[name]
    numbers = test_state.NUMBERS.get(name, {})
    for stable, errors in eight.run(
        8, test_state.together, name=op, extra=extra, heads=heads, **numbers
    ):
        assert stable and max(errors) < 5e-6, errors


@pytest.mark.parametrize("name", ["causal", "one text, all"])
def test_trace_of_a_text(eight, name):
    options = {"block_rows": 16, "block_keys": 16, **test_trace.CASES[name]}
    for same, near, _ in eight.run(8, test_trace.together, layout="zigzag", **options):
        assert same[:2] == [True, True] and max(near) < 2e-6, near
