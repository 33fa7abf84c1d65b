# SPDX-License-Identifier: Apache-2.0
"""trace over keys on several ranks: the selection of one process, bit for bit."""

import fovea.distributed as fd
import fovea.torch
import pytest
import torch
from fovea.distributed import _trace


def together(group, layout, g=2, b=2, least=None, **options):
    """least: rows of a piece of a first chunk."""
    with pytest.MonkeyPatch.context() as patch:
        if least:
            patch.setattr(_trace, "LEAST_ROWS", least)
        return compared(group, layout, g, b, **options)


def compared(group, layout, g, b, **options):
    torch.manual_seed(6)
    q, k, v = [torch.randn(b, 256, n, 16) for n in (4, g, g)]
    asked = {"return_lse": True, "return_dense": True, "return_mass": True, **options}
    own = [fd.shard(x, group, layout=layout) for x in (q, k, v)]
    made = fd.trace(*own, group, layout=layout, **asked)
    wanted = fovea.torch.trace(q, k, v, **asked)
    whole = [
        fd.unshard(x.contiguous(), group, dim=1 if i == 2 else 2, layout=layout)
        for i, x in enumerate(made)
    ]
    same = [torch.equal(x, y) for x, y in zip(whole, wanted, strict=True)]
    near = [float((x - y).abs().nan_to_num(0).max()) for x, y in list(zip(whole, wanted))[2:]]
    return same, near, whole[0]


CASES = {
    "causal": {"causal": True, "keep": 4},
    "all": {"keep": 4},
    "exact": {"causal": True, "keep": 5, "exact": True},
    "scaled": {"causal": True, "keep": 3, "scale": 0.2},
    "large blocks of keys": {"causal": True, "keep": 3, "block_keys": 64},
    "two blocks": {"causal": True, "keep": 3, "block_keys": 128},
    "more than there are": {"causal": True, "keep": 40},
    "one key head": {"causal": True, "keep": 4, "g": 1},
    "one text": {"causal": True, "keep": 4, "b": 1},
    "one text, all": {"keep": 4, "b": 1},
    "one text, large blocks of keys": {"causal": True, "keep": 3, "block_keys": 64, "b": 1},
    "one text, in pieces": {"causal": True, "keep": 4, "b": 1, "least": 16},
    "in pieces, large blocks of keys": {
        "causal": True, "keep": 3, "block_keys": 32, "b": 1, "least": 16,
    },
}


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
@pytest.mark.parametrize("name", CASES)
def test_trace(ranks, size, layout, name):
    options = {"block_rows": 16, "block_keys": 16, **CASES[name]}
    for same, near, selected in ranks.run(size, together, layout=layout, **options):
        assert same[:2] == [True, True], "selection and scores"
        assert max(near) < 2e-6, near
        assert (selected[:, :, -1] >= 0).sum() > 2


def refused(group, fields):
    x = torch.zeros(1, 64, 2, 8)
    return fd.trace(x, x, x, group, **{"keep": 2, **fields})


@pytest.mark.parametrize(
    "fields, sentence",
    [
        ({}, "block_rows is 64, wanted a divisor of 32, the tokens of a chunk"),
        ({"keep": 0}, "keep is 0, wanted more"),
        ({"block_rows": 2.5}, "block_rows is 2.5, wanted an integer"),
    ],
)
def test_bad_input_is_refused_with_its_name(ranks, fields, sentence):
    for good, (_, text, _) in ranks.outcomes(2, refused, fields=fields):
        assert not good and text.startswith("trace: ") and sentence in text
