# SPDX-License-Identifier: Apache-2.0
"""kl_loss of a text over several ranks, against one process."""

import fovea.distributed as fd
import fovea.torch
import pytest
import torch

TOKENS = 64
NAMES = ("q_teacher", "k_teacher", "q_student", "k_student")


def made(b=1):
    torch.manual_seed(4)
    shapes = (b, TOKENS, 4, 16), (b, TOKENS, 2, 16), (b, TOKENS, 4, 8), (b, TOKENS, 1, 8)
    return [torch.randn(s) for s in shapes]


def together(group, layout, reduction="mean", starts=None, weighted=False, only=None, **options):
    whole = made(1 if starts else 2)
    b = whole[0].shape[0]
    drawn = torch.Generator(torch.get_default_device()).manual_seed(5)
    weight = torch.rand(b, 4, TOKENS, generator=drawn)
    weight[..., 9] = 0
    needs = only or NAMES
    single, given = dict(options), dict(options)
    if weighted:
        single["row_weight"] = weight
        given["row_weight"] = fd.shard(weight, group, dim=2, layout=layout)

    def leaves(xs):
        return [x.clone().requires_grad_(n in needs) for n, x in zip(NAMES, xs)]

    runs = []
    for _ in range(2):
        mine = leaves([fd.shard(x, group, layout=layout) for x in whole])
        loss = fd.kl_loss(*mine, group, layout=layout, reduction=reduction, query_start=starts, **given)
        own = fd.shard(weight, group, dim=2, layout=layout)
        (loss * own if reduction == "none" else 3 * loss).sum().backward()
        if reduction == "none":
            loss = fd.unshard(loss.detach(), group, dim=2, layout=layout)
        grads = [fd.unshard(x.grad, group, layout=layout) for x in mine if x.requires_grad]
        assert all(x.grad is None for n, x in zip(NAMES, mine) if n not in needs)
        runs.append([loss.detach(), *grads])
    mine = leaves(whole)
    if starts:
        where = torch.tensor(starts, dtype=torch.int32)
        longest = max(b - a for a, b in zip(starts, starts[1:]))
        single |= {"query_start": where, "query_max": longest}
        wanted = fovea.torch.kl_loss(*[x[0] for x in mine], reduction=reduction, **single)
        wanted = wanted[None] if reduction == "none" else wanted
    else:
        wanted = fovea.torch.kl_loss(*mine, reduction=reduction, **single)
    (wanted * weight if reduction == "none" else 3 * wanted).sum().backward()
    wanted = [wanted.detach(), *[x.grad for x in mine if x.requires_grad]]
    return all(map(torch.equal, *runs)), [
        float((x - y).abs().max() / y.abs().max()) for x, y in zip(runs[0], wanted, strict=True)
    ]


CASES = {
    "mean": {"causal": True},
    "sum": {"causal": True, "reduction": "sum"},
    "rows": {"causal": True, "reduction": "none"},
    "weights": {"causal": True, "weighted": True},
    "reverse": {"causal": True, "direction": "student_teacher"},
    "full": {"scale_teacher": 0.4, "scale_student": 0.2},
    "window": {"causal": True, "window_left": 11},
    "front": {"causal": True, "window_left": 11, "sink_keys": 5},
    "packed": {"causal": True, "starts": [0, 5, 31, 50, 64]},
    "student alone": {"causal": True, "only": ("q_student", "k_student")},
    "rows of q alone": {"causal": True, "only": ("q_student",)},
}


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
@pytest.mark.parametrize("name", CASES)
def test_kl(ranks, size, layout, name):
    for stable, errors in ranks.run(size, together, layout=layout, **CASES[name]):
        assert stable and max(errors) < 4e-6, errors


def large(group):
    """Logits of hundreds: the parts' logarithms are large, their divergence small."""
    q, k, _, _ = [30 * x for x in made()]
    q, k = [fd.shard(x, group) for x in (q, k)]
    return float(fd.kl_loss(q, k, q, k, group, causal=True))


def test_equal_distributions_of_large_logits(ranks):
    assert all(abs(x) < 1e-5 for x in ranks.run(4, large))


def refused(group, fields):
    shapes = {"q_teacher": (1, 8, 4, 8), "k_teacher": (1, 8, 2, 8), "q_student": (1, 8, 4, 4),
              "k_student": (1, 8, 1, 4)}  # fmt: skip
    shapes.update({n: x for n, x in fields.items() if n in NAMES})
    fields = {n: torch.zeros(x) if isinstance(x, tuple) else x
              for n, x in fields.items() if n not in NAMES}  # fmt: skip
    return fd.kl_loss(*[torch.zeros(shapes[n]) for n in NAMES], group, **fields)


@pytest.mark.parametrize(
    "fields, sentence",
    [
        ({"reduction": "max"}, "reduction is 'max', wanted one of mean, sum, none"),
        ({"direction": "up"}, "direction is 'up', wanted one of"),
        ({"k_student": (1, 8, 3, 4)}, "k_student has 3 heads, wanted a divisor of 4"),
        ({"q_student": (1, 8, 2, 4)}, "q_student is (1, 8, 2, 4), wanted (1, 8, 4) first"),
        ({"row_weight": (1, 8)}, "row_weight has 2 dimensions (1, 8), wanted 3"),
    ],
)
def test_bad_input_is_refused_with_its_name(ranks, fields, sentence):
    for good, (_, text, _) in ranks.outcomes(2, refused, fields=fields):
        assert not good and text.startswith("kl_loss: ") and sentence in text
