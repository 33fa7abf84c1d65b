# SPDX-License-Identifier: Apache-2.0
"""What the operations take and give, in types.  There is no such module at run time."""

from typing import Any, Literal, Protocol, SupportsFloat, SupportsIndex, TypeVar

from typing_extensions import Buffer as Memory, TypeAlias

from ._core import Buffer

class DLPack(Protocol):
    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> Any: ...

class Interface(Protocol):
    @property
    def __array_interface__(self) -> Any: ...

class CudaInterface(Protocol):
    @property
    def __cuda_array_interface__(self) -> Any: ...

class _Library(Protocol):
    """NumPy's, torch's and CuPy's arrays, of whose kind an operation makes new ones."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...
    @property
    def __array_priority__(self) -> Any: ...

# Short names, as mypy writes them out.  A fovea.Buffer has both interfaces.
Array: TypeAlias = DLPack | Interface | CudaInterface | Memory
# The first input, and so each output of floats.  NumPy's dtype and shape parameters stay the first
# input's, also where an output has others.
A = TypeVar("A", bound=_Library | Buffer)
Int: TypeAlias = SupportsIndex  # int, bool, NumPy's integers
Float: TypeAlias = SupportsFloat  # float, int, NumPy's numbers
Wanted: TypeAlias = Array | Literal[True]
Output: TypeAlias = Array | bool | None
