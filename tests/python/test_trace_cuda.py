# SPDX-License-Identifier: Apache-2.0
"""trace_forward on CUDA beside the host: exact selections bit for bit, sessions byte for byte."""

import fovea
import pytest

torch = pytest.importorskip("torch")
if not (torch.cuda.is_available() and fovea.device_count("cuda") > 0):
    pytest.skip("no CUDA device", allow_module_level=True)


@pytest.fixture
def cuda():
    with fovea.Context("cuda", stream=torch.cuda.current_stream().cuda_stream) as context:
        yield context


def random_call(seed):
    """Inputs and fields: normal numbers, ties, NaN and -0 among them, or products that underflow."""
    random = torch.Generator().manual_seed(seed)

    def one(*choices):
        return choices[int(torch.randint(len(choices), (), generator=random))]

    def normal(*shape):
        return torch.randn(shape, generator=random)

    def whole(*shape):
        return torch.randint(-1, 2, shape, generator=random).float()

    kind = one("normal", "ties", "nan", "tiny")
    b, g, group, rows, keys = one(1, 2), one(1, 2), one(1, 3), one(16, 32, 64, 128), one(16, 64, 128)
    s, t, d = one(1, rows - 3, 3 * rows), one(5, 11 * keys, 23 * keys - 7), one(16, 33, 64, 128)
    fill = whole if kind == "ties" else normal
    q, k, v = fill(b, s, g * group, d), fill(b, t, g, d), fill(b, t, g, d)
    if kind == "nan":
        q[torch.rand(q.shape, generator=random) < 0.01] = -0.0
        k[torch.rand(k.shape, generator=random) < 0.002] = float("nan")
    if kind == "tiny":
        q, k = q * 1e-22, k * 1e-22
    dtype = torch.float32 if kind == "tiny" else one(torch.float32, torch.float16, torch.bfloat16)
    fields = {"keep": one(1, 3, 16, 90), "block_rows": rows, "block_keys": keys}
    fields["causal"] = one(False, True)
    shape = b, g * group, -(-s // rows), (-(-t // keys) + 7) // 8
    if one(False, True):
        fields["block_mask"] = torch.randint(256, shape, dtype=torch.uint8, generator=random)
    return [x.to(dtype) for x in (q, k, v)], fields


def test_exact_selections_are_the_hosts_bit_for_bit(ctx, cuda):
    for seed in range(60):
        inputs, fields = random_call(seed)
        want = fovea.trace_forward(
            ctx, *inputs[:2], selected=True, score=True, exact=True, **fields
        )
        fields = {n: x.cuda() if torch.is_tensor(x) else x for n, x in fields.items()}
        q, k, v = (x.cuda() for x in inputs)
        got = fovea.trace_forward(
            cuda, q, k, v=v, selected=True, score=True, o=True, exact=True, **fields
        )
        for x, y in zip(want, got):
            assert torch.equal(x.view(torch.int32), y.cpu().view(torch.int32)), seed


def layers(count):
    random = torch.Generator("cuda").manual_seed(5)
    for i in range(count):
        shape = 1, 700 + 300 * i, 4, 64
        yield [
            torch.randn(shape, generator=random, device="cuda", dtype=torch.bfloat16) for _ in "qkv"
        ]


@pytest.mark.parametrize("buffers", [1, 3])
def test_a_session_streams_what_single_calls_list(cuda, buffers):
    fields = {"keep": 6, "edge_kind": "mass", "causal": True}
    got, want = bytearray(), bytearray()
    with fovea.TraceSession(cuda, buffers=buffers, **fields).begin(got.extend) as session:
        for i, (q, k, v) in enumerate(layers(5)):
            assert session.trace(q, k, v=v, o=True).shape == q.shape
            records = torch.zeros(q.shape[2] * -(-q.shape[1] // 64) * 6, 5, device="cuda")
            count = torch.zeros(1, dtype=torch.int64, device="cuda")
            fovea.trace_forward(
                cuda, q, k, layer=i, edge=records.view(torch.int32)[:, :4],
                edge_weight=records[:, 4], edge_count=count, **fields,
            )  # fmt: skip
            want += records[: int(count)].cpu().numpy().tobytes()
    assert bytes(got) == bytes(want)


def test_the_same_bytes_in_a_hundred_runs_and_at_any_place_in_the_batch(cuda):
    q, k, _ = next(layers(1))
    q, k = torch.cat([q] * 3), torch.cat([k] * 3)
    seen, places = set(), set()
    for _ in range(100):
        records = torch.zeros(3 * 4 * 11 * 5, 5, dtype=torch.int32, device="cuda")
        count = torch.zeros(1, dtype=torch.int64, device="cuda")
        fovea.trace_forward(
            cuda, q, k, keep=5, edge_kind="mass", edge=records[:, :4],
            edge_weight=records.view(torch.float32)[:, 4], edge_count=count,
        )  # fmt: skip
        rows = records[: int(count)].cpu().numpy()
        seen.add(rows.tobytes())
        place = rows[:, 1] // 4
        rows[:, 1] %= 4
        places |= {rows[place == i].tobytes() for i in range(3)}
    assert len(seen) == len(places) == 1
