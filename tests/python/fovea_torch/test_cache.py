# SPDX-License-Identifier: Apache-2.0
"""QuantisedCache: what it holds is x_kv_append's, what it gives x_kv_decode's; it grows, shrinks,
moves, compiles, and refuses in sentences."""

import fovea
import fovea.torch
import pytest
import torch
from fovea.torch import _cache

B, G, H, D = 2, 2, 4, 64
LIMITS = {"kivi2": 0.72, "kivi4": 0.15, "kvarn": 0.72}  # relative error of normal numbers
KIVI = "kivi2", "kivi4"


def tokens(device, n=400, dtype=torch.float16, seed=5):
    make = torch.Generator().manual_seed(seed)
    shapes = ((B, n, H, D), (B, n, G, D), (B, n, G, D))
    return [torch.randn(x, generator=make).to(device, dtype) for x in shapes]


def cache(name, device, **more):
    return fovea.torch.QuantisedCache(name, B, G, D, **{"dtype": torch.float16, "device": device, **more})


def same(x, y):
    """To the bit on the host; on CUDA the size of the batch chooses how keys are split."""
    return torch.equal(x, y) if x.device.type == "cpu" else torch.allclose(x, y, rtol=0, atol=2e-3)


def cut(xs, first, last):
    return [x[:, first:last] for x in xs]


@pytest.mark.parametrize("name", _cache.CACHES)
def test_append_and_decode_are_the_librarys(name, device):
    q, k, v = tokens(device)
    ours = cache(name, device)
    turn = torch.eye(D, device=device)
    if name in KIVI:
        held, numbers = kivi_cache(ours.bits, device)
    else:
        held, numbers = kvarn_cache(device)
        turn = torch.from_numpy(fovea.levels.hadamard(D)).to(device)
    for first, last in ((0, 290), (290, 291), (291, 400)):
        qs, ks, vs = cut((q, k, v), first, last)
        ours.append(ks, vs)
        q_turned, *turned = ((x.float() @ turn).half().contiguous() for x in (qs, ks, vs))
        fovea.experimental.kv_append(*turned, **held, **numbers)
        got = ours.decode(qs, return_lse=True)
        o, lse = fovea.recipe(name)(q_turned, lse=True, **held)
        for x, y in zip(got, ((o.float() @ turn.T).half(), lse), strict=True):
            assert same(x, y)
    exact = fovea.torch.attention(*(x.float() for x in (qs, k, v)), causal=True)
    assert 0.01 < (got[0].float() - exact).norm() / exact.norm() < LIMITS[name]
    assert torch.equal(ours.counter, held["counter"])


def kivi_cache(bits, device):
    pages = 4
    f16, i32 = torch.float16, torch.int32
    make = lambda shape, dtype: torch.zeros(shape, dtype=dtype, device=device)
    keys, values = (B * pages, 4, G, D), (B * pages, 128, G, D // 32)
    held = {
        "k_code": make((*keys, bits), i32), "k_scale": make(keys, f16), "k_zero": make(keys, f16),
        "v_code": make((B * pages, 128, G, D * bits // 32), i32),
        "v_scale": make(values, f16), "v_zero": make(values, f16),
        "k_tail": make((B, 128, G, D), f16), "v_tail": make((B, 129, G, D), f16),
        "counter": make((B, 4), i32),
        "page_table": torch.arange(B * pages, dtype=i32, device=device).view(B, pages),
    }  # fmt: skip
    return held, {"bits": bits, "group": 32}


def kvarn_cache(device):
    pages, tile = 4, 128
    f16, i32 = torch.float16, torch.int32
    make = lambda shape, dtype: torch.zeros(shape, dtype=dtype, device=device)
    keys, values = (B * pages, 1, G, D), (B * pages, tile, G, 1)
    held = {
        "k_code": make((*keys, tile * 4 // 32), i32), "k_scale": make(keys, f16),
        "k_zero": make(keys, f16), "k_factor": make(values[:3], f16), "v_factor": make(keys, f16),
        "v_code": make((*values[:3], D * 2 // 32), i32), "v_scale": make(values, f16),
        "v_zero": make(values, f16), "k_tail": make((B, tile, G, D), f16),
        "v_tail": make((B, tile, G, D), f16), "counter": make((B, 4), i32),
        "page_table": torch.arange(B * pages, dtype=i32, device=device).view(B, pages),
    }  # fmt: skip
    return held, {"bits": 4, "v_bits": 2, "group": tile, "format": 3}


def test_tokens_in_the_tails_are_exact(device):
    q, k, v = tokens(device, 100)
    ours = cache("kivi2", device)
    ours.append(k, v)
    exact = fovea.torch.attention(q, k, v, causal=True)
    assert (ours.decode(q) - exact).abs().max() < 2e-3


def test_chunks_and_single_tokens_fill_it_alike(device):
    """Also while it grows."""
    q, k, v = tokens(device)
    found = []
    for parts, more in (
        ([400], {"capacity": 400}), ([150, 150, 100], {}), ([1] * 400, {"page": 32}),
    ):  # fmt: skip
        ours = cache("kivi2", device, **more)
        for ks, vs in zip(k.split(parts, 1), v.split(parts, 1), strict=True):
            ours.append(ks, vs)
        assert ours.lengths.tolist() == [400, 400] and ours.capacity >= 400
        found.append((ours.decode(q[:, -1:]), ours))
    for o, other in found[1:]:  # other numbers of pages, other splits, other sums
        torch.testing.assert_close(o, found[0][0], rtol=0, atol=2e-3)
        for name in ("k_tail", "v_tail", "counter"):
            assert torch.equal(getattr(other, name), getattr(found[0][1], name))
    codes = [x.v_code.transpose(1, 2).unflatten(0, (B, -1)) for _, x in found]
    assert torch.equal(codes[0][:, :2], codes[1][:, :2]) and codes[0][:, :2].any()
    pages = codes[2].transpose(2, 3).flatten(1, 2)[:, :256]  # of 32 tokens
    assert torch.equal(pages, codes[0].transpose(2, 3).flatten(1, 2)[:, :256])


def test_lengths_of_their_own(device):
    q, k, v = tokens(device)
    ours = cache("kivi4", device)
    ours.append(k, v, query_len=torch.tensor([400, 137], device=device))
    assert ours.lengths.tolist() == [400, 137]
    o = ours.decode(q[:, -3:])
    for row, n in enumerate((400, 137)):
        alone = fovea.torch.QuantisedCache("kivi4", 1, G, D, dtype=torch.float16, device=device)
        alone.append(k[row : row + 1, :n], v[row : row + 1, :n])
        assert same(alone.decode(q[row : row + 1, -3:])[0], o[row])
    packed = cache("kivi4", device)
    flat = [torch.cat([x[0], x[1, :137]]) for x in (k, v)]
    packed.append(*flat, query_start=torch.tensor([0, 400, 537], device=device), query_max=400)
    assert same(packed.decode(q[:, -3:]), o)


def test_windows_sinks_and_scale_arrive(device):
    q, k, v = tokens(device, 300)
    ours = cache("kivi4", device)
    ours.append(k, v)
    sink = torch.ones(H, device=device)
    for more in (
        {"window_left": 64}, {"window_left": 64, "sink_keys": 4}, {"scale": 0.5},
        {"sink_logit": sink}, {"causal": False},
    ):  # fmt: skip
        got = ours.decode(q[:, -5:], **more)
        want = fovea.torch.decode(q[:, -5:], k, v, **more)
        assert (got - want).norm() / want.norm() < 0.2, more
        if "causal" not in more:
            assert not torch.equal(got, ours.decode(q[:, -5:]))


def test_crop_forgets(device):
    q, k, v = tokens(device)
    ours, never = cache("kivi2", device), cache("kivi2", device)
    ours.append(k[:, :390], v[:, :390])
    ours.append(7 + k[:, :9], v[:, :9])
    ours.crop(390)
    ours.append(k[:, 390:], v[:, 390:])
    never.append(k, v)
    assert same(ours.decode(q[:, -2:]), never.decode(q[:, -2:]))
    assert ours.counter[:, 0].tolist() == [400, 400] and ours.most == 400
    ours.crop(256)
    assert ours.counter[0].tolist() == [256, 256, 256, 0] and ours.most == 256
    assert ours.decode(q[:, 255:256]).isfinite().all()
    ours.reset()
    assert ours.lengths.tolist() == [0, 0] and not ours.decode(q[:, :1]).any()


def rounded(x, dim, bits):
    """Groups of 32 along an axis as KIVI rounds them."""
    x = x.double().unflatten(dim, (-1, 32)).movedim(dim + 1, -1)
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    scale, zero = ((high - low) / (2**bits - 1)).half().double(), low.half().double()
    x = ((x - zero) / scale).round().clamp(0, 2**bits - 1) * scale + zero
    return x.movedim(-1, dim + 1).flatten(dim, dim + 1)


@pytest.mark.parametrize("name", KIVI)
@pytest.mark.parametrize("more", [0, 20])
def test_crop_within_a_group(name, more, device):
    """What is left of a cut group is what its codes say; then other tokens follow."""
    q, k, v = tokens(device)
    ours = cache(name, device)
    ours.append(k, v)
    assert (ours.counter[:, 1:3] > 250).all()
    ours.crop(torch.tensor([500, 250], device=device))
    assert ours.counter[1].tolist() == [250, 224, 224, 0] and ours.lengths[0] == 400
    assert ours.most == 400
    ours.append(k[:, :more], v[:, :more])
    keys, values = rounded(k[:, :256], 1, ours.bits)[1:, :250], rounded(v, 3, ours.bits)[1:, :250]
    keys, values = (torch.cat([x, y[1:, :more]], 1) for x, y in ((keys, k), (values, v)))
    want = fovea.torch.decode(q[1:, -1:].float(), keys.float(), values.float())
    assert (ours.decode(q[:, -1:])[1] - want[0]).norm() / want.norm() < 4e-3


def test_crop_within_a_tile(device):
    q, k, v = tokens(device)
    ours = cache("kvarn", device)
    ours.append(k, v)
    assert ours.counter[0].tolist() == [400, 384, 384, 0]
    before = ours.decode(q[:, 249:])[:, :1]
    ours.crop(250)
    assert ours.counter[0].tolist() == [250, 128, 128, 0]
    after = ours.decode(q[:, 249:250])
    assert (after - before).norm() / before.norm() < 4e-3
    ours.append(k[:, 250:], v[:, 250:])
    assert ours.counter[0].tolist() == [400, 384, 384, 0]


@pytest.mark.parametrize("name", ["kivi2", "kvarn"])
def test_rows_move(name, device):
    q, k, v = tokens(device)
    ours = cache(name, device)
    ours.append(k, v)
    before = ours.decode(q[:, -1:])
    ours.select(torch.tensor([1, 1, 0], device=device))
    assert ours.rows == 3
    assert same(ours.decode(q[[1, 1, 0], -1:]), before[[1, 1, 0]])
    ours.append(k[[0, 1, 1], :200], v[[0, 1, 1], :200])  # no two share a page
    assert ours.lengths.tolist() == [600] * 3


def test_bytes(device):
    assert cache("kivi2", device).bytes_a_token == G * 2 * D * 3 // 8
    assert cache("kivi4", device).bytes_a_token == G * 2 * D * 5 // 8
    # Codes, scales and zeros of channels with the factors of values, and those of tokens.
    assert cache("kvarn", device).bytes_a_token == G * (D * 4 + D * 2 + D * 48 // 128 + 48) // 8
    for name in ("kivi2", "kvarn"):
        a, b = (cache(name, device, capacity=n) for n in (1280, 2560))
        table = 4 * (1280 // 128) * B
        assert b.nbytes - a.nbytes == B * 1280 * a.bytes_a_token + table


def test_compiled_and_checked(device):
    q, k, v = tokens(device, 310)

    def step(ours, q, k, v):
        ours.append(k, v)
        return ours.decode(q)

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    found = []
    for run in (step, compiled):
        ours = cache("kivi2", device, capacity=512)
        ours.append(k[:, :300], v[:, :300])
        found.append([run(ours, *cut((q, k, v), i, i + 1)) for i in range(300, 310)])
        assert ours.lengths.tolist() == [310, 310]
    assert all(torch.equal(x, y) for x, y in zip(*found))
    held = cache("kivi2", device).held()
    torch.library.opcheck(
        _cache.kv_append.op, (*cut((k, v), 0, 5), *held, None, None, None, 0, 2, 32, False, 0, 0)
    )
    torch.library.opcheck(
        _cache.kv_decode.op,
        (q[:, :5], *held, None, None, None, None, 0, 0, 0, 0, 0, 0.0, True, 2, 32, 0, 0, 0),
    )


def test_refusals(device):
    q, k, v = tokens(device, 9)
    for wrong, told in (
        ({"recipe": "kivi3"}, "recipe is 'kivi3', wanted one of kivi2, kivi4, kvarn"),
        ({"group": 24}, "group is 24, wanted a multiple of 16 with 2 bits"),
        ({"group": 128}, "value_width is 64, wanted a multiple of group, 128"),
        ({"residual": 100}, "residual is 100, wanted a multiple of group, 32"),
        ({"page": 48}, "page is 48, wanted a multiple of group, 32"),
        ({"dtype": torch.float32}, "dtype is torch.float32, wanted torch.float16 or"),
        ({"rows": 0}, "rows is 0, wanted an int of at least 1"),
    ):
        given = {"recipe": "kivi2", "rows": B, "heads": G, "width": D, **wrong}
        with pytest.raises(fovea.InvalidArgument, match=f"^QuantisedCache: {told}"):
            fovea.torch.QuantisedCache(**given)
    ours = cache("kivi2", device)
    with pytest.raises(fovea.InvalidArgument, match="kv_append: k_new requires grad, but this"):
        ours.append(k.clone().requires_grad_(), v)
    with pytest.raises(fovea.InvalidArgument, match="append: query_max is 0, wanted the longest"):
        ours.append(k[0], v[0])
    with pytest.raises(fovea.FoveaError, match="k_tail"):
        cache("kivi2", device).append(k.bfloat16(), v.bfloat16())
