# SPDX-License-Identifier: Apache-2.0
"""gla and delta of a text over several ranks, against one process."""

import fovea.distributed as fd
import fovea.experimental as x_ops
import pytest
import torch
import torch.distributed as dist

B, TOKENS, H, D, E = 2, 160, 2, 16, 24
PARAMETERS = ("gate_rate", "gate_bias", "bonus", "skip")


def inputs(extra):
    """q, k, v, gradients of o and of the last state, and what `extra` names."""
    torch.manual_seed(7)
    token = (B, TOKENS, H)
    unit = torch.nn.functional.normalize
    made = {
        "q": torch.randn(*token, D), "k": unit(torch.randn(*token, D), dim=-1),
        "v": torch.randn(*token, E), "gate_head": -torch.rand(token) / 8,
        "gate_key": -torch.rand(*token, D) / 8, "gate_value": -torch.rand(*token, E) / 8,
        "gate_rate": torch.randn(H) / 4, "gate_bias": torch.randn(H, D) / 4,
        "select": torch.rand(token), "bonus": torch.randn(H, D), "skip": torch.randn(H, E),
        "beta": torch.rand(token), "erase": unit(torch.randn(*token, D), dim=-1) / 2,
        "low_a": unit(torch.randn(*token, D), dim=-1),
        "state_in": torch.randn(B, H, D, E), "dout": torch.randn(*token, E),
        "dstate": torch.randn(B, H, D, E),
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


def together(group, name, extra, dtype="float32", **numbers):
    whole = inputs(extra)
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


def refused(group, name, fields):
    shapes = {"q": (1, 8, 2, 4), "k": (1, 8, 2, 4), "v": (1, 8, 2, 4), **fields}
    return getattr(fd, name)(**{n: torch.zeros(x) for n, x in shapes.items()}, group=group)


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
