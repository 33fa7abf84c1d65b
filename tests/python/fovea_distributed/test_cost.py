# SPDX-License-Identifier: Apache-2.0
"""cost: counts are those of the code, and times behave as the model says."""

import importlib.util
import pathlib

import fovea
import fovea.distributed as fd
import pytest
from test_ring import TOKENS, made


def sent(group, how, backward):
    """Bytes that a rank hands to the process group in a call."""
    import fovea.distributed._heads as heads
    import fovea.distributed._peers as peers

    count, plain, turned = [0], peers.Peers.exchange, heads._turned

    def exchange(self, to, tensors, *rest):
        count[0] += sum(x.nbytes for x in tensors) if to is not None else 0
        return plain(self, to, tensors, *rest)

    def turn(x, over, to_heads):
        count[0] += x.nbytes * (over.size - 1) // over.size
        return turned(x, over, to_heads)

    peers.Peers.exchange, heads._turned = exchange, turn
    try:
        layout = "zigzag"
        q, k, v = [fd.shard(x, group, layout=layout) for x in made(h=8, g=4)[:3]]
        for x in (q, k, v):
            x.requires_grad_(backward)
        o = getattr(fd, how)(q, k, v, group, causal=True, layout=layout)
        if backward:
            o.sum().backward()
    finally:
        peers.Peers.exchange, heads._turned = plain, turned
    return count[0]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("how", ["ring", "heads"])
def test_bytes_are_those_that_are_sent(ranks, size, how, backward):
    name = {"ring": "ring_attention", "heads": "head_attention"}[how]
    told = fd.cost(how, size, TOKENS, heads=8, key_heads=4, width=16, element_bytes=4,
                   backward=backward)  # fmt: skip
    assert set(ranks.run(size, sent, how=name, backward=backward)) == {told.sent_bytes}


def test_ranks_share_the_work():
    one = fd.cost("ring", 1, 1 << 20)
    assert one.sent_bytes == one.messages == one.exposed_seconds == 0 and one.speedup == 1
    before = one
    for ranks in (2, 4, 8, 16, 32, 64, 128, 256):
        now = fd.cost("ring", ranks, 1 << 20)
        assert now.flops == one.flops / ranks and now.simulated
        assert before.speedup < now.speedup <= ranks
        before = now


def test_a_ring_of_many_ranks_waits_for_its_keys():
    ring, mesh = fd.cost("ring", 1024, 1 << 20), fd.cost("mesh", 1024, 1 << 20, second=8)
    assert ring.exposed_seconds > ring.compute_seconds and mesh.speedup > 1.5 * ring.speedup


def test_long_texts_hide_the_ring_and_short_ones_do_not():
    long, short = fd.cost("ring", 8, 1 << 20), fd.cost("ring", 8, 1 << 12)
    assert long.exposed_seconds < 0.01 * long.seconds and short.exposed_seconds > short.compute_seconds


def test_a_window_sends_to_few_ranks():
    whole, window = fd.cost("ring", 64, 1 << 20), fd.cost("ring", 64, 1 << 20, window_left=4096)
    assert window.sent_bytes < whole.sent_bytes / 8 and window.flops < whole.flops / 64


def test_decoding_reads_less_and_answers_sooner():
    one, two = [fd.cost("decode", n, 1 << 20, heads=32, key_heads=8) for n in (1, 2)]
    assert two.memory_bytes == one.memory_bytes / 2 and 1.5 < two.speedup < 2


def test_gradients_of_a_state_cost_more():
    both, one = [fd.cost("state", 8, 1 << 20, backward=x) for x in (True, False)]
    assert both.seconds > 2.5 * one.seconds and both.messages == 2 * one.messages


def test_many_heads_make_a_pipeline():
    def gain(ranks, heads, **options):
        return fd.cost("state", ranks, 1 << 20, heads=heads, batch=16, **options).speedup

    for ranks, heads, parts in ((2, 16, 2), (2, 64, 8), (4, 32, 4), (8, 80, 8)):
        whole = ranks * parts / (parts + ranks - 1)
        assert 0.99 * whole < gain(ranks, heads, latency=0.0) <= whole
    assert gain(2, 4) < 1.3 and gain(2, 64, key_heads=1) < 1.3 and gain(1, 64) == 1


@pytest.mark.parametrize(
    "fields, sentence",
    [
        ({"split": "pipe"}, "cost: split is 'pipe', wanted one of ring, heads"),
        ({"ranks": 2048}, "cost: ranks is 2048, wanted at most 1024"),
        ({"ranks": 0}, "cost: ranks is 0, wanted 1 or more"),
        ({"key_heads": 3}, "cost: key_heads is 3, wanted a divisor of 16"),
        ({"split": "heads", "ranks": 32}, "cost: ranks is 32, wanted a divisor of 32 ranks and 16"),
        ({"split": "mesh", "second": 3}, "cost: second is 3, wanted a divisor of 2 ranks and 16"),
    ],
)
def test_bad_input_is_refused_with_its_name(fields, sentence):
    with pytest.raises(fovea.InvalidArgument) as said:
        fd.cost(**{"split": "ring", "ranks": 2, "tokens": 4096, **fields})
    assert str(said.value).startswith(sentence)


def test_an_integer_is_wanted():
    with pytest.raises(TypeError, match="cost: tokens is 2.5, wanted an integer"):
        fd.cost("ring", 2, 2.5)


def test_the_guide_has_the_table_of_the_script():
    top = pathlib.Path(__file__).resolve().parents[3]
    place = importlib.util.spec_from_file_location("simulate", top / "bench/simulate_ranks.py")
    script = importlib.util.module_from_spec(place)
    place.loader.exec_module(script)
    rows = script.table()
    assert len(rows) == 12 and rows[-1].startswith("| 1024 |")
    assert "\n".join(rows) in (top / "docs/guides/distributed.md").read_text(encoding="utf-8")
