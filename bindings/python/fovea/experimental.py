# SPDX-License-Identifier: Apache-2.0
# Written by tools/api.py from include/fovea: edit the headers instead.
"""Operations outside the ABI promise: a release may change or remove them.

C calls them fovea_x_NAME, and the library's sentences x_NAME.

Inputs come first; by keyword outputs, optional inputs, numbers (0: the default).  ctx may be
left out."""
from ._call import Call
from ._core import Context
from ._abi import Accumulate, PFormat, ScaleGroup, Smooth, XBetaMap as BetaMap, XCacheRule as CacheRule, XCode as Code, XCompareMeasure as CompareMeasure, XConv1dActivation as Conv1dActivation, XFeatureMap as FeatureMap, XGate as Gate, XGateMap as GateMap, XKvFormat as KvFormat, XNormGateAct as NormGateAct, XNormGateNorm as NormGateNorm, XPool as Pool, XProbeReduce as ProbeReduce, XProbedKind as ProbedKind, XProjectAct as ProjectAct, XSelectMeasure as SelectMeasure, XSelectNormalise as SelectNormalise, XSelectReduce as SelectReduce, XSelectRule as SelectRule, XSelectScope as SelectScope, XSelectScore as SelectScore
from .ops import (_x_kl_jensen_shannon_forward, _x_kl_jensen_shannon_backward,
                 _x_kl_indexer_forward, _x_kl_indexer_backward, _x_kl_gather_forward,
                 _x_kl_gather_backward, _x_kl_pool_forward, _x_kl_pool_backward,
                 _x_multi_token_forward, _x_multi_token_backward, _x_group_norm_forward,
                 _x_group_norm_backward, _x_norm_gate_forward, _x_norm_gate_backward,
                 _x_sparse_forward, _x_sparse_backward, _x_select_block, _x_pool_forward,
                 _x_pool_backward, _x_probe_forward, _x_combine_forward, _x_combine_backward,
                 _x_compare_forward, _x_cache_step, _x_evict_forward, _x_select_token,
                 _x_select_line, _x_select_heads, _x_indexed_forward, _x_quantised_forward,
                 _x_quant_backward, _x_pooled_forward, _x_probed_forward, _x_flex_forward,
                 _x_nsa_forward, _x_nsa_backward, _x_infllm_forward, _x_compressed_forward,
                 _x_compressed_backward, _x_project_forward, _x_project_backward, _x_graph_append,
                 _x_select_graph, _x_graph_forward, _x_lsh_append, _x_select_lsh, _x_lsh_forward,
                 _x_conv1d_forward, _x_conv1d_backward, _x_gla_forward, _x_gla_backward,
                 _x_delta_forward, _x_delta_backward, _x_gsa_forward, _x_gsa_backward,
                 _x_tpa_forward, _x_tpa_backward, _x_kv_append, _x_kv_decode)

__all__ = ["kl_jensen_shannon_forward", "kl_jensen_shannon_backward", "kl_indexer_forward",
           "kl_indexer_backward", "kl_gather_forward", "kl_gather_backward", "kl_pool_forward",
           "kl_pool_backward", "multi_token_forward", "multi_token_backward", "group_norm_forward",
           "group_norm_backward", "norm_gate_forward", "norm_gate_backward", "sparse_forward",
           "sparse_backward", "select_block", "pool_forward", "pool_backward", "probe_forward",
           "combine_forward", "combine_backward", "compare_forward", "cache_step", "evict_forward",
           "select_token", "select_line", "select_heads", "indexed_forward", "quantised_forward",
           "quant_backward", "pooled_forward", "probed_forward", "flex_forward", "nsa_forward",
           "nsa_backward", "infllm_forward", "compressed_forward", "compressed_backward",
           "project_forward", "project_backward", "graph_append", "select_graph", "graph_forward",
           "lsh_append", "select_lsh", "lsh_forward", "conv1d_forward", "conv1d_backward",
           "gla_forward", "gla_backward", "delta_forward", "delta_backward", "gsa_forward",
           "gsa_backward", "tpa_forward", "tpa_backward", "kv_append", "kv_decode", "Accumulate",
           "PFormat", "ScaleGroup", "Smooth", "BetaMap", "CacheRule", "Code", "CompareMeasure",
           "Conv1dActivation", "FeatureMap", "Gate", "GateMap", "KvFormat", "NormGateAct",
           "NormGateNorm", "Pool", "ProbeReduce", "ProbedKind", "ProjectAct", "SelectMeasure",
           "SelectNormalise", "SelectReduce", "SelectRule", "SelectScope", "SelectScore"]


def kl_jensen_shannon_forward(ctx_or_q_teacher=None, /, q_teacher=None, k_teacher=None,
                              q_student=None, k_student=None, *, ctx=None, js=None, kl_teacher=None,
                              kl_student=None, lse_teacher=None, lse_student=None, query_start=None,
                              key_start=None, query_len=None, key_len=None, head_window=None,
                              query_max=0, key_max=0, window_left=0, window_right=0, sink_keys=0,
                              scale_teacher=0.0, scale_student=0.0, weight=0.0, causal=0):
    """The Jensen-Shannon divergence of two attention distributions over the same keys, with weight w
    in (0, 1).  P and R are the softmax rows of the teacher's and the student's logits (kl.h):
      M = w P + (1 - w) R
      kl_teacher_i = sum_j P_ij (ln P_ij - ln M_ij),  kl_student_i = sum_j R_ij (ln R_ij - ln M_ij)
      js_i = w kl_teacher_i + (1 - w) kl_student_i
    0 <= js <= -w ln w - (1 - w) ln(1 - w), whatever the logits.

    Limits on tensor cores: as kl_forward and kl_backward.

    Example
      outputs = fovea.experimental.kl_jensen_shannon_forward(q_teacher, k_teacher, q_student,
          k_student, js=True, kl_teacher=True, kl_student=True)
      js, kl_teacher, kl_student = outputs

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q_teacher: (b, s, h, d) f32 f16 bf16
      k_teacher: (key_b, t, g, d) as q_teacher
      q_student: (b, s, h, f) f32 f16 bf16: need not be the teacher's dtype
      k_student: (key_b, t, x, f) as q_student: x divides h

    Outputs on request, by True or an array
      js: (b, h, s) f32: one output at least
      kl_teacher: (b, h, s) f32: for the backward
      kl_student: (b, h, s) f32: for the backward
      lse_teacher: (b, h, s) f32: for the backward
      lse_student: (b, h, s) f32: for the backward

    Optional inputs
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
      weight: w, the teacher's share of M, between 0 and 1; 0: 0.5
      causal: 1: window_right = 1
    """
    if ctx_or_q_teacher.__class__ is Context and ctx is None:
        call = Call(ctx_or_q_teacher, _x_kl_jensen_shannon_forward)
    else:
        call, inputs = _x_kl_jensen_shannon_forward.begin(ctx_or_q_teacher, ctx, q_teacher,
            k_teacher, q_student, k_student)
        [q_teacher, k_teacher, q_student, k_student] = inputs
    v_q_teacher = call.put("q_teacher", 8, q_teacher, 4)
    call.put("k_teacher", 104, k_teacher)
    call.put("q_student", 200, q_student)
    call.put("k_student", 296, k_student)
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
    if js is not None:
        js = None if js is False else call.out("js", 392, js, (v_q_teacher[2][0], v_q_teacher[2][2],
            v_q_teacher[2][1]), 1)
    if kl_teacher is not None:
        kl_teacher = None if kl_teacher is False else call.out("kl_teacher", 488, kl_teacher,
            (v_q_teacher[2][0], v_q_teacher[2][2], v_q_teacher[2][1]), 1)
    if kl_student is not None:
        kl_student = None if kl_student is False else call.out("kl_student", 584, kl_student,
            (v_q_teacher[2][0], v_q_teacher[2][2], v_q_teacher[2][1]), 1)
    if lse_teacher is not None:
        lse_teacher = None if lse_teacher is False else call.out("lse_teacher", 680, lse_teacher,
            (v_q_teacher[2][0], v_q_teacher[2][2], v_q_teacher[2][1]), 1)
    if lse_student is not None:
        lse_student = None if lse_student is False else call.out("lse_student", 776, lse_student,
            (v_q_teacher[2][0], v_q_teacher[2][2], v_q_teacher[2][1]), 1)
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
    if weight:
        call.scalar("f", 1400, weight, "weight")
    if causal:
        call.scalar("i", 1404, causal, "causal")
    return call.run(js, kl_teacher, kl_student, lse_teacher, lse_student)


def kl_jensen_shannon_backward(ctx_or_q_teacher=None, /, q_teacher=None, k_teacher=None,
                               q_student=None, k_student=None, kl_teacher=None, kl_student=None,
                               lse_teacher=None, lse_student=None, djs=None, *, ctx=None,
                               dq_student=None, dk_student=None, dq_teacher=None, dk_teacher=None,
                               query_start=None, key_start=None, query_len=None, key_len=None,
                               head_window=None, query_max=0, key_max=0, window_left=0,
                               window_right=0, sink_keys=0, scale_teacher=0.0, scale_student=0.0,
                               weight=0.0, causal=0):
    """Gradients of x_kl_jensen_shannon_forward.  The fields it shares say what the forward was.  Each
    output is optional: absent = not computed.  With a, b the logits of teacher and student:
      da_ij = djs_i w P_ij (ln P_ij - ln M_ij - kl_teacher_i)
      db_ij = djs_i (1 - w) R_ij (ln R_ij - ln M_ij - kl_student_i)
      dq_i = scale sum_j da_ij k_j,  dk_j = scale sum_i da_ij q_i,  and so with db

    Example
      outputs = fovea.experimental.kl_jensen_shannon_backward(q_teacher, k_teacher, q_student,
          k_student, kl_teacher, kl_student, lse_teacher, lse_student, djs)
      dq_student, dk_student, dq_teacher, dk_teacher = outputs

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q_teacher: (b, s, h, d) f32 f16 bf16
      k_teacher: (key_b, t, g, d) as q_teacher
      q_student: (b, s, h, f) f32 f16 bf16
      k_student: (key_b, t, x, f) as q_student
      kl_teacher: (b, h, s) f32: of the forward
      kl_student: (b, h, s) f32: of the forward
      lse_teacher: (b, h, s) f32: of the forward
      lse_student: (b, h, s) f32: of the forward
      djs: (b, h, s) f32: the gradient of js

    Outputs, new unless passed or False
      dq_student: (b, s, h, f) as q_student
      dk_student: (key_b, t, x, f) as q_student
      dq_teacher: (b, s, h, d) as q_teacher
      dk_teacher: (key_b, t, g, d) as q_teacher

    Optional inputs
      query_start: (r+1) i32: as in the forward, and so for the fields below
      key_start: (r+1) i32
      query_len: (r) i32
      key_len: (r) i32
      head_window: (h, 3) i32

    Numbers
      query_max: as in the forward, and so for the fields below
      key_max: 0: t
      window_left: 0: all
      window_right: 0: all
      sink_keys: 0: none
      scale_teacher: 0: 1 / sqrt(d)
      scale_student: 0: 1 / sqrt(f)
      weight: 0: 0.5
      causal: 1: window_right = 1
    """
    if ctx_or_q_teacher.__class__ is Context and ctx is None:
        call = Call(ctx_or_q_teacher, _x_kl_jensen_shannon_backward)
    else:
        call, inputs = _x_kl_jensen_shannon_backward.begin(ctx_or_q_teacher, ctx, q_teacher,
            k_teacher, q_student, k_student, kl_teacher, kl_student, lse_teacher, lse_student, djs)
        [q_teacher, k_teacher, q_student, k_student, kl_teacher, kl_student, lse_teacher,
            lse_student, djs] = inputs
    v_q_teacher = call.put("q_teacher", 8, q_teacher, 4)
    v_k_teacher = call.put("k_teacher", 104, k_teacher, 4)
    v_q_student = call.put("q_student", 200, q_student, 4)
    v_k_student = call.put("k_student", 296, k_student, 4)
    if query_start is not None:
        call.put("query_start", 392, query_start)
    if key_start is not None:
        call.put("key_start", 488, key_start)
    if query_len is not None:
        call.put("query_len", 584, query_len)
    if key_len is not None:
        call.put("key_len", 680, key_len)
    if head_window is not None:
        call.put("head_window", 776, head_window)
    call.put("kl_teacher", 872, kl_teacher)
    call.put("kl_student", 968, kl_student)
    call.put("lse_teacher", 1064, lse_teacher)
    call.put("lse_student", 1160, lse_student)
    call.put("djs", 1256, djs)
    dq_student = None if dq_student is False else call.out("dq_student", 1352, dq_student,
        v_q_student[2], v_q_student[1])
    dk_student = None if dk_student is False else call.out("dk_student", 1448, dk_student,
        v_k_student[2], v_q_student[1])
    dq_teacher = None if dq_teacher is False else call.out("dq_teacher", 1544, dq_teacher,
        v_q_teacher[2], v_q_teacher[1])
    dk_teacher = None if dk_teacher is False else call.out("dk_teacher", 1640, dk_teacher,
        v_k_teacher[2], v_q_teacher[1])
    if query_max:
        call.scalar("q", 1736, query_max, "query_max")
    if key_max:
        call.scalar("q", 1744, key_max, "key_max")
    if window_left:
        call.scalar("q", 1752, window_left, "window_left")
    if window_right:
        call.scalar("q", 1760, window_right, "window_right")
    if sink_keys:
        call.scalar("q", 1768, sink_keys, "sink_keys")
    if scale_teacher:
        call.scalar("f", 1776, scale_teacher, "scale_teacher")
    if scale_student:
        call.scalar("f", 1780, scale_student, "scale_student")
    if weight:
        call.scalar("f", 1784, weight, "weight")
    if causal:
        call.scalar("i", 1788, causal, "causal")
    return call.run(dq_student, dk_student, dq_teacher, dk_teacher)


def kl_indexer_forward(ctx_or_q_teacher=None, /, q_teacher=None, k_teacher=None, q_student=None,
                       k_student=None, weight=None, *, ctx=None, kl=None, lse_teacher=None,
                       lse_student=None, query_start=None, key_start=None, query_len=None,
                       key_len=None, query_max=0, key_max=0, window_left=0, window_right=0,
                       sink_keys=0, scale_teacher=0.0, causal=0):
    """The divergence of attention summed over its heads from the scores of a sparse-attention indexer
    (DeepSeek).  It is one distribution a row, whose logits are a weighed sum of rectified products.
    With p^m the softmax row of teacher head m (kl.h), over heads m = 1 .. h and indexer heads n = 1
    ..  x:
      P_ij = 1/h sum_m p^m_ij
      b_ij = sum_n weight_in max(<q_student_in, k_student_j>, 0),  R_i = softmax(b_i)
      kl_i = sum_j P_ij (ln P_ij - ln R_ij)
    A scale of the student is part of weight.  All heads see the same keys.

    Limits on tensor cores: d and f up to 256 on sm_80 and later.  On Hopper's own also no sink_keys
    and d and f up to 128.

    Example
      outputs = fovea.experimental.kl_indexer_forward(q_teacher, k_teacher, q_student, k_student,
          weight, kl=True, lse_teacher=True, lse_student=True)
      kl, lse_teacher, lse_student = outputs

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q_teacher: (b, s, h, d) f32 f16 bf16
      k_teacher: (key_b, t, g, d) as q_teacher
      q_student: (b, s, x, f) f32 f16 bf16: need not be the teacher's dtype; any number of heads x
      k_student: (key_b, t, 1, f) as q_student: one key head for all x
      weight: (b, s, x) f32

    Outputs on request, by True or an array
      kl: (b, s) f32: one output at least
      lse_teacher: (b, h, s) f32: of each head, for the backward
      lse_student: (b, s) f32: for the backward

    Optional inputs
      query_start: (r+1) i32: first packed row of each sequence, ascending from 0; then b = 1
      key_start: (r+1) i32: first packed key of each sequence
      query_len: (r) i32: rows in use, at most s or the packed extent
      key_len: (r) i32: keys in use, at most t or the packed extent

    Numbers
      query_max: longest sequence of rows, bounds the grid; 0: s
      key_max: longest sequence of keys; 0: t
      window_left: keys seen to the left, the row's own position counted; 0: all
      window_right: keys seen to the right, the row's own position counted; 0: all, 1: none after
          itself
      sink_keys: keys at positions below this stay visible through window_left
      scale_teacher: > 0; 0: 1 / sqrt(d)
      causal: 1: window_right = 1
    """
    if ctx_or_q_teacher.__class__ is Context and ctx is None:
        call = Call(ctx_or_q_teacher, _x_kl_indexer_forward)
    else:
        call, inputs = _x_kl_indexer_forward.begin(ctx_or_q_teacher, ctx, q_teacher, k_teacher,
            q_student, k_student, weight)
        [q_teacher, k_teacher, q_student, k_student, weight] = inputs
    v_q_teacher = call.put("q_teacher", 8, q_teacher, 4)
    call.put("k_teacher", 104, k_teacher)
    call.put("q_student", 200, q_student)
    call.put("k_student", 296, k_student)
    call.put("weight", 392, weight)
    if query_start is not None:
        call.put("query_start", 776, query_start)
    if key_start is not None:
        call.put("key_start", 872, key_start)
    if query_len is not None:
        call.put("query_len", 968, query_len)
    if key_len is not None:
        call.put("key_len", 1064, key_len)
    if kl is not None:
        kl = None if kl is False else call.out("kl", 488, kl, (v_q_teacher[2][0],
            v_q_teacher[2][1]), 1)
    if lse_teacher is not None:
        lse_teacher = None if lse_teacher is False else call.out("lse_teacher", 584, lse_teacher,
            (v_q_teacher[2][0], v_q_teacher[2][2], v_q_teacher[2][1]), 1)
    if lse_student is not None:
        lse_student = None if lse_student is False else call.out("lse_student", 680, lse_student,
            (v_q_teacher[2][0], v_q_teacher[2][1]), 1)
    if query_max:
        call.scalar("q", 1160, query_max, "query_max")
    if key_max:
        call.scalar("q", 1168, key_max, "key_max")
    if window_left:
        call.scalar("q", 1176, window_left, "window_left")
    if window_right:
        call.scalar("q", 1184, window_right, "window_right")
    if sink_keys:
        call.scalar("q", 1192, sink_keys, "sink_keys")
    if scale_teacher:
        call.scalar("f", 1200, scale_teacher, "scale_teacher")
    if causal:
        call.scalar("i", 1204, causal, "causal")
    return call.run(kl, lse_teacher, lse_student)


def kl_indexer_backward(ctx_or_q_teacher=None, /, q_teacher=None, k_teacher=None, q_student=None,
                        k_student=None, weight=None, lse_teacher=None, lse_student=None, dkl=None,
                        *, ctx=None, dq_student=None, dk_student=None, dweight=None,
                        query_start=None, key_start=None, query_len=None, key_len=None, query_max=0,
                        key_max=0, window_left=0, window_right=0, sink_keys=0, scale_teacher=0.0,
                        causal=0):
    """Gradients of x_kl_indexer_forward by the indexer's inputs; the teacher has none.  The fields it
    shares say what the forward was.  Each output is optional: absent = not computed.  With z_inj =
    <q_student_in, k_student_j> and u = 1 where z > 0, else 0:
      db_ij = dkl_i (R_ij - P_ij)
      dweight_in = sum_j db_ij max(z_inj, 0)
      dq_in = sum_j db_ij weight_in u_inj k_j,  dk_j = sum_in db_ij weight_in u_inj q_in
    Other than above, a NaN or an infinity in an input may make NaN of every gradient of its
    sequence.  That holds also where dkl of its row is 0.

    Example
      outputs = fovea.experimental.kl_indexer_backward(q_teacher, k_teacher, q_student, k_student,
          weight, lse_teacher, lse_student, dkl)
      dq_student, dk_student, dweight = outputs

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q_teacher: (b, s, h, d) f32 f16 bf16
      k_teacher: (key_b, t, g, d) as q_teacher
      q_student: (b, s, x, f) f32 f16 bf16
      k_student: (key_b, t, 1, f) as q_student
      weight: (b, s, x) f32
      lse_teacher: (b, h, s) f32: of the forward
      lse_student: (b, s) f32: of the forward
      dkl: (b, s) f32: the gradient of kl

    Outputs, new unless passed or False
      dq_student: (b, s, x, f) as q_student
      dk_student: (key_b, t, 1, f) as q_student
      dweight: (b, s, x) f32

    Optional inputs
      query_start: (r+1) i32: as in the forward, and so for the fields below
      key_start: (r+1) i32
      query_len: (r) i32
      key_len: (r) i32

    Numbers
      query_max: as in the forward, and so for the fields below
      key_max: 0: t
      window_left: 0: all
      window_right: 0: all
      sink_keys: 0: none
      scale_teacher: 0: 1 / sqrt(d)
      causal: 1: window_right = 1
    """
    if ctx_or_q_teacher.__class__ is Context and ctx is None:
        call = Call(ctx_or_q_teacher, _x_kl_indexer_backward)
    else:
        call, inputs = _x_kl_indexer_backward.begin(ctx_or_q_teacher, ctx, q_teacher, k_teacher,
            q_student, k_student, weight, lse_teacher, lse_student, dkl)
        [q_teacher, k_teacher, q_student, k_student, weight, lse_teacher, lse_student, dkl] = inputs
    call.put("q_teacher", 8, q_teacher)
    call.put("k_teacher", 104, k_teacher)
    v_q_student = call.put("q_student", 200, q_student, 4)
    v_k_student = call.put("k_student", 296, k_student, 4)
    v_weight = call.put("weight", 392, weight, 3)
    if query_start is not None:
        call.put("query_start", 488, query_start)
    if key_start is not None:
        call.put("key_start", 584, key_start)
    if query_len is not None:
        call.put("query_len", 680, query_len)
    if key_len is not None:
        call.put("key_len", 776, key_len)
    call.put("lse_teacher", 872, lse_teacher)
    call.put("lse_student", 968, lse_student)
    call.put("dkl", 1064, dkl)
    dq_student = None if dq_student is False else call.out("dq_student", 1160, dq_student,
        v_q_student[2], v_q_student[1])
    dk_student = None if dk_student is False else call.out("dk_student", 1256, dk_student,
        v_k_student[2], v_q_student[1])
    dweight = None if dweight is False else call.out("dweight", 1352, dweight, v_weight[2], 1)
    if query_max:
        call.scalar("q", 1448, query_max, "query_max")
    if key_max:
        call.scalar("q", 1456, key_max, "key_max")
    if window_left:
        call.scalar("q", 1464, window_left, "window_left")
    if window_right:
        call.scalar("q", 1472, window_right, "window_right")
    if sink_keys:
        call.scalar("q", 1480, sink_keys, "sink_keys")
    if scale_teacher:
        call.scalar("f", 1488, scale_teacher, "scale_teacher")
    if causal:
        call.scalar("i", 1492, causal, "causal")
    return call.run(dq_student, dk_student, dweight)


def kl_gather_forward(ctx_or_q_teacher=None, /, q_teacher=None, k_teacher=None, q_student=None,
                      k_student=None, index=None, *, ctx=None, kl=None, lse_teacher=None,
                      lse_student=None, query_start=None, key_start=None, query_len=None,
                      key_len=None, query_max=0, key_max=0, scale_teacher=0.0, scale_student=0.0):
    """KL divergence over chosen keys: each row sees the keys that its list names and no others.
      kl_i = sum_n P_in (ln P_in - ln R_in),  n over the list's entries that name a key
    with P, R the softmax rows of the teacher's and the student's logits (kl.h) over these entries.
    An entry is a key's number within its sequence; one that is negative, or no key of the sequence,
    is none.  A key that stands twice counts twice.  Work is that of the lists, not of s * t.

    Limits on tensor cores, sm_80 and later: d and f up to 128; 4 heads or more that share a list,
    and one key head.

    Example
      outputs = fovea.experimental.kl_gather_forward(q_teacher, k_teacher, q_student, k_student,
          index, kl=True, lse_teacher=True, lse_student=True)
      kl, lse_teacher, lse_student = outputs

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q_teacher: (b, s, h, d) f32 f16 bf16
      k_teacher: (key_b, t, g, d) as q_teacher
      q_student: (b, s, h, f) f32 f16 bf16: need not be the teacher's dtype
      k_student: (key_b, t, x, f) as q_student: x divides h
      index: (b, h, s, n) i32: stride 0 over h shares a list among heads

    Outputs on request, by True or an array
      kl: (b, h, s) f32: one output at least
      lse_teacher: (b, h, s) f32: for the backward
      lse_student: (b, h, s) f32: for the backward

    Optional inputs
      query_start: (r+1) i32: first packed row of each sequence, ascending from 0; then b = 1
      key_start: (r+1) i32: first packed key of each sequence
      query_len: (r) i32: rows in use, at most s or the packed extent
      key_len: (r) i32: keys in use, at most t or the packed extent

    Numbers
      query_max: longest sequence of rows, bounds the grid; 0: s
      key_max: longest sequence of keys; 0: t
      scale_teacher: > 0; 0: 1 / sqrt(d)
      scale_student: > 0; 0: 1 / sqrt(f)
    """
    if ctx_or_q_teacher.__class__ is Context and ctx is None:
        call = Call(ctx_or_q_teacher, _x_kl_gather_forward)
    else:
        call, inputs = _x_kl_gather_forward.begin(ctx_or_q_teacher, ctx, q_teacher, k_teacher,
            q_student, k_student, index)
        [q_teacher, k_teacher, q_student, k_student, index] = inputs
    v_q_teacher = call.put("q_teacher", 8, q_teacher, 4)
    call.put("k_teacher", 104, k_teacher)
    call.put("q_student", 200, q_student)
    call.put("k_student", 296, k_student)
    call.put("index", 392, index)
    if query_start is not None:
        call.put("query_start", 776, query_start)
    if key_start is not None:
        call.put("key_start", 872, key_start)
    if query_len is not None:
        call.put("query_len", 968, query_len)
    if key_len is not None:
        call.put("key_len", 1064, key_len)
    if kl is not None:
        kl = None if kl is False else call.out("kl", 488, kl, (v_q_teacher[2][0], v_q_teacher[2][2],
            v_q_teacher[2][1]), 1)
    if lse_teacher is not None:
        lse_teacher = None if lse_teacher is False else call.out("lse_teacher", 584, lse_teacher,
            (v_q_teacher[2][0], v_q_teacher[2][2], v_q_teacher[2][1]), 1)
    if lse_student is not None:
        lse_student = None if lse_student is False else call.out("lse_student", 680, lse_student,
            (v_q_teacher[2][0], v_q_teacher[2][2], v_q_teacher[2][1]), 1)
    if query_max:
        call.scalar("q", 1160, query_max, "query_max")
    if key_max:
        call.scalar("q", 1168, key_max, "key_max")
    if scale_teacher:
        call.scalar("f", 1176, scale_teacher, "scale_teacher")
    if scale_student:
        call.scalar("f", 1180, scale_student, "scale_student")
    return call.run(kl, lse_teacher, lse_student)


def kl_gather_backward(ctx_or_q_teacher=None, /, q_teacher=None, k_teacher=None, q_student=None,
                       k_student=None, index=None, kl=None, lse_teacher=None, lse_student=None,
                       dkl=None, *, ctx=None, dq_student=None, dk_student=None, dq_teacher=None,
                       dk_teacher=None, query_start=None, key_start=None, query_len=None,
                       key_len=None, query_max=0, key_max=0, scale_teacher=0.0, scale_student=0.0):
    """Gradients of x_kl_gather_forward.  The fields it shares say what the forward was.  Each output
    is optional: absent = not computed.  With a, b the logits of teacher and student:
      db_in = dkl_i (R_in - P_in),  da_in = dkl_i P_in (ln P_in - ln R_in - kl_i)
      dq_i = scale sum_n db_in k_n,  dk_j = scale sum db_in q_i over the entries that name j
    and the same with da for the teacher.  Other than above, a NaN or an infinity in a q may make
    NaN of dk of every key of its sequence.  That holds also where dkl of its row is 0.

    Example
      outputs = fovea.experimental.kl_gather_backward(q_teacher, k_teacher, q_student, k_student,
          index, kl, lse_teacher, lse_student, dkl)
      dq_student, dk_student, dq_teacher, dk_teacher = outputs

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q_teacher: (b, s, h, d) f32 f16 bf16
      k_teacher: (key_b, t, g, d) as q_teacher
      q_student: (b, s, h, f) f32 f16 bf16
      k_student: (key_b, t, x, f) as q_student
      index: (b, h, s, n) i32
      kl: (b, h, s) f32: of the forward
      lse_teacher: (b, h, s) f32: of the forward
      lse_student: (b, h, s) f32: of the forward
      dkl: (b, h, s) f32: the gradient of kl

    Outputs, new unless passed or False
      dq_student: (b, s, h, f) as q_student
      dk_student: (key_b, t, x, f) as q_student
      dq_teacher: (b, s, h, d) as q_teacher
      dk_teacher: (key_b, t, g, d) as q_teacher

    Optional inputs
      query_start: (r+1) i32: as in the forward, and so for the fields below
      key_start: (r+1) i32
      query_len: (r) i32
      key_len: (r) i32

    Numbers
      query_max: as in the forward, and so for the fields below
      key_max: 0: t
      scale_teacher: 0: 1 / sqrt(d)
      scale_student: 0: 1 / sqrt(f)
    """
    if ctx_or_q_teacher.__class__ is Context and ctx is None:
        call = Call(ctx_or_q_teacher, _x_kl_gather_backward)
    else:
        call, inputs = _x_kl_gather_backward.begin(ctx_or_q_teacher, ctx, q_teacher, k_teacher,
            q_student, k_student, index, kl, lse_teacher, lse_student, dkl)
        [q_teacher, k_teacher, q_student, k_student, index, kl, lse_teacher, lse_student,
            dkl] = inputs
    v_q_teacher = call.put("q_teacher", 8, q_teacher, 4)
    v_k_teacher = call.put("k_teacher", 104, k_teacher, 4)
    v_q_student = call.put("q_student", 200, q_student, 4)
    v_k_student = call.put("k_student", 296, k_student, 4)
    call.put("index", 392, index)
    if query_start is not None:
        call.put("query_start", 488, query_start)
    if key_start is not None:
        call.put("key_start", 584, key_start)
    if query_len is not None:
        call.put("query_len", 680, query_len)
    if key_len is not None:
        call.put("key_len", 776, key_len)
    call.put("kl", 872, kl)
    call.put("lse_teacher", 968, lse_teacher)
    call.put("lse_student", 1064, lse_student)
    call.put("dkl", 1160, dkl)
    dq_student = None if dq_student is False else call.out("dq_student", 1256, dq_student,
        v_q_student[2], v_q_student[1])
    dk_student = None if dk_student is False else call.out("dk_student", 1352, dk_student,
        v_k_student[2], v_q_student[1])
    dq_teacher = None if dq_teacher is False else call.out("dq_teacher", 1448, dq_teacher,
        v_q_teacher[2], v_q_teacher[1])
    dk_teacher = None if dk_teacher is False else call.out("dk_teacher", 1544, dk_teacher,
        v_k_teacher[2], v_q_teacher[1])
    if query_max:
        call.scalar("q", 1640, query_max, "query_max")
    if key_max:
        call.scalar("q", 1648, key_max, "key_max")
    if scale_teacher:
        call.scalar("f", 1656, scale_teacher, "scale_teacher")
    if scale_student:
        call.scalar("f", 1660, scale_student, "scale_student")
    return call.run(dq_student, dk_student, dq_teacher, dk_teacher)


def kl_pool_forward(ctx_or_q_teacher=None, /, q_teacher=None, k_teacher=None, q_student=None,
                    k_student=None, *, ctx=None, kl=None, lse_teacher=None, lse_student=None,
                    query_start=None, key_start=None, query_len=None, key_len=None,
                    head_window=None, query_max=0, key_max=0, window_left=0, window_right=0,
                    sink_keys=0, block_keys=0, scale_teacher=0.0, scale_student=0.0, causal=0,
                    pool=0):
    """The divergence of attention pooled over blocks of keys from a gate's block scores
    (SeerAttention).  Block u has keys u * block_keys .. (u + 1) * block_keys - 1 of its sequence; a
    row sees it where it sees one of them.  With p the teacher's softmax row (kl.h) and J_iu the
    keys of u that row i sees:
      S_iu = pool of p_ij over j in J_iu,  P_iu = S_iu / sum_v S_iv
      b_iu = scale_student <q_student_i, k_student_u>,  R_i = softmax(b_i) over the blocks it sees
      kl_i = sum_u P_iu (ln P_iu - ln R_iu)
    Packed keys: sequence i's first block is at key_start[i] / block_keys + i.

    Limits on tensor cores: d and f up to 256 and block_keys a multiple of 64, on sm_80 and later.
    The backward's own of Hopper take block_keys of 64 or 128, d and f up to 128, and no sink_keys
    or head_window.

    Example
      outputs = fovea.experimental.kl_pool_forward(q_teacher, k_teacher, q_student, k_student,
          kl=True, lse_teacher=True, lse_student=True)
      kl, lse_teacher, lse_student = outputs

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q_teacher: (b, s, h, d) f32 f16 bf16
      k_teacher: (key_b, t, g, d) as q_teacher
      q_student: (b, s, h, f) f32 f16 bf16: need not be the teacher's dtype
      k_student: (key_b, u, x, f) as q_student: of each block; u at least t / block_keys rounded up,
          with key_start t / block_keys + r; x divides h

    Outputs on request, by True or an array
      kl: (b, h, s) f32: one output at least
      lse_teacher: (b, h, s) f32: ln sum_u of what pooling makes of exp(logit), for the backward
      lse_student: (b, h, s) f32: for the backward

    Optional inputs
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
      block_keys: keys of a block; 0: 64
      scale_teacher: > 0; 0: 1 / sqrt(d)
      scale_student: > 0; 0: 1 / sqrt(f)
      causal: 1: window_right = 1
      pool: "sum", "max"
    """
    if ctx_or_q_teacher.__class__ is Context and ctx is None:
        call = Call(ctx_or_q_teacher, _x_kl_pool_forward)
    else:
        call, inputs = _x_kl_pool_forward.begin(ctx_or_q_teacher, ctx, q_teacher, k_teacher,
            q_student, k_student)
        [q_teacher, k_teacher, q_student, k_student] = inputs
    v_q_teacher = call.put("q_teacher", 8, q_teacher, 4)
    call.put("k_teacher", 104, k_teacher)
    call.put("q_student", 200, q_student)
    call.put("k_student", 296, k_student)
    if query_start is not None:
        call.put("query_start", 680, query_start)
    if key_start is not None:
        call.put("key_start", 776, key_start)
    if query_len is not None:
        call.put("query_len", 872, query_len)
    if key_len is not None:
        call.put("key_len", 968, key_len)
    if head_window is not None:
        call.put("head_window", 1064, head_window)
    if kl is not None:
        kl = None if kl is False else call.out("kl", 392, kl, (v_q_teacher[2][0], v_q_teacher[2][2],
            v_q_teacher[2][1]), 1)
    if lse_teacher is not None:
        lse_teacher = None if lse_teacher is False else call.out("lse_teacher", 488, lse_teacher,
            (v_q_teacher[2][0], v_q_teacher[2][2], v_q_teacher[2][1]), 1)
    if lse_student is not None:
        lse_student = None if lse_student is False else call.out("lse_student", 584, lse_student,
            (v_q_teacher[2][0], v_q_teacher[2][2], v_q_teacher[2][1]), 1)
    if query_max:
        call.scalar("q", 1160, query_max, "query_max")
    if key_max:
        call.scalar("q", 1168, key_max, "key_max")
    if window_left:
        call.scalar("q", 1176, window_left, "window_left")
    if window_right:
        call.scalar("q", 1184, window_right, "window_right")
    if sink_keys:
        call.scalar("q", 1192, sink_keys, "sink_keys")
    if block_keys:
        call.scalar("q", 1200, block_keys, "block_keys")
    if scale_teacher:
        call.scalar("f", 1208, scale_teacher, "scale_teacher")
    if scale_student:
        call.scalar("f", 1212, scale_student, "scale_student")
    if causal:
        call.scalar("i", 1216, causal, "causal")
    if pool:
        call.enum(1220, pool, "pool", Pool)
    return call.run(kl, lse_teacher, lse_student)


def kl_pool_backward(ctx_or_q_teacher=None, /, q_teacher=None, k_teacher=None, q_student=None,
                     k_student=None, lse_teacher=None, lse_student=None, dkl=None, *, ctx=None,
                     dq_student=None, dk_student=None, query_start=None, key_start=None,
                     query_len=None, key_len=None, head_window=None, query_max=0, key_max=0,
                     window_left=0, window_right=0, sink_keys=0, block_keys=0, scale_teacher=0.0,
                     scale_student=0.0, causal=0, pool=0):
    """Gradients of x_kl_pool_forward by the student's inputs; the teacher has none.  The fields it
    shares say what the forward was.  Each output is optional: absent = not computed.
      db_iu = dkl_i (R_iu - P_iu)
      dq_i = scale_student sum_u db_iu k_u,  dk_u = scale_student sum_i db_iu q_i

    Example
      outputs = fovea.experimental.kl_pool_backward(q_teacher, k_teacher, q_student, k_student,
          lse_teacher, lse_student, dkl)
      dq_student, dk_student = outputs

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q_teacher: (b, s, h, d) f32 f16 bf16
      k_teacher: (key_b, t, g, d) as q_teacher
      q_student: (b, s, h, f) f32 f16 bf16
      k_student: (key_b, u, x, f) as q_student
      lse_teacher: (b, h, s) f32: of the forward
      lse_student: (b, h, s) f32: of the forward
      dkl: (b, h, s) f32: the gradient of kl

    Outputs, new unless passed or False
      dq_student: (b, s, h, f) as q_student
      dk_student: (key_b, u, x, f) as q_student

    Optional inputs
      query_start: (r+1) i32: as in the forward, and so for the fields below
      key_start: (r+1) i32
      query_len: (r) i32
      key_len: (r) i32
      head_window: (h, 3) i32

    Numbers
      query_max: as in the forward, and so for the fields below
      key_max: 0: t
      window_left: 0: all
      window_right: 0: all
      sink_keys: 0: none
      block_keys: 0: 64
      scale_teacher: 0: 1 / sqrt(d)
      scale_student: 0: 1 / sqrt(f)
      causal: 1: window_right = 1
      pool: "sum", "max"
    """
    if ctx_or_q_teacher.__class__ is Context and ctx is None:
        call = Call(ctx_or_q_teacher, _x_kl_pool_backward)
    else:
        call, inputs = _x_kl_pool_backward.begin(ctx_or_q_teacher, ctx, q_teacher, k_teacher,
            q_student, k_student, lse_teacher, lse_student, dkl)
        [q_teacher, k_teacher, q_student, k_student, lse_teacher, lse_student, dkl] = inputs
    call.put("q_teacher", 8, q_teacher)
    call.put("k_teacher", 104, k_teacher)
    v_q_student = call.put("q_student", 200, q_student, 4)
    v_k_student = call.put("k_student", 296, k_student, 4)
    if query_start is not None:
        call.put("query_start", 392, query_start)
    if key_start is not None:
        call.put("key_start", 488, key_start)
    if query_len is not None:
        call.put("query_len", 584, query_len)
    if key_len is not None:
        call.put("key_len", 680, key_len)
    if head_window is not None:
        call.put("head_window", 776, head_window)
    call.put("lse_teacher", 872, lse_teacher)
    call.put("lse_student", 968, lse_student)
    call.put("dkl", 1064, dkl)
    dq_student = None if dq_student is False else call.out("dq_student", 1160, dq_student,
        v_q_student[2], v_q_student[1])
    dk_student = None if dk_student is False else call.out("dk_student", 1256, dk_student,
        v_k_student[2], v_q_student[1])
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
    if block_keys:
        call.scalar("q", 1392, block_keys, "block_keys")
    if scale_teacher:
        call.scalar("f", 1400, scale_teacher, "scale_teacher")
    if scale_student:
        call.scalar("f", 1404, scale_student, "scale_student")
    if causal:
        call.scalar("i", 1408, causal, "causal")
    if pool:
        call.enum(1412, pool, "pool", Pool)
    return call.run(dq_student, dk_student)


def multi_token_forward(ctx_or_q=None, /, q=None, k=None, v=None, weight=None, *, ctx=None, o=None,
                        lse=None, mix_before=None, mix_after=None, query_start=None, key_start=None,
                        query_len=None, key_len=None, page_table=None, cache_row=None, query_max=0,
                        key_max=0, history=0, scale=0.0, causal=0):
    """Convolutional attention with mixed heads; prefill, decode over contiguous or paged caches.

    Example
      o = fovea.experimental.multi_token_forward(q, k, v, weight)

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
      lse: (b, h, rows_out) f32: of B, before mix_after; for the backward

    Optional inputs
      mix_before: (h, group_heads) f32: 1 .. 16 heads a group, a divisor of h
      mix_after: (h, group_heads) f32: the same groups
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
    """
    if ctx_or_q.__class__ is Context and ctx is None:
        call = Call(ctx_or_q, _x_multi_token_forward)
    else:
        call, inputs = _x_multi_token_forward.begin(ctx_or_q, ctx, q, k, v, weight)
        [q, k, v, weight] = inputs
    v_q = call.put("q", 8, q, 4)
    call.put("k", 104, k)
    v_v = call.put("v", 200, v, 4)
    call.put("weight", 296, weight)
    if mix_before is not None:
        call.put("mix_before", 392, mix_before)
    if mix_after is not None:
        call.put("mix_after", 488, mix_after)
    v_query_start = None
    if query_start is not None:
        v_query_start = call.put("query_start", 776, query_start, 1)
    if key_start is not None:
        call.put("key_start", 872, key_start)
    if query_len is not None:
        call.put("query_len", 968, query_len)
    if key_len is not None:
        call.put("key_len", 1064, key_len)
    if page_table is not None:
        call.put("page_table", 1160, page_table)
    if cache_row is not None:
        call.put("cache_row", 1256, cache_row)
    o = call.out("o", 584, o, lambda: (v_q[2][0], v_q[2][1] - history *
        call.sequences(v_query_start), v_q[2][2], v_v[2][3]), v_q[1])
    if lse is not None:
        lse = None if lse is False else call.out("lse", 680, lse, lambda: (v_q[2][0], v_q[2][2],
            v_q[2][1] - history * call.sequences(v_query_start)), 1)
    if query_max:
        call.scalar("q", 1352, query_max, "query_max")
    if key_max:
        call.scalar("q", 1360, key_max, "key_max")
    if history:
        call.scalar("q", 1368, history, "history")
    if scale:
        call.scalar("f", 1376, scale, "scale")
    if causal:
        call.scalar("i", 1380, causal, "causal")
    return call.run(o, lse)


def multi_token_backward(ctx_or_q=None, /, q=None, k=None, v=None, weight=None, lse=None, dout=None,
                         *, ctx=None, dq=None, dk=None, dv=None, dweight=None, dmix_before=None,
                         dmix_after=None, mix_before=None, mix_after=None, query_start=None,
                         key_start=None, query_len=None, key_len=None, query_max=0, key_max=0,
                         history=0, scale=0.0, causal=0):
    """Gradients of x_multi_token_forward from dout.  The fields it shares say what the forward was.
    Each output is optional: absent = not computed.  Every element of an output is written: rows and
    keys past their lengths get 0.  With base and n as above:
      dR^a_ij = <dout^a_i, v^a_j>,  X^an_i = sum_j dR^a_ij P^(base + n)_ij
      dP^(base + n) = sum_a mix_after[a, n] dR^a,  delta^(base + n)_i = sum_a mix_after[a, n] X^an_i
      dmix_after[a, n] = sum_i X^an_i,  dB_ij = P_ij (dP_ij - delta_i)
      dmix_before[a, n] = sum_ij dB^a_ij A^(base + n)_ij
      dA^(base + n) = sum_a mix_before[a, n] dB^a
    and dweight, dS, dq, dk from dA as in conv_attention.h, dv_j = sum_i R_ij dout_i.

    Example
      dq, dk, dv, dweight = fovea.experimental.multi_token_backward(q, k, v, weight, lse, dout)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q: (b, s, h, d) f32 f16 bf16
      k: (key_b, t, g, d) as q
      v: (key_b, t, g, e) as q
      weight: (h, kernel_rows, kernel_columns) as q or f32
      lse: (b, h, rows_out) f32: of the forward
      dout: (b, rows_out, h, e) as q or f32: the gradient of o

    Outputs, new unless passed or False
      dq: (b, s, h, d) as q: rows of history have theirs too
      dk: (key_b, t, g, d) as q
      dv: (key_b, t, g, e) as q
      dweight: (h, kernel_rows, kernel_columns) f32: a stride of 0 receives the ordered sum over
          that dimension

    Outputs on request, by True or an array
      dmix_before: (h, group_heads) f32: with mix_before, as dweight
      dmix_after: (h, group_heads) f32: with mix_after, as dweight

    Optional inputs
      mix_before: (h, group_heads) f32
      mix_after: (h, group_heads) f32
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
    """
    if ctx_or_q.__class__ is Context and ctx is None:
        call = Call(ctx_or_q, _x_multi_token_backward)
    else:
        call, inputs = _x_multi_token_backward.begin(ctx_or_q, ctx, q, k, v, weight, lse, dout)
        [q, k, v, weight, lse, dout] = inputs
    v_q = call.put("q", 8, q, 4)
    v_k = call.put("k", 104, k, 4)
    v_v = call.put("v", 200, v, 4)
    v_weight = call.put("weight", 296, weight, 3)
    v_mix_before = None
    if mix_before is not None:
        v_mix_before = call.put("mix_before", 392, mix_before, 2)
    v_mix_after = None
    if mix_after is not None:
        v_mix_after = call.put("mix_after", 488, mix_after, 2)
    if query_start is not None:
        call.put("query_start", 584, query_start)
    if key_start is not None:
        call.put("key_start", 680, key_start)
    if query_len is not None:
        call.put("query_len", 776, query_len)
    if key_len is not None:
        call.put("key_len", 872, key_len)
    call.put("lse", 968, lse)
    call.put("dout", 1064, dout)
    dq = None if dq is False else call.out("dq", 1160, dq, v_q[2], v_q[1])
    dk = None if dk is False else call.out("dk", 1256, dk, v_k[2], v_q[1])
    dv = None if dv is False else call.out("dv", 1352, dv, v_v[2], v_q[1])
    dweight = None if dweight is False else call.out("dweight", 1448, dweight, v_weight[2], 1)
    if dmix_before is not None:
        dmix_before = None if dmix_before is False else call.out("dmix_before", 1544, dmix_before,
            lambda: call.twin("dmix_before", "mix_before", v_mix_before), 1)
    if dmix_after is not None:
        dmix_after = None if dmix_after is False else call.out("dmix_after", 1640, dmix_after,
            lambda: call.twin("dmix_after", "mix_after", v_mix_after), 1)
    if query_max:
        call.scalar("q", 1736, query_max, "query_max")
    if key_max:
        call.scalar("q", 1744, key_max, "key_max")
    if history:
        call.scalar("q", 1752, history, "history")
    if scale:
        call.scalar("f", 1760, scale, "scale")
    if causal:
        call.scalar("i", 1764, causal, "causal")
    return call.run(dq, dk, dv, dweight, dmix_before, dmix_after)


def group_norm_forward(ctx_or_x=None, /, x=None, *, ctx=None, y=None, gain=None, query_len=None,
                       factor=0.0, eps=0.0):
    """The root-mean-square norm of each head, a group of its own, scaled by depth:
      y_c = factor gain_c x_c / sqrt(mean_c(x_c^2) + eps)
    Depth enters as factor: 1 - lambda with lambda = 0.8 - 0.6 exp(-0.3 layer) as differential
    transformers have it.  Rows past query_len are neither read nor written.

    Example
      y = fovea.experimental.group_norm_forward(x)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      x: (b, s, h, e) f32 f16 bf16: o of the attention

    Outputs, new unless passed
      y: (b, s, h, e) as x or f32

    Optional inputs
      gain: (h, e) as x or f32: absent: 1; a stride of 0 shares it
      query_len: (b) i32: rows in use, 0 .. s

    Numbers
      factor: > 0; 0: 1
      eps: > 0; 0: 1e-5
    """
    if ctx_or_x.__class__ is Context and ctx is None:
        call = Call(ctx_or_x, _x_group_norm_forward)
    else:
        call, inputs = _x_group_norm_forward.begin(ctx_or_x, ctx, x)
        [x] = inputs
    v_x = call.put("x", 8, x, 4)
    if gain is not None:
        call.put("gain", 104, gain)
    if query_len is not None:
        call.put("query_len", 296, query_len)
    y = call.out("y", 200, y, v_x[2], v_x[1])
    if factor:
        call.scalar("f", 392, factor, "factor")
    if eps:
        call.scalar("f", 396, eps, "eps")
    return call.run(y)


def group_norm_backward(ctx_or_x=None, /, x=None, dy=None, *, ctx=None, dx=None, dgain=None,
                        gain=None, query_len=None, factor=0.0, eps=0.0):
    """Gradients of x_group_norm_forward from dy.  Each output is optional: absent = not computed.
    With z = 1 / sqrt(mean_c(x_c^2) + eps):
      dx_c = factor z (gain_c dy_c - x_c z^2 mean_c(gain_c dy_c x_c))
      dgain_c = factor sum dy_c x_c z over the rows of all batches
    dx is written in every row, 0 past query_len.

    Example
      dx = fovea.experimental.group_norm_backward(x, dy)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      x: (b, s, h, e) f32 f16 bf16
      dy: (b, s, h, e) as x or f32: the gradient of y

    Outputs, new unless passed or False
      dx: (b, s, h, e) as x

    Outputs on request, by True or an array
      dgain: (h, e) f32: with or without gain; a stride of 0 receives the ordered sum over that
          dimension

    Optional inputs
      gain: (h, e) as x or f32
      query_len: (b) i32

    Numbers
      factor: 0: 1
      eps: 0: 1e-5
    """
    if ctx_or_x.__class__ is Context and ctx is None:
        call = Call(ctx_or_x, _x_group_norm_backward)
    else:
        call, inputs = _x_group_norm_backward.begin(ctx_or_x, ctx, x, dy)
        [x, dy] = inputs
    v_x = call.put("x", 8, x, 4)
    v_gain = None
    if gain is not None:
        v_gain = call.put("gain", 104, gain, 2)
    if query_len is not None:
        call.put("query_len", 200, query_len)
    call.put("dy", 296, dy)
    dx = None if dx is False else call.out("dx", 392, dx, v_x[2], v_x[1])
    if dgain is not None:
        dgain = None if dgain is False else call.out("dgain", 488, dgain, lambda: call.twin("dgain",
            "gain", v_gain), 1)
    if factor:
        call.scalar("f", 584, factor, "factor")
    if eps:
        call.scalar("f", 588, eps, "eps")
    return call.run(dx, dgain)


def norm_gate_forward(ctx_or_x=None, /, x=None, *, ctx=None, y=None, gate=None, add_before=None,
                      add_after=None, weight=None, bias=None, query_len=None, group=0, factor=0.0,
                      eps=0.0, norm=0, act=0, gate_first=0):
    """For each row and head, with a = act(gate), and 1 without a gate:

      u = x + add_before
      v = u a with gate_first, u without
      n = the norm of v over each `group` of columns
      w = factor weight n + bias
      y = (w without the gate, w a behind the norm) + add_after

      RetNet, GLA, Gated DeltaNet, KDA   gate, weight; act silu, or sigmoid for KDA
      Mamba-2                            gate, gate_first, weight; group = e h / groups with h = 1
      RWKV-6, RWKV-7                     norm layer, weight, bias, gate of act none
      multi-token attention              weight, factor
      a block's residual and norm        add_before, weight

    Limits: none on widths.  Every valid call has one kernel a backend, in f32.

    Example
      y = fovea.experimental.norm_gate_forward(x)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      x: (b, s, h, e) f32 f16 bf16

    Outputs, new unless passed
      y: (b, s, h, e) as x or f32

    Optional inputs
      gate: (b, s, h, e) as x or f32: absent: a = 1
      add_before: (b, s, h, e) as x or f32: absent: 0
      add_after: (b, s, h, e) as x or f32: absent: 0
      weight: (h, e) as x or f32: absent: 1; a stride of 0 shares it
      bias: (h, e) as x or f32: absent: 0
      query_len: (b) i32: rows in use, 0 .. s

    Numbers
      group: columns under one norm, a divisor of e; 0: e
      factor: > 0; 0: 1
      eps: > 0; 0: 1e-5
      norm: "rms", "layer", "l2", "none"
      act: "silu", "sigmoid", "none"
      gate_first: 1: the gate stands before the norm
    """
    if ctx_or_x.__class__ is Context and ctx is None:
        call = Call(ctx_or_x, _x_norm_gate_forward)
    else:
        call, inputs = _x_norm_gate_forward.begin(ctx_or_x, ctx, x)
        [x] = inputs
    v_x = call.put("x", 8, x, 4)
    if gate is not None:
        call.put("gate", 104, gate)
    if add_before is not None:
        call.put("add_before", 200, add_before)
    if add_after is not None:
        call.put("add_after", 296, add_after)
    if weight is not None:
        call.put("weight", 392, weight)
    if bias is not None:
        call.put("bias", 488, bias)
    if query_len is not None:
        call.put("query_len", 680, query_len)
    y = call.out("y", 584, y, v_x[2], v_x[1])
    if group:
        call.scalar("q", 776, group, "group")
    if factor:
        call.scalar("f", 784, factor, "factor")
    if eps:
        call.scalar("f", 788, eps, "eps")
    if norm:
        call.enum(792, norm, "norm", NormGateNorm)
    if act:
        call.enum(796, act, "act", NormGateAct)
    if gate_first:
        call.scalar("i", 800, gate_first, "gate_first")
    return call.run(y)


def norm_gate_backward(ctx_or_x=None, /, x=None, dy=None, *, ctx=None, dx=None, dgate=None,
                       dweight=None, dbias=None, gate=None, add_before=None, weight=None, bias=None,
                       query_len=None, group=0, factor=0.0, eps=0.0, norm=0, act=0, gate_first=0):
    """Gradients of x_norm_gate_forward from dy.  Each output is optional: absent = not computed.  dx
    is add_before's gradient too, and dy is add_after's.  With the gate behind the norm, and with
    mean over a group:

      t = dy a,  dgate = dy w act'(gate),  dbias = sum t,  dweight = factor sum t n
      dn = factor weight t,  dx = z (dn - n mean(dn n)), less z mean(dn) with norm layer

    gate_first: t = dy, and the last line gives dv; then dx = dv a and dgate = dv u act'(gate).
    dx and dgate are written in every row, 0 past query_len.  Sums are over the rows of all
    batches.

    Example
      dx = fovea.experimental.norm_gate_backward(x, dy)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      x: (b, s, h, e) f32 f16 bf16
      dy: (b, s, h, e) as x or f32

    Outputs, new unless passed or False
      dx: (b, s, h, e) as x or f32

    Outputs on request, by True or an array
      dgate: (b, s, h, e) as x or f32: needs gate
      dweight: (h, e) f32: with or without weight; a stride of 0 receives the ordered sum over that
          dimension
      dbias: (h, e) f32: with or without bias

    Optional inputs
      gate: (b, s, h, e) as x or f32
      add_before: (b, s, h, e) as x or f32
      weight: (h, e) as x or f32
      bias: (h, e) as x or f32
      query_len: (b) i32

    Numbers
      group: 0: e
      factor: 0: 1
      eps: 0: 1e-5
      norm: "rms", "layer", "l2", "none"
      act: "silu", "sigmoid", "none"
      gate_first: 0 or 1
    """
    if ctx_or_x.__class__ is Context and ctx is None:
        call = Call(ctx_or_x, _x_norm_gate_backward)
    else:
        call, inputs = _x_norm_gate_backward.begin(ctx_or_x, ctx, x, dy)
        [x, dy] = inputs
    v_x = call.put("x", 8, x, 4)
    v_gate = None
    if gate is not None:
        v_gate = call.put("gate", 104, gate, 4)
    if add_before is not None:
        call.put("add_before", 200, add_before)
    v_weight = None
    if weight is not None:
        v_weight = call.put("weight", 296, weight, 2)
    v_bias = None
    if bias is not None:
        v_bias = call.put("bias", 392, bias, 2)
    if query_len is not None:
        call.put("query_len", 488, query_len)
    call.put("dy", 584, dy)
    dx = None if dx is False else call.out("dx", 680, dx, v_x[2], v_x[1])
    if dgate is not None:
        dgate = None if dgate is False else call.out("dgate", 776, dgate, lambda: call.twin("dgate",
            "gate", v_gate), v_x[1])
    if dweight is not None:
        dweight = None if dweight is False else call.out("dweight", 872, dweight, lambda:
            call.twin("dweight", "weight", v_weight), 1)
    if dbias is not None:
        dbias = None if dbias is False else call.out("dbias", 968, dbias, lambda: call.twin("dbias",
            "bias", v_bias), 1)
    if group:
        call.scalar("q", 1064, group, "group")
    if factor:
        call.scalar("f", 1072, factor, "factor")
    if eps:
        call.scalar("f", 1076, eps, "eps")
    if norm:
        call.enum(1080, norm, "norm", NormGateNorm)
    if act:
        call.enum(1084, act, "act", NormGateAct)
    if gate_first:
        call.scalar("i", 1088, gate_first, "gate_first")
    return call.run(dx, dgate, dweight, dbias)


def sparse_forward(ctx_or_q=None, /, q=None, k=None, v=None, *, ctx=None, o=None, lse=None,
                   skipped=None, q_value=None, index=None, index_count=None, index_bias=None,
                   column=None, column_count=None, row_begin=None, key_begin=None, tile=None,
                   tile_bits=None, sink_logit=None, head_map=None, skip_head=None, mass=None,
                   k_scale=None, v_scale=None, context_len=None, query_start=None, key_start=None,
                   query_len=None, key_len=None, page_table=None, cache_row=None, query_max=0,
                   key_max=0, window_left=0, window_right=0, sink_keys=0, key_step=0, key_shift=0,
                   first_keys=0, last_keys=0, scale=0.0, softcap=0.0, skip_margin=0.0, causal=0,
                   splits=0, block_rows=0, block_keys=0, entry_keys=0):
    """Attention of q over the listed k and v; prefill and decode, contiguous and paged caches.

    Limits: d and e are 1 .. 576.  Every valid call has a kernel on the host and a portable one on
    CUDA.  Without a field of this header the limits are attention_forward's.  Tensor cores ask for:
      sm_80 and later  what attention_forward asks for there, an index, and beside it only bias,
                       row_begin, first_keys and last_keys; no softcap
      Hopper's own     sm_90, no codes; blocks of 16, 32, 64 or 128 keys; of at most 128 rows of the
                       heads that share a list, or a multiple of 64 rows; single rows: any multiple
                       of 128 keys.  Or no list, but skip_margin or skipped alone, and d and e of at
                       most 128
      columns there    no codes and no pages; d and e of at most 128; blocks of 16, 32 or a multiple
                       of 64 keys at any key, column, first_keys and last_keys of at most 4096; 16
                       rows or more of the heads that share a list; at most one split
      wide heads there no codes; d of at most 576, e of at most 512, one of them above 256, or
                       q_value with d of at most 64 and no softcap; lists of single rows and single
                       keys alone, in any order; 8 heads or more that share a list and a key head
      codes of these   e4m3 or i8, as attention_forward's there: FP8-MLA's records with q_value, or
                       v the first columns of k; windows and positions of any kind; no softcap

    Example
      o = fovea.experimental.sparse_forward(q, k, v)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q: (b, s, h, d) f32 f16 bf16
      k: (rows, t, g, d) or paged (pool, page, g, d) as q or e4m3 e5m2 i8
      v: (rows, t, g, e) or paged (pool, page, g, e) as q or e4m3 e5m2 i8: may be a view of k

    Outputs, new unless passed
      o: (b, s, h, e) as q or f32

    Outputs on request, by True or an array
      lse: (b, h, s) f32: natural log of each row's sum
      skipped: (1) i64: tiles that some row of a group sees and that were skipped, over all groups

    Optional inputs
      q_value: (b, s, h, e) as q: second query, contracted with v (split MLA caches)
      index: (b, x, n, keep) i32: entries of each list row
      index_count: (b, x, n) i32: entries in use; with index
      index_bias: (b, h, n, keep) f32: added to the scores of an entry; with index and block_keys =
          1
      column: (b, x, n, columns) i32: single keys
      column_count: (b, x, n) i32: columns in use; with column; absent: all
      row_begin: (b, x, n+1) i32: first row of each list row, ascending; block_rows stays 0; not
          with query_start, tile
      key_begin: (b, x, u+1) i32: first key of each entry, ascending; block_keys and entry_keys stay
          0; not with query_start, tile
      tile: (b, x, n, keep) i32: tile of each entry, -1: none; with index and tile_bits
      tile_bits: (tiles, tile_rows, tile_bytes) u8: block_rows rows of ceil(block_keys / 8) bytes;
          with tile
      sink_logit: (h) f32: a learned term of the denominator: not scaled, capped or biased
      head_map: (b, h) i32: head whose q and key head make the scores of a head; list, sink_logit
          and v stay its own; no head: itself
      skip_head: (h) i32: not 0: o and lse of the head are not written, and it adds nothing to mass
          and skipped
      mass: (key_b, x, t) or paged (r, x, keys) f32: the sum of p_ij over the rows of the list
          head's h / x heads is added, by storage index, or paged by key column
      k_scale: (rows, t, g, groups) or paged (pool, page, g, groups) f32: k counts times its scale,
          a scale for each of `groups` equal parts of d (e4m3 e5m2 i8 only); stride 0 broadcasts;
          absent: 1
      v_scale: (rows, t, g, groups) or paged (pool, page, g, groups) f32: as k_scale, of v
      context_len: (r) i32: p_i = i + context_len - Lq; absent: Lk
      query_start: (r+1) i32: first packed row of each sequence, ascending from 0; then b = 1
      key_start: (r+1) i32: first packed key of each sequence; not with page_table or cache_row
      query_len: (r) i32: rows in use, at most s or the packed extent
      key_len: (r) i32: keys in use, at most t, packed extent or pages * page
      page_table: (rows, pages) i32: pool page of each logical page; -1: absent, its keys are not
          seen
      cache_row: (r) i32: row of page_table, or of k and v, that a sequence reads; -1 or past the
          last: no keys; absent: its own number

    Numbers
      query_max: longest sequence of rows, bounds the grid; 0: s
      key_max: longest sequence of keys; 0: t, or pages * page
      window_left: keys seen to the left, the row's own position counted; 0: all
      window_right: keys seen to the right, the row's own position counted; 0: all, 1: none after
          itself
      sink_keys: keys at positions below this stay visible through window_left
      key_step: p_j = key_step * j + key_shift, below 2^31; 0: 1
      key_shift: position of the first key, may be negative; within 2^31 of 0
      first_keys: first keys of the sequence that are always seen; with index or column
      last_keys: keys up to the row's own position, it counted, that are always seen; with index or
          column
      scale: > 0; 0: 1 / sqrt(d), or 1 / sqrt(d + e) with q_value
      softcap: 0: none
      skip_margin: in nats; 0: nothing is skipped
      causal: 1: window_right = 1
      splits: parts the keys or the list of a row are cut into; 0: chosen from shapes, 1 with
          skip_margin; not above 1 with skip_margin
      block_rows: rows of a list row: 1 .. 128; 0 without index and column, or with row_begin
      block_keys: keys of an entry: 1 .. 65536; 0 without index, or with key_begin
      entry_keys: from an entry's first key to the next's, at most block_keys; 0: block_keys
    """
    if ctx_or_q.__class__ is Context and ctx is None:
        call = Call(ctx_or_q, _x_sparse_forward)
    else:
        call, inputs = _x_sparse_forward.begin(ctx_or_q, ctx, q, k, v)
        [q, k, v] = inputs
    v_q = call.put("q", 8, q, 4)
    call.put("k", 104, k)
    v_v = call.put("v", 200, v, 4)
    if q_value is not None:
        call.put("q_value", 488, q_value)
    if index is not None:
        call.put("index", 584, index)
    if index_count is not None:
        call.put("index_count", 680, index_count)
    if index_bias is not None:
        call.put("index_bias", 776, index_bias)
    if column is not None:
        call.put("column", 872, column)
    if column_count is not None:
        call.put("column_count", 968, column_count)
    if row_begin is not None:
        call.put("row_begin", 1064, row_begin)
    if key_begin is not None:
        call.put("key_begin", 1160, key_begin)
    if tile is not None:
        call.put("tile", 1256, tile)
    if tile_bits is not None:
        call.put("tile_bits", 1352, tile_bits)
    if sink_logit is not None:
        call.put("sink_logit", 1448, sink_logit)
    if head_map is not None:
        call.put("head_map", 1544, head_map)
    if skip_head is not None:
        call.put("skip_head", 1640, skip_head)
    if mass is not None:
        call.put("mass", 1736, mass, None, True)
    if k_scale is not None:
        call.put("k_scale", 1928, k_scale)
    if v_scale is not None:
        call.put("v_scale", 2024, v_scale)
    if context_len is not None:
        call.put("context_len", 2120, context_len)
    if query_start is not None:
        call.put("query_start", 2216, query_start)
    if key_start is not None:
        call.put("key_start", 2312, key_start)
    if query_len is not None:
        call.put("query_len", 2408, query_len)
    if key_len is not None:
        call.put("key_len", 2504, key_len)
    if page_table is not None:
        call.put("page_table", 2600, page_table)
    if cache_row is not None:
        call.put("cache_row", 2696, cache_row)
    o = call.out("o", 296, o, (v_q[2][0], v_q[2][1], v_q[2][2], v_v[2][3]), v_q[1])
    if lse is not None:
        lse = None if lse is False else call.out("lse", 392, lse, (v_q[2][0], v_q[2][2], v_q[2][1]),
            1)
    if skipped is not None:
        skipped = None if skipped is False else call.out("skipped", 1832, skipped, (1,), 9)
    if query_max:
        call.scalar("q", 2792, query_max, "query_max")
    if key_max:
        call.scalar("q", 2800, key_max, "key_max")
    if window_left:
        call.scalar("q", 2808, window_left, "window_left")
    if window_right:
        call.scalar("q", 2816, window_right, "window_right")
    if sink_keys:
        call.scalar("q", 2824, sink_keys, "sink_keys")
    if key_step:
        call.scalar("q", 2832, key_step, "key_step")
    if key_shift:
        call.scalar("q", 2840, key_shift, "key_shift")
    if first_keys:
        call.scalar("q", 2848, first_keys, "first_keys")
    if last_keys:
        call.scalar("q", 2856, last_keys, "last_keys")
    if scale:
        call.scalar("f", 2864, scale, "scale")
    if softcap:
        call.scalar("f", 2868, softcap, "softcap")
    if skip_margin:
        call.scalar("f", 2872, skip_margin, "skip_margin")
    if causal:
        call.scalar("i", 2876, causal, "causal")
    if splits:
        call.scalar("i", 2880, splits, "splits")
    if block_rows:
        call.scalar("i", 2884, block_rows, "block_rows")
    if block_keys:
        call.scalar("i", 2888, block_keys, "block_keys")
    if entry_keys:
        call.scalar("i", 2892, entry_keys, "entry_keys")
    return call.run(o, lse, skipped)


def sparse_backward(ctx_or_q=None, /, q=None, k=None, v=None, o=None, lse=None, dout=None, *,
                    ctx=None, dq=None, dk=None, dv=None, dsink_logit=None, index=None,
                    index_count=None, row_begin=None, key_begin=None, tile=None, tile_bits=None,
                    sink_logit=None, query_start=None, key_start=None, query_len=None, key_len=None,
                    dlse=None, query_max=0, key_max=0, window_left=0, window_right=0, sink_keys=0,
                    first_keys=0, last_keys=0, scale=0.0, softcap=0.0, causal=0, block_rows=0,
                    block_keys=0, entry_keys=0, nondeterministic=0):
    """Gradients of x_sparse_forward from dout (and dlse).  The fields it shares say what the forward
    was.  Each output is optional: absent = not computed.  Every element of an output is written:
    rows and keys past their lengths, and keys that nobody names, get 0.
      delta_i = <dout_i, o_i> - dlse_i,  p_ij = n_ij exp(score_ij - lse_i)
      ds_ij = p_ij (<dout_i, v_j> - delta_i),  dx_ij = ds_ij (1 - (x_ij / softcap)^2)
      dv_j = sum_i p_ij dout_i,  dq_i = scale sum_j dx_ij k_j,  dk_j = scale sum_i dx_ij q_i
      dsink_logit_h = - sum_i exp(sink_logit_h - lse_i) delta_i
    Workspace is linear in s, t and the entries: lists are sorted by key there.  Bits: the same
    every run unless `nondeterministic`.

    Limits: d and e are 1 .. 576, no paged keys.  Every valid call has a kernel on the host and a
    portable one on CUDA.  Without a field of this header the limits are attention_backward's.
    Hopper's tensor cores ask for what attention_backward asks for there, d and e of at most 128,
    and no softcap.  They take an index, and beside it only index_count.  Blocks are multiples of 64
    keys, and of 64 rows or of one.  With one row, all heads of a key head share a list, and their
    number divides 64.

    Example
      dq, dk, dv = fovea.experimental.sparse_backward(q, k, v, o, lse, dout)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q: (b, s, h, d) f32 f16 bf16
      k: (key_b, t, g, d) as q
      v: (key_b, t, g, e) as q
      o: (b, s, h, e) as q or f32: of the forward
      lse: (b, h, s) f32: of the forward
      dout: (b, s, h, e) as o: the gradient of o

    Outputs, new unless passed or False
      dq: (b, s, h, d) as q
      dk: (key_b, t, g, d) as q
      dv: (key_b, t, g, e) as q

    Outputs on request, by True or an array
      dsink_logit: (h) f32: needs sink_logit

    Optional inputs
      index: (b, x, n, keep) i32: as in the forward, and so for the fields below
      index_count: (b, x, n) i32
      row_begin: (b, x, n+1) i32
      key_begin: (b, x, u+1) i32
      tile: (b, x, n, keep) i32
      tile_bits: (tiles, tile_rows, tile_bytes) u8
      sink_logit: (h) f32
      query_start: (r+1) i32
      key_start: (r+1) i32
      query_len: (r) i32
      key_len: (r) i32
      dlse: (b, h, s) f32: the gradient of lse; absent: 0

    Numbers
      query_max: as in the forward, and so for the fields below
      key_max: 0: t
      window_left: 0: all
      window_right: 0: all
      sink_keys: 0: none
      first_keys: 0: none
      last_keys: 0: none
      scale: 0: 1 / sqrt(d)
      softcap: 0: none
      causal: 1: window_right = 1
      block_rows: 0: with row_begin, or without index
      block_keys: 0: with key_begin, or without index
      entry_keys: 0: block_keys
      nondeterministic: 1: a faster kernel whose sums may change order may be used
    """
    if ctx_or_q.__class__ is Context and ctx is None:
        call = Call(ctx_or_q, _x_sparse_backward)
    else:
        call, inputs = _x_sparse_backward.begin(ctx_or_q, ctx, q, k, v, o, lse, dout)
        [q, k, v, o, lse, dout] = inputs
    v_q = call.put("q", 8, q, 4)
    v_k = call.put("k", 104, k, 4)
    v_v = call.put("v", 200, v, 4)
    if index is not None:
        call.put("index", 296, index)
    if index_count is not None:
        call.put("index_count", 392, index_count)
    if row_begin is not None:
        call.put("row_begin", 488, row_begin)
    if key_begin is not None:
        call.put("key_begin", 584, key_begin)
    if tile is not None:
        call.put("tile", 680, tile)
    if tile_bits is not None:
        call.put("tile_bits", 776, tile_bits)
    v_sink_logit = None
    if sink_logit is not None:
        v_sink_logit = call.put("sink_logit", 872, sink_logit, 1)
    if query_start is not None:
        call.put("query_start", 968, query_start)
    if key_start is not None:
        call.put("key_start", 1064, key_start)
    if query_len is not None:
        call.put("query_len", 1160, query_len)
    if key_len is not None:
        call.put("key_len", 1256, key_len)
    call.put("o", 1352, o)
    call.put("lse", 1448, lse)
    call.put("dout", 1544, dout)
    if dlse is not None:
        call.put("dlse", 1640, dlse)
    dq = None if dq is False else call.out("dq", 1736, dq, v_q[2], v_q[1])
    dk = None if dk is False else call.out("dk", 1832, dk, v_k[2], v_q[1])
    dv = None if dv is False else call.out("dv", 1928, dv, v_v[2], v_q[1])
    if dsink_logit is not None:
        dsink_logit = None if dsink_logit is False else call.out("dsink_logit", 2024, dsink_logit,
            lambda: call.twin("dsink_logit", "sink_logit", v_sink_logit), 1)
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
    if first_keys:
        call.scalar("q", 2160, first_keys, "first_keys")
    if last_keys:
        call.scalar("q", 2168, last_keys, "last_keys")
    if scale:
        call.scalar("f", 2176, scale, "scale")
    if softcap:
        call.scalar("f", 2180, softcap, "softcap")
    if causal:
        call.scalar("i", 2184, causal, "causal")
    if block_rows:
        call.scalar("i", 2188, block_rows, "block_rows")
    if block_keys:
        call.scalar("i", 2192, block_keys, "block_keys")
    if entry_keys:
        call.scalar("i", 2196, entry_keys, "entry_keys")
    if nondeterministic:
        call.scalar("i", 2200, nondeterministic, "nondeterministic")
    return call.run(dq, dk, dv, dsink_logit)


def select_block(ctx=None, *, index=None, index_count=None, kept_score=None, kept_mass=None,
                 score_out=None, row=None, column=None, column_low=None, score=None,
                 column_weight=None, row_lse=None, block_mask=None, forced=None, row_forced=None,
                 column_forced=None, count_head=None, cover_head=None, query_start=None,
                 key_start=None, query_len=None, key_len=None, b=None, x=None, n=None, keep=None,
                 y=None, query_max=0, key_max=0, count=0, min_keep=0, max_keep=0, min_extra=0,
                 force_first=0, force_previous=0, force_last=0, remap_step=0, remap_span=0,
                 scale=0.0, ratio=0.0, cover=0.0, threshold=0.0, measure=0, normalise=0, reduce=0,
                 reduce_raw=0, rule=0, scope=0, ratio_up=0, forced_count=0, force_own=0, complete=0,
                 causal=0, block_rows=0, block_keys=0):
    """Key blocks for each row block, from summaries of both or from given scores.  In this order:
      1. score      by measure, or scale * score
      2. eligible   the column is of the sequence; causal: its first key is not past the row block's
                    last row; complete: its last key is not past the first row; block_mask has 1;
                    column_forced has no bit 1.  Other columns, and scores that are NaN, have -inf
      3. normalise, 4. reduce: in this order, or reduce_raw = 1: reduce first
      5. remap      compressed columns to key blocks, see remap_step
      6. force      force_* and *_forced, of what is of the sequence and not past the row block as
                    in 2; the own blocks even with complete
      7. rule       in the scope; forced_count = 1: what is forced comes first, in the order of the
                    index, and uses up k or mass.  0: the rule runs over all that is eligible, and
                    what is forced is added.  Then min_extra, min_keep, max_keep
      8. lists
    Own blocks are those that hold a position of the row block.

    Without query_len and query_start every sequence has query_max rows (0: n block_rows), without
    key_len and key_start key_max keys (0: u block_keys).

    Limits: d is 1 .. 576.  Every valid call has a kernel on both backends.  A score is exact to f32
    rounding: a chain of f32 fused multiply-adds over the columns from 0.  On CUDA, with scope row,
    it is a sum of tensor cores, or, of f32 alone, the chain.  Workspace: 64 MiB at most for scope
    row and at least one list row of scores; b x n y scores for the others.
    Sources: Quest (2406.10774), NSA (2502.11089), MoBA (2502.13189), XAttention (2503.16428),
    SpargeAttention (2502.18137), SeerAttention (2410.13276).

    Example
      outputs = fovea.experimental.select_block(index=True, index_count=True, kept_score=True)
      index, index_count, kept_score = outputs

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Outputs on request, by True or an array
      index: (b, x, n, keep) i32: key blocks; one of index and index_count at least
      index_count: (b, x, n) i32: key blocks wanted
      kept_score: (b, x, n, keep) f32: their scores after step 5, -inf past the count; needs index
      kept_mass: (b, x, n) f32: sum of the scores of the list, of those > 0
      score_out: (b, x, n, y) f32: all scores after step 5

    Optional inputs
      row: (b, n, h, d) f32 f16 bf16: a summary of each row block, or the queries themselves; needs
          column
      column: (key_b, u, g, d) f32 f16 bf16: a summary of each key block: g divides h; box: the
          largest of its keys; needs row
      column_low: (key_b, u, g, d) f32 f16 bf16: box: the smallest of its keys; the dtype of column
      score: (b, h, n, u) f32: scores in place of row and column; its columns are the sequence's own
      column_weight: (key_b, g, u) f32: >= 0, of normalise weighted
      row_lse: (b, h, n) f32: of normalise softmax: a score s becomes exp(min(s - row_lse, 0)), 0
          where row_lse is not finite. It is the lse of attention over the columns, where that is at
          hand; not with reduce_raw
      block_mask: (b, x, n, mask_bytes) u8: bit c % 8 of byte c / 8 is 1 where key block c is
          eligible; ceil(y / 8) bytes; not with remap_step
      forced: (b, x, n, mask_bytes) u8: the same where it is forced
      row_forced: (b, x, n) u8: not 0: all key blocks are forced
      column_forced: (key_b, g, u) u8: bit 0: the key block is forced; bit 1: it is not eligible;
          not with remap_step
      count_head: (b, x) i32: k of each list head, < 0 as 0; count and ratio stay 0
      cover_head: (x) f32: cover of each list head; cover stays 0
      query_start: (r+1) i32: first packed row of each sequence, ascending from 0; then b = 1
      key_start: (r+1) i32: first packed key of each sequence
      query_len: (r) i32: rows in use
      key_len: (r) i32: keys in use

    b, x, n, keep, y: extents of new outputs that no input tells.

    Numbers
      query_max: longest sequence of rows; 0: n block_rows
      key_max: longest sequence of keys; 0: as many as the columns cover
      count: k of top_k
      min_keep: least entries of a list, forced ones among them
      max_keep: most entries of a list; 0: no bound.  The last taken go first, forced ones from the
          highest index when nothing else is left
      min_extra: least entries that the rule takes in its scope
      force_first: the first key blocks are forced
      force_previous: those before the own blocks
      force_last: the last key blocks of the sequence
      remap_step: a > 0: column c is keys [c s, c s + l) with s = block_keys / a, l = remap_span s.
          It exists where these are keys.  Key block j has the sum of p[a j + m - n] over m < a and
          n < remap_span. p is 0 where there is no eligible column. y = ceil((u s + l - 1) /
          block_keys).  0: a column is a key block, y = u
      remap_span: l in steps, >= 1 with remap_step
      scale: of scores, > 0; 0: 1 / sqrt(d), for given scores 1
      ratio: k of top_k = ratio times the key blocks of the scope; count stays 0
      cover: share of the mass
      threshold: of above and at_least
      measure: "dot", "box"
      normalise: "none", "softmax", "weighted", "minmax", "max"
      reduce: "none", "sum", "mean", "max"
      reduce_raw: 1: heads are reduced before they are normalised; weights are then those of the
          first head
      rule: "top_k", "top_p_ge", "top_p_gt", "top_p_under", "above", "at_least", "none"
      scope: "row", "head", "all"
      ratio_up: 1: k of ratio is rounded up, 0: down
      forced_count: 1: forced entries count for the rule
      force_own: 1: own blocks are forced
      complete: 1: no key block that ends past the row block's first row; needs causal
      causal: 1: no key block that begins past the row block's last row
      block_rows: rows of a list row, >= 1; 0: 1
      block_keys: keys of a key block, >= 1; 0: 64
    """
    if ctx.__class__ is Context:
        call = Call(ctx, _x_select_block)
    else:
        call = _x_select_block.begin_by(ctx, index, index_count, kept_score, kept_mass, score_out,
            row, column, column_low, score, column_weight, row_lse, block_mask, forced, row_forced,
            column_forced, count_head, cover_head, query_start, key_start, query_len, key_len)
    v_row = None
    if row is not None:
        v_row = call.put("row", 8, row, 4)
    if column is not None:
        call.put("column", 104, column)
    if column_low is not None:
        call.put("column_low", 200, column_low)
    v_score = None
    if score is not None:
        v_score = call.put("score", 296, score, 4)
    if column_weight is not None:
        call.put("column_weight", 392, column_weight)
    v_row_lse = None
    if row_lse is not None:
        v_row_lse = call.put("row_lse", 488, row_lse, 3)
    v_block_mask = None
    if block_mask is not None:
        v_block_mask = call.put("block_mask", 584, block_mask, 4)
    v_forced = None
    if forced is not None:
        v_forced = call.put("forced", 680, forced, 4)
    v_row_forced = None
    if row_forced is not None:
        v_row_forced = call.put("row_forced", 776, row_forced, 3)
    if column_forced is not None:
        call.put("column_forced", 872, column_forced)
    v_count_head = None
    if count_head is not None:
        v_count_head = call.put("count_head", 968, count_head, 2)
    v_cover_head = None
    if cover_head is not None:
        v_cover_head = call.put("cover_head", 1064, cover_head, 1)
    if query_start is not None:
        call.put("query_start", 1160, query_start)
    if key_start is not None:
        call.put("key_start", 1256, key_start)
    if query_len is not None:
        call.put("query_len", 1352, query_len)
    if key_len is not None:
        call.put("key_len", 1448, key_len)
    if index is not None:
        index = None if index is False else call.out("index", 1544, index, lambda: (call.size("b",
            b, (v_row, 0, 0), (v_score, 0, 0), (v_row_lse, 0, 0), (v_block_mask, 0, 0), (v_forced,
            0, 0), (v_row_forced, 0, 0), (v_count_head, 0, 0)), call.size("x", x, (v_block_mask, 1,
            0), (v_forced, 1, 0), (v_row_forced, 1, 0), (v_count_head, 1, 0), (v_cover_head, 0, 0)),
            call.size("n", n, (v_row, 1, 0), (v_score, 2, 0), (v_row_lse, 2, 0), (v_block_mask, 2,
            0), (v_forced, 2, 0), (v_row_forced, 2, 0)), call.size("keep", keep)), 8)
    if index_count is not None:
        index_count = None if index_count is False else call.out("index_count", 1640, index_count,
            lambda: (call.size("b", b, (v_row, 0, 0), (v_score, 0, 0), (v_row_lse, 0, 0),
            (v_block_mask, 0, 0), (v_forced, 0, 0), (v_row_forced, 0, 0), (v_count_head, 0, 0)),
            call.size("x", x, (v_block_mask, 1, 0), (v_forced, 1, 0), (v_row_forced, 1, 0),
            (v_count_head, 1, 0), (v_cover_head, 0, 0)), call.size("n", n, (v_row, 1, 0), (v_score,
            2, 0), (v_row_lse, 2, 0), (v_block_mask, 2, 0), (v_forced, 2, 0), (v_row_forced, 2,
            0))), 8)
    if kept_score is not None:
        kept_score = None if kept_score is False else call.out("kept_score", 1736, kept_score,
            lambda: (call.size("b", b, (v_row, 0, 0), (v_score, 0, 0), (v_row_lse, 0, 0),
            (v_block_mask, 0, 0), (v_forced, 0, 0), (v_row_forced, 0, 0), (v_count_head, 0, 0)),
            call.size("x", x, (v_block_mask, 1, 0), (v_forced, 1, 0), (v_row_forced, 1, 0),
            (v_count_head, 1, 0), (v_cover_head, 0, 0)), call.size("n", n, (v_row, 1, 0), (v_score,
            2, 0), (v_row_lse, 2, 0), (v_block_mask, 2, 0), (v_forced, 2, 0), (v_row_forced, 2, 0)),
            call.size("keep", keep)), 1)
    if kept_mass is not None:
        kept_mass = None if kept_mass is False else call.out("kept_mass", 1832, kept_mass, lambda:
            (call.size("b", b, (v_row, 0, 0), (v_score, 0, 0), (v_row_lse, 0, 0), (v_block_mask, 0,
            0), (v_forced, 0, 0), (v_row_forced, 0, 0), (v_count_head, 0, 0)), call.size("x", x,
            (v_block_mask, 1, 0), (v_forced, 1, 0), (v_row_forced, 1, 0), (v_count_head, 1, 0),
            (v_cover_head, 0, 0)), call.size("n", n, (v_row, 1, 0), (v_score, 2, 0), (v_row_lse, 2,
            0), (v_block_mask, 2, 0), (v_forced, 2, 0), (v_row_forced, 2, 0))), 1)
    if score_out is not None:
        score_out = None if score_out is False else call.out("score_out", 1928, score_out, lambda:
            (call.size("b", b, (v_row, 0, 0), (v_score, 0, 0), (v_row_lse, 0, 0), (v_block_mask, 0,
            0), (v_forced, 0, 0), (v_row_forced, 0, 0), (v_count_head, 0, 0)), call.size("x", x,
            (v_block_mask, 1, 0), (v_forced, 1, 0), (v_row_forced, 1, 0), (v_count_head, 1, 0),
            (v_cover_head, 0, 0)), call.size("n", n, (v_row, 1, 0), (v_score, 2, 0), (v_row_lse, 2,
            0), (v_block_mask, 2, 0), (v_forced, 2, 0), (v_row_forced, 2, 0)), call.size("y", y)),
            1)
    if query_max:
        call.scalar("q", 2024, query_max, "query_max")
    if key_max:
        call.scalar("q", 2032, key_max, "key_max")
    if count:
        call.scalar("q", 2040, count, "count")
    if min_keep:
        call.scalar("q", 2048, min_keep, "min_keep")
    if max_keep:
        call.scalar("q", 2056, max_keep, "max_keep")
    if min_extra:
        call.scalar("q", 2064, min_extra, "min_extra")
    if force_first:
        call.scalar("q", 2072, force_first, "force_first")
    if force_previous:
        call.scalar("q", 2080, force_previous, "force_previous")
    if force_last:
        call.scalar("q", 2088, force_last, "force_last")
    if remap_step:
        call.scalar("q", 2096, remap_step, "remap_step")
    if remap_span:
        call.scalar("q", 2104, remap_span, "remap_span")
    if scale:
        call.scalar("f", 2112, scale, "scale")
    if ratio:
        call.scalar("f", 2116, ratio, "ratio")
    if cover:
        call.scalar("f", 2120, cover, "cover")
    if threshold:
        call.scalar("f", 2124, threshold, "threshold")
    if measure:
        call.enum(2128, measure, "measure", SelectMeasure)
    if normalise:
        call.enum(2132, normalise, "normalise", SelectNormalise)
    if reduce:
        call.enum(2136, reduce, "reduce", SelectReduce)
    if reduce_raw:
        call.scalar("i", 2140, reduce_raw, "reduce_raw")
    if rule:
        call.enum(2144, rule, "rule", SelectRule)
    if scope:
        call.enum(2148, scope, "scope", SelectScope)
    if ratio_up:
        call.scalar("i", 2152, ratio_up, "ratio_up")
    if forced_count:
        call.scalar("i", 2156, forced_count, "forced_count")
    if force_own:
        call.scalar("i", 2160, force_own, "force_own")
    if complete:
        call.scalar("i", 2164, complete, "complete")
    if causal:
        call.scalar("i", 2168, causal, "causal")
    if block_rows:
        call.scalar("i", 2172, block_rows, "block_rows")
    if block_keys:
        call.scalar("i", 2176, block_keys, "block_keys")
    return call.run(index, index_count, kept_score, kept_mass, score_out)


def pool_forward(ctx_or_x=None, /, x=None, *, ctx=None, y=None, similar=None, dissimilar=None,
                 similar_least=None, rank_score=None, gate=None, bias=None, previous=None,
                 key_begin=None, key_start=None, key_len=None, old_len=None, page_table=None,
                 cache_row=None, b=None, u=None, h=None, f=None, key_max=0, block=0, step=0,
                 ranked=0, want=0, complete=0, overlap=0):
    """Summaries of blocks of tokens: of keys, queries or values.

      y[c] = summary of the tokens [c step, c step + block) of the sequence    c = 0, 1, ...
    as far as the sequence has them: a block counts its own tokens.  Head i of y reads head
    i / (h / g) of x.  A block without tokens gives 0.  Blocks that the sequence does not have are
    not written.  NaN in a column makes NaN of it.

    Packed, the first block of sequence r is key_start[r] / step + r, as in x_select_block.  With
    key_begin blocks are [key_begin[c], key_begin[c + 1]), all u of them.

    gated with overlap = 1 reads 2 f columns of x and gate.  Block c is then blocks c - 1 and c:
    the tokens of c - 1 give their first f columns, those of c the last f.  bias[i] is added to the
    gate of place i: token i of the block, with overlap of its own block.

    similar = |mean of x_i / |x_i||^2 over the block, 0 for x_i = 0: 1 where all point one way.

    Limits: none on widths.  Every valid call has a kernel on both backends, one pass over x.  On
    CUDA max, min, mean and sum are fastest where rows of x are whole pieces of 16 bytes.
    Sources: Quest (2406.10774), InfLLM (2402.04617), MoBA (2502.13189), NSA (2502.11089),
    SpargeAttention (2502.18137), SeerAttention (2410.13276), SparQ (2312.04985).

    Example
      y = fovea.experimental.pool_forward(x)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      x: (b, t, g, d) or paged (pool, page, g, d) f32 f16 bf16: g divides h

    Outputs, new unless passed
      y: (b, u, h, f) as x or f32: f = d for each wanted part; may be previous

    Outputs on request, by True or an array
      similar: (b, h, u) f32
      dissimilar: (b, h, u) u8: 3 where similar <= similar_least, else 0: column_forced and
          row_forced of x_select_block; needs similar_least

    Optional inputs
      similar_least: (h) f32
      rank_score: (b, h, t) or paged (b, h, keys) f32: of ranked
      gate: (b, t, h, d) as x or f32: of gated
      bias: (places, d) f32: of gated; places = block
      previous: (b, u, h, f) as y: of running: the mean of the first old_len tokens
      key_begin: (b, h, u+1) i32: ascending; in place of block and step
      key_start: (r+1) i32: first packed token of each sequence, ascending from 0; then b = 1
      key_len: (r) i32: tokens in use
      old_len: (r) i32: only blocks that hold a token from here on are written; absent: all
      page_table: (rows, pages) i32: -1: page absent, and its tokens do not count
      cache_row: (r) i32: row of page_table; -1 or past the last skips the sequence; needs
          page_table

    b, u, h, f: extents of new outputs that no input tells.

    Numbers
      key_max: longest sequence; 0: t, or pages * page
      block: tokens of a block, 1 .. 2^30; 0: 64
      step: tokens between blocks, 1 .. block; 0: block
      ranked: tokens of ranked, >= 1
      want: sum of fovea_x_summary; 0: mean
      complete: 1: only blocks that have all their tokens
      overlap: 1: of gated, see above; step = block
    """
    if ctx_or_x.__class__ is Context and ctx is None:
        call = Call(ctx_or_x, _x_pool_forward)
    else:
        call, inputs = _x_pool_forward.begin(ctx_or_x, ctx, x)
        [x] = inputs
    v_x = call.put("x", 8, x, 4)
    v_similar_least = None
    if similar_least is not None:
        v_similar_least = call.put("similar_least", 392, similar_least, 1)
    v_rank_score = None
    if rank_score is not None:
        v_rank_score = call.put("rank_score", 488, rank_score, 3)
    v_gate = None
    if gate is not None:
        v_gate = call.put("gate", 584, gate, 4)
    if bias is not None:
        call.put("bias", 680, bias)
    v_previous = None
    if previous is not None:
        v_previous = call.put("previous", 776, previous, 4)
    v_key_begin = None
    if key_begin is not None:
        v_key_begin = call.put("key_begin", 872, key_begin, 3)
    if key_start is not None:
        call.put("key_start", 968, key_start)
    if key_len is not None:
        call.put("key_len", 1064, key_len)
    if old_len is not None:
        call.put("old_len", 1160, old_len)
    if page_table is not None:
        call.put("page_table", 1256, page_table)
    if cache_row is not None:
        call.put("cache_row", 1352, cache_row)
    y = call.out("y", 104, y, lambda: (call.size("b", b, (v_rank_score, 0, 0), (v_gate, 0, 0),
        (v_previous, 0, 0), (v_key_begin, 0, 0)), call.size("u", u, (v_previous, 1, 0),
        (v_key_begin, 2, 1)), call.size("h", h, (v_similar_least, 0, 0), (v_rank_score, 1, 0),
        (v_gate, 2, 0), (v_previous, 2, 0), (v_key_begin, 1, 0)), call.size("f", f, (v_previous, 3,
        0))), v_x[1])
    if similar is not None:
        similar = None if similar is False else call.out("similar", 200, similar, lambda:
            (call.size("b", b, (v_rank_score, 0, 0), (v_gate, 0, 0), (v_previous, 0, 0),
            (v_key_begin, 0, 0)), call.size("h", h, (v_similar_least, 0, 0), (v_rank_score, 1, 0),
            (v_gate, 2, 0), (v_previous, 2, 0), (v_key_begin, 1, 0)), call.size("u", u, (v_previous,
            1, 0), (v_key_begin, 2, 1))), 1)
    if dissimilar is not None:
        dissimilar = None if dissimilar is False else call.out("dissimilar", 296, dissimilar,
            lambda: (call.size("b", b, (v_rank_score, 0, 0), (v_gate, 0, 0), (v_previous, 0, 0),
            (v_key_begin, 0, 0)), call.size("h", h, (v_similar_least, 0, 0), (v_rank_score, 1, 0),
            (v_gate, 2, 0), (v_previous, 2, 0), (v_key_begin, 1, 0)), call.size("u", u, (v_previous,
            1, 0), (v_key_begin, 2, 1))), 10)
    if key_max:
        call.scalar("q", 1448, key_max, "key_max")
    if block:
        call.scalar("q", 1456, block, "block")
    if step:
        call.scalar("q", 1464, step, "step")
    if ranked:
        call.scalar("q", 1472, ranked, "ranked")
    if want:
        call.scalar("i", 1480, want, "want")
    if complete:
        call.scalar("i", 1484, complete, "complete")
    if overlap:
        call.scalar("i", 1488, overlap, "overlap")
    return call.run(y, similar, dissimilar)


def pool_backward(ctx_or_x=None, /, x=None, dy=None, *, ctx=None, dx=None, dgate=None, dbias=None,
                  gate=None, bias=None, key_begin=None, key_start=None, key_len=None, key_max=0,
                  block=0, step=0, want=0, complete=0, overlap=0):
    """Gradients of x_pool_forward for max, min, mean, sum and gated.  Those of max and min go to the
    first of equal tokens.  Blocks that overlap add up, in their order.

    gated, with w the weights of a block:
      dx_i = w_i dy,  dgate_i = w_i dy (x_i - y),  dbias[i] = sum over blocks of dgate

    Every element of an output is written, 0 where no block reads the token.

    Example
      dx = fovea.experimental.pool_backward(x, dy)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      x: (b, t, g, d) f32 f16 bf16: g divides h
      dy: (b, u, h, f) as x or f32

    Outputs, new unless passed or False
      dx: (b, t, g, d) as x

    Outputs on request, by True or an array
      dgate: (b, t, h, d) as x or f32: needs gate
      dbias: (places, d) f32: needs bias

    Optional inputs
      gate: (b, t, h, d) as x or f32: of gated
      bias: (places, d) f32: of gated
      key_begin: (b, h, u+1) i32: ascending
      key_start: (r+1) i32: first packed token of each sequence, ascending from 0; then b = 1
      key_len: (r) i32: tokens in use

    Numbers
      key_max: longest sequence; 0: t
      block: as in x_pool_forward
      step: as in x_pool_forward
      want: sum of fovea_x_summary without ranked and running; 0: mean
      complete: 1: only blocks that have all their tokens
      overlap: 1: of gated; step = block
    """
    if ctx_or_x.__class__ is Context and ctx is None:
        call = Call(ctx_or_x, _x_pool_backward)
    else:
        call, inputs = _x_pool_backward.begin(ctx_or_x, ctx, x, dy)
        [x, dy] = inputs
    v_x = call.put("x", 8, x, 4)
    call.put("dy", 104, dy)
    v_gate = None
    if gate is not None:
        v_gate = call.put("gate", 200, gate, 4)
    v_bias = None
    if bias is not None:
        v_bias = call.put("bias", 296, bias, 2)
    if key_begin is not None:
        call.put("key_begin", 392, key_begin)
    if key_start is not None:
        call.put("key_start", 488, key_start)
    if key_len is not None:
        call.put("key_len", 584, key_len)
    dx = None if dx is False else call.out("dx", 680, dx, v_x[2], v_x[1])
    if dgate is not None:
        dgate = None if dgate is False else call.out("dgate", 776, dgate, lambda: call.twin("dgate",
            "gate", v_gate), v_x[1])
    if dbias is not None:
        dbias = None if dbias is False else call.out("dbias", 872, dbias, lambda: call.twin("dbias",
            "bias", v_bias), 1)
    if key_max:
        call.scalar("q", 968, key_max, "key_max")
    if block:
        call.scalar("q", 976, block, "block")
    if step:
        call.scalar("q", 984, step, "step")
    if want:
        call.scalar("i", 992, want, "want")
    if complete:
        call.scalar("i", 996, complete, "complete")
    if overlap:
        call.scalar("i", 1000, overlap, "overlap")
    return call.run(dx, dgate, dbias)


def probe_forward(ctx_or_q=None, /, q=None, k=None, *, ctx=None, lse=None, column_sum=None,
                  diagonal_sum=None, block_sum=None, block_max=None, lse_in=None,
                  query_position=None, query_start=None, key_start=None, query_len=None,
                  key_len=None, page_table=None, cache_row=None, context_len=None, key_b=None,
                  x=None, t=None, r=None, keys=None, n=None, u=None, query_max=0, key_max=0,
                  window_left=0, window_right=0, sink_keys=0, key_step=0, key_shift=0,
                  group_stride=0, scale=0.0, causal=0, block_rows=0, block_keys=0, reversed=0,
                  reduce=0):
    """Statistics of attention's probabilities over the rows of q, without storing them: q holds
    sampled rows at query_position, or the last rows of each sequence.

      P_ij = exp(scale q_i k_j - lse_i) over the keys that row i sees, lse as attention_forward's
      column_sum[j]   = sum_i P_ij
      diagonal_sum[o] = sum of P_ij over p_i - j = o, o = 0, 1, ...
      block_sum[I, J] = sum of P_ij over the rows of row block I and the keys of key block J
      block_max[I, J] = the largest of these, 0 where there is none
    Head j of x is the h / x query heads from j (h / x) on, reduced.  With lse_in nothing is
    normalised anew; P above 65536 counts as that in diagonal_sum.

    group_stride = S > 1 (antidiagonal scores): a row u and a key v stand for S tokens each,
      L_uv = scale / S sum_r q_(u S + r) k_(v S + r),  reversed = 1: q_(u S + S - 1 - r)
    and P is the softmax of L over v.  Tokens past the end, and those of absent pages, give 0.
    causal compares v with u + floor((context_len - Lq) / S).  Blocks count tokens, as without it.

    Row blocks lie as in x_select_block: packed, the first of sequence r is query_start[r] /
    block_rows + r, with block_rows 1 query_start[r].  Row blocks that a sequence has are written
    with all u key blocks, which are the sequence's own.  The other outputs are written in every
    element, lse as far as there are rows.

    Limits: d is 1 .. 576.  On Hopper tensor cores serve f16 and bf16 where d is a multiple of 8 and
    k has no pages.  Key blocks have a power of two of keys or groups.  f32 FMA serves the rest.
    Sources: H2O (2306.14048), MInference (2407.02490), SampleAttention (2406.15486), FlexPrefill
    (2502.20766), XAttention (2503.16428).

    Example
      outputs = fovea.experimental.probe_forward(q, k, lse=True, column_sum=True, diagonal_sum=True)
      lse, column_sum, diagonal_sum = outputs

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q: (b, s, h, d) f32 f16 bf16
      k: (rows, t, g, d) or paged (pool, page, g, d) as q: g divides h

    Outputs on request, by True or an array
      lse: (b, h, s) f32: not with lse_in
      column_sum: (key_b, x, t) or paged (r, x, keys) f32: by storage index, or paged by key column
      diagonal_sum: (r, x, keys) or broadcastable f32: needs key_step 1, key_shift 0
      block_sum: (b, x, n, u) f32
      block_max: (b, x, n, u) f32

    Optional inputs
      lse_in: (b, h, s) f32: of each row; absent: it is found
      query_position: (b, h, s) i32: absent: i + context_len - Lq
      query_start: (r+1) i32: first packed row of each sequence, ascending from 0; then b = 1
      key_start: (r+1) i32: first packed key of each sequence; not with page_table or cache_row
      query_len: (r) i32: rows in use
      key_len: (r) i32: keys in use
      page_table: (rows, pages) i32: -1: page absent, its keys are not seen
      cache_row: (r) i32: row of page_table, or of k
      context_len: (r) i32: absent: Lk; not with query_position

    key_b, x, t, r, keys, n, u: extents of new outputs that no input tells.

    Numbers
      query_max: longest sequence of rows; 0: s
      key_max: longest sequence of keys; 0: t, or pages * page
      window_left: keys seen to the left, the row's own position counted; 0: all
      window_right: keys seen to the right, the same; 0: all, 1: none
      sink_keys: first keys seen through window_left
      key_step: key j is at position key_step j + key_shift; 0: 1
      key_shift: see key_step
      group_stride: S, >= 1; 0: 1.  > 1: only block_sum and block_max, causal alone, and S divides
          block_rows and block_keys
      scale: > 0; 0: 1 / sqrt(d)
      causal: 1: as window_right 1
      block_rows: rows of a row block, >= 1; 0: 64
      block_keys: keys of a key block, >= 1; 0: 64
      reversed: 1: of group_stride > 1, see above
      reduce: "sum", "mean", "max"
    """
    if ctx_or_q.__class__ is Context and ctx is None:
        call = Call(ctx_or_q, _x_probe_forward)
    else:
        call, inputs = _x_probe_forward.begin(ctx_or_q, ctx, q, k)
        [q, k] = inputs
    v_q = call.put("q", 8, q, 4)
    call.put("k", 104, k)
    if lse_in is not None:
        call.put("lse_in", 200, lse_in)
    if query_position is not None:
        call.put("query_position", 296, query_position)
    v_query_start = None
    if query_start is not None:
        v_query_start = call.put("query_start", 872, query_start, 1)
    v_key_start = None
    if key_start is not None:
        v_key_start = call.put("key_start", 968, key_start, 1)
    v_query_len = None
    if query_len is not None:
        v_query_len = call.put("query_len", 1064, query_len, 1)
    v_key_len = None
    if key_len is not None:
        v_key_len = call.put("key_len", 1160, key_len, 1)
    if page_table is not None:
        call.put("page_table", 1256, page_table)
    v_cache_row = None
    if cache_row is not None:
        v_cache_row = call.put("cache_row", 1352, cache_row, 1)
    v_context_len = None
    if context_len is not None:
        v_context_len = call.put("context_len", 1448, context_len, 1)
    if lse is not None:
        lse = None if lse is False else call.out("lse", 392, lse, (v_q[2][0], v_q[2][2], v_q[2][1]),
            1)
    if column_sum is not None:
        column_sum = None if column_sum is False else call.out("column_sum", 488, column_sum,
            lambda: (call.size("key_b", key_b), call.size("x", x), call.size("t", t)), 1)
    if diagonal_sum is not None:
        diagonal_sum = None if diagonal_sum is False else call.out("diagonal_sum", 584,
            diagonal_sum, lambda: (call.size("r", r, (v_query_start, 0, 1), (v_key_start, 0, 1),
            (v_query_len, 0, 0), (v_key_len, 0, 0), (v_cache_row, 0, 0), (v_context_len, 0, 0),
            (v_q, 0, 0)), call.size("x", x), call.size("keys", keys)), 1)
    if block_sum is not None:
        block_sum = None if block_sum is False else call.out("block_sum", 680, block_sum, lambda:
            (v_q[2][0], call.size("x", x), call.size("n", n), call.size("u", u)), 1)
    if block_max is not None:
        block_max = None if block_max is False else call.out("block_max", 776, block_max, lambda:
            (v_q[2][0], call.size("x", x), call.size("n", n), call.size("u", u)), 1)
    if query_max:
        call.scalar("q", 1544, query_max, "query_max")
    if key_max:
        call.scalar("q", 1552, key_max, "key_max")
    if window_left:
        call.scalar("q", 1560, window_left, "window_left")
    if window_right:
        call.scalar("q", 1568, window_right, "window_right")
    if sink_keys:
        call.scalar("q", 1576, sink_keys, "sink_keys")
    if key_step:
        call.scalar("q", 1584, key_step, "key_step")
    if key_shift:
        call.scalar("q", 1592, key_shift, "key_shift")
    if group_stride:
        call.scalar("q", 1600, group_stride, "group_stride")
    if scale:
        call.scalar("f", 1608, scale, "scale")
    if causal:
        call.scalar("i", 1612, causal, "causal")
    if block_rows:
        call.scalar("i", 1616, block_rows, "block_rows")
    if block_keys:
        call.scalar("i", 1620, block_keys, "block_keys")
    if reversed:
        call.scalar("i", 1624, reversed, "reversed")
    if reduce:
        call.enum(1628, reduce, "reduce", ProbeReduce)
    return call.run(lse, column_sum, diagonal_sum, block_sum, block_max)


def combine_forward(ctx_or_x=None, /, x=None, *, ctx=None, y=None, x2=None, x3=None, x4=None,
                    coarse=None, gate=None, gate2=None, gate3=None, gate4=None, gate_coarse=None,
                    row_begin=None, query_len=None, block_rows=0, coefficient=0.0, coefficient2=0.0,
                    coefficient3=0.0, coefficient4=0.0, coefficient_coarse=0.0, gate_act=0,
                    gate2_act=0, gate3_act=0, gate4_act=0, gate_coarse_act=0):
    """The weighted sum of branches.

      y = sum of coefficient * act(gate) * x over x, x2, x3, x4 and coarse, in this order, in f32
    Row i takes the row of coarse whose block it is in: rows [row_begin[c], row_begin[c + 1]), or
    [c block_rows, (c + 1) block_rows).  A row in no block takes nothing of coarse.
    Rows past query_len are neither read nor written.

    Limits: none on widths.  One pass over memory.  On CUDA the forward is fastest where rows are
    whole pieces of 16 bytes and a gate is one number a row.
    Sources: NSA (2502.11089), VSA (2505.13389), DuoAttention (2410.10819), SparQ (2312.04985),
    DiTFastAttn (2406.08552).

    Example
      y = fovea.experimental.combine_forward(x)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      x: (b, s, h, e) f32 f16 bf16: a branch; stride 0 broadcasts

    Outputs, new unless passed
      y: (b, s, h, e) as x or f32: may be x

    Optional inputs
      x2: (b, s, h, e) as x
      x3: (b, s, h, e) as x
      x4: (b, s, h, e) as x
      coarse: (b, u, h, e) as x: a row for each block of rows
      gate: (b, s, h, e) as x or f32: of x; absent: 1
      gate2: (b, s, h, e) as x or f32: of x2; absent: 1
      gate3: (b, s, h, e) as x or f32: of x3; absent: 1
      gate4: (b, s, h, e) as x or f32: of x4; absent: 1
      gate_coarse: (b, s, h, e) as x or f32: of coarse; absent: 1
      row_begin: (b, u+1) i32: first row of each block, ascending; in place of block_rows
      query_len: (b) i32: rows in use, 0 .. s

    Numbers
      block_rows: rows of a block of coarse, >= 1; 0: 64
      coefficient: not 0; 0: 1
      coefficient2: not 0; 0: 1
      coefficient3: not 0; 0: 1
      coefficient4: not 0; 0: 1
      coefficient_coarse: not 0; 0: 1
      gate_act: "none", "sigmoid", "complement", "sigmoid_complement"
      gate2_act: "none", "sigmoid", "complement", "sigmoid_complement"
      gate3_act: "none", "sigmoid", "complement", "sigmoid_complement"
      gate4_act: "none", "sigmoid", "complement", "sigmoid_complement"
      gate_coarse_act: "none", "sigmoid", "complement", "sigmoid_complement"
    """
    if ctx_or_x.__class__ is Context and ctx is None:
        call = Call(ctx_or_x, _x_combine_forward)
    else:
        call, inputs = _x_combine_forward.begin(ctx_or_x, ctx, x)
        [x] = inputs
    v_x = call.put("x", 8, x, 4)
    if x2 is not None:
        call.put("x2", 104, x2)
    if x3 is not None:
        call.put("x3", 200, x3)
    if x4 is not None:
        call.put("x4", 296, x4)
    if coarse is not None:
        call.put("coarse", 392, coarse)
    if gate is not None:
        call.put("gate", 488, gate)
    if gate2 is not None:
        call.put("gate2", 584, gate2)
    if gate3 is not None:
        call.put("gate3", 680, gate3)
    if gate4 is not None:
        call.put("gate4", 776, gate4)
    if gate_coarse is not None:
        call.put("gate_coarse", 872, gate_coarse)
    if row_begin is not None:
        call.put("row_begin", 968, row_begin)
    if query_len is not None:
        call.put("query_len", 1064, query_len)
    y = call.out("y", 1160, y, v_x[2], v_x[1])
    if block_rows:
        call.scalar("q", 1256, block_rows, "block_rows")
    if coefficient:
        call.scalar("f", 1264, coefficient, "coefficient")
    if coefficient2:
        call.scalar("f", 1268, coefficient2, "coefficient2")
    if coefficient3:
        call.scalar("f", 1272, coefficient3, "coefficient3")
    if coefficient4:
        call.scalar("f", 1276, coefficient4, "coefficient4")
    if coefficient_coarse:
        call.scalar("f", 1280, coefficient_coarse, "coefficient_coarse")
    if gate_act:
        call.enum(1284, gate_act, "gate_act", Gate)
    if gate2_act:
        call.enum(1288, gate2_act, "gate2_act", Gate)
    if gate3_act:
        call.enum(1292, gate3_act, "gate3_act", Gate)
    if gate4_act:
        call.enum(1296, gate4_act, "gate4_act", Gate)
    if gate_coarse_act:
        call.enum(1300, gate_coarse_act, "gate_coarse_act", Gate)
    return call.run(y)


def combine_backward(ctx_or_x=None, /, x=None, dy=None, *, ctx=None, dx=None, dx2=None, dx3=None,
                     dx4=None, dcoarse=None, dgate=None, dgate2=None, dgate3=None, dgate4=None,
                     dgate_coarse=None, x2=None, x3=None, x4=None, coarse=None, gate=None,
                     gate2=None, gate3=None, gate4=None, gate_coarse=None, row_begin=None,
                     query_len=None, block_rows=0, coefficient=0.0, coefficient2=0.0,
                     coefficient3=0.0, coefficient4=0.0, coefficient_coarse=0.0, gate_act=0,
                     gate2_act=0, gate3_act=0, gate4_act=0, gate_coarse_act=0):
    """Gradients of x_combine_forward.

      dx = coefficient act(gate) dy,  dgate = coefficient act'(gate) x dy
    An axis of stride 0 of a gradient receives the sum over that axis.  dcoarse sums over the rows
    of each block.  Rows past query_len give 0.

    Example
      dx = fovea.experimental.combine_backward(x, dy)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      x: (b, s, h, e) f32 f16 bf16: a branch; stride 0 broadcasts
      dy: (b, s, h, e) as x or f32

    Outputs, new unless passed or False
      dx: (b, s, h, e) as x

    Outputs on request, by True or an array
      dx2: (b, s, h, e) as x: needs x2
      dx3: (b, s, h, e) as x: needs x3
      dx4: (b, s, h, e) as x: needs x4
      dcoarse: (b, u, h, e) as x: needs coarse
      dgate: (b, s, h, e) as x or f32: needs gate
      dgate2: (b, s, h, e) as x or f32: needs gate2
      dgate3: (b, s, h, e) as x or f32: needs gate3
      dgate4: (b, s, h, e) as x or f32: needs gate4
      dgate_coarse: (b, s, h, e) as x or f32: needs gate_coarse

    Optional inputs
      x2: (b, s, h, e) as x
      x3: (b, s, h, e) as x
      x4: (b, s, h, e) as x
      coarse: (b, u, h, e) as x: a row for each block of rows
      gate: (b, s, h, e) as x or f32: of x; absent: 1
      gate2: (b, s, h, e) as x or f32: of x2; absent: 1
      gate3: (b, s, h, e) as x or f32: of x3; absent: 1
      gate4: (b, s, h, e) as x or f32: of x4; absent: 1
      gate_coarse: (b, s, h, e) as x or f32: of coarse; absent: 1
      row_begin: (b, u+1) i32: first row of each block, ascending; in place of block_rows
      query_len: (b) i32: rows in use, 0 .. s

    Numbers
      block_rows: rows of a block of coarse, >= 1; 0: 64
      coefficient: not 0; 0: 1
      coefficient2: not 0; 0: 1
      coefficient3: not 0; 0: 1
      coefficient4: not 0; 0: 1
      coefficient_coarse: not 0; 0: 1
      gate_act: "none", "sigmoid", "complement", "sigmoid_complement"
      gate2_act: "none", "sigmoid", "complement", "sigmoid_complement"
      gate3_act: "none", "sigmoid", "complement", "sigmoid_complement"
      gate4_act: "none", "sigmoid", "complement", "sigmoid_complement"
      gate_coarse_act: "none", "sigmoid", "complement", "sigmoid_complement"
    """
    if ctx_or_x.__class__ is Context and ctx is None:
        call = Call(ctx_or_x, _x_combine_backward)
    else:
        call, inputs = _x_combine_backward.begin(ctx_or_x, ctx, x, dy)
        [x, dy] = inputs
    v_x = call.put("x", 8, x, 4)
    v_x2 = None
    if x2 is not None:
        v_x2 = call.put("x2", 104, x2, 4)
    v_x3 = None
    if x3 is not None:
        v_x3 = call.put("x3", 200, x3, 4)
    v_x4 = None
    if x4 is not None:
        v_x4 = call.put("x4", 296, x4, 4)
    v_coarse = None
    if coarse is not None:
        v_coarse = call.put("coarse", 392, coarse, 4)
    v_gate = None
    if gate is not None:
        v_gate = call.put("gate", 488, gate, 4)
    v_gate2 = None
    if gate2 is not None:
        v_gate2 = call.put("gate2", 584, gate2, 4)
    v_gate3 = None
    if gate3 is not None:
        v_gate3 = call.put("gate3", 680, gate3, 4)
    v_gate4 = None
    if gate4 is not None:
        v_gate4 = call.put("gate4", 776, gate4, 4)
    v_gate_coarse = None
    if gate_coarse is not None:
        v_gate_coarse = call.put("gate_coarse", 872, gate_coarse, 4)
    if row_begin is not None:
        call.put("row_begin", 968, row_begin)
    if query_len is not None:
        call.put("query_len", 1064, query_len)
    call.put("dy", 1160, dy)
    dx = None if dx is False else call.out("dx", 1256, dx, v_x[2], v_x[1])
    if dx2 is not None:
        dx2 = None if dx2 is False else call.out("dx2", 1352, dx2, lambda: call.twin("dx2", "x2",
            v_x2), v_x[1])
    if dx3 is not None:
        dx3 = None if dx3 is False else call.out("dx3", 1448, dx3, lambda: call.twin("dx3", "x3",
            v_x3), v_x[1])
    if dx4 is not None:
        dx4 = None if dx4 is False else call.out("dx4", 1544, dx4, lambda: call.twin("dx4", "x4",
            v_x4), v_x[1])
    if dcoarse is not None:
        dcoarse = None if dcoarse is False else call.out("dcoarse", 1640, dcoarse, lambda:
            call.twin("dcoarse", "coarse", v_coarse), v_x[1])
    if dgate is not None:
        dgate = None if dgate is False else call.out("dgate", 1736, dgate, lambda:
            call.twin("dgate", "gate", v_gate), v_x[1])
    if dgate2 is not None:
        dgate2 = None if dgate2 is False else call.out("dgate2", 1832, dgate2, lambda:
            call.twin("dgate2", "gate2", v_gate2), v_x[1])
    if dgate3 is not None:
        dgate3 = None if dgate3 is False else call.out("dgate3", 1928, dgate3, lambda:
            call.twin("dgate3", "gate3", v_gate3), v_x[1])
    if dgate4 is not None:
        dgate4 = None if dgate4 is False else call.out("dgate4", 2024, dgate4, lambda:
            call.twin("dgate4", "gate4", v_gate4), v_x[1])
    if dgate_coarse is not None:
        dgate_coarse = None if dgate_coarse is False else call.out("dgate_coarse", 2120,
            dgate_coarse, lambda: call.twin("dgate_coarse", "gate_coarse", v_gate_coarse), v_x[1])
    if block_rows:
        call.scalar("q", 2216, block_rows, "block_rows")
    if coefficient:
        call.scalar("f", 2224, coefficient, "coefficient")
    if coefficient2:
        call.scalar("f", 2228, coefficient2, "coefficient2")
    if coefficient3:
        call.scalar("f", 2232, coefficient3, "coefficient3")
    if coefficient4:
        call.scalar("f", 2236, coefficient4, "coefficient4")
    if coefficient_coarse:
        call.scalar("f", 2240, coefficient_coarse, "coefficient_coarse")
    if gate_act:
        call.enum(2244, gate_act, "gate_act", Gate)
    if gate2_act:
        call.enum(2248, gate2_act, "gate2_act", Gate)
    if gate3_act:
        call.enum(2252, gate3_act, "gate3_act", Gate)
    if gate4_act:
        call.enum(2256, gate4_act, "gate4_act", Gate)
    if gate_coarse_act:
        call.enum(2260, gate_coarse_act, "gate_coarse_act", Gate)
    return call.run(dx, dx2, dx3, dx4, dcoarse, dgate, dgate2, dgate3, dgate4, dgate_coarse)


def compare_forward(ctx_or_reference=None, /, reference=None, candidate=None, *, ctx=None,
                    distance=None, best=None, query_len=None, measure=0):
    """Distances of candidates from a reference, for each head of each sequence.

    Rows past query_len do not count; without rows the distance is 0.  A row whose sum is 0 is a
    vector of zeros.  NaN is never best.

    Limits: none on widths.  One pass over memory, one kernel a backend.
    Sources: Sparse VideoGen (2502.01776), FlexPrefill (2502.20766).

    Example
      outputs = fovea.experimental.compare_forward(reference, candidate, distance=True, best=True)
      distance, best = outputs

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      reference: (b, s, h, e) f32 f16 bf16
      candidate: (n, b, s, h, e) as reference

    Outputs on request, by True or an array
      distance: (n, b, h) f32
      best: (b, h) i32: the candidate with the smallest distance, the first of equals; -1: none

    Optional inputs
      query_len: (b) i32: rows in use, 0 .. s

    Numbers
      measure: "x_compare_mse", "x_compare_jsd"
    """
    if ctx_or_reference.__class__ is Context and ctx is None:
        call = Call(ctx_or_reference, _x_compare_forward)
    else:
        call, inputs = _x_compare_forward.begin(ctx_or_reference, ctx, reference, candidate)
        [reference, candidate] = inputs
    v_reference = call.put("reference", 8, reference, 4)
    v_candidate = call.put("candidate", 104, candidate, 5)
    if query_len is not None:
        call.put("query_len", 200, query_len)
    if distance is not None:
        distance = None if distance is False else call.out("distance", 296, distance,
            (v_candidate[2][0], v_reference[2][0], v_reference[2][2]), 1)
    if best is not None:
        best = None if best is False else call.out("best", 392, best, (v_reference[2][0],
            v_reference[2][2]), 8)
    if measure:
        call.enum(488, measure, "measure", CompareMeasure)
    return call.run(distance, best)


def cache_step(ctx_or_k=None, /, k=None, v=None, position=None, count=None, *, ctx=None, score=None,
               k_new=None, v_new=None, mass=None, query_len=None, old_len=None, capacity=None,
               sink_keys=0, recent=0, heavy=0, rule=0):
    """One step of a bounded cache: what is too much goes, and new tokens come.

    The live tokens of a head are its slots [0, count), in no order of positions.  Attention over
    them is x_sparse_forward's or attention_forward's with key_len = count.  New token n is at
    position old_len + n; without old_len, behind the largest live position, or 0 without one.

    ring   Position p has slot p where p < sink_keys + recent, else sink_keys + (p - sink_keys) %
           recent.  With capacity[g] a head has recent = capacity[g] - sink_keys; heads may differ.
           Slots from count on are not written.
    heavy  1. mass is added to the score of each live slot.
           2. Live tokens that the rule does not keep go.  Kept ones in slots from the new count on
              move down to the free slots, both in ascending order.
           3. New tokens come behind, with a score of 0; needs t >= heavy + recent + s.
           So the mass that attention gives the new tokens counts at the next step.

    k and v are stored as given.  Keys that are to be rotated by cache rank are rotated later.

    Limits: none on widths.  Every valid call has one kernel a backend.
    Sources: StreamingLLM (2309.17453), H2O (2306.14048), MoA (2406.14909), DuoAttention
    (2410.10819).

    Example
      fovea.experimental.cache_step(k, v, position, count)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      k: (b, t, g, d) f32 f16 bf16: t slots
      v: (b, t, g, e) as k
      position: (b, g, t) i32: of each live slot
      count: (b, g) i32: live slots

    Optional inputs
      score: (b, g, t) f32: of heavy
      k_new: (b, s, g, d) as k: needs v_new; absent: only what is too much goes
      v_new: (b, s, g, e) as k
      mass: (b, g, t) f32: of heavy, of each live slot
      query_len: (b) i32: new tokens in use, 0 .. s
      old_len: (b) i32: tokens before the new ones
      capacity: (g) i32: of ring: slots of each head, sink_keys + 1 .. t; recent stays 0

    Numbers
      sink_keys: of ring
      recent: of ring >= 1, of heavy >= 0
      heavy: of heavy, >= 0
      rule: "ring", "heavy"
    """
    if ctx_or_k.__class__ is Context and ctx is None:
        call = Call(ctx_or_k, _x_cache_step)
    else:
        call, inputs = _x_cache_step.begin(ctx_or_k, ctx, k, v, position, count)
        [k, v, position, count] = inputs
    call.put("k", 8, k, None, True)
    call.put("v", 104, v, None, True)
    call.put("position", 200, position, None, True)
    call.put("count", 296, count, None, True)
    if score is not None:
        call.put("score", 392, score, None, True)
    if k_new is not None:
        call.put("k_new", 488, k_new)
    if v_new is not None:
        call.put("v_new", 584, v_new)
    if mass is not None:
        call.put("mass", 680, mass)
    if query_len is not None:
        call.put("query_len", 776, query_len)
    if old_len is not None:
        call.put("old_len", 872, old_len)
    if capacity is not None:
        call.put("capacity", 968, capacity)
    if sink_keys:
        call.scalar("q", 1064, sink_keys, "sink_keys")
    if recent:
        call.scalar("q", 1072, recent, "recent")
    if heavy:
        call.scalar("q", 1080, heavy, "heavy")
    if rule:
        call.enum(1088, rule, "rule", CacheRule)
    return call.run()


def evict_forward(ctx_or_q=None, /, q=None, k=None, v=None, *, ctx=None, k_kept=None, v_kept=None,
                  index=None, index_count=None, query_len=None, key_len=None, keep=None, window=0,
                  width=0, scale=0.0):
    """The keys of each key head that a prompt's last rows attend to, and the prompt's last keys.

    With P the causal softmax of the rows of q, which are the last of the sequence:
      1. sum_j   = the sum of P_ij over the rows i and over the query heads of the key head
      2. score_j = the largest of sum_(j - width / 2) .. sum_(j + width / 2), of those before the
                   last `window` keys
      3. the last `window` keys stay, and of the others those of the highest score, keep in all
    Order and ties are x_select_block's: of equal scores the lower key; NaN is never taken.
    Keys stay in their order, without gaps.  k and v are stored as given: keys keep the positions
    that they were rotated with.  Slots past a head's count are not written.

    A sequence of fewer than keep keys keeps all of them.  Errors name this operation, then the part
    that refuses, with that part's names of fields.

    Limits: d is 1 .. 576.  Workspace: that of x_probe_forward and x_select_block, and 8 b g t
    bytes.
    Sources: SnapKV (2404.14469), with the sum over a group and the wider maximum of RocketKV
    (2502.14051).

    Example
      k_kept, v_kept = fovea.experimental.evict_forward(q, k, v)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q: (b, s, h, d) f32 f16 bf16: the last rows of each sequence; 32 in RocketKV
      k: (b, t, g, d) as q: g divides h
      v: (b, t, g, e) as q

    Outputs, new unless passed
      k_kept: (b, keep, g, d) as k
      v_kept: (b, keep, g, e) as k

    Outputs on request, by True or an array
      index: (b, g, keep) i32: the keys that stay, ascending; -1 past the count
      index_count: (b, g) i32: how many

    Optional inputs
      query_len: (b) i32: rows in use
      key_len: (b) i32: keys in use

    keep: extents of new outputs that no input tells.

    Numbers
      window: last keys that stay, at most keep; 0: s, as far as keep goes
      width: keys of a maximum, odd; 0: 63, 1: none
      scale: > 0; 0: 1 / sqrt(d)
    """
    if ctx_or_q.__class__ is Context and ctx is None:
        call = Call(ctx_or_q, _x_evict_forward)
    else:
        call, inputs = _x_evict_forward.begin(ctx_or_q, ctx, q, k, v)
        [q, k, v] = inputs
    v_q = call.put("q", 8, q, 4)
    v_k = call.put("k", 104, k, 4)
    v_v = call.put("v", 200, v, 4)
    if query_len is not None:
        call.put("query_len", 296, query_len)
    if key_len is not None:
        call.put("key_len", 392, key_len)
    k_kept = call.out("k_kept", 488, k_kept, lambda: (v_q[2][0], call.size("keep", keep), v_k[2][2],
        v_q[2][3]), v_k[1])
    v_kept = call.out("v_kept", 584, v_kept, lambda: (v_q[2][0], call.size("keep", keep), v_k[2][2],
        v_v[2][3]), v_k[1])
    if index is not None:
        index = None if index is False else call.out("index", 680, index, lambda: (v_q[2][0],
            v_k[2][2], call.size("keep", keep)), 8)
    if index_count is not None:
        index_count = None if index_count is False else call.out("index_count", 776, index_count,
            (v_q[2][0], v_k[2][2]), 8)
    if window:
        call.scalar("q", 872, window, "window")
    if width:
        call.scalar("q", 880, width, "width")
    if scale:
        call.scalar("f", 888, scale, "scale")
    return call.run(k_kept, v_kept, index, index_count)


def select_token(ctx=None, *, index=None, index_count=None, kept_score=None, kept_mass=None, q=None,
                 k=None, k_scale=None, code_q=None, code=None, weight=None, query_start=None,
                 key_start=None, query_len=None, key_len=None, page_table=None, cache_row=None,
                 context_len=None, block_mask=None, b=None, x=None, s=None, keep=None, h=None,
                 query_max=0, key_max=0, window_left=0, window_right=0, sink_keys=0, key_step=0,
                 key_shift=0, count=0, first_keys=0, last_keys=0, force_last=0, pool_keys=0,
                 subset=0, block_keys=0, scale=0.0, ratio=0.0, measure=0, reduce=0, causal=0):
    """The keys of each row with the highest scores, for x_sparse_forward with block_keys 1, or with
    pool_keys the blocks of keys.  Scoring and selection run over a few rows at a time, and no array
    of all rows and keys is made.

    A row sees keys as in attention_forward: lengths, pages, causal, windows, sink_keys,
    context_len, key_step and key_shift.  Of these, keys in first_keys and last_keys are left out,
    since x_sparse_forward sees them by itself, and block_mask leaves out others.  List head j of x
    serves the h / x query heads from j (h / x) on; reduce makes one score of theirs.
    With pool_keys a block's score is the largest of its keys', and index holds block numbers.
    k = max(count, floor(ratio * keys that the window lets the row see)).

    Rows past query_len are neither read nor written.  A row that sees nothing has count 0.

    Limits: d is 1 .. 576.  Every valid call has a kernel on both backends.  Its product is a chain
    of f32 fused multiply-adds over the columns from 0.  On Hopper tensor cores take some with d to
    128, and sums have another order:
      dot, relu_weighted   f16, bf16, e4m3; 16, 32 or 64 query heads a list head
      dot with pool_keys   f16, bf16; 1, 2, 4 or 8; blocks of 16, 32, 64 or a multiple of 128 keys
    Workspace: 512 MiB at most, and at least the scores of one row.
    Sources: DSA (2512.02556), SparQ (2312.04985), Loki (2406.02542), HashAttention (2412.14468),
    MiniMax Sparse Attention (2606.13392).

    Example
      outputs = fovea.experimental.select_token(index=True, index_count=True, kept_score=True)
      index, index_count, kept_score = outputs

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Outputs on request, by True or an array
      index: (b, x, s, keep) i32: keys by their number in the sequence; one of index and index_count
          at least
      index_count: (b, x, s) i32: keys wanted
      kept_score: (b, x, s, keep) f32: their scores, -inf past the count; needs index
      kept_mass: (b, h, s) f32: share of the query head's softmax that the list holds, over all keys
          that can be selected.  0 for an empty list.  Of dot and subset without pool_keys; needs
          index

    Optional inputs
      q: (b, s, h, d) f32 f16 bf16 e4m3: the scale of codes is the caller's, in weight or scale;
          needs k; not with hamming
      k: (rows, t, g, d) or paged (pool, page, g, d) f32 f16 bf16 e4m3 e5m2 i8: g divides h; needs q
      k_scale: (rows, t, g, groups) or paged (pool, page, g, groups) f32: as in attention_forward,
          for e4m3, e5m2 and i8; needs k
      code_q: (b, s, h, words) i32: hamming: the bits of each query; needs code
      code: (rows, t, g, words) or paged (pool, page, g, words) i32: the bits of each key; needs
          code_q
      weight: (b, s, h) f32: of relu_weighted; absent: 1
      query_start: (r+1) i32: first packed row of each sequence, ascending from 0; then b = 1
      key_start: (r+1) i32: first packed key of each sequence; not with page_table or cache_row
      query_len: (r) i32: rows in use
      key_len: (r) i32: keys in use
      page_table: (rows, pages) i32: pool page of each page of keys; -1: absent, its keys are not
          seen
      cache_row: (r) i32: row of page_table, or of k, that a sequence reads; -1 or past the last: no
          keys; absent: its own number
      context_len: (r) i32: p_i = i + context_len - Lq; absent: Lk
      block_mask: (b, x, s, mask_bytes) u8: bit c % 8 of byte c / 8 is 1 where keys of block c of
          block_keys may be selected.  It has a bit for each block of t or pages * page keys

    b, x, s, keep, h: extents of new outputs that no input tells.

    Numbers
      query_max: longest sequence of rows; 0: s
      key_max: longest sequence of keys; 0: t or pages * page
      window_left: keys seen to the left, the row's own position counted; 0: all
      window_right: keys seen to the right, the row's own position counted; 0: all
      sink_keys: keys at positions below this stay visible through window_left
      key_step: p_j = key_step * j + key_shift, below 2^31; 0: 1
      key_shift: position of the first key; within 2^31 of 0
      count: keys, or blocks of pool_keys, to select
      first_keys: the first keys are left out
      last_keys: keys with p_i - last_keys < p_j <= p_i are left out
      force_last: the last keys (or blocks) that the row sees are taken first, and count
      pool_keys: keys of a block that is selected as a whole; 0: keys
      subset: columns of SUBSET, 1 .. d
      block_keys: keys of a block of block_mask; 0: 64
      scale: > 0; 0: 1 / sqrt(d), for hamming 1
      ratio: share of the keys that a row sees; not with pool_keys
      measure: "dot", "relu_weighted", "hamming", "subset"
      reduce: "none", "sum", "mean", "max"
      causal: 1: window_right = 1
    """
    if ctx.__class__ is Context:
        call = Call(ctx, _x_select_token)
    else:
        call = _x_select_token.begin_by(ctx, index, index_count, kept_score, kept_mass, q, k,
            k_scale, code_q, code, weight, query_start, key_start, query_len, key_len, page_table,
            cache_row, context_len, block_mask)
    v_q = None
    if q is not None:
        v_q = call.put("q", 8, q, 4)
    if k is not None:
        call.put("k", 104, k)
    if k_scale is not None:
        call.put("k_scale", 200, k_scale)
    v_code_q = None
    if code_q is not None:
        v_code_q = call.put("code_q", 296, code_q, 4)
    if code is not None:
        call.put("code", 392, code)
    v_weight = None
    if weight is not None:
        v_weight = call.put("weight", 488, weight, 3)
    if query_start is not None:
        call.put("query_start", 584, query_start)
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
    if context_len is not None:
        call.put("context_len", 1160, context_len)
    v_block_mask = None
    if block_mask is not None:
        v_block_mask = call.put("block_mask", 1256, block_mask, 4)
    if index is not None:
        index = None if index is False else call.out("index", 1352, index, lambda: (call.size("b",
            b, (v_q, 0, 0), (v_code_q, 0, 0), (v_weight, 0, 0), (v_block_mask, 0, 0)),
            call.size("x", x, (v_block_mask, 1, 0)), call.size("s", s, (v_q, 1, 0), (v_code_q, 1,
            0), (v_weight, 1, 0), (v_block_mask, 2, 0)), call.size("keep", keep)), 8)
    if index_count is not None:
        index_count = None if index_count is False else call.out("index_count", 1448, index_count,
            lambda: (call.size("b", b, (v_q, 0, 0), (v_code_q, 0, 0), (v_weight, 0, 0),
            (v_block_mask, 0, 0)), call.size("x", x, (v_block_mask, 1, 0)), call.size("s", s, (v_q,
            1, 0), (v_code_q, 1, 0), (v_weight, 1, 0), (v_block_mask, 2, 0))), 8)
    if kept_score is not None:
        kept_score = None if kept_score is False else call.out("kept_score", 1544, kept_score,
            lambda: (call.size("b", b, (v_q, 0, 0), (v_code_q, 0, 0), (v_weight, 0, 0),
            (v_block_mask, 0, 0)), call.size("x", x, (v_block_mask, 1, 0)), call.size("s", s, (v_q,
            1, 0), (v_code_q, 1, 0), (v_weight, 1, 0), (v_block_mask, 2, 0)), call.size("keep",
            keep)), 1)
    if kept_mass is not None:
        kept_mass = None if kept_mass is False else call.out("kept_mass", 1640, kept_mass, lambda:
            (call.size("b", b, (v_q, 0, 0), (v_code_q, 0, 0), (v_weight, 0, 0), (v_block_mask, 0,
            0)), call.size("h", h, (v_q, 2, 0), (v_code_q, 2, 0), (v_weight, 2, 0)), call.size("s",
            s, (v_q, 1, 0), (v_code_q, 1, 0), (v_weight, 1, 0), (v_block_mask, 2, 0))), 1)
    if query_max:
        call.scalar("q", 1736, query_max, "query_max")
    if key_max:
        call.scalar("q", 1744, key_max, "key_max")
    if window_left:
        call.scalar("q", 1752, window_left, "window_left")
    if window_right:
        call.scalar("q", 1760, window_right, "window_right")
    if sink_keys:
        call.scalar("q", 1768, sink_keys, "sink_keys")
    if key_step:
        call.scalar("q", 1776, key_step, "key_step")
    if key_shift:
        call.scalar("q", 1784, key_shift, "key_shift")
    if count:
        call.scalar("q", 1792, count, "count")
    if first_keys:
        call.scalar("q", 1800, first_keys, "first_keys")
    if last_keys:
        call.scalar("q", 1808, last_keys, "last_keys")
    if force_last:
        call.scalar("q", 1816, force_last, "force_last")
    if pool_keys:
        call.scalar("q", 1824, pool_keys, "pool_keys")
    if subset:
        call.scalar("q", 1832, subset, "subset")
    if block_keys:
        call.scalar("q", 1840, block_keys, "block_keys")
    if scale:
        call.scalar("f", 1848, scale, "scale")
    if ratio:
        call.scalar("f", 1852, ratio, "ratio")
    if measure:
        call.enum(1856, measure, "measure", SelectScore)
    if reduce:
        call.enum(1860, reduce, "reduce", SelectReduce)
    if causal:
        call.scalar("i", 1864, causal, "causal")
    return call.run(index, index_count, kept_score, kept_mass)


def select_line(ctx=None, *, index=None, index_count=None, column=None, column_count=None,
                bits_out=None, bits=None, vertical=None, vertical_count=None, slash=None,
                slash_count=None, query_start=None, key_start=None, query_len=None, key_len=None,
                b=None, x=None, n=None, keep=None, columns=None, mask_bytes=None, query_max=0,
                key_max=0, aligned=0, in_blocks=0, causal=0, block_rows=0, block_keys=0):
    """Lists from lines or from bits.

    Lines are key numbers (vertical) and distances behind the row (slash).  They ascend, no number
    twice, as x_select_block writes them.  Entries < 0 and past the counts are none.  With M =
    block_rows = block_keys, a row block at positions [a, a + M) and e = a + M:
      ranges    for each slash x < e, the largest first: [hi - M, hi) with hi = max(e - x, M).  With
                hi at most M past the end of the open range that is extended by M, if hi is past it
                at all; else the next range opens
      index     the first keys of the parts of M keys into which the ranges fall, of those that are
                keys: for entry_keys = 1.  aligned = 1: the key blocks that the ranges touch
      column    the verticals below e that are keys, outside the ranges; aligned: outside the
                blocks
    in_blocks = 1: numbers are of key blocks.  Block I holds the row block's last position.  index
    holds the blocks J <= I with J a vertical or I - J a slash.
    Rows past a causal diagonal are the reader's to hide: give x_sparse_forward causal = 1.

    Bits: index holds the key blocks of the sequence whose bit is 1.  With causal = 1 none begins
    past the row block's last row.

    Where a count exceeds what fits, the highest are cut.  List rows of no sequence are not written.
    Every valid call has one kernel a backend.
    Sources: MInference (2407.02490), FlexPrefill (2502.20766).

    Example
      outputs = fovea.experimental.select_line(index=True, index_count=True, column=True)
      index, index_count, column = outputs

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Outputs on request, by True or an array
      index: (b, x, n, keep) i32: -1 past the count; one output at least
      index_count: (b, x, n) i32: entries wanted
      column: (b, x, n, columns) i32: single keys, -1 past the count; lines that are not in_blocks
      column_count: (b, x, n) i32: single keys wanted; as column
      bits_out: (b, x, n, mask_bytes) u8: the entries as bits, for `forced` of x_select_block; lines
          aligned or in_blocks

    Optional inputs
      bits: (b, x, n, mask_bytes) u8: bit c % 8 of byte c / 8 is of key block c; not with vertical
          or slash
      vertical: (b, x, u) i32: key numbers
      vertical_count: (b, x) i32: how many, cut to u; needs vertical
      slash: (b, x, slashes) i32: distances
      slash_count: (b, x) i32: how many, cut to slashes; needs slash
      query_start: (r+1) i32: first packed row of each sequence, ascending from 0; then b = 1
      key_start: (r+1) i32: first packed key of each sequence
      query_len: (r) i32: rows in use
      key_len: (r) i32: keys in use

    b, x, n, keep, columns, mask_bytes: extents of new outputs that no input tells.

    Numbers
      query_max: longest sequence of rows; 0: n block_rows
      key_max: longest sequence of keys, >= 1; mask_bytes has its blocks
      aligned: 1: index holds key blocks; lines that are not in_blocks
      in_blocks: 1: lines are of key blocks
      causal: 1: no key block past the row block; of bits
      block_rows: rows of a list row, >= 1; 0: 64
      block_keys: keys of a key block, >= 1; 0: 64; lines: as block_rows
    """
    if ctx.__class__ is Context:
        call = Call(ctx, _x_select_line)
    else:
        call = _x_select_line.begin_by(ctx, index, index_count, column, column_count, bits_out,
            bits, vertical, vertical_count, slash, slash_count, query_start, key_start, query_len,
            key_len)
    v_bits = None
    if bits is not None:
        v_bits = call.put("bits", 8, bits, 4)
    v_vertical = None
    if vertical is not None:
        v_vertical = call.put("vertical", 104, vertical, 3)
    v_vertical_count = None
    if vertical_count is not None:
        v_vertical_count = call.put("vertical_count", 200, vertical_count, 2)
    v_slash = None
    if slash is not None:
        v_slash = call.put("slash", 296, slash, 3)
    v_slash_count = None
    if slash_count is not None:
        v_slash_count = call.put("slash_count", 392, slash_count, 2)
    if query_start is not None:
        call.put("query_start", 488, query_start)
    if key_start is not None:
        call.put("key_start", 584, key_start)
    if query_len is not None:
        call.put("query_len", 680, query_len)
    if key_len is not None:
        call.put("key_len", 776, key_len)
    if index is not None:
        index = None if index is False else call.out("index", 872, index, lambda: (call.size("b", b,
            (v_bits, 0, 0), (v_vertical, 0, 0), (v_vertical_count, 0, 0), (v_slash, 0, 0),
            (v_slash_count, 0, 0)), call.size("x", x, (v_bits, 1, 0), (v_vertical, 1, 0),
            (v_vertical_count, 1, 0), (v_slash, 1, 0), (v_slash_count, 1, 0)), call.size("n", n,
            (v_bits, 2, 0)), call.size("keep", keep)), 8)
    if index_count is not None:
        index_count = None if index_count is False else call.out("index_count", 968, index_count,
            lambda: (call.size("b", b, (v_bits, 0, 0), (v_vertical, 0, 0), (v_vertical_count, 0, 0),
            (v_slash, 0, 0), (v_slash_count, 0, 0)), call.size("x", x, (v_bits, 1, 0), (v_vertical,
            1, 0), (v_vertical_count, 1, 0), (v_slash, 1, 0), (v_slash_count, 1, 0)), call.size("n",
            n, (v_bits, 2, 0))), 8)
    if column is not None:
        column = None if column is False else call.out("column", 1064, column, lambda:
            (call.size("b", b, (v_bits, 0, 0), (v_vertical, 0, 0), (v_vertical_count, 0, 0),
            (v_slash, 0, 0), (v_slash_count, 0, 0)), call.size("x", x, (v_bits, 1, 0), (v_vertical,
            1, 0), (v_vertical_count, 1, 0), (v_slash, 1, 0), (v_slash_count, 1, 0)), call.size("n",
            n, (v_bits, 2, 0)), call.size("columns", columns)), 8)
    if column_count is not None:
        column_count = None if column_count is False else call.out("column_count", 1160,
            column_count, lambda: (call.size("b", b, (v_bits, 0, 0), (v_vertical, 0, 0),
            (v_vertical_count, 0, 0), (v_slash, 0, 0), (v_slash_count, 0, 0)), call.size("x", x,
            (v_bits, 1, 0), (v_vertical, 1, 0), (v_vertical_count, 1, 0), (v_slash, 1, 0),
            (v_slash_count, 1, 0)), call.size("n", n, (v_bits, 2, 0))), 8)
    if bits_out is not None:
        bits_out = None if bits_out is False else call.out("bits_out", 1256, bits_out, lambda:
            (call.size("b", b, (v_bits, 0, 0), (v_vertical, 0, 0), (v_vertical_count, 0, 0),
            (v_slash, 0, 0), (v_slash_count, 0, 0)), call.size("x", x, (v_bits, 1, 0), (v_vertical,
            1, 0), (v_vertical_count, 1, 0), (v_slash, 1, 0), (v_slash_count, 1, 0)), call.size("n",
            n, (v_bits, 2, 0)), call.size("mask_bytes", mask_bytes, (v_bits, 3, 0))), 10)
    if query_max:
        call.scalar("q", 1352, query_max, "query_max")
    if key_max:
        call.scalar("q", 1360, key_max, "key_max")
    if aligned:
        call.scalar("i", 1368, aligned, "aligned")
    if in_blocks:
        call.scalar("i", 1372, in_blocks, "in_blocks")
    if causal:
        call.scalar("i", 1376, causal, "causal")
    if block_rows:
        call.scalar("i", 1380, block_rows, "block_rows")
    if block_keys:
        call.scalar("i", 1384, block_keys, "block_keys")
    return call.run(index, index_count, column, column_count, bits_out)


def select_heads(ctx_or_q=None, /, q=None, k=None, *, ctx=None, head_map=None, label=None,
                 count=None, query_len=None, clusters_of=None, clusters=0, scale=0.0, causal=0):
    """Clusters of query heads whose attention over a prompt's first tokens is alike (CHAI).

    The feature of a head is its s x s matrix of probabilities: softmax rows of scale <q_i, k_j>.
    Two heads are 1 - cos apart, two clusters the mean over their pairs of heads.  Clusters begin as
    single heads.  The two that are closest become one until there are `clusters`.  Of equal
    distances the one of the smallest first head counts, then of the smallest second.  A distance
    that is no number counts as infinite.  head_map[i] is the smallest head of i's cluster: the one
    that computes scores for all.  Labels number the clusters by their smallest heads.

    Limits: d is 1 .. 576, h at most 256.  Sums are f32; the two backends may differ where distances
    are equal to rounding.  Every valid call has one kernel a backend.
    Source: CHAI (2403.08058).

    Example
      head_map = fovea.experimental.select_heads(q, k)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q: (b, s, h, d) f32 f16 bf16: the first tokens, five in CHAI
      k: (b, s, g, d) f32 f16 bf16: g divides h

    Outputs, new unless passed
      head_map: (b, h) i32

    Outputs on request, by True or an array
      label: (b, h) i32
      count: (b) i32: clusters there are

    Optional inputs
      query_len: (b) i32: tokens in use, at most s
      clusters_of: (b) i32: clusters of each batch, cut to 1 .. h; clusters stays 0

    Numbers
      clusters: >= 1, cut to h
      scale: > 0; 0: 1 / sqrt(d)
      causal: 1: token i sees tokens up to itself; 0: all
    """
    if ctx_or_q.__class__ is Context and ctx is None:
        call = Call(ctx_or_q, _x_select_heads)
    else:
        call, inputs = _x_select_heads.begin(ctx_or_q, ctx, q, k)
        [q, k] = inputs
    v_q = call.put("q", 8, q, 4)
    call.put("k", 104, k)
    if query_len is not None:
        call.put("query_len", 200, query_len)
    if clusters_of is not None:
        call.put("clusters_of", 296, clusters_of)
    head_map = call.out("head_map", 392, head_map, (v_q[2][0], v_q[2][2]), 8)
    if label is not None:
        label = None if label is False else call.out("label", 488, label, (v_q[2][0], v_q[2][2]), 8)
    if count is not None:
        count = None if count is False else call.out("count", 584, count, (v_q[2][0],), 8)
    if clusters:
        call.scalar("q", 680, clusters, "clusters")
    if scale:
        call.scalar("f", 688, scale, "scale")
    if causal:
        call.scalar("i", 692, causal, "causal")
    return call.run(head_map, label, count)


def indexed_forward(ctx_or_q=None, /, q=None, k=None, v=None, *, ctx=None, o=None, lse=None,
                    index=None, index_count=None, q_value=None, index_q=None, index_k=None,
                    index_k_scale=None, block_k=None, weight=None, code_q=None, code=None,
                    v_mean=None, sink_logit=None, k_scale=None, v_scale=None, query_start=None,
                    key_start=None, query_len=None, key_len=None, page_table=None, cache_row=None,
                    context_len=None, x=None, keep=None, query_max=0, key_max=0, window_left=0,
                    window_right=0, sink_keys=0, lists=0, count=0, first_keys=0, last_keys=0,
                    force_last=0, pool_keys=0, index_step=0, subset=0, scale=0.0, softcap=0.0,
                    index_scale=0.0, ratio=0.0, measure=0, reduce=0, causal=0):
    """Attention over the keys that an index finds.

    Selection is x_select_token's, with index_q and index_k as its q and k; absent, q and k are
    their own index.  reduce is over the index's heads of a list head.  A list has k entries, forced
    ones among them, with
    k = max(count, floor(ratio * keys that the window lets the row see), force_last).
    Equal scores: the lower key first.  Rows past query_len are neither read nor written.

    With index_step n the index has a key for each block of n keys.  Block c is the keys
    [c n, (c + 1) n) of a sequence.  key_len is then at most what the cache holds.  Row i at
    position p sees blocks whose keys are all at p or before.  Its list has the k best of these, and
    the tail behind them: block floor((p + 1) / n), whose keys up to p are seen.  Without keys it is
    empty.  k = max(count, force_last), and index_count counts the tail too.
    block_k holds floor(keys / n) + 1 blocks of a sequence or more, keys being the most that it has.
    Values of incomplete blocks do not count.  With page_table block_k is not paged, and has a row
    for each row of the table.

    Errors name this operation, then the part that refuses, with that part's names of fields.
    Limits are those of the parts.  Workspace: theirs, and the lists that no output holds.
    Sources: DSA (2512.02556), MiniMax Sparse Attention (2606.13392), SparQ (2312.04985), Loki
    (2406.02542), HashAttention (2412.14468); QSA of Qwen3.8-Flash-Next.

    Example
      o = fovea.experimental.indexed_forward(q, k, v)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q: (b, s, h, d) f32 f16 bf16
      k: (rows, t, g, d) or paged (pool, page, g, d) as q or e4m3 e5m2 i8
      v: (rows, t, g, e) or paged (pool, page, g, e) as q or e4m3 e5m2 i8

    Outputs, new unless passed
      o: (b, s, h, e) as q or f32

    Outputs on request, by True or an array
      lse: (b, h, s) f32: of the sum over the list
      index: (b, x, s, keep) i32: the lists, as x_select_token writes them; keys past `keep` are cut
      index_count: (b, x, s) i32: keys wanted, with index

    Optional inputs
      q_value: (b, s, h, e) as q: second query of attention alone, contracted with v (split MLA
          caches)
      index_q: (b, s, index_heads, index_width) f32 f16 bf16 e4m3: with index_k or block_k; absent:
          q
      index_k: (rows, t, index_keys, index_width) or paged (pool, page, index_keys, index_width) f32
          f16 bf16 e4m3 e5m2 i8
      index_k_scale: (rows, t, index_keys, index_groups) or paged (pool, page, index_keys,
          index_groups) f32: of codes in index_k
      block_k: (rows, blocks, index_keys, index_width) f32 f16 bf16: in place of index_k: a key for
          each block of index_step keys
      weight: (b, s, index_heads) f32: of RELU_WEIGHTED
      code_q: (b, s, index_heads, code_words) i32: of HAMMING
      code: (rows, t, index_keys, code_words) or paged (pool, page, index_keys, code_words) i32: of
          HAMMING
      v_mean: (b, h, e) as q: the mean of the values of each sequence; of DOT and SUBSET without
          pool_keys, not packed
      sink_logit: (h) f32: a learned term of the denominator
      k_scale: (rows, t, g, groups) or paged (pool, page, g, groups) f32: as in attention_forward
      v_scale: (rows, t, g, groups) or paged (pool, page, g, groups) f32: the same of v
      query_start: (r+1) i32: first packed row of each sequence, ascending from 0; then b = 1
      key_start: (r+1) i32: first packed key of each sequence; not with page_table or cache_row
      query_len: (r) i32: rows in use
      key_len: (r) i32: keys in use
      page_table: (rows, pages) i32: pool page of each page of k, v and the index's keys; -1: absent
      cache_row: (r) i32: row of page_table, or of k and v
      context_len: (r) i32: p_i = i + context_len - Lq; absent: Lk

    x, keep: extents of new outputs that no input tells.

    Numbers
      query_max: longest sequence of rows; 0: s
      key_max: longest sequence of keys; 0: t, or pages * page
      window_left: keys seen to the left, the row's own position counted; 0: all
      window_right: keys seen to the right, the same; 0: all, 1: none
      sink_keys: keys at positions below this stay visible through window_left
      lists: list heads without index, a divisor of h; 0: index_heads without reduce, else 1
      count: keys, or blocks of pool_keys, in a list
      first_keys: first keys that are seen beside the list
      last_keys: keys up to the row's own position that are seen beside it
      force_last: the last keys (or blocks) that the row sees are in the list
      pool_keys: keys of a block that is selected as a whole, 1 .. 128; 0: keys
      index_step: keys of a block of block_k, 1 .. 128; with it causal is 1, the other windows,
          first_keys, last_keys, pool_keys and ratio are 0, and key_start, context_len and v_mean
          absent
      subset: columns of SUBSET, 1 .. index_width
      scale: of attention's scores, > 0; 0: 1 / sqrt(d), or 1 / sqrt(d + e) with q_value
      softcap: of attention's scores; 0: none
      index_scale: of the index's, > 0; 0: 1 / sqrt(index_width), for HAMMING 1
      ratio: share of the keys that a row sees; not with pool_keys
      measure: "dot", "relu_weighted", "hamming", "subset"
      reduce: "none", "sum", "mean", "max"
      causal: 1: window_right = 1
    """
    if ctx_or_q.__class__ is Context and ctx is None:
        call = Call(ctx_or_q, _x_indexed_forward)
    else:
        call, inputs = _x_indexed_forward.begin(ctx_or_q, ctx, q, k, v)
        [q, k, v] = inputs
    v_q = call.put("q", 8, q, 4)
    call.put("k", 104, k)
    v_v = call.put("v", 200, v, 4)
    if q_value is not None:
        call.put("q_value", 488, q_value)
    if index_q is not None:
        call.put("index_q", 584, index_q)
    if index_k is not None:
        call.put("index_k", 680, index_k)
    if index_k_scale is not None:
        call.put("index_k_scale", 776, index_k_scale)
    if block_k is not None:
        call.put("block_k", 872, block_k)
    if weight is not None:
        call.put("weight", 968, weight)
    if code_q is not None:
        call.put("code_q", 1064, code_q)
    if code is not None:
        call.put("code", 1160, code)
    if v_mean is not None:
        call.put("v_mean", 1256, v_mean)
    if sink_logit is not None:
        call.put("sink_logit", 1352, sink_logit)
    if k_scale is not None:
        call.put("k_scale", 1448, k_scale)
    if v_scale is not None:
        call.put("v_scale", 1544, v_scale)
    if query_start is not None:
        call.put("query_start", 1640, query_start)
    if key_start is not None:
        call.put("key_start", 1736, key_start)
    if query_len is not None:
        call.put("query_len", 1832, query_len)
    if key_len is not None:
        call.put("key_len", 1928, key_len)
    if page_table is not None:
        call.put("page_table", 2024, page_table)
    if cache_row is not None:
        call.put("cache_row", 2120, cache_row)
    if context_len is not None:
        call.put("context_len", 2216, context_len)
    o = call.out("o", 296, o, (v_q[2][0], v_q[2][1], v_q[2][2], v_v[2][3]), v_q[1])
    if lse is not None:
        lse = None if lse is False else call.out("lse", 392, lse, (v_q[2][0], v_q[2][2], v_q[2][1]),
            1)
    if index is not None:
        index = None if index is False else call.out("index", 2312, index, lambda: (v_q[2][0],
            call.size("x", x), v_q[2][1], call.size("keep", keep)), 8)
    if index_count is not None:
        index_count = None if index_count is False else call.out("index_count", 2408, index_count,
            lambda: (v_q[2][0], call.size("x", x), v_q[2][1]), 8)
    if query_max:
        call.scalar("q", 2504, query_max, "query_max")
    if key_max:
        call.scalar("q", 2512, key_max, "key_max")
    if window_left:
        call.scalar("q", 2520, window_left, "window_left")
    if window_right:
        call.scalar("q", 2528, window_right, "window_right")
    if sink_keys:
        call.scalar("q", 2536, sink_keys, "sink_keys")
    if lists:
        call.scalar("q", 2544, lists, "lists")
    if count:
        call.scalar("q", 2552, count, "count")
    if first_keys:
        call.scalar("q", 2560, first_keys, "first_keys")
    if last_keys:
        call.scalar("q", 2568, last_keys, "last_keys")
    if force_last:
        call.scalar("q", 2576, force_last, "force_last")
    if pool_keys:
        call.scalar("q", 2584, pool_keys, "pool_keys")
    if index_step:
        call.scalar("q", 2592, index_step, "index_step")
    if subset:
        call.scalar("q", 2600, subset, "subset")
    if scale:
        call.scalar("f", 2608, scale, "scale")
    if softcap:
        call.scalar("f", 2612, softcap, "softcap")
    if index_scale:
        call.scalar("f", 2616, index_scale, "index_scale")
    if ratio:
        call.scalar("f", 2620, ratio, "ratio")
    if measure:
        call.enum(2624, measure, "measure", SelectScore)
    if reduce:
        call.enum(2628, reduce, "reduce", SelectReduce)
    if causal:
        call.scalar("i", 2632, causal, "causal")
    return call.run(o, lse, index, index_count)


def quantised_forward(ctx_or_q=None, /, q=None, k=None, v=None, *, ctx=None, o=None, lse=None,
                      skipped=None, query_start=None, key_start=None, sink_logit=None, index=None,
                      index_count=None, query_max=0, key_max=0, window_left=0, window_right=0,
                      seed=0, scale=0.0, softcap=0.0, v_scale_max=0.0, skip_margin=0.0, causal=0,
                      hadamard=0, code=0, v_code=0, q_group=0, k_group=0, v_group=0, q_block=0,
                      k_block=0, v_block=0, q_smooth=0, k_smooth=0, p_format=0, accumulate=0,
                      block_rows=0, block_keys=0, entry_keys=0):
    """Attention of codes of q, k and v.

    code is what q and k are rounded to, v_code what v is.  With v_code PLAIN v_group and v_block
    are 0.  q_smooth is NONE or BLOCK, k_smooth NONE or SEQUENCE.

    Codes, groups, smoothing and the order of arithmetic are those of quant_quantize and
    quant_forward (quant.h).  k is quantised first, then q, then v, whose codes are transposed.
    k_smooth takes k's mean over its sequence off; lse is that of the unsmoothed scores.  q_smooth
    takes the mean of each 128 rows of q off and adds the scores that it makes.

    With index rows see the keys of lists, and skip_margin skips tiles of them: both as in
    quant_forward.

    Sequences are full, or packed by *_start: padding would enter means and scales.
    Errors name this operation, then the part that refuses, with that part's names of fields.
    Limits are those of the parts.  Workspace: theirs, codes, scales and means.  q_smooth takes
    4 b h ceil(s / 128) t bytes beside these.
    Sources: FlashAttention-3 (2407.08608), SageAttention (2410.02367), SageAttention2
    (2411.10958), SageAttention2++ (2505.21136), SageAttention3 and SageBwd (2505.11594).

    Example
      o = fovea.experimental.quantised_forward(q, k, v)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q: (b, s, h, d) f32 f16 bf16
      k: (key_b, t, g, d) as q
      v: (key_b, t, g, e) as q

    Outputs, new unless passed
      o: (b, s, h, e) f32 f16 bf16

    Outputs on request, by True or an array
      lse: (b, h, s) f32: natural log of each row's sum
      skipped: (1) i64: tiles that were skipped; with index

    Optional inputs
      query_start: (r+1) i32: first packed row of each sequence, ascending from 0; then b = 1
      key_start: (r+1) i32: first packed key of each sequence
      sink_logit: (h) f32: a learned term of the denominator: not scaled or capped
      index: (b, x, n, keep) i32: entries of each list row
      index_count: (b, x, n) i32: entries in use; with index

    Numbers
      query_max: longest sequence of rows, bounds the grid; 0: s
      key_max: longest sequence of keys; 0: t
      window_left: keys seen to the left, the row's own position counted; 0: all
      window_right: keys seen to the right, the row's own position counted; 0: all, 1: none after
          itself
      seed: signs of the rotation; with hadamard
      scale: > 0; 0: 1 / sqrt(d)
      softcap: > 0; 0: none
      v_scale_max: the largest e4m3 code of v; 0: 448
      skip_margin: in nats, with index; 0: nothing is skipped
      causal: 1: window_right = 1
      hadamard: 1: rotate the columns of q and k first
      code: "e4m3", "i8", "i4", "e2m1", "plain"
      v_code: "e4m3", "i8", "i4", "e2m1", "plain"
      q_group: "block", "thread_q", "thread_k", "token", "channel", "micro16", "micro32",
          "micro16_t", "micro32_t"
      k_group: "block", "thread_q", "thread_k", "token", "channel", "micro16", "micro32",
          "micro16_t", "micro32_t"
      v_group: "block", "thread_q", "thread_k", "token", "channel", "micro16", "micro32",
          "micro16_t", "micro32_t"
      q_block: rows that share an entry of q's scales: quant_quantize's block
      k_block: the same of k
      v_block: the same of v
      q_smooth: "none", "sequence", "block"
      k_smooth: "none", "sequence", "block"
      p_format: "e4m3_256", "e4m3_448", "half", "i8", "e2m1_two", "e2m1_one"
      accumulate: "two_level", "f32", "half_64"
      block_rows: rows of a list row: 1 .. 128; 0 without index
      block_keys: keys of an entry: a multiple of 64; 0 without index
      entry_keys: from an entry's first key to the next's; 0: block_keys
    """
    if ctx_or_q.__class__ is Context and ctx is None:
        call = Call(ctx_or_q, _x_quantised_forward)
    else:
        call, inputs = _x_quantised_forward.begin(ctx_or_q, ctx, q, k, v)
        [q, k, v] = inputs
    v_q = call.put("q", 8, q, 4)
    call.put("k", 104, k)
    v_v = call.put("v", 200, v, 4)
    if query_start is not None:
        call.put("query_start", 488, query_start)
    if key_start is not None:
        call.put("key_start", 584, key_start)
    if sink_logit is not None:
        call.put("sink_logit", 680, sink_logit)
    if index is not None:
        call.put("index", 776, index)
    if index_count is not None:
        call.put("index_count", 872, index_count)
    o = call.out("o", 296, o, (v_q[2][0], v_q[2][1], v_q[2][2], v_v[2][3]), v_q[1] if v_q[1] in (1,
        2, 3) else 1)
    if lse is not None:
        lse = None if lse is False else call.out("lse", 392, lse, (v_q[2][0], v_q[2][2], v_q[2][1]),
            1)
    if skipped is not None:
        skipped = None if skipped is False else call.out("skipped", 968, skipped, (1,), 9)
    if query_max:
        call.scalar("q", 1064, query_max, "query_max")
    if key_max:
        call.scalar("q", 1072, key_max, "key_max")
    if window_left:
        call.scalar("q", 1080, window_left, "window_left")
    if window_right:
        call.scalar("q", 1088, window_right, "window_right")
    if seed:
        call.scalar("q", 1096, seed, "seed")
    if scale:
        call.scalar("f", 1104, scale, "scale")
    if softcap:
        call.scalar("f", 1108, softcap, "softcap")
    if v_scale_max:
        call.scalar("f", 1112, v_scale_max, "v_scale_max")
    if skip_margin:
        call.scalar("f", 1116, skip_margin, "skip_margin")
    if causal:
        call.scalar("i", 1120, causal, "causal")
    if hadamard:
        call.scalar("i", 1124, hadamard, "hadamard")
    if code:
        call.enum(1128, code, "code", Code)
    if v_code:
        call.enum(1132, v_code, "v_code", Code)
    if q_group:
        call.enum(1136, q_group, "q_group", ScaleGroup)
    if k_group:
        call.enum(1140, k_group, "k_group", ScaleGroup)
    if v_group:
        call.enum(1144, v_group, "v_group", ScaleGroup)
    if q_block:
        call.scalar("i", 1148, q_block, "q_block")
    if k_block:
        call.scalar("i", 1152, k_block, "k_block")
    if v_block:
        call.scalar("i", 1156, v_block, "v_block")
    if q_smooth:
        call.enum(1160, q_smooth, "q_smooth", Smooth)
    if k_smooth:
        call.enum(1164, k_smooth, "k_smooth", Smooth)
    if p_format:
        call.enum(1168, p_format, "p_format", PFormat)
    if accumulate:
        call.enum(1172, accumulate, "accumulate", Accumulate)
    if block_rows:
        call.scalar("i", 1176, block_rows, "block_rows")
    if block_keys:
        call.scalar("i", 1180, block_keys, "block_keys")
    if entry_keys:
        call.scalar("i", 1184, entry_keys, "entry_keys")
    return call.run(o, lse, skipped)


def quant_backward(ctx_or_q=None, /, q=None, k=None, v=None, o=None, lse=None, dout=None, *,
                   ctx=None, dq=None, dk=None, dv=None, query_start=None, key_start=None,
                   query_max=0, key_max=0, window_left=0, window_right=0, scale=0.0, causal=0,
                   k_smooth=0):
    """Gradients of attention in 8 bits from dout: SageBwd's, from the o and lse of its forward,
    x_quantised_forward by the name sagebwd.  q^ and k^ are the codes of that forward: i8, a scale
    for each block of 64 tokens, k less its mean with k_smooth.  With p_ij and ds_ij of the pairs
    that see each other, 0 of the others:
      x_ij = scale q_scale k_scale <q^_i, k^_j> + scale <q_i, k_mean>,  p_ij = exp(x_ij - lse_i)
      ds_ij = p_ij (<dout_i, v_j> - <dout_i, o_i>)
      dv_j = sum_i p^_ij dout^_i
      dq_i = scale sum_j ds^_ij k_scale k^_j,  dk_j = scale sum_i ds^_ij q_scale q^_i
    ^ of p and ds: codes of i8 times their scale, for each tile of 64 rows and 64 keys.  Blocks and
    tiles are counted from a sequence's first token.  ^ of dout: the same for each block of 64 rows:
      a = the largest magnitude,  x^ = round(127 x / a) a / 127, to nearest even
    0 where a is below 2^-100.  A NaN or an infinity is in every number of its block or tile.  So it
    is in the gradients of all rows and keys of the tiles that it meets.

    Four of the five products are so of codes; <dout_i, v_j> is of dout and v as they are.  Sums of
    codes are exact.  Sums over tiles are f32.  dq needs no term of k_mean: a row's ds sum to 0.

    Each output is optional: absent = not computed.  Every element of an output is written: 0 where
    no sequence is, and in rows that see no key.  Sums have a fixed order: the same bits every run.

    Sequences are full, or packed by *_start.  SageBwd has neither softcap nor sinks, so there are
    no fields of them.  Limits: d and e are 1 .. 576.  On CUDA f16 and bf16 of up to 128 columns
    run on tensor cores, other calls in f32.
    Workspace: codes and scales of q and k, and their mean; on CUDA two numbers a row, more codes.
    Hopper adds sums of dq in f32, 512 bytes for each row and head.
    Source: SageBwd (2505.11594), algorithm 3.

    Example
      dq, dk, dv = fovea.experimental.quant_backward(q, k, v, o, lse, dout)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q: (b, s, h, d) f32 f16 bf16
      k: (key_b, t, g, d) as q
      v: (key_b, t, g, e) as q
      o: (b, s, h, e) f32 f16 bf16: of the forward
      lse: (b, h, s) f32: of the forward
      dout: (b, s, h, e) as o: the gradient of o

    Outputs, new unless passed or False
      dq: (b, s, h, d) as q
      dk: (key_b, t, g, d) as q
      dv: (key_b, t, g, e) as q

    Optional inputs
      query_start: (r+1) i32: first packed row of each sequence, ascending from 0; then b = 1
      key_start: (r+1) i32: first packed key of each sequence

    Numbers
      query_max: longest sequence of rows, bounds the grid; 0: s
      key_max: longest sequence of keys; 0: t
      window_left: keys seen to the left, the row's own position counted; 0: all
      window_right: keys seen to the right, the row's own position counted; 0: all, 1: none after
          itself
      scale: > 0; 0: 1 / sqrt(d)
      causal: 1: window_right = 1
      k_smooth: fovea_smooth: NONE or SEQUENCE, as the forward's
    """
    if ctx_or_q.__class__ is Context and ctx is None:
        call = Call(ctx_or_q, _x_quant_backward)
    else:
        call, inputs = _x_quant_backward.begin(ctx_or_q, ctx, q, k, v, o, lse, dout)
        [q, k, v, o, lse, dout] = inputs
    v_q = call.put("q", 8, q, 4)
    v_k = call.put("k", 104, k, 4)
    v_v = call.put("v", 200, v, 4)
    call.put("o", 296, o)
    call.put("lse", 392, lse)
    call.put("dout", 488, dout)
    if query_start is not None:
        call.put("query_start", 872, query_start)
    if key_start is not None:
        call.put("key_start", 968, key_start)
    dq = None if dq is False else call.out("dq", 584, dq, v_q[2], v_q[1])
    dk = None if dk is False else call.out("dk", 680, dk, v_k[2], v_q[1])
    dv = None if dv is False else call.out("dv", 776, dv, v_v[2], v_q[1])
    if query_max:
        call.scalar("q", 1064, query_max, "query_max")
    if key_max:
        call.scalar("q", 1072, key_max, "key_max")
    if window_left:
        call.scalar("q", 1080, window_left, "window_left")
    if window_right:
        call.scalar("q", 1088, window_right, "window_right")
    if scale:
        call.scalar("f", 1096, scale, "scale")
    if causal:
        call.scalar("i", 1100, causal, "causal")
    if k_smooth:
        call.scalar("i", 1104, k_smooth, "k_smooth")
    return call.run(dq, dk, dv)


def pooled_forward(ctx_or_q=None, /, q=None, k=None, v=None, *, ctx=None, o=None, lse=None,
                   index=None, index_count=None, row=None, column=None, column_low=None,
                   summary=None, row_similar_least=None, column_similar_least=None, cover_head=None,
                   sink_logit=None, k_scale=None, v_scale=None, query_start=None, key_start=None,
                   query_len=None, key_len=None, old_len=None, page_table=None, cache_row=None,
                   x=None, n=None, keep=None, query_max=0, key_max=0, lists=0, count=0, min_keep=0,
                   min_extra=0, force_first=0, force_previous=0, force_last=0, subset=0, scale=0.0,
                   softcap=0.0, select_scale=0.0, ratio=0.0, cover=0.0, threshold=0.0,
                   skip_margin=0.0, measure=0, normalise=0, reduce=0, rule=0, scope=0,
                   forced_count=0, force_own=0, causal=0, block_rows=0, block_keys=0, quantise=0,
                   code=0, v_code=0, q_group=0, k_group=0, v_group=0, q_block=0, k_block=0,
                   v_block=0, k_smooth=0, p_format=0, accumulate=0):
    """Attention over key blocks that summaries choose.

    Columns summarise key blocks, by x_pool_forward: the mean of the keys, for BOX their largest and
    smallest in each column of k.  What they are made from:
      neither column nor summary: all of k, in each call
      summary, old_len: only blocks that hold a key from old_len on; the others are read
      column: nothing is made; for BOX column_low too
    Rows summarise row blocks: row, else the mean of their queries, with block_rows 1 the queries.

    With subset, BOX reads the columns R of a key head with the largest sum of |q_c| over its query
    heads, of equals the first.  One sign serves them all: where the sum of their q_c is > 0 the
    bound is the largest, else the smallest of the block.  A query's score is select_scale times
    sum over R of q_c bound / sqrt(share).  share is how much of its sum of |q_c| R holds; where it
    is 0 the score is 0.  select_scale 0 is then 1 / sqrt(d).  Keys are finite.  A softmax counts
    each block once, the last one too, where the paper's code counts its keys.

    Selection is x_select_block's and the lists are its.  Row block R holds the rows [R block_rows,
    (R + 1) block_rows) of a sequence, key block c its keys [c block_keys, (c + 1) block_keys).
    Packed sequences begin where select.h says.  Row i is at position i + Lk - Lq.
    reduce is over the heads of the rows of a list head.  normalise is not WEIGHTED, rule not NONE.
    k = max(count, floor(ratio * key blocks of the scope)); one of the two is 0.
    Each row attends to the keys of its list, with causal to those up to its own position.
    index, index_count, block_rows and block_keys are what x_sparse_backward takes.

    With quantise attention is x_quantised_forward's over the lists, and code to accumulate are its
    fields; without it they are 0.  Its codes are of q, k and v; the selection is of q and k as they
    are.  Then sequences are full or packed, k and v contiguous and of q's type, block_keys is a
    multiple of 64.

    A row whose list is empty has o = 0.  Rows past query_len are neither read nor written.

    Errors name this operation, then the part that refuses, with that part's names of fields.
    Limits are those of the parts.  Workspace: theirs, the summaries, and the lists that no output
    holds.
    Sources: Quest (2406.10774), MoBA (2502.13189), SeerAttention (2410.13276), SpargeAttention
    (2502.18137), VMoBA (2506.23858), DraftAttention (2505.14708), RocketKV (2502.14051).

    Example
      o = fovea.experimental.pooled_forward(q, k, v)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q: (b, s, h, d) f32 f16 bf16
      k: (rows, t, g, d) or paged (pool, page, g, d) as q or e4m3 e5m2 i8: codes need column
      v: (rows, t, g, e) or paged (pool, page, g, e) as q or e4m3 e5m2 i8

    Outputs, new unless passed
      o: (b, s, h, e) as q or f32

    Outputs on request, by True or an array
      lse: (b, h, s) f32: of the sum over the list
      index: (b, x, n, keep) i32: the lists, as x_select_block writes them; blocks past `keep` are
          cut
      index_count: (b, x, n) i32: blocks wanted, with index

    Optional inputs
      row: (b, n, row_heads, row_width) f32 f16 bf16: a summary of each row block
      column: (key_b, u, column_heads, row_width) f32 f16 bf16: a summary of each key block
      column_low: (key_b, u, column_heads, row_width) f32 f16 bf16: of BOX with column: the smallest
          of its keys
      summary: (key_b, u, g, summary_width) as k or f32: y of x_pool_forward: summary_width = d, for
          BOX 2 d; not with column
      row_similar_least: (h) f32: a row block whose queries are not more alike takes all key blocks;
          with made rows, without reduce
      column_similar_least: (g) f32: a key block whose keys are not more alike is taken by all rows,
          beside the rule; not with column, summary
      cover_head: (x) f32: cover of each list head
      sink_logit: (h) f32: a learned term of the denominator
      k_scale: (rows, t, g, groups) or paged (pool, page, g, groups) f32: as in attention_forward
      v_scale: (rows, t, g, groups) or paged (pool, page, g, groups) f32: the same of v
      query_start: (r+1) i32: first packed row of each sequence, ascending from 0; then b = 1
      key_start: (r+1) i32: first packed key of each sequence; not with page_table or cache_row
      query_len: (r) i32: rows in use
      key_len: (r) i32: keys in use
      old_len: (r) i32: keys that summary has; with summary
      page_table: (rows, pages) i32: pool page of each page of k and v; -1: absent
      cache_row: (r) i32: row of page_table, or with column of k and v; with column or summary

    x, n, keep: extents of new outputs that no input tells.

    Numbers
      query_max: longest sequence of rows; 0: s
      key_max: longest sequence of keys; 0: t, or pages * page
      lists: list heads without index, a divisor of h; 0: heads of the rows without reduce, else 1
      count: k of TOP_K
      min_keep: least entries of a list, forced ones among them
      min_extra: least entries that the rule takes in its scope
      force_first: the first key blocks are forced
      force_previous: those before the own blocks
      force_last: the last key blocks of the sequence
      subset: columns of BOX, 1 .. d, with d at most 288; 0: all, each query by its own signs.  Not
          with row, column or block_rows > 1
      scale: of attention's scores, > 0; 0: 1 / sqrt(d)
      softcap: of attention's scores; 0: none
      select_scale: of the summaries' scores, > 0; 0: 1 / sqrt(their width)
      ratio: of TOP_K: share of the key blocks of the scope
      cover: share of the mass, of the TOP_P rules
      threshold: of ABOVE and AT_LEAST
      skip_margin: in nats: tiles that add less are skipped, as in x_sparse_forward; 0: none
      measure: "dot", "box"
      normalise: "none", "softmax", "weighted", "minmax", "max"
      reduce: "none", "sum", "mean", "max"
      rule: "top_k", "top_p_ge", "top_p_gt", "top_p_under", "above", "at_least", "none"
      scope: "row", "head", "all"
      forced_count: 1: forced entries count for the rule
      force_own: 1: key blocks that hold a position of the row block are forced
      causal: 1: no key after a row's own position
      block_rows: rows of a row block, 1 .. 128; 0: 1
      block_keys: keys of a key block, 1 .. 65536; 0: 64
      quantise: 1: attention of codes, by the fields below
      code: "e4m3", "i8", "i4", "e2m1", "plain"
      v_code: "e4m3", "i8", "i4", "e2m1", "plain"
      q_group: "block", "thread_q", "thread_k", "token", "channel", "micro16", "micro32",
          "micro16_t", "micro32_t"
      k_group: "block", "thread_q", "thread_k", "token", "channel", "micro16", "micro32",
          "micro16_t", "micro32_t"
      v_group: "block", "thread_q", "thread_k", "token", "channel", "micro16", "micro32",
          "micro16_t", "micro32_t"
      q_block: rows that share an entry of q's scales
      k_block: the same of k
      v_block: the same of v
      k_smooth: "none", "sequence", "block"
      p_format: "e4m3_256", "e4m3_448", "half", "i8", "e2m1_two", "e2m1_one"
      accumulate: "two_level", "f32", "half_64"
    """
    if ctx_or_q.__class__ is Context and ctx is None:
        call = Call(ctx_or_q, _x_pooled_forward)
    else:
        call, inputs = _x_pooled_forward.begin(ctx_or_q, ctx, q, k, v)
        [q, k, v] = inputs
    v_q = call.put("q", 8, q, 4)
    call.put("k", 104, k)
    v_v = call.put("v", 200, v, 4)
    v_row = None
    if row is not None:
        v_row = call.put("row", 488, row, 4)
    if column is not None:
        call.put("column", 584, column)
    if column_low is not None:
        call.put("column_low", 680, column_low)
    if summary is not None:
        call.put("summary", 776, summary, None, True)
    if row_similar_least is not None:
        call.put("row_similar_least", 872, row_similar_least)
    if column_similar_least is not None:
        call.put("column_similar_least", 968, column_similar_least)
    v_cover_head = None
    if cover_head is not None:
        v_cover_head = call.put("cover_head", 1064, cover_head, 1)
    if sink_logit is not None:
        call.put("sink_logit", 1160, sink_logit)
    if k_scale is not None:
        call.put("k_scale", 1256, k_scale)
    if v_scale is not None:
        call.put("v_scale", 1352, v_scale)
    if query_start is not None:
        call.put("query_start", 1448, query_start)
    if key_start is not None:
        call.put("key_start", 1544, key_start)
    if query_len is not None:
        call.put("query_len", 1640, query_len)
    if key_len is not None:
        call.put("key_len", 1736, key_len)
    if old_len is not None:
        call.put("old_len", 1832, old_len)
    if page_table is not None:
        call.put("page_table", 1928, page_table)
    if cache_row is not None:
        call.put("cache_row", 2024, cache_row)
    o = call.out("o", 296, o, (v_q[2][0], v_q[2][1], v_q[2][2], v_v[2][3]), v_q[1])
    if lse is not None:
        lse = None if lse is False else call.out("lse", 392, lse, (v_q[2][0], v_q[2][2], v_q[2][1]),
            1)
    if index is not None:
        index = None if index is False else call.out("index", 2120, index, lambda: (v_q[2][0],
            call.size("x", x, (v_cover_head, 0, 0)), call.size("n", n, (v_row, 1, 0)),
            call.size("keep", keep)), 8)
    if index_count is not None:
        index_count = None if index_count is False else call.out("index_count", 2216, index_count,
            lambda: (v_q[2][0], call.size("x", x, (v_cover_head, 0, 0)), call.size("n", n, (v_row,
            1, 0))), 8)
    if query_max:
        call.scalar("q", 2312, query_max, "query_max")
    if key_max:
        call.scalar("q", 2320, key_max, "key_max")
    if lists:
        call.scalar("q", 2328, lists, "lists")
    if count:
        call.scalar("q", 2336, count, "count")
    if min_keep:
        call.scalar("q", 2344, min_keep, "min_keep")
    if min_extra:
        call.scalar("q", 2352, min_extra, "min_extra")
    if force_first:
        call.scalar("q", 2360, force_first, "force_first")
    if force_previous:
        call.scalar("q", 2368, force_previous, "force_previous")
    if force_last:
        call.scalar("q", 2376, force_last, "force_last")
    if subset:
        call.scalar("q", 2384, subset, "subset")
    if scale:
        call.scalar("f", 2392, scale, "scale")
    if softcap:
        call.scalar("f", 2396, softcap, "softcap")
    if select_scale:
        call.scalar("f", 2400, select_scale, "select_scale")
    if ratio:
        call.scalar("f", 2404, ratio, "ratio")
    if cover:
        call.scalar("f", 2408, cover, "cover")
    if threshold:
        call.scalar("f", 2412, threshold, "threshold")
    if skip_margin:
        call.scalar("f", 2416, skip_margin, "skip_margin")
    if measure:
        call.enum(2420, measure, "measure", SelectMeasure)
    if normalise:
        call.enum(2424, normalise, "normalise", SelectNormalise)
    if reduce:
        call.enum(2428, reduce, "reduce", SelectReduce)
    if rule:
        call.enum(2432, rule, "rule", SelectRule)
    if scope:
        call.enum(2436, scope, "scope", SelectScope)
    if forced_count:
        call.scalar("i", 2440, forced_count, "forced_count")
    if force_own:
        call.scalar("i", 2444, force_own, "force_own")
    if causal:
        call.scalar("i", 2448, causal, "causal")
    if block_rows:
        call.scalar("i", 2452, block_rows, "block_rows")
    if block_keys:
        call.scalar("i", 2456, block_keys, "block_keys")
    if quantise:
        call.scalar("i", 2460, quantise, "quantise")
    if code:
        call.enum(2464, code, "code", Code)
    if v_code:
        call.enum(2468, v_code, "v_code", Code)
    if q_group:
        call.enum(2472, q_group, "q_group", ScaleGroup)
    if k_group:
        call.enum(2476, k_group, "k_group", ScaleGroup)
    if v_group:
        call.enum(2480, v_group, "v_group", ScaleGroup)
    if q_block:
        call.scalar("i", 2484, q_block, "q_block")
    if k_block:
        call.scalar("i", 2488, k_block, "k_block")
    if v_block:
        call.scalar("i", 2492, v_block, "v_block")
    if k_smooth:
        call.enum(2496, k_smooth, "k_smooth", Smooth)
    if p_format:
        call.enum(2500, p_format, "p_format", PFormat)
    if accumulate:
        call.enum(2504, accumulate, "accumulate", Accumulate)
    return call.run(o, lse, index, index_count)


def probed_forward(ctx_or_q=None, /, q=None, k=None, v=None, *, ctx=None, o=None, lse=None,
                   index=None, index_count=None, column=None, column_count=None, sample=None,
                   query_position=None, cover_head=None, sink_logit=None, query_start=None,
                   key_start=None, query_len=None, key_len=None, page_table=None, cache_row=None,
                   x=None, n=None, keep=None, columns=None, query_max=0, key_max=0, lists=0,
                   probe_rows=0, count=0, slash_count=0, slash_force_first=0, force_first=0,
                   force_previous=0, full_last=0, first_keys=0, last_keys=0, group_stride=0,
                   scale=0.0, softcap=0.0, cover=0.0, threshold=0.0, skip_margin=0.0, kind=0,
                   reduce=0, rule=0, forced_count=0, force_own=0, reversed=0, causal=0,
                   block_rows=0, block_keys=0):
    """Attention over keys that a probe finds.

    BLOCKS: block_sum of x_probe_forward is the score of x_select_block.  Row block R holds the rows
    [R block_rows, (R + 1) block_rows) of a sequence, key block c its keys [c block_keys, (c + 1)
    block_keys).  Packed sequences begin where select.h says.
    COLUMNS: column_sum is the score of single keys; each row sees those that are chosen.
    LINES: diagonal_sum chooses distances too, slash_count of them.  x_select_line makes ranges of
    block_rows keys of them, for row blocks of as many rows; each row sees these and the columns.
    Each row also sees first_keys and last_keys of x_sparse_forward, in COLUMNS and LINES.

    MEANS: m_c is the mean of the keys of block c, rounded to k's dtype.  R is a row block.
        w_Rc = sum of exp(scale q_i m_c) over the rows i of R that see all keys of block c.
    Row block R sees the blocks with w_Rc >= threshold * max_c w_Rc > 0, and those that are forced.
    The last full_last row blocks of a sequence see every block.  key_len is then at most what the
    cache holds.

    The probed rows of COLUMNS and LINES are `sample` at query_position, else the last probe_rows
    rows.  Row i is at position i + Lk - Lq.  reduce is over the heads of a list head.  Selection is
    x_select_block's, with its order and ties, by rule TOP_K or a TOP_P one; of COLUMNS and LINES it
    covers a list head.

    A row that sees nothing has o = 0.  Rows past query_len are neither read nor written.  Without
    rows of q no list is written.

    Errors name this operation, then the part that refuses, with that part's names of fields.
    Limits are those of the parts.  Workspace: theirs, the sums, and the lists that no output holds.
    Sources: XAttention (2503.16428), SampleAttention (2406.15486), MInference (2407.02490),
    FlashPrefill (2603.06199).

    Example
      o = fovea.experimental.probed_forward(q, k, v)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q: (b, s, h, d) f32 f16 bf16
      k: (rows, t, g, d) or paged (pool, page, g, d) as q
      v: (rows, t, g, e) or paged (pool, page, g, e) as q

    Outputs, new unless passed
      o: (b, s, h, e) as q or f32

    Outputs on request, by True or an array
      lse: (b, h, s) f32: of the sum over what is seen
      index: (b, x, n, keep) i32: the lists of BLOCKS, LINES and MEANS; entries past `keep` are cut
      index_count: (b, x, n) i32: entries wanted, with index
      column: (b, x, columns) i32: the keys of COLUMNS and LINES; keys past `columns` are cut
      column_count: (b, x) i32: keys wanted, with column

    Optional inputs
      sample: (b, samples, h, d) as q: rows of q that are probed; of COLUMNS and LINES
      query_position: (b, h, samples) i32: their positions; with sample
      cover_head: (x) f32: cover of each list head
      sink_logit: (h) f32: a learned term of the denominator
      query_start: (r+1) i32: first packed row of each sequence, ascending from 0; then b = 1; of
          BLOCKS
      key_start: (r+1) i32: first packed key of each sequence; not with page_table or cache_row; of
          BLOCKS
      query_len: (r) i32: rows in use; of BLOCKS, and of MEANS without full_last
      key_len: (r) i32: keys in use
      page_table: (rows, pages) i32: pool page of each page of k and v; -1: absent
      cache_row: (r) i32: row of page_table, or of k and v; not of MEANS

    x, n, keep, columns: extents of new outputs that no input tells.

    Numbers
      query_max: longest sequence of rows; 0: s; of BLOCKS and MEANS
      key_max: longest sequence of keys; 0: t, or pages * page
      lists: list heads without outputs of lists, a divisor of h, of MEANS h; 0: h
      probe_rows: last rows that are probed, >= 1; without sample, of COLUMNS and LINES
      count: k of TOP_K, of blocks or of columns
      slash_count: distances that are chosen; of LINES
      slash_force_first: the first distances are forced and count; of LINES
      force_first: the first key blocks, or columns, are forced
      force_previous: the key blocks before the own ones are forced; of MEANS
      full_last: last row blocks that see all; of MEANS
      first_keys: first keys that are seen beside the lists; of COLUMNS and LINES
      last_keys: keys up to the row's own position that are seen beside them; the same
      group_stride: antidiagonals of x_probe_forward; 0: 1; of BLOCKS
      scale: of attention's scores and the probe's, > 0; 0: 1 / sqrt(d)
      softcap: of attention's scores; 0: none
      cover: share of the mass, of the TOP_P rules
      threshold: share of the largest sum, > 0, <= 1; of MEANS
      skip_margin: in nats, as in x_sparse_forward; 0: none
      kind: "blocks", "columns", "lines", "means"
      reduce: "sum", "mean", "max"
      rule: "top_k", "top_p_ge", "top_p_gt", "top_p_under", "above", "at_least", "none"
      forced_count: 1: forced entries count for the rule
      force_own: 1: key blocks of the row block's own positions are forced; of BLOCKS and MEANS
      reversed: 1: of group_stride > 1, as in x_probe_forward
      causal: 1: no key after a row's own position; LINES and MEANS want it
      block_rows: rows of a row block, 1 .. 128; 0: 64
      block_keys: keys of a key block, 1 .. 65536, of BLOCKS and MEANS; 0: 64
    """
    if ctx_or_q.__class__ is Context and ctx is None:
        call = Call(ctx_or_q, _x_probed_forward)
    else:
        call, inputs = _x_probed_forward.begin(ctx_or_q, ctx, q, k, v)
        [q, k, v] = inputs
    v_q = call.put("q", 8, q, 4)
    call.put("k", 104, k)
    v_v = call.put("v", 200, v, 4)
    if sample is not None:
        call.put("sample", 488, sample)
    if query_position is not None:
        call.put("query_position", 584, query_position)
    v_cover_head = None
    if cover_head is not None:
        v_cover_head = call.put("cover_head", 680, cover_head, 1)
    if sink_logit is not None:
        call.put("sink_logit", 776, sink_logit)
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
    o = call.out("o", 296, o, (v_q[2][0], v_q[2][1], v_q[2][2], v_v[2][3]), v_q[1])
    if lse is not None:
        lse = None if lse is False else call.out("lse", 392, lse, (v_q[2][0], v_q[2][2], v_q[2][1]),
            1)
    if index is not None:
        index = None if index is False else call.out("index", 1448, index, lambda: (v_q[2][0],
            call.size("x", x, (v_cover_head, 0, 0)), call.size("n", n), call.size("keep", keep)), 8)
    if index_count is not None:
        index_count = None if index_count is False else call.out("index_count", 1544, index_count,
            lambda: (v_q[2][0], call.size("x", x, (v_cover_head, 0, 0)), call.size("n", n)), 8)
    if column is not None:
        column = None if column is False else call.out("column", 1640, column, lambda: (v_q[2][0],
            call.size("x", x, (v_cover_head, 0, 0)), call.size("columns", columns)), 8)
    if column_count is not None:
        column_count = None if column_count is False else call.out("column_count", 1736,
            column_count, lambda: (v_q[2][0], call.size("x", x, (v_cover_head, 0, 0))), 8)
    if query_max:
        call.scalar("q", 1832, query_max, "query_max")
    if key_max:
        call.scalar("q", 1840, key_max, "key_max")
    if lists:
        call.scalar("q", 1848, lists, "lists")
    if probe_rows:
        call.scalar("q", 1856, probe_rows, "probe_rows")
    if count:
        call.scalar("q", 1864, count, "count")
    if slash_count:
        call.scalar("q", 1872, slash_count, "slash_count")
    if slash_force_first:
        call.scalar("q", 1880, slash_force_first, "slash_force_first")
    if force_first:
        call.scalar("q", 1888, force_first, "force_first")
    if force_previous:
        call.scalar("q", 1896, force_previous, "force_previous")
    if full_last:
        call.scalar("q", 1904, full_last, "full_last")
    if first_keys:
        call.scalar("q", 1912, first_keys, "first_keys")
    if last_keys:
        call.scalar("q", 1920, last_keys, "last_keys")
    if group_stride:
        call.scalar("q", 1928, group_stride, "group_stride")
    if scale:
        call.scalar("f", 1936, scale, "scale")
    if softcap:
        call.scalar("f", 1940, softcap, "softcap")
    if cover:
        call.scalar("f", 1944, cover, "cover")
    if threshold:
        call.scalar("f", 1948, threshold, "threshold")
    if skip_margin:
        call.scalar("f", 1952, skip_margin, "skip_margin")
    if kind:
        call.enum(1956, kind, "kind", ProbedKind)
    if reduce:
        call.enum(1960, reduce, "reduce", ProbeReduce)
    if rule:
        call.enum(1964, rule, "rule", SelectRule)
    if forced_count:
        call.scalar("i", 1968, forced_count, "forced_count")
    if force_own:
        call.scalar("i", 1972, force_own, "force_own")
    if reversed:
        call.scalar("i", 1976, reversed, "reversed")
    if causal:
        call.scalar("i", 1980, causal, "causal")
    if block_rows:
        call.scalar("i", 1984, block_rows, "block_rows")
    if block_keys:
        call.scalar("i", 1988, block_keys, "block_keys")
    return call.run(o, lse, index, index_count, column, column_count)


def flex_forward(ctx_or_q=None, /, q=None, k=None, v=None, *, ctx=None, o=None, lse=None,
                 index=None, index_count=None, key_len=None, page_table=None, n=None, keep=None,
                 key_max=0, min_budget=0, max_budget=0, scale=0.0, cover=0.0, threshold=0.0,
                 block=0):
    """Causal attention over the blocks of FlexPrefill.

    With B = block, a head of a sequence of Lk keys, and the last min(B, s) rows of q:
      1. c_j      sum of those rows' probabilities of key j; a_x that of the distance x behind the
                  row.  C_J and A_X: sums over blocks of B keys, and of B distances from 0 on
      2. kind     p = softmax over key blocks of scale <mean of the rows, mean of the block's keys>.
                  The head is block-sparse where the root of the Jensen-Shannon divergence of p and
                  C / sum C, in nats, is below threshold
      3. budgets  n = K / B + 1, rounded down, K the fewest of c whose sum exceeds cover times all;
                  the same of a.  Cut to min_budget and max_budget, in blocks, rounded up.
                  Block-sparse heads have min_budget for both
      4. lines    key block 0 and the others with the largest C_J, n in all; distance 0 and the
                  others with the largest A_X.  Row block I, where its last position is, sees
                  blocks J <= I with J a chosen block or I - J a chosen distance, and its own blocks
      5. blocks   of a block-sparse head also: softmax over J <= I of scale <mean of the row block,
                  mean of the block's keys>; of all row blocks' values together the largest, while
                  their sum is at most cover times all
    A sequence of at most max(2 B, min_budget) keys is dense.

    Row i is at position i + Lk - s, and sees no key after it.  Row block R holds rows [R B,
    (R + 1) B).  Order, ties and sums of shares are select.h's.  A row that sees nothing has o = 0.
    Counts stay on the device, and nothing is read back.

    Not here: packed sequences, query_len and cache_row; the last rows are the last of q.
    Errors name this operation, then the part that refuses, with that part's names of fields.
    Limits are those of the parts.  Workspace: theirs, two sums of each key and head, and the lists.
    Source: FlexPrefill (2502.20766).

    Example
      o = fovea.experimental.flex_forward(q, k, v)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q: (b, s, h, d) f32 f16 bf16
      k: (rows, t, g, d) or paged (pool, page, g, d) as q
      v: (rows, t, g, e) or paged (pool, page, g, e) as q

    Outputs, new unless passed
      o: (b, s, h, e) as q or f32

    Outputs on request, by True or an array
      lse: (b, h, s) f32: of the sum over what is seen
      index: (b, h, n, keep) i32: key blocks of each row block; those past `keep` are cut; without
          rows not written
      index_count: (b, h, n) i32: key blocks wanted, with index

    Optional inputs
      key_len: (r) i32: keys in use
      page_table: (rows, pages) i32: pool page of each page of k and v; -1: absent

    n, keep: extents of new outputs that no input tells.

    Numbers
      key_max: longest sequence of keys; 0: t, or pages * page
      min_budget: least keys on the chosen blocks, and on the distances
      max_budget: most keys there, >= min_budget; 0: no bound
      scale: > 0; 0: 1 / sqrt(d)
      cover: share of the probabilities
      threshold: of step 2; 0: no head is block-sparse
      block: rows and keys of a block, 1 .. 128; 0: 128
    """
    if ctx_or_q.__class__ is Context and ctx is None:
        call = Call(ctx_or_q, _x_flex_forward)
    else:
        call, inputs = _x_flex_forward.begin(ctx_or_q, ctx, q, k, v)
        [q, k, v] = inputs
    v_q = call.put("q", 8, q, 4)
    call.put("k", 104, k)
    v_v = call.put("v", 200, v, 4)
    if key_len is not None:
        call.put("key_len", 488, key_len)
    if page_table is not None:
        call.put("page_table", 584, page_table)
    o = call.out("o", 296, o, (v_q[2][0], v_q[2][1], v_q[2][2], v_v[2][3]), v_q[1])
    if lse is not None:
        lse = None if lse is False else call.out("lse", 392, lse, (v_q[2][0], v_q[2][2], v_q[2][1]),
            1)
    if index is not None:
        index = None if index is False else call.out("index", 680, index, lambda: (v_q[2][0],
            v_q[2][2], call.size("n", n), call.size("keep", keep)), 8)
    if index_count is not None:
        index_count = None if index_count is False else call.out("index_count", 776, index_count,
            lambda: (v_q[2][0], v_q[2][2], call.size("n", n)), 8)
    if key_max:
        call.scalar("q", 872, key_max, "key_max")
    if min_budget:
        call.scalar("q", 880, min_budget, "min_budget")
    if max_budget:
        call.scalar("q", 888, max_budget, "max_budget")
    if scale:
        call.scalar("f", 896, scale, "scale")
    if cover:
        call.scalar("f", 900, cover, "cover")
    if threshold:
        call.scalar("f", 904, threshold, "threshold")
    if block:
        call.scalar("i", 908, block, "block")
    return call.run(o, lse, index, index_count)


def nsa_forward(ctx_or_q=None, /, q=None, k=None, v=None, *, ctx=None, o=None, index=None,
                index_count=None, o_compressed=None, o_selected=None, o_window=None,
                lse_compressed=None, lse_selected=None, lse_window=None, k_compressed=None,
                v_compressed=None, k_window=None, v_window=None, gate_compressed=None,
                gate_selected=None, gate_window=None, query_len=None, key_len=None,
                compressed_len=None, page_table=None, keep=None, query_max=0, key_max=0,
                compress_keys=0, compress_step=0, count=0, window=0, scale=0.0, block_keys=0,
                gate_plain=0):
    """Native Sparse Attention of q over k and v; prefill and decode, contiguous and paged caches.

    x_project and x_pool make compressed keys and values.  Absent, they are means of k and v.
    Equal scores: the lower block first.  A branch without keys gives 0.

    Rows past query_len are neither read nor written.  Keys past key_len and compressed keys past
    compressed_len are not read.

    Errors name this operation, then the part that refuses, with that part's names of fields.  The
    parts are x_pool_forward, x_select_block, x_combine_forward, x_sparse_forward over the selected
    blocks, and attention_forward over the compressed keys and the window.  Limits are theirs.
    Workspace: theirs, and what no output holds of lists and branches.
    Source: Native Sparse Attention (2502.11089).

    Example
      o = fovea.experimental.nsa_forward(q, k, v)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q: (b, s, h, d) f32 f16 bf16
      k: (rows, t, g, d) or paged (pool, page, g, d) as q
      v: (rows, t, g, e) or paged (pool, page, g, e) as q

    Outputs, new unless passed
      o: (b, s, h, e) as q or f32

    Outputs on request, by True or an array
      index: (b, g, s, keep) i32: the selected blocks, ascending, -1 past the count; those past
          `keep` are cut
      index_count: (b, g, s) i32: blocks wanted; with index
      o_compressed: (b, s, h, e) as q: of the branch, before its gate
      o_selected: (b, s, h, e) as q: the same
      o_window: (b, s, h, e) as q: the same
      lse_compressed: (b, h, s) f32: natural log of each row's sum
      lse_selected: (b, h, s) f32: the same
      lse_window: (b, h, s) f32: the same

    Optional inputs
      k_compressed: (b, u, g, d) as q: with v_compressed; more than there are is fine; absent: means
          of k, without key_len
      v_compressed: (b, u, g, e) as q
      k_window: (rows, t, g, d) or paged (pool, page, g, d) as q: keys of the window; with v_window;
          absent: k
      v_window: (rows, t, g, e) or paged (pool, page, g, e) as q: absent: v
      gate_compressed: (b, s, h) as q or f32: absent: the branch counts once
      gate_selected: (b, s, h) as q or f32: the same
      gate_window: (b, s, h) as q or f32: the same
      query_len: (r) i32: rows in use
      key_len: (r) i32: keys in use; with compressed_len
      compressed_len: (r) i32: compressed keys in use: floor((key_len - compress_keys) /
          compress_step) + 1, or 0
      page_table: (rows, pages) i32: pool page of each page of k, v, k_window and v_window; -1:
          absent

    keep: extents of new outputs that no input tells.

    Numbers
      query_max: longest sequence of rows; 0: s
      key_max: longest sequence of keys; 0: t, or pages * page
      compress_keys: keys of a compressed key, 1 .. 65536; 0: 32
      compress_step: keys from one to the next, a divisor of compress_keys and block_keys; 0: 16
      count: blocks that a row selects, the three forced ones among them; 0: 16
      window: keys of the window, the row's own counted; 0: 512
      scale: of all three branches, > 0; 0: 1 / sqrt(d)
      block_keys: keys of a selected block, 1 .. 128; 0: 64
      gate_plain: 1: gates multiply as they are; 0: their sigmoid does
    """
    if ctx_or_q.__class__ is Context and ctx is None:
        call = Call(ctx_or_q, _x_nsa_forward)
    else:
        call, inputs = _x_nsa_forward.begin(ctx_or_q, ctx, q, k, v)
        [q, k, v] = inputs
    v_q = call.put("q", 8, q, 4)
    v_k = call.put("k", 104, k, 4)
    v_v = call.put("v", 200, v, 4)
    if k_compressed is not None:
        call.put("k_compressed", 392, k_compressed)
    if v_compressed is not None:
        call.put("v_compressed", 488, v_compressed)
    if k_window is not None:
        call.put("k_window", 584, k_window)
    if v_window is not None:
        call.put("v_window", 680, v_window)
    if gate_compressed is not None:
        call.put("gate_compressed", 776, gate_compressed)
    if gate_selected is not None:
        call.put("gate_selected", 872, gate_selected)
    if gate_window is not None:
        call.put("gate_window", 968, gate_window)
    if query_len is not None:
        call.put("query_len", 1064, query_len)
    if key_len is not None:
        call.put("key_len", 1160, key_len)
    if compressed_len is not None:
        call.put("compressed_len", 1256, compressed_len)
    if page_table is not None:
        call.put("page_table", 1352, page_table)
    o = call.out("o", 296, o, (v_q[2][0], v_q[2][1], v_q[2][2], v_v[2][3]), v_q[1])
    if index is not None:
        index = None if index is False else call.out("index", 1448, index, lambda: (v_q[2][0],
            v_k[2][2], v_q[2][1], call.size("keep", keep)), 8)
    if index_count is not None:
        index_count = None if index_count is False else call.out("index_count", 1544, index_count,
            (v_q[2][0], v_k[2][2], v_q[2][1]), 8)
    if o_compressed is not None:
        o_compressed = None if o_compressed is False else call.out("o_compressed", 1640,
            o_compressed, (v_q[2][0], v_q[2][1], v_q[2][2], v_v[2][3]), v_q[1])
    if o_selected is not None:
        o_selected = None if o_selected is False else call.out("o_selected", 1736, o_selected,
            (v_q[2][0], v_q[2][1], v_q[2][2], v_v[2][3]), v_q[1])
    if o_window is not None:
        o_window = None if o_window is False else call.out("o_window", 1832, o_window, (v_q[2][0],
            v_q[2][1], v_q[2][2], v_v[2][3]), v_q[1])
    if lse_compressed is not None:
        lse_compressed = None if lse_compressed is False else call.out("lse_compressed", 1928,
            lse_compressed, (v_q[2][0], v_q[2][2], v_q[2][1]), 1)
    if lse_selected is not None:
        lse_selected = None if lse_selected is False else call.out("lse_selected", 2024,
            lse_selected, (v_q[2][0], v_q[2][2], v_q[2][1]), 1)
    if lse_window is not None:
        lse_window = None if lse_window is False else call.out("lse_window", 2120, lse_window,
            (v_q[2][0], v_q[2][2], v_q[2][1]), 1)
    if query_max:
        call.scalar("q", 2216, query_max, "query_max")
    if key_max:
        call.scalar("q", 2224, key_max, "key_max")
    if compress_keys:
        call.scalar("q", 2232, compress_keys, "compress_keys")
    if compress_step:
        call.scalar("q", 2240, compress_step, "compress_step")
    if count:
        call.scalar("q", 2248, count, "count")
    if window:
        call.scalar("q", 2256, window, "window")
    if scale:
        call.scalar("f", 2264, scale, "scale")
    if block_keys:
        call.scalar("i", 2268, block_keys, "block_keys")
    if gate_plain:
        call.scalar("i", 2272, gate_plain, "gate_plain")
    return call.run(o, index, index_count, o_compressed, o_selected, o_window, lse_compressed,
        lse_selected, lse_window)


def nsa_backward(ctx_or_q=None, /, q=None, k=None, v=None, index=None, o_compressed=None,
                 o_selected=None, o_window=None, lse_compressed=None, lse_selected=None,
                 lse_window=None, dout=None, *, ctx=None, dq=None, dk=None, dv=None,
                 dk_compressed=None, dv_compressed=None, dk_window=None, dv_window=None,
                 dgate_compressed=None, dgate_selected=None, dgate_window=None, k_compressed=None,
                 v_compressed=None, k_window=None, v_window=None, gate_compressed=None,
                 gate_selected=None, gate_window=None, query_len=None, key_len=None,
                 compressed_len=None, index_count=None, compress_keys=0, compress_step=0, window=0,
                 scale=0.0, block_keys=0, gate_plain=0):
    """Gradients of x_nsa_forward from dout, the branches' o and lse, and the list.  The fields it
    shares say what the forward was; what key_max and query_max cut, lengths say here.  The list has
    no gradient.  Each output is optional: absent = not computed.  Every element of an output is
    written: rows and keys past their lengths get 0.
      do_n = act(gate_n) dout,  dgate_n = act'(gate_n) <o_n, dout> of each branch n
      dq, dk, dv: the sums of the branches' own, each rounded to the dtype of q before
    Where k_compressed or k_window is absent, dk and dv hold what reaches k and v through the
    branch.

    Errors and limits are as in the forward.  The parts are x_combine_backward, attention_backward,
    x_sparse_backward and x_pool_backward.  Bits: the same every run.  No paged keys.

    Example
      outputs = fovea.experimental.nsa_backward(q, k, v, index, o_compressed, o_selected, o_window,
          lse_compressed, lse_selected, lse_window, dout)
      dq, dk, dv = outputs

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q: (b, s, h, d) f32 f16 bf16
      k: (b, t, g, d) as q
      v: (b, t, g, e) as q
      index: (b, g, s, keep) i32: of the forward
      o_compressed: (b, s, h, e) as q: of the forward, and so for the next
      o_selected: (b, s, h, e) as q
      o_window: (b, s, h, e) as q
      lse_compressed: (b, h, s) f32
      lse_selected: (b, h, s) f32
      lse_window: (b, h, s) f32
      dout: (b, s, h, e) as q or f32: the gradient of o

    Outputs, new unless passed or False
      dq: (b, s, h, d) as q
      dk: (b, t, g, d) as q
      dv: (b, t, g, e) as q

    Outputs on request, by True or an array
      dk_compressed: (b, u, g, d) as q: needs k_compressed
      dv_compressed: (b, u, g, e) as q: needs v_compressed
      dk_window: (b, t, g, d) as q: needs k_window
      dv_window: (b, t, g, e) as q: needs v_window
      dgate_compressed: (b, s, h) as q or f32: needs gate_compressed
      dgate_selected: (b, s, h) as q or f32: needs gate_selected
      dgate_window: (b, s, h) as q or f32: needs gate_window

    Optional inputs
      k_compressed: (b, u, g, d) as q: with v_compressed; u of t keys
      v_compressed: (b, u, g, e) as q
      k_window: (b, t, g, d) as q: with v_window
      v_window: (b, t, g, e) as q
      gate_compressed: (b, s, h) as q or f32
      gate_selected: (b, s, h) as q or f32
      gate_window: (b, s, h) as q or f32
      query_len: (b) i32: rows in use
      key_len: (b) i32: keys in use; with compressed_len
      compressed_len: (b) i32: compressed keys in use
      index_count: (b, g, s) i32: of the forward; absent: all

    Numbers
      compress_keys: as in the forward, and so for the fields below
      compress_step: 0: 16
      window: 0: 512
      scale: 0: 1 / sqrt(d)
      block_keys: 0: 64
      gate_plain: 1: gates multiply as they are
    """
    if ctx_or_q.__class__ is Context and ctx is None:
        call = Call(ctx_or_q, _x_nsa_backward)
    else:
        call, inputs = _x_nsa_backward.begin(ctx_or_q, ctx, q, k, v, index, o_compressed,
            o_selected, o_window, lse_compressed, lse_selected, lse_window, dout)
        [q, k, v, index, o_compressed, o_selected, o_window, lse_compressed, lse_selected,
            lse_window, dout] = inputs
    v_q = call.put("q", 8, q, 4)
    v_k = call.put("k", 104, k, 4)
    v_v = call.put("v", 200, v, 4)
    v_k_compressed = None
    if k_compressed is not None:
        v_k_compressed = call.put("k_compressed", 296, k_compressed, 4)
    v_v_compressed = None
    if v_compressed is not None:
        v_v_compressed = call.put("v_compressed", 392, v_compressed, 4)
    v_k_window = None
    if k_window is not None:
        v_k_window = call.put("k_window", 488, k_window, 4)
    v_v_window = None
    if v_window is not None:
        v_v_window = call.put("v_window", 584, v_window, 4)
    v_gate_compressed = None
    if gate_compressed is not None:
        v_gate_compressed = call.put("gate_compressed", 680, gate_compressed, 3)
    v_gate_selected = None
    if gate_selected is not None:
        v_gate_selected = call.put("gate_selected", 776, gate_selected, 3)
    v_gate_window = None
    if gate_window is not None:
        v_gate_window = call.put("gate_window", 872, gate_window, 3)
    if query_len is not None:
        call.put("query_len", 968, query_len)
    if key_len is not None:
        call.put("key_len", 1064, key_len)
    if compressed_len is not None:
        call.put("compressed_len", 1160, compressed_len)
    call.put("index", 1256, index)
    if index_count is not None:
        call.put("index_count", 1352, index_count)
    call.put("o_compressed", 1448, o_compressed)
    call.put("o_selected", 1544, o_selected)
    call.put("o_window", 1640, o_window)
    call.put("lse_compressed", 1736, lse_compressed)
    call.put("lse_selected", 1832, lse_selected)
    call.put("lse_window", 1928, lse_window)
    call.put("dout", 2024, dout)
    dq = None if dq is False else call.out("dq", 2120, dq, v_q[2], v_q[1])
    dk = None if dk is False else call.out("dk", 2216, dk, v_k[2], v_q[1])
    dv = None if dv is False else call.out("dv", 2312, dv, v_v[2], v_q[1])
    if dk_compressed is not None:
        dk_compressed = None if dk_compressed is False else call.out("dk_compressed", 2408,
            dk_compressed, lambda: call.twin("dk_compressed", "k_compressed", v_k_compressed),
            v_q[1])
    if dv_compressed is not None:
        dv_compressed = None if dv_compressed is False else call.out("dv_compressed", 2504,
            dv_compressed, lambda: call.twin("dv_compressed", "v_compressed", v_v_compressed),
            v_q[1])
    if dk_window is not None:
        dk_window = None if dk_window is False else call.out("dk_window", 2600, dk_window, lambda:
            call.twin("dk_window", "k_window", v_k_window), v_q[1])
    if dv_window is not None:
        dv_window = None if dv_window is False else call.out("dv_window", 2696, dv_window, lambda:
            call.twin("dv_window", "v_window", v_v_window), v_q[1])
    if dgate_compressed is not None:
        dgate_compressed = None if dgate_compressed is False else call.out("dgate_compressed", 2792,
            dgate_compressed, lambda: call.twin("dgate_compressed", "gate_compressed",
            v_gate_compressed), v_q[1])
    if dgate_selected is not None:
        dgate_selected = None if dgate_selected is False else call.out("dgate_selected", 2888,
            dgate_selected, lambda: call.twin("dgate_selected", "gate_selected", v_gate_selected),
            v_q[1])
    if dgate_window is not None:
        dgate_window = None if dgate_window is False else call.out("dgate_window", 2984,
            dgate_window, lambda: call.twin("dgate_window", "gate_window", v_gate_window), v_q[1])
    if compress_keys:
        call.scalar("q", 3080, compress_keys, "compress_keys")
    if compress_step:
        call.scalar("q", 3088, compress_step, "compress_step")
    if window:
        call.scalar("q", 3096, window, "window")
    if scale:
        call.scalar("f", 3104, scale, "scale")
    if block_keys:
        call.scalar("i", 3108, block_keys, "block_keys")
    if gate_plain:
        call.scalar("i", 3112, gate_plain, "gate_plain")
    return call.run(dq, dk, dv, dk_compressed, dv_compressed, dk_window, dv_window,
        dgate_compressed, dgate_selected, dgate_window)


def infllm_forward(ctx_or_q=None, /, q=None, q_far=None, k=None, k_window=None, v=None,
                   representative=None, key_len=None, block_len=None, *, ctx=None, o=None, lse=None,
                   index=None, index_count=None, local_score=None, query_len=None, page_table=None,
                   keep=None, window=0, init_keys=0, count=0, scale=0.0, block_keys=0):
    """InfLLM's attention of q over a cache; chunks of a prompt and decode, contiguous and paged.

    local_score gets, of each head and key, the sum over the rows of the local probabilities under
    the softmax over all keys.  Every element of it is read and written.

    A row that sees nothing has o = 0 and lse = -inf.  Rows past query_len are neither read nor
    written.  Of a sequence without rows, and without heads, no list is written.

    Errors name this operation, then the part that refuses, with that part's names of fields.  The
    parts are attention_forward of window and remainder, x_pool_forward of q_far, x_select_block,
    x_sparse_forward over the blocks, merge_forward.  For local_score x_probe_forward takes the
    merged lse, and x_combine_forward adds; it also keeps rows past query_len.  Limits are theirs.
    Workspace: theirs, three branches of o in f32, the sums, and the lists that no output holds.
    Source: InfLLM (2402.04617).

    Example
      outputs = fovea.experimental.infllm_forward(q, q_far, k, k_window, v, representative, key_len,
          block_len)
      o = outputs

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q: (b, s, h, d) f32 f16 bf16: rotated by their positions
      q_far: (b, s, h, d) as q: the same queries, all rotated by the position `window`
      k: (rows, t, g, d) or paged (pool, page, g, d) as q: not rotated
      k_window: (rows, t, g, d) or paged (pool, page, g, d) as q: the same keys, rotated by their
          positions; read in the window alone
      v: (rows, t, g, e) or paged (pool, page, g, e) as q
      representative: (b, u, representative_heads, d) f32 f16 bf16: of each block; heads divide h.
          Those of init_keys do not count
      key_len: (r) i32: keys in use, the rows' own among them
      block_len: (r) i32: keys in blocks, 0 .. min(key_len, u block_keys)

    Outputs, new unless passed
      o: (b, s, h, e) as q or f32

    Outputs on request, by True or an array
      lse: (b, h, s) f32: natural log of each row's sum
      index: (b, keep) i32: the blocks, those of init_keys among them, ascending, -1 past the count;
          those past `keep` are cut
      index_count: (b) i32: blocks wanted; with index

    Optional inputs
      local_score: (b, h, t) or paged (b, h, keys) f32: what local probabilities are added to
      query_len: (r) i32: rows in use
      page_table: (rows, pages) i32: pool page of each page of k, k_window and v; -1: absent

    keep: extents of new outputs that no input tells.

    Numbers
      window: keys of the window, the row's own counted, 1 .. 2^31 - 1; 0: 4096
      init_keys: first keys that all rows see, a multiple of block_keys
      count: blocks that are chosen beside those; 0: 16
      scale: of all scores, > 0; 0: 1 / sqrt(d)
      block_keys: keys of a block, 1 .. 65536; 0: 128
    """
    if ctx_or_q.__class__ is Context and ctx is None:
        call = Call(ctx_or_q, _x_infllm_forward)
    else:
        call, inputs = _x_infllm_forward.begin(ctx_or_q, ctx, q, q_far, k, k_window, v,
            representative, key_len, block_len)
        [q, q_far, k, k_window, v, representative, key_len, block_len] = inputs
    v_q = call.put("q", 8, q, 4)
    call.put("q_far", 104, q_far)
    call.put("k", 200, k)
    call.put("k_window", 296, k_window)
    v_v = call.put("v", 392, v, 4)
    call.put("representative", 680, representative)
    if local_score is not None:
        call.put("local_score", 776, local_score, None, True)
    if query_len is not None:
        call.put("query_len", 872, query_len)
    call.put("key_len", 968, key_len)
    call.put("block_len", 1064, block_len)
    if page_table is not None:
        call.put("page_table", 1160, page_table)
    o = call.out("o", 488, o, (v_q[2][0], v_q[2][1], v_q[2][2], v_v[2][3]), v_q[1])
    if lse is not None:
        lse = None if lse is False else call.out("lse", 584, lse, (v_q[2][0], v_q[2][2], v_q[2][1]),
            1)
    if index is not None:
        index = None if index is False else call.out("index", 1256, index, lambda: (v_q[2][0],
            call.size("keep", keep)), 8)
    if index_count is not None:
        index_count = None if index_count is False else call.out("index_count", 1352, index_count,
            (v_q[2][0],), 8)
    if window:
        call.scalar("q", 1448, window, "window")
    if init_keys:
        call.scalar("q", 1456, init_keys, "init_keys")
    if count:
        call.scalar("q", 1464, count, "count")
    if scale:
        call.scalar("f", 1472, scale, "scale")
    if block_keys:
        call.scalar("i", 1476, block_keys, "block_keys")
    return call.run(o, lse, index, index_count)


def compressed_forward(ctx_or_q=None, /, q=None, k=None, v=None, k_compressed=None,
                       v_compressed=None, *, ctx=None, o=None, lse=None, index=None,
                       index_count=None, index_q=None, index_k=None, weight=None, sink_logit=None,
                       query_len=None, key_len=None, compressed_len=None, page_table=None,
                       keep=None, key_max=0, compress_step=0, count=0, window=0, scale=0.0,
                       index_scale=0.0):
    """Attention of q over a window of k and v and over compressed keys; prefill and decode, contiguous
    and paged caches.

    Rows past query_len are neither read nor written.  Keys past key_len and compressed keys past
    compressed_len are not read.  A row that sees no key gives o = 0 and lse = -inf, or sink_logit.

    Errors name this operation, then the part that refuses, with that part's names of fields.  The
    parts are attention_forward over the window, x_select_token and x_sparse_forward over the
    compressed keys, or attention_forward over all of them, and merge_forward.  Limits are theirs.
    Where lists have room for every compressed key, attention_forward takes all and needs no list.
    o of a part is rounded to the dtype of o.  Workspace: theirs, o of two parts, and the lists that
    no output holds.
    Source: the report of DeepSeek-V4, sections 2.3.1 and 2.3.2.

    Example
      o = fovea.experimental.compressed_forward(q, k, v, k_compressed, v_compressed)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q: (b, s, h, d) f32 f16 bf16
      k: (rows, t, g, d) or paged (pool, page, g, d) as q
      v: (rows, t, g, e) or paged (pool, page, g, e) as q: may be a view of k
      k_compressed: (b, u, g, d) as q: more than there are is fine; fewer with compressed_len alone
      v_compressed: (b, u, g, e) as q: may be a view of k_compressed

    Outputs, new unless passed
      o: (b, s, h, e) as q or f32

    Outputs on request, by True or an array
      lse: (b, h, s) f32: natural log of each row's sum
      index: (b, s, keep) i32: the compressed keys of each row, as x_select_token writes them; with
          index_q; those past `keep` are cut
      index_count: (b, s) i32: keys wanted; with index

    Optional inputs
      index_q: (b, s, index_heads, index_width) f32 f16 bf16: with index_k; absent: every compressed
          key
      index_k: (b, u, index_keys, index_width) f32 f16 bf16
      weight: (b, s, index_heads) f32: needs index_q; absent: 1
      sink_logit: (h) f32: a learned term of the denominator
      query_len: (r) i32: rows in use
      key_len: (r) i32: keys in use; with compressed_len
      compressed_len: (r) i32: compressed keys in use: floor(key_len / compress_step), or fewer
      page_table: (rows, pages) i32: pool page of each page of k and v; -1: absent

    keep: extents of new outputs that no input tells.

    Numbers
      key_max: longest sequence of keys; 0: t, or pages * page
      compress_step: keys of a compressed key, 1 .. 65536; 0: 4
      count: compressed keys of a list; 0: 512
      window: keys of the window, the row's own counted; 0: 128
      scale: of attention's scores, > 0; 0: 1 / sqrt(d)
      index_scale: of the index's, > 0; 0: 1 / sqrt(index_width)
    """
    if ctx_or_q.__class__ is Context and ctx is None:
        call = Call(ctx_or_q, _x_compressed_forward)
    else:
        call, inputs = _x_compressed_forward.begin(ctx_or_q, ctx, q, k, v, k_compressed,
            v_compressed)
        [q, k, v, k_compressed, v_compressed] = inputs
    v_q = call.put("q", 8, q, 4)
    call.put("k", 104, k)
    v_v = call.put("v", 200, v, 4)
    call.put("k_compressed", 296, k_compressed)
    call.put("v_compressed", 392, v_compressed)
    if index_q is not None:
        call.put("index_q", 680, index_q)
    if index_k is not None:
        call.put("index_k", 776, index_k)
    if weight is not None:
        call.put("weight", 872, weight)
    if sink_logit is not None:
        call.put("sink_logit", 968, sink_logit)
    if query_len is not None:
        call.put("query_len", 1064, query_len)
    if key_len is not None:
        call.put("key_len", 1160, key_len)
    if compressed_len is not None:
        call.put("compressed_len", 1256, compressed_len)
    if page_table is not None:
        call.put("page_table", 1352, page_table)
    o = call.out("o", 488, o, (v_q[2][0], v_q[2][1], v_q[2][2], v_v[2][3]), v_q[1])
    if lse is not None:
        lse = None if lse is False else call.out("lse", 584, lse, (v_q[2][0], v_q[2][2], v_q[2][1]),
            1)
    if index is not None:
        index = None if index is False else call.out("index", 1448, index, lambda: (v_q[2][0],
            v_q[2][1], call.size("keep", keep)), 8)
    if index_count is not None:
        index_count = None if index_count is False else call.out("index_count", 1544, index_count,
            (v_q[2][0], v_q[2][1]), 8)
    if key_max:
        call.scalar("q", 1640, key_max, "key_max")
    if compress_step:
        call.scalar("q", 1648, compress_step, "compress_step")
    if count:
        call.scalar("q", 1656, count, "count")
    if window:
        call.scalar("q", 1664, window, "window")
    if scale:
        call.scalar("f", 1672, scale, "scale")
    if index_scale:
        call.scalar("f", 1676, index_scale, "index_scale")
    return call.run(o, lse, index, index_count)


def compressed_backward(ctx_or_q=None, /, q=None, k=None, v=None, k_compressed=None,
                        v_compressed=None, o=None, lse=None, dout=None, *, ctx=None, dq=None,
                        dk=None, dv=None, dk_compressed=None, dv_compressed=None, dsink_logit=None,
                        sink_logit=None, query_len=None, key_len=None, compressed_len=None,
                        index=None, index_count=None, compress_step=0, window=0, scale=0.0):
    """Gradients of x_compressed_forward from dout, o and lse, under the forward's lists.  The fields
    it shares say what the forward was.  Each output is optional: absent = not computed.  Every
    element of an output is written: rows and keys past their lengths get 0.  The index has no
    gradient here.
      delta_i = <dout_i, o_i>,  p = exp(x - lse_i) of each key that row i sees
      ds = p (<dout_i, v> - delta_i)
      dq_i = scale sum ds k,  dk = scale sum ds q_i,  dv = sum p dout_i
      dsink_logit_h = - sum_i exp(sink_logit_h - lse_i) delta_i
    Where keys are values their gradient is dk + dv.

    Errors and limits are as in the forward.  The parts are attention_backward, x_sparse_backward
    and x_combine_forward; dq of either set of keys is rounded to the dtype of q.  Bits: the same
    every run.  No paged keys.

    Example
      outputs = fovea.experimental.compressed_backward(q, k, v, k_compressed, v_compressed, o, lse,
          dout)
      dq, dk, dv, dk_compressed, dv_compressed = outputs

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q: (b, s, h, d) f32 f16 bf16
      k: (b, t, g, d) as q
      v: (b, t, g, e) as q
      k_compressed: (b, u, g, d) as q: of t keys; any u with compressed_len
      v_compressed: (b, u, g, e) as q
      o: (b, s, h, e) as q or f32: of the forward
      lse: (b, h, s) f32: of the forward
      dout: (b, s, h, e) as o: the gradient of o

    Outputs, new unless passed or False
      dq: (b, s, h, d) as q
      dk: (b, t, g, d) as q
      dv: (b, t, g, e) as q
      dk_compressed: (b, u, g, d) as q
      dv_compressed: (b, u, g, e) as q

    Outputs on request, by True or an array
      dsink_logit: (h) f32: needs sink_logit

    Optional inputs
      sink_logit: (h) f32
      query_len: (b) i32: rows in use
      key_len: (b) i32: keys in use; with compressed_len
      compressed_len: (b) i32: compressed keys in use
      index: (b, s, keep) i32: of the forward; absent: it had no index_q
      index_count: (b, s) i32: of the forward; absent: all

    Numbers
      compress_step: as in the forward, and so for the fields below
      window: 0: 128
      scale: 0: 1 / sqrt(d)
    """
    if ctx_or_q.__class__ is Context and ctx is None:
        call = Call(ctx_or_q, _x_compressed_backward)
    else:
        call, inputs = _x_compressed_backward.begin(ctx_or_q, ctx, q, k, v, k_compressed,
            v_compressed, o, lse, dout)
        [q, k, v, k_compressed, v_compressed, o, lse, dout] = inputs
    v_q = call.put("q", 8, q, 4)
    v_k = call.put("k", 104, k, 4)
    v_v = call.put("v", 200, v, 4)
    v_k_compressed = call.put("k_compressed", 296, k_compressed, 4)
    v_v_compressed = call.put("v_compressed", 392, v_compressed, 4)
    v_sink_logit = None
    if sink_logit is not None:
        v_sink_logit = call.put("sink_logit", 488, sink_logit, 1)
    if query_len is not None:
        call.put("query_len", 584, query_len)
    if key_len is not None:
        call.put("key_len", 680, key_len)
    if compressed_len is not None:
        call.put("compressed_len", 776, compressed_len)
    if index is not None:
        call.put("index", 872, index)
    if index_count is not None:
        call.put("index_count", 968, index_count)
    call.put("o", 1064, o)
    call.put("lse", 1160, lse)
    call.put("dout", 1256, dout)
    dq = None if dq is False else call.out("dq", 1352, dq, v_q[2], v_q[1])
    dk = None if dk is False else call.out("dk", 1448, dk, v_k[2], v_q[1])
    dv = None if dv is False else call.out("dv", 1544, dv, v_v[2], v_q[1])
    dk_compressed = None if dk_compressed is False else call.out("dk_compressed", 1640,
        dk_compressed, v_k_compressed[2], v_q[1])
    dv_compressed = None if dv_compressed is False else call.out("dv_compressed", 1736,
        dv_compressed, v_v_compressed[2], v_q[1])
    if dsink_logit is not None:
        dsink_logit = None if dsink_logit is False else call.out("dsink_logit", 1832, dsink_logit,
            lambda: call.twin("dsink_logit", "sink_logit", v_sink_logit), 1)
    if compress_step:
        call.scalar("q", 1928, compress_step, "compress_step")
    if window:
        call.scalar("q", 1936, window, "window")
    if scale:
        call.scalar("f", 1944, scale, "scale")
    return call.run(dq, dk, dv, dk_compressed, dv_compressed, dsink_logit)


def project_forward(ctx_or_x=None, /, x=None, weight=None, *, ctx=None, y=None, code=None,
                    bias=None, weight2=None, bias2=None, weight3=None, bias3=None, norm_weight=None,
                    position=None, cos=None, sin=None, h=None, f=None, words=None, norm_eps=0.0,
                    act=0, bits=0, rope_begin=0, rope_interleaved=0):
    """A row of each head through the layers that are given:

      y = act(act(x weight + bias) weight2 + bias2) weight3 + bias3
    Then RMSNorm with norm_weight over its f columns, then RoPE with cos and sin.

    Of p = max(g, h) products, the smaller of g and h divides p, and so does maps.  Product i reads
    head i / (p / g) of x and weight i / (p / maps).  With g <= h it is head i of y.  With g > h
    head j of y is the sum of the g / h products of its group, in their order, each with its bias.
    Any axis of an input may have stride 0, and views serve weights that are stored otherwise.

      MLA, absorb  x = q_nope (b, s, h, d_n), weight = W_UK (h, d_n, rank), y = part of the query
      MLA, out     x = o over the latent (b, s, h, rank), weight = W_UV (h, rank, d_v)
      MLA, expand  x = latent (b, s, 1, rank), weight = W_UK as (h, rank, d_n), or W_UV
      MFA, up      x = (b, s, 1, rank), weight = (h, rank, d), then RoPE
      group query  x = q (b, s, g, d), weight = (g, d, f), y with fewer heads
      windows      x = a view of (b, windows, g, l d) whose rows overlap
      hashes       x = q or k, weight = (h, d, inner) and two more layers, code

    An encoding that is added to x, as NSA's, is a bias: encoding weight.

    code packs a row of y as it is before it is rounded.  Column c is positive, or not; NaN is not.
      bits = 0  bit c % 32 of word c / 32, and 0 past the last column; words = ceil(f / 32)
      bits > 0  word l is the sum of 2^t over the positive columns l bits + t; f = bits words

    Limits: none on widths.  CUDA has one layer of f16 or bf16 whose widths are multiples of 8 on
    tensor cores, every other call in f32 FMA.  Hopper's take it by TMA without a bias, also with a
    weight that is a transposed view.  Hidden layers are in the workspace, a part of the rows at a
    time: 32 MiB, or one row.
    Sources: DeepSeek-V2 (2405.04434), MFA (2412.19255), Loki (2406.02542), SeerAttention
    (2410.13276), NSA (2502.11089), MagicPIG (2410.16179), HashAttention (2412.14468).

    Example
      y, code = fovea.experimental.project_forward(x, weight, y=True, code=True)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      x: (b, s, g, d) f32 f16 bf16
      weight: (maps, d, inner) as x

    Outputs on request, by True or an array
      y: (b, s, h, f) as x or f32: f is the last layer's columns
      code: (b, s, h, words) i32: see above

    Optional inputs
      bias: (maps, inner) as x or f32
      weight2: (maps, inner, inner2) as x
      bias2: (maps, inner2) as x or f32: needs weight2
      weight3: (maps, inner2, inner3) as x: needs weight2
      bias3: (maps, inner3) as x or f32: needs weight3
      norm_weight: (f) as x or f32: y becomes y norm_weight / sqrt(mean(y^2) + norm_eps)
      position: (b, s) i32: row of cos and sin; outside them the rotated columns are NaN; absent:
          index on the s axis
      cos: (positions, half) f32: needs sin; columns turn as in rope_forward
      sin: (positions, half) f32

    h, f, words: extents of new outputs that no input tells.

    Numbers
      norm_eps: > 0; 0: 1e-6; needs norm_weight
      act: "none", "silu", "gelu"
      bits: columns of a code, 1 .. 31; 0: signs
      rope_begin: first rotated column; 2 * half columns turn
      rope_interleaved: 1: pairs (2i, 2i + 1); 0: pairs (i, i + half)
    """
    if ctx_or_x.__class__ is Context and ctx is None:
        call = Call(ctx_or_x, _x_project_forward)
    else:
        call, inputs = _x_project_forward.begin(ctx_or_x, ctx, x, weight)
        [x, weight] = inputs
    v_x = call.put("x", 8, x, 4)
    call.put("weight", 104, weight)
    if bias is not None:
        call.put("bias", 200, bias)
    if weight2 is not None:
        call.put("weight2", 296, weight2)
    if bias2 is not None:
        call.put("bias2", 392, bias2)
    if weight3 is not None:
        call.put("weight3", 488, weight3)
    if bias3 is not None:
        call.put("bias3", 584, bias3)
    v_norm_weight = None
    if norm_weight is not None:
        v_norm_weight = call.put("norm_weight", 680, norm_weight, 1)
    if position is not None:
        call.put("position", 776, position)
    if cos is not None:
        call.put("cos", 872, cos)
    if sin is not None:
        call.put("sin", 968, sin)
    if y is not None:
        y = None if y is False else call.out("y", 1064, y, lambda: (v_x[2][0], v_x[2][1],
            call.size("h", h), call.size("f", f, (v_norm_weight, 0, 0))), v_x[1])
    if code is not None:
        code = None if code is False else call.out("code", 1160, code, lambda: (v_x[2][0],
            v_x[2][1], call.size("h", h), call.size("words", words)), 8)
    if norm_eps:
        call.scalar("f", 1256, norm_eps, "norm_eps")
    if act:
        call.enum(1260, act, "act", ProjectAct)
    if bits:
        call.scalar("i", 1264, bits, "bits")
    if rope_begin:
        call.scalar("i", 1268, rope_begin, "rope_begin")
    if rope_interleaved:
        call.scalar("i", 1272, rope_interleaved, "rope_interleaved")
    return call.run(y, code)


def project_backward(ctx_or_x=None, /, x=None, weight=None, dy=None, *, ctx=None, dx=None,
                     dweight=None, dbias=None, dweight2=None, dbias2=None, dweight3=None,
                     dbias3=None, dnorm_weight=None, bias=None, weight2=None, bias2=None,
                     weight3=None, bias3=None, norm_weight=None, position=None, cos=None, sin=None,
                     norm_eps=0.0, act=0, rope_begin=0, rope_interleaved=0):
    """Gradients of x_project_forward's y.  Heads that share x or a weight add up in their order.
    Hidden layers are computed anew.  Long sums over rows have parts, cut by shapes alone.

    Limits: as of x_project_forward; the parts of sums are up to 16 MiB of the workspace.

    Example
      dx, dweight = fovea.experimental.project_backward(x, weight, dy)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      x: (b, s, g, d) f32 f16 bf16
      weight: (maps, d, inner) as x
      dy: (b, s, h, f) as x or f32

    Outputs, new unless passed or False
      dx: (b, s, g, d) as x
      dweight: (maps, d, inner) f32

    Outputs on request, by True or an array
      dbias: (maps, inner) f32: needs bias
      dweight2: (maps, inner, inner2) f32: needs weight2
      dbias2: (maps, inner2) f32: needs bias2
      dweight3: (maps, inner2, inner3) f32: needs weight3
      dbias3: (maps, inner3) f32: needs bias3
      dnorm_weight: (f) f32: needs norm_weight

    Optional inputs
      bias: (maps, inner) as x or f32
      weight2: (maps, inner, inner2) as x
      bias2: (maps, inner2) as x or f32: needs weight2
      weight3: (maps, inner2, inner3) as x: needs weight2
      bias3: (maps, inner3) as x or f32: needs weight3
      norm_weight: (f) as x or f32
      position: (b, s) i32: row of cos and sin
      cos: (positions, half) f32: needs sin
      sin: (positions, half) f32

    Numbers
      norm_eps: > 0; 0: 1e-6; needs norm_weight
      act: "none", "silu", "gelu"
      rope_begin: first rotated column; 2 * half columns turn
      rope_interleaved: 1: pairs (2i, 2i + 1); 0: pairs (i, i + half)
    """
    if ctx_or_x.__class__ is Context and ctx is None:
        call = Call(ctx_or_x, _x_project_backward)
    else:
        call, inputs = _x_project_backward.begin(ctx_or_x, ctx, x, weight, dy)
        [x, weight, dy] = inputs
    v_x = call.put("x", 8, x, 4)
    v_weight = call.put("weight", 104, weight, 3)
    v_bias = None
    if bias is not None:
        v_bias = call.put("bias", 200, bias, 2)
    v_weight2 = None
    if weight2 is not None:
        v_weight2 = call.put("weight2", 296, weight2, 3)
    v_bias2 = None
    if bias2 is not None:
        v_bias2 = call.put("bias2", 392, bias2, 2)
    v_weight3 = None
    if weight3 is not None:
        v_weight3 = call.put("weight3", 488, weight3, 3)
    v_bias3 = None
    if bias3 is not None:
        v_bias3 = call.put("bias3", 584, bias3, 2)
    v_norm_weight = None
    if norm_weight is not None:
        v_norm_weight = call.put("norm_weight", 680, norm_weight, 1)
    if position is not None:
        call.put("position", 776, position)
    if cos is not None:
        call.put("cos", 872, cos)
    if sin is not None:
        call.put("sin", 968, sin)
    call.put("dy", 1064, dy)
    dx = None if dx is False else call.out("dx", 1160, dx, v_x[2], v_x[1])
    dweight = None if dweight is False else call.out("dweight", 1256, dweight, v_weight[2], 1)
    if dbias is not None:
        dbias = None if dbias is False else call.out("dbias", 1352, dbias, lambda:
            call.twin("dbias", "bias", v_bias), 1)
    if dweight2 is not None:
        dweight2 = None if dweight2 is False else call.out("dweight2", 1448, dweight2, lambda:
            call.twin("dweight2", "weight2", v_weight2), 1)
    if dbias2 is not None:
        dbias2 = None if dbias2 is False else call.out("dbias2", 1544, dbias2, lambda:
            call.twin("dbias2", "bias2", v_bias2), 1)
    if dweight3 is not None:
        dweight3 = None if dweight3 is False else call.out("dweight3", 1640, dweight3, lambda:
            call.twin("dweight3", "weight3", v_weight3), 1)
    if dbias3 is not None:
        dbias3 = None if dbias3 is False else call.out("dbias3", 1736, dbias3, lambda:
            call.twin("dbias3", "bias3", v_bias3), 1)
    if dnorm_weight is not None:
        dnorm_weight = None if dnorm_weight is False else call.out("dnorm_weight", 1832,
            dnorm_weight, lambda: call.twin("dnorm_weight", "norm_weight", v_norm_weight), 1)
    if norm_eps:
        call.scalar("f", 1928, norm_eps, "norm_eps")
    if act:
        call.enum(1932, act, "act", ProjectAct)
    if rope_begin:
        call.scalar("i", 1936, rope_begin, "rope_begin")
    if rope_interleaved:
        call.scalar("i", 1940, rope_interleaved, "rope_interleaved")
    return call.run(dx, dweight, dbias, dweight2, dbias2, dweight3, dbias3, dnorm_weight)


def graph_append(ctx_or_k=None, /, k=None, neighbour=None, neighbour_count=None, entry=None, *,
                 ctx=None, q=None, query_len=None, key_len=None, old_len=None, nearest=0, kept=0,
                 added=0, width=0):
    """Builds the graph of each sequence and key head, or adds keys [old_len, key_len) to it.

    With rows of q in use and old_len 0, from training queries, since attention's queries are not
    distributed as keys are.  Key head j learns from the query heads [j h / g, (j + 1) h / g):
      1. each query has its list: its `nearest` best keys, without scores of -inf
      2. key x has the queries whose best key it is; without any, those whose lists hold it
      3. neighbours of x: the lists of its queries, pruned to `kept`
      4. for each x a search of `width` over the graph of step 3, pruned to `added`; then in the
         order of keys x gets those found, as far as there are slots, and each of them gets x
    Its entry is the key of the best inner product with the sum of all keys.

    Otherwise keys join one by one: a search of `width` over the earlier keys, pruned to `kept`;
    then each of those found gets x.  The first key is the entry.
    Where y gets x and has no slot left, its neighbours and x are pruned to kept + added.

    Results are those of this sequential algorithm for any number of threads.  Lists of keys from
    key_len on are not written.  A sequence without keys has entry -1.

    Limits: d is 1 .. 576.  Workspace: the lists of one key head's queries, and tiles of keys.
    A thread has 9 t + 512 nearest bytes more with q, else t / 8 + 8 width.
    Sources: RetrievalAttention (2409.10516); its graph: RoarGraph (2408.08933).

    Example
      fovea.experimental.graph_append(k, neighbour, neighbour_count, entry)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      k: (b, t, g, d) f32 f16 bf16: the keys, old ones too
      neighbour: (b, g, t, degree) i32: degree >= kept + added
      neighbour_count: (b, g, t) i32
      entry: (b, g) i32

    Optional inputs
      q: (b, s, h, d) f32 f16 bf16: training queries of sequences whose old_len is 0; s h nearest
          entries are below 2^31 g
      query_len: (b) i32: training rows in use; needs q
      key_len: (b) i32: keys in use; absent: t
      old_len: (b) i32: keys that the graph has; absent: 0

    Numbers
      nearest: best keys of a training query; needs q; 0: 100
      kept: neighbours that pruning leaves, at most 1024; 0: 16
      added: further slots, at most 1024; 0: 4
      width: width of searches; 0: 2 (kept + added)
    """
    if ctx_or_k.__class__ is Context and ctx is None:
        call = Call(ctx_or_k, _x_graph_append)
    else:
        call, inputs = _x_graph_append.begin(ctx_or_k, ctx, k, neighbour, neighbour_count, entry)
        [k, neighbour, neighbour_count, entry] = inputs
    call.put("k", 8, k)
    if q is not None:
        call.put("q", 104, q)
    if query_len is not None:
        call.put("query_len", 200, query_len)
    if key_len is not None:
        call.put("key_len", 296, key_len)
    if old_len is not None:
        call.put("old_len", 392, old_len)
    call.put("neighbour", 488, neighbour, None, True)
    call.put("neighbour_count", 584, neighbour_count, None, True)
    call.put("entry", 680, entry, None, True)
    if nearest:
        call.scalar("q", 776, nearest, "nearest")
    if kept:
        call.scalar("q", 784, kept, "kept")
    if added:
        call.scalar("q", 792, added, "added")
    if width:
        call.scalar("q", 800, width, "width")
    return call.run()


def select_graph(ctx_or_q=None, /, q=None, k=None, *, ctx=None, index=None, index_count=None,
                 scanned=None, query_len=None, key_len=None, neighbour=None, neighbour_count=None,
                 entry=None, keep=None, count=0, ef=0):
    """The best `count` keys that a search of width ef finds for each query, or of all keys with
    ef = 0.

    Lists are as in select.h: ascending, -1 past the count, cut to `keep` from the end of the order.
    Scores of -inf are not listed.  With ef = 0 the list is x_select_token's of scale 1 over all
    keys.  Rows past query_len are neither read nor written.

    Limits: d is 1 .. 576.  Workspace, a thread: t / 8 + 8 ef bytes, with ef = 0 4 t h / g bytes.
    Source: RetrievalAttention (2409.10516).

    Example
      index, index_count = fovea.experimental.select_graph(q, k)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q: (b, s, h, d) f32 f16 bf16
      k: (b, t, g, d) f32 f16 bf16: g divides h

    Outputs, new unless passed
      index: (b, h, s, keep) i32: keys by their number in the sequence
      index_count: (b, h, s) i32: keys wanted

    Outputs on request, by True or an array
      scanned: (b, h, s) i32: keys whose score was computed

    Optional inputs
      query_len: (b) i32: rows in use
      key_len: (b) i32: keys in use; absent: t
      neighbour: (b, g, t, degree) i32: with ef, as x_graph_append writes it
      neighbour_count: (b, g, t) i32: with ef
      entry: (b, g) i32: with ef

    keep: extents of new outputs that no input tells.

    Numbers
      count: keys to select
      ef: width of the search, at least count; 0: all keys
    """
    if ctx_or_q.__class__ is Context and ctx is None:
        call = Call(ctx_or_q, _x_select_graph)
    else:
        call, inputs = _x_select_graph.begin(ctx_or_q, ctx, q, k)
        [q, k] = inputs
    v_q = call.put("q", 8, q, 4)
    call.put("k", 104, k)
    if query_len is not None:
        call.put("query_len", 200, query_len)
    if key_len is not None:
        call.put("key_len", 296, key_len)
    if neighbour is not None:
        call.put("neighbour", 392, neighbour)
    if neighbour_count is not None:
        call.put("neighbour_count", 488, neighbour_count)
    if entry is not None:
        call.put("entry", 584, entry)
    index = call.out("index", 680, index, lambda: (v_q[2][0], v_q[2][2], v_q[2][1],
        call.size("keep", keep)), 8)
    index_count = call.out("index_count", 776, index_count, (v_q[2][0], v_q[2][2], v_q[2][1]), 8)
    if scanned is not None:
        scanned = None if scanned is False else call.out("scanned", 872, scanned, (v_q[2][0],
            v_q[2][2], v_q[2][1]), 8)
    if count:
        call.scalar("q", 968, count, "count")
    if ef:
        call.scalar("q", 976, ef, "ef")
    return call.run(index, index_count, scanned)


def graph_forward(ctx_or_q=None, /, q=None, k=None, v=None, *, ctx=None, o=None, lse=None,
                  index=None, index_count=None, scanned=None, query_len=None, key_len=None,
                  neighbour=None, neighbour_count=None, entry=None, keep=None, count=0, ef=0,
                  scale=0.0, softcap=0.0):
    """Attention over the keys that a graph finds: x_select_graph, then x_sparse_forward, in one call
    on one workspace.

    o and lse are of the list alone.  merge_forward joins them with those of the keys that stay on
    the device.  A row that finds nothing has o = 0 and lse = -inf.

    Errors name this operation, then the part that refuses, with that part's names of fields.
    Limits are those of the parts.  Workspace: theirs, and the lists that no output holds.
    Source: RetrievalAttention (2409.10516).

    Example
      o = fovea.experimental.graph_forward(q, k, v)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q: (b, s, h, d) f32 f16 bf16
      k: (b, t, g, d) as q: g divides h
      v: (b, t, g, e) as q

    Outputs, new unless passed
      o: (b, s, h, e) as q or f32

    Outputs on request, by True or an array
      lse: (b, h, s) f32: of the sum over the list
      index: (b, h, s, keep) i32: the lists, as x_select_graph writes them; keys past `keep` are cut
      index_count: (b, h, s) i32: keys wanted, with index
      scanned: (b, h, s) i32: keys whose score was computed

    Optional inputs
      query_len: (b) i32: rows in use
      key_len: (b) i32: keys in use; absent: t
      neighbour: (b, g, t, degree) i32: with ef
      neighbour_count: (b, g, t) i32: with ef
      entry: (b, g) i32: with ef

    keep: extents of new outputs that no input tells.

    Numbers
      count: keys to attend to
      ef: width of the search, at least count; 0: all keys
      scale: of attention's scores, > 0; 0: 1 / sqrt(d)
      softcap: of attention's scores; 0: none
    """
    if ctx_or_q.__class__ is Context and ctx is None:
        call = Call(ctx_or_q, _x_graph_forward)
    else:
        call, inputs = _x_graph_forward.begin(ctx_or_q, ctx, q, k, v)
        [q, k, v] = inputs
    v_q = call.put("q", 8, q, 4)
    call.put("k", 104, k)
    v_v = call.put("v", 200, v, 4)
    if query_len is not None:
        call.put("query_len", 488, query_len)
    if key_len is not None:
        call.put("key_len", 584, key_len)
    if neighbour is not None:
        call.put("neighbour", 680, neighbour)
    if neighbour_count is not None:
        call.put("neighbour_count", 776, neighbour_count)
    if entry is not None:
        call.put("entry", 872, entry)
    o = call.out("o", 296, o, (v_q[2][0], v_q[2][1], v_q[2][2], v_v[2][3]), v_q[1])
    if lse is not None:
        lse = None if lse is False else call.out("lse", 392, lse, (v_q[2][0], v_q[2][2], v_q[2][1]),
            1)
    if index is not None:
        index = None if index is False else call.out("index", 968, index, lambda: (v_q[2][0],
            v_q[2][2], v_q[2][1], call.size("keep", keep)), 8)
    if index_count is not None:
        index_count = None if index_count is False else call.out("index_count", 1064, index_count,
            (v_q[2][0], v_q[2][2], v_q[2][1]), 8)
    if scanned is not None:
        scanned = None if scanned is False else call.out("scanned", 1160, scanned, (v_q[2][0],
            v_q[2][2], v_q[2][1]), 8)
    if count:
        call.scalar("q", 1256, count, "count")
    if ef:
        call.scalar("q", 1264, ef, "ef")
    if scale:
        call.scalar("f", 1272, scale, "scale")
    if softcap:
        call.scalar("f", 1276, softcap, "softcap")
    return call.run(o, lse, index, index_count, scanned)


def lsh_append(ctx_or_code=None, /, code=None, bucket=None, link=None, *, ctx=None, query_len=None,
               old_len=None):
    """Puts keys into the tables: row n of code is the code of key old_len + n.

    Of a sequence whose old_len is 0 all buckets are emptied first, so that its tables need no
    contents.  Else the tables hold keys below old_len and no other: keys leave by building anew.
    Keys from t on are not put in.  How keys are parted into calls does not matter, nor the number
    of threads: the tables are the same.

    Limits: t and buckets below 2^31.  Host alone.
    Source: MagicPIG (2410.16179).

    Example
      fovea.experimental.lsh_append(code, bucket, link)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      code: (b, s, g, tables) i32: of the keys that come
      bucket: (b, g, tables, buckets) i32
      link: (b, g, tables, t) i32: room for t keys

    Optional inputs
      query_len: (b) i32: keys that come, 0 .. s; absent: s
      old_len: (b) i32: keys that the tables hold; absent: 0
    """
    if ctx_or_code.__class__ is Context and ctx is None:
        call = Call(ctx_or_code, _x_lsh_append)
    else:
        call, inputs = _x_lsh_append.begin(ctx_or_code, ctx, code, bucket, link)
        [code, bucket, link] = inputs
    call.put("code", 8, code)
    call.put("bucket", 104, bucket, None, True)
    call.put("link", 200, link, None, True)
    if query_len is not None:
        call.put("query_len", 296, query_len)
    if old_len is not None:
        call.put("old_len", 392, old_len)
    return call.run()


def select_lsh(ctx_or_code_q=None, /, code_q=None, bucket=None, link=None, *, ctx=None, index=None,
               index_count=None, index_bias=None, q=None, k=None, query_len=None, key_len=None,
               keep=None, min_match=0, bits=0):
    """The keys that share the bucket of a query in at least min_match tables, for each row and head.

    Keys ascend.  index_count is exact; where it exceeds keep, the highest keys are cut.  Places
    past the count are -1, and 0 in index_bias.  Rows past query_len are neither read nor written.
    Rows see all keys below key_len: the tables' keys come before the rows.

    index_bias is what x_sparse_forward adds to a score, so that a key counts for those like it that
    were not met.  With K = bits, L = tables, m = min_match:
      cos = <q, k> / (|q| |k|), cut to -1 .. 1; 0 where |q| |k| is 0 or cos is no number
      p = (1 - acos(cos) / pi)^K         that one table has both in a bucket
      u = P[Binomial(L, p) >= m]         that m tables or more have
      index_bias = -ln(u + 1e-4)
    For m = 2, u = 1 - (1 - p)^(L-1) ((L - 1) p + 1).  p holds where codes are signs of products
    with normal numbers, k and code alike of centred keys.

    Limits: t and buckets below 2^31.  Sums are in f64.  Host alone.
    Source: MagicPIG (2410.16179).

    Example
      outputs = fovea.experimental.select_lsh(code_q, bucket, link, index=True, index_count=True,
          index_bias=True)
      index, index_count, index_bias = outputs

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      code_q: (b, s, h, tables) i32: of the queries; g divides h
      bucket: (b, g, tables, buckets) i32
      link: (b, g, tables, t) i32

    Outputs on request, by True or an array
      index: (b, h, s, keep) i32: keys by their number; one of index and index_count at least
      index_count: (b, h, s) i32: keys met
      index_bias: (b, h, s, keep) f32: needs index, q and k

    Optional inputs
      q: (b, s, h, d) f32 f16 bf16: of index_bias
      k: (b, t, g, d) f32 f16 bf16: centred keys, of index_bias
      query_len: (b) i32: rows in use, 0 .. s
      key_len: (b) i32: keys in use, 0 .. t; those from here on are passed over

    keep: extents of new outputs that no input tells.

    Numbers
      min_match: tables that must agree, 1 .. tables; 0: 2
      bits: of a code: buckets = 2^bits; 0: as buckets has it
    """
    if ctx_or_code_q.__class__ is Context and ctx is None:
        call = Call(ctx_or_code_q, _x_select_lsh)
    else:
        call, inputs = _x_select_lsh.begin(ctx_or_code_q, ctx, code_q, bucket, link)
        [code_q, bucket, link] = inputs
    v_code_q = call.put("code_q", 8, code_q, 4)
    call.put("bucket", 104, bucket)
    call.put("link", 200, link)
    if q is not None:
        call.put("q", 296, q)
    if k is not None:
        call.put("k", 392, k)
    if query_len is not None:
        call.put("query_len", 488, query_len)
    if key_len is not None:
        call.put("key_len", 584, key_len)
    if index is not None:
        index = None if index is False else call.out("index", 680, index, lambda: (v_code_q[2][0],
            v_code_q[2][2], v_code_q[2][1], call.size("keep", keep)), 8)
    if index_count is not None:
        index_count = None if index_count is False else call.out("index_count", 776, index_count,
            (v_code_q[2][0], v_code_q[2][2], v_code_q[2][1]), 8)
    if index_bias is not None:
        index_bias = None if index_bias is False else call.out("index_bias", 872, index_bias,
            lambda: (v_code_q[2][0], v_code_q[2][2], v_code_q[2][1], call.size("keep", keep)), 1)
    if min_match:
        call.scalar("q", 968, min_match, "min_match")
    if bits:
        call.scalar("i", 976, bits, "bits")
    return call.run(index, index_count, index_bias)


def lsh_forward(ctx_or_q=None, /, q=None, k=None, v=None, code_q=None, bucket=None, link=None, *,
                ctx=None, o=None, lse=None, index=None, index_count=None, index_bias=None,
                query_len=None, key_len=None, keep=None, max_keys=0, min_match=0, scale=0.0,
                bits=0):
    """Attention over the keys that hashes find, as an estimate of attention over all: x_select_lsh
    with index_bias, then x_sparse_forward, in one call on one workspace.

      o_i = sum_j w_ij v_j / sum_j w_ij,  w_ij = exp(scale <q_i, k_j>) / (u_ij + 1e-4)
      lse_i = ln sum_j w_ij, over the keys j that x_select_lsh finds for row i; both sums estimate
              those over all keys, but for the 1e-4

    merge_forward joins o and lse with those of keys that are always seen: the first, the latest.
    A row that meets no key has o = 0 and lse = -inf: a merge leaves it out.  Rows past query_len
    are not written.

    Errors name this operation, then the part that refuses, with that part's names of fields.
    Limits: those of the parts; host alone.  Workspace: theirs, and the lists that no output holds.
    Source: MagicPIG (2410.16179).

    Example
      o = fovea.experimental.lsh_forward(q, k, v, code_q, bucket, link)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q: (b, s, h, d) f32 f16 bf16
      k: (b, t, g, d) as q: centred keys
      v: (b, t, g, e) as q
      code_q: (b, s, h, tables) i32: codes of q
      bucket: (b, g, tables, buckets) i32: as x_lsh_append writes it
      link: (b, g, tables, t) i32: the same

    Outputs, new unless passed
      o: (b, s, h, e) as q or f32

    Outputs on request, by True or an array
      lse: (b, h, s) f32: natural log of each row's sum
      index: (b, h, s, keep) i32: the lists, as x_select_lsh writes them
      index_count: (b, h, s) i32: keys met; with index
      index_bias: (b, h, s, keep) f32: needs index

    Optional inputs
      query_len: (b) i32: rows in use, 0 .. s
      key_len: (b) i32: keys in use, 0 .. t

    keep: extents of new outputs that no input tells.

    Numbers
      max_keys: places of a list without index; keys past them are cut; 0: t
      min_match: tables that must agree, 1 .. tables; 0: 2
      scale: > 0; 0: 1 / sqrt(d)
      bits: of a code: buckets = 2^bits; 0: as buckets has it
    """
    if ctx_or_q.__class__ is Context and ctx is None:
        call = Call(ctx_or_q, _x_lsh_forward)
    else:
        call, inputs = _x_lsh_forward.begin(ctx_or_q, ctx, q, k, v, code_q, bucket, link)
        [q, k, v, code_q, bucket, link] = inputs
    v_q = call.put("q", 8, q, 4)
    call.put("k", 104, k)
    v_v = call.put("v", 200, v, 4)
    call.put("code_q", 488, code_q)
    call.put("bucket", 584, bucket)
    call.put("link", 680, link)
    if query_len is not None:
        call.put("query_len", 776, query_len)
    if key_len is not None:
        call.put("key_len", 872, key_len)
    o = call.out("o", 296, o, (v_q[2][0], v_q[2][1], v_q[2][2], v_v[2][3]), v_q[1])
    if lse is not None:
        lse = None if lse is False else call.out("lse", 392, lse, (v_q[2][0], v_q[2][2], v_q[2][1]),
            1)
    if index is not None:
        index = None if index is False else call.out("index", 968, index, lambda: (v_q[2][0],
            v_q[2][2], v_q[2][1], call.size("keep", keep)), 8)
    if index_count is not None:
        index_count = None if index_count is False else call.out("index_count", 1064, index_count,
            (v_q[2][0], v_q[2][2], v_q[2][1]), 8)
    if index_bias is not None:
        index_bias = None if index_bias is False else call.out("index_bias", 1160, index_bias,
            lambda: (v_q[2][0], v_q[2][2], v_q[2][1], call.size("keep", keep)), 1)
    if max_keys:
        call.scalar("q", 1256, max_keys, "max_keys")
    if min_match:
        call.scalar("q", 1264, min_match, "min_match")
    if scale:
        call.scalar("f", 1272, scale, "scale")
    if bits:
        call.scalar("i", 1276, bits, "bits")
    return call.run(o, lse, index, index_count, index_bias)


def conv1d_forward(ctx_or_x=None, /, x=None, weight=None, *, ctx=None, y=None, state_out=None,
                   snapshot=None, bias=None, state_in=None, start=None, len=None, state_row=None,
                   state_out_row=None, output_from=None, snapshot_row=None, slots_out=None,
                   tail=None, snapshots=None, token_max=0, snapshot_every=0, activation=0):
    """Short causal convolution of each channel by itself, with state.  For token t of a sequence and
    channel c, with T = taps:

      z_tc = bias_c + sum_u weight[c, u] x[t - (T - 1) + u, c]
      y_tc = act(z_tc)

    Tokens before the first stand in the last T - 1 columns of the state, oldest first; without a
    state they are 0.  Earlier columns are neither read nor written.  States hold x itself, so any
    cut of a sequence gives the same bits.  At least one of y, state_out and snapshot is given.

    Limits: none on channels and taps; every valid call has one kernel on the host and one on CUDA.
    CUDA reads 16 bytes at once where f, strides and addresses allow and taps are 2 .. 4.

    Example
      outputs = fovea.experimental.conv1d_forward(x, weight, y=True, state_out=True, snapshot=True)
      y, state_out, snapshot = outputs

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      x: (b, s, f) f32 f16 bf16
      weight: (f, taps) as x or f32: the last tap is the token's own

    Outputs on request, by True or an array
      y: (b, s, f) as x or f32
      state_out: (slots_out, f, tail) as x or f32: may be state_in
      snapshot: (snapshots, f, tail) as x or f32: needs snapshot_row; may be state_out

    Optional inputs
      bias: (f) f32: absent: 0
      state_in: (slots, f, tail) as x or f32: absent: zeros
      start: (r+1) i32: first packed token of each sequence, ascending from 0; then b = 1
      len: (r) i32: tokens in use, at most s or the packed extent
      state_row: (r) i32
      state_out_row: (r) i32
      output_from: (r) i32: absent: 0
      snapshot_row: (r, n) i32

    slots_out, tail, snapshots: extents of new outputs that no input tells.

    Numbers
      token_max: 0: s
      snapshot_every: tokens between snapshots, >= 1 with snapshot
      activation: "none", "silu"
    """
    if ctx_or_x.__class__ is Context and ctx is None:
        call = Call(ctx_or_x, _x_conv1d_forward)
    else:
        call, inputs = _x_conv1d_forward.begin(ctx_or_x, ctx, x, weight)
        [x, weight] = inputs
    v_x = call.put("x", 8, x, 3)
    call.put("weight", 104, weight)
    if bias is not None:
        call.put("bias", 200, bias)
    v_state_in = None
    if state_in is not None:
        v_state_in = call.put("state_in", 296, state_in, 3)
    v_start = None
    if start is not None:
        v_start = call.put("start", 680, start, 1)
    if len is not None:
        call.put("len", 776, len)
    if state_row is not None:
        call.put("state_row", 872, state_row)
    if state_out_row is not None:
        call.put("state_out_row", 968, state_out_row)
    if output_from is not None:
        call.put("output_from", 1064, output_from)
    if snapshot_row is not None:
        call.put("snapshot_row", 1160, snapshot_row)
    if y is not None:
        y = None if y is False else call.out("y", 392, y, v_x[2], v_x[1])
    if state_out is not None:
        state_out = None if state_out is False else call.out("state_out", 488, state_out, lambda:
            (call.size("slots_out", slots_out, (v_state_in, 0, 0), (v_start if state_out_row is None
            else None, 0, 1), (v_x if state_out_row is None else None, 0, 0)), v_x[2][2],
            call.size("tail", tail, (v_state_in, 2, 0))), v_x[1])
    if snapshot is not None:
        snapshot = None if snapshot is False else call.out("snapshot", 584, snapshot, lambda:
            (call.size("snapshots", snapshots), v_x[2][2], call.size("tail", tail, (v_state_in, 2,
            0))), v_x[1])
    if token_max:
        call.scalar("q", 1256, token_max, "token_max")
    if snapshot_every:
        call.scalar("q", 1264, snapshot_every, "snapshot_every")
    if activation:
        call.enum(1272, activation, "activation", Conv1dActivation)
    return call.run(y, state_out, snapshot)


def conv1d_backward(ctx_or_x=None, /, x=None, weight=None, dy=None, *, ctx=None, dx=None,
                    dweight=None, dbias=None, dstate_in=None, bias=None, state_in=None,
                    dstate_out=None, start=None, len=None, state_row=None, output_from=None, r=None,
                    tail=None, token_max=0, activation=0):
    """Gradients of x_conv1d_forward from dy and from the gradient of each sequence's last state.  Each
    output is optional: absent = not computed.  With dz_t = dy_t act'(z_t), 0 before output_from and
    past the last token:

      dx_t = sum_u weight[u] dz_(t + T - 1 - u), and dstate_out where the last state has token t
      dstate_in = the same of the tokens before the first
      dweight[u] = sum_t dz_t x_(t - (T - 1) + u),  dbias = sum_t dz_t, over all sequences

    dx is written in every row, 0 past len and where no sequence is.  States' gradients have a row
    for each sequence, in the order of the call and not of the pool.  Their columns before the last
    T - 1 are 0.  Sums have a fixed order: the same bits every run.

    Example
      dx, dweight = fovea.experimental.conv1d_backward(x, weight, dy)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      x: (b, s, f) f32 f16 bf16
      weight: (f, taps) as x or f32
      dy: (b, s, f) as x or f32

    Outputs, new unless passed or False
      dx: (b, s, f) as x
      dweight: (f, taps) f32: a stride of 0 receives the sum over that dimension

    Outputs on request, by True or an array
      dbias: (f) f32: with or without bias
      dstate_in: (r, f, tail) as x or f32: of the state that each sequence starts from, given or
          zeros

    Optional inputs
      bias: (f) f32
      state_in: (slots, f, tail) as x or f32
      dstate_out: (r, f, tail) as x or f32: of each sequence's last state; absent: 0
      start: (r+1) i32
      len: (r) i32
      state_row: (r) i32
      output_from: (r) i32

    r, tail: extents of new outputs that no input tells.

    Numbers
      token_max: 0: s
      activation: "none", "silu"
    """
    if ctx_or_x.__class__ is Context and ctx is None:
        call = Call(ctx_or_x, _x_conv1d_backward)
    else:
        call, inputs = _x_conv1d_backward.begin(ctx_or_x, ctx, x, weight, dy)
        [x, weight, dy] = inputs
    v_x = call.put("x", 8, x, 3)
    v_weight = call.put("weight", 104, weight, 2)
    v_bias = None
    if bias is not None:
        v_bias = call.put("bias", 200, bias, 1)
    v_state_in = None
    if state_in is not None:
        v_state_in = call.put("state_in", 296, state_in, 3)
    call.put("dy", 392, dy)
    v_dstate_out = None
    if dstate_out is not None:
        v_dstate_out = call.put("dstate_out", 488, dstate_out, 3)
    v_start = None
    if start is not None:
        v_start = call.put("start", 968, start, 1)
    v_len = None
    if len is not None:
        v_len = call.put("len", 1064, len, 1)
    v_state_row = None
    if state_row is not None:
        v_state_row = call.put("state_row", 1160, state_row, 1)
    v_output_from = None
    if output_from is not None:
        v_output_from = call.put("output_from", 1256, output_from, 1)
    dx = None if dx is False else call.out("dx", 584, dx, v_x[2], v_x[1])
    dweight = None if dweight is False else call.out("dweight", 680, dweight, v_weight[2], 1)
    if dbias is not None:
        dbias = None if dbias is False else call.out("dbias", 776, dbias, lambda: call.twin("dbias",
            "bias", v_bias), 1)
    if dstate_in is not None:
        dstate_in = None if dstate_in is False else call.out("dstate_in", 872, dstate_in, lambda:
            (call.size("r", r, (v_dstate_out, 0, 0), (v_start, 0, 1), (v_len, 0, 0), (v_state_row,
            0, 0), (v_output_from, 0, 0), (v_x, 0, 0)), v_x[2][2], call.size("tail", tail,
            (v_state_in, 2, 0), (v_dstate_out, 2, 0))), v_x[1])
    if token_max:
        call.scalar("q", 1352, token_max, "token_max")
    if activation:
        call.enum(1360, activation, "activation", Conv1dActivation)
    return call.run(dx, dweight, dbias, dstate_in)


def gla_forward(ctx_or_q=None, /, q=None, k=None, v=None, *, ctx=None, o=None, state_out=None,
                z_out=None, snapshot=None, z_snapshot=None, gate_head=None, gate_key=None,
                gate_value=None, gate_rate=None, gate_bias=None, select=None, bonus=None, skip=None,
                state_in=None, z_in=None, start=None, len=None, state_row=None, state_out_row=None,
                output_from=None, snapshot_row=None, key_start=None, key_len=None, slots_out=None,
                snapshots=None, token_max=0, snapshot_every=0, scale=0.0, eps=0.0, gate_bound=0.0,
                gate_tau=0.0, gate_map=0, map_q=0, map_k=0, full=0, read_before=0, normalise=0,
                bonus_sigmoid=0, splits=0):
    """Gated linear attention: a matrix H (d, e) for each sequence and head, to which every token adds
    one outer product.  For token t, rows q_t, k_t, v_t:

      q^ = map_q(q_t),  k^ = select_t map_k(k_t)
      H_t = G_t . H_(t-1) + k^' v_t     G_t[c, j] = exp(gate_head + gate_key_c + gate_value_j)
      y_t = scale q^ H_t, or with read_before scale q^ H_(t-1)
      o_t = y_t + act(scale q^ . (bonus . k^) v_t) + skip . v_t

    With `normalise` y_t is divided by scale q^ . z_t + eps:

      z_t = decay . z_(t-1) + k^

    With `full` every row reads the sum over all keys of its sequence, which count without rows too.
    Keys then have an extent t, and key_start and key_len of their own.

    State head n reads key head n / (heads / g) and value head n / (heads / x).  Output head j reads
    query head j / (heads_out / h) and state head j / (heads_out / heads).  Gates are as given, or
    gate_map makes them of raw numbers; gate_rate, gate_bias, gate_bound and gate_tau are refused
    where no gate reads them.  A constant gate is a tensor with strides of 0 over b and s.
    States are f32 or bf16, in either order in memory.  Sums are f32, states are rounded when they
    are stored.

    At least one of o, state_out and snapshot is given.  normalise excludes gate_value, read_before
    and bonus; it asks for z_in with state_in, z_out with state_out, z_snapshot with snapshot.  full
    excludes gates, read_before, bonus, skip and snapshot.

    Limits: d is at most 512.  Every valid call has a kernel on the host and one on CUDA.  Hopper's
    tensor cores take f16 and bf16 with d of 64 or 128, e a multiple of 64, no gate or a head gate.
    Key gates are bf16 there.  Then k and v that are not finite reach rows of their chunk of 64
    tokens behind a reset, and the state.  So do those of value gates.  These are bf16 there, with d
    and e of 64 or 128 and h = heads.  They exclude other gates, select, bonus, skip, read_before,
    maps of q and k, and snapshot.
    Source: the chunk and recurrent forms of arXiv 2312.06635, 2307.08621 and 2405.21060.

    Example
      outputs = fovea.experimental.gla_forward(q, k, v, o=True, state_out=True, z_out=True)
      o, state_out, z_out = outputs

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q: (b, s, h, d) f32 f16 bf16
      k: (b, t, g, d) as q: t = s without full
      v: (b, t, x, e) as q

    Outputs on request, by True or an array
      o: (b, s, heads_out, e) as q or f32
      state_out: (slots_out, heads, d, e) f32 bf16: may be state_in
      z_out: (slots_out, heads, d) f32: may be z_in
      snapshot: (snapshots, heads, d, e) f32 bf16: needs snapshot_row; may be state_out
      z_snapshot: (snapshots, heads, d) f32: needs snapshot_row; may be z_out

    Optional inputs
      gate_head: (b, s, heads) as q or f32
      gate_key: (b, s, heads, d) as q or f32
      gate_value: (b, s, heads, e) as q or f32: has no bias
      gate_rate: (heads) f32: of gate_map 1 and 2; absent: 0
      gate_bias: (heads, d) f32: of gate_key; of gate_head, without gate_key: then column 0 is read;
          absent: 0
      select: (b, t, heads) as q or f32: absent: 1
      bonus: (heads, d) f32: absent: 0
      skip: (heads, e) f32: absent: 0
      state_in: (slots, heads, d, e) f32 bf16: absent: zeros
      z_in: (slots, heads, d) f32
      start: (r+1) i32: first packed token of each sequence, ascending from 0; then b = 1
      len: (r) i32: tokens in use, at most s or the packed extent
      state_row: (r) i32
      state_out_row: (r) i32
      output_from: (r) i32: absent: 0
      snapshot_row: (r, n) i32
      key_start: (r+1) i32: with full and start alone
      key_len: (r) i32: keys in use, with full alone

    slots_out, snapshots: extents of new outputs that no input tells.

    Numbers
      token_max: 0: s
      snapshot_every: tokens between snapshots, >= 1 with snapshot
      scale: 0: d^-1/2
      eps: of normalise; 0: 1e-6
      gate_bound: gates are at least -gate_bound; 0: no bound.  The factor of gate_map 2, which
          needs one
      gate_tau: of gate_map 3; 0: 1
      gate_map: "log", "softplus", "bounded", "log_sigmoid", "exp"
      map_q: "none", "relu", "elu_plus_one", "silu"
      map_k: "none", "relu", "elu_plus_one", "silu"
      full: 0: causal, 1: every row reads every key
      read_before: 1: y_t reads the state before its token
      normalise: 1: y_t is divided by scale q^ . z_t + eps
      bonus_sigmoid: act: 0 none, 1 sigmoid of each column
      splits: parts that a sequence is walked in at once; 0: chosen from shapes, 1: bits do not
          depend on cuts
    """
    if ctx_or_q.__class__ is Context and ctx is None:
        call = Call(ctx_or_q, _x_gla_forward)
    else:
        call, inputs = _x_gla_forward.begin(ctx_or_q, ctx, q, k, v)
        [q, k, v] = inputs
    v_q = call.put("q", 8, q, 4)
    v_k = call.put("k", 104, k, 4)
    v_v = call.put("v", 200, v, 4)
    if gate_head is not None:
        call.put("gate_head", 296, gate_head)
    if gate_key is not None:
        call.put("gate_key", 392, gate_key)
    if gate_value is not None:
        call.put("gate_value", 488, gate_value)
    if gate_rate is not None:
        call.put("gate_rate", 584, gate_rate)
    if gate_bias is not None:
        call.put("gate_bias", 680, gate_bias)
    if select is not None:
        call.put("select", 776, select)
    if bonus is not None:
        call.put("bonus", 872, bonus)
    if skip is not None:
        call.put("skip", 968, skip)
    v_state_in = None
    if state_in is not None:
        v_state_in = call.put("state_in", 1064, state_in, 4)
    if z_in is not None:
        call.put("z_in", 1160, z_in)
    v_start = None
    if start is not None:
        v_start = call.put("start", 1736, start, 1)
    if len is not None:
        call.put("len", 1832, len)
    if state_row is not None:
        call.put("state_row", 1928, state_row)
    if state_out_row is not None:
        call.put("state_out_row", 2024, state_out_row)
    if output_from is not None:
        call.put("output_from", 2120, output_from)
    if snapshot_row is not None:
        call.put("snapshot_row", 2216, snapshot_row)
    if key_start is not None:
        call.put("key_start", 2312, key_start)
    if key_len is not None:
        call.put("key_len", 2408, key_len)
    if o is not None:
        o = None if o is False else call.out("o", 1256, o, (v_q[2][0], v_q[2][1], max(v_q[2][2],
            v_k[2][2], v_v[2][2]), v_v[2][3]), v_q[1])
    if state_out is not None:
        state_out = None if state_out is False else call.out("state_out", 1352, state_out, lambda:
            (call.size("slots_out", slots_out, (v_state_in, 0, 0), (v_start if state_out_row is None
            else None, 0, 1), (v_q if state_out_row is None else None, 0, 0)), max(v_k[2][2],
            v_v[2][2]), v_q[2][3], v_v[2][3]), v_state_in[1] if v_state_in is not None else 1)
    if z_out is not None:
        z_out = None if z_out is False else call.out("z_out", 1448, z_out, lambda:
            (call.size("slots_out", slots_out, (v_state_in, 0, 0), (v_start if state_out_row is None
            else None, 0, 1), (v_q if state_out_row is None else None, 0, 0)), max(v_k[2][2],
            v_v[2][2]), v_q[2][3]), 1)
    if snapshot is not None:
        snapshot = None if snapshot is False else call.out("snapshot", 1544, snapshot, lambda:
            (call.size("snapshots", snapshots), max(v_k[2][2], v_v[2][2]), v_q[2][3], v_v[2][3]),
            v_state_in[1] if v_state_in is not None else 1)
    if z_snapshot is not None:
        z_snapshot = None if z_snapshot is False else call.out("z_snapshot", 1640, z_snapshot,
            lambda: (call.size("snapshots", snapshots), max(v_k[2][2], v_v[2][2]), v_q[2][3]), 1)
    if token_max:
        call.scalar("q", 2504, token_max, "token_max")
    if snapshot_every:
        call.scalar("q", 2512, snapshot_every, "snapshot_every")
    if scale:
        call.scalar("f", 2520, scale, "scale")
    if eps:
        call.scalar("f", 2524, eps, "eps")
    if gate_bound:
        call.scalar("f", 2528, gate_bound, "gate_bound")
    if gate_tau:
        call.scalar("f", 2532, gate_tau, "gate_tau")
    if gate_map:
        call.enum(2536, gate_map, "gate_map", GateMap)
    if map_q:
        call.enum(2540, map_q, "map_q", FeatureMap)
    if map_k:
        call.enum(2544, map_k, "map_k", FeatureMap)
    if full:
        call.scalar("i", 2548, full, "full")
    if read_before:
        call.scalar("i", 2552, read_before, "read_before")
    if normalise:
        call.scalar("i", 2556, normalise, "normalise")
    if bonus_sigmoid:
        call.scalar("i", 2560, bonus_sigmoid, "bonus_sigmoid")
    if splits:
        call.scalar("i", 2564, splits, "splits")
    return call.run(o, state_out, z_out, snapshot, z_snapshot)


def gla_backward(ctx_or_q=None, /, q=None, k=None, v=None, dout=None, *, ctx=None, dq=None, dk=None,
                 dv=None, dgate_head=None, dgate_key=None, dgate_value=None, dgate_rate=None,
                 dgate_bias=None, dselect=None, dbonus=None, dskip=None, dstate_in=None, dz_in=None,
                 gate_head=None, gate_key=None, gate_value=None, gate_rate=None, gate_bias=None,
                 select=None, bonus=None, skip=None, state_in=None, z_in=None, dstate_out=None,
                 dz_out=None, start=None, len=None, state_row=None, output_from=None,
                 key_start=None, key_len=None, r=None, token_max=0, scale=0.0, eps=0.0,
                 gate_bound=0.0, gate_tau=0.0, gate_map=0, map_q=0, map_k=0, full=0, read_before=0,
                 normalise=0, bonus_sigmoid=0):
    """Gradients of x_gla_forward from dout, and from the gradients of each sequence's last state. Each
    output is optional: absent = not computed.  With W_t the gradient of H_t:

      X = G_t . H_(t-1) . W_t
      dq^ = scale dout H_t',  dk^ = W_t v_t',  dv = k^ W_t,  W_(t-1) = G_t . W_t
      dgate_head = sum X,  dgate_key = sum_j X[c, j],  dgate_value = sum_c X[c, j]

    and what normaliser, bonus, skip, select and the maps add.  Gradients of gates are those of what
    was given: of raw gates with gate_map.  Where a gate is -inf, or gate_bound holds, they are 0.
    Every element of an output is written: 0 where no sequence is.  Rows before output_from have no
    output and take dout as 0.  Gradients of states have a row for each sequence of the call.
    Sums have a fixed order: the same bits every run.

    Limits: d is at most 512.  Every valid call has a kernel on the host and one on CUDA.  Hopper's
    tensor cores take sequences from 64 tokens with d of 64 or 128, without maps of q and k, full
    and normalise.  f16 and bf16 run there with a head gate or none, and e a multiple of 64.  bf16
    runs with gate_key, e of 64 or 128, bonus and read_before too.  With gate_value it runs where
    the forward does and output_from is absent.
    The host makes gradients of such calls in chunks of 64 tokens, in every dtype and width.

    Example
      dq, dk, dv = fovea.experimental.gla_backward(q, k, v, dout)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q: (b, s, h, d) f32 f16 bf16
      k: (b, t, g, d) as q
      v: (b, t, x, e) as q
      dout: (b, s, heads_out, e) as q or f32: the gradient of o

    Outputs, new unless passed or False
      dq: (b, s, h, d) as q
      dk: (b, t, g, d) as q
      dv: (b, t, x, e) as q

    Outputs on request, by True or an array
      dgate_head: (b, s, heads) as q or f32: needs gate_head; a stride of 0 receives the sum over
          that dimension, here and below
      dgate_key: (b, s, heads, d) as q or f32: needs gate_key
      dgate_value: (b, s, heads, e) as q or f32: needs gate_value
      dgate_rate: (heads) f32: needs gate_rate
      dgate_bias: (heads, d) f32: needs gate_bias
      dselect: (b, t, heads) as q or f32: needs select
      dbonus: (heads, d) f32: needs bonus
      dskip: (heads, e) f32: needs skip
      dstate_in: (r, heads, d, e) f32: of the state that each sequence starts from, given or zeros
      dz_in: (r, heads, d) f32: with normalise alone

    Optional inputs
      gate_head: (b, s, heads) as q or f32
      gate_key: (b, s, heads, d) as q or f32
      gate_value: (b, s, heads, e) as q or f32
      gate_rate: (heads) f32
      gate_bias: (heads, d) f32
      select: (b, t, heads) as q or f32
      bonus: (heads, d) f32
      skip: (heads, e) f32
      state_in: (slots, heads, d, e) f32 bf16
      z_in: (slots, heads, d) f32
      dstate_out: (r, heads, d, e) f32: of each sequence's last state; absent: 0
      dz_out: (r, heads, d) f32: needs dstate_out
      start: (r+1) i32
      len: (r) i32
      state_row: (r) i32
      output_from: (r) i32
      key_start: (r+1) i32
      key_len: (r) i32

    r: extents of new outputs that no input tells.

    Numbers
      token_max: 0: s
      scale: 0: d^-1/2
      eps: of normalise; 0: 1e-6
      gate_bound: 0: no bound
      gate_tau: of gate_map 3; 0: 1
      gate_map: "log", "softplus", "bounded", "log_sigmoid", "exp"
      map_q: "none", "relu", "elu_plus_one", "silu"
      map_k: "none", "relu", "elu_plus_one", "silu"
      full: 0: causal, 1: every row reads every key
      read_before: 1: y_t reads the state before its token
      normalise: 1: y_t is divided by scale q^ . z_t + eps
      bonus_sigmoid: act: 0 none, 1 sigmoid of each column
    """
    if ctx_or_q.__class__ is Context and ctx is None:
        call = Call(ctx_or_q, _x_gla_backward)
    else:
        call, inputs = _x_gla_backward.begin(ctx_or_q, ctx, q, k, v, dout)
        [q, k, v, dout] = inputs
    v_q = call.put("q", 8, q, 4)
    v_k = call.put("k", 104, k, 4)
    v_v = call.put("v", 200, v, 4)
    v_gate_head = None
    if gate_head is not None:
        v_gate_head = call.put("gate_head", 296, gate_head, 3)
    v_gate_key = None
    if gate_key is not None:
        v_gate_key = call.put("gate_key", 392, gate_key, 4)
    v_gate_value = None
    if gate_value is not None:
        v_gate_value = call.put("gate_value", 488, gate_value, 4)
    v_gate_rate = None
    if gate_rate is not None:
        v_gate_rate = call.put("gate_rate", 584, gate_rate, 1)
    v_gate_bias = None
    if gate_bias is not None:
        v_gate_bias = call.put("gate_bias", 680, gate_bias, 2)
    v_select = None
    if select is not None:
        v_select = call.put("select", 776, select, 3)
    v_bonus = None
    if bonus is not None:
        v_bonus = call.put("bonus", 872, bonus, 2)
    v_skip = None
    if skip is not None:
        v_skip = call.put("skip", 968, skip, 2)
    if state_in is not None:
        call.put("state_in", 1064, state_in)
    if z_in is not None:
        call.put("z_in", 1160, z_in)
    call.put("dout", 1256, dout)
    v_dstate_out = None
    if dstate_out is not None:
        v_dstate_out = call.put("dstate_out", 1352, dstate_out, 4)
    v_dz_out = None
    if dz_out is not None:
        v_dz_out = call.put("dz_out", 1448, dz_out, 3)
    v_start = None
    if start is not None:
        v_start = call.put("start", 2792, start, 1)
    v_len = None
    if len is not None:
        v_len = call.put("len", 2888, len, 1)
    v_state_row = None
    if state_row is not None:
        v_state_row = call.put("state_row", 2984, state_row, 1)
    v_output_from = None
    if output_from is not None:
        v_output_from = call.put("output_from", 3080, output_from, 1)
    v_key_start = None
    if key_start is not None:
        v_key_start = call.put("key_start", 3176, key_start, 1)
    v_key_len = None
    if key_len is not None:
        v_key_len = call.put("key_len", 3272, key_len, 1)
    dq = None if dq is False else call.out("dq", 1544, dq, v_q[2], v_q[1])
    dk = None if dk is False else call.out("dk", 1640, dk, v_k[2], v_q[1])
    dv = None if dv is False else call.out("dv", 1736, dv, v_v[2], v_q[1])
    if dgate_head is not None:
        dgate_head = None if dgate_head is False else call.out("dgate_head", 1832, dgate_head,
            lambda: call.twin("dgate_head", "gate_head", v_gate_head), v_q[1])
    if dgate_key is not None:
        dgate_key = None if dgate_key is False else call.out("dgate_key", 1928, dgate_key, lambda:
            call.twin("dgate_key", "gate_key", v_gate_key), v_q[1])
    if dgate_value is not None:
        dgate_value = None if dgate_value is False else call.out("dgate_value", 2024, dgate_value,
            lambda: call.twin("dgate_value", "gate_value", v_gate_value), v_q[1])
    if dgate_rate is not None:
        dgate_rate = None if dgate_rate is False else call.out("dgate_rate", 2120, dgate_rate,
            lambda: call.twin("dgate_rate", "gate_rate", v_gate_rate), 1)
    if dgate_bias is not None:
        dgate_bias = None if dgate_bias is False else call.out("dgate_bias", 2216, dgate_bias,
            lambda: call.twin("dgate_bias", "gate_bias", v_gate_bias), 1)
    if dselect is not None:
        dselect = None if dselect is False else call.out("dselect", 2312, dselect, lambda:
            call.twin("dselect", "select", v_select), v_q[1])
    if dbonus is not None:
        dbonus = None if dbonus is False else call.out("dbonus", 2408, dbonus, lambda:
            call.twin("dbonus", "bonus", v_bonus), 1)
    if dskip is not None:
        dskip = None if dskip is False else call.out("dskip", 2504, dskip, lambda:
            call.twin("dskip", "skip", v_skip), 1)
    if dstate_in is not None:
        dstate_in = None if dstate_in is False else call.out("dstate_in", 2600, dstate_in, lambda:
            (call.size("r", r, (v_dstate_out, 0, 0), (v_dz_out, 0, 0), (v_start, 0, 1), (v_len, 0,
            0), (v_state_row, 0, 0), (v_output_from, 0, 0), (v_key_start, 0, 1), (v_key_len, 0, 0),
            (v_q, 0, 0)), max(v_k[2][2], v_v[2][2]), v_q[2][3], v_v[2][3]), 1)
    if dz_in is not None:
        dz_in = None if dz_in is False else call.out("dz_in", 2696, dz_in, lambda: (call.size("r",
            r, (v_dstate_out, 0, 0), (v_dz_out, 0, 0), (v_start, 0, 1), (v_len, 0, 0), (v_state_row,
            0, 0), (v_output_from, 0, 0), (v_key_start, 0, 1), (v_key_len, 0, 0), (v_q, 0, 0)),
            max(v_k[2][2], v_v[2][2]), v_q[2][3]), 1)
    if token_max:
        call.scalar("q", 3368, token_max, "token_max")
    if scale:
        call.scalar("f", 3376, scale, "scale")
    if eps:
        call.scalar("f", 3380, eps, "eps")
    if gate_bound:
        call.scalar("f", 3384, gate_bound, "gate_bound")
    if gate_tau:
        call.scalar("f", 3388, gate_tau, "gate_tau")
    if gate_map:
        call.enum(3392, gate_map, "gate_map", GateMap)
    if map_q:
        call.enum(3396, map_q, "map_q", FeatureMap)
    if map_k:
        call.enum(3400, map_k, "map_k", FeatureMap)
    if full:
        call.scalar("i", 3404, full, "full")
    if read_before:
        call.scalar("i", 3408, read_before, "read_before")
    if normalise:
        call.scalar("i", 3412, normalise, "normalise")
    if bonus_sigmoid:
        call.scalar("i", 3416, bonus_sigmoid, "bonus_sigmoid")
    return call.run(dq, dk, dv, dgate_head, dgate_key, dgate_value, dgate_rate, dgate_bias, dselect,
        dbonus, dskip, dstate_in, dz_in)


def delta_forward(ctx_or_q=None, /, q=None, k=None, v=None, *, ctx=None, o=None, state_out=None,
                  snapshot=None, beta=None, erase=None, gate_head=None, gate_key=None,
                  gate_rate=None, gate_bias=None, low_a=None, low_b=None, state_in=None, start=None,
                  len=None, state_row=None, state_out_row=None, output_from=None, snapshot_row=None,
                  slots_out=None, snapshots=None, token_max=0, snapshot_every=0, scale=0.0, eps=0.0,
                  gate_bound=0.0, gate_tau=0.0, gate_map=0, beta_map=0, l2_norm=0, splits=0):
    """The delta rule: each token corrects what the state answers to its key.  For token t, with decays
    and heads as in x_gla_forward and q^, k^ = q_t, k_t, divided by their norms with l2_norm:

      H~ = exp(gate_head + gate_key_c) . H_(t-1)
      u_t = beta v_t - p H~     p = erase_t, or without it beta k^
      H_t = H~ + k^' u_t,  o_t = scale q^ H_t

    With low_a and low_b the correction is their outer product; it reads the state before its decay:

      H_t = H~ + low_b' (low_a H_(t-1)) + k^' v_t

    beta is as given, or beta_map makes it of raw numbers.  l2_norm: x / sqrt(sum x^2 + eps) of each
    head.  At least one of o, state_out and snapshot is given.  low_a excludes beta and erase.

    Limits: d is at most 512.  Every valid call has a kernel on the host and one on CUDA.  Hopper's
    tensor cores take bf16 with d of 64 or 128, e a multiple of 64, any gate, low_a with gate_key,
    no erase.  There a NaN of the state outlives the reset of a key gate within 64 tokens.
    Source: arXiv 2406.06484, 2412.06464, 2503.14456 and 2510.26692.

    Example
      outputs = fovea.experimental.delta_forward(q, k, v, o=True, state_out=True, snapshot=True)
      o, state_out, snapshot = outputs

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q: (b, s, h, d) f32 f16 bf16
      k: (b, s, g, d) as q
      v: (b, s, x, e) as q

    Outputs on request, by True or an array
      o: (b, s, heads_out, e) as q or f32
      state_out: (slots_out, heads, d, e) f32 bf16: may be state_in
      snapshot: (snapshots, heads, d, e) f32 bf16: needs snapshot_row; may be state_out

    Optional inputs
      beta: (b, s, heads) as q or f32: absent: 1
      erase: (b, s, heads, d) as q
      gate_head: (b, s, heads) as q or f32
      gate_key: (b, s, heads, d) as q or f32
      gate_rate: (heads) f32: of gate_map 1 and 2; absent: 0
      gate_bias: (heads, d) f32: of gate_key; of gate_head, without gate_key: then column 0 is read;
          absent: 0
      low_a: (b, s, heads, d) as q: needs low_b
      low_b: (b, s, heads, d) as q: needs low_a
      state_in: (slots, heads, d, e) f32 bf16: absent: zeros
      start: (r+1) i32: first packed token of each sequence, ascending from 0; then b = 1
      len: (r) i32: tokens in use, at most s or the packed extent
      state_row: (r) i32
      state_out_row: (r) i32
      output_from: (r) i32: absent: 0
      snapshot_row: (r, n) i32

    slots_out, snapshots: extents of new outputs that no input tells.

    Numbers
      token_max: 0: s
      snapshot_every: tokens between snapshots, >= 1 with snapshot
      scale: 0: d^-1/2
      eps: of l2_norm; 0: 1e-6
      gate_bound: gates are at least -gate_bound; 0: no bound.  The factor of gate_map 2, which
          needs one
      gate_tau: of gate_map 3; 0: 1
      gate_map: "log", "softplus", "bounded", "log_sigmoid", "exp"
      beta_map: "none", "sigmoid", "two_sigmoid"
      l2_norm: 1: q and k are divided by their norms
      splits: parts that a sequence is walked in at once; 0: chosen from shapes, 1: bits do not
          depend on cuts
    """
    if ctx_or_q.__class__ is Context and ctx is None:
        call = Call(ctx_or_q, _x_delta_forward)
    else:
        call, inputs = _x_delta_forward.begin(ctx_or_q, ctx, q, k, v)
        [q, k, v] = inputs
    v_q = call.put("q", 8, q, 4)
    v_k = call.put("k", 104, k, 4)
    v_v = call.put("v", 200, v, 4)
    if beta is not None:
        call.put("beta", 296, beta)
    if erase is not None:
        call.put("erase", 392, erase)
    if gate_head is not None:
        call.put("gate_head", 488, gate_head)
    if gate_key is not None:
        call.put("gate_key", 584, gate_key)
    if gate_rate is not None:
        call.put("gate_rate", 680, gate_rate)
    if gate_bias is not None:
        call.put("gate_bias", 776, gate_bias)
    if low_a is not None:
        call.put("low_a", 872, low_a)
    if low_b is not None:
        call.put("low_b", 968, low_b)
    v_state_in = None
    if state_in is not None:
        v_state_in = call.put("state_in", 1064, state_in, 4)
    v_start = None
    if start is not None:
        v_start = call.put("start", 1448, start, 1)
    if len is not None:
        call.put("len", 1544, len)
    if state_row is not None:
        call.put("state_row", 1640, state_row)
    if state_out_row is not None:
        call.put("state_out_row", 1736, state_out_row)
    if output_from is not None:
        call.put("output_from", 1832, output_from)
    if snapshot_row is not None:
        call.put("snapshot_row", 1928, snapshot_row)
    if o is not None:
        o = None if o is False else call.out("o", 1160, o, (v_q[2][0], v_q[2][1], max(v_q[2][2],
            v_k[2][2], v_v[2][2]), v_v[2][3]), v_q[1])
    if state_out is not None:
        state_out = None if state_out is False else call.out("state_out", 1256, state_out, lambda:
            (call.size("slots_out", slots_out, (v_state_in, 0, 0), (v_start if state_out_row is None
            else None, 0, 1), (v_q if state_out_row is None else None, 0, 0)), max(v_k[2][2],
            v_v[2][2]), v_q[2][3], v_v[2][3]), v_state_in[1] if v_state_in is not None else 1)
    if snapshot is not None:
        snapshot = None if snapshot is False else call.out("snapshot", 1352, snapshot, lambda:
            (call.size("snapshots", snapshots), max(v_k[2][2], v_v[2][2]), v_q[2][3], v_v[2][3]),
            v_state_in[1] if v_state_in is not None else 1)
    if token_max:
        call.scalar("q", 2024, token_max, "token_max")
    if snapshot_every:
        call.scalar("q", 2032, snapshot_every, "snapshot_every")
    if scale:
        call.scalar("f", 2040, scale, "scale")
    if eps:
        call.scalar("f", 2044, eps, "eps")
    if gate_bound:
        call.scalar("f", 2048, gate_bound, "gate_bound")
    if gate_tau:
        call.scalar("f", 2052, gate_tau, "gate_tau")
    if gate_map:
        call.enum(2056, gate_map, "gate_map", GateMap)
    if beta_map:
        call.enum(2060, beta_map, "beta_map", BetaMap)
    if l2_norm:
        call.scalar("i", 2064, l2_norm, "l2_norm")
    if splits:
        call.scalar("i", 2068, splits, "splits")
    return call.run(o, state_out, snapshot)


def delta_backward(ctx_or_q=None, /, q=None, k=None, v=None, dout=None, *, ctx=None, dq=None,
                   dk=None, dv=None, dbeta=None, derase=None, dgate_head=None, dgate_key=None,
                   dgate_rate=None, dgate_bias=None, dlow_a=None, dlow_b=None, dstate_in=None,
                   beta=None, erase=None, gate_head=None, gate_key=None, gate_rate=None,
                   gate_bias=None, low_a=None, low_b=None, state_in=None, dstate_out=None,
                   start=None, len=None, state_row=None, output_from=None, r=None, token_max=0,
                   scale=0.0, eps=0.0, gate_bound=0.0, gate_tau=0.0, gate_map=0, beta_map=0,
                   l2_norm=0):
    """Gradients of x_delta_forward from dout, and from the gradients of each sequence's last state;
    rules as in x_gla_backward.  With W_t the gradient of H_t and du = k^ W_t:

      dq^ = scale dout H_t',  dv = beta du,  dp = -du H~',  X = W_t - p' du
      dk^ = W_t u_t' (without erase: + beta dp),  dbeta = du . v (+ dp . k^),  derase = dp
      dgate_key = sum_j (H~ . X)[c, j],  W_(t-1) = exp(gate) . X

    and with low_a and low_b:

      z = low_a H_(t-1),  dz = low_b W_t
      dlow_b = W_t z',  dlow_a = dz H_(t-1)',  W_(t-1) = exp(gate) . W_t + low_a' dz

    Limits: as of x_delta_forward; on Hopper's tensor cores sequences from 64 tokens, and with
    gate_key as many heads of q as of states.

    Example
      dq, dk, dv = fovea.experimental.delta_backward(q, k, v, dout)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q: (b, s, h, d) f32 f16 bf16
      k: (b, s, g, d) as q
      v: (b, s, x, e) as q
      dout: (b, s, heads_out, e) as q or f32: the gradient of o

    Outputs, new unless passed or False
      dq: (b, s, h, d) as q
      dk: (b, s, g, d) as q
      dv: (b, s, x, e) as q

    Outputs on request, by True or an array
      dbeta: (b, s, heads) as q or f32: needs beta; a stride of 0 receives the sum over that
          dimension, here and below
      derase: (b, s, heads, d) as q: needs erase
      dgate_head: (b, s, heads) as q or f32: needs gate_head
      dgate_key: (b, s, heads, d) as q or f32: needs gate_key
      dgate_rate: (heads) f32: needs gate_rate
      dgate_bias: (heads, d) f32: needs gate_bias
      dlow_a: (b, s, heads, d) as q: needs low_a
      dlow_b: (b, s, heads, d) as q: needs low_b
      dstate_in: (r, heads, d, e) f32: of the state that each sequence starts from, given or zeros

    Optional inputs
      beta: (b, s, heads) as q or f32
      erase: (b, s, heads, d) as q
      gate_head: (b, s, heads) as q or f32
      gate_key: (b, s, heads, d) as q or f32
      gate_rate: (heads) f32
      gate_bias: (heads, d) f32
      low_a: (b, s, heads, d) as q: needs low_b
      low_b: (b, s, heads, d) as q: needs low_a
      state_in: (slots, heads, d, e) f32 bf16
      dstate_out: (r, heads, d, e) f32: of each sequence's last state; absent: 0
      start: (r+1) i32
      len: (r) i32
      state_row: (r) i32
      output_from: (r) i32

    r: extents of new outputs that no input tells.

    Numbers
      token_max: 0: s
      scale: 0: d^-1/2
      eps: of l2_norm; 0: 1e-6
      gate_bound: 0: no bound
      gate_tau: of gate_map 3; 0: 1
      gate_map: "log", "softplus", "bounded", "log_sigmoid", "exp"
      beta_map: "none", "sigmoid", "two_sigmoid"
      l2_norm: 1: q and k are divided by their norms
    """
    if ctx_or_q.__class__ is Context and ctx is None:
        call = Call(ctx_or_q, _x_delta_backward)
    else:
        call, inputs = _x_delta_backward.begin(ctx_or_q, ctx, q, k, v, dout)
        [q, k, v, dout] = inputs
    v_q = call.put("q", 8, q, 4)
    v_k = call.put("k", 104, k, 4)
    v_v = call.put("v", 200, v, 4)
    v_beta = None
    if beta is not None:
        v_beta = call.put("beta", 296, beta, 3)
    v_erase = None
    if erase is not None:
        v_erase = call.put("erase", 392, erase, 4)
    v_gate_head = None
    if gate_head is not None:
        v_gate_head = call.put("gate_head", 488, gate_head, 3)
    v_gate_key = None
    if gate_key is not None:
        v_gate_key = call.put("gate_key", 584, gate_key, 4)
    v_gate_rate = None
    if gate_rate is not None:
        v_gate_rate = call.put("gate_rate", 680, gate_rate, 1)
    v_gate_bias = None
    if gate_bias is not None:
        v_gate_bias = call.put("gate_bias", 776, gate_bias, 2)
    v_low_a = None
    if low_a is not None:
        v_low_a = call.put("low_a", 872, low_a, 4)
    v_low_b = None
    if low_b is not None:
        v_low_b = call.put("low_b", 968, low_b, 4)
    if state_in is not None:
        call.put("state_in", 1064, state_in)
    call.put("dout", 1160, dout)
    v_dstate_out = None
    if dstate_out is not None:
        v_dstate_out = call.put("dstate_out", 1256, dstate_out, 4)
    v_start = None
    if start is not None:
        v_start = call.put("start", 2504, start, 1)
    v_len = None
    if len is not None:
        v_len = call.put("len", 2600, len, 1)
    v_state_row = None
    if state_row is not None:
        v_state_row = call.put("state_row", 2696, state_row, 1)
    v_output_from = None
    if output_from is not None:
        v_output_from = call.put("output_from", 2792, output_from, 1)
    dq = None if dq is False else call.out("dq", 1352, dq, v_q[2], v_q[1])
    dk = None if dk is False else call.out("dk", 1448, dk, v_k[2], v_q[1])
    dv = None if dv is False else call.out("dv", 1544, dv, v_v[2], v_q[1])
    if dbeta is not None:
        dbeta = None if dbeta is False else call.out("dbeta", 1640, dbeta, lambda:
            call.twin("dbeta", "beta", v_beta), v_q[1])
    if derase is not None:
        derase = None if derase is False else call.out("derase", 1736, derase, lambda:
            call.twin("derase", "erase", v_erase), v_q[1])
    if dgate_head is not None:
        dgate_head = None if dgate_head is False else call.out("dgate_head", 1832, dgate_head,
            lambda: call.twin("dgate_head", "gate_head", v_gate_head), v_q[1])
    if dgate_key is not None:
        dgate_key = None if dgate_key is False else call.out("dgate_key", 1928, dgate_key, lambda:
            call.twin("dgate_key", "gate_key", v_gate_key), v_q[1])
    if dgate_rate is not None:
        dgate_rate = None if dgate_rate is False else call.out("dgate_rate", 2024, dgate_rate,
            lambda: call.twin("dgate_rate", "gate_rate", v_gate_rate), 1)
    if dgate_bias is not None:
        dgate_bias = None if dgate_bias is False else call.out("dgate_bias", 2120, dgate_bias,
            lambda: call.twin("dgate_bias", "gate_bias", v_gate_bias), 1)
    if dlow_a is not None:
        dlow_a = None if dlow_a is False else call.out("dlow_a", 2216, dlow_a, lambda:
            call.twin("dlow_a", "low_a", v_low_a), v_q[1])
    if dlow_b is not None:
        dlow_b = None if dlow_b is False else call.out("dlow_b", 2312, dlow_b, lambda:
            call.twin("dlow_b", "low_b", v_low_b), v_q[1])
    if dstate_in is not None:
        dstate_in = None if dstate_in is False else call.out("dstate_in", 2408, dstate_in, lambda:
            (call.size("r", r, (v_dstate_out, 0, 0), (v_start, 0, 1), (v_len, 0, 0), (v_state_row,
            0, 0), (v_output_from, 0, 0), (v_q, 0, 0)), max(v_k[2][2], v_v[2][2]), v_q[2][3],
            v_v[2][3]), 1)
    if token_max:
        call.scalar("q", 2888, token_max, "token_max")
    if scale:
        call.scalar("f", 2896, scale, "scale")
    if eps:
        call.scalar("f", 2900, eps, "eps")
    if gate_bound:
        call.scalar("f", 2904, gate_bound, "gate_bound")
    if gate_tau:
        call.scalar("f", 2908, gate_tau, "gate_tau")
    if gate_map:
        call.enum(2912, gate_map, "gate_map", GateMap)
    if beta_map:
        call.enum(2916, beta_map, "beta_map", BetaMap)
    if l2_norm:
        call.scalar("i", 2920, l2_norm, "l2_norm")
    return call.run(dq, dk, dv, dbeta, derase, dgate_head, dgate_key, dgate_rate, dgate_bias,
        dlow_a, dlow_b, dstate_in)


def gsa_forward(ctx_or_q=None, /, q=None, k=None, v=None, gate=None, *, ctx=None, o=None,
                state_k_out=None, state_v_out=None, state_k_in=None, state_v_in=None, start=None,
                len=None, state_row=None, state_out_row=None, output_from=None, slots_out=None,
                token_max=0, scale=0.0, gate_bound=0.0, gate_tau=0.0, gate_map=0, map_q=0, map_k=0):
    """Gated slot attention of q over the slots; prefill, chunks of it, decode.

    State head n reads key head n / (heads / g) and value head n / (heads / x).  Output head j reads
    query head j / (heads_out / h) and state head j / (heads_out / heads).  gate_map makes g of raw
    gates, with rates of 0; the paper's is 3 with gate_tau = 8.  g = -inf resets a slot: it holds
    the token alone.  state_k lies as (d, m), the state of the first pass.

    g, the scores and the softmax are f32.  1 - a and p are rounded to the dtype of q before they
    are used, states when they are stored.  Between calls only the two states are kept.
    At least one of o, state_k_out and state_v_out is given.  A pass without output does not run.

    Errors name this operation, then the part that refuses, with that part's names of fields.  The
    part is x_gla_forward.  Limits: d and m are at most 512.  Hopper's tensor cores take bf16 and
    sequences from 64 tokens, with h = heads and no maps of q and k.  d, e and m are 64 or 128.
    Without states they take every m up to 128.
    Workspace: g, 1 - a, the scores, p, and that of the larger pass.  Arrays of slots have 64 or 128
    columns there.
    Source: Gated Slot Attention (2409.07146).

    Example
      outputs = fovea.experimental.gsa_forward(q, k, v, gate, o=True, state_k_out=True,
          state_v_out=True)
      o, state_k_out, state_v_out = outputs

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q: (b, s, h, d) f32 f16 bf16
      k: (b, s, g, d) as q
      v: (b, s, x, e) as q
      gate: (b, s, heads, m) as q or f32: raw, of each slot

    Outputs on request, by True or an array
      o: (b, s, heads_out, e) as q or f32
      state_k_out: (slots_out, heads, d, m) f32 bf16: may be state_k_in
      state_v_out: (slots_out, heads, m, e) f32 bf16: may be state_v_in

    Optional inputs
      state_k_in: (slots, heads, d, m) f32 bf16: absent: zeros
      state_v_in: (slots, heads, m, e) f32 bf16: absent: zeros
      start: (r+1) i32: first packed token of each sequence, ascending from 0; then b = 1
      len: (r) i32: tokens in use, at most s or the packed extent
      state_row: (r) i32: of both states
      state_out_row: (r) i32: of both states
      output_from: (r) i32: absent: 0

    slots_out: extents of new outputs that no input tells.

    Numbers
      token_max: 0: s
      scale: of the scores; 0: d^-1/2
      gate_bound: gates are at least -gate_bound; 0: no bound.  The factor of gate_map 2, which
          needs one
      gate_tau: of gate_map 3; 0: 1
      gate_map: "log", "softplus", "bounded", "log_sigmoid", "exp"
      map_q: "none", "relu", "elu_plus_one", "silu"
      map_k: "none", "relu", "elu_plus_one", "silu"
    """
    if ctx_or_q.__class__ is Context and ctx is None:
        call = Call(ctx_or_q, _x_gsa_forward)
    else:
        call, inputs = _x_gsa_forward.begin(ctx_or_q, ctx, q, k, v, gate)
        [q, k, v, gate] = inputs
    v_q = call.put("q", 8, q, 4)
    v_k = call.put("k", 104, k, 4)
    v_v = call.put("v", 200, v, 4)
    v_gate = call.put("gate", 296, gate, 4)
    v_state_k_in = None
    if state_k_in is not None:
        v_state_k_in = call.put("state_k_in", 392, state_k_in, 4)
    v_state_v_in = None
    if state_v_in is not None:
        v_state_v_in = call.put("state_v_in", 488, state_v_in, 4)
    v_start = None
    if start is not None:
        v_start = call.put("start", 872, start, 1)
    if len is not None:
        call.put("len", 968, len)
    if state_row is not None:
        call.put("state_row", 1064, state_row)
    if state_out_row is not None:
        call.put("state_out_row", 1160, state_out_row)
    if output_from is not None:
        call.put("output_from", 1256, output_from)
    if o is not None:
        o = None if o is False else call.out("o", 584, o, (v_q[2][0], v_q[2][1], max(v_q[2][2],
            v_k[2][2], v_v[2][2]), v_v[2][3]), v_q[1])
    if state_k_out is not None:
        state_k_out = None if state_k_out is False else call.out("state_k_out", 680, state_k_out,
            lambda: (call.size("slots_out", slots_out, (v_state_k_in, 0, 0), (v_state_v_in, 0, 0),
            (v_start if state_out_row is None else None, 0, 1), (v_q if state_out_row is None else
            None, 0, 0)), max(v_k[2][2], v_v[2][2]), v_q[2][3], v_gate[2][3]), v_state_k_in[1] if
            v_state_k_in is not None else 1)
    if state_v_out is not None:
        state_v_out = None if state_v_out is False else call.out("state_v_out", 776, state_v_out,
            lambda: (call.size("slots_out", slots_out, (v_state_k_in, 0, 0), (v_state_v_in, 0, 0),
            (v_start if state_out_row is None else None, 0, 1), (v_q if state_out_row is None else
            None, 0, 0)), max(v_k[2][2], v_v[2][2]), v_gate[2][3], v_v[2][3]), v_state_v_in[1] if
            v_state_v_in is not None else 1)
    if token_max:
        call.scalar("q", 1352, token_max, "token_max")
    if scale:
        call.scalar("f", 1360, scale, "scale")
    if gate_bound:
        call.scalar("f", 1364, gate_bound, "gate_bound")
    if gate_tau:
        call.scalar("f", 1368, gate_tau, "gate_tau")
    if gate_map:
        call.enum(1372, gate_map, "gate_map", GateMap)
    if map_q:
        call.enum(1376, map_q, "map_q", FeatureMap)
    if map_k:
        call.enum(1380, map_k, "map_k", FeatureMap)
    return call.run(o, state_k_out, state_v_out)


def gsa_backward(ctx_or_q=None, /, q=None, k=None, v=None, gate=None, dout=None, *, ctx=None,
                 dq=None, dk=None, dv=None, dgate=None, dstate_k_in=None, dstate_v_in=None,
                 state_k_in=None, state_v_in=None, dstate_k_out=None, dstate_v_out=None, start=None,
                 len=None, state_row=None, output_from=None, r=None, token_max=0, scale=0.0,
                 gate_bound=0.0, gate_tau=0.0, gate_map=0, map_q=0, map_k=0):
    """Gradients of x_gsa_forward from dout, and from the gradients of each sequence's last states.
    Each output is optional: absent = not computed.  With Y_t = scale K_t map_q(q_t)':

      dp_t = V_t dout_t',  dY_t = p_t . (dp_t - p_t dp_t'),  and x_gla_backward of both passes
      dg = the sum of both passes' own - a . (the sum of both passes' d(1 - a)),  dgate = map' dg

    dp and each pass's d(1 - a) are rounded to the dtype of q, as gradients of x_gla_backward are.
    dY is rounded on Hopper's tensor cores alone.  p of dY is the f32 softmax.  dgate is 0 where a
    gate is -inf or gate_bound holds.
    Every element of an output is written: 0 where no sequence is.  Rows before output_from have no
    output and take dout as 0.  Gradients of states have a row for each sequence of the call.

    Errors and limits are as in the forward; on Hopper the pass over keys takes no output_from.  The
    parts are x_gla_forward and x_gla_backward.
    Sums have a fixed order: the same bits every run.

    Example
      dq, dk, dv, dgate = fovea.experimental.gsa_backward(q, k, v, gate, dout)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q: (b, s, h, d) f32 f16 bf16
      k: (b, s, g, d) as q
      v: (b, s, x, e) as q
      gate: (b, s, heads, m) as q or f32
      dout: (b, s, heads_out, e) as q or f32: the gradient of o

    Outputs, new unless passed or False
      dq: (b, s, h, d) as q
      dk: (b, s, g, d) as q
      dv: (b, s, x, e) as q
      dgate: (b, s, heads, m) as q or f32: of the raw gate

    Outputs on request, by True or an array
      dstate_k_in: (r, heads, d, m) f32: of the state that each sequence starts from, given or zeros
      dstate_v_in: (r, heads, m, e) f32: the same

    Optional inputs
      state_k_in: (slots, heads, d, m) f32 bf16
      state_v_in: (slots, heads, m, e) f32 bf16
      dstate_k_out: (r, heads, d, m) f32: of each sequence's last state; absent: 0
      dstate_v_out: (r, heads, m, e) f32: the same
      start: (r+1) i32
      len: (r) i32
      state_row: (r) i32
      output_from: (r) i32

    r: extents of new outputs that no input tells.

    Numbers
      token_max: 0: s
      scale: 0: d^-1/2
      gate_bound: 0: no bound
      gate_tau: of gate_map 3; 0: 1
      gate_map: "log", "softplus", "bounded", "log_sigmoid", "exp"
      map_q: "none", "relu", "elu_plus_one", "silu"
      map_k: "none", "relu", "elu_plus_one", "silu"
    """
    if ctx_or_q.__class__ is Context and ctx is None:
        call = Call(ctx_or_q, _x_gsa_backward)
    else:
        call, inputs = _x_gsa_backward.begin(ctx_or_q, ctx, q, k, v, gate, dout)
        [q, k, v, gate, dout] = inputs
    v_q = call.put("q", 8, q, 4)
    v_k = call.put("k", 104, k, 4)
    v_v = call.put("v", 200, v, 4)
    v_gate = call.put("gate", 296, gate, 4)
    if state_k_in is not None:
        call.put("state_k_in", 392, state_k_in)
    if state_v_in is not None:
        call.put("state_v_in", 488, state_v_in)
    call.put("dout", 584, dout)
    v_dstate_k_out = None
    if dstate_k_out is not None:
        v_dstate_k_out = call.put("dstate_k_out", 680, dstate_k_out, 4)
    v_dstate_v_out = None
    if dstate_v_out is not None:
        v_dstate_v_out = call.put("dstate_v_out", 776, dstate_v_out, 4)
    v_start = None
    if start is not None:
        v_start = call.put("start", 1448, start, 1)
    v_len = None
    if len is not None:
        v_len = call.put("len", 1544, len, 1)
    v_state_row = None
    if state_row is not None:
        v_state_row = call.put("state_row", 1640, state_row, 1)
    v_output_from = None
    if output_from is not None:
        v_output_from = call.put("output_from", 1736, output_from, 1)
    dq = None if dq is False else call.out("dq", 872, dq, v_q[2], v_q[1])
    dk = None if dk is False else call.out("dk", 968, dk, v_k[2], v_q[1])
    dv = None if dv is False else call.out("dv", 1064, dv, v_v[2], v_q[1])
    dgate = None if dgate is False else call.out("dgate", 1160, dgate, v_gate[2], v_q[1])
    if dstate_k_in is not None:
        dstate_k_in = None if dstate_k_in is False else call.out("dstate_k_in", 1256, dstate_k_in,
            lambda: (call.size("r", r, (v_dstate_k_out, 0, 0), (v_dstate_v_out, 0, 0), (v_start, 0,
            1), (v_len, 0, 0), (v_state_row, 0, 0), (v_output_from, 0, 0), (v_q, 0, 0)),
            max(v_k[2][2], v_v[2][2]), v_q[2][3], v_gate[2][3]), 1)
    if dstate_v_in is not None:
        dstate_v_in = None if dstate_v_in is False else call.out("dstate_v_in", 1352, dstate_v_in,
            lambda: (call.size("r", r, (v_dstate_k_out, 0, 0), (v_dstate_v_out, 0, 0), (v_start, 0,
            1), (v_len, 0, 0), (v_state_row, 0, 0), (v_output_from, 0, 0), (v_q, 0, 0)),
            max(v_k[2][2], v_v[2][2]), v_gate[2][3], v_v[2][3]), 1)
    if token_max:
        call.scalar("q", 1832, token_max, "token_max")
    if scale:
        call.scalar("f", 1840, scale, "scale")
    if gate_bound:
        call.scalar("f", 1844, gate_bound, "gate_bound")
    if gate_tau:
        call.scalar("f", 1848, gate_tau, "gate_tau")
    if gate_map:
        call.enum(1852, gate_map, "gate_map", GateMap)
    if map_q:
        call.enum(1856, map_q, "map_q", FeatureMap)
    if map_k:
        call.enum(1860, map_k, "map_k", FeatureMap)
    return call.run(dq, dk, dv, dgate, dstate_k_in, dstate_v_in)


def tpa_forward(ctx_or_a_k=None, /, a_k=None, b_k=None, a_v=None, b_v=None, *, ctx=None, o=None,
                lse=None, q=None, a_q=None, b_q=None, query_start=None, key_start=None,
                query_len=None, key_len=None, page_table=None, cache_row=None, context_len=None,
                b=None, s=None, query_max=0, key_max=0, window_left=0, window_right=0, sink_keys=0,
                key_step=0, key_shift=0, scale=0.0, scale_q=0.0, scale_k=0.0, scale_v=0.0, causal=0,
                splits=0):
    """Attention over factored keys and values; prefill, decode over contiguous or paged caches.

    Limits: d and e are 1 .. 576.  Every valid call has a kernel on the host and on CUDA.  With 16
    rows or fewer of a sequence a CUDA kernel reads the factors as they are:
      sm_80 and later  f16 or bf16; d and e multiples of 8 up to 128, h at most 128, ranks of keys
                       and values at most 16, as far as two tiles of 16 keys fit shared memory; rows
                       of b_k and b_v contiguous and 16-byte aligned
    Otherwise heads of q, k and v are formed in the workspace for attention_forward, up to 64 at
    once.  They take at most 1 GiB where one head fits in that.

    Example
      o = fovea.experimental.tpa_forward(a_k, b_k, a_v, b_v)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      a_k: (rows, t, rank_k, h) or paged (pool, page, rank_k, h) f32 f16 bf16
      b_k: (rows, t, rank_k, d) or paged (pool, page, rank_k, d) as a_k
      a_v: (rows, t, rank_v, h) or paged (pool, page, rank_v, h) as a_k
      b_v: (rows, t, rank_v, e) or paged (pool, page, rank_v, e) as a_k

    Outputs, new unless passed
      o: (b, s, h, e) as a_k or f32

    Outputs on request, by True or an array
      lse: (b, h, s) f32

    Optional inputs
      q: (b, s, h, d) as a_k: queries of all heads; not with a_q
      a_q: (b, s, rank_q, h) as a_k: wanted where q is not given
      b_q: (b, s, rank_q, d) as a_k: with a_q
      query_start: (r+1) i32: as in attention.h, and so for the fields below
      key_start: (r+1) i32
      query_len: (r) i32
      key_len: (r) i32
      page_table: (rows, pages) i32: pages of all four factors
      cache_row: (r) i32
      context_len: (r) i32

    b, s: extents of new outputs that no input tells.

    Numbers
      query_max: 0: s
      key_max: 0: t, or pages * page
      window_left: 0: all
      window_right: 0: all
      sink_keys: needs window_left; 0: none
      key_step: 0: 1
      key_shift: position of the first key; within 2^31 of 0
      scale: of scores; 0: 1 / sqrt(d)
      scale_q: of the sum over rank_q; 0: 1 / rank_q; not with q
      scale_k: 0: 1 / rank_k
      scale_v: 0: 1 / rank_v
      causal: 1: window_right = 1
      splits: parts the keys of a row are cut into; 0: chosen from shapes
    """
    if ctx_or_a_k.__class__ is Context and ctx is None:
        call = Call(ctx_or_a_k, _x_tpa_forward)
    else:
        call, inputs = _x_tpa_forward.begin(ctx_or_a_k, ctx, a_k, b_k, a_v, b_v)
        [a_k, b_k, a_v, b_v] = inputs
    v_a_k = call.put("a_k", 8, a_k, 4)
    call.put("b_k", 104, b_k)
    call.put("a_v", 200, a_v)
    v_b_v = call.put("b_v", 296, b_v, 4)
    v_q = None
    if q is not None:
        v_q = call.put("q", 392, q, 4)
    v_a_q = None
    if a_q is not None:
        v_a_q = call.put("a_q", 488, a_q, 4)
    v_b_q = None
    if b_q is not None:
        v_b_q = call.put("b_q", 584, b_q, 4)
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
    if context_len is not None:
        call.put("context_len", 1448, context_len)
    o = call.out("o", 680, o, lambda: (call.size("b", b, (v_q, 0, 0), (v_a_q, 0, 0), (v_b_q, 0, 0)),
        call.size("s", s, (v_q, 1, 0), (v_a_q, 1, 0), (v_b_q, 1, 0)), v_a_k[2][3], v_b_v[2][3]),
        v_a_k[1])
    if lse is not None:
        lse = None if lse is False else call.out("lse", 776, lse, lambda: (call.size("b", b, (v_q,
            0, 0), (v_a_q, 0, 0), (v_b_q, 0, 0)), v_a_k[2][3], call.size("s", s, (v_q, 1, 0),
            (v_a_q, 1, 0), (v_b_q, 1, 0))), 1)
    if query_max:
        call.scalar("q", 1544, query_max, "query_max")
    if key_max:
        call.scalar("q", 1552, key_max, "key_max")
    if window_left:
        call.scalar("q", 1560, window_left, "window_left")
    if window_right:
        call.scalar("q", 1568, window_right, "window_right")
    if sink_keys:
        call.scalar("q", 1576, sink_keys, "sink_keys")
    if key_step:
        call.scalar("q", 1584, key_step, "key_step")
    if key_shift:
        call.scalar("q", 1592, key_shift, "key_shift")
    if scale:
        call.scalar("f", 1600, scale, "scale")
    if scale_q:
        call.scalar("f", 1604, scale_q, "scale_q")
    if scale_k:
        call.scalar("f", 1608, scale_k, "scale_k")
    if scale_v:
        call.scalar("f", 1612, scale_v, "scale_v")
    if causal:
        call.scalar("i", 1616, causal, "causal")
    if splits:
        call.scalar("i", 1620, splits, "splits")
    return call.run(o, lse)


def tpa_backward(ctx_or_a_k=None, /, a_k=None, b_k=None, a_v=None, b_v=None, o=None, lse=None,
                 dout=None, *, ctx=None, da_k=None, db_k=None, da_v=None, db_v=None, dq=None,
                 da_q=None, db_q=None, q=None, a_q=None, b_q=None, dlse=None, query_start=None,
                 key_start=None, query_len=None, key_len=None, query_max=0, key_max=0,
                 window_left=0, window_right=0, sink_keys=0, scale=0.0, scale_q=0.0, scale_k=0.0,
                 scale_v=0.0, causal=0, nondeterministic=0):
    """Gradients of x_tpa_forward from dout (and dlse).  The fields it shares say what the forward was.
    Each output is optional: absent = not computed.  Every element of an output is written: rows
    and keys past their lengths get 0.  With dq_i, dk_i, dv_i of attention_backward:
      da_k[a,i] = scale_k <dk_i, b_k[a]>,  db_k[a] = scale_k sum_i a_k[a,i] dk_i
    and so for q and v.  A head's dq, dk and dv are rounded to the dtype of the factors.  Sums over
    heads are f32 in a fixed order: the same bits every run unless `nondeterministic`.

    Limits: as in the forward, no paged keys.  Heads and their gradients are in the workspace, up to
    64 at once and at most 1 GiB where one head fits in that.  With more heads f32 sums of db lie
    beside them.

    Example
      da_k, db_k, da_v, db_v = fovea.experimental.tpa_backward(a_k, b_k, a_v, b_v, o, lse, dout)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      a_k: (key_b, t, rank_k, h) f32 f16 bf16
      b_k: (key_b, t, rank_k, d) as a_k
      a_v: (key_b, t, rank_v, h) as a_k
      b_v: (key_b, t, rank_v, e) as a_k
      o: (b, s, h, e) as a_k or f32: of the forward
      lse: (b, h, s) f32: of the forward
      dout: (b, s, h, e) as o: the gradient of o

    Outputs, new unless passed or False
      da_k: (key_b, t, rank_k, h) as a_k
      db_k: (key_b, t, rank_k, d) as a_k
      da_v: (key_b, t, rank_v, h) as a_k
      db_v: (key_b, t, rank_v, e) as a_k

    Outputs on request, by True or an array
      dq: (b, s, h, d) as a_k: needs q
      da_q: (b, s, rank_q, h) as a_k: needs a_q
      db_q: (b, s, rank_q, d) as a_k: needs b_q

    Optional inputs
      q: (b, s, h, d) as a_k
      a_q: (b, s, rank_q, h) as a_k
      b_q: (b, s, rank_q, d) as a_k
      dlse: (b, h, s) f32: the gradient of lse; absent: 0
      query_start: (r+1) i32
      key_start: (r+1) i32
      query_len: (r) i32
      key_len: (r) i32

    Numbers
      query_max: 0: s
      key_max: 0: t
      window_left: 0: all
      window_right: 0: all
      sink_keys: needs window_left; 0: none
      scale: 0: 1 / sqrt(d)
      scale_q: 0: 1 / rank_q
      scale_k: 0: 1 / rank_k
      scale_v: 0: 1 / rank_v
      causal: 1: window_right = 1
      nondeterministic: 1: a faster kernel whose sums may change order may be used
    """
    if ctx_or_a_k.__class__ is Context and ctx is None:
        call = Call(ctx_or_a_k, _x_tpa_backward)
    else:
        call, inputs = _x_tpa_backward.begin(ctx_or_a_k, ctx, a_k, b_k, a_v, b_v, o, lse, dout)
        [a_k, b_k, a_v, b_v, o, lse, dout] = inputs
    v_a_k = call.put("a_k", 8, a_k, 4)
    v_b_k = call.put("b_k", 104, b_k, 4)
    v_a_v = call.put("a_v", 200, a_v, 4)
    v_b_v = call.put("b_v", 296, b_v, 4)
    v_q = None
    if q is not None:
        v_q = call.put("q", 392, q, 4)
    v_a_q = None
    if a_q is not None:
        v_a_q = call.put("a_q", 488, a_q, 4)
    v_b_q = None
    if b_q is not None:
        v_b_q = call.put("b_q", 584, b_q, 4)
    call.put("o", 680, o)
    call.put("lse", 776, lse)
    call.put("dout", 872, dout)
    if dlse is not None:
        call.put("dlse", 968, dlse)
    if query_start is not None:
        call.put("query_start", 1736, query_start)
    if key_start is not None:
        call.put("key_start", 1832, key_start)
    if query_len is not None:
        call.put("query_len", 1928, query_len)
    if key_len is not None:
        call.put("key_len", 2024, key_len)
    da_k = None if da_k is False else call.out("da_k", 1064, da_k, v_a_k[2], v_a_k[1])
    db_k = None if db_k is False else call.out("db_k", 1160, db_k, v_b_k[2], v_a_k[1])
    da_v = None if da_v is False else call.out("da_v", 1256, da_v, v_a_v[2], v_a_k[1])
    db_v = None if db_v is False else call.out("db_v", 1352, db_v, v_b_v[2], v_a_k[1])
    if dq is not None:
        dq = None if dq is False else call.out("dq", 1448, dq, lambda: call.twin("dq", "q", v_q),
            v_a_k[1])
    if da_q is not None:
        da_q = None if da_q is False else call.out("da_q", 1544, da_q, lambda: call.twin("da_q",
            "a_q", v_a_q), v_a_k[1])
    if db_q is not None:
        db_q = None if db_q is False else call.out("db_q", 1640, db_q, lambda: call.twin("db_q",
            "b_q", v_b_q), v_a_k[1])
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
    if scale:
        call.scalar("f", 2160, scale, "scale")
    if scale_q:
        call.scalar("f", 2164, scale_q, "scale_q")
    if scale_k:
        call.scalar("f", 2168, scale_k, "scale_k")
    if scale_v:
        call.scalar("f", 2172, scale_v, "scale_v")
    if causal:
        call.scalar("i", 2176, causal, "causal")
    if nondeterministic:
        call.scalar("i", 2180, nondeterministic, "nondeterministic")
    return call.run(da_k, db_k, da_v, db_v, dq, da_q, db_q)


def kv_append(ctx_or_k_new=None, /, k_new=None, v_new=None, k_code=None, v_code=None, counter=None,
              page_table=None, *, ctx=None, k_scale=None, k_zero=None, v_scale=None, v_zero=None,
              k_tail=None, v_tail=None, k_factor=None, v_factor=None, k_level=None, v_level=None,
              k_offset=None, k_range=None, v_bound=None, k_norm=None, v_norm=None, k_outlier=None,
              v_outlier=None, k_first=None, v_first=None, query_start=None, query_len=None,
              cache_row=None, query_max=0, bits=0, group=0, flush=0, format=0, v_bits=0):
    """Appends new tokens to the caches.  In formats 1 and 2 a token is quantised as it comes, and
    `flush` does nothing.  In formats 0 and 3 each is appended as this:
      1. Where `residual` keys are in the tail, they are quantised into pages, which empties it; in
         format 3 with their values.
      2. In format 0, where residual + 1 values are in the tail, the oldest is quantised.
      3. The token goes to both tails, and the length grows by one.
    Bits of n tokens are those of n calls with one token.  With `flush` what steps 1 and 2 would do
    next is done at the end, without waiting for a token: values at `residual` already.  A call
    without tokens (s = 0) flushes alone.

    A sequence ends at pages * page tokens; later ones are dropped.  Codes for a page that is -1 are
    dropped.  Pages are wanted when tokens are quantised.  No two sequences may share a cache row,
    or a page that a call writes.  Every decision is taken on the device, so that a captured graph
    serves all lengths.

    Bits: those of the host, the same every run.
    Limits: every valid call has a kernel on the host.  CUDA has kernels of all formats, in 3 with
    d, e and group up to 5900 on sm_80 and 8200 on Hopper.  No workspace but that of format 3 on the
    host: a tile of each thread.

    Example
      fovea.experimental.kv_append(k_new, v_new, k_code, v_code, counter, page_table)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      k_new: (b, s, g, d) f16 bf16
      v_new: (b, s, g, e) as k_new
      k_code: (pool, page_groups, g, d, k_words) i32
      v_code: (pool, page, g, v_words) i32
      counter: (rows, 4) i32
      page_table: (rows, pages) i32: -1: page absent

    Optional inputs
      k_scale: (pool, page_groups, g, d) f16: formats 0, 3
      k_zero: (pool, page_groups, g, d) f16: formats 0, 3
      v_scale: (pool, page, g, v_groups) f16: formats 0, 3
      v_zero: (pool, page, g, v_groups) f16: formats 0, 3
      k_tail: (rows, residual, g, d) as k_new: formats 0, 3
      v_tail: (rows, ring, g, e) as k_new: formats 0, 3
      k_factor: (pool, page, g) f16: format 3
      v_factor: (pool, page_groups, g, e) f16: format 3
      k_level: (levels) f32: formats 1 and 2
      v_level: (levels) f32: formats 1 and 2
      k_offset: (g, d) f32: format 1
      k_range: (g, d) f32: format 1
      v_bound: (pool, page, 2) f32: format 1: offset and range
      k_norm: (pool, page, g) f32: format 2
      v_norm: (pool, page, g) f32: format 2
      k_outlier: (pool, page, k_outliers) i32: format 1; absent: none
      v_outlier: (pool, page, v_outliers) i32: format 1; absent: none
      k_first: (rows, firsts, g, d) as k_new: formats 1 .. 3
      v_first: (rows, firsts, g, e) as k_new: with k_first
      query_start: (r+1) i32: first packed new token of each sequence; then b = 1
      query_len: (r) i32: new tokens of each sequence; absent: all
      cache_row: (r) i32: row of page_table, tails and counter; -1 or past the last skips the
          sequence; absent: its own number

    Numbers
      query_max: most new tokens of a sequence, bounds the grid; 0: s
      bits: 2 or 4, in formats 1 and 2 also 3; 0: 2
      group: group * bits is a multiple of 32; 0: 32
      flush: 1: quantises at the end what is due
      format: "groups", "levels", "norms", "tiles"
      v_bits: of values; 0: bits.  Another number than bits: format 3, 2 or 4
    """
    if ctx_or_k_new.__class__ is Context and ctx is None:
        call = Call(ctx_or_k_new, _x_kv_append)
    else:
        call, inputs = _x_kv_append.begin(ctx_or_k_new, ctx, k_new, v_new, k_code, v_code, counter,
            page_table)
        [k_new, v_new, k_code, v_code, counter, page_table] = inputs
    call.put("k_new", 8, k_new)
    call.put("v_new", 104, v_new)
    call.put("k_code", 200, k_code, None, True)
    if k_scale is not None:
        call.put("k_scale", 296, k_scale, None, True)
    if k_zero is not None:
        call.put("k_zero", 392, k_zero, None, True)
    call.put("v_code", 488, v_code, None, True)
    if v_scale is not None:
        call.put("v_scale", 584, v_scale, None, True)
    if v_zero is not None:
        call.put("v_zero", 680, v_zero, None, True)
    if k_tail is not None:
        call.put("k_tail", 776, k_tail, None, True)
    if v_tail is not None:
        call.put("v_tail", 872, v_tail, None, True)
    if k_factor is not None:
        call.put("k_factor", 968, k_factor, None, True)
    if v_factor is not None:
        call.put("v_factor", 1064, v_factor, None, True)
    if k_level is not None:
        call.put("k_level", 1160, k_level)
    if v_level is not None:
        call.put("v_level", 1256, v_level)
    if k_offset is not None:
        call.put("k_offset", 1352, k_offset)
    if k_range is not None:
        call.put("k_range", 1448, k_range)
    if v_bound is not None:
        call.put("v_bound", 1544, v_bound, None, True)
    if k_norm is not None:
        call.put("k_norm", 1640, k_norm, None, True)
    if v_norm is not None:
        call.put("v_norm", 1736, v_norm, None, True)
    if k_outlier is not None:
        call.put("k_outlier", 1832, k_outlier, None, True)
    if v_outlier is not None:
        call.put("v_outlier", 1928, v_outlier, None, True)
    if k_first is not None:
        call.put("k_first", 2024, k_first, None, True)
    if v_first is not None:
        call.put("v_first", 2120, v_first, None, True)
    call.put("counter", 2216, counter, None, True)
    call.put("page_table", 2312, page_table)
    if query_start is not None:
        call.put("query_start", 2408, query_start)
    if query_len is not None:
        call.put("query_len", 2504, query_len)
    if cache_row is not None:
        call.put("cache_row", 2600, cache_row)
    if query_max:
        call.scalar("q", 2696, query_max, "query_max")
    if bits:
        call.scalar("i", 2704, bits, "bits")
    if group:
        call.scalar("i", 2708, group, "group")
    if flush:
        call.scalar("i", 2712, flush, "flush")
    if format:
        call.enum(2716, format, "format", KvFormat)
    if v_bits:
        call.scalar("i", 2720, v_bits, "v_bits")
    return call.run()


def kv_decode(ctx_or_q=None, /, q=None, k_code=None, v_code=None, counter=None, page_table=None, *,
              ctx=None, o=None, lse=None, k_scale=None, k_zero=None, v_scale=None, v_zero=None,
              k_tail=None, v_tail=None, k_factor=None, v_factor=None, k_level=None, v_level=None,
              k_offset=None, k_range=None, v_bound=None, k_norm=None, v_norm=None, k_outlier=None,
              v_outlier=None, k_first=None, v_first=None, query_start=None, query_len=None,
              cache_row=None, sink_logit=None, cos=None, sin=None, e=None, query_max=0, key_max=0,
              window_left=0, window_right=0, sink_keys=0, scale=0.0, causal=0, bits=0, group=0,
              splits=0, format=0, rope_begin=0, rope_interleaved=0, v_bits=0):
    """Attention over such a cache, after x_kv_append has put the rows' own tokens there: o and lse are
    attention_forward's over x' and the tails.  Row i of Lq is at position i + length - Lq.  A token
    that is quantised into a page that is -1 is not there, nor is a first token of such a page.

    Bits: the same every run on one device; place, neighbours and size of the batch may change them.
    Limits: d and e are 1 .. 576.  Every valid call has a kernel on the host and on CUDA.  With 16
    rows or fewer of a sequence CUDA reads the codes as they are:
      sm_80 and later  d and e both 64 or both 128; group 32, no sink_keys; channels of k_code a run
        format 0       no cos; rows of all tensors contiguous and 16-byte aligned, those of v_scale
                       and v_zero to their size
        formats 1, 2   cos and sin of all columns, not interleaved; rows of codes contiguous and
                       aligned to 16 bytes, those of 24 bytes to 8; a token's outliers contiguous,
                       as many as shared memory holds (Hopper: some 250 of keys and of values)
    The host does in formats 0 and 3 for groups to 128, without cos.  Otherwise keys and values are
    formed in the workspace for attention_forward: d + e numbers a key head of each token that a
    sequence may have.

    Example
      o = fovea.experimental.kv_decode(q, k_code, v_code, counter, page_table)

    ctx: a fovea.Context, first or by name; None: that of the first array's device

    Inputs
      q: (b, s, h, d) f16 bf16
      k_code: (pool, page_groups, g, d, k_words) i32
      v_code: (pool, page, g, v_words) i32
      counter: (rows, 4) i32
      page_table: (rows, pages) i32: -1: page absent

    Outputs, new unless passed
      o: (b, s, h, e) as q or f32

    Outputs on request, by True or an array
      lse: (b, h, s) f32

    Optional inputs
      k_scale: (pool, page_groups, g, d) f16: formats 0, 3
      k_zero: (pool, page_groups, g, d) f16: formats 0, 3
      v_scale: (pool, page, g, v_groups) f16: formats 0, 3
      v_zero: (pool, page, g, v_groups) f16: formats 0, 3
      k_tail: (rows, residual, g, d) as q: formats 0, 3
      v_tail: (rows, ring, g, e) as q: formats 0, 3
      k_factor: (pool, page, g) f16: format 3
      v_factor: (pool, page_groups, g, e) f16: format 3
      k_level: (levels) f32: formats 1 and 2
      v_level: (levels) f32: formats 1 and 2
      k_offset: (g, d) f32: format 1
      k_range: (g, d) f32: format 1
      v_bound: (pool, page, 2) f32: format 1: offset and range
      k_norm: (pool, page, g) f32: format 2
      v_norm: (pool, page, g) f32: format 2
      k_outlier: (pool, page, k_outliers) i32: format 1; absent: none
      v_outlier: (pool, page, v_outliers) i32: format 1; absent: none
      k_first: (rows, firsts, g, d) as q: formats 1 .. 3
      v_first: (rows, firsts, g, e) as q: with k_first
      query_start: (r+1) i32: as in attention.h, and so for the fields below
      query_len: (r) i32
      cache_row: (r) i32: as in x_kv_append; without a row there are no keys
      sink_logit: (h) f32
      cos: (positions, half) f32: keys are stored unrotated and turned by their position after
          loading; v untouched
      sin: (positions, half) f32: with cos

    e: extents of new outputs that no input tells.

    Numbers
      query_max: 0: s
      key_max: tokens past this index do not count, nor in length; 0: pages * page
      window_left: 0: all
      window_right: 0: all
      sink_keys: needs window_left; 0: none
      scale: of scores; 0: 1 / sqrt(d)
      causal: 1: window_right = 1
      bits: 2 or 4, in formats 1 and 2 also 3; 0: 2
      group: group * bits is a multiple of 32; 0: 32
      splits: parts the keys of a row are cut into; 0: chosen from shapes
      format: "groups", "levels", "norms", "tiles"
      rope_begin: as in attention.h
      rope_interleaved: as in attention.h
      v_bits: as in x_kv_append
    """
    if ctx_or_q.__class__ is Context and ctx is None:
        call = Call(ctx_or_q, _x_kv_decode)
    else:
        call, inputs = _x_kv_decode.begin(ctx_or_q, ctx, q, k_code, v_code, counter, page_table)
        [q, k_code, v_code, counter, page_table] = inputs
    v_q = call.put("q", 8, q, 4)
    call.put("k_code", 104, k_code)
    if k_scale is not None:
        call.put("k_scale", 200, k_scale)
    if k_zero is not None:
        call.put("k_zero", 296, k_zero)
    call.put("v_code", 392, v_code)
    if v_scale is not None:
        call.put("v_scale", 488, v_scale)
    if v_zero is not None:
        call.put("v_zero", 584, v_zero)
    if k_tail is not None:
        call.put("k_tail", 680, k_tail)
    v_v_tail = None
    if v_tail is not None:
        v_v_tail = call.put("v_tail", 776, v_tail, 4)
    if k_factor is not None:
        call.put("k_factor", 872, k_factor)
    v_v_factor = None
    if v_factor is not None:
        v_v_factor = call.put("v_factor", 968, v_factor, 4)
    if k_level is not None:
        call.put("k_level", 1064, k_level)
    if v_level is not None:
        call.put("v_level", 1160, v_level)
    if k_offset is not None:
        call.put("k_offset", 1256, k_offset)
    if k_range is not None:
        call.put("k_range", 1352, k_range)
    if v_bound is not None:
        call.put("v_bound", 1448, v_bound)
    if k_norm is not None:
        call.put("k_norm", 1544, k_norm)
    if v_norm is not None:
        call.put("v_norm", 1640, v_norm)
    if k_outlier is not None:
        call.put("k_outlier", 1736, k_outlier)
    if v_outlier is not None:
        call.put("v_outlier", 1832, v_outlier)
    if k_first is not None:
        call.put("k_first", 1928, k_first)
    v_v_first = None
    if v_first is not None:
        v_v_first = call.put("v_first", 2024, v_first, 4)
    call.put("counter", 2120, counter)
    call.put("page_table", 2216, page_table)
    if query_start is not None:
        call.put("query_start", 2504, query_start)
    if query_len is not None:
        call.put("query_len", 2600, query_len)
    if cache_row is not None:
        call.put("cache_row", 2696, cache_row)
    if sink_logit is not None:
        call.put("sink_logit", 2792, sink_logit)
    if cos is not None:
        call.put("cos", 2888, cos)
    if sin is not None:
        call.put("sin", 2984, sin)
    o = call.out("o", 2312, o, lambda: (v_q[2][0], v_q[2][1], v_q[2][2], call.size("e", e,
        (v_v_tail, 3, 0), (v_v_factor, 3, 0), (v_v_first, 3, 0))), v_q[1])
    if lse is not None:
        lse = None if lse is False else call.out("lse", 2408, lse, (v_q[2][0], v_q[2][2],
            v_q[2][1]), 1)
    if query_max:
        call.scalar("q", 3080, query_max, "query_max")
    if key_max:
        call.scalar("q", 3088, key_max, "key_max")
    if window_left:
        call.scalar("q", 3096, window_left, "window_left")
    if window_right:
        call.scalar("q", 3104, window_right, "window_right")
    if sink_keys:
        call.scalar("q", 3112, sink_keys, "sink_keys")
    if scale:
        call.scalar("f", 3120, scale, "scale")
    if causal:
        call.scalar("i", 3124, causal, "causal")
    if bits:
        call.scalar("i", 3128, bits, "bits")
    if group:
        call.scalar("i", 3132, group, "group")
    if splits:
        call.scalar("i", 3136, splits, "splits")
    if format:
        call.enum(3140, format, "format", KvFormat)
    if rope_begin:
        call.scalar("i", 3144, rope_begin, "rope_begin")
    if rope_interleaved:
        call.scalar("i", 3148, rope_interleaved, "rope_interleaved")
    if v_bits:
        call.scalar("i", 3152, v_bits, "v_bits")
    return call.run(o, lse)
