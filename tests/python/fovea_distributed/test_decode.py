# SPDX-License-Identifier: Apache-2.0
"""decode over a cache that lies on several ranks, against one cache."""

import fovea.distributed as fd
import fovea.torch
import pytest
import torch
from ranks import CUDA

HELD = 24  # keys of a cache row on a rank


def caches(size, b=3, g=2, d=16, e=16):
    torch.manual_seed(3)
    t = HELD * size
    return torch.randn(b, t, g, d), torch.randn(b, t, g, e)


def together(group, size, rows, lengths, page=0, dtype="float32", **options):
    """(o, lse) of this rank, their distance from one cache's, and whether bits are stable."""
    k, v = caches(size)
    q = torch.randn(3, rows, 4, 16)
    q, k, v = [x.to(getattr(torch, dtype)) for x in (q, k, v)]
    if "sink_logit" in options:
        options["sink_logit"] = torch.linspace(-1, 3, 4)
    total = torch.tensor(lengths, dtype=torch.int32)
    rank = torch.distributed.get_rank(group)
    own = [x[:, rank * HELD : (rank + 1) * HELD].clone() for x in (k, v)]
    for x in own:  # what no length covers is not read
        for i, length in enumerate(lengths):
            x[i, max(0, length - rank * HELD) :] = float("nan")
    if page:
        order = torch.randperm(3 * HELD // page, generator=torch.Generator(torch.get_default_device()).manual_seed(rank))
        table = order.argsort().reshape(3, -1).int()
        own = [x.reshape(-1, page, *x.shape[2:])[order] for x in own]
        options["page_table"] = table
    runs = [fd.decode(q, *own, group, context_len=total, return_lse=True, **options) for _ in "12"]
    options.pop("page_table", None)
    wanted = fovea.torch.decode(q, k, v, key_len=total, return_lse=True, **options)
    errors = [float((x - y).abs().nan_to_num(0).max()) for x, y in zip(runs[0], wanted)]
    empty = [torch.equal(x[0].isinf(), x[1].isinf()) for x in zip(runs[0], wanted)]
    return runs[0], all(map(torch.equal, *runs)) and all(empty), errors


CASES = {
    "one row": {"rows": 1, "lengths": [48, 40, 25]},
    "short": {"rows": 1, "lengths": [3, 24, 1]},
    "a draft": {"rows": 4, "lengths": [26, 48, 24]},
    "full": {"rows": 4, "lengths": [26, 48, 24], "causal": False},
    "window": {"rows": 3, "lengths": [40, 48, 27], "window_left": 9},
    "front": {"rows": 3, "lengths": [40, 48, 30], "window_left": 9, "sink_keys": 3},
    "sink": {"rows": 2, "lengths": [40, 2, 30], "sink_logit": True},
    "softcap": {"rows": 1, "lengths": [40, 2, 30], "softcap": 2.0},
    "pages": {"rows": 2, "lengths": [40, 9, 30], "page": 8},
    "none": {"rows": 1, "lengths": [40, 0, 30]},
}


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", CASES)
def test_decode(ranks, size, name):
    made = ranks.run(size, together, size=size, **CASES[name])
    for (o, lse), stable, errors in made:
        assert stable and max(errors) < 2e-6, errors
        assert torch.equal(o, made[0][0][0]) and torch.equal(lse, made[0][0][1])


def test_decode_in_bf16_rounds_once(ranks):
    for (o, _), stable, errors in ranks.run(
        4, together, size=4, rows=1, lengths=[90, 40, 25], dtype="bfloat16"
    ):
        assert o.dtype == torch.bfloat16 and stable and errors[0] <= 2**-8 and errors[1] < 1e-5


def begins(group):
    """Shares of different sizes, by key_begin."""
    k, v = caches(2)
    q, total = torch.randn(3, 2, 4, 16), torch.tensor([48, 33, 5], dtype=torch.int64)
    rank = torch.distributed.get_rank(group)
    at = (0, 7, 48)
    own = [x[:, at[rank] : at[rank + 1]] for x in (k, v)]
    o = fd.decode(q, *own, group, context_len=total, key_begin=at[rank])
    return float((o - fovea.torch.decode(q, k, v, key_len=total)).abs().max())


def test_shares_may_differ(ranks):
    assert max(ranks.run(2, begins)) < 2e-6


def graphed(group):
    """Of a graph that is replayed with other lengths: largest distance from one cache's."""
    k, v = caches(2)
    q, total = torch.randn(3, 1, 4, 16), torch.tensor([48, 33, 5], dtype=torch.int32)
    rank = torch.distributed.get_rank(group)
    own = [x[:, rank * HELD : (rank + 1) * HELD].contiguous() for x in (k, v)]

    def call():
        return fd.decode(q, *own, group, context_len=total, check=False)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        call()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        o = call()
    apart = []
    for lengths in ([48, 33, 5], [7, 40, 48]):
        total.copy_(torch.tensor(lengths, dtype=torch.int32))
        graph.replay()
        apart.append(float((o - fovea.torch.decode(q, k, v, key_len=total)).abs().max()))
    return max(apart)


@pytest.mark.skipif(not CUDA, reason="graphs are of CUDA: FOVEA_RANKS=cuda")
def test_a_graph_serves_all_lengths(ranks):
    assert max(ranks.run(2, graphed)) < 2e-6


def refused(group, fields):
    q, cache = torch.zeros(2, 1, 4, 8), torch.zeros(2, 16, 2, 8)
    given = {"v_cache": cache, "context_len": torch.tensor([1, 2])}
    for name, shape in fields.items():
        given[name] = torch.zeros(shape) if isinstance(shape, tuple) else shape
    return fd.decode(q, cache, given.pop("v_cache"), group, **given)


@pytest.mark.parametrize(
    "fields, sentence",
    [
        ({"context_len": (3,)}, "context_len is (3,), wanted (2,)"),
        ({"v_cache": (2, 8, 2, 8)}, "v_cache is (2, 8, 2, 8), wanted (2, 16, 2) first as k_cache"),
        ({"splits": -1}, "splits is -1, wanted 0 or more"),
        ({"context_len": 3}, "context_len is a int, wanted a torch.Tensor"),
    ],
)
def test_bad_input_is_refused_with_its_name(ranks, fields, sentence):
    for good, (_, text, _) in ranks.outcomes(2, refused, fields=fields):
        assert not good and text.startswith("decode: ") and sentence in text
