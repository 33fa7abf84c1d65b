# SPDX-License-Identifier: Apache-2.0
# What type checkers read of fovea.torch; a test holds the parameters to the functions'.
from collections.abc import Sequence
from typing import Any, Callable, Literal, NamedTuple, Optional, overload

import torch
from torch import Tensor

from .._core import Context

_Direction = Literal["teacher_student", "student_teacher"]
_Reduction = Literal["mean", "sum", "none"]

class Trace(NamedTuple):
    selected: Tensor
    score: Tensor
    o: Tensor
    lse: Optional[Tensor]
    lse_dense: Optional[Tensor]
    mass: Optional[Tensor]

class KLDistillationLoss(torch.nn.Module):
    def __init__(
        self, *, causal: bool = ..., direction: _Direction = ..., reduction: _Reduction = ...,
        scale_teacher: Optional[float] = ..., scale_student: Optional[float] = ...,
        window_left: int = ..., window_right: int = ..., sink_keys: int = ...,
    ) -> None: ...
    def forward(
        self, q_teacher: Tensor, k_teacher: Tensor, q_student: Tensor, k_student: Tensor,
        **of_the_call: Any,
    ) -> Tensor: ...

class MultiTokenAttention(torch.nn.Module):
    def __init__(
        self, embed_dim: int, num_heads: int, *, num_kv_heads: Optional[int] = ...,
        head_dim: Optional[int] = ..., kernel_rows: int = ..., kernel_columns: int = ...,
        group_heads: int = ..., mix: Literal["before", "after", "both"] = ..., norm: bool = ...,
        layer: Optional[int] = ..., causal: bool = ..., bias: bool = ..., eps: float = ...,
        device: torch.device | str | int | None = ..., dtype: Optional[torch.dtype] = ...,
    ) -> None: ...
    def forward(
        self, x: Tensor, *, query_len: Optional[Tensor] = ...,
        rotate: Optional[Callable[..., Any]] = ...,
    ) -> Tensor: ...
    def reset_parameters(self) -> None: ...

class QuantisedCache:
    recipe: str
    bits: int
    v_bits: int
    group: int
    residual: int
    page: int
    rows: int
    heads: int
    width: int
    value_width: int
    capacity: int
    dtype: torch.dtype
    device: torch.device
    counter: Tensor
    page_table: Tensor
    def __init__(
        self, recipe: str, rows: int, heads: int, width: int, value_width: Optional[int] = ..., *,
        group: Optional[int] = ..., residual: int = ..., page: Optional[int] = ...,
        capacity: int = ..., dtype: torch.dtype = ...,
        device: torch.device | str | int | None = ...,
    ) -> None: ...
    @property
    def lengths(self) -> Tensor: ...
    @property
    def bytes_a_token(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def append(
        self, k: Tensor, v: Tensor, *, query_start: Optional[Tensor] = ...,
        query_len: Optional[Tensor] = ..., cache_row: Optional[Tensor] = ..., query_max: int = ...,
        flush: bool = ...,
    ) -> None: ...
    def crop(self, length: int | Tensor) -> None: ...
    @overload
    def decode(
        self, q: Tensor, *, causal: bool = ..., scale: Optional[float] = ...,
        window_left: int = ..., window_right: int = ..., sink_keys: int = ...,
        sink_logit: Optional[Tensor] = ..., query_start: Optional[Tensor] = ...,
        query_len: Optional[Tensor] = ..., cache_row: Optional[Tensor] = ..., query_max: int = ...,
        splits: int = ..., return_lse: Literal[False] = ...,
    ) -> Tensor: ...
    @overload
    def decode(
        self, q: Tensor, *, causal: bool = ..., scale: Optional[float] = ...,
        window_left: int = ..., window_right: int = ..., sink_keys: int = ...,
        sink_logit: Optional[Tensor] = ..., query_start: Optional[Tensor] = ...,
        query_len: Optional[Tensor] = ..., cache_row: Optional[Tensor] = ..., query_max: int = ...,
        splits: int = ..., return_lse: Literal[True],
    ) -> tuple[Tensor, Tensor]: ...
    def reserve(self, tokens: int) -> None: ...
    def reset(self) -> None: ...
    def select(self, rows: Tensor | Sequence[int]) -> None: ...

def activate(name: str = ...) -> None: ...
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = ..., scale: Optional[float] = ...,
    window_left: int = ..., window_right: int = ..., sink_keys: int = ..., local_chunk: int = ...,
    softcap: float = ..., mask: Optional[Tensor] = ..., bias: Optional[Tensor] = ...,
    alibi: Optional[Tensor] = ..., sink_logit: Optional[Tensor] = ...,
    query_len: Optional[Tensor] = ..., key_len: Optional[Tensor] = ...,
    key_first: Optional[Tensor] = ..., return_lse: Literal[False] = ...,
) -> Tensor: ...
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = ..., scale: Optional[float] = ...,
    window_left: int = ..., window_right: int = ..., sink_keys: int = ..., local_chunk: int = ...,
    softcap: float = ..., mask: Optional[Tensor] = ..., bias: Optional[Tensor] = ...,
    alibi: Optional[Tensor] = ..., sink_logit: Optional[Tensor] = ...,
    query_len: Optional[Tensor] = ..., key_len: Optional[Tensor] = ...,
    key_first: Optional[Tensor] = ..., return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...
def context(device: torch.device | str | int | None = ...) -> Context: ...
@overload
def conv_attention(
    q: Tensor, k: Tensor, v: Tensor, weight: Tensor, *, mix_before: Optional[Tensor] = ...,
    mix_after: Optional[Tensor] = ..., causal: bool = ..., scale: Optional[float] = ...,
    query_len: Optional[Tensor] = ..., key_len: Optional[Tensor] = ...,
    query_start: Optional[Tensor] = ..., key_start: Optional[Tensor] = ..., query_max: int = ...,
    key_max: int = ..., history: int = ..., return_lse: Literal[False] = ...,
) -> Tensor: ...
@overload
def conv_attention(
    q: Tensor, k: Tensor, v: Tensor, weight: Tensor, *, mix_before: Optional[Tensor] = ...,
    mix_after: Optional[Tensor] = ..., causal: bool = ..., scale: Optional[float] = ...,
    query_len: Optional[Tensor] = ..., key_len: Optional[Tensor] = ...,
    query_start: Optional[Tensor] = ..., key_start: Optional[Tensor] = ..., query_max: int = ...,
    key_max: int = ..., history: int = ..., return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...
@overload
def decode(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, *, page_table: Optional[Tensor] = ...,
    key_len: Optional[Tensor] = ..., cache_row: Optional[Tensor] = ..., causal: bool = ...,
    scale: Optional[float] = ..., window_left: int = ..., window_right: int = ...,
    sink_keys: int = ..., local_chunk: int = ..., softcap: float = ...,
    alibi: Optional[Tensor] = ..., sink_logit: Optional[Tensor] = ...,
    query_len: Optional[Tensor] = ..., key_first: Optional[Tensor] = ...,
    query_start: Optional[Tensor] = ..., query_max: int = ..., key_max: int = ...,
    cos: Optional[Tensor] = ..., sin: Optional[Tensor] = ..., rope_begin: int = ...,
    rope_interleaved: bool = ..., splits: int = ..., return_lse: Literal[False] = ...,
) -> Tensor: ...
@overload
def decode(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, *, page_table: Optional[Tensor] = ...,
    key_len: Optional[Tensor] = ..., cache_row: Optional[Tensor] = ..., causal: bool = ...,
    scale: Optional[float] = ..., window_left: int = ..., window_right: int = ...,
    sink_keys: int = ..., local_chunk: int = ..., softcap: float = ...,
    alibi: Optional[Tensor] = ..., sink_logit: Optional[Tensor] = ...,
    query_len: Optional[Tensor] = ..., key_first: Optional[Tensor] = ...,
    query_start: Optional[Tensor] = ..., query_max: int = ..., key_max: int = ...,
    cos: Optional[Tensor] = ..., sin: Optional[Tensor] = ..., rope_begin: int = ...,
    rope_interleaved: bool = ..., splits: int = ..., return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...
def kl_loss(
    q_teacher: Tensor, k_teacher: Tensor, q_student: Tensor, k_student: Tensor, *,
    causal: bool = ..., scale_teacher: Optional[float] = ..., scale_student: Optional[float] = ...,
    direction: _Direction = ..., reduction: _Reduction = ..., row_weight: Optional[Tensor] = ...,
    window_left: int = ..., window_right: int = ..., sink_keys: int = ...,
    query_len: Optional[Tensor] = ..., key_len: Optional[Tensor] = ...,
    query_start: Optional[Tensor] = ..., key_start: Optional[Tensor] = ..., query_max: int = ...,
    key_max: int = ...,
) -> Tensor: ...
@overload
def quantised_attention(
    q: Tensor, k: Tensor, v: Tensor, recipe: str, *, causal: bool = ...,
    scale: Optional[float] = ..., window_left: int = ..., window_right: int = ...,
    softcap: float = ..., sink_logit: Optional[Tensor] = ..., query_start: Optional[Tensor] = ...,
    key_start: Optional[Tensor] = ..., query_max: int = ..., key_max: int = ...,
    hadamard: bool = ..., seed: int = ..., return_lse: Literal[False] = ...,
) -> Tensor: ...
@overload
def quantised_attention(
    q: Tensor, k: Tensor, v: Tensor, recipe: str, *, causal: bool = ...,
    scale: Optional[float] = ..., window_left: int = ..., window_right: int = ...,
    softcap: float = ..., sink_logit: Optional[Tensor] = ..., query_start: Optional[Tensor] = ...,
    key_start: Optional[Tensor] = ..., query_max: int = ..., key_max: int = ...,
    hadamard: bool = ..., seed: int = ..., return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...
def register(name: str = ...) -> str: ...
def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Optional[Tensor] = ...,
    dropout_p: float = ..., is_causal: bool = ..., scale: Optional[float] = ...,
    enable_gqa: bool = ...,
) -> Tensor: ...
def trace(
    q: Tensor, k: Tensor, v: Tensor, *, keep: int, block_rows: int = ..., block_keys: int = ...,
    causal: bool = ..., scale: Optional[float] = ..., exact: bool = ...,
    keep_row: Optional[Tensor] = ..., block_mask: Optional[Tensor] = ...,
    key_len: Optional[Tensor] = ..., page_table: Optional[Tensor] = ...,
    cache_row: Optional[Tensor] = ..., return_lse: bool = ..., return_dense: bool = ...,
    return_mass: bool = ...,
) -> Trace: ...
@overload
def varlen_attention(
    q: Tensor, k: Tensor, v: Tensor, query_start: Tensor, key_start: Optional[Tensor] = ..., *,
    query_max: int, key_max: Optional[int] = ..., causal: bool = ..., scale: Optional[float] = ...,
    window_left: int = ..., window_right: int = ..., softcap: float = ...,
    alibi: Optional[Tensor] = ..., sink_logit: Optional[Tensor] = ...,
    return_lse: Literal[False] = ...,
) -> Tensor: ...
@overload
def varlen_attention(
    q: Tensor, k: Tensor, v: Tensor, query_start: Tensor, key_start: Optional[Tensor] = ..., *,
    query_max: int, key_max: Optional[int] = ..., causal: bool = ..., scale: Optional[float] = ...,
    window_left: int = ..., window_right: int = ..., softcap: float = ...,
    alibi: Optional[Tensor] = ..., sink_logit: Optional[Tensor] = ..., return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...
