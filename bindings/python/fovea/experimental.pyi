# SPDX-License-Identifier: Apache-2.0
# Written by tools/api.py from include/fovea: edit the headers instead.
"""Types of the operations: see ../../../tools/emit_python_types.py for how outputs are typed."""
from typing import Any, Literal, overload

from typing_extensions import TypedDict, Unpack

from ._core import Context
from ._types import A, Array, Float, Int, Output, Wanted
from ._abi import Accumulate as Accumulate
from ._abi import PFormat as PFormat
from ._abi import ScaleGroup as ScaleGroup
from ._abi import Smooth as Smooth
from ._abi import XBetaMap as BetaMap
from ._abi import XCacheRule as CacheRule
from ._abi import XCode as Code
from ._abi import XCompareMeasure as CompareMeasure
from ._abi import XConv1dActivation as Conv1dActivation
from ._abi import XFeatureMap as FeatureMap
from ._abi import XGate as Gate
from ._abi import XGateMap as GateMap
from ._abi import XKvFormat as KvFormat
from ._abi import XNormGateAct as NormGateAct
from ._abi import XNormGateNorm as NormGateNorm
from ._abi import XPool as Pool
from ._abi import XProbeReduce as ProbeReduce
from ._abi import XProbedKind as ProbedKind
from ._abi import XProjectAct as ProjectAct
from ._abi import XSelectMeasure as SelectMeasure
from ._abi import XSelectNormalise as SelectNormalise
from ._abi import XSelectReduce as SelectReduce
from ._abi import XSelectRule as SelectRule
from ._abi import XSelectScope as SelectScope
from ._abi import XSelectScore as SelectScore

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

class _kl_jensen_shannon_forward(TypedDict, total=False):
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
    weight: Float
    causal: Int

@overload
def kl_jensen_shannon_forward(ctx: Context | None, q_teacher: Array, k_teacher: Array,
                              q_student: Array, k_student: Array, *, js: None = ...,
                              kl_teacher: None = ..., kl_student: None = ...,
                              lse_teacher: None = ..., lse_student: None = ...,
                              **fields: Unpack[_kl_jensen_shannon_forward]) -> None: ...
@overload
def kl_jensen_shannon_forward(q_teacher: Array, k_teacher: Array, q_student: Array,
                              k_student: Array, *, ctx: Context | None = ..., js: None = ...,
                              kl_teacher: None = ..., kl_student: None = ...,
                              lse_teacher: None = ..., lse_student: None = ...,
                              **fields: Unpack[_kl_jensen_shannon_forward]) -> None: ...
@overload
def kl_jensen_shannon_forward(ctx: Context | None, q_teacher: Array, k_teacher: Array,
                              q_student: Array, k_student: Array, *, js: Output = ...,
                              kl_teacher: Output = ..., kl_student: Output = ...,
                              lse_teacher: Output = ..., lse_student: Output = ...,
                              **fields: Unpack[_kl_jensen_shannon_forward]) -> Any: ...
@overload
def kl_jensen_shannon_forward(q_teacher: Array, k_teacher: Array, q_student: Array,
                              k_student: Array, *, ctx: Context | None = ..., js: Output = ...,
                              kl_teacher: Output = ..., kl_student: Output = ...,
                              lse_teacher: Output = ..., lse_student: Output = ...,
                              **fields: Unpack[_kl_jensen_shannon_forward]) -> Any: ...

class _kl_jensen_shannon_backward(TypedDict, total=False):
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
    weight: Float
    causal: Int

@overload
def kl_jensen_shannon_backward(ctx: Context | None, q_teacher: A, k_teacher: Array,
                               q_student: Array, k_student: Array, kl_teacher: Array,
                               kl_student: Array, lse_teacher: Array, lse_student: Array,
                               djs: Array, *, dq_student: Wanted | None = ...,
                               dk_student: Wanted | None = ..., dq_teacher: Wanted | None = ...,
                               dk_teacher: Wanted | None = ...,
                               **fields: Unpack[_kl_jensen_shannon_backward]) -> tuple[A, A, A,
                               A]: ...
@overload
def kl_jensen_shannon_backward(q_teacher: A, k_teacher: Array, q_student: Array, k_student: Array,
                               kl_teacher: Array, kl_student: Array, lse_teacher: Array,
                               lse_student: Array, djs: Array, *, ctx: Context | None = ...,
                               dq_student: Wanted | None = ..., dk_student: Wanted | None = ...,
                               dq_teacher: Wanted | None = ..., dk_teacher: Wanted | None = ...,
                               **fields: Unpack[_kl_jensen_shannon_backward]) -> tuple[A, A, A,
                               A]: ...
@overload
def kl_jensen_shannon_backward(ctx: Context | None, q_teacher: Array, k_teacher: Array,
                               q_student: Array, k_student: Array, kl_teacher: Array,
                               kl_student: Array, lse_teacher: Array, lse_student: Array,
                               djs: Array, *, dq_student: Output = ..., dk_student: Output = ...,
                               dq_teacher: Output = ..., dk_teacher: Output = ...,
                               **fields: Unpack[_kl_jensen_shannon_backward]) -> Any: ...
@overload
def kl_jensen_shannon_backward(q_teacher: Array, k_teacher: Array, q_student: Array,
                               k_student: Array, kl_teacher: Array, kl_student: Array,
                               lse_teacher: Array, lse_student: Array, djs: Array, *,
                               ctx: Context | None = ..., dq_student: Output = ...,
                               dk_student: Output = ..., dq_teacher: Output = ...,
                               dk_teacher: Output = ...,
                               **fields: Unpack[_kl_jensen_shannon_backward]) -> Any: ...

class _kl_indexer_forward(TypedDict, total=False):
    query_start: Array | None
    key_start: Array | None
    query_len: Array | None
    key_len: Array | None
    query_max: Int
    key_max: Int
    window_left: Int
    window_right: Int
    sink_keys: Int
    scale_teacher: Float
    causal: Int

@overload
def kl_indexer_forward(ctx: Context | None, q_teacher: Array, k_teacher: Array, q_student: Array,
                       k_student: Array, weight: Array, *, kl: None = ..., lse_teacher: None = ...,
                       lse_student: None = ..., **fields: Unpack[_kl_indexer_forward]) -> None: ...
@overload
def kl_indexer_forward(q_teacher: Array, k_teacher: Array, q_student: Array, k_student: Array,
                       weight: Array, *, ctx: Context | None = ..., kl: None = ...,
                       lse_teacher: None = ..., lse_student: None = ...,
                       **fields: Unpack[_kl_indexer_forward]) -> None: ...
@overload
def kl_indexer_forward(ctx: Context | None, q_teacher: A, k_teacher: Array, q_student: Array,
                       k_student: Array, weight: Array, *, kl: Wanted, lse_teacher: None = ...,
                       lse_student: None = ..., **fields: Unpack[_kl_indexer_forward]) -> A: ...
@overload
def kl_indexer_forward(q_teacher: A, k_teacher: Array, q_student: Array, k_student: Array,
                       weight: Array, *, ctx: Context | None = ..., kl: Wanted,
                       lse_teacher: None = ..., lse_student: None = ...,
                       **fields: Unpack[_kl_indexer_forward]) -> A: ...
@overload
def kl_indexer_forward(ctx: Context | None, q_teacher: A, k_teacher: Array, q_student: Array,
                       k_student: Array, weight: Array, *, kl: None = ..., lse_teacher: Wanted,
                       lse_student: None = ..., **fields: Unpack[_kl_indexer_forward]) -> A: ...
@overload
def kl_indexer_forward(q_teacher: A, k_teacher: Array, q_student: Array, k_student: Array,
                       weight: Array, *, ctx: Context | None = ..., kl: None = ...,
                       lse_teacher: Wanted, lse_student: None = ...,
                       **fields: Unpack[_kl_indexer_forward]) -> A: ...
@overload
def kl_indexer_forward(ctx: Context | None, q_teacher: A, k_teacher: Array, q_student: Array,
                       k_student: Array, weight: Array, *, kl: None = ..., lse_teacher: None = ...,
                       lse_student: Wanted, **fields: Unpack[_kl_indexer_forward]) -> A: ...
@overload
def kl_indexer_forward(q_teacher: A, k_teacher: Array, q_student: Array, k_student: Array,
                       weight: Array, *, ctx: Context | None = ..., kl: None = ...,
                       lse_teacher: None = ..., lse_student: Wanted,
                       **fields: Unpack[_kl_indexer_forward]) -> A: ...
@overload
def kl_indexer_forward(ctx: Context | None, q_teacher: Array, k_teacher: Array, q_student: Array,
                       k_student: Array, weight: Array, *, kl: Output = ...,
                       lse_teacher: Output = ..., lse_student: Output = ...,
                       **fields: Unpack[_kl_indexer_forward]) -> Any: ...
@overload
def kl_indexer_forward(q_teacher: Array, k_teacher: Array, q_student: Array, k_student: Array,
                       weight: Array, *, ctx: Context | None = ..., kl: Output = ...,
                       lse_teacher: Output = ..., lse_student: Output = ...,
                       **fields: Unpack[_kl_indexer_forward]) -> Any: ...

class _kl_indexer_backward(TypedDict, total=False):
    query_start: Array | None
    key_start: Array | None
    query_len: Array | None
    key_len: Array | None
    query_max: Int
    key_max: Int
    window_left: Int
    window_right: Int
    sink_keys: Int
    scale_teacher: Float
    causal: Int

@overload
def kl_indexer_backward(ctx: Context | None, q_teacher: A, k_teacher: Array, q_student: Array,
                        k_student: Array, weight: Array, lse_teacher: Array, lse_student: Array,
                        dkl: Array, *, dq_student: Wanted | None = ...,
                        dk_student: Wanted | None = ..., dweight: Wanted | None = ...,
                        **fields: Unpack[_kl_indexer_backward]) -> tuple[A, A, A]: ...
@overload
def kl_indexer_backward(q_teacher: A, k_teacher: Array, q_student: Array, k_student: Array,
                        weight: Array, lse_teacher: Array, lse_student: Array, dkl: Array, *,
                        ctx: Context | None = ..., dq_student: Wanted | None = ...,
                        dk_student: Wanted | None = ..., dweight: Wanted | None = ...,
                        **fields: Unpack[_kl_indexer_backward]) -> tuple[A, A, A]: ...
@overload
def kl_indexer_backward(ctx: Context | None, q_teacher: Array, k_teacher: Array, q_student: Array,
                        k_student: Array, weight: Array, lse_teacher: Array, lse_student: Array,
                        dkl: Array, *, dq_student: Output = ..., dk_student: Output = ...,
                        dweight: Output = ..., **fields: Unpack[_kl_indexer_backward]) -> Any: ...
@overload
def kl_indexer_backward(q_teacher: Array, k_teacher: Array, q_student: Array, k_student: Array,
                        weight: Array, lse_teacher: Array, lse_student: Array, dkl: Array, *,
                        ctx: Context | None = ..., dq_student: Output = ...,
                        dk_student: Output = ..., dweight: Output = ...,
                        **fields: Unpack[_kl_indexer_backward]) -> Any: ...

class _kl_gather_forward(TypedDict, total=False):
    query_start: Array | None
    key_start: Array | None
    query_len: Array | None
    key_len: Array | None
    query_max: Int
    key_max: Int
    scale_teacher: Float
    scale_student: Float

@overload
def kl_gather_forward(ctx: Context | None, q_teacher: Array, k_teacher: Array, q_student: Array,
                      k_student: Array, index: Array, *, kl: None = ..., lse_teacher: None = ...,
                      lse_student: None = ..., **fields: Unpack[_kl_gather_forward]) -> None: ...
@overload
def kl_gather_forward(q_teacher: Array, k_teacher: Array, q_student: Array, k_student: Array,
                      index: Array, *, ctx: Context | None = ..., kl: None = ...,
                      lse_teacher: None = ..., lse_student: None = ...,
                      **fields: Unpack[_kl_gather_forward]) -> None: ...
@overload
def kl_gather_forward(ctx: Context | None, q_teacher: A, k_teacher: Array, q_student: Array,
                      k_student: Array, index: Array, *, kl: Wanted, lse_teacher: None = ...,
                      lse_student: None = ..., **fields: Unpack[_kl_gather_forward]) -> A: ...
@overload
def kl_gather_forward(q_teacher: A, k_teacher: Array, q_student: Array, k_student: Array,
                      index: Array, *, ctx: Context | None = ..., kl: Wanted,
                      lse_teacher: None = ..., lse_student: None = ...,
                      **fields: Unpack[_kl_gather_forward]) -> A: ...
@overload
def kl_gather_forward(ctx: Context | None, q_teacher: A, k_teacher: Array, q_student: Array,
                      k_student: Array, index: Array, *, kl: None = ..., lse_teacher: Wanted,
                      lse_student: None = ..., **fields: Unpack[_kl_gather_forward]) -> A: ...
@overload
def kl_gather_forward(q_teacher: A, k_teacher: Array, q_student: Array, k_student: Array,
                      index: Array, *, ctx: Context | None = ..., kl: None = ...,
                      lse_teacher: Wanted, lse_student: None = ...,
                      **fields: Unpack[_kl_gather_forward]) -> A: ...
@overload
def kl_gather_forward(ctx: Context | None, q_teacher: A, k_teacher: Array, q_student: Array,
                      k_student: Array, index: Array, *, kl: None = ..., lse_teacher: None = ...,
                      lse_student: Wanted, **fields: Unpack[_kl_gather_forward]) -> A: ...
@overload
def kl_gather_forward(q_teacher: A, k_teacher: Array, q_student: Array, k_student: Array,
                      index: Array, *, ctx: Context | None = ..., kl: None = ...,
                      lse_teacher: None = ..., lse_student: Wanted,
                      **fields: Unpack[_kl_gather_forward]) -> A: ...
@overload
def kl_gather_forward(ctx: Context | None, q_teacher: Array, k_teacher: Array, q_student: Array,
                      k_student: Array, index: Array, *, kl: Output = ...,
                      lse_teacher: Output = ..., lse_student: Output = ...,
                      **fields: Unpack[_kl_gather_forward]) -> Any: ...
@overload
def kl_gather_forward(q_teacher: Array, k_teacher: Array, q_student: Array, k_student: Array,
                      index: Array, *, ctx: Context | None = ..., kl: Output = ...,
                      lse_teacher: Output = ..., lse_student: Output = ...,
                      **fields: Unpack[_kl_gather_forward]) -> Any: ...

class _kl_gather_backward(TypedDict, total=False):
    query_start: Array | None
    key_start: Array | None
    query_len: Array | None
    key_len: Array | None
    query_max: Int
    key_max: Int
    scale_teacher: Float
    scale_student: Float

@overload
def kl_gather_backward(ctx: Context | None, q_teacher: A, k_teacher: Array, q_student: Array,
                       k_student: Array, index: Array, kl: Array, lse_teacher: Array,
                       lse_student: Array, dkl: Array, *, dq_student: Wanted | None = ...,
                       dk_student: Wanted | None = ..., dq_teacher: Wanted | None = ...,
                       dk_teacher: Wanted | None = ...,
                       **fields: Unpack[_kl_gather_backward]) -> tuple[A, A, A, A]: ...
@overload
def kl_gather_backward(q_teacher: A, k_teacher: Array, q_student: Array, k_student: Array,
                       index: Array, kl: Array, lse_teacher: Array, lse_student: Array, dkl: Array,
                       *, ctx: Context | None = ..., dq_student: Wanted | None = ...,
                       dk_student: Wanted | None = ..., dq_teacher: Wanted | None = ...,
                       dk_teacher: Wanted | None = ...,
                       **fields: Unpack[_kl_gather_backward]) -> tuple[A, A, A, A]: ...
@overload
def kl_gather_backward(ctx: Context | None, q_teacher: Array, k_teacher: Array, q_student: Array,
                       k_student: Array, index: Array, kl: Array, lse_teacher: Array,
                       lse_student: Array, dkl: Array, *, dq_student: Output = ...,
                       dk_student: Output = ..., dq_teacher: Output = ..., dk_teacher: Output = ...,
                       **fields: Unpack[_kl_gather_backward]) -> Any: ...
@overload
def kl_gather_backward(q_teacher: Array, k_teacher: Array, q_student: Array, k_student: Array,
                       index: Array, kl: Array, lse_teacher: Array, lse_student: Array, dkl: Array,
                       *, ctx: Context | None = ..., dq_student: Output = ...,
                       dk_student: Output = ..., dq_teacher: Output = ..., dk_teacher: Output = ...,
                       **fields: Unpack[_kl_gather_backward]) -> Any: ...

class _kl_pool_forward(TypedDict, total=False):
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
    block_keys: Int
    scale_teacher: Float
    scale_student: Float
    causal: Int
    pool: Literal["sum", "max"] | Pool | Int

@overload
def kl_pool_forward(ctx: Context | None, q_teacher: Array, k_teacher: Array, q_student: Array,
                    k_student: Array, *, kl: None = ..., lse_teacher: None = ...,
                    lse_student: None = ..., **fields: Unpack[_kl_pool_forward]) -> None: ...
@overload
def kl_pool_forward(q_teacher: Array, k_teacher: Array, q_student: Array, k_student: Array, *,
                    ctx: Context | None = ..., kl: None = ..., lse_teacher: None = ...,
                    lse_student: None = ..., **fields: Unpack[_kl_pool_forward]) -> None: ...
@overload
def kl_pool_forward(ctx: Context | None, q_teacher: A, k_teacher: Array, q_student: Array,
                    k_student: Array, *, kl: Wanted, lse_teacher: None = ...,
                    lse_student: None = ..., **fields: Unpack[_kl_pool_forward]) -> A: ...
@overload
def kl_pool_forward(q_teacher: A, k_teacher: Array, q_student: Array, k_student: Array, *,
                    ctx: Context | None = ..., kl: Wanted, lse_teacher: None = ...,
                    lse_student: None = ..., **fields: Unpack[_kl_pool_forward]) -> A: ...
@overload
def kl_pool_forward(ctx: Context | None, q_teacher: A, k_teacher: Array, q_student: Array,
                    k_student: Array, *, kl: None = ..., lse_teacher: Wanted,
                    lse_student: None = ..., **fields: Unpack[_kl_pool_forward]) -> A: ...
@overload
def kl_pool_forward(q_teacher: A, k_teacher: Array, q_student: Array, k_student: Array, *,
                    ctx: Context | None = ..., kl: None = ..., lse_teacher: Wanted,
                    lse_student: None = ..., **fields: Unpack[_kl_pool_forward]) -> A: ...
@overload
def kl_pool_forward(ctx: Context | None, q_teacher: A, k_teacher: Array, q_student: Array,
                    k_student: Array, *, kl: None = ..., lse_teacher: None = ...,
                    lse_student: Wanted, **fields: Unpack[_kl_pool_forward]) -> A: ...
@overload
def kl_pool_forward(q_teacher: A, k_teacher: Array, q_student: Array, k_student: Array, *,
                    ctx: Context | None = ..., kl: None = ..., lse_teacher: None = ...,
                    lse_student: Wanted, **fields: Unpack[_kl_pool_forward]) -> A: ...
@overload
def kl_pool_forward(ctx: Context | None, q_teacher: Array, k_teacher: Array, q_student: Array,
                    k_student: Array, *, kl: Output = ..., lse_teacher: Output = ...,
                    lse_student: Output = ..., **fields: Unpack[_kl_pool_forward]) -> Any: ...
@overload
def kl_pool_forward(q_teacher: Array, k_teacher: Array, q_student: Array, k_student: Array, *,
                    ctx: Context | None = ..., kl: Output = ..., lse_teacher: Output = ...,
                    lse_student: Output = ..., **fields: Unpack[_kl_pool_forward]) -> Any: ...

class _kl_pool_backward(TypedDict, total=False):
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
    block_keys: Int
    scale_teacher: Float
    scale_student: Float
    causal: Int
    pool: Literal["sum", "max"] | Pool | Int

@overload
def kl_pool_backward(ctx: Context | None, q_teacher: A, k_teacher: Array, q_student: Array,
                     k_student: Array, lse_teacher: Array, lse_student: Array, dkl: Array, *,
                     dq_student: Wanted | None = ..., dk_student: Wanted | None = ...,
                     **fields: Unpack[_kl_pool_backward]) -> tuple[A, A]: ...
@overload
def kl_pool_backward(q_teacher: A, k_teacher: Array, q_student: Array, k_student: Array,
                     lse_teacher: Array, lse_student: Array, dkl: Array, *,
                     ctx: Context | None = ..., dq_student: Wanted | None = ...,
                     dk_student: Wanted | None = ...,
                     **fields: Unpack[_kl_pool_backward]) -> tuple[A, A]: ...
@overload
def kl_pool_backward(ctx: Context | None, q_teacher: Array, k_teacher: Array, q_student: Array,
                     k_student: Array, lse_teacher: Array, lse_student: Array, dkl: Array, *,
                     dq_student: Output = ..., dk_student: Output = ...,
                     **fields: Unpack[_kl_pool_backward]) -> Any: ...
@overload
def kl_pool_backward(q_teacher: Array, k_teacher: Array, q_student: Array, k_student: Array,
                     lse_teacher: Array, lse_student: Array, dkl: Array, *,
                     ctx: Context | None = ..., dq_student: Output = ..., dk_student: Output = ...,
                     **fields: Unpack[_kl_pool_backward]) -> Any: ...

class _multi_token_forward(TypedDict, total=False):
    mix_before: Array | None
    mix_after: Array | None
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

@overload
def multi_token_forward(ctx: Context | None, q: A, k: Array, v: Array, weight: Array, *,
                        o: Wanted | None = ..., lse: None = ...,
                        **fields: Unpack[_multi_token_forward]) -> A: ...
@overload
def multi_token_forward(q: A, k: Array, v: Array, weight: Array, *, ctx: Context | None = ...,
                        o: Wanted | None = ..., lse: None = ...,
                        **fields: Unpack[_multi_token_forward]) -> A: ...
@overload
def multi_token_forward(ctx: Context | None, q: A, k: Array, v: Array, weight: Array, *,
                        o: Wanted | None = ..., lse: Wanted,
                        **fields: Unpack[_multi_token_forward]) -> tuple[A, A]: ...
@overload
def multi_token_forward(q: A, k: Array, v: Array, weight: Array, *, ctx: Context | None = ...,
                        o: Wanted | None = ..., lse: Wanted,
                        **fields: Unpack[_multi_token_forward]) -> tuple[A, A]: ...
@overload
def multi_token_forward(ctx: Context | None, q: Array, k: Array, v: Array, weight: Array, *,
                        o: Output = ..., lse: Output = ...,
                        **fields: Unpack[_multi_token_forward]) -> Any: ...
@overload
def multi_token_forward(q: Array, k: Array, v: Array, weight: Array, *, ctx: Context | None = ...,
                        o: Output = ..., lse: Output = ...,
                        **fields: Unpack[_multi_token_forward]) -> Any: ...

class _multi_token_backward(TypedDict, total=False):
    mix_before: Array | None
    mix_after: Array | None
    query_start: Array | None
    key_start: Array | None
    query_len: Array | None
    key_len: Array | None
    query_max: Int
    key_max: Int
    history: Int
    scale: Float
    causal: Int

@overload
def multi_token_backward(ctx: Context | None, q: A, k: Array, v: Array, weight: Array, lse: Array,
                         dout: Array, *, dq: Wanted | None = ..., dk: Wanted | None = ...,
                         dv: Wanted | None = ..., dweight: Wanted | None = ...,
                         dmix_before: None = ..., dmix_after: None = ...,
                         **fields: Unpack[_multi_token_backward]) -> tuple[A, A, A, A]: ...
@overload
def multi_token_backward(q: A, k: Array, v: Array, weight: Array, lse: Array, dout: Array, *,
                         ctx: Context | None = ..., dq: Wanted | None = ...,
                         dk: Wanted | None = ..., dv: Wanted | None = ...,
                         dweight: Wanted | None = ..., dmix_before: None = ...,
                         dmix_after: None = ...,
                         **fields: Unpack[_multi_token_backward]) -> tuple[A, A, A, A]: ...
@overload
def multi_token_backward(ctx: Context | None, q: A, k: Array, v: Array, weight: Array, lse: Array,
                         dout: Array, *, dq: Wanted | None = ..., dk: Wanted | None = ...,
                         dv: Wanted | None = ..., dweight: Wanted | None = ..., dmix_before: Wanted,
                         dmix_after: None = ...,
                         **fields: Unpack[_multi_token_backward]) -> tuple[A, A, A, A, A]: ...
@overload
def multi_token_backward(q: A, k: Array, v: Array, weight: Array, lse: Array, dout: Array, *,
                         ctx: Context | None = ..., dq: Wanted | None = ...,
                         dk: Wanted | None = ..., dv: Wanted | None = ...,
                         dweight: Wanted | None = ..., dmix_before: Wanted, dmix_after: None = ...,
                         **fields: Unpack[_multi_token_backward]) -> tuple[A, A, A, A, A]: ...
@overload
def multi_token_backward(ctx: Context | None, q: A, k: Array, v: Array, weight: Array, lse: Array,
                         dout: Array, *, dq: Wanted | None = ..., dk: Wanted | None = ...,
                         dv: Wanted | None = ..., dweight: Wanted | None = ...,
                         dmix_before: None = ..., dmix_after: Wanted,
                         **fields: Unpack[_multi_token_backward]) -> tuple[A, A, A, A, A]: ...
@overload
def multi_token_backward(q: A, k: Array, v: Array, weight: Array, lse: Array, dout: Array, *,
                         ctx: Context | None = ..., dq: Wanted | None = ...,
                         dk: Wanted | None = ..., dv: Wanted | None = ...,
                         dweight: Wanted | None = ..., dmix_before: None = ..., dmix_after: Wanted,
                         **fields: Unpack[_multi_token_backward]) -> tuple[A, A, A, A, A]: ...
@overload
def multi_token_backward(ctx: Context | None, q: A, k: Array, v: Array, weight: Array, lse: Array,
                         dout: Array, *, dq: Wanted | None = ..., dk: Wanted | None = ...,
                         dv: Wanted | None = ..., dweight: Wanted | None = ..., dmix_before: Wanted,
                         dmix_after: Wanted, **fields: Unpack[_multi_token_backward]) -> tuple[A, A,
                         A, A, A, A]: ...
@overload
def multi_token_backward(q: A, k: Array, v: Array, weight: Array, lse: Array, dout: Array, *,
                         ctx: Context | None = ..., dq: Wanted | None = ...,
                         dk: Wanted | None = ..., dv: Wanted | None = ...,
                         dweight: Wanted | None = ..., dmix_before: Wanted, dmix_after: Wanted,
                         **fields: Unpack[_multi_token_backward]) -> tuple[A, A, A, A, A, A]: ...
@overload
def multi_token_backward(ctx: Context | None, q: Array, k: Array, v: Array, weight: Array,
                         lse: Array, dout: Array, *, dq: Output = ..., dk: Output = ...,
                         dv: Output = ..., dweight: Output = ..., dmix_before: Output = ...,
                         dmix_after: Output = ...,
                         **fields: Unpack[_multi_token_backward]) -> Any: ...
@overload
def multi_token_backward(q: Array, k: Array, v: Array, weight: Array, lse: Array, dout: Array, *,
                         ctx: Context | None = ..., dq: Output = ..., dk: Output = ...,
                         dv: Output = ..., dweight: Output = ..., dmix_before: Output = ...,
                         dmix_after: Output = ...,
                         **fields: Unpack[_multi_token_backward]) -> Any: ...

class _group_norm_forward(TypedDict, total=False):
    gain: Array | None
    query_len: Array | None
    factor: Float
    eps: Float

@overload
def group_norm_forward(ctx: Context | None, x: A, *, y: Wanted | None = ...,
                       **fields: Unpack[_group_norm_forward]) -> A: ...
@overload
def group_norm_forward(x: A, *, ctx: Context | None = ..., y: Wanted | None = ...,
                       **fields: Unpack[_group_norm_forward]) -> A: ...
@overload
def group_norm_forward(ctx: Context | None, x: Array, *, y: Output = ...,
                       **fields: Unpack[_group_norm_forward]) -> Any: ...
@overload
def group_norm_forward(x: Array, *, ctx: Context | None = ..., y: Output = ...,
                       **fields: Unpack[_group_norm_forward]) -> Any: ...

class _group_norm_backward(TypedDict, total=False):
    gain: Array | None
    query_len: Array | None
    factor: Float
    eps: Float

@overload
def group_norm_backward(ctx: Context | None, x: A, dy: Array, *, dx: Wanted | None = ...,
                        dgain: None = ..., **fields: Unpack[_group_norm_backward]) -> A: ...
@overload
def group_norm_backward(x: A, dy: Array, *, ctx: Context | None = ..., dx: Wanted | None = ...,
                        dgain: None = ..., **fields: Unpack[_group_norm_backward]) -> A: ...
@overload
def group_norm_backward(ctx: Context | None, x: A, dy: Array, *, dx: Wanted | None = ...,
                        dgain: Wanted, **fields: Unpack[_group_norm_backward]) -> tuple[A, A]: ...
@overload
def group_norm_backward(x: A, dy: Array, *, ctx: Context | None = ..., dx: Wanted | None = ...,
                        dgain: Wanted, **fields: Unpack[_group_norm_backward]) -> tuple[A, A]: ...
@overload
def group_norm_backward(ctx: Context | None, x: Array, dy: Array, *, dx: Output = ...,
                        dgain: Output = ..., **fields: Unpack[_group_norm_backward]) -> Any: ...
@overload
def group_norm_backward(x: Array, dy: Array, *, ctx: Context | None = ..., dx: Output = ...,
                        dgain: Output = ..., **fields: Unpack[_group_norm_backward]) -> Any: ...

class _norm_gate_forward(TypedDict, total=False):
    gate: Array | None
    add_before: Array | None
    add_after: Array | None
    weight: Array | None
    bias: Array | None
    query_len: Array | None
    group: Int
    factor: Float
    eps: Float
    norm: Literal["rms", "layer", "l2", "none"] | NormGateNorm | Int
    act: Literal["silu", "sigmoid", "none"] | NormGateAct | Int
    gate_first: Int

@overload
def norm_gate_forward(ctx: Context | None, x: A, *, y: Wanted | None = ...,
                      **fields: Unpack[_norm_gate_forward]) -> A: ...
@overload
def norm_gate_forward(x: A, *, ctx: Context | None = ..., y: Wanted | None = ...,
                      **fields: Unpack[_norm_gate_forward]) -> A: ...
@overload
def norm_gate_forward(ctx: Context | None, x: Array, *, y: Output = ...,
                      **fields: Unpack[_norm_gate_forward]) -> Any: ...
@overload
def norm_gate_forward(x: Array, *, ctx: Context | None = ..., y: Output = ...,
                      **fields: Unpack[_norm_gate_forward]) -> Any: ...

class _norm_gate_backward(TypedDict, total=False):
    gate: Array | None
    add_before: Array | None
    weight: Array | None
    bias: Array | None
    query_len: Array | None
    group: Int
    factor: Float
    eps: Float
    norm: Literal["rms", "layer", "l2", "none"] | NormGateNorm | Int
    act: Literal["silu", "sigmoid", "none"] | NormGateAct | Int
    gate_first: Int

@overload
def norm_gate_backward(ctx: Context | None, x: A, dy: Array, *, dx: Wanted | None = ...,
                       dgate: None = ..., dweight: None = ..., dbias: None = ...,
                       **fields: Unpack[_norm_gate_backward]) -> A: ...
@overload
def norm_gate_backward(x: A, dy: Array, *, ctx: Context | None = ..., dx: Wanted | None = ...,
                       dgate: None = ..., dweight: None = ..., dbias: None = ...,
                       **fields: Unpack[_norm_gate_backward]) -> A: ...
@overload
def norm_gate_backward(ctx: Context | None, x: A, dy: Array, *, dx: Wanted | None = ...,
                       dgate: Wanted, dweight: None = ..., dbias: None = ...,
                       **fields: Unpack[_norm_gate_backward]) -> tuple[A, A]: ...
@overload
def norm_gate_backward(x: A, dy: Array, *, ctx: Context | None = ..., dx: Wanted | None = ...,
                       dgate: Wanted, dweight: None = ..., dbias: None = ...,
                       **fields: Unpack[_norm_gate_backward]) -> tuple[A, A]: ...
@overload
def norm_gate_backward(ctx: Context | None, x: A, dy: Array, *, dx: Wanted | None = ...,
                       dgate: None = ..., dweight: Wanted, dbias: None = ...,
                       **fields: Unpack[_norm_gate_backward]) -> tuple[A, A]: ...
@overload
def norm_gate_backward(x: A, dy: Array, *, ctx: Context | None = ..., dx: Wanted | None = ...,
                       dgate: None = ..., dweight: Wanted, dbias: None = ...,
                       **fields: Unpack[_norm_gate_backward]) -> tuple[A, A]: ...
@overload
def norm_gate_backward(ctx: Context | None, x: A, dy: Array, *, dx: Wanted | None = ...,
                       dgate: None = ..., dweight: None = ..., dbias: Wanted,
                       **fields: Unpack[_norm_gate_backward]) -> tuple[A, A]: ...
@overload
def norm_gate_backward(x: A, dy: Array, *, ctx: Context | None = ..., dx: Wanted | None = ...,
                       dgate: None = ..., dweight: None = ..., dbias: Wanted,
                       **fields: Unpack[_norm_gate_backward]) -> tuple[A, A]: ...
@overload
def norm_gate_backward(ctx: Context | None, x: Array, dy: Array, *, dx: Output = ...,
                       dgate: Output = ..., dweight: Output = ..., dbias: Output = ...,
                       **fields: Unpack[_norm_gate_backward]) -> Any: ...
@overload
def norm_gate_backward(x: Array, dy: Array, *, ctx: Context | None = ..., dx: Output = ...,
                       dgate: Output = ..., dweight: Output = ..., dbias: Output = ...,
                       **fields: Unpack[_norm_gate_backward]) -> Any: ...

class _sparse_forward(TypedDict, total=False):
    q_value: Array | None
    index: Array | None
    index_count: Array | None
    index_bias: Array | None
    column: Array | None
    column_count: Array | None
    row_begin: Array | None
    key_begin: Array | None
    tile: Array | None
    tile_bits: Array | None
    sink_logit: Array | None
    head_map: Array | None
    skip_head: Array | None
    mass: Array | None
    k_scale: Array | None
    v_scale: Array | None
    context_len: Array | None
    query_start: Array | None
    key_start: Array | None
    query_len: Array | None
    key_len: Array | None
    page_table: Array | None
    cache_row: Array | None
    query_max: Int
    key_max: Int
    window_left: Int
    window_right: Int
    sink_keys: Int
    key_step: Int
    key_shift: Int
    first_keys: Int
    last_keys: Int
    scale: Float
    softcap: Float
    skip_margin: Float
    causal: Int
    splits: Int
    block_rows: Int
    block_keys: Int
    entry_keys: Int

@overload
def sparse_forward(ctx: Context | None, q: A, k: Array, v: Array, *, o: Wanted | None = ...,
                   lse: None = ..., skipped: None = ...,
                   **fields: Unpack[_sparse_forward]) -> A: ...
@overload
def sparse_forward(q: A, k: Array, v: Array, *, ctx: Context | None = ..., o: Wanted | None = ...,
                   lse: None = ..., skipped: None = ...,
                   **fields: Unpack[_sparse_forward]) -> A: ...
@overload
def sparse_forward(ctx: Context | None, q: A, k: Array, v: Array, *, o: Wanted | None = ...,
                   lse: Wanted, skipped: None = ..., **fields: Unpack[_sparse_forward]) -> tuple[A,
                   A]: ...
@overload
def sparse_forward(q: A, k: Array, v: Array, *, ctx: Context | None = ..., o: Wanted | None = ...,
                   lse: Wanted, skipped: None = ..., **fields: Unpack[_sparse_forward]) -> tuple[A,
                   A]: ...
@overload
def sparse_forward(ctx: Context | None, q: A, k: Array, v: Array, *, o: Wanted | None = ...,
                   lse: None = ..., skipped: Wanted, **fields: Unpack[_sparse_forward]) -> tuple[A,
                   Any]: ...
@overload
def sparse_forward(q: A, k: Array, v: Array, *, ctx: Context | None = ..., o: Wanted | None = ...,
                   lse: None = ..., skipped: Wanted, **fields: Unpack[_sparse_forward]) -> tuple[A,
                   Any]: ...
@overload
def sparse_forward(ctx: Context | None, q: A, k: Array, v: Array, *, o: Wanted | None = ...,
                   lse: Wanted, skipped: Wanted, **fields: Unpack[_sparse_forward]) -> tuple[A, A,
                   Any]: ...
@overload
def sparse_forward(q: A, k: Array, v: Array, *, ctx: Context | None = ..., o: Wanted | None = ...,
                   lse: Wanted, skipped: Wanted, **fields: Unpack[_sparse_forward]) -> tuple[A, A,
                   Any]: ...
@overload
def sparse_forward(ctx: Context | None, q: Array, k: Array, v: Array, *, o: Output = ...,
                   lse: Output = ..., skipped: Output = ...,
                   **fields: Unpack[_sparse_forward]) -> Any: ...
@overload
def sparse_forward(q: Array, k: Array, v: Array, *, ctx: Context | None = ..., o: Output = ...,
                   lse: Output = ..., skipped: Output = ...,
                   **fields: Unpack[_sparse_forward]) -> Any: ...

class _sparse_backward(TypedDict, total=False):
    index: Array | None
    index_count: Array | None
    row_begin: Array | None
    key_begin: Array | None
    tile: Array | None
    tile_bits: Array | None
    sink_logit: Array | None
    query_start: Array | None
    key_start: Array | None
    query_len: Array | None
    key_len: Array | None
    dlse: Array | None
    query_max: Int
    key_max: Int
    window_left: Int
    window_right: Int
    sink_keys: Int
    first_keys: Int
    last_keys: Int
    scale: Float
    softcap: Float
    causal: Int
    block_rows: Int
    block_keys: Int
    entry_keys: Int
    nondeterministic: Int

@overload
def sparse_backward(ctx: Context | None, q: A, k: Array, v: Array, o: Array, lse: Array,
                    dout: Array, *, dq: Wanted | None = ..., dk: Wanted | None = ...,
                    dv: Wanted | None = ..., dsink_logit: None = ...,
                    **fields: Unpack[_sparse_backward]) -> tuple[A, A, A]: ...
@overload
def sparse_backward(q: A, k: Array, v: Array, o: Array, lse: Array, dout: Array, *,
                    ctx: Context | None = ..., dq: Wanted | None = ..., dk: Wanted | None = ...,
                    dv: Wanted | None = ..., dsink_logit: None = ...,
                    **fields: Unpack[_sparse_backward]) -> tuple[A, A, A]: ...
@overload
def sparse_backward(ctx: Context | None, q: A, k: Array, v: Array, o: Array, lse: Array,
                    dout: Array, *, dq: Wanted | None = ..., dk: Wanted | None = ...,
                    dv: Wanted | None = ..., dsink_logit: Wanted,
                    **fields: Unpack[_sparse_backward]) -> tuple[A, A, A, A]: ...
@overload
def sparse_backward(q: A, k: Array, v: Array, o: Array, lse: Array, dout: Array, *,
                    ctx: Context | None = ..., dq: Wanted | None = ..., dk: Wanted | None = ...,
                    dv: Wanted | None = ..., dsink_logit: Wanted,
                    **fields: Unpack[_sparse_backward]) -> tuple[A, A, A, A]: ...
@overload
def sparse_backward(ctx: Context | None, q: Array, k: Array, v: Array, o: Array, lse: Array,
                    dout: Array, *, dq: Output = ..., dk: Output = ..., dv: Output = ...,
                    dsink_logit: Output = ..., **fields: Unpack[_sparse_backward]) -> Any: ...
@overload
def sparse_backward(q: Array, k: Array, v: Array, o: Array, lse: Array, dout: Array, *,
                    ctx: Context | None = ..., dq: Output = ..., dk: Output = ..., dv: Output = ...,
                    dsink_logit: Output = ..., **fields: Unpack[_sparse_backward]) -> Any: ...

class _select_block(TypedDict, total=False):
    row: Array | None
    column: Array | None
    column_low: Array | None
    score: Array | None
    column_weight: Array | None
    row_lse: Array | None
    block_mask: Array | None
    forced: Array | None
    row_forced: Array | None
    column_forced: Array | None
    count_head: Array | None
    cover_head: Array | None
    query_start: Array | None
    key_start: Array | None
    query_len: Array | None
    key_len: Array | None
    b: Int | None
    x: Int | None
    n: Int | None
    keep: Int | None
    y: Int | None
    query_max: Int
    key_max: Int
    count: Int
    min_keep: Int
    max_keep: Int
    min_extra: Int
    force_first: Int
    force_previous: Int
    force_last: Int
    remap_step: Int
    remap_span: Int
    scale: Float
    ratio: Float
    cover: Float
    threshold: Float
    measure: Literal["dot", "box"] | SelectMeasure | Int
    normalise: Literal["none", "softmax", "weighted", "minmax", "max"] | SelectNormalise | Int
    reduce: Literal["none", "sum", "mean", "max"] | SelectReduce | Int
    reduce_raw: Int
    rule: (Literal["top_k", "top_p_ge", "top_p_gt", "top_p_under", "above", "at_least", "none"] |
        SelectRule | Int)
    scope: Literal["row", "head", "all"] | SelectScope | Int
    ratio_up: Int
    forced_count: Int
    force_own: Int
    complete: Int
    causal: Int
    block_rows: Int
    block_keys: Int

@overload
def select_block(ctx: Context | None = ..., *, index: None = ..., index_count: None = ...,
                 kept_score: None = ..., kept_mass: None = ..., score_out: None = ...,
                 **fields: Unpack[_select_block]) -> None: ...
@overload
def select_block(ctx: Context | None = ..., *, index: Output = ..., index_count: Output = ...,
                 kept_score: Output = ..., kept_mass: Output = ..., score_out: Output = ...,
                 **fields: Unpack[_select_block]) -> Any: ...

class _pool_forward(TypedDict, total=False):
    similar_least: Array | None
    rank_score: Array | None
    gate: Array | None
    bias: Array | None
    previous: Array | None
    key_begin: Array | None
    key_start: Array | None
    key_len: Array | None
    old_len: Array | None
    page_table: Array | None
    cache_row: Array | None
    b: Int | None
    u: Int | None
    h: Int | None
    f: Int | None
    key_max: Int
    block: Int
    step: Int
    ranked: Int
    want: Int
    complete: Int
    overlap: Int

@overload
def pool_forward(ctx: Context | None, x: A, *, y: Wanted | None = ..., similar: None = ...,
                 dissimilar: None = ..., **fields: Unpack[_pool_forward]) -> A: ...
@overload
def pool_forward(x: A, *, ctx: Context | None = ..., y: Wanted | None = ..., similar: None = ...,
                 dissimilar: None = ..., **fields: Unpack[_pool_forward]) -> A: ...
@overload
def pool_forward(ctx: Context | None, x: A, *, y: Wanted | None = ..., similar: Wanted,
                 dissimilar: None = ..., **fields: Unpack[_pool_forward]) -> tuple[A, A]: ...
@overload
def pool_forward(x: A, *, ctx: Context | None = ..., y: Wanted | None = ..., similar: Wanted,
                 dissimilar: None = ..., **fields: Unpack[_pool_forward]) -> tuple[A, A]: ...
@overload
def pool_forward(ctx: Context | None, x: A, *, y: Wanted | None = ..., similar: None = ...,
                 dissimilar: Wanted, **fields: Unpack[_pool_forward]) -> tuple[A, Any]: ...
@overload
def pool_forward(x: A, *, ctx: Context | None = ..., y: Wanted | None = ..., similar: None = ...,
                 dissimilar: Wanted, **fields: Unpack[_pool_forward]) -> tuple[A, Any]: ...
@overload
def pool_forward(ctx: Context | None, x: A, *, y: Wanted | None = ..., similar: Wanted,
                 dissimilar: Wanted, **fields: Unpack[_pool_forward]) -> tuple[A, A, Any]: ...
@overload
def pool_forward(x: A, *, ctx: Context | None = ..., y: Wanted | None = ..., similar: Wanted,
                 dissimilar: Wanted, **fields: Unpack[_pool_forward]) -> tuple[A, A, Any]: ...
@overload
def pool_forward(ctx: Context | None, x: Array, *, y: Output = ..., similar: Output = ...,
                 dissimilar: Output = ..., **fields: Unpack[_pool_forward]) -> Any: ...
@overload
def pool_forward(x: Array, *, ctx: Context | None = ..., y: Output = ..., similar: Output = ...,
                 dissimilar: Output = ..., **fields: Unpack[_pool_forward]) -> Any: ...

class _pool_backward(TypedDict, total=False):
    gate: Array | None
    bias: Array | None
    key_begin: Array | None
    key_start: Array | None
    key_len: Array | None
    key_max: Int
    block: Int
    step: Int
    want: Int
    complete: Int
    overlap: Int

@overload
def pool_backward(ctx: Context | None, x: A, dy: Array, *, dx: Wanted | None = ...,
                  dgate: None = ..., dbias: None = ..., **fields: Unpack[_pool_backward]) -> A: ...
@overload
def pool_backward(x: A, dy: Array, *, ctx: Context | None = ..., dx: Wanted | None = ...,
                  dgate: None = ..., dbias: None = ..., **fields: Unpack[_pool_backward]) -> A: ...
@overload
def pool_backward(ctx: Context | None, x: A, dy: Array, *, dx: Wanted | None = ..., dgate: Wanted,
                  dbias: None = ..., **fields: Unpack[_pool_backward]) -> tuple[A, A]: ...
@overload
def pool_backward(x: A, dy: Array, *, ctx: Context | None = ..., dx: Wanted | None = ...,
                  dgate: Wanted, dbias: None = ..., **fields: Unpack[_pool_backward]) -> tuple[A,
                  A]: ...
@overload
def pool_backward(ctx: Context | None, x: A, dy: Array, *, dx: Wanted | None = ...,
                  dgate: None = ..., dbias: Wanted, **fields: Unpack[_pool_backward]) -> tuple[A,
                  A]: ...
@overload
def pool_backward(x: A, dy: Array, *, ctx: Context | None = ..., dx: Wanted | None = ...,
                  dgate: None = ..., dbias: Wanted, **fields: Unpack[_pool_backward]) -> tuple[A,
                  A]: ...
@overload
def pool_backward(ctx: Context | None, x: A, dy: Array, *, dx: Wanted | None = ..., dgate: Wanted,
                  dbias: Wanted, **fields: Unpack[_pool_backward]) -> tuple[A, A, A]: ...
@overload
def pool_backward(x: A, dy: Array, *, ctx: Context | None = ..., dx: Wanted | None = ...,
                  dgate: Wanted, dbias: Wanted, **fields: Unpack[_pool_backward]) -> tuple[A, A,
                  A]: ...
@overload
def pool_backward(ctx: Context | None, x: Array, dy: Array, *, dx: Output = ...,
                  dgate: Output = ..., dbias: Output = ...,
                  **fields: Unpack[_pool_backward]) -> Any: ...
@overload
def pool_backward(x: Array, dy: Array, *, ctx: Context | None = ..., dx: Output = ...,
                  dgate: Output = ..., dbias: Output = ...,
                  **fields: Unpack[_pool_backward]) -> Any: ...

class _probe_forward(TypedDict, total=False):
    lse_in: Array | None
    query_position: Array | None
    query_start: Array | None
    key_start: Array | None
    query_len: Array | None
    key_len: Array | None
    page_table: Array | None
    cache_row: Array | None
    context_len: Array | None
    key_b: Int | None
    x: Int | None
    t: Int | None
    r: Int | None
    keys: Int | None
    n: Int | None
    u: Int | None
    query_max: Int
    key_max: Int
    window_left: Int
    window_right: Int
    sink_keys: Int
    key_step: Int
    key_shift: Int
    group_stride: Int
    scale: Float
    causal: Int
    block_rows: Int
    block_keys: Int
    reversed: Int
    reduce: Literal["sum", "mean", "max"] | ProbeReduce | Int

@overload
def probe_forward(ctx: Context | None, q: Array, k: Array, *, lse: None = ...,
                  column_sum: None = ..., diagonal_sum: None = ..., block_sum: None = ...,
                  block_max: None = ..., **fields: Unpack[_probe_forward]) -> None: ...
@overload
def probe_forward(q: Array, k: Array, *, ctx: Context | None = ..., lse: None = ...,
                  column_sum: None = ..., diagonal_sum: None = ..., block_sum: None = ...,
                  block_max: None = ..., **fields: Unpack[_probe_forward]) -> None: ...
@overload
def probe_forward(ctx: Context | None, q: Array, k: Array, *, lse: Output = ...,
                  column_sum: Output = ..., diagonal_sum: Output = ..., block_sum: Output = ...,
                  block_max: Output = ..., **fields: Unpack[_probe_forward]) -> Any: ...
@overload
def probe_forward(q: Array, k: Array, *, ctx: Context | None = ..., lse: Output = ...,
                  column_sum: Output = ..., diagonal_sum: Output = ..., block_sum: Output = ...,
                  block_max: Output = ..., **fields: Unpack[_probe_forward]) -> Any: ...

class _combine_forward(TypedDict, total=False):
    x2: Array | None
    x3: Array | None
    x4: Array | None
    coarse: Array | None
    gate: Array | None
    gate2: Array | None
    gate3: Array | None
    gate4: Array | None
    gate_coarse: Array | None
    row_begin: Array | None
    query_len: Array | None
    block_rows: Int
    coefficient: Float
    coefficient2: Float
    coefficient3: Float
    coefficient4: Float
    coefficient_coarse: Float
    gate_act: Literal["none", "sigmoid", "complement", "sigmoid_complement"] | Gate | Int
    gate2_act: Literal["none", "sigmoid", "complement", "sigmoid_complement"] | Gate | Int
    gate3_act: Literal["none", "sigmoid", "complement", "sigmoid_complement"] | Gate | Int
    gate4_act: Literal["none", "sigmoid", "complement", "sigmoid_complement"] | Gate | Int
    gate_coarse_act: Literal["none", "sigmoid", "complement", "sigmoid_complement"] | Gate | Int

@overload
def combine_forward(ctx: Context | None, x: A, *, y: Wanted | None = ...,
                    **fields: Unpack[_combine_forward]) -> A: ...
@overload
def combine_forward(x: A, *, ctx: Context | None = ..., y: Wanted | None = ...,
                    **fields: Unpack[_combine_forward]) -> A: ...
@overload
def combine_forward(ctx: Context | None, x: Array, *, y: Output = ...,
                    **fields: Unpack[_combine_forward]) -> Any: ...
@overload
def combine_forward(x: Array, *, ctx: Context | None = ..., y: Output = ...,
                    **fields: Unpack[_combine_forward]) -> Any: ...

class _combine_backward(TypedDict, total=False):
    x2: Array | None
    x3: Array | None
    x4: Array | None
    coarse: Array | None
    gate: Array | None
    gate2: Array | None
    gate3: Array | None
    gate4: Array | None
    gate_coarse: Array | None
    row_begin: Array | None
    query_len: Array | None
    block_rows: Int
    coefficient: Float
    coefficient2: Float
    coefficient3: Float
    coefficient4: Float
    coefficient_coarse: Float
    gate_act: Literal["none", "sigmoid", "complement", "sigmoid_complement"] | Gate | Int
    gate2_act: Literal["none", "sigmoid", "complement", "sigmoid_complement"] | Gate | Int
    gate3_act: Literal["none", "sigmoid", "complement", "sigmoid_complement"] | Gate | Int
    gate4_act: Literal["none", "sigmoid", "complement", "sigmoid_complement"] | Gate | Int
    gate_coarse_act: Literal["none", "sigmoid", "complement", "sigmoid_complement"] | Gate | Int

@overload
def combine_backward(ctx: Context | None, x: A, dy: Array, *, dx: Wanted | None = ...,
                     dx2: None = ..., dx3: None = ..., dx4: None = ..., dcoarse: None = ...,
                     dgate: None = ..., dgate2: None = ..., dgate3: None = ..., dgate4: None = ...,
                     dgate_coarse: None = ..., **fields: Unpack[_combine_backward]) -> A: ...
@overload
def combine_backward(x: A, dy: Array, *, ctx: Context | None = ..., dx: Wanted | None = ...,
                     dx2: None = ..., dx3: None = ..., dx4: None = ..., dcoarse: None = ...,
                     dgate: None = ..., dgate2: None = ..., dgate3: None = ..., dgate4: None = ...,
                     dgate_coarse: None = ..., **fields: Unpack[_combine_backward]) -> A: ...
@overload
def combine_backward(ctx: Context | None, x: Array, dy: Array, *, dx: Output = ...,
                     dx2: Output = ..., dx3: Output = ..., dx4: Output = ..., dcoarse: Output = ...,
                     dgate: Output = ..., dgate2: Output = ..., dgate3: Output = ...,
                     dgate4: Output = ..., dgate_coarse: Output = ...,
                     **fields: Unpack[_combine_backward]) -> Any: ...
@overload
def combine_backward(x: Array, dy: Array, *, ctx: Context | None = ..., dx: Output = ...,
                     dx2: Output = ..., dx3: Output = ..., dx4: Output = ..., dcoarse: Output = ...,
                     dgate: Output = ..., dgate2: Output = ..., dgate3: Output = ...,
                     dgate4: Output = ..., dgate_coarse: Output = ...,
                     **fields: Unpack[_combine_backward]) -> Any: ...

class _compare_forward(TypedDict, total=False):
    query_len: Array | None
    measure: Literal["x_compare_mse", "x_compare_jsd"] | CompareMeasure | Int

@overload
def compare_forward(ctx: Context | None, reference: Array, candidate: Array, *,
                    distance: None = ..., best: None = ...,
                    **fields: Unpack[_compare_forward]) -> None: ...
@overload
def compare_forward(reference: Array, candidate: Array, *, ctx: Context | None = ...,
                    distance: None = ..., best: None = ...,
                    **fields: Unpack[_compare_forward]) -> None: ...
@overload
def compare_forward(ctx: Context | None, reference: A, candidate: Array, *, distance: Wanted,
                    best: None = ..., **fields: Unpack[_compare_forward]) -> A: ...
@overload
def compare_forward(reference: A, candidate: Array, *, ctx: Context | None = ..., distance: Wanted,
                    best: None = ..., **fields: Unpack[_compare_forward]) -> A: ...
@overload
def compare_forward(ctx: Context | None, reference: Array, candidate: Array, *,
                    distance: None = ..., best: Wanted,
                    **fields: Unpack[_compare_forward]) -> Any: ...
@overload
def compare_forward(reference: Array, candidate: Array, *, ctx: Context | None = ...,
                    distance: None = ..., best: Wanted,
                    **fields: Unpack[_compare_forward]) -> Any: ...
@overload
def compare_forward(ctx: Context | None, reference: A, candidate: Array, *, distance: Wanted,
                    best: Wanted, **fields: Unpack[_compare_forward]) -> tuple[A, Any]: ...
@overload
def compare_forward(reference: A, candidate: Array, *, ctx: Context | None = ..., distance: Wanted,
                    best: Wanted, **fields: Unpack[_compare_forward]) -> tuple[A, Any]: ...
@overload
def compare_forward(ctx: Context | None, reference: Array, candidate: Array, *,
                    distance: Output = ..., best: Output = ...,
                    **fields: Unpack[_compare_forward]) -> Any: ...
@overload
def compare_forward(reference: Array, candidate: Array, *, ctx: Context | None = ...,
                    distance: Output = ..., best: Output = ...,
                    **fields: Unpack[_compare_forward]) -> Any: ...

class _cache_step(TypedDict, total=False):
    score: Array | None
    k_new: Array | None
    v_new: Array | None
    mass: Array | None
    query_len: Array | None
    old_len: Array | None
    capacity: Array | None
    sink_keys: Int
    recent: Int
    heavy: Int
    rule: Literal["ring", "heavy"] | CacheRule | Int

@overload
def cache_step(ctx: Context | None, k: Array, v: Array, position: Array, count: Array,
               **fields: Unpack[_cache_step]) -> None: ...
@overload
def cache_step(k: Array, v: Array, position: Array, count: Array, *, ctx: Context | None = ...,
               **fields: Unpack[_cache_step]) -> None: ...

class _evict_forward(TypedDict, total=False):
    query_len: Array | None
    key_len: Array | None
    keep: Int | None
    window: Int
    width: Int
    scale: Float

@overload
def evict_forward(ctx: Context | None, q: A, k: Array, v: Array, *, k_kept: Wanted | None = ...,
                  v_kept: Wanted | None = ..., index: None = ..., index_count: None = ...,
                  **fields: Unpack[_evict_forward]) -> tuple[A, A]: ...
@overload
def evict_forward(q: A, k: Array, v: Array, *, ctx: Context | None = ...,
                  k_kept: Wanted | None = ..., v_kept: Wanted | None = ..., index: None = ...,
                  index_count: None = ..., **fields: Unpack[_evict_forward]) -> tuple[A, A]: ...
@overload
def evict_forward(ctx: Context | None, q: A, k: Array, v: Array, *, k_kept: Wanted | None = ...,
                  v_kept: Wanted | None = ..., index: Wanted, index_count: None = ...,
                  **fields: Unpack[_evict_forward]) -> tuple[A, A, Any]: ...
@overload
def evict_forward(q: A, k: Array, v: Array, *, ctx: Context | None = ...,
                  k_kept: Wanted | None = ..., v_kept: Wanted | None = ..., index: Wanted,
                  index_count: None = ..., **fields: Unpack[_evict_forward]) -> tuple[A, A,
                  Any]: ...
@overload
def evict_forward(ctx: Context | None, q: A, k: Array, v: Array, *, k_kept: Wanted | None = ...,
                  v_kept: Wanted | None = ..., index: None = ..., index_count: Wanted,
                  **fields: Unpack[_evict_forward]) -> tuple[A, A, Any]: ...
@overload
def evict_forward(q: A, k: Array, v: Array, *, ctx: Context | None = ...,
                  k_kept: Wanted | None = ..., v_kept: Wanted | None = ..., index: None = ...,
                  index_count: Wanted, **fields: Unpack[_evict_forward]) -> tuple[A, A, Any]: ...
@overload
def evict_forward(ctx: Context | None, q: A, k: Array, v: Array, *, k_kept: Wanted | None = ...,
                  v_kept: Wanted | None = ..., index: Wanted, index_count: Wanted,
                  **fields: Unpack[_evict_forward]) -> tuple[A, A, Any, Any]: ...
@overload
def evict_forward(q: A, k: Array, v: Array, *, ctx: Context | None = ...,
                  k_kept: Wanted | None = ..., v_kept: Wanted | None = ..., index: Wanted,
                  index_count: Wanted, **fields: Unpack[_evict_forward]) -> tuple[A, A, Any,
                  Any]: ...
@overload
def evict_forward(ctx: Context | None, q: Array, k: Array, v: Array, *, k_kept: Output = ...,
                  v_kept: Output = ..., index: Output = ..., index_count: Output = ...,
                  **fields: Unpack[_evict_forward]) -> Any: ...
@overload
def evict_forward(q: Array, k: Array, v: Array, *, ctx: Context | None = ..., k_kept: Output = ...,
                  v_kept: Output = ..., index: Output = ..., index_count: Output = ...,
                  **fields: Unpack[_evict_forward]) -> Any: ...

class _select_token(TypedDict, total=False):
    q: Array | None
    k: Array | None
    k_scale: Array | None
    code_q: Array | None
    code: Array | None
    weight: Array | None
    query_start: Array | None
    key_start: Array | None
    query_len: Array | None
    key_len: Array | None
    page_table: Array | None
    cache_row: Array | None
    context_len: Array | None
    block_mask: Array | None
    b: Int | None
    x: Int | None
    s: Int | None
    keep: Int | None
    h: Int | None
    query_max: Int
    key_max: Int
    window_left: Int
    window_right: Int
    sink_keys: Int
    key_step: Int
    key_shift: Int
    count: Int
    first_keys: Int
    last_keys: Int
    force_last: Int
    pool_keys: Int
    subset: Int
    block_keys: Int
    scale: Float
    ratio: Float
    measure: Literal["dot", "relu_weighted", "hamming", "subset"] | SelectScore | Int
    reduce: Literal["none", "sum", "mean", "max"] | SelectReduce | Int
    causal: Int

@overload
def select_token(ctx: Context | None = ..., *, index: None = ..., index_count: None = ...,
                 kept_score: None = ..., kept_mass: None = ...,
                 **fields: Unpack[_select_token]) -> None: ...
@overload
def select_token(ctx: Context | None = ..., *, index: Wanted, index_count: None = ...,
                 kept_score: None = ..., kept_mass: None = ...,
                 **fields: Unpack[_select_token]) -> Any: ...
@overload
def select_token(ctx: Context | None = ..., *, index: None = ..., index_count: Wanted,
                 kept_score: None = ..., kept_mass: None = ...,
                 **fields: Unpack[_select_token]) -> Any: ...
@overload
def select_token(ctx: Context | None = ..., *, index: Output = ..., index_count: Output = ...,
                 kept_score: Output = ..., kept_mass: Output = ...,
                 **fields: Unpack[_select_token]) -> Any: ...

class _select_line(TypedDict, total=False):
    bits: Array | None
    vertical: Array | None
    vertical_count: Array | None
    slash: Array | None
    slash_count: Array | None
    query_start: Array | None
    key_start: Array | None
    query_len: Array | None
    key_len: Array | None
    b: Int | None
    x: Int | None
    n: Int | None
    keep: Int | None
    columns: Int | None
    mask_bytes: Int | None
    query_max: Int
    key_max: Int
    aligned: Int
    in_blocks: Int
    causal: Int
    block_rows: Int
    block_keys: Int

@overload
def select_line(ctx: Context | None = ..., *, index: None = ..., index_count: None = ...,
                column: None = ..., column_count: None = ..., bits_out: None = ...,
                **fields: Unpack[_select_line]) -> None: ...
@overload
def select_line(ctx: Context | None = ..., *, index: Output = ..., index_count: Output = ...,
                column: Output = ..., column_count: Output = ..., bits_out: Output = ...,
                **fields: Unpack[_select_line]) -> Any: ...

class _select_heads(TypedDict, total=False):
    query_len: Array | None
    clusters_of: Array | None
    clusters: Int
    scale: Float
    causal: Int

@overload
def select_heads(ctx: Context | None, q: Array, k: Array, *, head_map: Wanted | None = ...,
                 label: None = ..., count: None = ..., **fields: Unpack[_select_heads]) -> Any: ...
@overload
def select_heads(q: Array, k: Array, *, ctx: Context | None = ..., head_map: Wanted | None = ...,
                 label: None = ..., count: None = ..., **fields: Unpack[_select_heads]) -> Any: ...
@overload
def select_heads(ctx: Context | None, q: Array, k: Array, *, head_map: Wanted | None = ...,
                 label: Wanted, count: None = ..., **fields: Unpack[_select_heads]) -> tuple[Any,
                 Any]: ...
@overload
def select_heads(q: Array, k: Array, *, ctx: Context | None = ..., head_map: Wanted | None = ...,
                 label: Wanted, count: None = ..., **fields: Unpack[_select_heads]) -> tuple[Any,
                 Any]: ...
@overload
def select_heads(ctx: Context | None, q: Array, k: Array, *, head_map: Wanted | None = ...,
                 label: None = ..., count: Wanted, **fields: Unpack[_select_heads]) -> tuple[Any,
                 Any]: ...
@overload
def select_heads(q: Array, k: Array, *, ctx: Context | None = ..., head_map: Wanted | None = ...,
                 label: None = ..., count: Wanted, **fields: Unpack[_select_heads]) -> tuple[Any,
                 Any]: ...
@overload
def select_heads(ctx: Context | None, q: Array, k: Array, *, head_map: Wanted | None = ...,
                 label: Wanted, count: Wanted, **fields: Unpack[_select_heads]) -> tuple[Any, Any,
                 Any]: ...
@overload
def select_heads(q: Array, k: Array, *, ctx: Context | None = ..., head_map: Wanted | None = ...,
                 label: Wanted, count: Wanted, **fields: Unpack[_select_heads]) -> tuple[Any, Any,
                 Any]: ...
@overload
def select_heads(ctx: Context | None, q: Array, k: Array, *, head_map: Output = ...,
                 label: Output = ..., count: Output = ...,
                 **fields: Unpack[_select_heads]) -> Any: ...
@overload
def select_heads(q: Array, k: Array, *, ctx: Context | None = ..., head_map: Output = ...,
                 label: Output = ..., count: Output = ...,
                 **fields: Unpack[_select_heads]) -> Any: ...

class _indexed_forward(TypedDict, total=False):
    q_value: Array | None
    index_q: Array | None
    index_k: Array | None
    index_k_scale: Array | None
    block_k: Array | None
    weight: Array | None
    code_q: Array | None
    code: Array | None
    v_mean: Array | None
    sink_logit: Array | None
    k_scale: Array | None
    v_scale: Array | None
    query_start: Array | None
    key_start: Array | None
    query_len: Array | None
    key_len: Array | None
    page_table: Array | None
    cache_row: Array | None
    context_len: Array | None
    x: Int | None
    keep: Int | None
    query_max: Int
    key_max: Int
    window_left: Int
    window_right: Int
    sink_keys: Int
    lists: Int
    count: Int
    first_keys: Int
    last_keys: Int
    force_last: Int
    pool_keys: Int
    index_step: Int
    subset: Int
    scale: Float
    softcap: Float
    index_scale: Float
    ratio: Float
    measure: Literal["dot", "relu_weighted", "hamming", "subset"] | SelectScore | Int
    reduce: Literal["none", "sum", "mean", "max"] | SelectReduce | Int
    causal: Int

@overload
def indexed_forward(ctx: Context | None, q: A, k: Array, v: Array, *, o: Wanted | None = ...,
                    lse: None = ..., index: None = ..., index_count: None = ...,
                    **fields: Unpack[_indexed_forward]) -> A: ...
@overload
def indexed_forward(q: A, k: Array, v: Array, *, ctx: Context | None = ..., o: Wanted | None = ...,
                    lse: None = ..., index: None = ..., index_count: None = ...,
                    **fields: Unpack[_indexed_forward]) -> A: ...
@overload
def indexed_forward(ctx: Context | None, q: A, k: Array, v: Array, *, o: Wanted | None = ...,
                    lse: Wanted, index: None = ..., index_count: None = ...,
                    **fields: Unpack[_indexed_forward]) -> tuple[A, A]: ...
@overload
def indexed_forward(q: A, k: Array, v: Array, *, ctx: Context | None = ..., o: Wanted | None = ...,
                    lse: Wanted, index: None = ..., index_count: None = ...,
                    **fields: Unpack[_indexed_forward]) -> tuple[A, A]: ...
@overload
def indexed_forward(ctx: Context | None, q: A, k: Array, v: Array, *, o: Wanted | None = ...,
                    lse: None = ..., index: Wanted, index_count: None = ...,
                    **fields: Unpack[_indexed_forward]) -> tuple[A, Any]: ...
@overload
def indexed_forward(q: A, k: Array, v: Array, *, ctx: Context | None = ..., o: Wanted | None = ...,
                    lse: None = ..., index: Wanted, index_count: None = ...,
                    **fields: Unpack[_indexed_forward]) -> tuple[A, Any]: ...
@overload
def indexed_forward(ctx: Context | None, q: A, k: Array, v: Array, *, o: Wanted | None = ...,
                    lse: None = ..., index: None = ..., index_count: Wanted,
                    **fields: Unpack[_indexed_forward]) -> tuple[A, Any]: ...
@overload
def indexed_forward(q: A, k: Array, v: Array, *, ctx: Context | None = ..., o: Wanted | None = ...,
                    lse: None = ..., index: None = ..., index_count: Wanted,
                    **fields: Unpack[_indexed_forward]) -> tuple[A, Any]: ...
@overload
def indexed_forward(ctx: Context | None, q: Array, k: Array, v: Array, *, o: Output = ...,
                    lse: Output = ..., index: Output = ..., index_count: Output = ...,
                    **fields: Unpack[_indexed_forward]) -> Any: ...
@overload
def indexed_forward(q: Array, k: Array, v: Array, *, ctx: Context | None = ..., o: Output = ...,
                    lse: Output = ..., index: Output = ..., index_count: Output = ...,
                    **fields: Unpack[_indexed_forward]) -> Any: ...

class _quantised_forward(TypedDict, total=False):
    query_start: Array | None
    key_start: Array | None
    sink_logit: Array | None
    index: Array | None
    index_count: Array | None
    query_max: Int
    key_max: Int
    window_left: Int
    window_right: Int
    seed: Int
    scale: Float
    softcap: Float
    v_scale_max: Float
    skip_margin: Float
    causal: Int
    hadamard: Int
    code: Literal["e4m3", "i8", "i4", "e2m1", "plain"] | Code | Int
    v_code: Literal["e4m3", "i8", "i4", "e2m1", "plain"] | Code | Int
    q_group: (Literal["block", "thread_q", "thread_k", "token", "channel", "micro16", "micro32",
        "micro16_t", "micro32_t"] | ScaleGroup | Int)
    k_group: (Literal["block", "thread_q", "thread_k", "token", "channel", "micro16", "micro32",
        "micro16_t", "micro32_t"] | ScaleGroup | Int)
    v_group: (Literal["block", "thread_q", "thread_k", "token", "channel", "micro16", "micro32",
        "micro16_t", "micro32_t"] | ScaleGroup | Int)
    q_block: Int
    k_block: Int
    v_block: Int
    q_smooth: Literal["none", "sequence", "block"] | Smooth | Int
    k_smooth: Literal["none", "sequence", "block"] | Smooth | Int
    p_format: Literal["e4m3_256", "e4m3_448", "half", "i8", "e2m1_two", "e2m1_one"] | PFormat | Int
    accumulate: Literal["two_level", "f32", "half_64"] | Accumulate | Int
    block_rows: Int
    block_keys: Int
    entry_keys: Int

@overload
def quantised_forward(ctx: Context | None, q: A, k: Array, v: Array, *, o: Wanted | None = ...,
                      lse: None = ..., skipped: None = ...,
                      **fields: Unpack[_quantised_forward]) -> A: ...
@overload
def quantised_forward(q: A, k: Array, v: Array, *, ctx: Context | None = ...,
                      o: Wanted | None = ..., lse: None = ..., skipped: None = ...,
                      **fields: Unpack[_quantised_forward]) -> A: ...
@overload
def quantised_forward(ctx: Context | None, q: A, k: Array, v: Array, *, o: Wanted | None = ...,
                      lse: Wanted, skipped: None = ...,
                      **fields: Unpack[_quantised_forward]) -> tuple[A, A]: ...
@overload
def quantised_forward(q: A, k: Array, v: Array, *, ctx: Context | None = ...,
                      o: Wanted | None = ..., lse: Wanted, skipped: None = ...,
                      **fields: Unpack[_quantised_forward]) -> tuple[A, A]: ...
@overload
def quantised_forward(ctx: Context | None, q: A, k: Array, v: Array, *, o: Wanted | None = ...,
                      lse: None = ..., skipped: Wanted,
                      **fields: Unpack[_quantised_forward]) -> tuple[A, Any]: ...
@overload
def quantised_forward(q: A, k: Array, v: Array, *, ctx: Context | None = ...,
                      o: Wanted | None = ..., lse: None = ..., skipped: Wanted,
                      **fields: Unpack[_quantised_forward]) -> tuple[A, Any]: ...
@overload
def quantised_forward(ctx: Context | None, q: A, k: Array, v: Array, *, o: Wanted | None = ...,
                      lse: Wanted, skipped: Wanted,
                      **fields: Unpack[_quantised_forward]) -> tuple[A, A, Any]: ...
@overload
def quantised_forward(q: A, k: Array, v: Array, *, ctx: Context | None = ...,
                      o: Wanted | None = ..., lse: Wanted, skipped: Wanted,
                      **fields: Unpack[_quantised_forward]) -> tuple[A, A, Any]: ...
@overload
def quantised_forward(ctx: Context | None, q: Array, k: Array, v: Array, *, o: Output = ...,
                      lse: Output = ..., skipped: Output = ...,
                      **fields: Unpack[_quantised_forward]) -> Any: ...
@overload
def quantised_forward(q: Array, k: Array, v: Array, *, ctx: Context | None = ..., o: Output = ...,
                      lse: Output = ..., skipped: Output = ...,
                      **fields: Unpack[_quantised_forward]) -> Any: ...

class _quant_backward(TypedDict, total=False):
    query_start: Array | None
    key_start: Array | None
    query_max: Int
    key_max: Int
    window_left: Int
    window_right: Int
    scale: Float
    causal: Int
    k_smooth: Int

@overload
def quant_backward(ctx: Context | None, q: A, k: Array, v: Array, o: Array, lse: Array, dout: Array,
                   *, dq: Wanted | None = ..., dk: Wanted | None = ..., dv: Wanted | None = ...,
                   **fields: Unpack[_quant_backward]) -> tuple[A, A, A]: ...
@overload
def quant_backward(q: A, k: Array, v: Array, o: Array, lse: Array, dout: Array, *,
                   ctx: Context | None = ..., dq: Wanted | None = ..., dk: Wanted | None = ...,
                   dv: Wanted | None = ..., **fields: Unpack[_quant_backward]) -> tuple[A, A,
                   A]: ...
@overload
def quant_backward(ctx: Context | None, q: Array, k: Array, v: Array, o: Array, lse: Array,
                   dout: Array, *, dq: Output = ..., dk: Output = ..., dv: Output = ...,
                   **fields: Unpack[_quant_backward]) -> Any: ...
@overload
def quant_backward(q: Array, k: Array, v: Array, o: Array, lse: Array, dout: Array, *,
                   ctx: Context | None = ..., dq: Output = ..., dk: Output = ..., dv: Output = ...,
                   **fields: Unpack[_quant_backward]) -> Any: ...

class _pooled_forward(TypedDict, total=False):
    row: Array | None
    column: Array | None
    column_low: Array | None
    summary: Array | None
    row_similar_least: Array | None
    column_similar_least: Array | None
    cover_head: Array | None
    sink_logit: Array | None
    k_scale: Array | None
    v_scale: Array | None
    query_start: Array | None
    key_start: Array | None
    query_len: Array | None
    key_len: Array | None
    old_len: Array | None
    page_table: Array | None
    cache_row: Array | None
    x: Int | None
    n: Int | None
    keep: Int | None
    query_max: Int
    key_max: Int
    lists: Int
    count: Int
    min_keep: Int
    min_extra: Int
    force_first: Int
    force_previous: Int
    force_last: Int
    subset: Int
    scale: Float
    softcap: Float
    select_scale: Float
    ratio: Float
    cover: Float
    threshold: Float
    skip_margin: Float
    measure: Literal["dot", "box"] | SelectMeasure | Int
    normalise: Literal["none", "softmax", "weighted", "minmax", "max"] | SelectNormalise | Int
    reduce: Literal["none", "sum", "mean", "max"] | SelectReduce | Int
    rule: (Literal["top_k", "top_p_ge", "top_p_gt", "top_p_under", "above", "at_least", "none"] |
        SelectRule | Int)
    scope: Literal["row", "head", "all"] | SelectScope | Int
    forced_count: Int
    force_own: Int
    causal: Int
    block_rows: Int
    block_keys: Int
    quantise: Int
    code: Literal["e4m3", "i8", "i4", "e2m1", "plain"] | Code | Int
    v_code: Literal["e4m3", "i8", "i4", "e2m1", "plain"] | Code | Int
    q_group: (Literal["block", "thread_q", "thread_k", "token", "channel", "micro16", "micro32",
        "micro16_t", "micro32_t"] | ScaleGroup | Int)
    k_group: (Literal["block", "thread_q", "thread_k", "token", "channel", "micro16", "micro32",
        "micro16_t", "micro32_t"] | ScaleGroup | Int)
    v_group: (Literal["block", "thread_q", "thread_k", "token", "channel", "micro16", "micro32",
        "micro16_t", "micro32_t"] | ScaleGroup | Int)
    q_block: Int
    k_block: Int
    v_block: Int
    k_smooth: Literal["none", "sequence", "block"] | Smooth | Int
    p_format: Literal["e4m3_256", "e4m3_448", "half", "i8", "e2m1_two", "e2m1_one"] | PFormat | Int
    accumulate: Literal["two_level", "f32", "half_64"] | Accumulate | Int

@overload
def pooled_forward(ctx: Context | None, q: A, k: Array, v: Array, *, o: Wanted | None = ...,
                   lse: None = ..., index: None = ..., index_count: None = ...,
                   **fields: Unpack[_pooled_forward]) -> A: ...
@overload
def pooled_forward(q: A, k: Array, v: Array, *, ctx: Context | None = ..., o: Wanted | None = ...,
                   lse: None = ..., index: None = ..., index_count: None = ...,
                   **fields: Unpack[_pooled_forward]) -> A: ...
@overload
def pooled_forward(ctx: Context | None, q: A, k: Array, v: Array, *, o: Wanted | None = ...,
                   lse: Wanted, index: None = ..., index_count: None = ...,
                   **fields: Unpack[_pooled_forward]) -> tuple[A, A]: ...
@overload
def pooled_forward(q: A, k: Array, v: Array, *, ctx: Context | None = ..., o: Wanted | None = ...,
                   lse: Wanted, index: None = ..., index_count: None = ...,
                   **fields: Unpack[_pooled_forward]) -> tuple[A, A]: ...
@overload
def pooled_forward(ctx: Context | None, q: A, k: Array, v: Array, *, o: Wanted | None = ...,
                   lse: None = ..., index: Wanted, index_count: None = ...,
                   **fields: Unpack[_pooled_forward]) -> tuple[A, Any]: ...
@overload
def pooled_forward(q: A, k: Array, v: Array, *, ctx: Context | None = ..., o: Wanted | None = ...,
                   lse: None = ..., index: Wanted, index_count: None = ...,
                   **fields: Unpack[_pooled_forward]) -> tuple[A, Any]: ...
@overload
def pooled_forward(ctx: Context | None, q: A, k: Array, v: Array, *, o: Wanted | None = ...,
                   lse: None = ..., index: None = ..., index_count: Wanted,
                   **fields: Unpack[_pooled_forward]) -> tuple[A, Any]: ...
@overload
def pooled_forward(q: A, k: Array, v: Array, *, ctx: Context | None = ..., o: Wanted | None = ...,
                   lse: None = ..., index: None = ..., index_count: Wanted,
                   **fields: Unpack[_pooled_forward]) -> tuple[A, Any]: ...
@overload
def pooled_forward(ctx: Context | None, q: Array, k: Array, v: Array, *, o: Output = ...,
                   lse: Output = ..., index: Output = ..., index_count: Output = ...,
                   **fields: Unpack[_pooled_forward]) -> Any: ...
@overload
def pooled_forward(q: Array, k: Array, v: Array, *, ctx: Context | None = ..., o: Output = ...,
                   lse: Output = ..., index: Output = ..., index_count: Output = ...,
                   **fields: Unpack[_pooled_forward]) -> Any: ...

class _probed_forward(TypedDict, total=False):
    sample: Array | None
    query_position: Array | None
    cover_head: Array | None
    sink_logit: Array | None
    query_start: Array | None
    key_start: Array | None
    query_len: Array | None
    key_len: Array | None
    page_table: Array | None
    cache_row: Array | None
    x: Int | None
    n: Int | None
    keep: Int | None
    columns: Int | None
    query_max: Int
    key_max: Int
    lists: Int
    probe_rows: Int
    count: Int
    slash_count: Int
    slash_force_first: Int
    force_first: Int
    force_previous: Int
    full_last: Int
    first_keys: Int
    last_keys: Int
    group_stride: Int
    scale: Float
    softcap: Float
    cover: Float
    threshold: Float
    skip_margin: Float
    kind: Literal["blocks", "columns", "lines", "means"] | ProbedKind | Int
    reduce: Literal["sum", "mean", "max"] | ProbeReduce | Int
    rule: (Literal["top_k", "top_p_ge", "top_p_gt", "top_p_under", "above", "at_least", "none"] |
        SelectRule | Int)
    forced_count: Int
    force_own: Int
    reversed: Int
    causal: Int
    block_rows: Int
    block_keys: Int

@overload
def probed_forward(ctx: Context | None, q: A, k: Array, v: Array, *, o: Wanted | None = ...,
                   lse: None = ..., index: None = ..., index_count: None = ..., column: None = ...,
                   column_count: None = ..., **fields: Unpack[_probed_forward]) -> A: ...
@overload
def probed_forward(q: A, k: Array, v: Array, *, ctx: Context | None = ..., o: Wanted | None = ...,
                   lse: None = ..., index: None = ..., index_count: None = ..., column: None = ...,
                   column_count: None = ..., **fields: Unpack[_probed_forward]) -> A: ...
@overload
def probed_forward(ctx: Context | None, q: Array, k: Array, v: Array, *, o: Output = ...,
                   lse: Output = ..., index: Output = ..., index_count: Output = ...,
                   column: Output = ..., column_count: Output = ...,
                   **fields: Unpack[_probed_forward]) -> Any: ...
@overload
def probed_forward(q: Array, k: Array, v: Array, *, ctx: Context | None = ..., o: Output = ...,
                   lse: Output = ..., index: Output = ..., index_count: Output = ...,
                   column: Output = ..., column_count: Output = ...,
                   **fields: Unpack[_probed_forward]) -> Any: ...

class _flex_forward(TypedDict, total=False):
    key_len: Array | None
    page_table: Array | None
    n: Int | None
    keep: Int | None
    key_max: Int
    min_budget: Int
    max_budget: Int
    scale: Float
    cover: Float
    threshold: Float
    block: Int

@overload
def flex_forward(ctx: Context | None, q: A, k: Array, v: Array, *, o: Wanted | None = ...,
                 lse: None = ..., index: None = ..., index_count: None = ...,
                 **fields: Unpack[_flex_forward]) -> A: ...
@overload
def flex_forward(q: A, k: Array, v: Array, *, ctx: Context | None = ..., o: Wanted | None = ...,
                 lse: None = ..., index: None = ..., index_count: None = ...,
                 **fields: Unpack[_flex_forward]) -> A: ...
@overload
def flex_forward(ctx: Context | None, q: A, k: Array, v: Array, *, o: Wanted | None = ...,
                 lse: Wanted, index: None = ..., index_count: None = ...,
                 **fields: Unpack[_flex_forward]) -> tuple[A, A]: ...
@overload
def flex_forward(q: A, k: Array, v: Array, *, ctx: Context | None = ..., o: Wanted | None = ...,
                 lse: Wanted, index: None = ..., index_count: None = ...,
                 **fields: Unpack[_flex_forward]) -> tuple[A, A]: ...
@overload
def flex_forward(ctx: Context | None, q: A, k: Array, v: Array, *, o: Wanted | None = ...,
                 lse: None = ..., index: Wanted, index_count: None = ...,
                 **fields: Unpack[_flex_forward]) -> tuple[A, Any]: ...
@overload
def flex_forward(q: A, k: Array, v: Array, *, ctx: Context | None = ..., o: Wanted | None = ...,
                 lse: None = ..., index: Wanted, index_count: None = ...,
                 **fields: Unpack[_flex_forward]) -> tuple[A, Any]: ...
@overload
def flex_forward(ctx: Context | None, q: A, k: Array, v: Array, *, o: Wanted | None = ...,
                 lse: None = ..., index: None = ..., index_count: Wanted,
                 **fields: Unpack[_flex_forward]) -> tuple[A, Any]: ...
@overload
def flex_forward(q: A, k: Array, v: Array, *, ctx: Context | None = ..., o: Wanted | None = ...,
                 lse: None = ..., index: None = ..., index_count: Wanted,
                 **fields: Unpack[_flex_forward]) -> tuple[A, Any]: ...
@overload
def flex_forward(ctx: Context | None, q: Array, k: Array, v: Array, *, o: Output = ...,
                 lse: Output = ..., index: Output = ..., index_count: Output = ...,
                 **fields: Unpack[_flex_forward]) -> Any: ...
@overload
def flex_forward(q: Array, k: Array, v: Array, *, ctx: Context | None = ..., o: Output = ...,
                 lse: Output = ..., index: Output = ..., index_count: Output = ...,
                 **fields: Unpack[_flex_forward]) -> Any: ...

class _nsa_forward(TypedDict, total=False):
    k_compressed: Array | None
    v_compressed: Array | None
    k_window: Array | None
    v_window: Array | None
    gate_compressed: Array | None
    gate_selected: Array | None
    gate_window: Array | None
    query_len: Array | None
    key_len: Array | None
    compressed_len: Array | None
    page_table: Array | None
    keep: Int | None
    query_max: Int
    key_max: Int
    compress_keys: Int
    compress_step: Int
    count: Int
    window: Int
    scale: Float
    block_keys: Int
    gate_plain: Int

@overload
def nsa_forward(ctx: Context | None, q: A, k: Array, v: Array, *, o: Wanted | None = ...,
                index: None = ..., index_count: None = ..., o_compressed: None = ...,
                o_selected: None = ..., o_window: None = ..., lse_compressed: None = ...,
                lse_selected: None = ..., lse_window: None = ...,
                **fields: Unpack[_nsa_forward]) -> A: ...
@overload
def nsa_forward(q: A, k: Array, v: Array, *, ctx: Context | None = ..., o: Wanted | None = ...,
                index: None = ..., index_count: None = ..., o_compressed: None = ...,
                o_selected: None = ..., o_window: None = ..., lse_compressed: None = ...,
                lse_selected: None = ..., lse_window: None = ...,
                **fields: Unpack[_nsa_forward]) -> A: ...
@overload
def nsa_forward(ctx: Context | None, q: Array, k: Array, v: Array, *, o: Output = ...,
                index: Output = ..., index_count: Output = ..., o_compressed: Output = ...,
                o_selected: Output = ..., o_window: Output = ..., lse_compressed: Output = ...,
                lse_selected: Output = ..., lse_window: Output = ...,
                **fields: Unpack[_nsa_forward]) -> Any: ...
@overload
def nsa_forward(q: Array, k: Array, v: Array, *, ctx: Context | None = ..., o: Output = ...,
                index: Output = ..., index_count: Output = ..., o_compressed: Output = ...,
                o_selected: Output = ..., o_window: Output = ..., lse_compressed: Output = ...,
                lse_selected: Output = ..., lse_window: Output = ...,
                **fields: Unpack[_nsa_forward]) -> Any: ...

class _nsa_backward(TypedDict, total=False):
    k_compressed: Array | None
    v_compressed: Array | None
    k_window: Array | None
    v_window: Array | None
    gate_compressed: Array | None
    gate_selected: Array | None
    gate_window: Array | None
    query_len: Array | None
    key_len: Array | None
    compressed_len: Array | None
    index_count: Array | None
    compress_keys: Int
    compress_step: Int
    window: Int
    scale: Float
    block_keys: Int
    gate_plain: Int

@overload
def nsa_backward(ctx: Context | None, q: A, k: Array, v: Array, index: Array, o_compressed: Array,
                 o_selected: Array, o_window: Array, lse_compressed: Array, lse_selected: Array,
                 lse_window: Array, dout: Array, *, dq: Wanted | None = ...,
                 dk: Wanted | None = ..., dv: Wanted | None = ..., dk_compressed: None = ...,
                 dv_compressed: None = ..., dk_window: None = ..., dv_window: None = ...,
                 dgate_compressed: None = ..., dgate_selected: None = ..., dgate_window: None = ...,
                 **fields: Unpack[_nsa_backward]) -> tuple[A, A, A]: ...
@overload
def nsa_backward(q: A, k: Array, v: Array, index: Array, o_compressed: Array, o_selected: Array,
                 o_window: Array, lse_compressed: Array, lse_selected: Array, lse_window: Array,
                 dout: Array, *, ctx: Context | None = ..., dq: Wanted | None = ...,
                 dk: Wanted | None = ..., dv: Wanted | None = ..., dk_compressed: None = ...,
                 dv_compressed: None = ..., dk_window: None = ..., dv_window: None = ...,
                 dgate_compressed: None = ..., dgate_selected: None = ..., dgate_window: None = ...,
                 **fields: Unpack[_nsa_backward]) -> tuple[A, A, A]: ...
@overload
def nsa_backward(ctx: Context | None, q: Array, k: Array, v: Array, index: Array,
                 o_compressed: Array, o_selected: Array, o_window: Array, lse_compressed: Array,
                 lse_selected: Array, lse_window: Array, dout: Array, *, dq: Output = ...,
                 dk: Output = ..., dv: Output = ..., dk_compressed: Output = ...,
                 dv_compressed: Output = ..., dk_window: Output = ..., dv_window: Output = ...,
                 dgate_compressed: Output = ..., dgate_selected: Output = ...,
                 dgate_window: Output = ..., **fields: Unpack[_nsa_backward]) -> Any: ...
@overload
def nsa_backward(q: Array, k: Array, v: Array, index: Array, o_compressed: Array, o_selected: Array,
                 o_window: Array, lse_compressed: Array, lse_selected: Array, lse_window: Array,
                 dout: Array, *, ctx: Context | None = ..., dq: Output = ..., dk: Output = ...,
                 dv: Output = ..., dk_compressed: Output = ..., dv_compressed: Output = ...,
                 dk_window: Output = ..., dv_window: Output = ..., dgate_compressed: Output = ...,
                 dgate_selected: Output = ..., dgate_window: Output = ...,
                 **fields: Unpack[_nsa_backward]) -> Any: ...

class _infllm_forward(TypedDict, total=False):
    local_score: Array | None
    query_len: Array | None
    page_table: Array | None
    keep: Int | None
    window: Int
    init_keys: Int
    count: Int
    scale: Float
    block_keys: Int

@overload
def infllm_forward(ctx: Context | None, q: A, q_far: Array, k: Array, k_window: Array, v: Array,
                   representative: Array, key_len: Array, block_len: Array, *,
                   o: Wanted | None = ..., lse: None = ..., index: None = ...,
                   index_count: None = ..., **fields: Unpack[_infllm_forward]) -> A: ...
@overload
def infllm_forward(q: A, q_far: Array, k: Array, k_window: Array, v: Array, representative: Array,
                   key_len: Array, block_len: Array, *, ctx: Context | None = ...,
                   o: Wanted | None = ..., lse: None = ..., index: None = ...,
                   index_count: None = ..., **fields: Unpack[_infllm_forward]) -> A: ...
@overload
def infllm_forward(ctx: Context | None, q: A, q_far: Array, k: Array, k_window: Array, v: Array,
                   representative: Array, key_len: Array, block_len: Array, *,
                   o: Wanted | None = ..., lse: Wanted, index: None = ..., index_count: None = ...,
                   **fields: Unpack[_infllm_forward]) -> tuple[A, A]: ...
@overload
def infllm_forward(q: A, q_far: Array, k: Array, k_window: Array, v: Array, representative: Array,
                   key_len: Array, block_len: Array, *, ctx: Context | None = ...,
                   o: Wanted | None = ..., lse: Wanted, index: None = ..., index_count: None = ...,
                   **fields: Unpack[_infllm_forward]) -> tuple[A, A]: ...
@overload
def infllm_forward(ctx: Context | None, q: A, q_far: Array, k: Array, k_window: Array, v: Array,
                   representative: Array, key_len: Array, block_len: Array, *,
                   o: Wanted | None = ..., lse: None = ..., index: Wanted, index_count: None = ...,
                   **fields: Unpack[_infllm_forward]) -> tuple[A, Any]: ...
@overload
def infllm_forward(q: A, q_far: Array, k: Array, k_window: Array, v: Array, representative: Array,
                   key_len: Array, block_len: Array, *, ctx: Context | None = ...,
                   o: Wanted | None = ..., lse: None = ..., index: Wanted, index_count: None = ...,
                   **fields: Unpack[_infllm_forward]) -> tuple[A, Any]: ...
@overload
def infllm_forward(ctx: Context | None, q: A, q_far: Array, k: Array, k_window: Array, v: Array,
                   representative: Array, key_len: Array, block_len: Array, *,
                   o: Wanted | None = ..., lse: None = ..., index: None = ..., index_count: Wanted,
                   **fields: Unpack[_infllm_forward]) -> tuple[A, Any]: ...
@overload
def infllm_forward(q: A, q_far: Array, k: Array, k_window: Array, v: Array, representative: Array,
                   key_len: Array, block_len: Array, *, ctx: Context | None = ...,
                   o: Wanted | None = ..., lse: None = ..., index: None = ..., index_count: Wanted,
                   **fields: Unpack[_infllm_forward]) -> tuple[A, Any]: ...
@overload
def infllm_forward(ctx: Context | None, q: Array, q_far: Array, k: Array, k_window: Array, v: Array,
                   representative: Array, key_len: Array, block_len: Array, *, o: Output = ...,
                   lse: Output = ..., index: Output = ..., index_count: Output = ...,
                   **fields: Unpack[_infllm_forward]) -> Any: ...
@overload
def infllm_forward(q: Array, q_far: Array, k: Array, k_window: Array, v: Array,
                   representative: Array, key_len: Array, block_len: Array, *,
                   ctx: Context | None = ..., o: Output = ..., lse: Output = ...,
                   index: Output = ..., index_count: Output = ...,
                   **fields: Unpack[_infllm_forward]) -> Any: ...

class _compressed_forward(TypedDict, total=False):
    index_q: Array | None
    index_k: Array | None
    weight: Array | None
    sink_logit: Array | None
    query_len: Array | None
    key_len: Array | None
    compressed_len: Array | None
    page_table: Array | None
    keep: Int | None
    key_max: Int
    compress_step: Int
    count: Int
    window: Int
    scale: Float
    index_scale: Float

@overload
def compressed_forward(ctx: Context | None, q: A, k: Array, v: Array, k_compressed: Array,
                       v_compressed: Array, *, o: Wanted | None = ..., lse: None = ...,
                       index: None = ..., index_count: None = ...,
                       **fields: Unpack[_compressed_forward]) -> A: ...
@overload
def compressed_forward(q: A, k: Array, v: Array, k_compressed: Array, v_compressed: Array, *,
                       ctx: Context | None = ..., o: Wanted | None = ..., lse: None = ...,
                       index: None = ..., index_count: None = ...,
                       **fields: Unpack[_compressed_forward]) -> A: ...
@overload
def compressed_forward(ctx: Context | None, q: A, k: Array, v: Array, k_compressed: Array,
                       v_compressed: Array, *, o: Wanted | None = ..., lse: Wanted,
                       index: None = ..., index_count: None = ...,
                       **fields: Unpack[_compressed_forward]) -> tuple[A, A]: ...
@overload
def compressed_forward(q: A, k: Array, v: Array, k_compressed: Array, v_compressed: Array, *,
                       ctx: Context | None = ..., o: Wanted | None = ..., lse: Wanted,
                       index: None = ..., index_count: None = ...,
                       **fields: Unpack[_compressed_forward]) -> tuple[A, A]: ...
@overload
def compressed_forward(ctx: Context | None, q: A, k: Array, v: Array, k_compressed: Array,
                       v_compressed: Array, *, o: Wanted | None = ..., lse: None = ...,
                       index: Wanted, index_count: None = ...,
                       **fields: Unpack[_compressed_forward]) -> tuple[A, Any]: ...
@overload
def compressed_forward(q: A, k: Array, v: Array, k_compressed: Array, v_compressed: Array, *,
                       ctx: Context | None = ..., o: Wanted | None = ..., lse: None = ...,
                       index: Wanted, index_count: None = ...,
                       **fields: Unpack[_compressed_forward]) -> tuple[A, Any]: ...
@overload
def compressed_forward(ctx: Context | None, q: A, k: Array, v: Array, k_compressed: Array,
                       v_compressed: Array, *, o: Wanted | None = ..., lse: None = ...,
                       index: None = ..., index_count: Wanted,
                       **fields: Unpack[_compressed_forward]) -> tuple[A, Any]: ...
@overload
def compressed_forward(q: A, k: Array, v: Array, k_compressed: Array, v_compressed: Array, *,
                       ctx: Context | None = ..., o: Wanted | None = ..., lse: None = ...,
                       index: None = ..., index_count: Wanted,
                       **fields: Unpack[_compressed_forward]) -> tuple[A, Any]: ...
@overload
def compressed_forward(ctx: Context | None, q: Array, k: Array, v: Array, k_compressed: Array,
                       v_compressed: Array, *, o: Output = ..., lse: Output = ...,
                       index: Output = ..., index_count: Output = ...,
                       **fields: Unpack[_compressed_forward]) -> Any: ...
@overload
def compressed_forward(q: Array, k: Array, v: Array, k_compressed: Array, v_compressed: Array, *,
                       ctx: Context | None = ..., o: Output = ..., lse: Output = ...,
                       index: Output = ..., index_count: Output = ...,
                       **fields: Unpack[_compressed_forward]) -> Any: ...

class _compressed_backward(TypedDict, total=False):
    sink_logit: Array | None
    query_len: Array | None
    key_len: Array | None
    compressed_len: Array | None
    index: Array | None
    index_count: Array | None
    compress_step: Int
    window: Int
    scale: Float

@overload
def compressed_backward(ctx: Context | None, q: A, k: Array, v: Array, k_compressed: Array,
                        v_compressed: Array, o: Array, lse: Array, dout: Array, *,
                        dq: Wanted | None = ..., dk: Wanted | None = ..., dv: Wanted | None = ...,
                        dk_compressed: Wanted | None = ..., dv_compressed: Wanted | None = ...,
                        dsink_logit: None = ..., **fields: Unpack[_compressed_backward]) -> tuple[A,
                        A, A, A, A]: ...
@overload
def compressed_backward(q: A, k: Array, v: Array, k_compressed: Array, v_compressed: Array,
                        o: Array, lse: Array, dout: Array, *, ctx: Context | None = ...,
                        dq: Wanted | None = ..., dk: Wanted | None = ..., dv: Wanted | None = ...,
                        dk_compressed: Wanted | None = ..., dv_compressed: Wanted | None = ...,
                        dsink_logit: None = ..., **fields: Unpack[_compressed_backward]) -> tuple[A,
                        A, A, A, A]: ...
@overload
def compressed_backward(ctx: Context | None, q: A, k: Array, v: Array, k_compressed: Array,
                        v_compressed: Array, o: Array, lse: Array, dout: Array, *,
                        dq: Wanted | None = ..., dk: Wanted | None = ..., dv: Wanted | None = ...,
                        dk_compressed: Wanted | None = ..., dv_compressed: Wanted | None = ...,
                        dsink_logit: Wanted, **fields: Unpack[_compressed_backward]) -> tuple[A, A,
                        A, A, A, A]: ...
@overload
def compressed_backward(q: A, k: Array, v: Array, k_compressed: Array, v_compressed: Array,
                        o: Array, lse: Array, dout: Array, *, ctx: Context | None = ...,
                        dq: Wanted | None = ..., dk: Wanted | None = ..., dv: Wanted | None = ...,
                        dk_compressed: Wanted | None = ..., dv_compressed: Wanted | None = ...,
                        dsink_logit: Wanted, **fields: Unpack[_compressed_backward]) -> tuple[A, A,
                        A, A, A, A]: ...
@overload
def compressed_backward(ctx: Context | None, q: Array, k: Array, v: Array, k_compressed: Array,
                        v_compressed: Array, o: Array, lse: Array, dout: Array, *, dq: Output = ...,
                        dk: Output = ..., dv: Output = ..., dk_compressed: Output = ...,
                        dv_compressed: Output = ..., dsink_logit: Output = ...,
                        **fields: Unpack[_compressed_backward]) -> Any: ...
@overload
def compressed_backward(q: Array, k: Array, v: Array, k_compressed: Array, v_compressed: Array,
                        o: Array, lse: Array, dout: Array, *, ctx: Context | None = ...,
                        dq: Output = ..., dk: Output = ..., dv: Output = ...,
                        dk_compressed: Output = ..., dv_compressed: Output = ...,
                        dsink_logit: Output = ...,
                        **fields: Unpack[_compressed_backward]) -> Any: ...

class _project_forward(TypedDict, total=False):
    bias: Array | None
    weight2: Array | None
    bias2: Array | None
    weight3: Array | None
    bias3: Array | None
    norm_weight: Array | None
    position: Array | None
    cos: Array | None
    sin: Array | None
    h: Int | None
    f: Int | None
    words: Int | None
    norm_eps: Float
    act: Literal["none", "silu", "gelu"] | ProjectAct | Int
    bits: Int
    rope_begin: Int
    rope_interleaved: Int

@overload
def project_forward(ctx: Context | None, x: Array, weight: Array, *, y: None = ...,
                    code: None = ..., **fields: Unpack[_project_forward]) -> None: ...
@overload
def project_forward(x: Array, weight: Array, *, ctx: Context | None = ..., y: None = ...,
                    code: None = ..., **fields: Unpack[_project_forward]) -> None: ...
@overload
def project_forward(ctx: Context | None, x: A, weight: Array, *, y: Wanted, code: None = ...,
                    **fields: Unpack[_project_forward]) -> A: ...
@overload
def project_forward(x: A, weight: Array, *, ctx: Context | None = ..., y: Wanted, code: None = ...,
                    **fields: Unpack[_project_forward]) -> A: ...
@overload
def project_forward(ctx: Context | None, x: Array, weight: Array, *, y: None = ..., code: Wanted,
                    **fields: Unpack[_project_forward]) -> Any: ...
@overload
def project_forward(x: Array, weight: Array, *, ctx: Context | None = ..., y: None = ...,
                    code: Wanted, **fields: Unpack[_project_forward]) -> Any: ...
@overload
def project_forward(ctx: Context | None, x: A, weight: Array, *, y: Wanted, code: Wanted,
                    **fields: Unpack[_project_forward]) -> tuple[A, Any]: ...
@overload
def project_forward(x: A, weight: Array, *, ctx: Context | None = ..., y: Wanted, code: Wanted,
                    **fields: Unpack[_project_forward]) -> tuple[A, Any]: ...
@overload
def project_forward(ctx: Context | None, x: Array, weight: Array, *, y: Output = ...,
                    code: Output = ..., **fields: Unpack[_project_forward]) -> Any: ...
@overload
def project_forward(x: Array, weight: Array, *, ctx: Context | None = ..., y: Output = ...,
                    code: Output = ..., **fields: Unpack[_project_forward]) -> Any: ...

class _project_backward(TypedDict, total=False):
    bias: Array | None
    weight2: Array | None
    bias2: Array | None
    weight3: Array | None
    bias3: Array | None
    norm_weight: Array | None
    position: Array | None
    cos: Array | None
    sin: Array | None
    norm_eps: Float
    act: Literal["none", "silu", "gelu"] | ProjectAct | Int
    rope_begin: Int
    rope_interleaved: Int

@overload
def project_backward(ctx: Context | None, x: A, weight: Array, dy: Array, *,
                     dx: Wanted | None = ..., dweight: Wanted | None = ..., dbias: None = ...,
                     dweight2: None = ..., dbias2: None = ..., dweight3: None = ...,
                     dbias3: None = ..., dnorm_weight: None = ...,
                     **fields: Unpack[_project_backward]) -> tuple[A, A]: ...
@overload
def project_backward(x: A, weight: Array, dy: Array, *, ctx: Context | None = ...,
                     dx: Wanted | None = ..., dweight: Wanted | None = ..., dbias: None = ...,
                     dweight2: None = ..., dbias2: None = ..., dweight3: None = ...,
                     dbias3: None = ..., dnorm_weight: None = ...,
                     **fields: Unpack[_project_backward]) -> tuple[A, A]: ...
@overload
def project_backward(ctx: Context | None, x: Array, weight: Array, dy: Array, *, dx: Output = ...,
                     dweight: Output = ..., dbias: Output = ..., dweight2: Output = ...,
                     dbias2: Output = ..., dweight3: Output = ..., dbias3: Output = ...,
                     dnorm_weight: Output = ..., **fields: Unpack[_project_backward]) -> Any: ...
@overload
def project_backward(x: Array, weight: Array, dy: Array, *, ctx: Context | None = ...,
                     dx: Output = ..., dweight: Output = ..., dbias: Output = ...,
                     dweight2: Output = ..., dbias2: Output = ..., dweight3: Output = ...,
                     dbias3: Output = ..., dnorm_weight: Output = ...,
                     **fields: Unpack[_project_backward]) -> Any: ...

class _graph_append(TypedDict, total=False):
    q: Array | None
    query_len: Array | None
    key_len: Array | None
    old_len: Array | None
    nearest: Int
    kept: Int
    added: Int
    width: Int

@overload
def graph_append(ctx: Context | None, k: Array, neighbour: Array, neighbour_count: Array,
                 entry: Array, **fields: Unpack[_graph_append]) -> None: ...
@overload
def graph_append(k: Array, neighbour: Array, neighbour_count: Array, entry: Array, *,
                 ctx: Context | None = ..., **fields: Unpack[_graph_append]) -> None: ...

class _select_graph(TypedDict, total=False):
    query_len: Array | None
    key_len: Array | None
    neighbour: Array | None
    neighbour_count: Array | None
    entry: Array | None
    keep: Int | None
    count: Int
    ef: Int

@overload
def select_graph(ctx: Context | None, q: Array, k: Array, *, index: Wanted | None = ...,
                 index_count: Wanted | None = ..., scanned: None = ...,
                 **fields: Unpack[_select_graph]) -> tuple[Any, Any]: ...
@overload
def select_graph(q: Array, k: Array, *, ctx: Context | None = ..., index: Wanted | None = ...,
                 index_count: Wanted | None = ..., scanned: None = ...,
                 **fields: Unpack[_select_graph]) -> tuple[Any, Any]: ...
@overload
def select_graph(ctx: Context | None, q: Array, k: Array, *, index: Wanted | None = ...,
                 index_count: Wanted | None = ..., scanned: Wanted,
                 **fields: Unpack[_select_graph]) -> tuple[Any, Any, Any]: ...
@overload
def select_graph(q: Array, k: Array, *, ctx: Context | None = ..., index: Wanted | None = ...,
                 index_count: Wanted | None = ..., scanned: Wanted,
                 **fields: Unpack[_select_graph]) -> tuple[Any, Any, Any]: ...
@overload
def select_graph(ctx: Context | None, q: Array, k: Array, *, index: Output = ...,
                 index_count: Output = ..., scanned: Output = ...,
                 **fields: Unpack[_select_graph]) -> Any: ...
@overload
def select_graph(q: Array, k: Array, *, ctx: Context | None = ..., index: Output = ...,
                 index_count: Output = ..., scanned: Output = ...,
                 **fields: Unpack[_select_graph]) -> Any: ...

class _graph_forward(TypedDict, total=False):
    query_len: Array | None
    key_len: Array | None
    neighbour: Array | None
    neighbour_count: Array | None
    entry: Array | None
    keep: Int | None
    count: Int
    ef: Int
    scale: Float
    softcap: Float

@overload
def graph_forward(ctx: Context | None, q: A, k: Array, v: Array, *, o: Wanted | None = ...,
                  lse: None = ..., index: None = ..., index_count: None = ..., scanned: None = ...,
                  **fields: Unpack[_graph_forward]) -> A: ...
@overload
def graph_forward(q: A, k: Array, v: Array, *, ctx: Context | None = ..., o: Wanted | None = ...,
                  lse: None = ..., index: None = ..., index_count: None = ..., scanned: None = ...,
                  **fields: Unpack[_graph_forward]) -> A: ...
@overload
def graph_forward(ctx: Context | None, q: A, k: Array, v: Array, *, o: Wanted | None = ...,
                  lse: Wanted, index: None = ..., index_count: None = ..., scanned: None = ...,
                  **fields: Unpack[_graph_forward]) -> tuple[A, A]: ...
@overload
def graph_forward(q: A, k: Array, v: Array, *, ctx: Context | None = ..., o: Wanted | None = ...,
                  lse: Wanted, index: None = ..., index_count: None = ..., scanned: None = ...,
                  **fields: Unpack[_graph_forward]) -> tuple[A, A]: ...
@overload
def graph_forward(ctx: Context | None, q: A, k: Array, v: Array, *, o: Wanted | None = ...,
                  lse: None = ..., index: Wanted, index_count: None = ..., scanned: None = ...,
                  **fields: Unpack[_graph_forward]) -> tuple[A, Any]: ...
@overload
def graph_forward(q: A, k: Array, v: Array, *, ctx: Context | None = ..., o: Wanted | None = ...,
                  lse: None = ..., index: Wanted, index_count: None = ..., scanned: None = ...,
                  **fields: Unpack[_graph_forward]) -> tuple[A, Any]: ...
@overload
def graph_forward(ctx: Context | None, q: A, k: Array, v: Array, *, o: Wanted | None = ...,
                  lse: None = ..., index: None = ..., index_count: Wanted, scanned: None = ...,
                  **fields: Unpack[_graph_forward]) -> tuple[A, Any]: ...
@overload
def graph_forward(q: A, k: Array, v: Array, *, ctx: Context | None = ..., o: Wanted | None = ...,
                  lse: None = ..., index: None = ..., index_count: Wanted, scanned: None = ...,
                  **fields: Unpack[_graph_forward]) -> tuple[A, Any]: ...
@overload
def graph_forward(ctx: Context | None, q: A, k: Array, v: Array, *, o: Wanted | None = ...,
                  lse: None = ..., index: None = ..., index_count: None = ..., scanned: Wanted,
                  **fields: Unpack[_graph_forward]) -> tuple[A, Any]: ...
@overload
def graph_forward(q: A, k: Array, v: Array, *, ctx: Context | None = ..., o: Wanted | None = ...,
                  lse: None = ..., index: None = ..., index_count: None = ..., scanned: Wanted,
                  **fields: Unpack[_graph_forward]) -> tuple[A, Any]: ...
@overload
def graph_forward(ctx: Context | None, q: Array, k: Array, v: Array, *, o: Output = ...,
                  lse: Output = ..., index: Output = ..., index_count: Output = ...,
                  scanned: Output = ..., **fields: Unpack[_graph_forward]) -> Any: ...
@overload
def graph_forward(q: Array, k: Array, v: Array, *, ctx: Context | None = ..., o: Output = ...,
                  lse: Output = ..., index: Output = ..., index_count: Output = ...,
                  scanned: Output = ..., **fields: Unpack[_graph_forward]) -> Any: ...

class _lsh_append(TypedDict, total=False):
    query_len: Array | None
    old_len: Array | None

@overload
def lsh_append(ctx: Context | None, code: Array, bucket: Array, link: Array,
               **fields: Unpack[_lsh_append]) -> None: ...
@overload
def lsh_append(code: Array, bucket: Array, link: Array, *, ctx: Context | None = ...,
               **fields: Unpack[_lsh_append]) -> None: ...

class _select_lsh(TypedDict, total=False):
    q: Array | None
    k: Array | None
    query_len: Array | None
    key_len: Array | None
    keep: Int | None
    min_match: Int
    bits: Int

@overload
def select_lsh(ctx: Context | None, code_q: Array, bucket: Array, link: Array, *, index: None = ...,
               index_count: None = ..., index_bias: None = ...,
               **fields: Unpack[_select_lsh]) -> None: ...
@overload
def select_lsh(code_q: Array, bucket: Array, link: Array, *, ctx: Context | None = ...,
               index: None = ..., index_count: None = ..., index_bias: None = ...,
               **fields: Unpack[_select_lsh]) -> None: ...
@overload
def select_lsh(ctx: Context | None, code_q: Array, bucket: Array, link: Array, *, index: Wanted,
               index_count: None = ..., index_bias: None = ...,
               **fields: Unpack[_select_lsh]) -> Any: ...
@overload
def select_lsh(code_q: Array, bucket: Array, link: Array, *, ctx: Context | None = ...,
               index: Wanted, index_count: None = ..., index_bias: None = ...,
               **fields: Unpack[_select_lsh]) -> Any: ...
@overload
def select_lsh(ctx: Context | None, code_q: Array, bucket: Array, link: Array, *, index: None = ...,
               index_count: Wanted, index_bias: None = ...,
               **fields: Unpack[_select_lsh]) -> Any: ...
@overload
def select_lsh(code_q: Array, bucket: Array, link: Array, *, ctx: Context | None = ...,
               index: None = ..., index_count: Wanted, index_bias: None = ...,
               **fields: Unpack[_select_lsh]) -> Any: ...
@overload
def select_lsh(ctx: Context | None, code_q: A, bucket: Array, link: Array, *, index: None = ...,
               index_count: None = ..., index_bias: Wanted, **fields: Unpack[_select_lsh]) -> A: ...
@overload
def select_lsh(code_q: A, bucket: Array, link: Array, *, ctx: Context | None = ...,
               index: None = ..., index_count: None = ..., index_bias: Wanted,
               **fields: Unpack[_select_lsh]) -> A: ...
@overload
def select_lsh(ctx: Context | None, code_q: Array, bucket: Array, link: Array, *,
               index: Output = ..., index_count: Output = ..., index_bias: Output = ...,
               **fields: Unpack[_select_lsh]) -> Any: ...
@overload
def select_lsh(code_q: Array, bucket: Array, link: Array, *, ctx: Context | None = ...,
               index: Output = ..., index_count: Output = ..., index_bias: Output = ...,
               **fields: Unpack[_select_lsh]) -> Any: ...

class _lsh_forward(TypedDict, total=False):
    query_len: Array | None
    key_len: Array | None
    keep: Int | None
    max_keys: Int
    min_match: Int
    scale: Float
    bits: Int

@overload
def lsh_forward(ctx: Context | None, q: A, k: Array, v: Array, code_q: Array, bucket: Array,
                link: Array, *, o: Wanted | None = ..., lse: None = ..., index: None = ...,
                index_count: None = ..., index_bias: None = ...,
                **fields: Unpack[_lsh_forward]) -> A: ...
@overload
def lsh_forward(q: A, k: Array, v: Array, code_q: Array, bucket: Array, link: Array, *,
                ctx: Context | None = ..., o: Wanted | None = ..., lse: None = ...,
                index: None = ..., index_count: None = ..., index_bias: None = ...,
                **fields: Unpack[_lsh_forward]) -> A: ...
@overload
def lsh_forward(ctx: Context | None, q: A, k: Array, v: Array, code_q: Array, bucket: Array,
                link: Array, *, o: Wanted | None = ..., lse: Wanted, index: None = ...,
                index_count: None = ..., index_bias: None = ...,
                **fields: Unpack[_lsh_forward]) -> tuple[A, A]: ...
@overload
def lsh_forward(q: A, k: Array, v: Array, code_q: Array, bucket: Array, link: Array, *,
                ctx: Context | None = ..., o: Wanted | None = ..., lse: Wanted, index: None = ...,
                index_count: None = ..., index_bias: None = ...,
                **fields: Unpack[_lsh_forward]) -> tuple[A, A]: ...
@overload
def lsh_forward(ctx: Context | None, q: A, k: Array, v: Array, code_q: Array, bucket: Array,
                link: Array, *, o: Wanted | None = ..., lse: None = ..., index: Wanted,
                index_count: None = ..., index_bias: None = ...,
                **fields: Unpack[_lsh_forward]) -> tuple[A, Any]: ...
@overload
def lsh_forward(q: A, k: Array, v: Array, code_q: Array, bucket: Array, link: Array, *,
                ctx: Context | None = ..., o: Wanted | None = ..., lse: None = ..., index: Wanted,
                index_count: None = ..., index_bias: None = ...,
                **fields: Unpack[_lsh_forward]) -> tuple[A, Any]: ...
@overload
def lsh_forward(ctx: Context | None, q: A, k: Array, v: Array, code_q: Array, bucket: Array,
                link: Array, *, o: Wanted | None = ..., lse: None = ..., index: None = ...,
                index_count: Wanted, index_bias: None = ...,
                **fields: Unpack[_lsh_forward]) -> tuple[A, Any]: ...
@overload
def lsh_forward(q: A, k: Array, v: Array, code_q: Array, bucket: Array, link: Array, *,
                ctx: Context | None = ..., o: Wanted | None = ..., lse: None = ...,
                index: None = ..., index_count: Wanted, index_bias: None = ...,
                **fields: Unpack[_lsh_forward]) -> tuple[A, Any]: ...
@overload
def lsh_forward(ctx: Context | None, q: A, k: Array, v: Array, code_q: Array, bucket: Array,
                link: Array, *, o: Wanted | None = ..., lse: None = ..., index: None = ...,
                index_count: None = ..., index_bias: Wanted,
                **fields: Unpack[_lsh_forward]) -> tuple[A, A]: ...
@overload
def lsh_forward(q: A, k: Array, v: Array, code_q: Array, bucket: Array, link: Array, *,
                ctx: Context | None = ..., o: Wanted | None = ..., lse: None = ...,
                index: None = ..., index_count: None = ..., index_bias: Wanted,
                **fields: Unpack[_lsh_forward]) -> tuple[A, A]: ...
@overload
def lsh_forward(ctx: Context | None, q: Array, k: Array, v: Array, code_q: Array, bucket: Array,
                link: Array, *, o: Output = ..., lse: Output = ..., index: Output = ...,
                index_count: Output = ..., index_bias: Output = ...,
                **fields: Unpack[_lsh_forward]) -> Any: ...
@overload
def lsh_forward(q: Array, k: Array, v: Array, code_q: Array, bucket: Array, link: Array, *,
                ctx: Context | None = ..., o: Output = ..., lse: Output = ..., index: Output = ...,
                index_count: Output = ..., index_bias: Output = ...,
                **fields: Unpack[_lsh_forward]) -> Any: ...

class _conv1d_forward(TypedDict, total=False):
    bias: Array | None
    state_in: Array | None
    start: Array | None
    len: Array | None
    state_row: Array | None
    state_out_row: Array | None
    output_from: Array | None
    snapshot_row: Array | None
    slots_out: Int | None
    tail: Int | None
    snapshots: Int | None
    token_max: Int
    snapshot_every: Int
    activation: Literal["none", "silu"] | Conv1dActivation | Int

@overload
def conv1d_forward(ctx: Context | None, x: Array, weight: Array, *, y: None = ...,
                   state_out: None = ..., snapshot: None = ...,
                   **fields: Unpack[_conv1d_forward]) -> None: ...
@overload
def conv1d_forward(x: Array, weight: Array, *, ctx: Context | None = ..., y: None = ...,
                   state_out: None = ..., snapshot: None = ...,
                   **fields: Unpack[_conv1d_forward]) -> None: ...
@overload
def conv1d_forward(ctx: Context | None, x: A, weight: Array, *, y: Wanted, state_out: None = ...,
                   snapshot: None = ..., **fields: Unpack[_conv1d_forward]) -> A: ...
@overload
def conv1d_forward(x: A, weight: Array, *, ctx: Context | None = ..., y: Wanted,
                   state_out: None = ..., snapshot: None = ...,
                   **fields: Unpack[_conv1d_forward]) -> A: ...
@overload
def conv1d_forward(ctx: Context | None, x: A, weight: Array, *, y: None = ..., state_out: Wanted,
                   snapshot: None = ..., **fields: Unpack[_conv1d_forward]) -> A: ...
@overload
def conv1d_forward(x: A, weight: Array, *, ctx: Context | None = ..., y: None = ...,
                   state_out: Wanted, snapshot: None = ...,
                   **fields: Unpack[_conv1d_forward]) -> A: ...
@overload
def conv1d_forward(ctx: Context | None, x: A, weight: Array, *, y: None = ...,
                   state_out: None = ..., snapshot: Wanted,
                   **fields: Unpack[_conv1d_forward]) -> A: ...
@overload
def conv1d_forward(x: A, weight: Array, *, ctx: Context | None = ..., y: None = ...,
                   state_out: None = ..., snapshot: Wanted,
                   **fields: Unpack[_conv1d_forward]) -> A: ...
@overload
def conv1d_forward(ctx: Context | None, x: Array, weight: Array, *, y: Output = ...,
                   state_out: Output = ..., snapshot: Output = ...,
                   **fields: Unpack[_conv1d_forward]) -> Any: ...
@overload
def conv1d_forward(x: Array, weight: Array, *, ctx: Context | None = ..., y: Output = ...,
                   state_out: Output = ..., snapshot: Output = ...,
                   **fields: Unpack[_conv1d_forward]) -> Any: ...

class _conv1d_backward(TypedDict, total=False):
    bias: Array | None
    state_in: Array | None
    dstate_out: Array | None
    start: Array | None
    len: Array | None
    state_row: Array | None
    output_from: Array | None
    r: Int | None
    tail: Int | None
    token_max: Int
    activation: Literal["none", "silu"] | Conv1dActivation | Int

@overload
def conv1d_backward(ctx: Context | None, x: A, weight: Array, dy: Array, *, dx: Wanted | None = ...,
                    dweight: Wanted | None = ..., dbias: None = ..., dstate_in: None = ...,
                    **fields: Unpack[_conv1d_backward]) -> tuple[A, A]: ...
@overload
def conv1d_backward(x: A, weight: Array, dy: Array, *, ctx: Context | None = ...,
                    dx: Wanted | None = ..., dweight: Wanted | None = ..., dbias: None = ...,
                    dstate_in: None = ..., **fields: Unpack[_conv1d_backward]) -> tuple[A, A]: ...
@overload
def conv1d_backward(ctx: Context | None, x: A, weight: Array, dy: Array, *, dx: Wanted | None = ...,
                    dweight: Wanted | None = ..., dbias: Wanted, dstate_in: None = ...,
                    **fields: Unpack[_conv1d_backward]) -> tuple[A, A, A]: ...
@overload
def conv1d_backward(x: A, weight: Array, dy: Array, *, ctx: Context | None = ...,
                    dx: Wanted | None = ..., dweight: Wanted | None = ..., dbias: Wanted,
                    dstate_in: None = ..., **fields: Unpack[_conv1d_backward]) -> tuple[A, A,
                    A]: ...
@overload
def conv1d_backward(ctx: Context | None, x: A, weight: Array, dy: Array, *, dx: Wanted | None = ...,
                    dweight: Wanted | None = ..., dbias: None = ..., dstate_in: Wanted,
                    **fields: Unpack[_conv1d_backward]) -> tuple[A, A, A]: ...
@overload
def conv1d_backward(x: A, weight: Array, dy: Array, *, ctx: Context | None = ...,
                    dx: Wanted | None = ..., dweight: Wanted | None = ..., dbias: None = ...,
                    dstate_in: Wanted, **fields: Unpack[_conv1d_backward]) -> tuple[A, A, A]: ...
@overload
def conv1d_backward(ctx: Context | None, x: A, weight: Array, dy: Array, *, dx: Wanted | None = ...,
                    dweight: Wanted | None = ..., dbias: Wanted, dstate_in: Wanted,
                    **fields: Unpack[_conv1d_backward]) -> tuple[A, A, A, A]: ...
@overload
def conv1d_backward(x: A, weight: Array, dy: Array, *, ctx: Context | None = ...,
                    dx: Wanted | None = ..., dweight: Wanted | None = ..., dbias: Wanted,
                    dstate_in: Wanted, **fields: Unpack[_conv1d_backward]) -> tuple[A, A, A, A]: ...
@overload
def conv1d_backward(ctx: Context | None, x: Array, weight: Array, dy: Array, *, dx: Output = ...,
                    dweight: Output = ..., dbias: Output = ..., dstate_in: Output = ...,
                    **fields: Unpack[_conv1d_backward]) -> Any: ...
@overload
def conv1d_backward(x: Array, weight: Array, dy: Array, *, ctx: Context | None = ...,
                    dx: Output = ..., dweight: Output = ..., dbias: Output = ...,
                    dstate_in: Output = ..., **fields: Unpack[_conv1d_backward]) -> Any: ...

class _gla_forward(TypedDict, total=False):
    gate_head: Array | None
    gate_key: Array | None
    gate_value: Array | None
    gate_rate: Array | None
    gate_bias: Array | None
    select: Array | None
    bonus: Array | None
    skip: Array | None
    state_in: Array | None
    z_in: Array | None
    start: Array | None
    len: Array | None
    state_row: Array | None
    state_out_row: Array | None
    output_from: Array | None
    snapshot_row: Array | None
    key_start: Array | None
    key_len: Array | None
    slots_out: Int | None
    snapshots: Int | None
    token_max: Int
    snapshot_every: Int
    scale: Float
    eps: Float
    gate_bound: Float
    gate_tau: Float
    gate_map: Literal["log", "softplus", "bounded", "log_sigmoid", "exp"] | GateMap | Int
    map_q: Literal["none", "relu", "elu_plus_one", "silu"] | FeatureMap | Int
    map_k: Literal["none", "relu", "elu_plus_one", "silu"] | FeatureMap | Int
    full: Int
    read_before: Int
    normalise: Int
    bonus_sigmoid: Int
    splits: Int

@overload
def gla_forward(ctx: Context | None, q: Array, k: Array, v: Array, *, o: None = ...,
                state_out: None = ..., z_out: None = ..., snapshot: None = ...,
                z_snapshot: None = ..., **fields: Unpack[_gla_forward]) -> None: ...
@overload
def gla_forward(q: Array, k: Array, v: Array, *, ctx: Context | None = ..., o: None = ...,
                state_out: None = ..., z_out: None = ..., snapshot: None = ...,
                z_snapshot: None = ..., **fields: Unpack[_gla_forward]) -> None: ...
@overload
def gla_forward(ctx: Context | None, q: Array, k: Array, v: Array, *, o: Output = ...,
                state_out: Output = ..., z_out: Output = ..., snapshot: Output = ...,
                z_snapshot: Output = ..., **fields: Unpack[_gla_forward]) -> Any: ...
@overload
def gla_forward(q: Array, k: Array, v: Array, *, ctx: Context | None = ..., o: Output = ...,
                state_out: Output = ..., z_out: Output = ..., snapshot: Output = ...,
                z_snapshot: Output = ..., **fields: Unpack[_gla_forward]) -> Any: ...

class _gla_backward(TypedDict, total=False):
    gate_head: Array | None
    gate_key: Array | None
    gate_value: Array | None
    gate_rate: Array | None
    gate_bias: Array | None
    select: Array | None
    bonus: Array | None
    skip: Array | None
    state_in: Array | None
    z_in: Array | None
    dstate_out: Array | None
    dz_out: Array | None
    start: Array | None
    len: Array | None
    state_row: Array | None
    output_from: Array | None
    key_start: Array | None
    key_len: Array | None
    r: Int | None
    token_max: Int
    scale: Float
    eps: Float
    gate_bound: Float
    gate_tau: Float
    gate_map: Literal["log", "softplus", "bounded", "log_sigmoid", "exp"] | GateMap | Int
    map_q: Literal["none", "relu", "elu_plus_one", "silu"] | FeatureMap | Int
    map_k: Literal["none", "relu", "elu_plus_one", "silu"] | FeatureMap | Int
    full: Int
    read_before: Int
    normalise: Int
    bonus_sigmoid: Int

@overload
def gla_backward(ctx: Context | None, q: A, k: Array, v: Array, dout: Array, *,
                 dq: Wanted | None = ..., dk: Wanted | None = ..., dv: Wanted | None = ...,
                 dgate_head: None = ..., dgate_key: None = ..., dgate_value: None = ...,
                 dgate_rate: None = ..., dgate_bias: None = ..., dselect: None = ...,
                 dbonus: None = ..., dskip: None = ..., dstate_in: None = ..., dz_in: None = ...,
                 **fields: Unpack[_gla_backward]) -> tuple[A, A, A]: ...
@overload
def gla_backward(q: A, k: Array, v: Array, dout: Array, *, ctx: Context | None = ...,
                 dq: Wanted | None = ..., dk: Wanted | None = ..., dv: Wanted | None = ...,
                 dgate_head: None = ..., dgate_key: None = ..., dgate_value: None = ...,
                 dgate_rate: None = ..., dgate_bias: None = ..., dselect: None = ...,
                 dbonus: None = ..., dskip: None = ..., dstate_in: None = ..., dz_in: None = ...,
                 **fields: Unpack[_gla_backward]) -> tuple[A, A, A]: ...
@overload
def gla_backward(ctx: Context | None, q: Array, k: Array, v: Array, dout: Array, *,
                 dq: Output = ..., dk: Output = ..., dv: Output = ..., dgate_head: Output = ...,
                 dgate_key: Output = ..., dgate_value: Output = ..., dgate_rate: Output = ...,
                 dgate_bias: Output = ..., dselect: Output = ..., dbonus: Output = ...,
                 dskip: Output = ..., dstate_in: Output = ..., dz_in: Output = ...,
                 **fields: Unpack[_gla_backward]) -> Any: ...
@overload
def gla_backward(q: Array, k: Array, v: Array, dout: Array, *, ctx: Context | None = ...,
                 dq: Output = ..., dk: Output = ..., dv: Output = ..., dgate_head: Output = ...,
                 dgate_key: Output = ..., dgate_value: Output = ..., dgate_rate: Output = ...,
                 dgate_bias: Output = ..., dselect: Output = ..., dbonus: Output = ...,
                 dskip: Output = ..., dstate_in: Output = ..., dz_in: Output = ...,
                 **fields: Unpack[_gla_backward]) -> Any: ...

class _delta_forward(TypedDict, total=False):
    beta: Array | None
    erase: Array | None
    gate_head: Array | None
    gate_key: Array | None
    gate_rate: Array | None
    gate_bias: Array | None
    low_a: Array | None
    low_b: Array | None
    state_in: Array | None
    start: Array | None
    len: Array | None
    state_row: Array | None
    state_out_row: Array | None
    output_from: Array | None
    snapshot_row: Array | None
    slots_out: Int | None
    snapshots: Int | None
    token_max: Int
    snapshot_every: Int
    scale: Float
    eps: Float
    gate_bound: Float
    gate_tau: Float
    gate_map: Literal["log", "softplus", "bounded", "log_sigmoid", "exp"] | GateMap | Int
    beta_map: Literal["none", "sigmoid", "two_sigmoid"] | BetaMap | Int
    l2_norm: Int
    splits: Int

@overload
def delta_forward(ctx: Context | None, q: Array, k: Array, v: Array, *, o: None = ...,
                  state_out: None = ..., snapshot: None = ...,
                  **fields: Unpack[_delta_forward]) -> None: ...
@overload
def delta_forward(q: Array, k: Array, v: Array, *, ctx: Context | None = ..., o: None = ...,
                  state_out: None = ..., snapshot: None = ...,
                  **fields: Unpack[_delta_forward]) -> None: ...
@overload
def delta_forward(ctx: Context | None, q: A, k: Array, v: Array, *, o: Wanted,
                  state_out: None = ..., snapshot: None = ...,
                  **fields: Unpack[_delta_forward]) -> A: ...
@overload
def delta_forward(q: A, k: Array, v: Array, *, ctx: Context | None = ..., o: Wanted,
                  state_out: None = ..., snapshot: None = ...,
                  **fields: Unpack[_delta_forward]) -> A: ...
@overload
def delta_forward(ctx: Context | None, q: A, k: Array, v: Array, *, o: None = ...,
                  state_out: Wanted, snapshot: None = ...,
                  **fields: Unpack[_delta_forward]) -> A: ...
@overload
def delta_forward(q: A, k: Array, v: Array, *, ctx: Context | None = ..., o: None = ...,
                  state_out: Wanted, snapshot: None = ...,
                  **fields: Unpack[_delta_forward]) -> A: ...
@overload
def delta_forward(ctx: Context | None, q: A, k: Array, v: Array, *, o: None = ...,
                  state_out: None = ..., snapshot: Wanted,
                  **fields: Unpack[_delta_forward]) -> A: ...
@overload
def delta_forward(q: A, k: Array, v: Array, *, ctx: Context | None = ..., o: None = ...,
                  state_out: None = ..., snapshot: Wanted,
                  **fields: Unpack[_delta_forward]) -> A: ...
@overload
def delta_forward(ctx: Context | None, q: Array, k: Array, v: Array, *, o: Output = ...,
                  state_out: Output = ..., snapshot: Output = ...,
                  **fields: Unpack[_delta_forward]) -> Any: ...
@overload
def delta_forward(q: Array, k: Array, v: Array, *, ctx: Context | None = ..., o: Output = ...,
                  state_out: Output = ..., snapshot: Output = ...,
                  **fields: Unpack[_delta_forward]) -> Any: ...

class _delta_backward(TypedDict, total=False):
    beta: Array | None
    erase: Array | None
    gate_head: Array | None
    gate_key: Array | None
    gate_rate: Array | None
    gate_bias: Array | None
    low_a: Array | None
    low_b: Array | None
    state_in: Array | None
    dstate_out: Array | None
    start: Array | None
    len: Array | None
    state_row: Array | None
    output_from: Array | None
    r: Int | None
    token_max: Int
    scale: Float
    eps: Float
    gate_bound: Float
    gate_tau: Float
    gate_map: Literal["log", "softplus", "bounded", "log_sigmoid", "exp"] | GateMap | Int
    beta_map: Literal["none", "sigmoid", "two_sigmoid"] | BetaMap | Int
    l2_norm: Int

@overload
def delta_backward(ctx: Context | None, q: A, k: Array, v: Array, dout: Array, *,
                   dq: Wanted | None = ..., dk: Wanted | None = ..., dv: Wanted | None = ...,
                   dbeta: None = ..., derase: None = ..., dgate_head: None = ...,
                   dgate_key: None = ..., dgate_rate: None = ..., dgate_bias: None = ...,
                   dlow_a: None = ..., dlow_b: None = ..., dstate_in: None = ...,
                   **fields: Unpack[_delta_backward]) -> tuple[A, A, A]: ...
@overload
def delta_backward(q: A, k: Array, v: Array, dout: Array, *, ctx: Context | None = ...,
                   dq: Wanted | None = ..., dk: Wanted | None = ..., dv: Wanted | None = ...,
                   dbeta: None = ..., derase: None = ..., dgate_head: None = ...,
                   dgate_key: None = ..., dgate_rate: None = ..., dgate_bias: None = ...,
                   dlow_a: None = ..., dlow_b: None = ..., dstate_in: None = ...,
                   **fields: Unpack[_delta_backward]) -> tuple[A, A, A]: ...
@overload
def delta_backward(ctx: Context | None, q: Array, k: Array, v: Array, dout: Array, *,
                   dq: Output = ..., dk: Output = ..., dv: Output = ..., dbeta: Output = ...,
                   derase: Output = ..., dgate_head: Output = ..., dgate_key: Output = ...,
                   dgate_rate: Output = ..., dgate_bias: Output = ..., dlow_a: Output = ...,
                   dlow_b: Output = ..., dstate_in: Output = ...,
                   **fields: Unpack[_delta_backward]) -> Any: ...
@overload
def delta_backward(q: Array, k: Array, v: Array, dout: Array, *, ctx: Context | None = ...,
                   dq: Output = ..., dk: Output = ..., dv: Output = ..., dbeta: Output = ...,
                   derase: Output = ..., dgate_head: Output = ..., dgate_key: Output = ...,
                   dgate_rate: Output = ..., dgate_bias: Output = ..., dlow_a: Output = ...,
                   dlow_b: Output = ..., dstate_in: Output = ...,
                   **fields: Unpack[_delta_backward]) -> Any: ...

class _gsa_forward(TypedDict, total=False):
    state_k_in: Array | None
    state_v_in: Array | None
    start: Array | None
    len: Array | None
    state_row: Array | None
    state_out_row: Array | None
    output_from: Array | None
    slots_out: Int | None
    token_max: Int
    scale: Float
    gate_bound: Float
    gate_tau: Float
    gate_map: Literal["log", "softplus", "bounded", "log_sigmoid", "exp"] | GateMap | Int
    map_q: Literal["none", "relu", "elu_plus_one", "silu"] | FeatureMap | Int
    map_k: Literal["none", "relu", "elu_plus_one", "silu"] | FeatureMap | Int

@overload
def gsa_forward(ctx: Context | None, q: Array, k: Array, v: Array, gate: Array, *, o: None = ...,
                state_k_out: None = ..., state_v_out: None = ...,
                **fields: Unpack[_gsa_forward]) -> None: ...
@overload
def gsa_forward(q: Array, k: Array, v: Array, gate: Array, *, ctx: Context | None = ...,
                o: None = ..., state_k_out: None = ..., state_v_out: None = ...,
                **fields: Unpack[_gsa_forward]) -> None: ...
@overload
def gsa_forward(ctx: Context | None, q: A, k: Array, v: Array, gate: Array, *, o: Wanted,
                state_k_out: None = ..., state_v_out: None = ...,
                **fields: Unpack[_gsa_forward]) -> A: ...
@overload
def gsa_forward(q: A, k: Array, v: Array, gate: Array, *, ctx: Context | None = ..., o: Wanted,
                state_k_out: None = ..., state_v_out: None = ...,
                **fields: Unpack[_gsa_forward]) -> A: ...
@overload
def gsa_forward(ctx: Context | None, q: A, k: Array, v: Array, gate: Array, *, o: None = ...,
                state_k_out: Wanted, state_v_out: None = ...,
                **fields: Unpack[_gsa_forward]) -> A: ...
@overload
def gsa_forward(q: A, k: Array, v: Array, gate: Array, *, ctx: Context | None = ..., o: None = ...,
                state_k_out: Wanted, state_v_out: None = ...,
                **fields: Unpack[_gsa_forward]) -> A: ...
@overload
def gsa_forward(ctx: Context | None, q: A, k: Array, v: Array, gate: Array, *, o: None = ...,
                state_k_out: None = ..., state_v_out: Wanted,
                **fields: Unpack[_gsa_forward]) -> A: ...
@overload
def gsa_forward(q: A, k: Array, v: Array, gate: Array, *, ctx: Context | None = ..., o: None = ...,
                state_k_out: None = ..., state_v_out: Wanted,
                **fields: Unpack[_gsa_forward]) -> A: ...
@overload
def gsa_forward(ctx: Context | None, q: Array, k: Array, v: Array, gate: Array, *, o: Output = ...,
                state_k_out: Output = ..., state_v_out: Output = ...,
                **fields: Unpack[_gsa_forward]) -> Any: ...
@overload
def gsa_forward(q: Array, k: Array, v: Array, gate: Array, *, ctx: Context | None = ...,
                o: Output = ..., state_k_out: Output = ..., state_v_out: Output = ...,
                **fields: Unpack[_gsa_forward]) -> Any: ...

class _gsa_backward(TypedDict, total=False):
    state_k_in: Array | None
    state_v_in: Array | None
    dstate_k_out: Array | None
    dstate_v_out: Array | None
    start: Array | None
    len: Array | None
    state_row: Array | None
    output_from: Array | None
    r: Int | None
    token_max: Int
    scale: Float
    gate_bound: Float
    gate_tau: Float
    gate_map: Literal["log", "softplus", "bounded", "log_sigmoid", "exp"] | GateMap | Int
    map_q: Literal["none", "relu", "elu_plus_one", "silu"] | FeatureMap | Int
    map_k: Literal["none", "relu", "elu_plus_one", "silu"] | FeatureMap | Int

@overload
def gsa_backward(ctx: Context | None, q: A, k: Array, v: Array, gate: Array, dout: Array, *,
                 dq: Wanted | None = ..., dk: Wanted | None = ..., dv: Wanted | None = ...,
                 dgate: Wanted | None = ..., dstate_k_in: None = ..., dstate_v_in: None = ...,
                 **fields: Unpack[_gsa_backward]) -> tuple[A, A, A, A]: ...
@overload
def gsa_backward(q: A, k: Array, v: Array, gate: Array, dout: Array, *, ctx: Context | None = ...,
                 dq: Wanted | None = ..., dk: Wanted | None = ..., dv: Wanted | None = ...,
                 dgate: Wanted | None = ..., dstate_k_in: None = ..., dstate_v_in: None = ...,
                 **fields: Unpack[_gsa_backward]) -> tuple[A, A, A, A]: ...
@overload
def gsa_backward(ctx: Context | None, q: A, k: Array, v: Array, gate: Array, dout: Array, *,
                 dq: Wanted | None = ..., dk: Wanted | None = ..., dv: Wanted | None = ...,
                 dgate: Wanted | None = ..., dstate_k_in: Wanted, dstate_v_in: None = ...,
                 **fields: Unpack[_gsa_backward]) -> tuple[A, A, A, A, A]: ...
@overload
def gsa_backward(q: A, k: Array, v: Array, gate: Array, dout: Array, *, ctx: Context | None = ...,
                 dq: Wanted | None = ..., dk: Wanted | None = ..., dv: Wanted | None = ...,
                 dgate: Wanted | None = ..., dstate_k_in: Wanted, dstate_v_in: None = ...,
                 **fields: Unpack[_gsa_backward]) -> tuple[A, A, A, A, A]: ...
@overload
def gsa_backward(ctx: Context | None, q: A, k: Array, v: Array, gate: Array, dout: Array, *,
                 dq: Wanted | None = ..., dk: Wanted | None = ..., dv: Wanted | None = ...,
                 dgate: Wanted | None = ..., dstate_k_in: None = ..., dstate_v_in: Wanted,
                 **fields: Unpack[_gsa_backward]) -> tuple[A, A, A, A, A]: ...
@overload
def gsa_backward(q: A, k: Array, v: Array, gate: Array, dout: Array, *, ctx: Context | None = ...,
                 dq: Wanted | None = ..., dk: Wanted | None = ..., dv: Wanted | None = ...,
                 dgate: Wanted | None = ..., dstate_k_in: None = ..., dstate_v_in: Wanted,
                 **fields: Unpack[_gsa_backward]) -> tuple[A, A, A, A, A]: ...
@overload
def gsa_backward(ctx: Context | None, q: A, k: Array, v: Array, gate: Array, dout: Array, *,
                 dq: Wanted | None = ..., dk: Wanted | None = ..., dv: Wanted | None = ...,
                 dgate: Wanted | None = ..., dstate_k_in: Wanted, dstate_v_in: Wanted,
                 **fields: Unpack[_gsa_backward]) -> tuple[A, A, A, A, A, A]: ...
@overload
def gsa_backward(q: A, k: Array, v: Array, gate: Array, dout: Array, *, ctx: Context | None = ...,
                 dq: Wanted | None = ..., dk: Wanted | None = ..., dv: Wanted | None = ...,
                 dgate: Wanted | None = ..., dstate_k_in: Wanted, dstate_v_in: Wanted,
                 **fields: Unpack[_gsa_backward]) -> tuple[A, A, A, A, A, A]: ...
@overload
def gsa_backward(ctx: Context | None, q: Array, k: Array, v: Array, gate: Array, dout: Array, *,
                 dq: Output = ..., dk: Output = ..., dv: Output = ..., dgate: Output = ...,
                 dstate_k_in: Output = ..., dstate_v_in: Output = ...,
                 **fields: Unpack[_gsa_backward]) -> Any: ...
@overload
def gsa_backward(q: Array, k: Array, v: Array, gate: Array, dout: Array, *,
                 ctx: Context | None = ..., dq: Output = ..., dk: Output = ..., dv: Output = ...,
                 dgate: Output = ..., dstate_k_in: Output = ..., dstate_v_in: Output = ...,
                 **fields: Unpack[_gsa_backward]) -> Any: ...

class _tpa_forward(TypedDict, total=False):
    q: Array | None
    a_q: Array | None
    b_q: Array | None
    query_start: Array | None
    key_start: Array | None
    query_len: Array | None
    key_len: Array | None
    page_table: Array | None
    cache_row: Array | None
    context_len: Array | None
    b: Int | None
    s: Int | None
    query_max: Int
    key_max: Int
    window_left: Int
    window_right: Int
    sink_keys: Int
    key_step: Int
    key_shift: Int
    scale: Float
    scale_q: Float
    scale_k: Float
    scale_v: Float
    causal: Int
    splits: Int

@overload
def tpa_forward(ctx: Context | None, a_k: A, b_k: Array, a_v: Array, b_v: Array, *,
                o: Wanted | None = ..., lse: None = ..., **fields: Unpack[_tpa_forward]) -> A: ...
@overload
def tpa_forward(a_k: A, b_k: Array, a_v: Array, b_v: Array, *, ctx: Context | None = ...,
                o: Wanted | None = ..., lse: None = ..., **fields: Unpack[_tpa_forward]) -> A: ...
@overload
def tpa_forward(ctx: Context | None, a_k: A, b_k: Array, a_v: Array, b_v: Array, *,
                o: Wanted | None = ..., lse: Wanted, **fields: Unpack[_tpa_forward]) -> tuple[A,
                A]: ...
@overload
def tpa_forward(a_k: A, b_k: Array, a_v: Array, b_v: Array, *, ctx: Context | None = ...,
                o: Wanted | None = ..., lse: Wanted, **fields: Unpack[_tpa_forward]) -> tuple[A,
                A]: ...
@overload
def tpa_forward(ctx: Context | None, a_k: Array, b_k: Array, a_v: Array, b_v: Array, *,
                o: Output = ..., lse: Output = ..., **fields: Unpack[_tpa_forward]) -> Any: ...
@overload
def tpa_forward(a_k: Array, b_k: Array, a_v: Array, b_v: Array, *, ctx: Context | None = ...,
                o: Output = ..., lse: Output = ..., **fields: Unpack[_tpa_forward]) -> Any: ...

class _tpa_backward(TypedDict, total=False):
    q: Array | None
    a_q: Array | None
    b_q: Array | None
    dlse: Array | None
    query_start: Array | None
    key_start: Array | None
    query_len: Array | None
    key_len: Array | None
    query_max: Int
    key_max: Int
    window_left: Int
    window_right: Int
    sink_keys: Int
    scale: Float
    scale_q: Float
    scale_k: Float
    scale_v: Float
    causal: Int
    nondeterministic: Int

@overload
def tpa_backward(ctx: Context | None, a_k: A, b_k: Array, a_v: Array, b_v: Array, o: Array,
                 lse: Array, dout: Array, *, da_k: Wanted | None = ..., db_k: Wanted | None = ...,
                 da_v: Wanted | None = ..., db_v: Wanted | None = ..., dq: None = ...,
                 da_q: None = ..., db_q: None = ..., **fields: Unpack[_tpa_backward]) -> tuple[A, A,
                 A, A]: ...
@overload
def tpa_backward(a_k: A, b_k: Array, a_v: Array, b_v: Array, o: Array, lse: Array, dout: Array, *,
                 ctx: Context | None = ..., da_k: Wanted | None = ..., db_k: Wanted | None = ...,
                 da_v: Wanted | None = ..., db_v: Wanted | None = ..., dq: None = ...,
                 da_q: None = ..., db_q: None = ..., **fields: Unpack[_tpa_backward]) -> tuple[A, A,
                 A, A]: ...
@overload
def tpa_backward(ctx: Context | None, a_k: A, b_k: Array, a_v: Array, b_v: Array, o: Array,
                 lse: Array, dout: Array, *, da_k: Wanted | None = ..., db_k: Wanted | None = ...,
                 da_v: Wanted | None = ..., db_v: Wanted | None = ..., dq: Wanted, da_q: None = ...,
                 db_q: None = ..., **fields: Unpack[_tpa_backward]) -> tuple[A, A, A, A, A]: ...
@overload
def tpa_backward(a_k: A, b_k: Array, a_v: Array, b_v: Array, o: Array, lse: Array, dout: Array, *,
                 ctx: Context | None = ..., da_k: Wanted | None = ..., db_k: Wanted | None = ...,
                 da_v: Wanted | None = ..., db_v: Wanted | None = ..., dq: Wanted, da_q: None = ...,
                 db_q: None = ..., **fields: Unpack[_tpa_backward]) -> tuple[A, A, A, A, A]: ...
@overload
def tpa_backward(ctx: Context | None, a_k: A, b_k: Array, a_v: Array, b_v: Array, o: Array,
                 lse: Array, dout: Array, *, da_k: Wanted | None = ..., db_k: Wanted | None = ...,
                 da_v: Wanted | None = ..., db_v: Wanted | None = ..., dq: None = ..., da_q: Wanted,
                 db_q: None = ..., **fields: Unpack[_tpa_backward]) -> tuple[A, A, A, A, A]: ...
@overload
def tpa_backward(a_k: A, b_k: Array, a_v: Array, b_v: Array, o: Array, lse: Array, dout: Array, *,
                 ctx: Context | None = ..., da_k: Wanted | None = ..., db_k: Wanted | None = ...,
                 da_v: Wanted | None = ..., db_v: Wanted | None = ..., dq: None = ..., da_q: Wanted,
                 db_q: None = ..., **fields: Unpack[_tpa_backward]) -> tuple[A, A, A, A, A]: ...
@overload
def tpa_backward(ctx: Context | None, a_k: A, b_k: Array, a_v: Array, b_v: Array, o: Array,
                 lse: Array, dout: Array, *, da_k: Wanted | None = ..., db_k: Wanted | None = ...,
                 da_v: Wanted | None = ..., db_v: Wanted | None = ..., dq: None = ...,
                 da_q: None = ..., db_q: Wanted, **fields: Unpack[_tpa_backward]) -> tuple[A, A, A,
                 A, A]: ...
@overload
def tpa_backward(a_k: A, b_k: Array, a_v: Array, b_v: Array, o: Array, lse: Array, dout: Array, *,
                 ctx: Context | None = ..., da_k: Wanted | None = ..., db_k: Wanted | None = ...,
                 da_v: Wanted | None = ..., db_v: Wanted | None = ..., dq: None = ...,
                 da_q: None = ..., db_q: Wanted, **fields: Unpack[_tpa_backward]) -> tuple[A, A, A,
                 A, A]: ...
@overload
def tpa_backward(ctx: Context | None, a_k: Array, b_k: Array, a_v: Array, b_v: Array, o: Array,
                 lse: Array, dout: Array, *, da_k: Output = ..., db_k: Output = ...,
                 da_v: Output = ..., db_v: Output = ..., dq: Output = ..., da_q: Output = ...,
                 db_q: Output = ..., **fields: Unpack[_tpa_backward]) -> Any: ...
@overload
def tpa_backward(a_k: Array, b_k: Array, a_v: Array, b_v: Array, o: Array, lse: Array, dout: Array,
                 *, ctx: Context | None = ..., da_k: Output = ..., db_k: Output = ...,
                 da_v: Output = ..., db_v: Output = ..., dq: Output = ..., da_q: Output = ...,
                 db_q: Output = ..., **fields: Unpack[_tpa_backward]) -> Any: ...

class _kv_append(TypedDict, total=False):
    k_scale: Array | None
    k_zero: Array | None
    v_scale: Array | None
    v_zero: Array | None
    k_tail: Array | None
    v_tail: Array | None
    k_factor: Array | None
    v_factor: Array | None
    k_level: Array | None
    v_level: Array | None
    k_offset: Array | None
    k_range: Array | None
    v_bound: Array | None
    k_norm: Array | None
    v_norm: Array | None
    k_outlier: Array | None
    v_outlier: Array | None
    k_first: Array | None
    v_first: Array | None
    query_start: Array | None
    query_len: Array | None
    cache_row: Array | None
    query_max: Int
    bits: Int
    group: Int
    flush: Int
    format: Literal["groups", "levels", "norms", "tiles"] | KvFormat | Int
    v_bits: Int

@overload
def kv_append(ctx: Context | None, k_new: Array, v_new: Array, k_code: Array, v_code: Array,
              counter: Array, page_table: Array, **fields: Unpack[_kv_append]) -> None: ...
@overload
def kv_append(k_new: Array, v_new: Array, k_code: Array, v_code: Array, counter: Array,
              page_table: Array, *, ctx: Context | None = ...,
              **fields: Unpack[_kv_append]) -> None: ...

class _kv_decode(TypedDict, total=False):
    k_scale: Array | None
    k_zero: Array | None
    v_scale: Array | None
    v_zero: Array | None
    k_tail: Array | None
    v_tail: Array | None
    k_factor: Array | None
    v_factor: Array | None
    k_level: Array | None
    v_level: Array | None
    k_offset: Array | None
    k_range: Array | None
    v_bound: Array | None
    k_norm: Array | None
    v_norm: Array | None
    k_outlier: Array | None
    v_outlier: Array | None
    k_first: Array | None
    v_first: Array | None
    query_start: Array | None
    query_len: Array | None
    cache_row: Array | None
    sink_logit: Array | None
    cos: Array | None
    sin: Array | None
    e: Int | None
    query_max: Int
    key_max: Int
    window_left: Int
    window_right: Int
    sink_keys: Int
    scale: Float
    causal: Int
    bits: Int
    group: Int
    splits: Int
    format: Literal["groups", "levels", "norms", "tiles"] | KvFormat | Int
    rope_begin: Int
    rope_interleaved: Int
    v_bits: Int

@overload
def kv_decode(ctx: Context | None, q: A, k_code: Array, v_code: Array, counter: Array,
              page_table: Array, *, o: Wanted | None = ..., lse: None = ...,
              **fields: Unpack[_kv_decode]) -> A: ...
@overload
def kv_decode(q: A, k_code: Array, v_code: Array, counter: Array, page_table: Array, *,
              ctx: Context | None = ..., o: Wanted | None = ..., lse: None = ...,
              **fields: Unpack[_kv_decode]) -> A: ...
@overload
def kv_decode(ctx: Context | None, q: A, k_code: Array, v_code: Array, counter: Array,
              page_table: Array, *, o: Wanted | None = ..., lse: Wanted,
              **fields: Unpack[_kv_decode]) -> tuple[A, A]: ...
@overload
def kv_decode(q: A, k_code: Array, v_code: Array, counter: Array, page_table: Array, *,
              ctx: Context | None = ..., o: Wanted | None = ..., lse: Wanted,
              **fields: Unpack[_kv_decode]) -> tuple[A, A]: ...
@overload
def kv_decode(ctx: Context | None, q: Array, k_code: Array, v_code: Array, counter: Array,
              page_table: Array, *, o: Output = ..., lse: Output = ...,
              **fields: Unpack[_kv_decode]) -> Any: ...
@overload
def kv_decode(q: Array, k_code: Array, v_code: Array, counter: Array, page_table: Array, *,
              ctx: Context | None = ..., o: Output = ..., lse: Output = ...,
              **fields: Unpack[_kv_decode]) -> Any: ...
