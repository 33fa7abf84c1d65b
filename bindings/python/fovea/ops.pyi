# SPDX-License-Identifier: Apache-2.0
# Written by tools/api.py from include/fovea: edit the headers instead.
"""Types of the operations: see ../../../tools/emit_python_types.py for how outputs are typed."""
from typing import Any, Literal, overload

from typing_extensions import TypedDict, Unpack

from ._core import Context
from ._types import A, Array, Float, Int, Output, Wanted
from ._abi import Accumulate as Accumulate
from ._abi import CodeFormat as CodeFormat
from ._abi import CodeOrder as CodeOrder
from ._abi import Direction as Direction
from ._abi import EdgeKind as EdgeKind
from ._abi import PFormat as PFormat
from ._abi import ScaleGroup as ScaleGroup
from ._abi import Scaling as Scaling
from ._abi import Smooth as Smooth

__all__ = ["attention_forward", "attention_backward", "merge_forward", "merge_backward",
           "cache_append", "cache_copy", "cache_get", "rope_forward", "rope_table_get",
           "quant_quantize", "quant_dequantize", "quant_forward", "kl_forward", "kl_backward",
           "conv_attention_forward", "conv_attention_backward", "trace_forward", "Accumulate",
           "CodeFormat", "CodeOrder", "Direction", "EdgeKind", "PFormat", "ScaleGroup", "Scaling",
           "Smooth"]

class _attention_forward(TypedDict, total=False):
    q_value: Array | None
    query_start: Array | None
    key_start: Array | None
    query_len: Array | None
    key_len: Array | None
    key_first: Array | None
    page_table: Array | None
    cache_row: Array | None
    query_position: Array | None
    key_position: Array | None
    head_window: Array | None
    mask: Array | None
    bias: Array | None
    alibi: Array | None
    sink_logit: Array | None
    cos: Array | None
    sin: Array | None
    k_scale: Array | None
    v_scale: Array | None
    context_len: Array | None
    query_max: Int
    key_max: Int
    window_left: Int
    window_right: Int
    sink_keys: Int
    local_chunk: Int
    scale: Float
    softcap: Float
    causal: Int
    rope_begin: Int
    rope_interleaved: Int
    splits: Int
    key_step: Int
    key_shift: Int

@overload
def attention_forward(ctx: Context | None, q: A, k: Array, v: Array, *, o: Wanted | None = ...,
                      lse: None = ..., **fields: Unpack[_attention_forward]) -> A: ...
@overload
def attention_forward(q: A, k: Array, v: Array, *, ctx: Context | None = ...,
                      o: Wanted | None = ..., lse: None = ...,
                      **fields: Unpack[_attention_forward]) -> A: ...
@overload
def attention_forward(ctx: Context | None, q: A, k: Array, v: Array, *, o: Wanted | None = ...,
                      lse: Wanted, **fields: Unpack[_attention_forward]) -> tuple[A, A]: ...
@overload
def attention_forward(q: A, k: Array, v: Array, *, ctx: Context | None = ...,
                      o: Wanted | None = ..., lse: Wanted,
                      **fields: Unpack[_attention_forward]) -> tuple[A, A]: ...
@overload
def attention_forward(ctx: Context | None, q: Array, k: Array, v: Array, *, o: Output = ...,
                      lse: Output = ..., **fields: Unpack[_attention_forward]) -> Any: ...
@overload
def attention_forward(q: Array, k: Array, v: Array, *, ctx: Context | None = ..., o: Output = ...,
                      lse: Output = ..., **fields: Unpack[_attention_forward]) -> Any: ...

class _attention_backward(TypedDict, total=False):
    query_start: Array | None
    key_start: Array | None
    query_len: Array | None
    key_len: Array | None
    key_first: Array | None
    query_position: Array | None
    key_position: Array | None
    head_window: Array | None
    mask: Array | None
    bias: Array | None
    alibi: Array | None
    sink_logit: Array | None
    dlse: Array | None
    query_max: Int
    key_max: Int
    window_left: Int
    window_right: Int
    sink_keys: Int
    local_chunk: Int
    scale: Float
    softcap: Float
    causal: Int
    nondeterministic: Int

@overload
def attention_backward(ctx: Context | None, q: A, k: Array, v: Array, o: Array, lse: Array,
                       dout: Array, *, dq: Wanted | None = ..., dk: Wanted | None = ...,
                       dv: Wanted | None = ..., dsink_logit: None = ..., dbias: None = ...,
                       dalibi: None = ..., **fields: Unpack[_attention_backward]) -> tuple[A, A,
                       A]: ...
@overload
def attention_backward(q: A, k: Array, v: Array, o: Array, lse: Array, dout: Array, *,
                       ctx: Context | None = ..., dq: Wanted | None = ..., dk: Wanted | None = ...,
                       dv: Wanted | None = ..., dsink_logit: None = ..., dbias: None = ...,
                       dalibi: None = ..., **fields: Unpack[_attention_backward]) -> tuple[A, A,
                       A]: ...
@overload
def attention_backward(ctx: Context | None, q: A, k: Array, v: Array, o: Array, lse: Array,
                       dout: Array, *, dq: Wanted | None = ..., dk: Wanted | None = ...,
                       dv: Wanted | None = ..., dsink_logit: Wanted, dbias: None = ...,
                       dalibi: None = ..., **fields: Unpack[_attention_backward]) -> tuple[A, A, A,
                       A]: ...
@overload
def attention_backward(q: A, k: Array, v: Array, o: Array, lse: Array, dout: Array, *,
                       ctx: Context | None = ..., dq: Wanted | None = ..., dk: Wanted | None = ...,
                       dv: Wanted | None = ..., dsink_logit: Wanted, dbias: None = ...,
                       dalibi: None = ..., **fields: Unpack[_attention_backward]) -> tuple[A, A, A,
                       A]: ...
@overload
def attention_backward(ctx: Context | None, q: A, k: Array, v: Array, o: Array, lse: Array,
                       dout: Array, *, dq: Wanted | None = ..., dk: Wanted | None = ...,
                       dv: Wanted | None = ..., dsink_logit: None = ..., dbias: Wanted,
                       dalibi: None = ..., **fields: Unpack[_attention_backward]) -> tuple[A, A, A,
                       A]: ...
@overload
def attention_backward(q: A, k: Array, v: Array, o: Array, lse: Array, dout: Array, *,
                       ctx: Context | None = ..., dq: Wanted | None = ..., dk: Wanted | None = ...,
                       dv: Wanted | None = ..., dsink_logit: None = ..., dbias: Wanted,
                       dalibi: None = ..., **fields: Unpack[_attention_backward]) -> tuple[A, A, A,
                       A]: ...
@overload
def attention_backward(ctx: Context | None, q: A, k: Array, v: Array, o: Array, lse: Array,
                       dout: Array, *, dq: Wanted | None = ..., dk: Wanted | None = ...,
                       dv: Wanted | None = ..., dsink_logit: None = ..., dbias: None = ...,
                       dalibi: Wanted, **fields: Unpack[_attention_backward]) -> tuple[A, A, A,
                       A]: ...
@overload
def attention_backward(q: A, k: Array, v: Array, o: Array, lse: Array, dout: Array, *,
                       ctx: Context | None = ..., dq: Wanted | None = ..., dk: Wanted | None = ...,
                       dv: Wanted | None = ..., dsink_logit: None = ..., dbias: None = ...,
                       dalibi: Wanted, **fields: Unpack[_attention_backward]) -> tuple[A, A, A,
                       A]: ...
@overload
def attention_backward(ctx: Context | None, q: Array, k: Array, v: Array, o: Array, lse: Array,
                       dout: Array, *, dq: Output = ..., dk: Output = ..., dv: Output = ...,
                       dsink_logit: Output = ..., dbias: Output = ..., dalibi: Output = ...,
                       **fields: Unpack[_attention_backward]) -> Any: ...
@overload
def attention_backward(q: Array, k: Array, v: Array, o: Array, lse: Array, dout: Array, *,
                       ctx: Context | None = ..., dq: Output = ..., dk: Output = ...,
                       dv: Output = ..., dsink_logit: Output = ..., dbias: Output = ...,
                       dalibi: Output = ..., **fields: Unpack[_attention_backward]) -> Any: ...

class _merge_forward(TypedDict, total=False):
    row: Array | None
    s: Int | None

@overload
def merge_forward(ctx: Context | None, o_part: A, lse_part: Array, *, o: Wanted | None = ...,
                  lse: None = ..., **fields: Unpack[_merge_forward]) -> A: ...
@overload
def merge_forward(o_part: A, lse_part: Array, *, ctx: Context | None = ..., o: Wanted | None = ...,
                  lse: None = ..., **fields: Unpack[_merge_forward]) -> A: ...
@overload
def merge_forward(ctx: Context | None, o_part: A, lse_part: Array, *, o: Wanted | None = ...,
                  lse: Wanted, **fields: Unpack[_merge_forward]) -> tuple[A, A]: ...
@overload
def merge_forward(o_part: A, lse_part: Array, *, ctx: Context | None = ..., o: Wanted | None = ...,
                  lse: Wanted, **fields: Unpack[_merge_forward]) -> tuple[A, A]: ...
@overload
def merge_forward(ctx: Context | None, o_part: Array, lse_part: Array, *, o: Output = ...,
                  lse: Output = ..., **fields: Unpack[_merge_forward]) -> Any: ...
@overload
def merge_forward(o_part: Array, lse_part: Array, *, ctx: Context | None = ..., o: Output = ...,
                  lse: Output = ..., **fields: Unpack[_merge_forward]) -> Any: ...

class _merge_backward(TypedDict, total=False):
    row: Array | None
    dlse: Array | None

@overload
def merge_backward(ctx: Context | None, o_part: A, lse_part: Array, o: Array, lse: Array,
                   dout: Array, *, do_part: Wanted | None = ..., dlse_part: Wanted | None = ...,
                   **fields: Unpack[_merge_backward]) -> tuple[A, A]: ...
@overload
def merge_backward(o_part: A, lse_part: Array, o: Array, lse: Array, dout: Array, *,
                   ctx: Context | None = ..., do_part: Wanted | None = ...,
                   dlse_part: Wanted | None = ..., **fields: Unpack[_merge_backward]) -> tuple[A,
                   A]: ...
@overload
def merge_backward(ctx: Context | None, o_part: Array, lse_part: Array, o: Array, lse: Array,
                   dout: Array, *, do_part: Output = ..., dlse_part: Output = ...,
                   **fields: Unpack[_merge_backward]) -> Any: ...
@overload
def merge_backward(o_part: Array, lse_part: Array, o: Array, lse: Array, dout: Array, *,
                   ctx: Context | None = ..., do_part: Output = ..., dlse_part: Output = ...,
                   **fields: Unpack[_merge_backward]) -> Any: ...

class _cache_append(TypedDict, total=False):
    k_new: Array | None
    v_new: Array | None
    k: Array | None
    v: Array | None
    query_start: Array | None
    key_start: Array | None
    query_len: Array | None
    key_len: Array | None
    page_table: Array | None
    cache_row: Array | None
    position: Array | None
    cos: Array | None
    sin: Array | None
    norm_weight: Array | None
    k_scale: Array | None
    v_scale: Array | None
    k_scale_out: Array | None
    v_scale_out: Array | None
    r: Int | None
    query_max: Int
    key_max: Int
    norm_eps: Float
    rope_begin: Int
    rope_interleaved: Int
    scale_power_of_two: Int

@overload
def cache_append(ctx: Context | None = ..., *, key_len_out: None = ...,
                 **fields: Unpack[_cache_append]) -> None: ...
@overload
def cache_append(ctx: Context | None = ..., *, key_len_out: Wanted,
                 **fields: Unpack[_cache_append]) -> Any: ...
@overload
def cache_append(ctx: Context | None = ..., *, key_len_out: Output = ...,
                 **fields: Unpack[_cache_append]) -> Any: ...

class _cache_copy(TypedDict, total=False):
    pass

@overload
def cache_copy(ctx: Context | None, source: Array, target: Array, pair: Array,
               **fields: Unpack[_cache_copy]) -> None: ...
@overload
def cache_copy(source: Array, target: Array, pair: Array, *, ctx: Context | None = ...,
               **fields: Unpack[_cache_copy]) -> None: ...

class _cache_get(TypedDict, total=False):
    key_start: Array | None
    key_len: Array | None
    page_table: Array | None
    cache_row: Array | None
    k_scale: Array | None
    b: Int | None
    u: Int | None
    key_max: Int

@overload
def cache_get(ctx: Context | None, k: A, *, k_out: Wanted | None = ...,
              **fields: Unpack[_cache_get]) -> A: ...
@overload
def cache_get(k: A, *, ctx: Context | None = ..., k_out: Wanted | None = ...,
              **fields: Unpack[_cache_get]) -> A: ...
@overload
def cache_get(ctx: Context | None, k: Array, *, k_out: Output = ...,
              **fields: Unpack[_cache_get]) -> Any: ...
@overload
def cache_get(k: Array, *, ctx: Context | None = ..., k_out: Output = ...,
              **fields: Unpack[_cache_get]) -> Any: ...

class _rope_forward(TypedDict, total=False):
    position: Array | None
    start: Array | None
    rope_begin: Int
    rope_interleaved: Int
    inverse: Int

@overload
def rope_forward(ctx: Context | None, x: A, cos: Array, sin: Array, *, y: Wanted | None = ...,
                 **fields: Unpack[_rope_forward]) -> A: ...
@overload
def rope_forward(x: A, cos: Array, sin: Array, *, ctx: Context | None = ..., y: Wanted | None = ...,
                 **fields: Unpack[_rope_forward]) -> A: ...
@overload
def rope_forward(ctx: Context | None, x: Array, cos: Array, sin: Array, *, y: Output = ...,
                 **fields: Unpack[_rope_forward]) -> Any: ...
@overload
def rope_forward(x: Array, cos: Array, sin: Array, *, ctx: Context | None = ..., y: Output = ...,
                 **fields: Unpack[_rope_forward]) -> Any: ...

class _rope_table_get(TypedDict, total=False):
    frequency: Array | None
    positions: Int | None
    half: Int | None
    position_begin: Int
    original_len: Int
    base: Float
    factor: Float
    low_factor: Float
    high_factor: Float
    scaling: Literal["none", "linear", "llama3", "yarn"] | Scaling | Int

def rope_table_get(ctx: Context | None = ..., *, cos: Output = ..., sin: Output = ...,
                   **fields: Unpack[_rope_table_get]) -> Any: ...

class _quant_quantize(TypedDict, total=False):
    start: Array | None
    k: Array | None
    k_mean: Array | None
    key_start: Array | None
    code_d: Int | None
    padded: Int | None
    n: Int | None
    means: Int | None
    deltas: Int | None
    t: Int | None
    block: Int
    seed: Int
    scale_max: Float
    hadamard: Int
    code_order: Literal["plain", "v_perm16"] | CodeOrder | Int
    group: (Literal["block", "thread_q", "thread_k", "token", "channel", "micro16", "micro32",
        "micro16_t", "micro32_t"] | ScaleGroup | Int)
    code_format: Literal["dtype", "i4", "e2m1"] | CodeFormat | Int
    smooth: Literal["none", "sequence", "block"] | Smooth | Int

@overload
def quant_quantize(ctx: Context | None, x: A, *, code: None = ..., code_t: None = ...,
                   scale: Wanted | None = ..., mean: None = ..., delta: None = ...,
                   **fields: Unpack[_quant_quantize]) -> A: ...
@overload
def quant_quantize(x: A, *, ctx: Context | None = ..., code: None = ..., code_t: None = ...,
                   scale: Wanted | None = ..., mean: None = ..., delta: None = ...,
                   **fields: Unpack[_quant_quantize]) -> A: ...
@overload
def quant_quantize(ctx: Context | None, x: A, *, code: Wanted, code_t: None = ...,
                   scale: Wanted | None = ..., mean: None = ..., delta: None = ...,
                   **fields: Unpack[_quant_quantize]) -> tuple[A, A]: ...
@overload
def quant_quantize(x: A, *, ctx: Context | None = ..., code: Wanted, code_t: None = ...,
                   scale: Wanted | None = ..., mean: None = ..., delta: None = ...,
                   **fields: Unpack[_quant_quantize]) -> tuple[A, A]: ...
@overload
def quant_quantize(ctx: Context | None, x: A, *, code: None = ..., code_t: Wanted,
                   scale: Wanted | None = ..., mean: None = ..., delta: None = ...,
                   **fields: Unpack[_quant_quantize]) -> tuple[A, A]: ...
@overload
def quant_quantize(x: A, *, ctx: Context | None = ..., code: None = ..., code_t: Wanted,
                   scale: Wanted | None = ..., mean: None = ..., delta: None = ...,
                   **fields: Unpack[_quant_quantize]) -> tuple[A, A]: ...
@overload
def quant_quantize(ctx: Context | None, x: A, *, code: None = ..., code_t: None = ...,
                   scale: Wanted | None = ..., mean: Wanted, delta: None = ...,
                   **fields: Unpack[_quant_quantize]) -> tuple[A, A]: ...
@overload
def quant_quantize(x: A, *, ctx: Context | None = ..., code: None = ..., code_t: None = ...,
                   scale: Wanted | None = ..., mean: Wanted, delta: None = ...,
                   **fields: Unpack[_quant_quantize]) -> tuple[A, A]: ...
@overload
def quant_quantize(ctx: Context | None, x: A, *, code: None = ..., code_t: None = ...,
                   scale: Wanted | None = ..., mean: None = ..., delta: Wanted,
                   **fields: Unpack[_quant_quantize]) -> tuple[A, A]: ...
@overload
def quant_quantize(x: A, *, ctx: Context | None = ..., code: None = ..., code_t: None = ...,
                   scale: Wanted | None = ..., mean: None = ..., delta: Wanted,
                   **fields: Unpack[_quant_quantize]) -> tuple[A, A]: ...
@overload
def quant_quantize(ctx: Context | None, x: Array, *, code: Output = ..., code_t: Output = ...,
                   scale: Output = ..., mean: Output = ..., delta: Output = ...,
                   **fields: Unpack[_quant_quantize]) -> Any: ...
@overload
def quant_quantize(x: Array, *, ctx: Context | None = ..., code: Output = ..., code_t: Output = ...,
                   scale: Output = ..., mean: Output = ..., delta: Output = ...,
                   **fields: Unpack[_quant_quantize]) -> Any: ...

class _quant_dequantize(TypedDict, total=False):
    start: Array | None
    code: Array | None
    code_t: Array | None
    mean: Array | None
    s: Int | None
    d: Int | None
    block: Int
    seed: Int
    hadamard: Int
    code_order: Literal["plain", "v_perm16"] | CodeOrder | Int
    group: (Literal["block", "thread_q", "thread_k", "token", "channel", "micro16", "micro32",
        "micro16_t", "micro32_t"] | ScaleGroup | Int)
    code_format: Literal["dtype", "i4", "e2m1"] | CodeFormat | Int
    smooth: Literal["none", "sequence", "block"] | Smooth | Int

@overload
def quant_dequantize(ctx: Context | None, scale: A, *, y: Wanted | None = ...,
                     **fields: Unpack[_quant_dequantize]) -> A: ...
@overload
def quant_dequantize(scale: A, *, ctx: Context | None = ..., y: Wanted | None = ...,
                     **fields: Unpack[_quant_dequantize]) -> A: ...
@overload
def quant_dequantize(ctx: Context | None, scale: Array, *, y: Output = ...,
                     **fields: Unpack[_quant_dequantize]) -> Any: ...
@overload
def quant_dequantize(scale: Array, *, ctx: Context | None = ..., y: Output = ...,
                     **fields: Unpack[_quant_dequantize]) -> Any: ...

class _quant_forward(TypedDict, total=False):
    v: Array | None
    v_t: Array | None
    q_scale: Array | None
    k_scale: Array | None
    v_scale: Array | None
    query_start: Array | None
    key_start: Array | None
    query_len: Array | None
    key_len: Array | None
    page_table: Array | None
    cache_row: Array | None
    sink_logit: Array | None
    k_mean: Array | None
    q_plain: Array | None
    delta: Array | None
    v_mean: Array | None
    index: Array | None
    index_count: Array | None
    e: Int | None
    query_max: Int
    key_max: Int
    window_left: Int
    window_right: Int
    scale: Float
    softcap: Float
    skip_margin: Float
    causal: Int
    q_block: Int
    k_block: Int
    code_order: Literal["plain", "v_perm16"] | CodeOrder | Int
    code_format: Literal["dtype", "i4", "e2m1"] | CodeFormat | Int
    v_format: Literal["dtype", "i4", "e2m1"] | CodeFormat | Int
    p_format: Literal["e4m3_256", "e4m3_448", "half", "i8", "e2m1_two", "e2m1_one"] | PFormat | Int
    accumulate: Literal["two_level", "f32", "half_64"] | Accumulate | Int
    q_group: (Literal["block", "thread_q", "thread_k", "token", "channel", "micro16", "micro32",
        "micro16_t", "micro32_t"] | ScaleGroup | Int)
    k_group: (Literal["block", "thread_q", "thread_k", "token", "channel", "micro16", "micro32",
        "micro16_t", "micro32_t"] | ScaleGroup | Int)
    v_group: (Literal["block", "thread_q", "thread_k", "token", "channel", "micro16", "micro32",
        "micro16_t", "micro32_t"] | ScaleGroup | Int)
    v_block: Int
    block_rows: Int
    block_keys: Int
    entry_keys: Int

@overload
def quant_forward(ctx: Context | None, q: A, k: Array, *, o: Wanted | None = ..., lse: None = ...,
                  skipped: None = ..., **fields: Unpack[_quant_forward]) -> A: ...
@overload
def quant_forward(q: A, k: Array, *, ctx: Context | None = ..., o: Wanted | None = ...,
                  lse: None = ..., skipped: None = ..., **fields: Unpack[_quant_forward]) -> A: ...
@overload
def quant_forward(ctx: Context | None, q: A, k: Array, *, o: Wanted | None = ..., lse: Wanted,
                  skipped: None = ..., **fields: Unpack[_quant_forward]) -> tuple[A, A]: ...
@overload
def quant_forward(q: A, k: Array, *, ctx: Context | None = ..., o: Wanted | None = ..., lse: Wanted,
                  skipped: None = ..., **fields: Unpack[_quant_forward]) -> tuple[A, A]: ...
@overload
def quant_forward(ctx: Context | None, q: A, k: Array, *, o: Wanted | None = ..., lse: None = ...,
                  skipped: Wanted, **fields: Unpack[_quant_forward]) -> tuple[A, Any]: ...
@overload
def quant_forward(q: A, k: Array, *, ctx: Context | None = ..., o: Wanted | None = ...,
                  lse: None = ..., skipped: Wanted, **fields: Unpack[_quant_forward]) -> tuple[A,
                  Any]: ...
@overload
def quant_forward(ctx: Context | None, q: A, k: Array, *, o: Wanted | None = ..., lse: Wanted,
                  skipped: Wanted, **fields: Unpack[_quant_forward]) -> tuple[A, A, Any]: ...
@overload
def quant_forward(q: A, k: Array, *, ctx: Context | None = ..., o: Wanted | None = ..., lse: Wanted,
                  skipped: Wanted, **fields: Unpack[_quant_forward]) -> tuple[A, A, Any]: ...
@overload
def quant_forward(ctx: Context | None, q: Array, k: Array, *, o: Output = ..., lse: Output = ...,
                  skipped: Output = ..., **fields: Unpack[_quant_forward]) -> Any: ...
@overload
def quant_forward(q: Array, k: Array, *, ctx: Context | None = ..., o: Output = ...,
                  lse: Output = ..., skipped: Output = ...,
                  **fields: Unpack[_quant_forward]) -> Any: ...

class _kl_forward(TypedDict, total=False):
    row_weight: Array | None
    query_start: Array | None
    key_start: Array | None
    query_len: Array | None
    key_len: Array | None
    head_window: Array | None
    query_max: Int
    key_max: Int
    window_left: Int
    window_right: Int
    sink_keys: Int
    scale_teacher: Float
    scale_student: Float
    causal: Int
    direction: Literal["teacher_student", "student_teacher"] | Direction | Int
    mean: Int

@overload
def kl_forward(ctx: Context | None, q_teacher: Array, k_teacher: Array, q_student: Array,
               k_student: Array, *, kl: None = ..., lse_teacher: None = ...,
               lse_student: None = ..., total: None = ...,
               **fields: Unpack[_kl_forward]) -> None: ...
@overload
def kl_forward(q_teacher: Array, k_teacher: Array, q_student: Array, k_student: Array, *,
               ctx: Context | None = ..., kl: None = ..., lse_teacher: None = ...,
               lse_student: None = ..., total: None = ...,
               **fields: Unpack[_kl_forward]) -> None: ...
@overload
def kl_forward(ctx: Context | None, q_teacher: A, k_teacher: Array, q_student: Array,
               k_student: Array, *, kl: Wanted, lse_teacher: None = ..., lse_student: None = ...,
               total: None = ..., **fields: Unpack[_kl_forward]) -> A: ...
@overload
def kl_forward(q_teacher: A, k_teacher: Array, q_student: Array, k_student: Array, *,
               ctx: Context | None = ..., kl: Wanted, lse_teacher: None = ...,
               lse_student: None = ..., total: None = ..., **fields: Unpack[_kl_forward]) -> A: ...
@overload
def kl_forward(ctx: Context | None, q_teacher: A, k_teacher: Array, q_student: Array,
               k_student: Array, *, kl: None = ..., lse_teacher: Wanted, lse_student: None = ...,
               total: None = ..., **fields: Unpack[_kl_forward]) -> A: ...
@overload
def kl_forward(q_teacher: A, k_teacher: Array, q_student: Array, k_student: Array, *,
               ctx: Context | None = ..., kl: None = ..., lse_teacher: Wanted,
               lse_student: None = ..., total: None = ..., **fields: Unpack[_kl_forward]) -> A: ...
@overload
def kl_forward(ctx: Context | None, q_teacher: A, k_teacher: Array, q_student: Array,
               k_student: Array, *, kl: None = ..., lse_teacher: None = ..., lse_student: Wanted,
               total: None = ..., **fields: Unpack[_kl_forward]) -> A: ...
@overload
def kl_forward(q_teacher: A, k_teacher: Array, q_student: Array, k_student: Array, *,
               ctx: Context | None = ..., kl: None = ..., lse_teacher: None = ...,
               lse_student: Wanted, total: None = ..., **fields: Unpack[_kl_forward]) -> A: ...
@overload
def kl_forward(ctx: Context | None, q_teacher: A, k_teacher: Array, q_student: Array,
               k_student: Array, *, kl: None = ..., lse_teacher: None = ...,
               lse_student: None = ..., total: Wanted, **fields: Unpack[_kl_forward]) -> A: ...
@overload
def kl_forward(q_teacher: A, k_teacher: Array, q_student: Array, k_student: Array, *,
               ctx: Context | None = ..., kl: None = ..., lse_teacher: None = ...,
               lse_student: None = ..., total: Wanted, **fields: Unpack[_kl_forward]) -> A: ...
@overload
def kl_forward(ctx: Context | None, q_teacher: Array, k_teacher: Array, q_student: Array,
               k_student: Array, *, kl: Output = ..., lse_teacher: Output = ...,
               lse_student: Output = ..., total: Output = ...,
               **fields: Unpack[_kl_forward]) -> Any: ...
@overload
def kl_forward(q_teacher: Array, k_teacher: Array, q_student: Array, k_student: Array, *,
               ctx: Context | None = ..., kl: Output = ..., lse_teacher: Output = ...,
               lse_student: Output = ..., total: Output = ...,
               **fields: Unpack[_kl_forward]) -> Any: ...

class _kl_backward(TypedDict, total=False):
    row_weight: Array | None
    query_start: Array | None
    key_start: Array | None
    query_len: Array | None
    key_len: Array | None
    head_window: Array | None
    dkl: Array | None
    dtotal: Array | None
    query_max: Int
    key_max: Int
    window_left: Int
    window_right: Int
    sink_keys: Int
    scale_teacher: Float
    scale_student: Float
    causal: Int
    direction: Literal["teacher_student", "student_teacher"] | Direction | Int
    mean: Int
    nondeterministic: Int

@overload
def kl_backward(ctx: Context | None, q_teacher: A, k_teacher: Array, q_student: Array,
                k_student: Array, kl: Array, lse_teacher: Array, lse_student: Array, *,
                dq_student: Wanted | None = ..., dk_student: Wanted | None = ...,
                dq_teacher: Wanted | None = ..., dk_teacher: Wanted | None = ...,
                **fields: Unpack[_kl_backward]) -> tuple[A, A, A, A]: ...
@overload
def kl_backward(q_teacher: A, k_teacher: Array, q_student: Array, k_student: Array, kl: Array,
                lse_teacher: Array, lse_student: Array, *, ctx: Context | None = ...,
                dq_student: Wanted | None = ..., dk_student: Wanted | None = ...,
                dq_teacher: Wanted | None = ..., dk_teacher: Wanted | None = ...,
                **fields: Unpack[_kl_backward]) -> tuple[A, A, A, A]: ...
@overload
def kl_backward(ctx: Context | None, q_teacher: Array, k_teacher: Array, q_student: Array,
                k_student: Array, kl: Array, lse_teacher: Array, lse_student: Array, *,
                dq_student: Output = ..., dk_student: Output = ..., dq_teacher: Output = ...,
                dk_teacher: Output = ..., **fields: Unpack[_kl_backward]) -> Any: ...
@overload
def kl_backward(q_teacher: Array, k_teacher: Array, q_student: Array, k_student: Array, kl: Array,
                lse_teacher: Array, lse_student: Array, *, ctx: Context | None = ...,
                dq_student: Output = ..., dk_student: Output = ..., dq_teacher: Output = ...,
                dk_teacher: Output = ..., **fields: Unpack[_kl_backward]) -> Any: ...

class _conv_attention_forward(TypedDict, total=False):
    query_start: Array | None
    key_start: Array | None
    query_len: Array | None
    key_len: Array | None
    page_table: Array | None
    cache_row: Array | None
    query_max: Int
    key_max: Int
    history: Int
    scale: Float
    causal: Int
    splits: Int

@overload
def conv_attention_forward(ctx: Context | None, q: A, k: Array, v: Array, weight: Array, *,
                           o: Wanted | None = ..., lse: None = ...,
                           **fields: Unpack[_conv_attention_forward]) -> A: ...
@overload
def conv_attention_forward(q: A, k: Array, v: Array, weight: Array, *, ctx: Context | None = ...,
                           o: Wanted | None = ..., lse: None = ...,
                           **fields: Unpack[_conv_attention_forward]) -> A: ...
@overload
def conv_attention_forward(ctx: Context | None, q: A, k: Array, v: Array, weight: Array, *,
                           o: Wanted | None = ..., lse: Wanted,
                           **fields: Unpack[_conv_attention_forward]) -> tuple[A, A]: ...
@overload
def conv_attention_forward(q: A, k: Array, v: Array, weight: Array, *, ctx: Context | None = ...,
                           o: Wanted | None = ..., lse: Wanted,
                           **fields: Unpack[_conv_attention_forward]) -> tuple[A, A]: ...
@overload
def conv_attention_forward(ctx: Context | None, q: Array, k: Array, v: Array, weight: Array, *,
                           o: Output = ..., lse: Output = ...,
                           **fields: Unpack[_conv_attention_forward]) -> Any: ...
@overload
def conv_attention_forward(q: Array, k: Array, v: Array, weight: Array, *,
                           ctx: Context | None = ..., o: Output = ..., lse: Output = ...,
                           **fields: Unpack[_conv_attention_forward]) -> Any: ...

class _conv_attention_backward(TypedDict, total=False):
    query_start: Array | None
    key_start: Array | None
    query_len: Array | None
    key_len: Array | None
    query_max: Int
    key_max: Int
    history: Int
    scale: Float
    causal: Int
    nondeterministic: Int

@overload
def conv_attention_backward(ctx: Context | None, q: A, k: Array, v: Array, weight: Array, o: Array,
                            lse: Array, dout: Array, *, dq: Wanted | None = ...,
                            dk: Wanted | None = ..., dv: Wanted | None = ...,
                            dweight: Wanted | None = ...,
                            **fields: Unpack[_conv_attention_backward]) -> tuple[A, A, A, A]: ...
@overload
def conv_attention_backward(q: A, k: Array, v: Array, weight: Array, o: Array, lse: Array,
                            dout: Array, *, ctx: Context | None = ..., dq: Wanted | None = ...,
                            dk: Wanted | None = ..., dv: Wanted | None = ...,
                            dweight: Wanted | None = ...,
                            **fields: Unpack[_conv_attention_backward]) -> tuple[A, A, A, A]: ...
@overload
def conv_attention_backward(ctx: Context | None, q: Array, k: Array, v: Array, weight: Array,
                            o: Array, lse: Array, dout: Array, *, dq: Output = ...,
                            dk: Output = ..., dv: Output = ..., dweight: Output = ...,
                            **fields: Unpack[_conv_attention_backward]) -> Any: ...
@overload
def conv_attention_backward(q: Array, k: Array, v: Array, weight: Array, o: Array, lse: Array,
                            dout: Array, *, ctx: Context | None = ..., dq: Output = ...,
                            dk: Output = ..., dv: Output = ..., dweight: Output = ...,
                            **fields: Unpack[_conv_attention_backward]) -> Any: ...

class _trace_forward(TypedDict, total=False):
    v: Array | None
    keep_row: Array | None
    block_mask: Array | None
    key_len: Array | None
    page_table: Array | None
    cache_row: Array | None
    edge_offset: Array | None
    e: Int | None
    cap: Int | None
    keep: Int
    scale: Float
    block_rows: Int
    block_keys: Int
    layer: Int
    edge_kind: Literal["score", "max_logit", "mass"] | EdgeKind | Int
    exact: Int
    causal: Int

@overload
def trace_forward(ctx: Context | None, q: Array, k: Array, *, selected: None = ...,
                  score: None = ..., o: None = ..., lse: None = ..., lse_dense: None = ...,
                  edge_score: None = ..., edge_max: None = ..., edge_mass: None = ...,
                  edge_value: None = ..., edge: None = ..., edge_weight: None = ...,
                  edge_count: None = ..., **fields: Unpack[_trace_forward]) -> None: ...
@overload
def trace_forward(q: Array, k: Array, *, ctx: Context | None = ..., selected: None = ...,
                  score: None = ..., o: None = ..., lse: None = ..., lse_dense: None = ...,
                  edge_score: None = ..., edge_max: None = ..., edge_mass: None = ...,
                  edge_value: None = ..., edge: None = ..., edge_weight: None = ...,
                  edge_count: None = ..., **fields: Unpack[_trace_forward]) -> None: ...
@overload
def trace_forward(ctx: Context | None, q: Array, k: Array, *, selected: Output = ...,
                  score: Output = ..., o: Output = ..., lse: Output = ..., lse_dense: Output = ...,
                  edge_score: Output = ..., edge_max: Output = ..., edge_mass: Output = ...,
                  edge_value: Output = ..., edge: Output = ..., edge_weight: Output = ...,
                  edge_count: Output = ..., **fields: Unpack[_trace_forward]) -> Any: ...
@overload
def trace_forward(q: Array, k: Array, *, ctx: Context | None = ..., selected: Output = ...,
                  score: Output = ..., o: Output = ..., lse: Output = ..., lse_dense: Output = ...,
                  edge_score: Output = ..., edge_max: Output = ..., edge_mass: Output = ...,
                  edge_value: Output = ..., edge: Output = ..., edge_weight: Output = ...,
                  edge_count: Output = ..., **fields: Unpack[_trace_forward]) -> Any: ...
