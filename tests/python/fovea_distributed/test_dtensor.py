# SPDX-License-Identifier: Apache-2.0
"""attention of DTensors: every placement gives what one process gives."""

import fovea.distributed as fd
import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from test_ring import LEARNED, made, mesh_of, wanted

BATCH, TOKENS, HEADS, ALL = Shard(0), Shard(1), Shard(2), Replicate()
SHAPE = {"b": 2, "s": 32, "h": 4, "g": 2}


def line(group):
    return dist.device_mesh.DeviceMesh.from_group(group, torch.get_default_device().type, mesh_dim_names=("ranks",))


def placed(group, places, **options):
    """Errors of o, lse and gradients, whether o lies as q, and whether lse is that of o."""
    mesh = line(group) if len(places) == 1 else mesh_of((2, 2))
    q, k, v, dout = made(**SHAPE)
    weight, whole = wanted(tuple(SHAPE.items()), "float32", None, tuple(options.items()))
    learned = [torch.linspace(*LEARNED[n], 4).requires_grad_() for n in LEARNED if n in options]
    options.update(zip([n for n in LEARNED if n in options], learned))
    leaves = [distribute_tensor(x, mesh, places).requires_grad_() for x in (q, k, v)]
    o, lse = fd.attention(*leaves, return_lse=True, **options)
    lies = tuple(o.placements) == tuple(places) and o.shape == q.shape
    loss = (o * distribute_tensor(dout, mesh, places)).sum()
    loss = loss + (lse * distribute_tensor(weight, mesh, lse.placements)).sum()
    grads = torch.autograd.grad(loss.full_tensor(), [*leaves, *learned])
    got = [x.full_tensor() for x in (o, lse, *grads[:3])]
    spread = [axis for axis, x in enumerate(places) if x != ALL]
    for name, x in zip([n for n in LEARNED if n in options], grads[3:]):
        for axis in spread:
            dist.all_reduce(x, group=mesh.get_group(axis))
        got.append(x)
    alone = fd.attention(*leaves, **options)
    return [float((x - y).abs().max() / y.abs().max()) for x, y in zip(got, whole, strict=True)], (
        lies and torch.equal(alone.to_local(), o.to_local())
    )


@pytest.mark.parametrize(
    "size, place", [(2, BATCH), (2, TOKENS), (4, TOKENS), (2, HEADS), (4, ALL)], ids=str
)
def test_one_axis(ranks, size, place):
    for errors, lies in ranks.run(size, placed, places=[place], causal=True, window_left=9):
        assert lies and max(errors) < 2e-6, errors


@pytest.mark.parametrize("place, what", [(BATCH, "batch"), (HEADS, "heads")], ids=str)
def test_two_of_something_over_four_ranks(ranks, place, what):
    for good, (kind, text, _) in ranks.outcomes(4, placed, places=[place], causal=True):
        assert not good and kind == "InvalidArgument"
        assert f"wanted a multiple of 4 for the {what} of so many ranks" in text


@pytest.mark.parametrize(
    "places", [(TOKENS, HEADS), (BATCH, TOKENS), (HEADS, BATCH), (ALL, TOKENS)], ids=str
)
def test_two_axes(ranks, places):
    options = {"causal": True, "alibi": True, "sink_logit": True}
    for errors, lies in ranks.run(4, placed, places=list(places), **options):
        assert lies and max(errors) < 2e-6, errors


def wrong(group, case):
    x = torch.zeros(2, 32, 4, 8)
    flat, square = line(group), mesh_of((2, 2))
    q = distribute_tensor(x, square, [TOKENS, HEADS])
    if case == "mixed":
        return fd.attention(q, x, x)
    if case == "other":
        return fd.attention(q, *[distribute_tensor(x, square, [TOKENS, ALL])] * 2)
    if case == "mesh":
        return fd.attention(q, q, q, flat)
    if case == "columns":
        return fd.attention(*[distribute_tensor(x, flat, [Shard(3)])] * 3)
    if case == "odd":
        return fd.attention(*[distribute_tensor(x[:, :30], flat, [TOKENS])] * 3)
    return fd.attention(*[distribute_tensor(x, square, [TOKENS, TOKENS])] * 3)


REFUSED = {
    "mixed": "k is no DTensor, wanted q, k and v alike",
    "other": "k lies as (Shard(dim=1), Replicate()) on",
    "mesh": "wanted None or",
    "columns": "q lies as S(3) on axis 0, wanted Shard(0), Shard(1), Shard(2) or Replicate()",
    "odd": "q is (2, 30, 4, 8), wanted a multiple of 4 for the tokens",
    "twice": "tokens are cut over two axes of the mesh, wanted one: give heads the other",
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused(ranks, case):
    for good, (kind, text, trace) in ranks.outcomes(4, wrong, case=case):
        assert not good and kind == "InvalidArgument", trace
        assert text.startswith("attention: ") and REFUSED[case] in text
