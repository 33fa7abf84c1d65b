# SPDX-License-Identifier: Apache-2.0
"""ring_attention, head_attention and both on a mesh, against one process."""

import functools

import fovea
import fovea.distributed as fd
import fovea.torch
import pytest
import torch
import torch.distributed as dist

TOKENS = 64


def made(b=1, s=TOKENS, h=4, g=2, d=16, e=16, dtype=torch.float32):
    torch.manual_seed(1)
    q, k = torch.randn(b, s, h, d), torch.randn(b, s, g, d)
    v, dout = torch.randn(b, s, g, e), torch.randn(b, s, h, e)
    return [x.to(dtype) for x in (q, k, v, dout)]


LEARNED = {"sink_logit": (-1, 2), "alibi": (0.02, 0.3)}  # a number for each head, from and to


def alone(q, k, v, dout, starts=None, weight=None, **options):
    """o, lse and gradients by one process."""
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    for name in LEARNED:
        if name in options:
            options[name] = options[name].clone().requires_grad_()
            leaves.append(options[name])
    if starts is None:
        o, lse = fovea.torch.attention(*leaves[:3], return_lse=True, **options)
    elif "sink_keys" in options:  # which varlen_attention has not
        texts = [
            fovea.torch.attention(*[x[:, a:b] for x in leaves[:3]], return_lse=True, **options)
            for a, b in zip(starts, starts[1:])
            if a < b
        ]
        o, lse = [torch.cat(x, dim) for dim, x in zip((1, 2), zip(*texts))]
    else:
        where = torch.tensor(starts, dtype=torch.int32)
        longest = max(b - a for a, b in zip(starts, starts[1:]))
        o, lse = fovea.torch.varlen_attention(
            *[x[0] for x in leaves[:3]], where, query_max=longest, return_lse=True, **options
        )
        o, lse = o[None], lse[None]
    loss = (o * dout).sum() + (weight * lse).sum()
    return [o, lse, *torch.autograd.grad(loss, leaves)]


@functools.lru_cache
def wanted(shape, dtype, starts, options):
    """What one process gives for made(**shape), and the weights of lse in the loss; made once for
    all layouts and sizes."""
    q, k, v, dout = made(dtype=getattr(torch, dtype), **dict(shape))
    weight = torch.randn(q.shape[0], q.shape[2], q.shape[1], generator=torch.Generator(torch.get_default_device()).manual_seed(2))
    options = dict(options)
    options.update({n: torch.linspace(*LEARNED[n], q.shape[2]) for n in LEARNED if n in options})
    return weight, [x.detach() for x in alone(q, k, v, dout, starts, weight, **options)]


def together(group, how, layout, shape, starts=None, mesh=None, dtype="float32", **options):
    """The same by the ranks, whole again; and whether a second run has the same bits."""
    q, k, v, dout = made(dtype=getattr(torch, dtype), **shape)
    weight, whole_of = wanted(
        tuple(shape.items()), dtype, starts and tuple(starts), tuple(options.items())
    )
    learned = {n: torch.linspace(*LEARNED[n], q.shape[2]) for n in LEARNED if n in options}
    over = group
    if mesh:
        over = mesh_of(mesh)
    call = getattr(fd, how)
    runs = []
    for _ in range(2):
        leaves = [fd.shard(x, over, layout=layout).requires_grad_() for x in (q, k, v)]
        options.update({n: x.clone().requires_grad_() for n, x in learned.items()})
        leaves += [options[n] for n in learned]
        o, lse = call(*leaves[:3], over, layout=layout, return_lse=True, query_start=starts, **options)
        mine = fd.shard(dout, over, layout=layout)
        weights = fd.shard(weight, over, dim=2, layout=layout)
        grads = torch.autograd.grad((o * mine).sum() + (weights * lse).sum(), leaves)
        runs.append([o.detach(), lse.detach(), *grads])
    same = all(torch.equal(x, y) for x, y in zip(*runs))
    whole = [fd.unshard(x, over, dim=1 + (i == 1), layout=layout) for i, x in enumerate(runs[0][:5])]
    for x in runs[0][5:]:
        dist.all_reduce(x, group=group)
        whole.append(x)
    return same, [
        float((x.float() - y.float()).abs().max() / y.float().abs().max())
        for x, y in zip(whole, whole_of, strict=True)
    ]


@functools.lru_cache
def mesh_of(shape):
    return dist.init_device_mesh(torch.get_default_device().type, shape, mesh_dim_names=("ring", "heads"))

PACKED = [0, 5, 5, 31, 50, 64]
CASES = {
    "full": {},
    "causal": {"causal": True},
    "window": {"causal": True, "window_left": 7},
    "wide window": {"causal": True, "window_left": 23},
    "both sides": {"window_left": 5, "window_right": 20},
    "ahead": {"window_right": 9},
    "front": {"causal": True, "window_left": 6, "sink_keys": 11},
    "softcap": {"causal": True, "softcap": 3.0},
    "sink": {"causal": True, "sink_logit": True, "window_left": 9},
    "scale": {"causal": True, "scale": 0.3},
    "packed": {"causal": True, "starts": PACKED},
    "packed window": {"causal": True, "window_left": 4, "starts": PACKED},
    "packed full": {"starts": PACKED},
    "packed front": {"causal": True, "window_left": 4, "sink_keys": 2, "starts": PACKED},
    "chunks": {"causal": True, "local_chunk": 12},
    "chunks of a window": {"window_left": 5, "local_chunk": 20},
    "alibi": {"causal": True, "alibi": True},
    "alibi both sides": {"window_left": 30, "window_right": 11, "alibi": True},
    "alibi front": {"causal": True, "window_left": 6, "sink_keys": 11, "alibi": True},
    "alibi full": {"alibi": True, "sink_logit": True},
}


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
@pytest.mark.parametrize("name", CASES)
def test_ring(ranks, size, layout, name):
    for same, errors in ranks.run(
        size, together, how="ring_attention", layout=layout, shape={}, **CASES[name]
    ):
        assert same
        assert max(errors) < 2e-6, errors


SHAPES = {
    "one head": {"h": 2, "g": 1},
    "wide values": {"h": 4, "g": 4, "d": 8, "e": 24},
    "batch": {"b": 3, "h": 8, "g": 2, "s": 32},
}


def test_chunks_of_a_batch(ranks):
    """Packed texts are one call where the batch is one; a batch has calls of one chunk each."""
    for same, errors in ranks.run(2, together, how="ring_attention", layout="zigzag", causal=True,
                                  shape=SHAPES["batch"], local_chunk=5):  # fmt: skip
        assert same and max(errors) < 2e-6, errors


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_ring_of_shapes(ranks, size, shape):
    for same, errors in ranks.run(
        size, together, how="ring_attention", layout="zigzag", shape=SHAPES[shape], causal=True
    ):
        assert same and max(errors) < 2e-6, errors


def test_ring_in_bf16(ranks):
    """Gradients of hops are f32 and rounded once, as o is."""
    made = ranks.run(4, together, how="ring_attention", layout="zigzag", shape={}, causal=True,
                     dtype="bfloat16")  # fmt: skip
    for same, (o, lse, *gradients) in made:
        assert same and o <= 2**-8 and lse < 1e-5 and max(gradients) <= 2**-7


def alike(group, dtype, **options):
    """Which share of o, dq, dk and dv has the bits of one process."""
    q, k, v, dout = made(dtype=dtype)
    weight = torch.zeros(q.shape[0], q.shape[2], q.shape[1])
    one = alone(q, k, v, dout, weight=weight, **options)
    leaves = [fd.shard(x, group).requires_grad_() for x in (q, k, v)]
    o = fd.ring_attention(*leaves, group, **options)
    grads = torch.autograd.grad((o * fd.shard(dout, group)).sum(), leaves)
    whole = [fd.unshard(x, group) for x in (o.detach(), *grads)]
    return [float((x == y).float().mean()) for x, y in zip(whole, [one[0], *one[2:]])]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_gradients_in_16_bits_are_those_of_one_process(ranks, dtype):
    for o, *gradients in ranks.run(4, alike, dtype=dtype, causal=True):
        assert o > 0.99 and min(gradients) > 0.99


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1), (12, 3)], ids=str)
def test_heads(ranks, size, layout, heads):
    shape = {"h": heads[0], "g": heads[1]}
    for same, errors in ranks.run(
        size, together, how="head_attention", layout=layout, shape=shape, causal=True, window_left=19
    ):
        assert same and max(errors) < 2e-6, errors


@pytest.mark.parametrize("name", ["front", "sink", "packed window", "packed front", "alibi", "chunks"])
def test_heads_of_options(ranks, name):
    for same, errors in ranks.run(
        4, together, how="head_attention", layout="contiguous", shape={}, **CASES[name]
    ):
        assert same and max(errors) < 2e-6, errors


@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
@pytest.mark.parametrize("mesh", [(2, 2), (4, 1), (1, 4)], ids=str)
@pytest.mark.parametrize("name", ["causal", "window", "sink", "packed", "alibi front"])
def test_mesh(ranks, layout, mesh, name):
    for same, errors in ranks.run(
        4, together, how="attention", layout=layout, shape={"g": 1}, mesh=mesh, **CASES[name]
    ):
        assert same and max(errors) < 2e-6, errors


UNEVEN = {2: [23, 41], 4: [10, 0, 37, 17]}


def uneven(group, starts=None, **options):
    """The same with shards of other sizes."""
    tokens = UNEVEN[dist.get_world_size(group)]
    q, k, v, dout = made()
    weight, whole = wanted((), "float32", starts and tuple(starts), tuple(options.items()))
    how = {"layout": "contiguous", "tokens": tokens}
    learned = {n: torch.linspace(*LEARNED[n], 4).requires_grad_() for n in LEARNED if n in options}
    leaves = [fd.shard(x, group, **how).requires_grad_() for x in (q, k, v)]
    o, lse = fd.ring_attention(
        *leaves, group, return_lse=True, query_start=starts, **how, **{**options, **learned}
    )
    mine, weights = fd.shard(dout, group, **how), fd.shard(weight, group, dim=2, **how)
    loss = (o * mine).sum() + (weights * lse).sum()
    grads = torch.autograd.grad(loss, [*leaves, *learned.values()])
    got = [fd.unshard(x, group, **how) for x in (o.detach(), *grads[:3])]
    got.insert(1, fd.unshard(lse.detach(), group, dim=2, **how))
    for x in grads[3:]:
        dist.all_reduce(x, group=group)
        got.append(x)
    own = fd.shard(torch.arange(TOKENS), group, dim=0, **how)
    placed = torch.equal(own, fd.positions(tokens, group, layout="contiguous"))
    return placed, [float((x - y).abs().max() / y.abs().max()) for x, y in zip(got, whole, strict=True)]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", ["full", "causal", "front", "packed window", "chunks", "alibi"])
def test_shards_of_other_sizes(ranks, size, name):
    for placed, errors in ranks.run(size, uneven, **CASES[name]):
        assert placed and max(errors) < 2e-6, errors


def one_axis(group):
    mesh = dist.init_device_mesh(torch.get_default_device().type, (4,), mesh_dim_names=("context",))
    q, k, v, _ = made()
    over_mesh = fd.attention(*[fd.shard(x, mesh) for x in (q, k, v)], mesh, causal=True)
    over_group = fd.attention(*[fd.shard(x, group) for x in (q, k, v)], group, causal=True)
    return torch.equal(over_mesh, over_group)


def test_a_mesh_of_one_axis_is_a_group(ranks):
    assert ranks.run(4, one_axis) == [True] * 4


def places(group, size):
    whole = torch.arange(32).reshape(1, 32)
    out = []
    for layout in ("zigzag", "contiguous"):
        own = fd.shard(whole, group, layout=layout)
        at = fd.positions(32 // size, group, layout=layout)
        x = torch.arange(32.0).reshape(1, 32).requires_grad_()
        (fd.unshard(fd.shard(x, group, layout=layout), group, layout=layout) ** 2).sum().backward()
        back = torch.equal(fd.unshard(own, group, layout=layout), whole)
        grads = torch.zeros(32)
        grads[at] = 2.0 * at
        out.append(back and torch.equal(own[0], at) and torch.equal(x.grad[0], grads))
    return own.tolist(), out


@pytest.mark.parametrize("size", [2, 4])
def test_shards(ranks, size):
    made = ranks.run(size, places, size=size)
    assert [good for _, good in made] == [[True, True]] * size
    assert made[0][0] == [list(range(32 // size))]


def sent_bytes(group, layout, **options):
    """Elements that a rank sends in a forward."""
    import fovea.distributed._peers as peers

    sent, plain = [0], peers.Peers.exchange

    def counted(self, to, tensors, *rest):
        sent[0] += sum(x.numel() for x in tensors) if to is not None else 0
        return plain(self, to, tensors, *rest)

    peers.Peers.exchange = counted
    try:
        q, k, v, _ = made()
        fd.ring_attention(*[fd.shard(x, group, layout=layout) for x in (q, k, v)], group,
                          layout=layout, **options)  # fmt: skip
    finally:
        peers.Peers.exchange = plain
    return sent[0]


def test_keys_that_nobody_sees_are_not_sent(ranks):
    shard = TOKENS // 4 * 2 * (16 + 16)
    contiguous = ranks.run(4, sent_bytes, layout="contiguous", causal=True)
    assert contiguous == [3 * shard, 2 * shard, shard, 0]
    window = ranks.run(4, sent_bytes, layout="contiguous", causal=True, window_left=8)
    assert window == [shard, shard, shard, 0]
    assert ranks.run(4, sent_bytes, layout="zigzag", causal=True) == [3 * shard] * 4


REFUSED = {
    "layout": ({"layout": "striped"}, "layout is 'striped', wanted one of zigzag, contiguous"),
    "window": ({"window_left": -1}, "window_left is -1, wanted 0 or more"),
    "sink": ({"sink_logit": 3}, "sink_logit has 3 elements, wanted 4"),
    "slopes": ({"alibi": 3}, "alibi has 3 elements, wanted 4"),
    "slopes of texts": ({"alibi": 4, "query_start": [0, 64]}, "wanted none with query_start"),
    "slopes of chunks": ({"alibi": 4, "local_chunk": 8}, "wanted none with local_chunk"),
    "chunk": ({"local_chunk": -1}, "local_chunk is -1, wanted 0 or more"),
    "front of chunks": ({"local_chunk": 8, "sink_keys": 2}, "wanted 0 with local_chunk"),
    "ranks": ({"tokens": [16] * 3, "layout": "contiguous"}, "tokens has 3 entries, wanted 4"),
    "order": ({"tokens": [16] * 4}, "layout is 'zigzag', wanted 'contiguous' with tokens"),
    "own": ({"tokens": [15] * 4, "layout": "contiguous"}, "tokens is 15 for rank"),
    "starts": ({"query_start": [0, 9, 3]}, "query_start does not ascend from 0"),
    "end": ({"query_start": [0, 99]}, "query_start ends at 99, wanted at most 64"),
    "keys": ({"k": (1, 16, 3, 16)}, "k has 3 heads, wanted a divisor of 4"),
    "columns": ({"k": (1, 16, 2, 8)}, "k has 8 columns, wanted 16 as q"),
    "tokens": ({"v": (1, 8, 2, 16)}, "v is (1, 8, 2, 16), wanted (1, 16) first as q"),
    "values": ({"v": (1, 16, 1, 16)}, "v has 1 heads, wanted 2 as k"),
    "rank": ({"q": (16, 4, 16)}, "q has 3 dimensions (16, 4, 16), wanted 4"),
}


def refused(group, fields):
    shapes = {"q": (1, 16, 4, 16), "k": (1, 16, 2, 16), "v": (1, 16, 2, 16)}
    fields = dict(fields)
    shapes.update({n: fields.pop(n) for n in ("q", "k", "v") if n in fields})
    fields.update({n: torch.zeros(fields[n]) for n in LEARNED if n in fields})
    return fd.ring_attention(*[torch.zeros(shapes[n]) for n in "qkv"], group, **fields)


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_refused_with_its_name(ranks, name):
    fields, sentence = REFUSED[name]
    for good, (kind, text, _) in ranks.outcomes(4, refused, fields=fields):
        assert not good and kind == "InvalidArgument"
        assert text.startswith("ring_attention: ") and sentence in text


def unchecked(group):
    q, k, v = [fd.shard(x, group) for x in made()[:3]]
    o = [fd.ring_attention(q, k, v, group, causal=True, check=check) for check in (True, False)]
    return torch.equal(*o)


def test_a_call_without_the_check_is_the_same(ranks):
    assert ranks.run(4, unchecked) == [True] * 4


def test_without_a_process_group():
    x = torch.zeros(1, 4, 2, 8)
    with pytest.raises(fovea.InvalidArgument, match="ring_attention: there is no process group"):
        fd.ring_attention(x, x, x)
