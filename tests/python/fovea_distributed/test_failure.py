# SPDX-License-Identifier: Apache-2.0
"""What one rank lacks, every rank tells: in a sentence, within the group's timeout."""

import contextlib
import os
import time

import fovea.distributed as fd
import fovea.distributed._peers as peers
import pytest
import torch
import torch.distributed as dist
from ranks import CUDA, Ranks

SECONDS = 3  # the timeout of the groups below


def tensors(tokens=16, h=4, g=2, d=8, dtype=torch.float32):
    return [torch.randn(1, tokens, n, d, dtype=dtype) for n in (h, g, g)]


def call(how, group, shape=None, **options):
    q, k, v = tensors(**(shape or {}))
    if how == "decode":
        return fd.decode(q[:, :1], k, v, group, context_len=torch.tensor([40]), **options)
    if how == "kl_loss":
        return fd.kl_loss(q, k, q[..., :4], k[..., :4], group, causal=True, **options)
    if how == "trace":
        return fd.trace(*tensors(tokens=64), group, keep=2, block_rows=16, causal=True, **options)
    if how in ("gla", "delta"):
        return getattr(fd, how)(q, k, v, group=group, **options)
    return getattr(fd, how)(q, k, v, group, causal=True, **options)


DIFFERENT = {
    "tokens": ({"tokens": 12}, {}, "q is (1, 16, 4, 8) float32 on rank 0 and q is (1, 12, 4, 8)"),
    "heads": ({"g": 1}, {}, "k is (1, 16, 2, 8) float32 on rank 0 and k is (1, 16, 1, 8) float32"),
    "dtype": ({"dtype": torch.bfloat16}, {}, "float32 on rank 0 and q is (1, 16, 4, 8) bfloat16"),
    "a number": ({}, {"window_left": 5}, "window_left is 0 on rank 0 and window_left is 5"),
}


def differing(group, name):
    shape, options, _ = DIFFERENT[name]
    odd = dist.get_rank(group) == 2
    return call("ring_attention", group, shape if odd else None, **(options if odd else {}))


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_differs_is_named_on_every_rank(ranks, name):
    for good, (kind, text, _) in ranks.outcomes(4, differing, name=name):
        assert not good and kind == "InvalidArgument"
        assert text.startswith("ring_attention: ") and DIFFERENT[name][2] in text
        assert text.endswith("on rank 2, wanted the same on every rank")


@pytest.mark.parametrize("how", ["head_attention", "attention", "decode", "kl_loss", "gla", "delta"])
def test_every_operation_compares(ranks, how):
    def text(outcome):
        return outcome[1][1]

    for outcome in ranks.outcomes(2, odd_heads, how=how):
        assert not outcome[0] and "on rank 0 and" in text(outcome), outcome
        assert text(outcome).endswith("on rank 1, wanted the same on every rank")


def odd_heads(group, how):
    return call(how, group, {"h": 4 << dist.get_rank(group)})


def one_refuses(group):
    q, k, v = tensors()
    if dist.get_rank(group) == 1:
        k = k[..., :4]
    return fd.ring_attention(q, k, v, group)


def test_what_one_rank_refuses_every_rank_refuses(ranks):
    made = [why for _, why in ranks.outcomes(4, one_refuses)]
    own = "ring_attention: k has 4 columns, wanted 8 as q"
    assert made[1][1] == own
    for rank in (0, 2, 3):
        assert made[rank][1] == f"ring_attention: rank 1 refused its arguments: {own}"


def dying(group, how, after):
    """Rank 1 ends after so many exchanges.  A rank that needed nothing more of it hears at its next
    call."""
    plain = peers.Peers.naming
    left = [after]

    def naming(self, what):
        left[0] -= 1
        if left[0] < 0 and self.rank == 1:
            os._exit(9)
        return plain(self, what)

    peers.Peers.naming = naming
    call(how, group)
    call(how, group)


def late(group, how):
    """Rank 1 does not come, until the other has waited long enough."""
    began = time.monotonic()
    try:
        if dist.get_rank(group) == 0:
            call(how, group)
        else:
            time.sleep(1.5 * SECONDS)
    except fd.PeerError as why:
        return time.monotonic() - began, str(why)


DYING = [("ring_attention", 0), ("ring_attention", 2), ("head_attention", 2), ("delta", 2)]


@pytest.fixture(scope="module")
def failing():
    """What each rank of a group gave that failed, and how long it took.  The groups wait for their
    timeouts together."""
    if CUDA and torch.cuda.device_count() < 4:
        pytest.skip("wants 4 GPUs")
    runs = {(how, after): (4, dying, {"how": how, "after": after}) for how, after in DYING}
    runs["late"] = (2, late, {"how": "decode"})
    with contextlib.ExitStack() as stack:
        groups = {name: stack.enter_context(Ranks(run[0], SECONDS)) for name, run in runs.items()}
        for name, (size, function, arguments) in runs.items():
            groups[name].start(size, function, **arguments)
        began, made = time.monotonic(), {}
        for name, group in groups.items():
            made[name] = [group.answer(pipe, 60) for pipe in group.pipes], time.monotonic() - began
        yield made


@pytest.mark.parametrize("how, after", DYING)
def test_a_rank_that_dies_is_told_by_all_others(failing, how, after):
    made, seconds = failing[how, after]
    assert seconds < 4 * SECONDS and made[1] is None
    for rank in (0, 2, 3):
        good, (kind, text, _) = made[rank]
        assert not good and kind == "PeerError", made[rank]
        assert text.startswith(f"{how}: rank {rank} of 4: ")
        assert "a rank died or did not come within the group's timeout" in text


def test_a_rank_that_does_not_come_is_told_in_time(failing):
    (good, (seconds, text)), _ = failing["late"][0]
    assert good and seconds < 1.4 * SECONDS
    assert text.startswith("decode: rank 0 of 2: the check of arguments")
