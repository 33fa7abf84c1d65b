# SPDX-License-Identifier: Apache-2.0
"""The mask function of fovea.transformers within torch.compile and torch.export.

A graph knows shapes, and no values.  So what a mask says stays in tensors:

    causal, window                causal, window_left, window_right, from the mask function's code
    2-D mask                      mask (b, 1, 1, t), of padding and of holes alike
    position in a static cache    key_len
    anything else                 mask (b, 1, s, t)

Anything else: functions of the caller, chunked attention, and position_ids without a 2-D mask or a
cache, as these may be of packed sequences.  A Mask is not changed once it is made: activation
checkpointing forbids it."""

import torch
from transformers import masking_utils as hf

from . import transformers as ours
from .torch._arguments import bits

_CAUSAL = hf.causal_mask_function.__code__
_BOTH_WAYS = hf.bidirectional_mask_function.__code__
_ALL_OF = hf.and_masks().__code__


def mask(asked):
    """A Mask, or the bool array of sdpa_mask where the caller's own function made it."""
    b, t, padding = asked["batch_size"], asked["kv_length"], asked.get("attention_mask")
    s, offset = queries(asked)
    shape, whole = (b, 1, s, t), lambda: ours.explicit(asked)
    if maybe_packed(asked, s, offset):
        made = ours.Mask(shape, {"mask": bits("attention", whole(), t)}, whole)
        made.traced = made.of_sequences = True  # an array that nobody reads is no part of the graph
        return made
    kind = kind_of(asked)
    if kind is None:
        return ours.explicit(asked)
    key_offset = asked.get("kv_offset", 0)
    fields = {}
    if kind:
        end = offset + s - key_offset
        if isinstance(end, torch.Tensor):
            fields["key_len"] = end.to(torch.int32).reshape(1).expand(b).contiguous()
        elif end != t:
            return ours.explicit(asked)
    fields.update(ours.windows(kind, None))
    if padding is not None:
        more = max(0, key_offset + t - padding.shape[1])
        seen = torch.nn.functional.pad(padding, (0, more))[:, key_offset : key_offset + t]
        seen = seen.to(asked.get("device"), torch.bool)
        fields["mask"] = bits("attention", seen[:, None, None], t)
    made = ours.Mask(shape, fields, whole)
    made.traced = True
    return made


def queries(asked):
    """How many rows there are, and the position of the first: an int, or a tensor."""
    if "q_length" in asked:
        return asked["q_length"], asked.get("q_offset", 0)
    positions = asked["cache_position"]  # transformers 5.0 to 5.2
    return positions.shape[0], positions[0]


def maybe_packed(asked, s, offset):
    """Whether the function may hold packed sequences: transformers looks for them where there is
    neither a 2-D mask nor a cache, and within a graph it cannot know that there are none."""
    return (
        getattr(asked["mask_function"], "__code__", None) is _ALL_OF
        and "allow_is_bidirectional_skip" not in asked
        and not asked.get("use_vmap")
        and asked.get("attention_mask") is None
        and not isinstance(offset, torch.Tensor)
        and s == asked["kv_length"]
        and getattr(asked.get("config"), "attention_chunk_size", None) is None
    )


def kind_of(asked):
    """pattern()'s answer, without looking into closures that hold tensors."""
    function, config = asked["mask_function"], asked.get("config")
    code = getattr(function, "__code__", None)
    if asked.get("use_vmap"):
        return None  # a function of the caller
    if code is _CAUSAL:
        return {"causal": True}
    if code is _BOTH_WAYS:
        return {}
    chunk = getattr(config, "attention_chunk_size", None)
    if code is not _ALL_OF or asked.get("local_size") is None or chunk is not None:
        return None
    found = parts_of(function)
    return None if found is None else dict(found)


@torch.compiler.assume_constant_result
def parts_of(function):
    """pattern()'s answer as a tuple, of a function that holds no tensors."""
    kind = ours.pattern(function)
    return None if kind is None else tuple(kind.items())


def apart(made, fields, positions):
    """fields, and where Mask.find_packed would look at position_ids, bits of the keys in a row's
    own sequence."""
    b, _, s, t = made.shape
    plain = fields.keys() <= ours.PLAIN and fields.get("causal")
    if not (made.of_sequences or plain) or not b == 1 < s == t:
        return fields
    if positions is None or tuple(positions.shape) != (1, s):
        return fields
    ids = (positions.diff(prepend=positions[:, :1] - 1) != 1).cumsum(1)
    same = bits("attention", ids[:, None, :, None] == ids[:, None, None, :], t)
    return {**fields, "mask": same & fields["mask"] if "mask" in fields else same}
