# SPDX-License-Identifier: Apache-2.0
# What type checkers read of fovea.distributed; a test holds the parameters to the functions'.
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Literal, NamedTuple, Optional, Union, overload

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from .._errors import FoveaError
from ..torch import Trace

_Group = Union[ProcessGroup, DeviceMesh, None]
_Layout = Literal["zigzag", "contiguous"]
_Starts = Union[Tensor, Sequence[int], None]
_Direction = Literal["teacher_student", "student_teacher"]
_Reduction = Literal["mean", "sum", "none"]
_Split = Literal["ring", "heads", "mesh", "decode", "state"]

class PeerError(FoveaError): ...

class Cost(NamedTuple):
    flops: float
    memory_bytes: float
    sent_bytes: float
    messages: int
    compute_seconds: float
    exchange_seconds: float
    exposed_seconds: float
    seconds: float
    speedup: float
    simulated: bool

@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, mesh: _Group = ..., *,
    causal: bool = ..., scale: Optional[float] = ..., window_left: int = ...,
    window_right: int = ..., sink_keys: int = ..., local_chunk: int = ..., softcap: float = ...,
    alibi: Optional[Tensor] = ..., sink_logit: Optional[Tensor] = ..., query_start: _Starts = ...,
    layout: Optional[_Layout] = ...,
    return_lse: Literal[False] = ..., check: bool = ...,
) -> Tensor: ...
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, mesh: _Group = ..., *,
    causal: bool = ..., scale: Optional[float] = ..., window_left: int = ...,
    window_right: int = ..., sink_keys: int = ..., local_chunk: int = ..., softcap: float = ...,
    alibi: Optional[Tensor] = ..., sink_logit: Optional[Tensor] = ..., query_start: _Starts = ...,
    layout: Optional[_Layout] = ...,
    return_lse: Literal[True], check: bool = ...,
) -> tuple[Tensor, Tensor]: ...
def context_parallel(
    mesh: _Group = ..., *, buffers: Optional[Sequence[Tensor]] = ...,
    buffer_seq_dims: Optional[Sequence[int]] = ...,
    no_restore_buffers: Optional[Collection[Tensor]] = ..., layout: _Layout = ...,
    query_start: _Starts = ..., check: bool = ...,
) -> AbstractContextManager[None]: ...
def cost(
    split: _Split, ranks: int, tokens: int, *, heads: int = ..., key_heads: Optional[int] = ...,
    width: int = ..., value_width: Optional[int] = ..., batch: int = ..., causal: bool = ...,
    backward: bool = ..., window_left: int = ..., second: int = ..., layers: int = ...,
    element_bytes: int = ..., device_flops: float = ..., device_bytes: float = ...,
    link_bytes: float = ..., latency: float = ...,
) -> Cost: ...
@overload
def decode(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, group: _Group = ..., *, context_len: Tensor,
    key_begin: Optional[int] = ..., page_table: Optional[Tensor] = ...,
    cache_row: Optional[Tensor] = ..., causal: bool = ..., scale: Optional[float] = ...,
    window_left: int = ..., sink_keys: int = ..., softcap: float = ...,
    sink_logit: Optional[Tensor] = ..., splits: int = ..., return_lse: Literal[False] = ...,
    check: bool = ...,
) -> Tensor: ...
@overload
def decode(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, group: _Group = ..., *, context_len: Tensor,
    key_begin: Optional[int] = ..., page_table: Optional[Tensor] = ...,
    cache_row: Optional[Tensor] = ..., causal: bool = ..., scale: Optional[float] = ...,
    window_left: int = ..., sink_keys: int = ..., softcap: float = ...,
    sink_logit: Optional[Tensor] = ..., splits: int = ..., return_lse: Literal[True],
    check: bool = ...,
) -> tuple[Tensor, Tensor]: ...
@overload
def delta(
    q: Tensor, k: Tensor, v: Tensor, group: _Group = ..., *, beta: Optional[Tensor] = ...,
    erase: Optional[Tensor] = ..., gate_head: Optional[Tensor] = ...,
    gate_key: Optional[Tensor] = ..., gate_rate: Optional[Tensor] = ...,
    gate_bias: Optional[Tensor] = ..., low_a: Optional[Tensor] = ..., low_b: Optional[Tensor] = ...,
    state_in: Optional[Tensor] = ..., scale: Optional[float] = ..., eps: float = ...,
    gate_bound: float = ..., gate_tau: float = ..., gate_map: int = ..., beta_map: int = ...,
    l2_norm: bool = ..., splits: int = ..., return_state: Literal[False] = ..., check: bool = ...,
) -> Tensor: ...
@overload
def delta(
    q: Tensor, k: Tensor, v: Tensor, group: _Group = ..., *, beta: Optional[Tensor] = ...,
    erase: Optional[Tensor] = ..., gate_head: Optional[Tensor] = ...,
    gate_key: Optional[Tensor] = ..., gate_rate: Optional[Tensor] = ...,
    gate_bias: Optional[Tensor] = ..., low_a: Optional[Tensor] = ..., low_b: Optional[Tensor] = ...,
    state_in: Optional[Tensor] = ..., scale: Optional[float] = ..., eps: float = ...,
    gate_bound: float = ..., gate_tau: float = ..., gate_map: int = ..., beta_map: int = ...,
    l2_norm: bool = ..., splits: int = ..., return_state: Literal[True], check: bool = ...,
) -> tuple[Tensor, Tensor]: ...
@overload
def gla(
    q: Tensor, k: Tensor, v: Tensor, group: _Group = ..., *, gate_head: Optional[Tensor] = ...,
    gate_key: Optional[Tensor] = ..., gate_value: Optional[Tensor] = ...,
    gate_rate: Optional[Tensor] = ..., gate_bias: Optional[Tensor] = ...,
    select: Optional[Tensor] = ..., bonus: Optional[Tensor] = ..., skip: Optional[Tensor] = ...,
    state_in: Optional[Tensor] = ..., scale: Optional[float] = ..., gate_bound: float = ...,
    gate_tau: float = ..., gate_map: int = ..., map_q: int = ..., map_k: int = ...,
    read_before: bool = ..., bonus_sigmoid: bool = ..., splits: int = ...,
    return_state: Literal[False] = ..., check: bool = ...,
) -> Tensor: ...
@overload
def gla(
    q: Tensor, k: Tensor, v: Tensor, group: _Group = ..., *, gate_head: Optional[Tensor] = ...,
    gate_key: Optional[Tensor] = ..., gate_value: Optional[Tensor] = ...,
    gate_rate: Optional[Tensor] = ..., gate_bias: Optional[Tensor] = ...,
    select: Optional[Tensor] = ..., bonus: Optional[Tensor] = ..., skip: Optional[Tensor] = ...,
    state_in: Optional[Tensor] = ..., scale: Optional[float] = ..., gate_bound: float = ...,
    gate_tau: float = ..., gate_map: int = ..., map_q: int = ..., map_k: int = ...,
    read_before: bool = ..., bonus_sigmoid: bool = ..., splits: int = ...,
    return_state: Literal[True], check: bool = ...,
) -> tuple[Tensor, Tensor]: ...
@overload
def head_attention(
    q: Tensor, k: Tensor, v: Tensor, group: _Group = ..., *,
    causal: bool = ..., scale: Optional[float] = ..., window_left: int = ...,
    window_right: int = ..., sink_keys: int = ..., local_chunk: int = ..., softcap: float = ...,
    alibi: Optional[Tensor] = ..., sink_logit: Optional[Tensor] = ...,
    query_start: _Starts = ..., layout: _Layout = ..., return_lse: Literal[False] = ...,
    check: bool = ...,
) -> Tensor: ...
@overload
def head_attention(
    q: Tensor, k: Tensor, v: Tensor, group: _Group = ..., *,
    causal: bool = ..., scale: Optional[float] = ..., window_left: int = ...,
    window_right: int = ..., sink_keys: int = ..., local_chunk: int = ..., softcap: float = ...,
    alibi: Optional[Tensor] = ..., sink_logit: Optional[Tensor] = ...,
    query_start: _Starts = ..., layout: _Layout = ..., return_lse: Literal[True],
    check: bool = ...,
) -> tuple[Tensor, Tensor]: ...
def kl_loss(
    q_teacher: Tensor, k_teacher: Tensor, q_student: Tensor, k_student: Tensor,
    group: _Group = ..., *, causal: bool = ..., scale_teacher: Optional[float] = ...,
    scale_student: Optional[float] = ..., direction: _Direction = ..., reduction: _Reduction = ...,
    row_weight: Optional[Tensor] = ..., window_left: int = ..., window_right: int = ...,
    sink_keys: int = ..., query_start: _Starts = ..., layout: _Layout = ..., check: bool = ...,
) -> Tensor: ...
def positions(
    tokens: int | Sequence[int], group: _Group = ..., *, layout: _Layout = ...,
    device: torch.device | str | int | None = ...,
) -> Tensor: ...
@overload
def ring_attention(
    q: Tensor, k: Tensor, v: Tensor, group: _Group = ..., *,
    causal: bool = ..., scale: Optional[float] = ..., window_left: int = ...,
    window_right: int = ..., sink_keys: int = ..., local_chunk: int = ..., softcap: float = ...,
    alibi: Optional[Tensor] = ..., sink_logit: Optional[Tensor] = ..., query_start: _Starts = ...,
    layout: _Layout = ..., tokens: Optional[Sequence[int]] = ...,
    return_lse: Literal[False] = ..., check: bool = ...,
) -> Tensor: ...
@overload
def ring_attention(
    q: Tensor, k: Tensor, v: Tensor, group: _Group = ..., *,
    causal: bool = ..., scale: Optional[float] = ..., window_left: int = ...,
    window_right: int = ..., sink_keys: int = ..., local_chunk: int = ..., softcap: float = ...,
    alibi: Optional[Tensor] = ..., sink_logit: Optional[Tensor] = ..., query_start: _Starts = ...,
    layout: _Layout = ..., tokens: Optional[Sequence[int]] = ...,
    return_lse: Literal[True], check: bool = ...,
) -> tuple[Tensor, Tensor]: ...
def shard(
    x: Tensor, group: _Group = ..., *, dim: int = ..., layout: _Layout = ...,
    tokens: Optional[Sequence[int]] = ...,
) -> Tensor: ...
def trace(
    q: Tensor, k: Tensor, v: Tensor, group: _Group = ..., *, keep: int, block_rows: int = ...,
    block_keys: int = ..., causal: bool = ..., scale: Optional[float] = ..., exact: bool = ...,
    return_lse: bool = ..., return_dense: bool = ..., return_mass: bool = ...,
    layout: _Layout = ..., check: bool = ...,
) -> Trace: ...
def unshard(
    x: Tensor, group: _Group = ..., *, dim: int = ..., layout: _Layout = ...,
    tokens: Optional[Sequence[int]] = ...,
) -> Tensor: ...
