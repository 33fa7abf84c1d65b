# SPDX-License-Identifier: Apache-2.0
"""The operations of torch.ops.fovea: which fields, which shapes, which gradients."""

import torch

from .. import ops
from ._kernel import Field, Kernel, Output
from ._operation import Operation

F32, I32 = torch.float32, torch.int32
_INTEGERS = (
    "query_max key_max window_left window_right sink_keys local_chunk rope_begin splits keep "
    "block_rows block_keys history direction"
).split()
_BOOLS = "causal rope_interleaved mean exact heads_first".split()
TYPES = {
    **dict.fromkeys(_INTEGERS, "SymInt"),
    **dict.fromkeys(_BOOLS, "bool"),
    **dict.fromkeys("scale softcap scale_teacher scale_student factor eps".split(), "float"),
}


def fields(op, text):
    """Fields from words `name`, `name:4` (rank), `name:4t` (turned), `name:=scores` (spread)."""
    out = []
    for word in text.split():
        name, _, rest = word.partition(":")
        rank, _, spread = rest.partition("=")
        turned = rank.endswith("t")
        rank = rank.rstrip("t")
        out.append(Field(op.params, name, int(rank) if rank else None, turned, spread or None))
    return out


def kernel(op, inputs, outputs, numbers, results, shapes=None):
    """A Kernel from words; `results` takes the tensors by name."""
    inputs, outputs = fields(op, inputs), fields(op, outputs)
    names, numbers = [f.name for f in inputs], numbers.split()

    def named(tensors, values):
        x = dict(zip(names, tensors))
        x.update(zip(numbers, values))
        return x

    def made(tensors, values, wanted):
        all_of = results(named(tensors, values))
        return [y if keep else None for y, keep in zip(all_of, wanted)]

    spread = shapes and (lambda tensors, values: shapes(named(tensors, values)))
    return Kernel(op, inputs, outputs, numbers, made, spread)


def _sequences(x):
    return x["q"].shape[0] if x["query_start"] is None else x["query_start"].shape[0] - 1


def _unwritten(x):
    """Whether there may be rows that the library leaves as they are: past a length, past query_max,
    or behind the last of packed sequences."""
    return x.get("query_len") is not None or x.get("query_start") is not None


def _rows(x, rows, wide):
    """Outputs (.., rows, h, wide) in q's order, and (.., h, rows) in f32: o and lse."""
    q, unwritten = x["q"], _unwritten(x)
    fill_o, fill_lse = (0.0, float("-inf")) if unwritten else (None, None)
    if q.dim() == 3:
        h = q.shape[1]
        return Output((rows, h, wide), q.dtype, None, fill_o), Output((h, rows), F32, None, fill_lse)
    b = q.shape[0]
    if x.get("heads_first"):
        h = q.shape[1]
        stride = (rows * h * wide, wide, h * wide, 1)  # the memory of (b, s, h, d)
        o = Output((b, h, rows, wide), q.dtype, stride, fill_o)
    else:
        h = q.shape[2]
        o = Output((b, rows, h, wide), q.dtype, None, fill_o)
    return o, Output((b, h, rows), F32, None, fill_lse)


def _tokens(x):
    q = x["q"]
    return q.shape[0] if q.dim() == 3 else q.shape[2 if x.get("heads_first") else 1]


def _keys(x):
    """Key columns that a row of scores has (core.h: keys)."""
    k, table = x["k"], x.get("page_table")
    if (table is not None or x["key_start"] is not None) and x["key_max"] > 0:
        return x["key_max"]
    if table is not None:
        return table.shape[1] * k.shape[1]
    return k.shape[0] if k.dim() == 3 else k.shape[2 if x.get("heads_first") else 1]


def _scores(x):
    q, keys = x["q"], _keys(x)
    heads = 1 if q.dim() == 3 or x.get("heads_first") else 2
    first, h = 1 if q.dim() == 3 else q.shape[0], q.shape[heads]
    lead = (first, h, _tokens(x))
    return {
        "bits": (*lead, -(-keys // 8)),
        "scores": (*lead, keys),
        "slopes": (_sequences(x), h),
    }


def _attention(x):
    return _rows(x, _tokens(x), x["v"].shape[-1])


def _alike(*names):
    """Gradients: as large as what they are the gradient of, of its dtype; heads_first keeps the
    memory of (b, s, h, d)."""
    def results(x):
        return [_gradient(x[n], n in ("q", "k", "v") and x.get("heads_first")) for n in names]

    return results


def _gradient(of, heads_first):
    if of is None:
        return None
    stride = None
    if heads_first:
        _, h, s, d = of.shape
        stride = (s * h * d, d, h * d, 1)
    return Output(of.shape, of.dtype, stride)


def _sums(of):
    return None if of is None else Output(of.shape, F32)


def _attention_gradients(x):
    return [*_alike("q", "k", "v")(x), _sums(x["bias"]), _sums(x["alibi"]), _sums(x["sink_logit"])]


_SHARED = (
    "q:4t k:4t v:4t mask:=bits bias:=scores alibi:=slopes sink_logit query_start key_start "
    "query_len key_len key_first"
)
_NUMBERS = (
    "query_max key_max window_left window_right sink_keys local_chunk scale softcap causal "
    "heads_first"
)
attention = Operation(
    "attention",
    kernel(ops._attention_forward, _SHARED, "o:4t lse:3", _NUMBERS, _attention, _scores),
    TYPES, 3,
    kernel(ops._attention_backward, _SHARED + " o:4t lse:3 dout:4t dlse:3",
           "dq:4t dk:4t dv:4t dbias:=scores dalibi:=slopes dsink_logit", _NUMBERS,
           _attention_gradients, _scores),
    (0, 1), (0, 1),
    {"q": "dq", "k": "dk", "v": "dv", "bias": "dbias", "alibi": "dalibi",
     "sink_logit": "dsink_logit"},
)  # fmt: skip

decode = Operation(
    "decode",
    kernel(ops._attention_forward,
           "q:4 k v alibi:=slopes sink_logit query_start query_len key_len key_first page_table "
           "cache_row cos sin",
           "o:4 lse:3",
           "query_max key_max window_left window_right sink_keys local_chunk scale softcap causal "
           "rope_begin rope_interleaved splits",
           _attention, lambda x: _scores({**x, "key_start": None})),
    TYPES, 3,
)  # fmt: skip


def _divergences(x):
    q, unwritten = x["q_teacher"], _unwritten(x)
    shape = (q.shape[1], q.shape[0]) if q.dim() == 3 else (q.shape[0], q.shape[2], q.shape[1])
    fill, low = (0.0, float("-inf")) if unwritten else (None, None)
    return [
        Output(shape, F32, None, fill), Output(shape, F32, None, low),
        Output(shape, F32, None, low), Output((1,), F32),
    ]  # fmt: skip


_PAIR = (
    "q_teacher:4 k_teacher:4 q_student:4 k_student:4 row_weight:3 query_start key_start query_len "
    "key_len"
)
_PAIR_NUMBERS = (
    "query_max key_max window_left window_right sink_keys scale_teacher scale_student causal "
    "direction mean"
)
kl = Operation(
    "kl",
    kernel(ops._kl_forward, _PAIR, "kl:3 lse_teacher:3 lse_student:3 total", _PAIR_NUMBERS,
           _divergences),
    TYPES, 4,
    kernel(ops._kl_backward, _PAIR + " kl:3 lse_teacher:3 lse_student:3 dkl:3 dtotal",
           "dq_teacher:4 dk_teacher:4 dq_student:4 dk_student:4", _PAIR_NUMBERS,
           _alike("q_teacher", "k_teacher", "q_student", "k_student")),
    (0, 1, 2), (0, 3),
    {n: f"d{n}" for n in ("q_teacher", "k_teacher", "q_student", "k_student")},
)  # fmt: skip


def _convolved(x):
    return _rows(x, _tokens(x) - x["history"] * (1 if x["query_start"] is None else _sequences(x)),
                 x["v"].shape[-1])  # fmt: skip


_LENGTHS = "query_start key_start query_len key_len"
_CONV_NUMBERS = "query_max key_max history scale causal"
conv_attention = Operation(
    "conv_attention",
    kernel(ops._conv_attention_forward, f"q:4 k:4 v:4 weight {_LENGTHS}", "o:4 lse:3",
           _CONV_NUMBERS, _convolved),
    TYPES, 4,
    kernel(ops._conv_attention_backward, f"q:4 k:4 v:4 weight {_LENGTHS} o:4 lse:3 dout:4",
           "dq:4 dk:4 dv:4 dweight", _CONV_NUMBERS,
           lambda x: [*_alike("q", "k", "v")(x), _sums(x["weight"])]),
    (0, 1), (0,),
    {n: f"d{n}" for n in ("q", "k", "v", "weight")},
)  # fmt: skip

multi_token = Operation(
    "multi_token",
    kernel(ops._x_multi_token_forward, f"q:4 k:4 v:4 weight mix_before mix_after {_LENGTHS}",
           "o:4 lse:3", _CONV_NUMBERS, _convolved),
    TYPES, 4,
    kernel(ops._x_multi_token_backward,
           f"q:4 k:4 v:4 weight mix_before mix_after {_LENGTHS} lse:3 dout:4",
           "dq:4 dk:4 dv:4 dweight dmix_before dmix_after", _CONV_NUMBERS,
           lambda x: [*_alike("q", "k", "v")(x),
                      *[_sums(x[n]) for n in ("weight", "mix_before", "mix_after")]]),
    (1,), (0,),
    {n: f"d{n}" for n in ("q", "k", "v", "weight", "mix_before", "mix_after")},
)  # fmt: skip

group_norm = Operation(
    "group_norm",
    kernel(ops._x_group_norm_forward, "x gain query_len", "y", "factor eps",
           lambda x: [Output(x["x"].shape, x["x"].dtype, None,
                             None if x["query_len"] is None else 0.0)]),
    TYPES, 1,
    kernel(ops._x_group_norm_backward, "x gain query_len dy", "dx dgain", "factor eps",
           lambda x: [Output(x["x"].shape, x["x"].dtype), _sums(x["gain"])]),
    (), (0,),
    {"x": "dx", "gain": "dgain"},
)  # fmt: skip


def _traced(x):
    q, v = x["q"], x["v"]
    (b, s, h, _), rows = q.shape, x["block_rows"] or 64
    slots, row = (b, h, -(-s // rows), x["keep"]), (b, h, s)
    return [
        Output(slots, I32), Output(slots, F32),
        Output((b, s, h, v.shape[-1]), q.dtype), Output(row, F32),
        Output(row, F32), Output(slots, F32),
    ]  # fmt: skip


trace = Operation(
    "trace",
    kernel(ops._trace_forward, "q:4 k v keep_row block_mask key_len page_table cache_row",
           "selected score o lse lse_dense edge_mass",
           "keep scale block_rows block_keys exact causal", _traced),
    TYPES, 3,
)  # fmt: skip
