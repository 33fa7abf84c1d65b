# SPDX-License-Identifier: Apache-2.0
"""kl_loss over a ring: the parts of a divergence over several key sets as one.

With P and R of a row over all keys, and those of part n with lse a_n and b_n:
  kl = sum_n w_n (kl_n + (a_n - a) - (b_n - b)),  w_n = exp(a_n - a)
where a and b belong to the distribution that weighs and to the other."""

from __future__ import annotations

import torch

from .. import ops
from .._errors import InvalidArgument
from ..torch._arguments import scaling, single
from ..torch._divergence import _REDUCTIONS, _direction
from ..torch._place import place_of
from . import _order, _peers
from ._ring import Home, Hops, packing, plan, seen_by, windows, zeros


class _Parts:
    """kl and both lse of rows over the keys seen so far, in f64: w_n (a_n - a) has large terms."""

    def __init__(self, q, reverse):
        b, s, h, _ = q.shape
        self.empty = float("-inf")
        self.kl = torch.zeros((b, h, s), dtype=torch.float64, device=q.device)
        self.teacher = torch.full_like(self.kl, self.empty)
        self.student = torch.full_like(self.kl, self.empty)
        self.reverse = reverse

    def add(self, rows, kl, teacher, student):
        a, b = rows
        old = self.kl[..., a:b], self.teacher[..., a:b], self.student[..., a:b]
        new = kl.double(), teacher.double(), student.double()
        lse = torch.logaddexp(old[1], new[1]), torch.logaddexp(old[2], new[2])
        weighs, other = (2, 1) if self.reverse else (1, 2)
        total = torch.zeros_like(old[0])
        for part in (old, new):
            moved = part[weighs] - lse[weighs - 1], part[other] - lse[other - 1]
            term = moved[0].exp() * (part[0] + moved[0] - moved[1])
            total += torch.where(part[weighs] == self.empty, 0.0, term)
        self.kl[..., a:b], self.teacher[..., a:b], self.student[..., a:b] = total, *lse


class _Divergence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, qt, kt, qs, ks, peers, steps, numbers):
        place = place_of(qt.device)
        place.follow()
        kt, ks, cache = kt.contiguous(), ks.contiguous(), {}
        parts = _Parts(qt, numbers["direction"] == 1)
        for _, mine, held in Hops(peers, steps, [kt, ks]):
            for piece in mine:
                (a, b), (x, y) = piece.rows, piece.keys
                made = ops.kl_forward(
                    place.context, qt[:, a:b], held[0][:, x:y], qs[:, a:b], held[1][:, x:y],
                    kl=True, lse_teacher=True, lse_student=True, **numbers, **windows(piece),
                    **packing(piece, qt.device, cache),
                )  # fmt: skip
                parts.add(piece.rows, *made)
        kl, teacher, student = parts.kl.float(), parts.teacher.float(), parts.student.float()
        ctx.save_for_backward(qt, kt, qs, ks, kl, teacher, student)
        ctx.peers, ctx.steps, ctx.numbers, ctx.cache = peers, steps, numbers, cache
        ctx.mark_non_differentiable(teacher)
        return kl, teacher

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dkl, _):
        qt, kt, qs, ks, kl, teacher, student = ctx.saved_tensors
        place = place_of(qt.device)
        place.follow()
        dkl = dkl.contiguous()
        needs = ctx.needs_input_grad
        wanted = {
            "dq_student": needs[2], "dk_student": needs[3], "dq_teacher": needs[0],
            "dk_teacher": needs[1],
        }  # fmt: skip
        sums = {
            "dq_student": qs, "dk_student": ks, "dq_teacher": qt, "dk_teacher": kt,
        }  # fmt: skip
        sums = {n: zeros(x) for n, x in sums.items() if wanted[n]}
        names = [n for n in ("dk_teacher", "dk_student") if wanted[n]]
        like = [{"dk_teacher": kt, "dk_student": ks}[n] for n in names]
        home = Home(ctx.peers, [sums[n] for n in names])
        for (hop, mine, held), (_, _, theirs) in zip(
            Hops(ctx.peers, ctx.steps, [kt, ks]), ctx.steps
        ):
            parts = None
            if mine:
                now = {n: zeros(x) for n, x in zip(names, like)}
                for piece in mine:
                    (a, b), (x, y) = piece.rows, piece.keys
                    made = ops.kl_backward(
                        place.context, qt[:, a:b], held[0][:, x:y], qs[:, a:b], held[1][:, x:y],
                        kl[..., a:b], teacher[..., a:b], student[..., a:b], dkl=dkl[..., a:b],
                        **wanted, **ctx.numbers,
                        **windows(piece), **packing(piece, qt.device, ctx.cache),
                    )  # fmt: skip
                    made = made if isinstance(made, tuple) else (made,)
                    for name, part in zip([n for n, w in wanted.items() if w], made):
                        if name in names:
                            now[name][:, x:y] += part
                        else:
                            sums[name][:, a:b] += part
                parts = list(now.values())
            if names:
                home.send(hop, parts, theirs)
        home.add()
        out = [
            sums[n].to(x.dtype) if wanted[n] else None
            for n, x in (
                ("dq_teacher", qt), ("dk_teacher", kt), ("dq_student", qs), ("dk_student", ks),
            )
        ]  # fmt: skip
        return (*out, None, None, None)


def _sums(peers, kl, weight, counted):
    """The sums of w kl and of w over all ranks, in the order of the ranks."""
    own = torch.stack([(weight * kl.double() * counted).sum(), (weight * counted).sum()])
    return peers.gather(own).sum(0)


class _Total(torch.autograd.Function):
    """The loss over all ranks from the rows of this one; its gradient reaches these rows."""

    @staticmethod
    def forward(ctx, kl, peers, weight, counted, mean):
        total, divisor = _sums(peers, kl, weight, counted).unbind()
        ctx.factor = weight * counted
        if mean:
            divisor = torch.where(divisor == 0, 1.0, divisor)
            ctx.factor, total = ctx.factor / divisor, total / divisor
        return total.float()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return (grad.double() * ctx.factor).float(), None, None, None, None


@_peers.eager
def kl_loss(q_teacher, k_teacher, q_student, k_student, group=None, *, causal=False,
            scale_teacher=None, scale_student=None, direction="teacher_student", reduction="mean",
            row_weight=None, window_left=0, window_right=0, sink_keys=0, query_start=None,
            layout="zigzag", check=True):  # fmt: skip
    """fovea.torch.kl_loss of a text that is cut over the ranks of a group, with gradients.

    q_teacher (b, s, h, d), k_teacher (b, s, g, d), q_student (b, s, h, f), k_student (b, s, x, f):
    this rank's tokens, as ring_attention's.

    reduction    "mean" over the rows of all ranks that see a key, or "sum": a scalar, the same on
                 every rank.  Every rank calls backward on it, and gets the gradient of its own
                 tensors.  "none": this rank's rows, (b, h, s) f32
    row_weight   (b, h, s): weights of this rank's rows in the mean or sum; without gradient

    The rest is kl_loss's and ring_attention's."""
    op = "kl_loss"
    peers, state = _peers.Peers(op, group), {}

    def describe():
        words = _peers.tensors(
            op, {"q_teacher": 4, "k_teacher": 4, "q_student": 4, "k_student": 4, "row_weight": 3},
            q_teacher=q_teacher, k_teacher=k_teacher, q_student=q_student, k_student=k_student,
            row_weight=row_weight,
        )  # fmt: skip
        for side, q, k in (("teacher", q_teacher, k_teacher), ("student", q_student, k_student)):
            _peers.attend_shapes(op, q, k, names=(f"q_{side}", f"k_{side}", ""))
        if q_student.shape[:3] != q_teacher.shape[:3]:
            raise InvalidArgument(
                f"{op}: q_student is {tuple(q_student.shape)}, wanted {tuple(q_teacher.shape[:3])} "
                "first as q_teacher"
            )
        b, s, h, _ = q_teacher.shape
        if row_weight is not None and row_weight.shape != (b, h, s):
            raise InvalidArgument(
                f"{op}: row_weight is {tuple(row_weight.shape)}, wanted {(b, h, s)}"
            )
        if reduction not in _REDUCTIONS:
            raise InvalidArgument(
                f"{op}: reduction is {reduction!r}, wanted one of {', '.join(_REDUCTIONS)}"
            )
        if reduction == "none" and row_weight is not None:
            raise InvalidArgument(f"{op}: row_weight is given, wanted None with reduction 'none'")
        _order.layout_of(op, layout)
        _order.even(op, s, peers.size, layout, "q_teacher")
        if query_start is not None and b != 1:
            raise InvalidArgument(f"{op}: q_teacher has batch {b}, wanted 1 with query_start")
        state["seen"] = seen_by(op, peers, s, causal, window_left, window_right, sink_keys,
                                query_start)  # fmt: skip
        state["numbers"] = {
            "scale_teacher": scaling(op, scale_teacher, "scale_teacher"),
            "scale_student": scaling(op, scale_student, "scale_student"),
            "direction": _direction(direction),
        }  # fmt: skip
        seen = state["seen"]
        told = {
            "layout": layout, "reduction": reduction, "window_left": seen.left,
            "causal or window_right": seen.right, "sink_keys": seen.sinks,
            "query_start": seen.starts if len(seen.starts) < 8 else hash(seen.starts),
            **state["numbers"],
        }  # fmt: skip
        return words + [f"{name} is {value}" for name, value in told.items()]

    peers.agree(check, describe)
    steps = plan(peers.rank, peers.size, q_teacher.shape[1], layout, state["seen"])
    kl, lse = _Divergence.apply(q_teacher, k_teacher, q_student, k_student, peers, steps,
                                state["numbers"])  # fmt: skip
    if reduction == "none":
        return kl
    counted = (lse > float("-inf")).double()
    weight = torch.ones_like(counted) if row_weight is None else single(row_weight).double()
    if row_weight is not None:  # a row of weight 0 counts for nothing, NaN included
        kl = torch.where(weight == 0, 0.0, kl)
    return _Total.apply(kl, peers, weight, counted, reduction == "mean")
