# SPDX-License-Identifier: Apache-2.0
"""gla and delta of a text over several ranks, against one process."""

import fovea.distributed as fd
import fovea.experimental as x_ops
import pytest
import torch
import torch.distributed as dist
from ranks import CUDA

B, TOKENS, D, E = 2, 160, 16, 24
PARAMETERS = ("gate_rate", "gate_bias", "bonus", "skip")


def inputs(extra, heads=2, shared=1, tokens=TOKENS):
    """q, k, v, gradients of o and of the last state, and what `extra` names.  `shared` states have
    one head of q and k."""
    torch.manual_seed(7)
    token, few = (B, tokens, heads), (B, tokens, heads // shared)
    unit = torch.nn.functional.normalize
    made = {
        "q": torch.randn(*few, D), "k": unit(torch.randn(*few, D), dim=-1),
        "v": torch.randn(*token, E), "gate_head": -torch.rand(token) / 8,
        "gate_key": -torch.rand(*token, D) / 8, "gate_value": -torch.rand(*token, E) / 8,
        "gate_rate": torch.randn(heads) / 4, "gate_bias": torch.randn(heads, D) / 4,
        "select": torch.rand(token), "bonus": torch.randn(heads, D), "skip": torch.randn(heads, E),
        "beta": torch.rand(token), "erase": unit(torch.randn(*token, D), dim=-1) / 2,
        "low_a": unit(torch.randn(*token, D), dim=-1),
        "state_in": torch.randn(B, heads, D, E), "dout": torch.randn(*token, E),
        "dstate": torch.randn(B, heads, D, E),
    }  # fmt: skip
    made["low_b"] = -made["low_a"] / 2
    return {n: made[n] for n in ("q", "k", "v", *extra, "dout", "dstate")}


def alone(name, given, numbers):
    tensors = dict(given)
    dout, dstate = tensors.pop("dout"), tensors.pop("dstate")
    o, state = getattr(x_ops, f"{name}_forward")(**tensors, o=True, state_out=True, **numbers)
    fields = [f"d{n}" for n in tensors]
    grads = getattr(x_ops, f"{name}_backward")(
        **tensors, dout=dout, dstate_out=dstate, **{n: True for n in fields},
        **{n: x for n, x in numbers.items() if n != "splits"},
    )  # fmt: skip
    order = getattr(fd._state, name.upper()).outputs
    return [o, state, *[dict(zip([n for n in order if n in fields], grads))[n] for n in fields]]


def together(group, name, extra, heads=2, shared=1, tokens=TOKENS, **numbers):
    whole = inputs(extra, heads, shared, tokens)
    rank, last = dist.get_rank(group), dist.get_world_size(group) - 1
    runs = []
    for _ in range(2):
        own = {}
        for n, x in whole.items():
            alike = n in PARAMETERS or n in ("state_in", "dstate")
            own[n] = x.clone() if alike else fd.shard(x, group, layout="contiguous")
        dout, dstate = own.pop("dout"), own.pop("dstate")
        for x in own.values():
            x.requires_grad_()
        o, state = getattr(fd, name)(**own, group=group, return_state=True, **numbers)
        loss = (o * dout).sum() + ((state * dstate).sum() if rank == last else 0)
        loss.backward()
        results = [fd.unshard(o.detach(), group, layout="contiguous")]
        dist.broadcast(state := state.detach().clone(), group_src=last, group=group)
        results.append(state)
        for n, x in own.items():
            if n in PARAMETERS or n == "state_in":
                grad = torch.zeros_like(x) if x.grad is None else x.grad
                dist.all_reduce(grad, group=group)
                results.append(grad)
            else:
                results.append(fd.unshard(x.grad, group, layout="contiguous"))
        runs.append(results)
    wanted = alone(name, whole, numbers)
    return all(map(torch.equal, *runs)), [
        float((x - y).abs().max() / y.abs().max()) for x, y in zip(runs[0], wanted, strict=True)
    ]


CASES = {
    "plain": ("gla", []),
    "gla": ("gla", ["gate_head"]),
    "started": ("gla", ["gate_head", "state_in"]),
    "keys": ("gla", ["gate_key", "bonus", "skip", "state_in"]),
    "values": ("gla", ["gate_value", "state_in"]),
    "raw": ("gla", ["gate_head", "gate_rate", "gate_bias", "select"]),
    "delta": ("delta", ["beta"]),
    "gated delta": ("delta", ["beta", "gate_head", "state_in"]),
    "kimi": ("delta", ["beta", "gate_key", "state_in"]),
    "erase": ("delta", ["beta", "erase", "gate_key"]),
    "low rank": ("delta", ["low_a", "low_b", "gate_key", "state_in"]),
}
NUMBERS = {"raw": {"gate_map": 1}, "gated delta": {"l2_norm": 1}}


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("case", CASES)
def test_states_are_handed_over(ranks, size, case):
    name, extra = CASES[case]
    for stable, errors in ranks.run(
        size, together, name=name, extra=extra, **NUMBERS.get(case, {})
    ):
        assert stable and max(errors) < 5e-6, errors


HEADS = {
    "plain": (4, 1), "keys": (4, 1), "values": (4, 1), "raw": (4, 1), "gated delta": (8, 2),
    "kimi": (4, 1), "low rank": (8, 1), "started": (8, 4),
}  # fmt: skip


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("case", HEADS)
def test_ranks_in_turn(ranks, size, case):
    """Where there are at least as many parts of the heads as ranks."""
    (name, extra), (heads, shared) = CASES[case], HEADS[case]
    way, count = fd._state.way_of(
        {n: x for n, x in inputs(extra, heads, shared).items() if not n.startswith("d") and n != "state_in"},
        2, 0, True,
    )  # fmt: skip
    assert CUDA or (way == "in turn" and count >= 2)
    for stable, errors in ranks.run(
        size, together, name=name, extra=extra, heads=heads, shared=shared, **NUMBERS.get(case, {})
    ):
        assert stable and max(errors) < 5e-6, errors


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("case", CASES)
def test_tokens_in_parts(ranks, size, case):
    """Three parts of a rank's tokens, of which the last is short, or as many as there are chunks."""
    name, extra = CASES[case]
    for stable, errors in ranks.run(
        size, together, name=name, extra=extra, tokens=160 * size, splits=3, **NUMBERS.get(case, {})
    ):
        assert stable and max(errors) < 1e-5, errors


def test_ways():
    def way(ranks, splits=0, trains=True, **shapes):
        given = {n: torch.empty(x, device="cpu") for n, x in shapes.items()}
        return fd._state.way_of(given, ranks, splits, trains)

    token = (1, 200, 12)
    shapes = {"q": (*token, 4), "k": (*token, 4), "v": (*token, 4), "gate_rate": (12,)}
    assert way(2, **shapes) == ("in turn", 6) and way(7, **shapes) == ("together", None)
    assert way(2, **{**shapes, "k": (1, 200, 3, 4)}) == ("in turn", 3)
    assert way(2, **{**shapes, "k": (1, 200, 1, 4)}) == ("together", None)
    assert way(2, splits=3, **shapes) == ("in parts", 3) and way(2, splits=9, **shapes)[1] == 4
    assert way(1, splits=3, trains=False, **shapes) == ("together", None)
    assert way(1, splits=1, **shapes) == ("together", None)


def refused(group, name, fields):
    shapes = {"q": (1, 8, 2, 4), "k": (1, 8, 2, 4), "v": (1, 8, 2, 4), **fields}
    return getattr(fd, name)(**{n: torch.zeros(x) for n, x in shapes.items()}, group=group)


def split(group, name, splits):
    x = torch.zeros(1, 8, 2, 4)
    return getattr(fd, name)(x, x, x, group=group, splits=splits)


@pytest.mark.parametrize(
    "fields, sentence",
    [
        ({"state_in": (1, 2, 4, 5)}, "state_in is (1, 2, 4, 5), wanted (1, 2, 4, 4)"),
        ({"k": (1, 4, 2, 4)}, "k is (1, 4, 2, 4), wanted (1, 8) first as q"),
        ({"v": (8, 2, 4)}, "v has 3 dimensions (8, 2, 4), wanted 4"),
    ],
)
@pytest.mark.parametrize("name", ["gla", "delta"])
def test_bad_input_is_refused_with_its_name(ranks, name, fields, sentence):
    for good, (_, text, _) in ranks.outcomes(2, refused, name=name, fields=fields):
        assert not good and text.startswith(f"{name}: ") and sentence in text


@pytest.mark.parametrize("name", ["gla", "delta"])
def test_splits_is_a_count(ranks, name):
    def said(splits):
        return [x[1][1] for x in ranks.outcomes(2, split, name=name, splits=splits)]

    assert said(-1) == [f"{name}: splits is -1, wanted 0 or more"] * 2
    assert said(2.5) == [f"{name}: splits is 2.5, wanted an integer"] * 2
