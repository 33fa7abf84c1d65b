# SPDX-License-Identifier: Apache-2.0
"""quantised_attention: attention of 8 or 4 bits by the name of its method."""

import torch

from .. import _abi, ops
from .._errors import InvalidArgument
from .._recipe import recipes
from . import _table
from ._arguments import autocast, flag, integers, number, scaling, single
from ._operation import Operation

_ENUMS = {
    "code": _abi.XCode, "v_code": _abi.XCode,
    "q_group": _abi.ScaleGroup, "k_group": _abi.ScaleGroup, "v_group": _abi.ScaleGroup,
    "q_smooth": _abi.Smooth, "k_smooth": _abi.Smooth,
    "p_format": _abi.PFormat, "accumulate": _abi.Accumulate,
}  # fmt: skip
_OF_THE_METHOD = (
    "v_scale_max code v_code q_group k_group v_group q_block k_block v_block q_smooth k_smooth "
    "p_format accumulate"
).split()
_OF_THE_CALL = "query_max key_max window_left window_right seed scale softcap causal hadamard"


def _numbers(method):
    """The method's numbers in the order of the operation's arguments."""
    told = dict(method.numbers)
    made = []
    for name in _OF_THE_METHOD:
        value = told.pop(name, 0)
        made.append(int(_ENUMS[name][value.upper()]) if isinstance(value, str) else value)
    if told:
        raise InvalidArgument(f"recipe {method.name}: {min(told)} is no number of this operation")
    return tuple([float(made[0]), *made[1:]])


_METHODS = {r.name: _numbers(r) for r in recipes() if r.operation == "x_quantised_forward"}
_SHORT = {
    name.replace("attention", ""): name for name in _METHODS if name.startswith("sageattention")
}
NAMES = tuple(sorted([*_METHODS, *_SHORT]))  # what quantised_attention takes


def full_name(recipe, what="quantised_attention: recipe"):
    """The method's name in recipes.json, of that or of its short form."""
    if not isinstance(recipe, str):
        raise TypeError(f"{what} is {recipe!r}, wanted a str such as 'sage2'")
    name = _SHORT.get(recipe, recipe)
    if name not in _METHODS:
        raise InvalidArgument(f"{what} is {recipe!r}, wanted one of {', '.join(NAMES)}")
    return name


quantised = Operation(
    "quantised_attention",
    _table.kernel(ops._x_quantised_forward, "q:4 k:4 v:4 query_start key_start sink_logit",
                  "o:4 lse:3", " ".join([_OF_THE_CALL, *_OF_THE_METHOD]), _table._attention),
    {**_table.TYPES, **dict.fromkeys(_OF_THE_METHOD, "int"), "v_scale_max": "float",
     "seed": "SymInt", "hadamard": "bool"},
    3,
)  # fmt: skip

_PLAIN = "query_max key_max window_left window_right scale causal"
_ALL_NUMBERS = " ".join([_PLAIN, *_OF_THE_METHOD])  # the gradient has fields for some of them
sagebwd = Operation(
    "sagebwd",
    _table.kernel(ops._x_quantised_forward, "q:4 k:4 v:4 query_start key_start", "o:4 lse:3",
                  _ALL_NUMBERS, _table._attention),
    {**_table.TYPES, **dict.fromkeys(_OF_THE_METHOD, "int"), "v_scale_max": "float"},
    3,
    _table.kernel(ops._x_quant_backward,
                  "q:4 k:4 v:4 query_start key_start o:4 lse:3 dout:4", "dq:4 dk:4 dv:4",
                  _ALL_NUMBERS, _table._alike("q", "k", "v")),
    (0, 1), (0,), {"q": "dq", "k": "dk", "v": "dv"},
)  # fmt: skip


def quantised_attention(q, k, v, recipe, *, causal=False, scale=None, window_left=0, window_right=0,
                        softcap=0.0, sink_logit=None, query_start=None, key_start=None, query_max=0,
                        key_max=0, hadamard=False, seed=0, return_lse=False):  # fmt: skip
    """Attention whose q, k and v are rounded to 8 or 4 bits as a paper does it.  sagebwd alone has
    gradients, in 8 bits too: of q, k and v, without softcap, sink_logit and hadamard.

    q (b, s, h, d), k (b, t, g, d), v (b, t, g, e) of one dtype: f16, bf16 or f32; g divides h.  Gives
    o (b, s, h, e) of that dtype, and with return_lse (o, lse), lse (b, h, s) f32.

    recipe        sageattention, sageattention2, sageattention2_int4, sageattention2pp,
                  sageattention3, sagebwd, fa3_fp8.  sage, sage2, sage2_int4, sage2pp
                  and sage3 are short for the first five.  `fovea.recipe(name)` says what each does.
    causal, windows, softcap, scale, sink_logit   as in attention
    query_start, key_start, query_max, key_max    packed sequences, as in varlen_attention; tensors
                  then are (tokens, heads, width)
    hadamard      q and k are rotated first, by signs that `seed` gives: spreads outliers

    Sequences are full or packed, as padding would enter means and scales.  sageattention keeps v as
    it is, in f16 or bf16.  Each call quantises q, k and v anew.  With lse the means that were taken
    off are counted, which may move o's last bits."""
    name = full_name(recipe)
    method = _METHODS[name]
    if torch.is_tensor(q):
        q, k, v = autocast(q, k, v)
    if key_start is None and query_start is not None and k.dim() == 3:
        key_start, key_max = query_start, key_max or query_max
    wanted = (True, bool(return_lse))
    if name == "sagebwd" and sink_logit is None and not (softcap or hadamard or seed):
        o, lse = sagebwd(
            (q, k, v, integers("quantised_attention", "query_start", query_start),
             integers("quantised_attention", "key_start", key_start)),
            (query_max, key_max, window_left, window_right,
             scaling("quantised_attention", scale), flag("quantised_attention", "causal", causal),
             *method), wanted,
        )  # fmt: skip
        return (o, lse) if return_lse else o
    numbers = (
        query_max, key_max, window_left, window_right, number("quantised_attention", "seed", seed),
        scaling("quantised_attention", scale), softcap,
        flag("quantised_attention", "causal", causal),
        flag("quantised_attention", "hadamard", hadamard), *method,
    )  # fmt: skip
    tensors = (
        q, k, v, integers("quantised_attention", "query_start", query_start),
        integers("quantised_attention", "key_start", key_start), single(sink_logit),
    )  # fmt: skip
    o, lse = quantised(tensors, numbers, wanted)
    return (o, lse) if return_lse else o
