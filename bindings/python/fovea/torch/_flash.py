# SPDX-License-Identifier: Apache-2.0
"""fovea beneath torch.nn.functional.scaled_dot_product_attention itself, on CUDA.

PyTorch lets a provider replace its flash attention kernels.  The functions here have aten's
signatures; torch keeps choosing when flash attention runs, pads columns and drives autograd."""

import warnings

import torch

from .._errors import Unsupported
from . import _table
from ._arguments import integers, scaling


class _Handle:
    """Keeps the registration; torch.nn.attention.restore_flash_attention_impl() removes it."""

    def __init__(self, library):
        self.library = library

    def remove(self):
        self.library = None


def register(name="fovea"):
    """Makes fovea known to torch.nn.attention as a flash attention implementation:

        fovea.torch.register()
        torch.nn.attention.activate_flash_attention_impl("fovea")

    From then on F.scaled_dot_product_attention, nn.MultiheadAttention and all that stand on them
    use fovea on CUDA, wherever torch chooses flash attention (f16 and bf16, without a mask).
    dropout_p > 0 then raises.  torch.nn.attention.restore_flash_attention_impl() undoes it."""
    registry = getattr(torch.nn.attention, "register_flash_attention_impl", None)
    if registry is None:
        raise Unsupported(
            f"register: torch {torch.__version__} has no register_flash_attention_impl, wanted 2.11 "
            "or later: call fovea.torch.scaled_dot_product_attention"
        )
    registry(name, register_fn=_install)
    return name


def activate(name="fovea"):
    """register(), and torch.nn.attention.activate_flash_attention_impl."""
    torch.nn.attention.activate_flash_attention_impl(register(name))


def _install():
    library = torch.library.Library("aten", "IMPL", "CUDA")
    with warnings.catch_warnings():  # replacing kernels is the purpose
        warnings.filterwarnings("ignore", "[^$]*Overriding a previously registered kernel")
        for name, kernel in KERNELS.items():
            if hasattr(torch.ops.aten, name):
                library.impl(name, kernel, "CUDA")
    return _Handle(library)


def _refuse(op, dropout_p, return_debug_mask=False):
    if dropout_p:
        raise Unsupported(f"{op}: dropout_p is {dropout_p}, wanted 0: fovea has no dropout")
    if return_debug_mask:
        raise Unsupported(f"{op}: return_debug_mask is True, wanted False")


def _numbers(op, query, max_q, max_k, is_causal, scale, left, right, heads_first=False):
    """fovea's windows count the row's own position, and 0 is no bound; aten's -1 is none."""
    left = 0 if left is None or left < 0 else left + 1
    right = 0 if right is None or right < 0 or is_causal else right + 1
    packed = query.dim() == 3
    return (
        max_q if packed else 0, max_k if packed else 0, left, right, 0, 0, scaling(op, scale), 0.0,
        bool(is_causal), heads_first,
    )  # fmt: skip


def _tensors(op, query, key, value, query_start=None, key_start=None, key_len=None, alibi=None):
    starts = integers(op, "cum_seq_q", query_start), integers(op, "cum_seq_k", key_start)
    return (
        query, key, value, None, None, alibi, None, *starts, None,
        integers(op, "seqused_k", key_len), None,
    )  # fmt: skip


def _extras(like):
    """What a forward without dropout gives in place of its random state and debug mask."""
    return (
        like.new_zeros((2,), dtype=torch.uint64),
        like.new_zeros((), dtype=torch.uint64),
        like.new_empty(0),
    )


def flash_forward(query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal,
                  return_debug_mask, *, scale=None, window_size_left=None, window_size_right=None,
                  seqused_k=None, alibi_slopes=None, block_table=None, num_splits=None):  # fmt: skip
    """aten::_flash_attention_forward: (b, s, h, d), or packed with cum_seq_*, or a paged cache."""
    op = "_flash_attention_forward"
    _refuse(op, dropout_p, return_debug_mask)
    numbers = _numbers(op, query, max_q, max_k, is_causal, scale, window_size_left,
                       window_size_right)  # fmt: skip
    if block_table is None:
        tensors = _tensors(
            op, query, key, value, cum_seq_q, cum_seq_k, seqused_k, alibi_slopes
        )
        o, lse = _table.attention.kernel(tensors, numbers, (True, True))
    else:
        tensors = (
            query, key, value, alibi_slopes, None, integers(op, "cum_seq_q", cum_seq_q), None,
            integers(op, "seqused_k", seqused_k), None, integers(op, "block_table", block_table),
            None, None, None,
        )  # fmt: skip
        numbers = (numbers[0], 0, *numbers[2:9], 0, False, num_splits or 0)
        o, lse = _table.decode.kernel(tensors, numbers, (True, True))
    return o, lse, *_extras(query)


def flash_forward_in_place(out, *arguments, **options):
    """aten::_flash_attention_forward_no_dropout_inplace."""
    o, lse, *_ = flash_forward(*arguments, **options)
    out.copy_(o)
    return lse


def flash_backward(grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k,
                   dropout_p, is_causal, rng_state, unused, *, scale=None, window_size_left=None,
                   window_size_right=None):  # fmt: skip
    """aten::_flash_attention_backward."""
    op = "_flash_attention_backward"
    _refuse(op, dropout_p)
    numbers = _numbers(op, query, max_q, max_k, is_causal, scale, window_size_left,
                       window_size_right)  # fmt: skip
    tensors = _tensors(op, query, key, value, cum_seq_q, cum_seq_k)
    return _gradients(tensors, out, logsumexp, grad_out, numbers)


def sdpa_forward(query, key, value, dropout_p=0.0, is_causal=False, return_debug_mask=False, *,
                 scale=None):  # fmt: skip
    """aten::_scaled_dot_product_flash_attention: (b, h, s, d)."""
    op = "_scaled_dot_product_flash_attention"
    _refuse(op, dropout_p, return_debug_mask)
    numbers = _numbers(op, query, 0, 0, is_causal, scale, None, None, True)
    o, lse = _table.attention.kernel(_tensors(op, query, key, value), numbers, (True, True))
    return o, lse, None, None, query.shape[2], key.shape[2], *_extras(query)


def sdpa_backward(grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k,
                  dropout_p, is_causal, philox_seed, philox_offset, *, scale=None):  # fmt: skip
    """aten::_scaled_dot_product_flash_attention_backward."""
    op = "_scaled_dot_product_flash_attention_backward"
    _refuse(op, dropout_p)
    numbers = _numbers(op, query, 0, 0, is_causal, scale, None, None, True)
    return _gradients(_tensors(op, query, key, value), out, logsumexp, grad_out, numbers)


def _gradients(tensors, o, lse, dout, numbers):
    wanted = (True, True, True, False, False, False)
    made = _table.attention.backward((*tensors, o, lse, dout, None), numbers, wanted)
    return tuple(made[:3])


KERNELS = {
    "_flash_attention_forward": flash_forward,
    "_flash_attention_forward_no_dropout_inplace": flash_forward_in_place,
    "_flash_attention_backward": flash_backward,
    "_scaled_dot_product_flash_attention": sdpa_forward,
    "_scaled_dot_product_flash_attention_backward": sdpa_backward,
}
