# SPDX-License-Identifier: Apache-2.0
"""kl_loss: attention distillation, and its module."""

import torch

from .._abi import Direction
from .._errors import InvalidArgument
from . import _table
from ._arguments import flag, integers, need, scaling, single

_REDUCTIONS = ("mean", "sum", "none")


_DIRECTIONS = {name.lower(): int(value) for name, value in Direction.__members__.items()}


def _direction(value):
    """The number of a direction by its name, member or number; torch.compile traces this."""
    number = _DIRECTIONS.get(value) if isinstance(value, str) else int(value)
    if number not in _DIRECTIONS.values():
        raise InvalidArgument(
            f"kl_loss: direction is {value!r}, wanted one of {', '.join(_DIRECTIONS)}"
        )
    return number


def kl_loss(q_teacher, k_teacher, q_student, k_student, *, causal=False, scale_teacher=None,
            scale_student=None, direction="teacher_student", reduction="mean", row_weight=None,
            window_left=0, window_right=0, sink_keys=0, query_len=None, key_len=None,
            query_start=None, key_start=None, query_max=0, key_max=0):  # fmt: skip
    """The divergence of two attention distributions over the same keys, with gradients to q and k of
    both sides.  No s x t array is made.

    q_teacher (b, s, h, d), k_teacher (b, t, g, d), q_student (b, s, h, f), k_student (b, t, x, f):
    each side f32, f16 or bf16; g and x divide h.

    direction    "teacher_student": KL(teacher || student); "student_teacher": KL(student || teacher)
    reduction    "mean" over rows that see a key, or "sum": a scalar; "none": (b, h, s), f32
    row_weight   (b, h, s): weights of rows in the mean or sum; without gradient
    scales       > 0; None: 1 / sqrt(d) and 1 / sqrt(f)
    query_len, key_len   (b): rows and keys in use; rows past query_len give 0
    query_start, key_start   (r + 1): packed sequences, as in varlen_attention, with query_max and
                             key_max; tensors then are (tokens, heads, width)

    causal and the windows are attention's.  Autocast leaves the tensors as they are."""
    if reduction not in _REDUCTIONS:
        raise InvalidArgument(
            f"kl_loss: reduction is {reduction!r}, wanted one of {', '.join(_REDUCTIONS)}"
        )
    if reduction == "none" and row_weight is not None:
        raise InvalidArgument("kl_loss: row_weight is given, wanted None with reduction 'none'")
    if query_start is not None and key_start is None:
        if need("kl_loss", "k_teacher", k_teacher).dim() == 3:
            key_start, key_max = query_start, key_max or query_max
    numbers = (
        query_max, key_max, window_left, window_right, sink_keys,
        scaling("kl_loss", scale_teacher, "scale_teacher"),
        scaling("kl_loss", scale_student, "scale_student"),
        flag("kl_loss", "causal", causal), _direction(direction), reduction == "mean",
    )  # fmt: skip
    tensors = (
        q_teacher, k_teacher, q_student, k_student, single(row_weight),
        integers("kl_loss", "query_start", query_start),
        integers("kl_loss", "key_start", key_start),
        integers("kl_loss", "query_len", query_len), integers("kl_loss", "key_len", key_len),
    )  # fmt: skip
    rows = reduction == "none"
    kl, _, _, total = _table.kl(tensors, numbers, (rows, False, False, not rows))
    return kl if rows else total.reshape(())


class KLDistillationLoss(torch.nn.Module):
    """kl_loss as a module: loss(q_teacher, k_teacher, q_student, k_student, **of the call).

    The constructor takes kl_loss's numbers; forward takes its tensors, lengths among them."""

    def __init__(self, *, causal=True, direction="teacher_student", reduction="mean",
                 scale_teacher=None, scale_student=None, window_left=0, window_right=0,
                 sink_keys=0):  # fmt: skip
        super().__init__()
        _direction(direction)
        if reduction not in _REDUCTIONS:
            raise InvalidArgument(
                f"KLDistillationLoss: reduction is {reduction!r}, wanted one of "
                + ", ".join(_REDUCTIONS)
            )
        self.options = {
            "causal": causal, "direction": direction, "reduction": reduction,
            "scale_teacher": scale_teacher, "scale_student": scale_student,
            "window_left": window_left, "window_right": window_right, "sink_keys": sink_keys,
        }  # fmt: skip

    def forward(self, q_teacher, k_teacher, q_student, k_student, **of_the_call):
        return kl_loss(q_teacher, k_teacher, q_student, k_student, **self.options, **of_the_call)

    def extra_repr(self):
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())
