# SPDX-License-Identifier: Apache-2.0
# Written by tools/api.py from include/fovea: edit the headers instead.
"""The operations.

Inputs come first; by keyword outputs, optional inputs, numbers (0: the default).  ctx may be
left out."""
from . import _abi
from ._op import Op
from ._call import Call
from ._core import Context
from ._abi import Accumulate, CodeFormat, CodeOrder, Direction, EdgeKind, PFormat, ScaleGroup, Scaling, Smooth

__all__ = ["attention_forward", "attention_backward", "merge_forward", "merge_backward",
           "cache_append", "cache_copy", "cache_get", "rope_forward", "rope_table_get",
           "quant_quantize", "quant_dequantize", "quant_forward", "kl_forward", "kl_backward",
           "conv_attention_forward", "conv_attention_backward", "trace_forward", "Accumulate",
           "CodeFormat", "CodeOrder", "Direction", "EdgeKind", "PFormat", "ScaleGroup", "Scaling",
           "Smooth"]

_attention_forward = Op("attention_forward", _abi.AttentionForwardParams)
_attention_backward = Op("attention_backward", _abi.AttentionBackwardParams)
_merge_forward = Op("merge_forward", _abi.MergeForwardParams)
_merge_backward = Op("merge_backward", _abi.MergeBackwardParams)
_cache_append = Op("cache_append", _abi.CacheAppendParams)
_cache_copy = Op("cache_copy", _abi.CacheCopyParams)
_cache_get = Op("cache_get", _abi.CacheGetParams)
_rope_forward = Op("rope_forward", _abi.RopeForwardParams)
_rope_table_get = Op("rope_table_get", _abi.RopeTableGetParams)
_quant_quantize = Op("quant_quantize", _abi.QuantQuantizeParams)
_quant_dequantize = Op("quant_dequantize", _abi.QuantDequantizeParams)
_quant_forward = Op("quant_forward", _abi.QuantForwardParams)
_kl_forward = Op("kl_forward", _abi.KlForwardParams)
_kl_backward = Op("kl_backward", _abi.KlBackwardParams)
_conv_attention_forward = Op("conv_attention_forward", _abi.ConvAttentionForwardParams)
_conv_attention_backward = Op("conv_attention_backward", _abi.ConvAttentionBackwardParams)
_trace_forward = Op("trace_forward", _abi.TraceForwardParams)
_x_kl_jensen_shannon_forward = Op("x_kl_jensen_shannon_forward", _abi.XKlJensenShannonForwardParams)
_x_kl_jensen_shannon_backward = Op("x_kl_jensen_shannon_backward",
    _abi.XKlJensenShannonBackwardParams)
_x_kl_indexer_forward = Op("x_kl_indexer_forward", _abi.XKlIndexerForwardParams)
_x_kl_indexer_backward = Op("x_kl_indexer_backward", _abi.XKlIndexerBackwardParams)
_x_kl_gather_forward = Op("x_kl_gather_forward", _abi.XKlGatherForwardParams)
_x_kl_gather_backward = Op("x_kl_gather_backward", _abi.XKlGatherBackwardParams)
_x_kl_pool_forward = Op("x_kl_pool_forward", _abi.XKlPoolForwardParams)
_x_kl_pool_backward = Op("x_kl_pool_backward", _abi.XKlPoolBackwardParams)
_x_multi_token_forward = Op("x_multi_token_forward", _abi.XMultiTokenForwardParams)
_x_multi_token_backward = Op("x_multi_token_backward", _abi.XMultiTokenBackwardParams)
_x_group_norm_forward = Op("x_group_norm_forward", _abi.XGroupNormForwardParams)
_x_group_norm_backward = Op("x_group_norm_backward", _abi.XGroupNormBackwardParams)
_x_norm_gate_forward = Op("x_norm_gate_forward", _abi.XNormGateForwardParams)
_x_norm_gate_backward = Op("x_norm_gate_backward", _abi.XNormGateBackwardParams)
_x_sparse_forward = Op("x_sparse_forward", _abi.XSparseForwardParams)
_x_sparse_backward = Op("x_sparse_backward", _abi.XSparseBackwardParams)
_x_select_block = Op("x_select_block", _abi.XSelectBlockParams)
_x_pool_forward = Op("x_pool_forward", _abi.XPoolForwardParams)
_x_pool_backward = Op("x_pool_backward", _abi.XPoolBackwardParams)
_x_probe_forward = Op("x_probe_forward", _abi.XProbeForwardParams)
_x_combine_forward = Op("x_combine_forward", _abi.XCombineForwardParams)
_x_combine_backward = Op("x_combine_backward", _abi.XCombineBackwardParams)
_x_compare_forward = Op("x_compare_forward", _abi.XCompareForwardParams)
_x_cache_step = Op("x_cache_step", _abi.XCacheStepParams)
_x_evict_forward = Op("x_evict_forward", _abi.XEvictForwardParams)
_x_select_token = Op("x_select_token", _abi.XSelectTokenParams)
_x_select_line = Op("x_select_line", _abi.XSelectLineParams)
_x_select_heads = Op("x_select_heads", _abi.XSelectHeadsParams)
_x_indexed_forward = Op("x_indexed_forward", _abi.XIndexedForwardParams)
_x_quantised_forward = Op("x_quantised_forward", _abi.XQuantisedForwardParams)
_x_quant_backward = Op("x_quant_backward", _abi.XQuantBackwardParams)
_x_pooled_forward = Op("x_pooled_forward", _abi.XPooledForwardParams)
_x_probed_forward = Op("x_probed_forward", _abi.XProbedForwardParams)
_x_flex_forward = Op("x_flex_forward", _abi.XFlexForwardParams)
_x_nsa_forward = Op("x_nsa_forward", _abi.XNsaForwardParams)
_x_nsa_backward = Op("x_nsa_backward", _abi.XNsaBackwardParams)
_x_infllm_forward = Op("x_infllm_forward", _abi.XInfllmForwardParams)
_x_compressed_forward = Op("x_compressed_forward", _abi.XCompressedForwardParams)
_x_compressed_backward = Op("x_compressed_backward", _abi.XCompressedBackwardParams)
_x_project_forward = Op("x_project_forward", _abi.XProjectForwardParams)
_x_project_backward = Op("x_project_backward", _abi.XProjectBackwardParams)
_x_graph_append = Op("x_graph_append", _abi.XGraphAppendParams)
_x_select_graph = Op("x_select_graph", _abi.XSelectGraphParams)
_x_graph_forward = Op("x_graph_forward", _abi.XGraphForwardParams)
_x_lsh_append = Op("x_lsh_append", _abi.XLshAppendParams)
_x_select_lsh = Op("x_select_lsh", _abi.XSelectLshParams)
_x_lsh_forward = Op("x_lsh_forward", _abi.XLshForwardParams)
_x_conv1d_forward = Op("x_conv1d_forward", _abi.XConv1dForwardParams)
_x_conv1d_backward = Op("x_conv1d_backward", _abi.XConv1dBackwardParams)
_x_gla_forward = Op("x_gla_forward", _abi.XGlaForwardParams)
_x_gla_backward = Op("x_gla_backward", _abi.XGlaBackwardParams)
_x_delta_forward = Op("x_delta_forward", _abi.XDeltaForwardParams)
_x_delta_backward = Op("x_delta_backward", _abi.XDeltaBackwardParams)
_x_gsa_forward = Op("x_gsa_forward", _abi.XGsaForwardParams)
_x_gsa_backward = Op("x_gsa_backward", _abi.XGsaBackwardParams)
_x_tpa_forward = Op("x_tpa_forward", _abi.XTpaForwardParams)
_x_tpa_backward = Op("x_tpa_backward", _abi.XTpaBackwardParams)
_x_kv_append = Op("x_kv_append", _abi.XKvAppendParams)
_x_kv_decode = Op("x_kv_decode", _abi.XKvDecodeParams)


def attention_forward(ctx_or_q=None, /, q=None, k=None, v=None, *, ctx=None, o=None, lse=None,
                      q_value=None, query_start=None, key_start=None, query_len=None, key_len=None,
                      key_first=None, page_table=None, cache_row=None, query_position=None,
                      key_position=None, head_window=None, mask=None, bias=None, alibi=None,
                      sink_logit=None, cos=None, sin=None, k_scale=None, v_scale=None,
                      context_len=None, query_max=0, key_max=0, window_left=0, window_right=0,
                      sink_keys=0, local_chunk=0, scale=0.0, softcap=0.0, causal=0, rope_begin=0,
                      rope_interleaved=0, splits=0, key_step=0, key_shift=0):
    """Attention of q over k and v; prefill, decode over contiguous or paged caches alike.

    Limits: d and e are 1 .. 576.  Every valid call has a kernel on the host and a portable one on
    CUDA.  Tensor cores ask for more:
      sm_80 and later  f16 or bf16, k and v as q; d and e multiples of 8 up to 256; rows of q, k, v,
                       o contiguous and 16-byte aligned; no q_value, no cos
                       or k and v both e4m3 or e5m2, or both i8, with one scale a row or none, and
                       widths that are multiples of 16; products of codes are in f16
      Hopper's own     sm_90, no codes, bias, alibi, mask, query_position or key_position; softcap
                       without head_window, local_chunk, sink_keys, context_len, key_step and
                       key_shift; pages of 16 tokens or more, without softcap and key_first
      wider heads      sm_90, one of d and e above 256, d up to 576 and e up to 512, or q_value with
                       d up to 64; no codes, bias, alibi, mask, query_position or key_position;
                       pages of any size.  v that is the first columns of k (MLA) is read once
      codes of these   e4m3 or i8; e 512 with q_value, v of codes, scales of 128, 256 or all its
                       columns (FP8-MLA); or d from 512 on, k and v of codes, v the first columns of
                       k, one scale a row for both; no softcap, sink_keys, head_window, local_chunk,
                       context_len, key_step or key_shift

    Example
      q = numpy.random.rand(2, 64, 8, 128).astype(numpy.float32)  # (b, s, h, d)
      k = numpy.random.rand(2, 64, 2, 128).astype(numpy.float32)  # (b, t, g, d)
      v = numpy.random.rand(2, 64, 2, 128).astype(numpy.float32)  # (b, t, g, e)
      o = fovea.attention_forward(q, k, v, causal=True)
      o, lse = fovea.attention_forward(q, k, v, causal=True, lse=True)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q: (b, s, h, d) f32 f16 bf16
      k: (rows, t, g, d) or paged (pool, page, g, d) as q or e4m3 e5m2 i8
      v: (rows, t, g, e) or paged (pool, page, g, e) as q or e4m3 e5m2 i8: may be a view of k

    Outputs, new unless passed
      o: (b, s, h, e) as q or f32

    Outputs on request, by True or an array
      lse: (b, h, s) f32: natural log of each row's sum

    Optional inputs
      q_value: (b, s, h, e) as q: second query, contracted with v (split MLA caches)
      query_start: (r+1) i32: first packed row of each sequence, ascending from 0; then b = 1
      key_start: (r+1) i32: first packed key of each sequence; not with page_table or cache_row
      query_len: (r) i32: rows in use, at most s or the packed extent
      key_len: (r) i32: keys in use, key_first's among them, at most t, packed extent or pages *
          page
      key_first: (r) i32: keys skipped at the left of each sequence (left padding); positions count
          from there
      page_table: (rows, pages) i32: pool page of each logical page; -1: absent, its keys are not
          seen
      cache_row: (r) i32: row of page_table, or of k and v, that a sequence reads; -1 or past the
          last: no keys; absent: its own number
      query_position: (b, h, s) i32: absent: row + Lk - Lq
      key_position: (key_b, g, t) or paged (r, g, keys) i32: negative: no key here; absent: index in
          the sequence from key_first
      head_window: (h, 3) i32: window_left, window_right, sink_keys of each head; the three fields
          and causal stay 0
      mask: bool (b, h, s, keys) or broadcastable, or (b, h, s, bytes) u8: bit j % 8 of byte j / 8
          is 1 where the row may see its sequence's key column j
      bias: (b, h, s, keys) or broadcastable f32 f16 bf16: added to scores; -inf masks; stride 0
          broadcasts
      alibi: (r, h) f32: slope times distance is subtracted
      sink_logit: (h) f32: a learned term of the denominator: not scaled, capped or biased
      cos: (positions, half) f32: keys are stored unrotated and turned by their position after
          loading; v untouched
      sin: (positions, half) f32: with cos
      k_scale: (rows, t, g, groups) or paged (pool, page, g, groups) f32: k counts times its scale,
          a scale for each of `groups` equal parts of d (e4m3 e5m2 i8 only); stride 0 broadcasts;
          absent: 1
      v_scale: (rows, t, g, groups) or paged (pool, page, g, groups) f32: as k_scale, of v
      context_len: (r) i32: p_i = i + context_len - Lq; absent: Lk; not with query_position

    Numbers
      query_max: longest sequence of rows, bounds the grid; 0: s
      key_max: longest sequence of keys; 0: t, or pages * page
      window_left: keys seen to the left, the row's own position counted; 0: all
      window_right: keys seen to the right, the row's own position counted; 0: all, 1: none after
          itself
      sink_keys: keys at positions below this stay visible through window_left
      local_chunk: rows see keys of their own chunk of this many positions only; 0: off
      scale: > 0; 0: 1 / sqrt(d), or 1 / sqrt(d + e) with q_value
      softcap: 0: none
      causal: 1: window_right = 1
      rope_begin: first rotated column of k; 2 * half columns are turned
      rope_interleaved: 1: pairs (2i, 2i + 1); 0: pairs (i, i + half)
      splits: parts the keys of a row are cut into; 0: chosen from shapes
      key_step: p_j = key_step * j + key_shift, below 2^31; not with key_position; 0: 1
      key_shift: position of the first key, may be negative; within 2^31 of 0
    """
    if ctx_or_q.__class__ is Context and ctx is None:
        call = Call(ctx_or_q, _attention_forward)
    else:
        call, inputs = _attention_forward.begin(ctx_or_q, ctx, q, k, v)
        [q, k, v] = inputs
    v_q = call.put("q", 8, q, 4)
    v_k = call.put("k", 104, k, 4)
    v_v = call.put("v", 200, v, 4)
    if q_value is not None:
        call.put("q_value", 488, q_value)
    if query_start is not None:
        call.put("query_start", 584, query_start)
    v_key_start = None
    if key_start is not None:
        v_key_start = call.put("key_start", 680, key_start, 1)
    if query_len is not None:
        call.put("query_len", 776, query_len)
    if key_len is not None:
        call.put("key_len", 872, key_len)
    if key_first is not None:
        call.put("key_first", 968, key_first)
    v_page_table = None
    if page_table is not None:
        v_page_table = call.put("page_table", 1064, page_table, 2)
    if cache_row is not None:
        call.put("cache_row", 1160, cache_row)
    if query_position is not None:
        call.put("query_position", 1256, query_position)
    if key_position is not None:
        call.put("key_position", 1352, key_position)
    if head_window is not None:
        call.put("head_window", 1448, head_window)
    if alibi is not None:
        call.put("alibi", 1736, alibi)
    if sink_logit is not None:
        call.put("sink_logit", 1832, sink_logit)
    if cos is not None:
        call.put("cos", 1928, cos)
    if sin is not None:
        call.put("sin", 2024, sin)
    if k_scale is not None:
        call.put("k_scale", 2192, k_scale)
    if v_scale is not None:
        call.put("v_scale", 2288, v_scale)
    if context_len is not None:
        call.put("context_len", 2384, context_len)
    if mask is not None:
        call.bits("mask", 1544, mask, (v_q[2][0], v_q[2][2], v_q[2][1]), call.keys(v_k,
            v_page_table, v_key_start, key_max))
    if bias is not None:
        call.put("bias", 1640, bias, None, False, (v_q[2][0], v_q[2][2], v_q[2][1], call.keys(v_k,
            v_page_table, v_key_start, key_max)))
    o = call.out("o", 296, o, (v_q[2][0], v_q[2][1], v_q[2][2], v_v[2][3]), v_q[1])
    if lse is not None:
        lse = None if lse is False else call.out("lse", 392, lse, (v_q[2][0], v_q[2][2], v_q[2][1]),
            1)
    if query_max:
        call.scalar("q", 2120, query_max, "query_max")
    if key_max:
        call.scalar("q", 2128, key_max, "key_max")
    if window_left:
        call.scalar("q", 2136, window_left, "window_left")
    if window_right:
        call.scalar("q", 2144, window_right, "window_right")
    if sink_keys:
        call.scalar("q", 2152, sink_keys, "sink_keys")
    if local_chunk:
        call.scalar("q", 2160, local_chunk, "local_chunk")
    if scale:
        call.scalar("f", 2168, scale, "scale")
    if softcap:
        call.scalar("f", 2172, softcap, "softcap")
    if causal:
        call.scalar("i", 2176, causal, "causal")
    if rope_begin:
        call.scalar("i", 2180, rope_begin, "rope_begin")
    if rope_interleaved:
        call.scalar("i", 2184, rope_interleaved, "rope_interleaved")
    if splits:
        call.scalar("i", 2188, splits, "splits")
    if key_step:
        call.scalar("q", 2480, key_step, "key_step")
    if key_shift:
        call.scalar("q", 2488, key_shift, "key_shift")
    return call.run(o, lse)


def attention_backward(ctx_or_q=None, /, q=None, k=None, v=None, o=None, lse=None, dout=None, *,
                       ctx=None, dq=None, dk=None, dv=None, dsink_logit=None, dbias=None,
                       dalibi=None, query_start=None, key_start=None, query_len=None, key_len=None,
                       key_first=None, query_position=None, key_position=None, head_window=None,
                       mask=None, bias=None, alibi=None, sink_logit=None, dlse=None, query_max=0,
                       key_max=0, window_left=0, window_right=0, sink_keys=0, local_chunk=0,
                       scale=0.0, softcap=0.0, causal=0, nondeterministic=0):
    """Gradients of attention_forward from dout (and dlse).  The fields it shares say what the forward
    was.  Each output is optional: absent = not computed.  Every element of an output is written:
    rows and keys past their lengths get 0.  dq, dk and dv are f32 sums, each rounded to q's dtype
    or stored in f32.  Sums over several calls then round once.
      delta_i = <dout_i, o_i> - dlse_i,  p_ij = exp(score_ij - lse_i)
      ds_ij = p_ij (<dout_i, v_j> - delta_i)
      dv_j = sum_i p_ij dout_i, dbias_ij = ds_ij, dx_ij = ds_ij (1 - (x_ij / softcap)^2)
      dq_i = scale sum_j dx_ij k_j,  dk_j = scale sum_i dx_ij q_i
      dsink_logit_h = - sum_i exp(sink_logit_h - lse_i) delta_i
      dalibi_bh = - sum_ij ds_ij |p_i - p_j|
    Tensor cores cut sums of f16 and bf16 products off instead of rounding them.  A sum over n rows,
    of all query heads that share the key, is off by up to n 2^-26 of its terms' sizes.  Bits: the
    same every run unless `nondeterministic`.  Workspace is linear in s and t.

    Limits: d and e are 1 .. 576, no paged keys.  Every valid call has a kernel on the host and a
    portable one on CUDA.  Tensor cores ask for more:
      sm_80 and later  f16 or bf16, o and dout as q; d and e multiples of 8 up to 256; rows
                       contiguous and 16-byte aligned
      Hopper's own     sm_90, and no bias, alibi, mask, positions, head_window, softcap, local_chunk
                       or sink_keys
      wider heads      as sm_80 and later, up to 576; d + e, each rounded up to 64, up to 1088 on
                       sm_90 and 768 on sm_80

    Example
      dq, dk, dv = fovea.attention_backward(q, k, v, o, lse, dout)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q: (b, s, h, d) f32 f16 bf16
      k: (key_b, t, g, d) as q
      v: (key_b, t, g, e) as q
      o: (b, s, h, e) as q or f32: of the forward
      lse: (b, h, s) f32: of the forward
      dout: (b, s, h, e) as o: the gradient of o

    Outputs, new unless passed or False
      dq: (b, s, h, d) as q or f32
      dk: (key_b, t, g, d) as q or f32
      dv: (key_b, t, g, e) as q or f32

    Outputs on request, by True or an array
      dsink_logit: (h) f32: needs sink_logit
      dbias: (b, h, s, keys) or broadcastable f32: needs bias; a stride of 0 receives the ordered
          sum over that dimension
      dalibi: (r, h) f32: needs alibi

    Optional inputs
      query_start: (r+1) i32: as in the forward, and so for the fields below
      key_start: (r+1) i32
      query_len: (r) i32
      key_len: (r) i32
      key_first: (r) i32
      query_position: (b, h, s) i32
      key_position: (key_b, g, t) i32
      head_window: (h, 3) i32
      mask: bool (b, h, s, keys) or broadcastable, or (b, h, s, bytes) u8
      bias: (b, h, s, keys) or broadcastable f32 f16 bf16
      alibi: (r, h) f32
      sink_logit: (h) f32
      dlse: (b, h, s) f32: the gradient of lse; absent: 0

    Numbers
      query_max: as in the forward, and so for the fields below
      key_max: 0: t
      window_left: 0: all
      window_right: 0: all
      sink_keys: 0: none
      local_chunk: 0: off
      scale: 0: 1 / sqrt(d)
      softcap: 0: none
      causal: 1: window_right = 1
      nondeterministic: 1: a faster kernel whose sums may change order may be used
    """
    if ctx_or_q.__class__ is Context and ctx is None:
        call = Call(ctx_or_q, _attention_backward)
    else:
        call, inputs = _attention_backward.begin(ctx_or_q, ctx, q, k, v, o, lse, dout)
        [q, k, v, o, lse, dout] = inputs
    v_q = call.put("q", 8, q, 4)
    v_k = call.put("k", 104, k, 4)
    v_v = call.put("v", 200, v, 4)
    if query_start is not None:
        call.put("query_start", 296, query_start)
    v_key_start = None
    if key_start is not None:
        v_key_start = call.put("key_start", 392, key_start, 1)
    if query_len is not None:
        call.put("query_len", 488, query_len)
    if key_len is not None:
        call.put("key_len", 584, key_len)
    if key_first is not None:
        call.put("key_first", 680, key_first)
    if query_position is not None:
        call.put("query_position", 776, query_position)
    if key_position is not None:
        call.put("key_position", 872, key_position)
    if head_window is not None:
        call.put("head_window", 968, head_window)
    v_alibi = None
    if alibi is not None:
        v_alibi = call.put("alibi", 1256, alibi, 2)
    v_sink_logit = None
    if sink_logit is not None:
        v_sink_logit = call.put("sink_logit", 1352, sink_logit, 1)
    call.put("o", 1448, o)
    call.put("lse", 1544, lse)
    call.put("dout", 1640, dout)
    if dlse is not None:
        call.put("dlse", 1736, dlse)
    if mask is not None:
        call.bits("mask", 1064, mask, (v_q[2][0], v_q[2][2], v_q[2][1]), call.keys(v_k, None,
            v_key_start, key_max))
    v_bias = None
    if bias is not None:
        v_bias = call.put("bias", 1160, bias, None, False, (v_q[2][0], v_q[2][2], v_q[2][1],
            call.keys(v_k, None, v_key_start, key_max)))
    dq = None if dq is False else call.out("dq", 1832, dq, v_q[2], v_q[1])
    dk = None if dk is False else call.out("dk", 1928, dk, v_k[2], v_q[1])
    dv = None if dv is False else call.out("dv", 2024, dv, v_v[2], v_q[1])
    if dsink_logit is not None:
        dsink_logit = None if dsink_logit is False else call.out("dsink_logit", 2120, dsink_logit,
            lambda: call.twin("dsink_logit", "sink_logit", v_sink_logit), 1)
    if dbias is not None:
        dbias = None if dbias is False else call.out("dbias", 2216, dbias, lambda:
            call.twin("dbias", "bias", v_bias), 1, (v_q[2][0], v_q[2][2], v_q[2][1], call.keys(v_k,
            None, v_key_start, key_max)))
    if dalibi is not None:
        dalibi = None if dalibi is False else call.out("dalibi", 2312, dalibi, lambda:
            call.twin("dalibi", "alibi", v_alibi), 1)
    if query_max:
        call.scalar("q", 2408, query_max, "query_max")
    if key_max:
        call.scalar("q", 2416, key_max, "key_max")
    if window_left:
        call.scalar("q", 2424, window_left, "window_left")
    if window_right:
        call.scalar("q", 2432, window_right, "window_right")
    if sink_keys:
        call.scalar("q", 2440, sink_keys, "sink_keys")
    if local_chunk:
        call.scalar("q", 2448, local_chunk, "local_chunk")
    if scale:
        call.scalar("f", 2456, scale, "scale")
    if softcap:
        call.scalar("f", 2460, softcap, "softcap")
    if causal:
        call.scalar("i", 2464, causal, "causal")
    if nondeterministic:
        call.scalar("i", 2468, nondeterministic, "nondeterministic")
    return call.run(dq, dk, dv, dsink_logit, dbias, dalibi)


def merge_forward(ctx_or_o_part=None, /, o_part=None, lse_part=None, *, ctx=None, o=None, lse=None,
                  row=None, s=None):
    """Merging of attention states: a row's (o, lse) over several key sets into its (o, lse) over all.
      lse = ln sum_n exp(lse_n),  o = sum_n exp(lse_n - lse) o_n      (f32 arithmetic, n ascending)
    No part, or every lse_n = -inf: o = 0, lse = -inf.  NaN propagates.  Serves FlashDecoding,
    cascade attention over shared prefixes, chunked prefill, ring schemes.

    Bits: the same every run, whatever else the batch holds.

    Limits: none on widths and heads; every valid call has one kernel a backend, without tensor
    cores.

    Example
      o = fovea.merge_forward(o_part, lse_part)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      o_part: (n, b, u, h, e) f32 f16 bf16: u rows a part; u = s without row
      lse_part: (n, b, h, u) f32: -inf: this part adds nothing, whatever its o

    Outputs, new unless passed
      o: (b, s, h, e) f32 f16 bf16: may be o_part[0] exactly, when row is absent

    Outputs on request, by True or an array
      lse: (b, h, s) f32: may be lse_part[0] exactly, when row is absent

    Optional inputs
      row: (n, u) i32: row of o that a part's row belongs to, -1: none; at most once per part
          (repeated: the last counts)

    s: extents of new outputs that no input tells.
    """
    if ctx_or_o_part.__class__ is Context and ctx is None:
        call = Call(ctx_or_o_part, _merge_forward)
    else:
        call, inputs = _merge_forward.begin(ctx_or_o_part, ctx, o_part, lse_part)
        [o_part, lse_part] = inputs
    v_o_part = call.put("o_part", 8, o_part, 5)
    call.put("lse_part", 104, lse_part)
    if row is not None:
        call.put("row", 200, row)
    o = call.out("o", 296, o, lambda: (v_o_part[2][1], call.size("s", s, (v_o_part if row is None
        else None, 2, 0)), v_o_part[2][3], v_o_part[2][4]), v_o_part[1] if v_o_part[1] in (1, 2, 3)
        else 1)
    if lse is not None:
        lse = None if lse is False else call.out("lse", 392, lse, lambda: (v_o_part[2][1],
            v_o_part[2][3], call.size("s", s, (v_o_part if row is None else None, 2, 0))), 1)
    return call.run(o, lse)


def merge_backward(ctx_or_o_part=None, /, o_part=None, lse_part=None, o=None, lse=None, dout=None,
                   *, ctx=None, do_part=None, dlse_part=None, row=None, dlse=None):
    """Gradients of merge_forward, w_n = exp(lse_n - lse):
      do_n = w_n dout,  dlse_n = w_n (<dout, o_n - o> + dlse)
    A part's row that belongs to no row of o gets 0.

    Example
      do_part, dlse_part = fovea.merge_backward(o_part, lse_part, o, lse, dout)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      o_part: (n, b, u, h, e) f32 f16 bf16
      lse_part: (n, b, h, u) f32
      o: (b, s, h, e) f32 f16 bf16: of the forward
      lse: (b, h, s) f32: of the forward
      dout: (b, s, h, e) as o: the gradient of o

    Outputs, new unless passed or False
      do_part: (n, b, u, h, e) as o_part
      dlse_part: (n, b, h, u) f32

    Optional inputs
      row: (n, u) i32
      dlse: (b, h, s) f32: the gradient of lse; absent: 0
    """
    if ctx_or_o_part.__class__ is Context and ctx is None:
        call = Call(ctx_or_o_part, _merge_backward)
    else:
        call, inputs = _merge_backward.begin(ctx_or_o_part, ctx, o_part, lse_part, o, lse, dout)
        [o_part, lse_part, o, lse, dout] = inputs
    v_o_part = call.put("o_part", 8, o_part, 5)
    v_lse_part = call.put("lse_part", 104, lse_part, 4)
    if row is not None:
        call.put("row", 200, row)
    call.put("o", 296, o)
    call.put("lse", 392, lse)
    call.put("dout", 488, dout)
    if dlse is not None:
        call.put("dlse", 584, dlse)
    do_part = None if do_part is False else call.out("do_part", 680, do_part, v_o_part[2],
        v_o_part[1])
    dlse_part = None if dlse_part is False else call.out("dlse_part", 776, dlse_part, v_lse_part[2],
        1)
    return call.run(do_part, dlse_part)


def cache_append(ctx=None, *, key_len_out=None, k_new=None, v_new=None, k=None, v=None,
                 query_start=None, key_start=None, query_len=None, key_len=None, page_table=None,
                 cache_row=None, position=None, cos=None, sin=None, norm_weight=None, k_scale=None,
                 v_scale=None, k_scale_out=None, v_scale_out=None, r=None, query_max=0, key_max=0,
                 norm_eps=0.0, rope_begin=0, rope_interleaved=0, scale_power_of_two=0):
    """Writes new token i of each sequence at index key_len + i of the cache.  The optional RMSNorm of
    the first `width` columns of k_new comes first, then the optional rotation, then the cast:
      f32 f16 bf16    rounded to nearest even
      e4m3 e5m2 i8    value / scale, rounded to nearest even, saturating; NaN in i8: 0

    The scale is k_scale's.  With k_scale_out scales are found and written, one for each token, head
    and equal part of the columns, of which there are `groups`:
      scale = max(amax / largest code, 2^-126), amax the largest finite |value| of the part
      scale = 1 where amax is 0
    with scale_power_of_two rounded up to a power of two.  Largest codes: 448, 57344, 127.
    attention_forward reads the scales as they are written here.

    A token whose page is -1 or that lies past the cache's extent is dropped.  Every other byte of
    the cache stays as it was.

    Example
      fovea.cache_append(k_new=k_new, v_new=v_new, k=k, v=v, key_len=key_len)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Outputs on request, by True or an array
      key_len_out: (r) i32: key_len plus the new tokens; may be key_len

    Optional inputs
      k_new: (b, s, g, d) f32 f16 bf16: with k
      v_new: (b, s, f, e) f32 f16 bf16: with v; its head count is free of g
      k: (rows, t, g, d) or paged (pool, page, g, d) f32 f16 bf16 e4m3 e5m2 i8
      v: (rows, t, f, e) or paged (pool, page, f, e) f32 f16 bf16 e4m3 e5m2 i8
      query_start: (r+1) i32: first packed new token of each sequence; then b = 1
      key_start: (r+1) i32: first packed cache slot of each sequence (rows = 1); not with page_table
          or cache_row
      query_len: (r) i32: new tokens of each sequence; absent: all
      key_len: (r) i32: tokens in the cache before; absent: 0
      page_table: (rows, pages) i32: -1: page absent
      cache_row: (r) i32: row of page_table, or of k and v; -1 or past the last skips the sequence;
          absent: its own number
      position: (b, s) i32: rotary position of each new token; absent: key_len + i
      cos: (positions, half) f32: rotates k_new; a position outside the table gives NaN
      sin: (positions, half) f32: with cos
      norm_weight: (width) f32 f16 bf16: RMSNorm of the first width <= d columns of k_new
      k_scale: (g) f32: k stores value / scale (e4m3 e5m2 i8 only); absent: 1
      v_scale: (f) f32: as k_scale, of v
      k_scale_out: (rows, t, g, groups) or paged (pool, page, g, groups) f32: scales of the new
          tokens of k (e4m3 e5m2 i8 only); others stay; not with k_scale
      v_scale_out: (rows, t, f, groups) or paged (pool, page, f, groups) f32: as k_scale_out, of v

    r: extents of new outputs that no input tells.

    Numbers
      query_max: most new tokens of a sequence, bounds the grid; 0: s
      key_max: tokens past this index are dropped; 0: t, or pages * page
      norm_eps: 0: 1e-6
      rope_begin: first rotated column of k_new
      rope_interleaved: 1: pairs (2i, 2i + 1); 0: pairs (i, i + half)
      scale_power_of_two: 1: scales that are written are powers of two; needs k_scale_out or
          v_scale_out
    """
    if ctx.__class__ is Context:
        call = Call(ctx, _cache_append)
    else:
        call = _cache_append.begin_by(ctx, key_len_out, k_new, v_new, k, v, query_start, key_start,
            query_len, key_len, page_table, cache_row, position, cos, sin, norm_weight, k_scale,
            v_scale, k_scale_out, v_scale_out)
    v_k_new = None
    if k_new is not None:
        v_k_new = call.put("k_new", 8, k_new, 4)
    v_v_new = None
    if v_new is not None:
        v_v_new = call.put("v_new", 104, v_new, 4)
    if k is not None:
        call.put("k", 200, k, None, True)
    if v is not None:
        call.put("v", 296, v, None, True)
    v_query_start = None
    if query_start is not None:
        v_query_start = call.put("query_start", 392, query_start, 1)
    v_key_start = None
    if key_start is not None:
        v_key_start = call.put("key_start", 488, key_start, 1)
    v_query_len = None
    if query_len is not None:
        v_query_len = call.put("query_len", 584, query_len, 1)
    v_key_len = None
    if key_len is not None:
        v_key_len = call.put("key_len", 680, key_len, 1)
    if page_table is not None:
        call.put("page_table", 776, page_table)
    v_cache_row = None
    if cache_row is not None:
        v_cache_row = call.put("cache_row", 872, cache_row, 1)
    v_position = None
    if position is not None:
        v_position = call.put("position", 968, position, 2)
    if cos is not None:
        call.put("cos", 1064, cos)
    if sin is not None:
        call.put("sin", 1160, sin)
    if norm_weight is not None:
        call.put("norm_weight", 1256, norm_weight)
    if k_scale is not None:
        call.put("k_scale", 1352, k_scale)
    if v_scale is not None:
        call.put("v_scale", 1448, v_scale)
    if k_scale_out is not None:
        call.put("k_scale_out", 1672, k_scale_out, None, True)
    if v_scale_out is not None:
        call.put("v_scale_out", 1768, v_scale_out, None, True)
    if key_len_out is not None:
        key_len_out = None if key_len_out is False else call.out("key_len_out", 1544, key_len_out,
            lambda: (call.size("r", r, (v_query_start, 0, 1), (v_key_start, 0, 1), (v_query_len, 0,
            0), (v_key_len, 0, 0), (v_cache_row, 0, 0), (v_k_new, 0, 0), (v_v_new, 0, 0),
            (v_position, 0, 0)),), 8)
    if query_max:
        call.scalar("q", 1640, query_max, "query_max")
    if key_max:
        call.scalar("q", 1648, key_max, "key_max")
    if norm_eps:
        call.scalar("f", 1656, norm_eps, "norm_eps")
    if rope_begin:
        call.scalar("i", 1660, rope_begin, "rope_begin")
    if rope_interleaved:
        call.scalar("i", 1664, rope_interleaved, "rope_interleaved")
    if scale_power_of_two:
        call.scalar("i", 1668, scale_power_of_two, "scale_power_of_two")
    return call.run(key_len_out)


def cache_copy(ctx_or_source=None, /, source=None, target=None, pair=None, *, ctx=None):
    """Copies whole pages, target[pair[i][1]] = source[pair[i][0]]: copy-on-write, swap, offload (one
    pool in FOVEA_MEMORY_HOST).  A pair with a number outside its pool is skipped.  No page may be a
    target twice, or a target and a source.

    Example
      fovea.cache_copy(source, target, pair)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      source: (pool, page, g, d) f32 f16 bf16 e4m3 e5m2 i8 i32 u8
      target: (pool2, page, g, d) as source: may be source
      pair: (n, 2) i32: source page, target page; -1 skips
    """
    if ctx_or_source.__class__ is Context and ctx is None:
        call = Call(ctx_or_source, _cache_copy)
    else:
        call, inputs = _cache_copy.begin(ctx_or_source, ctx, source, target, pair)
        [source, target, pair] = inputs
    call.put("source", 8, source)
    call.put("target", 104, target, None, True)
    call.put("pair", 200, pair)
    return call.run()


def cache_get(ctx_or_k=None, /, k=None, *, ctx=None, k_out=None, key_start=None, key_len=None,
              page_table=None, cache_row=None, k_scale=None, b=None, u=None, key_max=0):
    """Reads one cache tensor back, paged to contiguous.  k_out[i, j] is k of sequence i, token j,
    times k_scale, for j below the sequence's length.  An absent page gives 0.  Other rows of k_out
    are not written.  Keys and values are two calls.

    Example
      k_out = fovea.cache_get(k)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      k: (rows, t, g, d) or paged (pool, page, g, d) f32 f16 bf16 e4m3 e5m2 i8

    Outputs, new unless passed
      k_out: (b, u, g, d) f32 f16 bf16

    Optional inputs
      key_start: (r+1) i32: k_out is packed, (1, total, g, d): first row of each sequence; k keeps a
          row for each
      key_len: (r) i32: tokens in use; absent: the extent of k_out or of its packed part
      page_table: (rows, pages) i32: -1: page absent
      cache_row: (r) i32: row of page_table, or of k; -1 or past the last skips the sequence
      k_scale: (g) f32: absent: 1

    b, u: extents of new outputs that no input tells.

    Numbers
      key_max: tokens past this index are not read; 0: t, or pages * page
    """
    if ctx_or_k.__class__ is Context and ctx is None:
        call = Call(ctx_or_k, _cache_get)
    else:
        call, inputs = _cache_get.begin(ctx_or_k, ctx, k)
        [k] = inputs
    v_k = call.put("k", 8, k, 4)
    v_key_start = None
    if key_start is not None:
        v_key_start = call.put("key_start", 104, key_start, 1)
    v_key_len = None
    if key_len is not None:
        v_key_len = call.put("key_len", 200, key_len, 1)
    if page_table is not None:
        call.put("page_table", 296, page_table)
    v_cache_row = None
    if cache_row is not None:
        v_cache_row = call.put("cache_row", 392, cache_row, 1)
    if k_scale is not None:
        call.put("k_scale", 488, k_scale)
    k_out = call.out("k_out", 584, k_out, lambda: (call.size("b", b, (v_key_start if key_start is
        None else None, 0, 1), (v_key_len if key_start is None else None, 0, 0), (v_cache_row if
        key_start is None else None, 0, 0)), call.size("u", u), v_k[2][2], v_k[2][3]), v_k[1] if
        v_k[1] in (1, 2, 3) else 1)
    if key_max:
        call.scalar("q", 680, key_max, "key_max")
    return call.run(k_out)


def rope_forward(ctx_or_x=None, /, x=None, cos=None, sin=None, *, ctx=None, y=None, position=None,
                 start=None, rope_begin=0, rope_interleaved=0, inverse=0):
    """y = x rotated; with `inverse` by the negative angle, which is also the gradient.

    Example
      y = fovea.rope_forward(x, cos, sin)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      x: (b, s, h, d) f32 f16 bf16
      cos: (positions, half) f32
      sin: (positions, half) f32

    Outputs, new unless passed
      y: (b, s, h, d) as x: may be x

    Optional inputs
      position: (b, s) i32: row of the table; outside it the rotated columns are NaN; absent: index
          in the sequence
      start: (r+1) i32: first packed row of each sequence; then b = 1; rows of none are not written

    Numbers
      rope_begin: first rotated column; 2 * half columns turn, the rest is copied
      rope_interleaved: 1: pairs (2i, 2i + 1); 0: pairs (i, i + half)
      inverse: 1: the negative angle
    """
    if ctx_or_x.__class__ is Context and ctx is None:
        call = Call(ctx_or_x, _rope_forward)
    else:
        call, inputs = _rope_forward.begin(ctx_or_x, ctx, x, cos, sin)
        [x, cos, sin] = inputs
    v_x = call.put("x", 8, x, 4)
    if position is not None:
        call.put("position", 200, position)
    if start is not None:
        call.put("start", 296, start)
    call.put("cos", 392, cos)
    call.put("sin", 488, sin)
    y = call.out("y", 104, y, v_x[2], v_x[1])
    if rope_begin:
        call.scalar("i", 584, rope_begin, "rope_begin")
    if rope_interleaved:
        call.scalar("i", 588, rope_interleaved, "rope_interleaved")
    if inverse:
        call.scalar("i", 592, inverse, "inverse")
    return call.run(y)


def rope_table_get(ctx=None, *, cos=None, sin=None, frequency=None, positions=None, half=None,
                   position_begin=0, original_len=0, base=0.0, factor=0.0, low_factor=0.0,
                   high_factor=0.0, scaling=0):
    """Fills cos and sin for positions position_begin, position_begin + 1, ...  Angles are formed and
    reduced in f64: errors stay below 2^-22 for positions below 2^22.

    Example
      cos, sin = fovea.rope_table_get(positions=4096, half=64, base=10000.0)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Outputs, new unless passed
      cos: (positions, half) f32
      sin: (positions, half) f32

    Optional inputs
      frequency: (half) f32: radians a position; absent: base^(-i / half); scaling applies to either

    positions, half: extents of new outputs that no input tells.

    Numbers
      position_begin: position of row 0; may be negative
      original_len: context length of training; 0: 8192 (llama3), 4096 (yarn)
      base: 0: 10000; with frequency read by yarn alone
      factor: >= 1; 0: 1
      low_factor: 0: 1
      high_factor: 0: 4 (llama3), 32 (yarn)
      scaling: "none", "linear", "llama3", "yarn"
    """
    if ctx.__class__ is Context:
        call = Call(ctx, _rope_table_get)
    else:
        call = _rope_table_get.begin_by(ctx, cos, sin, frequency)
    v_frequency = None
    if frequency is not None:
        v_frequency = call.put("frequency", 200, frequency, 1)
    cos = call.out("cos", 8, cos, lambda: (call.size("positions", positions), call.size("half",
        half, (v_frequency, 0, 0))), 1)
    sin = call.out("sin", 104, sin, lambda: (call.size("positions", positions), call.size("half",
        half, (v_frequency, 0, 0))), 1)
    if position_begin:
        call.scalar("q", 296, position_begin, "position_begin")
    if original_len:
        call.scalar("q", 304, original_len, "original_len")
    if base:
        call.scalar("f", 312, base, "base")
    if factor:
        call.scalar("f", 316, factor, "factor")
    if low_factor:
        call.scalar("f", 320, low_factor, "low_factor")
    if high_factor:
        call.scalar("f", 324, high_factor, "high_factor")
    if scaling:
        call.enum(328, scaling, "scaling", Scaling)
    return call.run(cos, sin)


def quant_quantize(ctx_or_x=None, /, x=None, *, ctx=None, code=None, code_t=None, scale=None,
                   mean=None, delta=None, start=None, k=None, k_mean=None, key_start=None,
                   code_d=None, padded=None, n=None, means=None, deltas=None, t=None, block=0,
                   seed=0, scale_max=0.0, hadamard=0, code_order=0, group=0, code_format=0,
                   smooth=0):
    """Codes of x:
      y = x, or with hadamard y = (x * sign) H / sqrt(m) on each run of m columns, m the largest
          power of two that divides d, H the Hadamard matrix in Sylvester order
      y = y - mean                                                              with smooth
      a = max(max |y| over the tokens and columns that share a scale, 1e-7)
      scale = a / most,  code = y * (most / a) rounded to nearest even
    in f32; most is 448 of e4m3 (or scale_max), 127 of i8, 7 of i4.  Where y holds an infinity
    scale is +inf, where it holds a NaN scale is NaN; the codes under such a scale are 0.

    e2m1 goes with the micro groups and they with it (NVFP4 and MXFP4), with a = max |y|:
      micro16  scale = e4m3(a / 6),  code = y * (1 / scale) rounded to nearest even, at most 6
      micro32  scale = 2^k, k = max(floor(log2 a) - 2, -127), as u8 k + 127;  code = y / scale
    Where a or scale is 0 the codes are 0.  Where y holds a NaN or an infinity they are too, and
    scale is NaN (u8: 255).

    mean is a column's sum over the tokens there are, divided by their number, in f32.  The sum is
    a tree: of tokens 2i and 2i + 1 of a sequence, of such pairs, and so on.  With both means off,
    scores lack <mean, k - k_mean> (SageAttention2, 2411.10958).  delta is that, of block I of 128
    rows and every key j of its sequence, in f32: to be added before the scale.

    q and k rotated alike have the scores they had before, with outliers spread over columns.  The
    sign of column c is - where the top bit of z is 1:
      z = seed + (c + 1) * 0x9E3779B97F4A7C15;  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
      z = (z ^ z >> 27) * 0x94D049BB133111EB;   z = z ^ z >> 31            (64 bits, unsigned)
    Packed tokens of no sequence are not written, nor are scales that are theirs alone.  Other
    scales and means of no token, and transposed codes of none, are 0.  What delta has for no block
    or for no key of its sequence is not written.  Bits of codes, scales and means: the same on host
    and CUDA, whatever else the batch holds.

    Limits: d is up to 3072 on CUDA, any on the host.

    Example
      blocks = -(-x.shape[1] // 128)
      code, scale = fovea.quant_quantize(x, code=True, block=128, n=blocks)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      x: (b, s, h, d) f32 f16 bf16

    Outputs, new unless passed
      scale: (b, h, n) f32 e4m3 u8: n as said above; f32, but e4m3 of micro16 and u8 of micro32

    Outputs on request, by True or an array
      code: (b, s, h, code_d) e4m3 i8 u8: absent: only code_t is written
      code_t: (b, h, d, padded) e4m3 i8 u8: the codes with tokens contiguous, for v_t; of code's
          dtype.  A byte that holds two halves padded
      mean: (b, h, means, d) f32: with smooth; one of a sequence (packed r), or one of each block of
          128
      delta: (b, h, deltas, t) f32: of each block of 128; with smooth 2 and k

    Optional inputs
      start: (r+1) i32: first packed token of each sequence, ascending from 0; then b = 1
      k: (key_b, t, g, d) as x: for delta
      k_mean: (key_b, g, k_means, d) f32: one of a sequence; absent: 0
      key_start: (r+1) i32: first packed key of each sequence

    code_d, padded, n, means, deltas, t: extents of new outputs that no input tells.

    Numbers
      block: tokens of a block: 16, 32 or a multiple of 64, 0: all of a sequence. Of thread_q 16 to
          128, of thread_k 64 or 128, else 0
      seed: signs of the rotation; with hadamard
      scale_max: e4m3's largest code, one that e4m3 holds; 0: 448
      hadamard: 1: rotate the columns first
      code_order: "plain", "v_perm16"
      group: "block", "thread_q", "thread_k", "token", "channel", "micro16", "micro32", "micro16_t",
          "micro32_t"
      code_format: "dtype", "i4", "e2m1"
      smooth: "none", "sequence", "block"
    """
    if ctx_or_x.__class__ is Context and ctx is None:
        call = Call(ctx_or_x, _quant_quantize)
    else:
        call, inputs = _quant_quantize.begin(ctx_or_x, ctx, x)
        [x] = inputs
    v_x = call.put("x", 8, x, 4)
    if start is not None:
        call.put("start", 104, start)
    v_k = None
    if k is not None:
        v_k = call.put("k", 584, k, 4)
    if k_mean is not None:
        call.put("k_mean", 680, k_mean)
    if key_start is not None:
        call.put("key_start", 776, key_start)
    if code is not None:
        code = None if code is False else call.out("code", 200, code, lambda: (v_x[2][0], v_x[2][1],
            v_x[2][2], call.size("code_d", code_d, (v_x, 3, 0))), v_x[1] if v_x[1] in (4, 7, 10)
            else 4)
    if code_t is not None:
        code_t = None if code_t is False else call.out("code_t", 296, code_t, lambda: (v_x[2][0],
            v_x[2][2], v_x[2][3], call.size("padded", padded)), v_x[1] if v_x[1] in (4, 7, 10) else
            4)
    scale = call.out("scale", 392, scale, lambda: (v_x[2][0], v_x[2][2], call.size("n", n)), v_x[1]
        if v_x[1] in (1, 4, 10) else 1)
    if mean is not None:
        mean = None if mean is False else call.out("mean", 488, mean, lambda: (v_x[2][0], v_x[2][2],
            call.size("means", means), v_x[2][3]), 1)
    if delta is not None:
        delta = None if delta is False else call.out("delta", 872, delta, lambda: (v_x[2][0],
            v_x[2][2], call.size("deltas", deltas), call.size("t", t, (v_k, 1, 0))), 1)
    if block:
        call.scalar("q", 968, block, "block")
    if seed:
        call.scalar("q", 976, seed, "seed")
    if scale_max:
        call.scalar("f", 984, scale_max, "scale_max")
    if hadamard:
        call.scalar("i", 988, hadamard, "hadamard")
    if code_order:
        call.enum(992, code_order, "code_order", CodeOrder)
    if group:
        call.enum(996, group, "group", ScaleGroup)
    if code_format:
        call.enum(1000, code_format, "code_format", CodeFormat)
    if smooth:
        call.enum(1004, smooth, "smooth", Smooth)
    return call.run(code, code_t, scale, mean, delta)


def quant_dequantize(ctx_or_scale=None, /, scale=None, *, ctx=None, y=None, start=None, code=None,
                     code_t=None, mean=None, s=None, d=None, block=0, seed=0, hadamard=0,
                     code_order=0, group=0, code_format=0, smooth=0):
    """What codes stand for:
      y = code * scale, + mean with smooth, then with hadamard (y H / sqrt(m)) * sign
    each step rounded in f32, y then to its dtype.  Groups, formats, means and signs: as
    quant_quantize.  Packed tokens of no sequence are not written.  Bits: the same on host and CUDA,
    whatever else the batch holds.

    Limits: d is up to 3072 on CUDA, any on the host.

    Example
      y = fovea.quant_dequantize(scale)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      scale: (b, h, n) f32 e4m3 u8: as quant_quantize's

    Outputs, new unless passed
      y: (b, s, h, d) f32 f16 bf16

    Optional inputs
      start: (r+1) i32: first packed token of each sequence, ascending from 0; then b = 1
      code: (b, s, h, code_d) e4m3 i8 u8: this or code_t
      code_t: (b, h, d, padded) e4m3 i8 u8: as quant_quantize's
      mean: (b, h, means, d) f32: with smooth

    s, d: extents of new outputs that no input tells.

    Numbers
      block: as quant_quantize's
      seed: signs of the rotation; with hadamard
      hadamard: 1: the codes are of rotated columns
      code_order: "plain", "v_perm16"
      group: "block", "thread_q", "thread_k", "token", "channel", "micro16", "micro32", "micro16_t",
          "micro32_t"
      code_format: "dtype", "i4", "e2m1"
      smooth: "none", "sequence", "block"
    """
    if ctx_or_scale.__class__ is Context and ctx is None:
        call = Call(ctx_or_scale, _quant_dequantize)
    else:
        call, inputs = _quant_dequantize.begin(ctx_or_scale, ctx, scale)
        [scale] = inputs
    if start is not None:
        call.put("start", 104, start)
    v_code = None
    if code is not None:
        v_code = call.put("code", 200, code, 4)
    v_code_t = None
    if code_t is not None:
        v_code_t = call.put("code_t", 296, code_t, 4)
    v_scale = call.put("scale", 392, scale, 3)
    v_mean = None
    if mean is not None:
        v_mean = call.put("mean", 488, mean, 4)
    y = call.out("y", 8, y, lambda: (v_scale[2][0], call.size("s", s, (v_code, 1, 0)),
        v_scale[2][1], call.size("d", d, (v_code_t, 2, 0), (v_mean, 3, 0))), v_scale[1] if
        v_scale[1] in (1, 2, 3) else 1)
    if block:
        call.scalar("q", 584, block, "block")
    if seed:
        call.scalar("q", 592, seed, "seed")
    if hadamard:
        call.scalar("i", 600, hadamard, "hadamard")
    if code_order:
        call.enum(604, code_order, "code_order", CodeOrder)
    if group:
        call.enum(608, group, "group", ScaleGroup)
    if code_format:
        call.enum(612, code_format, "code_format", CodeFormat)
    if smooth:
        call.enum(616, smooth, "smooth", Smooth)
    return call.run(y)


def quant_forward(ctx_or_q=None, /, q=None, k=None, *, ctx=None, o=None, lse=None, skipped=None,
                  v=None, v_t=None, q_scale=None, k_scale=None, v_scale=None, query_start=None,
                  key_start=None, query_len=None, key_len=None, page_table=None, cache_row=None,
                  sink_logit=None, k_mean=None, q_plain=None, delta=None, v_mean=None, index=None,
                  index_count=None, e=None, query_max=0, key_max=0, window_left=0, window_right=0,
                  scale=0.0, softcap=0.0, skip_margin=0.0, causal=0, q_block=0, k_block=0,
                  code_order=0, code_format=0, v_format=0, p_format=0, accumulate=0, q_group=0,
                  k_group=0, v_group=0, v_block=0, block_rows=0, block_keys=0, entry_keys=0):
    """Attention of codes: FlashAttention-3's FP8 recipe, SageAttention 1, 2, 2++ and 3, the forward of
    SageBwd, SpargeAttention over lists.  For query row i over the keys it sees (attention.h:
    positions bottom-right aligned, causal, windows), in tiles from the last to the first:
      score = scale * (q_scale * k_scale * <q_i, k_j> + delta_ij) + r_i
      score = softcap * tanh(score / softcap)            when softcap > 0
      m' = max(m, score),  p = exp(score - m'),  l = exp(m - m') l + sum p
      O = exp(m - m') O + sum_j rounded(p_j) v_scale v_j
      o = O / l,  lse = m + ln l                         (l + exp(sink_logit_h) with sink_logit)
    rounded: as p_format says, to nearest even.  The tile is the kernel's own, a multiple of 64
    keys.  Tensor cores keep 13 bits of a sum of e4m3: they sum at most 4096 keys before these join
    O in f32.  Scales are not negative; an absent one is 1.  Empty rows, lengths and what is not
    read: as attention_forward.  Bits: the same every run, whatever else the batch holds.

    Smoothing.  k stands for keys less k_mean, so each score of row i lacks the same
    r_i = scale <q_i, k_mean>.  It is added where it shows: in lse, under softcap and beside
    sink_logit.  q_i is q_plain; without it what q's codes stand for.  q less the mean of its 128
    rows lacks delta, as quant_quantize writes it; then k_mean asks for q_plain.  v_mean is added to
    o, times the share of l that keys have.

    Pages.  With page_table token j of a sequence is token j % page of pool page
    page_table[row][j / page].  A pool is what quant_quantize makes of x (pool, page, g, d), a page
    a sequence of its batch.  Blocks, groups, padded columns and means are those of a page.  With
    block = 0 one scale serves a page, and a page's last block may be shorter.  Means belong to the
    keys of their page, k_j = k_scale k + k_mean and v_j = v_scale v + v_mean: scores lack nothing.
    A mean that pages share has stride 0.  Runs of p_format are counted as without pages.

    Lists.  With index row i sees those keys alone that its list names and its window leaves, a key
    as often as it is named.
      list head  Query head i has list head i / (h / x); x divides h.
      list row   Row i of a sequence has list row i / block_rows; n is ceil(s / block_rows) or more.
                 Packed, the first list row of sequence r is query_start[r] / block_rows + r, and n
                 is s / block_rows + r or more.  With block_rows = 1 it is query_start[r], and n is
                 s or more.
      entry      Number e names keys [e entry_keys, e entry_keys + block_keys) of the sequence, as
                 far as there are such keys.  -1 and numbers without a key name none.  Entries stand
                 in any order.
      count      Places from index_count on are not read.  A count below 0 or above keep is cut to
                 that.  Absent: keep.
    In what order keys are met is then the kernel's own, but with skip_margin: from the first place
    to the last.

    Skipping (SpargeAttention).  Rows stand in groups of 64 of one head, counted from the first of
    their list row.  An entry is cut into tiles of 64 keys, from its first.  top_i is the largest
    score that row i has met so far.  A tile is skipped where every row of the group has
    score_ij < top_i - skip_margin for each key that it sees.  It then adds nothing to o, lse and
    top.  What is dropped is at most Lk exp(-skip_margin) of a row's sum.

    Methods:
      |                 | q, k  | q_group, k_group   | v    | v_group   | p_format | accumulate |
      | FlashAttention-3| e4m3  | block              | e4m3 | block     | e4m3_256 | two_level  |
      | SageAttention   | i8    | block              | f16  | none      | half     | half_64    |
      | SageAttention2  | i8 i4 | thread_q, thread_k | e4m3 | channel   | e4m3_448 | two_level  |
      | SageAttention2++| i8    | thread_q, thread_k | e4m3 | channel   | e4m3_448 | half_64    |
      | SageAttention3  | e2m1  | micro16, micro32   | e2m1 | micro*_t  | e2m1_*   | f32        |
      | SageBwd         | i8    | block              | i8   | block     | i8       | f32        |
      | SpargeAttention | i8    | block              | e4m3 | channel   | e4m3_448 | two_level  |
    q and k of one type go with any v and the p_format that v has above.  code_format is of q and k,
    v_format of v_t.  Groups of q and k: block, thread_q (q), thread_k (k), token, micro16, micro32;
    of v: block, channel, and micro16_t, micro32_t of v_t.

    Limits: d and e are 1 .. 576.  Every valid call has a kernel on the host and a portable one on
    CUDA.  Tensor cores ask for more:
      all              v_t in v_perm16, or v of f16 or bf16; no softcap or v_mean; delta as below;
                       d a multiple of 16 and e of 8, up to 256; rows of q, k, v, v_t, o contiguous
                       and 16-byte aligned
      sm_90, e4m3      p_format e4m3_256, groups block of 0, 64 or 128 tokens, v_group block; no
                       k_mean
      sm_90, i8, e4m3  p_format e4m3_448, q_scale and k_scale; q_group block or thread_q, q_block 0
                       or a power of two; k_group block or thread_k, k_block 0 or a power of two
                       from 64 on; v_group block (v_block = 0) or channel; rows of k_mean and
                       q_plain contiguous and 16-byte aligned; delta too
      sm_90, i4, e4m3  as i8, e4m3, whose products are exact for i4: codes are unpacked into the
                       workspace; rows of q and k 8-byte aligned; no index or page_table
      sm_90, i8, f16   v of f16 or bf16; q and k as i8, e4m3; v_scale absent, or v_group block
                       (v_block = 0) or channel; up to 128; no delta, index or page_table
      sm_90, i8        p_format i8, all three scales; q and k as above, but k_group block; v_group
                       block, v_block 0 or a power of two from 64 on; up to 128; no index or
                       page_table
      sm_90, pages     page a multiple of 64; v_scale, and k_mean of i8, one of all pages: absent,
                       of stride 0 or of a pool of one page.  e4m3 with such a k_scale, k_block = 0:
                       page a multiple of 16
      sm_80, i8        p_format i8, scales of block, blocks of 0 or multiples of 64; up to 128; no
                       index, page_table or cache_row
      sm_90, index     as i8, e4m3; block_rows = 128, entry_keys = block_keys or 0; no
                       skip_margin or delta

    Example
      o = fovea.quant_forward(q, k)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q: (b, s, h, d) e4m3 i8 u8: u8: pairs of columns, see code_format
      k: (rows, t, g, d) or paged (pool, page, g, d) as q

    Outputs, new unless passed
      o: (b, s, h, e) f32 f16 bf16

    Outputs on request, by True or an array
      lse: (b, h, s) f32: natural log of each row's sum
      skipped: (1) i64: tiles that some row of a group sees and that were skipped, over all groups;
          with index

    Optional inputs
      v: (rows, t, g, e) or paged (pool, page, g, e) e4m3 i8 f16 bf16: this or v_t
      v_t: (rows, g, e, padded) or paged (pool, g, e, padded) e4m3 i8 u8: values with tokens
          contiguous, in code_order, placed as quant_quantize does
      q_scale: (b, h, q_blocks) f32 e4m3 u8: absent: 1
      k_scale: (rows, g, k_blocks) or paged (pool, g, k_blocks) f32 e4m3 u8: absent: 1
      v_scale: (rows, g, v_blocks) or paged (pool, g, v_blocks) f32 e4m3 u8: absent: 1
      query_start: (r+1) i32: first packed row of each sequence, ascending from 0; then b = 1
      key_start: (r+1) i32: first packed key of each sequence; not with page_table or cache_row
      query_len: (r) i32: rows in use, at most s or the packed extent
      key_len: (r) i32: keys in use, at most t, packed extent or pages * page
      page_table: (rows, pages) i32: pool page of each logical page; -1: absent, its keys are not
          seen
      cache_row: (r) i32: row of page_table, or of k and v, that a sequence reads; -1 or past the
          last: no keys; absent: its own number
      sink_logit: (h) f32: a learned term of the denominator: not scaled or capped
      k_mean: (rows, g, means, wide) or paged (pool, g, means, wide) f32: what k stands for less
          than; means = 1, packed r
      q_plain: (b, s, h, wide) f32 f16 bf16: rows that q's codes stand for, in k_mean's columns; not
          with page_table
      delta: (b, h, deltas, t) f32: for each 128 rows of a sequence, placed as block scales are; not
          with page_table
      v_mean: (rows, g, v_means, e) or paged (pool, g, v_means, e) f32: v_means = 1, packed r
      index: (b, x, n, keep) i32: entries of each list row; not with page_table
      index_count: (b, x, n) i32: entries in use; with index

    e: extents of new outputs that no input tells.

    Numbers
      query_max: longest sequence of rows, bounds the grid; 0: s
      key_max: longest sequence of keys; 0: t, or pages * page
      window_left: keys seen to the left, the row's own position counted; 0: all
      window_right: keys seen to the right, the row's own position counted; 0: all, 1: none after
          itself
      scale: > 0; 0: 1 / sqrt(columns of q)
      softcap: > 0; 0: none
      skip_margin: in nats, with index; 0: nothing is skipped
      causal: 1: window_right = 1
      q_block: rows that share an entry of q_scale: 16, 32 or a multiple of 64; 0: all of a
          sequence; thread_q: the run
      k_block: keys that share an entry of k_scale, as q_block; thread_k: the run
      code_order: "plain", "v_perm16"
      code_format: "dtype", "i4", "e2m1"
      v_format: "dtype", "i4", "e2m1"
      p_format: "e4m3_256", "e4m3_448", "half", "i8", "e2m1_two", "e2m1_one"
      accumulate: "two_level", "f32", "half_64"
      q_group: "block", "thread_q", "thread_k", "token", "channel", "micro16", "micro32",
          "micro16_t", "micro32_t"
      k_group: "block", "thread_q", "thread_k", "token", "channel", "micro16", "micro32",
          "micro16_t", "micro32_t"
      v_group: "block", "thread_q", "thread_k", "token", "channel", "micro16", "micro32",
          "micro16_t", "micro32_t"
      v_block: keys that share an entry of v_scale, as q_block
      block_rows: rows of a list row: 1 .. 128; 0 without index
      block_keys: keys of an entry: a multiple of 64 up to 65536; 0 without index
      entry_keys: from an entry's first key to the next's: a multiple of 64, at most block_keys; 0:
          block_keys
    """
    if ctx_or_q.__class__ is Context and ctx is None:
        call = Call(ctx_or_q, _quant_forward)
    else:
        call, inputs = _quant_forward.begin(ctx_or_q, ctx, q, k)
        [q, k] = inputs
    v_q = call.put("q", 8, q, 4)
    call.put("k", 104, k)
    v_v = None
    if v is not None:
        v_v = call.put("v", 200, v, 4)
    v_v_t = None
    if v_t is not None:
        v_v_t = call.put("v_t", 296, v_t, 4)
    if q_scale is not None:
        call.put("q_scale", 392, q_scale)
    if k_scale is not None:
        call.put("k_scale", 488, k_scale)
    if v_scale is not None:
        call.put("v_scale", 584, v_scale)
    if query_start is not None:
        call.put("query_start", 872, query_start)
    if key_start is not None:
        call.put("key_start", 968, key_start)
    if query_len is not None:
        call.put("query_len", 1064, query_len)
    if key_len is not None:
        call.put("key_len", 1160, key_len)
    if page_table is not None:
        call.put("page_table", 1256, page_table)
    if cache_row is not None:
        call.put("cache_row", 1352, cache_row)
    if sink_logit is not None:
        call.put("sink_logit", 1448, sink_logit)
    if k_mean is not None:
        call.put("k_mean", 1544, k_mean)
    if q_plain is not None:
        call.put("q_plain", 1640, q_plain)
    if delta is not None:
        call.put("delta", 1736, delta)
    v_v_mean = None
    if v_mean is not None:
        v_v_mean = call.put("v_mean", 1832, v_mean, 4)
    if index is not None:
        call.put("index", 1928, index)
    if index_count is not None:
        call.put("index_count", 2024, index_count)
    o = call.out("o", 680, o, lambda: (v_q[2][0], v_q[2][1], v_q[2][2], call.size("e", e, (v_v, 3,
        0), (v_v_t, 2, 0), (v_v_mean, 3, 0))), v_q[1] if v_q[1] in (1, 2, 3) else 1)
    if lse is not None:
        lse = None if lse is False else call.out("lse", 776, lse, (v_q[2][0], v_q[2][2], v_q[2][1]),
            1)
    if skipped is not None:
        skipped = None if skipped is False else call.out("skipped", 2120, skipped, (1,), 9)
    if query_max:
        call.scalar("q", 2216, query_max, "query_max")
    if key_max:
        call.scalar("q", 2224, key_max, "key_max")
    if window_left:
        call.scalar("q", 2232, window_left, "window_left")
    if window_right:
        call.scalar("q", 2240, window_right, "window_right")
    if scale:
        call.scalar("f", 2248, scale, "scale")
    if softcap:
        call.scalar("f", 2252, softcap, "softcap")
    if skip_margin:
        call.scalar("f", 2256, skip_margin, "skip_margin")
    if causal:
        call.scalar("i", 2260, causal, "causal")
    if q_block:
        call.scalar("i", 2264, q_block, "q_block")
    if k_block:
        call.scalar("i", 2268, k_block, "k_block")
    if code_order:
        call.enum(2272, code_order, "code_order", CodeOrder)
    if code_format:
        call.enum(2276, code_format, "code_format", CodeFormat)
    if v_format:
        call.enum(2280, v_format, "v_format", CodeFormat)
    if p_format:
        call.enum(2284, p_format, "p_format", PFormat)
    if accumulate:
        call.enum(2288, accumulate, "accumulate", Accumulate)
    if q_group:
        call.enum(2292, q_group, "q_group", ScaleGroup)
    if k_group:
        call.enum(2296, k_group, "k_group", ScaleGroup)
    if v_group:
        call.enum(2300, v_group, "v_group", ScaleGroup)
    if v_block:
        call.scalar("i", 2304, v_block, "v_block")
    if block_rows:
        call.scalar("i", 2308, block_rows, "block_rows")
    if block_keys:
        call.scalar("i", 2312, block_keys, "block_keys")
    if entry_keys:
        call.scalar("i", 2316, entry_keys, "entry_keys")
    return call.run(o, lse, skipped)


def kl_forward(ctx_or_q_teacher=None, /, q_teacher=None, k_teacher=None, q_student=None,
               k_student=None, *, ctx=None, kl=None, lse_teacher=None, lse_student=None, total=None,
               row_weight=None, query_start=None, key_start=None, query_len=None, key_len=None,
               head_window=None, query_max=0, key_max=0, window_left=0, window_right=0, sink_keys=0,
               scale_teacher=0.0, scale_student=0.0, causal=0, direction=0, mean=0):
    """kl, the statistics that its gradient needs, and their sum, each where asked for.  Workspace does
    not depend on s * t.

    Limits: d and f are 1 .. 576.  Every valid call has a kernel on the host and a portable one on
    CUDA.  Tensor cores ask for more:
      sm_90            f16 or bf16, the same for both; d and f multiples of 8 up to 256; no
                       sink_keys, no head_window; rows of q and k contiguous, 16-byte aligned

    Example
      outputs = fovea.kl_forward(q_teacher, k_teacher, q_student, k_student, kl=True,
          lse_teacher=True, lse_student=True)
      kl, lse_teacher, lse_student = outputs

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q_teacher: (b, s, h, d) f32 f16 bf16
      k_teacher: (key_b, t, g, d) as q_teacher
      q_student: (b, s, h, f) f32 f16 bf16: need not be the teacher's dtype
      k_student: (key_b, t, x, f) as q_student: x divides h, query head i reads key head i / (h / x)

    Outputs on request, by True or an array
      kl: (b, h, s) f32: one of kl, lse_teacher, lse_student, total at least
      lse_teacher: (b, h, s) f32: natural log of each row's sum, for the backward
      lse_student: (b, h, s) f32
      total: (1) f32: the weighted sum or mean of kl

    Optional inputs
      row_weight: (b, h, s) f32: w, for total
      query_start: (r+1) i32: first packed row of each sequence, ascending from 0; then b = 1
      key_start: (r+1) i32: first packed key of each sequence
      query_len: (r) i32: rows in use, at most s or the packed extent
      key_len: (r) i32: keys in use, at most t or the packed extent
      head_window: (h, 3) i32: window_left, window_right, sink_keys of each head; the three fields
          and causal stay 0

    Numbers
      query_max: longest sequence of rows, bounds the grid; 0: s
      key_max: longest sequence of keys; 0: t
      window_left: keys seen to the left, the row's own position counted; 0: all
      window_right: keys seen to the right, the row's own position counted; 0: all, 1: none after
          itself
      sink_keys: keys at positions below this stay visible through window_left
      scale_teacher: > 0; 0: 1 / sqrt(d)
      scale_student: > 0; 0: 1 / sqrt(f)
      causal: 1: window_right = 1
      direction: "teacher_student", "student_teacher"
      mean: of total, 0: the sum, 1: the mean over rows that see a key
    """
    if ctx_or_q_teacher.__class__ is Context and ctx is None:
        call = Call(ctx_or_q_teacher, _kl_forward)
    else:
        call, inputs = _kl_forward.begin(ctx_or_q_teacher, ctx, q_teacher, k_teacher, q_student,
            k_student)
        [q_teacher, k_teacher, q_student, k_student] = inputs
    v_q_teacher = call.put("q_teacher", 8, q_teacher, 4)
    call.put("k_teacher", 104, k_teacher)
    call.put("q_student", 200, q_student)
    call.put("k_student", 296, k_student)
    if row_weight is not None:
        call.put("row_weight", 680, row_weight)
    if query_start is not None:
        call.put("query_start", 872, query_start)
    if key_start is not None:
        call.put("key_start", 968, key_start)
    if query_len is not None:
        call.put("query_len", 1064, query_len)
    if key_len is not None:
        call.put("key_len", 1160, key_len)
    if head_window is not None:
        call.put("head_window", 1256, head_window)
    if kl is not None:
        kl = None if kl is False else call.out("kl", 392, kl, (v_q_teacher[2][0], v_q_teacher[2][2],
            v_q_teacher[2][1]), 1)
    if lse_teacher is not None:
        lse_teacher = None if lse_teacher is False else call.out("lse_teacher", 488, lse_teacher,
            (v_q_teacher[2][0], v_q_teacher[2][2], v_q_teacher[2][1]), 1)
    if lse_student is not None:
        lse_student = None if lse_student is False else call.out("lse_student", 584, lse_student,
            (v_q_teacher[2][0], v_q_teacher[2][2], v_q_teacher[2][1]), 1)
    if total is not None:
        total = None if total is False else call.out("total", 776, total, (1,), 1)
    if query_max:
        call.scalar("q", 1352, query_max, "query_max")
    if key_max:
        call.scalar("q", 1360, key_max, "key_max")
    if window_left:
        call.scalar("q", 1368, window_left, "window_left")
    if window_right:
        call.scalar("q", 1376, window_right, "window_right")
    if sink_keys:
        call.scalar("q", 1384, sink_keys, "sink_keys")
    if scale_teacher:
        call.scalar("f", 1392, scale_teacher, "scale_teacher")
    if scale_student:
        call.scalar("f", 1396, scale_student, "scale_student")
    if causal:
        call.scalar("i", 1400, causal, "causal")
    if direction:
        call.enum(1404, direction, "direction", Direction)
    if mean:
        call.scalar("i", 1408, mean, "mean")
    return call.run(kl, lse_teacher, lse_student, total)


def kl_backward(ctx_or_q_teacher=None, /, q_teacher=None, k_teacher=None, q_student=None,
                k_student=None, kl=None, lse_teacher=None, lse_student=None, *, ctx=None,
                dq_student=None, dk_student=None, dq_teacher=None, dk_teacher=None, row_weight=None,
                query_start=None, key_start=None, query_len=None, key_len=None, head_window=None,
                dkl=None, dtotal=None, query_max=0, key_max=0, window_left=0, window_right=0,
                sink_keys=0, scale_teacher=0.0, scale_student=0.0, causal=0, direction=0, mean=0,
                nondeterministic=0):
    """Gradients of kl_forward from dkl, dtotal or both.  The fields it shares say what the forward
    was.  Each output is optional: absent = not computed, so a teacher without gradients costs none.
    Every element of an output is written: rows and keys past their lengths get 0.  x, P are the
    logits and probabilities of the distribution that weighs, the teacher's with teacher_student; y,
    R are those of the other:
      G_i = dkl_i + dtotal w_i,  with mean dkl_i + dtotal w_i / sum w
      dy_ij = G_i (R_ij - P_ij),  dx_ij = G_i P_ij (ln P_ij - ln R_ij - kl_i)
      dq_i = scale sum_j dx_ij k_j,  dk_j = scale sum_i dx_ij q_i,  and so with dy
    A NaN or an infinity in q or k makes NaN of dq of the rows that read it.  It makes NaN of dk of
    the keys that these rows see, and of nothing else.  A row with G_i = 0 gives nothing to any
    gradient, NaN included.  Bits: the same every run unless `nondeterministic`.  Workspace does not
    depend on s * t.

    Limits: as kl_forward, but d and f up to 128 on sm_90, where rows of dq and dk are contiguous
    and 16-byte aligned too.

    Example
      outputs = fovea.kl_backward(q_teacher, k_teacher, q_student, k_student, kl, lse_teacher,
          lse_student)
      dq_student, dk_student, dq_teacher, dk_teacher = outputs

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q_teacher: (b, s, h, d) f32 f16 bf16
      k_teacher: (key_b, t, g, d) as q_teacher
      q_student: (b, s, h, f) f32 f16 bf16
      k_student: (key_b, t, x, f) as q_student
      kl: (b, h, s) f32: of the forward
      lse_teacher: (b, h, s) f32: of the forward
      lse_student: (b, h, s) f32: of the forward

    Outputs, new unless passed or False
      dq_student: (b, s, h, f) as q_student
      dk_student: (key_b, t, x, f) as q_student
      dq_teacher: (b, s, h, d) as q_teacher
      dk_teacher: (key_b, t, g, d) as q_teacher

    Optional inputs
      row_weight: (b, h, s) f32: w, with dtotal
      query_start: (r+1) i32: as in the forward, and so for the fields below
      key_start: (r+1) i32
      query_len: (r) i32
      key_len: (r) i32
      head_window: (h, 3) i32
      dkl: (b, h, s) f32: the gradient of kl; this or dtotal, or both
      dtotal: (1) f32: the gradient of total

    Numbers
      query_max: as in the forward, and so for the fields below
      key_max: 0: t
      window_left: 0: all
      window_right: 0: all
      sink_keys: 0: none
      scale_teacher: 0: 1 / sqrt(d)
      scale_student: 0: 1 / sqrt(f)
      causal: 1: window_right = 1
      direction: "teacher_student", "student_teacher"
      mean: with dtotal
      nondeterministic: 1: a faster kernel whose sums may change order may be used
    """
    if ctx_or_q_teacher.__class__ is Context and ctx is None:
        call = Call(ctx_or_q_teacher, _kl_backward)
    else:
        call, inputs = _kl_backward.begin(ctx_or_q_teacher, ctx, q_teacher, k_teacher, q_student,
            k_student, kl, lse_teacher, lse_student)
        [q_teacher, k_teacher, q_student, k_student, kl, lse_teacher, lse_student] = inputs
    v_q_teacher = call.put("q_teacher", 8, q_teacher, 4)
    v_k_teacher = call.put("k_teacher", 104, k_teacher, 4)
    v_q_student = call.put("q_student", 200, q_student, 4)
    v_k_student = call.put("k_student", 296, k_student, 4)
    if row_weight is not None:
        call.put("row_weight", 392, row_weight)
    if query_start is not None:
        call.put("query_start", 488, query_start)
    if key_start is not None:
        call.put("key_start", 584, key_start)
    if query_len is not None:
        call.put("query_len", 680, query_len)
    if key_len is not None:
        call.put("key_len", 776, key_len)
    if head_window is not None:
        call.put("head_window", 872, head_window)
    call.put("kl", 968, kl)
    call.put("lse_teacher", 1064, lse_teacher)
    call.put("lse_student", 1160, lse_student)
    if dkl is not None:
        call.put("dkl", 1256, dkl)
    if dtotal is not None:
        call.put("dtotal", 1352, dtotal)
    dq_student = None if dq_student is False else call.out("dq_student", 1448, dq_student,
        v_q_student[2], v_q_student[1])
    dk_student = None if dk_student is False else call.out("dk_student", 1544, dk_student,
        v_k_student[2], v_q_student[1])
    dq_teacher = None if dq_teacher is False else call.out("dq_teacher", 1640, dq_teacher,
        v_q_teacher[2], v_q_teacher[1])
    dk_teacher = None if dk_teacher is False else call.out("dk_teacher", 1736, dk_teacher,
        v_k_teacher[2], v_q_teacher[1])
    if query_max:
        call.scalar("q", 1832, query_max, "query_max")
    if key_max:
        call.scalar("q", 1840, key_max, "key_max")
    if window_left:
        call.scalar("q", 1848, window_left, "window_left")
    if window_right:
        call.scalar("q", 1856, window_right, "window_right")
    if sink_keys:
        call.scalar("q", 1864, sink_keys, "sink_keys")
    if scale_teacher:
        call.scalar("f", 1872, scale_teacher, "scale_teacher")
    if scale_student:
        call.scalar("f", 1876, scale_student, "scale_student")
    if causal:
        call.scalar("i", 1880, causal, "causal")
    if direction:
        call.enum(1884, direction, "direction", Direction)
    if mean:
        call.scalar("i", 1888, mean, "mean")
    if nondeterministic:
        call.scalar("i", 1892, nondeterministic, "nondeterministic")
    return call.run(dq_student, dk_student, dq_teacher, dk_teacher)


def conv_attention_forward(ctx_or_q=None, /, q=None, k=None, v=None, weight=None, *, ctx=None,
                           o=None, lse=None, query_start=None, key_start=None, query_len=None,
                           key_len=None, page_table=None, cache_row=None, query_max=0, key_max=0,
                           history=0, scale=0.0, causal=0, splits=0):
    """Convolutional attention of q over k and v; prefill, decode over contiguous or paged caches.

    Limits: d and e are 1 .. 576, taps 16 x 31.  Every valid call has a kernel on the host and a
    portable one on CUDA.  Tensor cores ask for more:
      sm_90            f16 or bf16; d and e multiples of 8 up to 128; up to 12 x 17 taps; no pages;
                       rows of q, k, v, o contiguous and 16-byte aligned

    Example
      o = fovea.conv_attention_forward(q, k, v, weight)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q: (b, s, h, d) f32 f16 bf16
      k: (rows, t, g, d) or paged (pool, page, g, d) as q
      v: (rows, t, g, e) or paged (pool, page, g, e) as q: may be a view of k
      weight: (h, kernel_rows, kernel_columns) as q or f32: 1 .. 16 rows, the last is the row
          itself; 1 .. 31 columns

    Outputs, new unless passed
      o: (b, rows_out, h, e) as q or f32

    Outputs on request, by True or an array
      lse: (b, h, rows_out) f32: natural log of each row's sum

    Optional inputs
      query_start: (r+1) i32: first packed row of each sequence, ascending from 0; then b = 1
      key_start: (r+1) i32: first packed key of each sequence; not with page_table or cache_row
      query_len: (r) i32: rows in use, history's among them, at most s or the packed extent
      key_len: (r) i32: keys in use, at most t, packed extent or pages * page
      page_table: (rows, pages) i32: pool page of each logical page; -1: absent, its keys are not
          seen
      cache_row: (r) i32: row of page_table, or of k and v, that a sequence reads; -1 or past the
          last: no keys; absent: its own number

    Numbers
      query_max: longest sequence of rows, history's among them, bounds the grid; 0: s
      key_max: longest sequence of keys; 0: t, or pages * page
      history: rows at the begin of each sequence of q that have no output
      scale: > 0; 0: 1 / sqrt(d)
      causal: 1: row i sees keys up to i + Lk - Lq
      splits: parts the keys of a row are cut into; 0: chosen from shapes
    """
    if ctx_or_q.__class__ is Context and ctx is None:
        call = Call(ctx_or_q, _conv_attention_forward)
    else:
        call, inputs = _conv_attention_forward.begin(ctx_or_q, ctx, q, k, v, weight)
        [q, k, v, weight] = inputs
    v_q = call.put("q", 8, q, 4)
    call.put("k", 104, k)
    v_v = call.put("v", 200, v, 4)
    call.put("weight", 296, weight)
    v_query_start = None
    if query_start is not None:
        v_query_start = call.put("query_start", 584, query_start, 1)
    if key_start is not None:
        call.put("key_start", 680, key_start)
    if query_len is not None:
        call.put("query_len", 776, query_len)
    if key_len is not None:
        call.put("key_len", 872, key_len)
    if page_table is not None:
        call.put("page_table", 968, page_table)
    if cache_row is not None:
        call.put("cache_row", 1064, cache_row)
    o = call.out("o", 392, o, lambda: (v_q[2][0], v_q[2][1] - history *
        call.sequences(v_query_start), v_q[2][2], v_v[2][3]), v_q[1])
    if lse is not None:
        lse = None if lse is False else call.out("lse", 488, lse, lambda: (v_q[2][0], v_q[2][2],
            v_q[2][1] - history * call.sequences(v_query_start)), 1)
    if query_max:
        call.scalar("q", 1160, query_max, "query_max")
    if key_max:
        call.scalar("q", 1168, key_max, "key_max")
    if history:
        call.scalar("q", 1176, history, "history")
    if scale:
        call.scalar("f", 1184, scale, "scale")
    if causal:
        call.scalar("i", 1188, causal, "causal")
    if splits:
        call.scalar("i", 1192, splits, "splits")
    return call.run(o, lse)


def conv_attention_backward(ctx_or_q=None, /, q=None, k=None, v=None, weight=None, o=None, lse=None,
                            dout=None, *, ctx=None, dq=None, dk=None, dv=None, dweight=None,
                            query_start=None, key_start=None, query_len=None, key_len=None,
                            query_max=0, key_max=0, history=0, scale=0.0, causal=0,
                            nondeterministic=0):
    """Gradients of conv_attention_forward from dout.  The fields it shares say what the forward was.
    Each output is optional: absent = not computed.  Every element of an output is written: rows and
    keys past their lengths get 0.
      delta_i = <dout_i, o_i>,  P_ij = exp(A_ij - lse_i),  dA_ij = P_ij (<dout_i, v_j> - delta_i)
      dweight[u,v] = sum_ij dA_ij S[i - (kernel_rows - 1) + u, j - left + v]   over all sequences
      dS_mn = sum_uv W[u,v] dA[m + (kernel_rows - 1) - u, n + left - v],  0 where m does not see n
      dq_m = scale sum_n dS_mn k_n,  dk_n = scale sum_m dS_mn q_m,  dv_j = sum_i P_ij dout_i
    P and dA are 0 where a row does not see a key, and in rows of history.  Forward and backward may
    round differently: one takes S and weight as f16, the other does not (o in f32, rows not
    aligned).  P is then off by a factor of up to exp(2^-10 sum_uv |W S|), since lse is taken as it
    is given.  Bits: the same every run.  Workspace is linear in s and t.

    Limits: d and e are 1 .. 576, taps 16 x 31, no paged keys.  Every valid call has a kernel on the
    host and a portable one on CUDA.  Tensor cores ask for more:
      sm_90            f16 or bf16, o and dout as q; d and e multiples of 8 up to 128; up to 12 x 12
                       taps; rows contiguous and 16-byte aligned

    Example
      dq, dk, dv, dweight = fovea.conv_attention_backward(q, k, v, weight, o, lse, dout)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q: (b, s, h, d) f32 f16 bf16
      k: (key_b, t, g, d) as q
      v: (key_b, t, g, e) as q
      weight: (h, kernel_rows, kernel_columns) as q or f32
      o: (b, rows_out, h, e) as q or f32: of the forward
      lse: (b, h, rows_out) f32: of the forward
      dout: (b, rows_out, h, e) as o: the gradient of o

    Outputs, new unless passed or False
      dq: (b, s, h, d) as q: rows of history have theirs too
      dk: (key_b, t, g, d) as q
      dv: (key_b, t, g, e) as q
      dweight: (h, kernel_rows, kernel_columns) f32: a stride of 0 receives the ordered sum over
          that dimension

    Optional inputs
      query_start: (r+1) i32: as in the forward, and so for the fields below
      key_start: (r+1) i32
      query_len: (r) i32
      key_len: (r) i32

    Numbers
      query_max: as in the forward, and so for the fields below
      key_max: 0: t
      history: 0: none
      scale: 0: 1 / sqrt(d)
      causal: 1: row i sees keys up to i + Lk - Lq
      nondeterministic: 0 or 1, without effect: every kernel has one order of sums
    """
    if ctx_or_q.__class__ is Context and ctx is None:
        call = Call(ctx_or_q, _conv_attention_backward)
    else:
        call, inputs = _conv_attention_backward.begin(ctx_or_q, ctx, q, k, v, weight, o, lse, dout)
        [q, k, v, weight, o, lse, dout] = inputs
    v_q = call.put("q", 8, q, 4)
    v_k = call.put("k", 104, k, 4)
    v_v = call.put("v", 200, v, 4)
    v_weight = call.put("weight", 296, weight, 3)
    if query_start is not None:
        call.put("query_start", 392, query_start)
    if key_start is not None:
        call.put("key_start", 488, key_start)
    if query_len is not None:
        call.put("query_len", 584, query_len)
    if key_len is not None:
        call.put("key_len", 680, key_len)
    call.put("o", 776, o)
    call.put("lse", 872, lse)
    call.put("dout", 968, dout)
    dq = None if dq is False else call.out("dq", 1064, dq, v_q[2], v_q[1])
    dk = None if dk is False else call.out("dk", 1160, dk, v_k[2], v_q[1])
    dv = None if dv is False else call.out("dv", 1256, dv, v_v[2], v_q[1])
    dweight = None if dweight is False else call.out("dweight", 1352, dweight, v_weight[2], 1)
    if query_max:
        call.scalar("q", 1448, query_max, "query_max")
    if key_max:
        call.scalar("q", 1456, key_max, "key_max")
    if history:
        call.scalar("q", 1464, history, "history")
    if scale:
        call.scalar("f", 1472, scale, "scale")
    if causal:
        call.scalar("i", 1476, causal, "causal")
    if nondeterministic:
        call.scalar("i", 1480, nondeterministic, "nondeterministic")
    return call.run(dq, dk, dv, dweight)


def trace_forward(ctx_or_q=None, /, q=None, k=None, *, ctx=None, selected=None, score=None, o=None,
                  lse=None, lse_dense=None, edge_score=None, edge_max=None, edge_mass=None,
                  edge_value=None, edge=None, edge_weight=None, edge_count=None, v=None,
                  keep_row=None, block_mask=None, key_len=None, page_table=None, cache_row=None,
                  edge_offset=None, e=None, cap=None, keep=0, scale=0.0, block_rows=0, block_keys=0,
                  layer=0, edge_kind=0, exact=0, causal=0):
    """Selection, attention over what was selected, edges: each output is optional, absent = not
    computed.  No workspace of s * t: at most linear in n * keep and in s.

    Limits: d and e are 1 .. 576, keep 1 .. 256.  Every valid call has a kernel on the host and a
    portable one on CUDA.  The stages of a call ask for more to run on tensor cores, each for
    itself:
      all              sm_90; f16 or bf16; d a multiple of 8 up to 256; rows of q, k contiguous and
                       16-byte aligned
      selection        exact = 0
      o, lse           block_rows and block_keys of 64 or 128; e a multiple of 8 up to 256; rows
                       of v and o contiguous and 16-byte aligned
      lse_dense        no block_mask; pages of 64 or more
    Bits: the same every run, whatever else the batch holds, but for the edge list.

    Example
      selected, o = fovea.trace_forward(q, k, v=v, keep=16, selected=True, o=True)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q: (b, s, h, d) f32 f16 bf16
      k: (rows, t, g, d) or paged (pool, page, g, d) as q: page = block_keys

    Outputs on request, by True or an array
      selected: (b, h, n, keep) i32: key blocks in branch order, -1 empty
      score: (b, h, n, keep) f32: their scores, times scale where scale is given; -inf empty
      o: (b, s, h, e) as q or f32: attention over the selected blocks
      lse: (b, h, s) f32: natural log of each row's sum over the selected blocks
      lse_dense: (b, h, s) f32: the same over all valid blocks: a pass over every key
      edge_score: (b, h, n, keep) f32: as score
      edge_max: (b, h, n, keep) f32: the largest x of a valid pair, NaN as -inf; -inf empty
      edge_mass: (b, h, n, keep) f32: sum of p over the pairs; a row block's sum to its rows that
          see a key; 0 empty
      edge_value: (b, h, n, keep, e) f32: sum of p_mt v_t over the pairs; 0 empty
      edge: (cap, 4) i32: layer, head (of the batch: batch * h + head), row block, key block; needs
          edge_count
      edge_weight: (cap) f32: what edge_kind says; needs edge_count
      edge_count: (1) i64: edge_offset plus the records of this call, dropped ones among them; may
          be edge_offset

    Optional inputs
      v: (rows, t, g, e) or paged (pool, page, g, e) as q: o and edge_value need it
      keep_row: (n) i32: blocks to keep for each row block, cut to 0 .. keep; absent: keep
      block_mask: bool (b, h, n, blocks) or broadcastable, or (b, h, n, block_bytes) u8: bit u % 8
          of byte u / 8 is 1 where the row block may see key block u; ceil(key blocks / 8) bytes
      key_len: (r) i32: keys in use, at most t or pages * page
      page_table: (rows, pages) i32: pool page of each key block; -1: absent, its keys are not seen
      cache_row: (r) i32: row of page_table, or of k and v, that a sequence reads; -1 or past the
          last: no keys; absent: its own number
      edge_offset: (1) i64: row of the first record, >= 0; absent: 0

    e, cap: extents of new outputs that no input tells.

    Numbers
      keep: key blocks a row block keeps: 1 .. 256
      scale: of x, > 0; 0: 1 / sqrt(d), and score is the product itself
      block_rows: 16, 32, 64 or 128; 0: 64
      block_keys: 16, 32, 64 or 128; 0: 64
      layer: first word of every edge, >= 0
      edge_kind: "score", "max_logit", "mass"
      exact: 1: scores are chains of fused multiply-adds
      causal: 1: row i sees keys up to i + Lk - s
    """
    if ctx_or_q.__class__ is Context and ctx is None:
        call = Call(ctx_or_q, _trace_forward)
    else:
        call, inputs = _trace_forward.begin(ctx_or_q, ctx, q, k)
        [q, k] = inputs
    v_q = call.put("q", 8, q, 4)
    v_k = call.put("k", 104, k, 4)
    v_v = None
    if v is not None:
        v_v = call.put("v", 200, v, 4)
    if keep_row is not None:
        call.put("keep_row", 296, keep_row)
    if key_len is not None:
        call.put("key_len", 488, key_len)
    v_page_table = None
    if page_table is not None:
        v_page_table = call.put("page_table", 584, page_table, 2)
    if cache_row is not None:
        call.put("cache_row", 680, cache_row)
    if edge_offset is not None:
        call.put("edge_offset", 1928, edge_offset)
    if block_mask is not None:
        call.bits("block_mask", 392, block_mask, (v_q[2][0], v_q[2][2], -(-v_q[2][1] // (block_rows
            or 64))), call.blocks(v_k, v_page_table, block_keys))
    if selected is not None:
        selected = None if selected is False else call.out("selected", 776, selected, (v_q[2][0],
            v_q[2][2], -(-v_q[2][1] // (block_rows or 64)), keep), 8)
    if score is not None:
        score = None if score is False else call.out("score", 872, score, (v_q[2][0], v_q[2][2],
            -(-v_q[2][1] // (block_rows or 64)), keep), 1)
    if o is not None:
        o = None if o is False else call.out("o", 968, o, lambda: (v_q[2][0], v_q[2][1], v_q[2][2],
            call.size("e", e, (v_v, 3, 0))), v_q[1])
    if lse is not None:
        lse = None if lse is False else call.out("lse", 1064, lse, (v_q[2][0], v_q[2][2],
            v_q[2][1]), 1)
    if lse_dense is not None:
        lse_dense = None if lse_dense is False else call.out("lse_dense", 1160, lse_dense,
            (v_q[2][0], v_q[2][2], v_q[2][1]), 1)
    if edge_score is not None:
        edge_score = None if edge_score is False else call.out("edge_score", 1256, edge_score,
            (v_q[2][0], v_q[2][2], -(-v_q[2][1] // (block_rows or 64)), keep), 1)
    if edge_max is not None:
        edge_max = None if edge_max is False else call.out("edge_max", 1352, edge_max, (v_q[2][0],
            v_q[2][2], -(-v_q[2][1] // (block_rows or 64)), keep), 1)
    if edge_mass is not None:
        edge_mass = None if edge_mass is False else call.out("edge_mass", 1448, edge_mass,
            (v_q[2][0], v_q[2][2], -(-v_q[2][1] // (block_rows or 64)), keep), 1)
    if edge_value is not None:
        edge_value = None if edge_value is False else call.out("edge_value", 1544, edge_value,
            lambda: (v_q[2][0], v_q[2][2], -(-v_q[2][1] // (block_rows or 64)), keep, call.size("e",
            e, (v_v, 3, 0))), 1)
    if edge is not None:
        edge = None if edge is False else call.out("edge", 1640, edge, lambda: (call.size("cap",
            cap), 4), 8)
    if edge_weight is not None:
        edge_weight = None if edge_weight is False else call.out("edge_weight", 1736, edge_weight,
            lambda: (call.size("cap", cap),), 1)
    if edge_count is not None:
        edge_count = None if edge_count is False else call.out("edge_count", 1832, edge_count, (1,),
            9)
    if keep:
        call.scalar("q", 2024, keep, "keep")
    if scale:
        call.scalar("f", 2032, scale, "scale")
    if block_rows:
        call.scalar("i", 2036, block_rows, "block_rows")
    if block_keys:
        call.scalar("i", 2040, block_keys, "block_keys")
    if layer:
        call.scalar("i", 2044, layer, "layer")
    if edge_kind:
        call.enum(2048, edge_kind, "edge_kind", EdgeKind)
    if exact:
        call.scalar("i", 2052, exact, "exact")
    if causal:
        call.scalar("i", 2056, causal, "causal")
    return call.run(selected, score, o, lse, lse_dense, edge_score, edge_max, edge_mass, edge_value,
        edge, edge_weight, edge_count)
