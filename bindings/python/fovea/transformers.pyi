# SPDX-License-Identifier: Apache-2.0
# What type checkers read of fovea.transformers; a test holds the parameters to the functions'.
from typing import Any, Callable, Final, Optional

import torch
from torch import Tensor
from transformers import Cache

__all__ = ["METHODS", "NAME", "Mask", "QuantisedCache", "attention", "mask", "register"]

NAME: Final = "fovea"
METHODS: Final[tuple[str, ...]]

class Mask:
    shape: tuple[int, ...]
    ndim: int
    traced: bool
    of_sequences: bool
    fields: dict[str, Any]
    query_start: Optional[Tensor]
    query_max: Optional[int]
    def __init__(
        self, shape: tuple[int, ...], fields: dict[str, Any], whole: Callable[[], Tensor],
        query_start: Optional[Tensor] = ..., query_max: Optional[int] = ...,
    ) -> None: ...
    @property
    def array(self) -> Tensor: ...
    def __getitem__(self, index: Any) -> Tensor: ...
    def contiguous(self) -> Mask: ...
    def dim(self) -> int: ...
    def find_packed(self, positions: Optional[Tensor]) -> None: ...

class QuantisedCache(Cache):
    recipe: str
    options: dict[str, int]
    def __init__(self, recipe: str = ..., **options: int) -> None: ...
    @property
    def bytes_a_token(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

def attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor,
    attention_mask: Mask | Tensor | None, dropout: float = ..., scaling: Optional[float] = ...,
    is_causal: Optional[bool] = ..., sliding_window: Optional[int] = ...,
    softcap: Optional[float] = ..., s_aux: Optional[Tensor] = ...,
    position_bias: Optional[Tensor] = ..., recipe: Optional[str] = ..., **kwargs: Any,
) -> tuple[Tensor, None]: ...
def mask(**asked: Any) -> Mask | Tensor: ...
def register(name: str = ...) -> None: ...
