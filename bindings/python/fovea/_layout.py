# SPDX-License-Identifier: Apache-2.0
"""fovea_dtype in other people's words, and shapes with strides as the bytes of a fovea_tensor."""

import ctypes as C
import functools
import struct

from ._abi import Dtype
from ._errors import InvalidArgument

# bits, the name in NumPy, ml_dtypes and torch, array interface, buffer format, DLPack type code.
# Sub-byte types are packed in fovea and have no array of that kind elsewhere.
_TABLE = {
    Dtype.F32: (32, "float32", "<f4", "f", 2),
    Dtype.F16: (16, "float16", "<f2", "e", 2),
    Dtype.BF16: (16, "bfloat16", None, None, 4),
    Dtype.E4M3: (8, "float8_e4m3fn", None, None, 10),
    Dtype.E5M2: (8, "float8_e5m2", None, None, 12),
    Dtype.E2M1: (4, None, None, None, None),
    Dtype.I8: (8, "int8", "|i1", "b", 0),
    Dtype.I32: (32, "int32", "<i4", "i", 0),
    Dtype.I64: (64, "int64", "<i8", "q", 0),
    Dtype.U8: (8, "uint8", "|u1", "B", 1),
    Dtype.I4: (4, None, None, None, None),
    Dtype.E8M0: (8, "float8_e8m0fnu", None, None, 14),
}
BITS = {code: row[0] for code, row in _TABLE.items()}
NAMES = {code: row[1] for code, row in _TABLE.items()}
TYPESTRS = {row[2]: int(code) for code, row in _TABLE.items() if row[2]}
FORMATS = {row[3]: int(code) for code, row in _TABLE.items() if row[3]}
FORMATS["l"] = FORMATS["q" if C.sizeof(C.c_long) == 8 else "i"]
DLPACK = {(row[4], row[0]): int(code) for code, row in _TABLE.items() if row[4] is not None}
_by_name = {name: int(code) for code, name in NAMES.items() if name}
_codes = {}  # a library's dtype object -> fovea_dtype


def dtype_code(dtype):
    """fovea_dtype of a dtype object or its name; bool, float64 and the like are TypeErrors."""
    code = _codes.get(dtype)
    if code is None:
        name = getattr(dtype, "name", None) or str(dtype).rpartition(".")[2]
        if not getattr(dtype, "isnative", True):
            raise TypeError(f"has dtype {dtype} in foreign byte order")
        code = _by_name.get(name) or Dtype.__members__.get(name.upper())
        if code is None:
            raise TypeError(f"has dtype {name}, which fovea does not have: convert it first")
        code = _codes[dtype] = int(code)
    return code


def is_bool(x):
    """Whether an array's elements are bool, which is no fovea_dtype."""
    dtype = getattr(x, "dtype", None)
    return dtype is not None and (getattr(dtype, "name", None) or str(dtype)).endswith("bool")


_UNPACK = struct.Struct("<ii5q5q").unpack
_PACK = [struct.Struct(f"<ii{n}q{8 * (5 - n)}x{n}q{8 * (5 - n)}x").pack for n in range(6)]


@functools.lru_cache(4096)
def contiguous(shape):
    """Row-major strides in elements."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


class Repeated(bytes):
    """A layout that names one element many times: every stride is 0, which fovea refuses."""


@functools.lru_cache(4096)
def layout(code, shape, strides, item=1):
    """dtype, ndim, shape, stride of a fovea_tensor; strides in units of 1 / item elements.  Where
    an extent is below 2 any stride means the same; NumPy's are 0 throughout an empty array."""
    if len(shape) > 5:
        raise InvalidArgument(f"has {len(shape)} dimensions {tuple(shape)}, wanted at most 5")
    out = list(contiguous(shape))
    for i, (extent, stride) in enumerate(zip(shape, strides or ())):
        if extent < 2 or 0 in shape:
            continue
        if stride < 0:
            raise InvalidArgument(f"has a negative stride in dimension {i}: copy it first")
        if stride % item:
            raise InvalidArgument(
                f"has {stride} bytes between elements of dimension {i}, not a multiple of {item}"
            )
        out[i] = stride // item
    packed = _PACK[len(shape)](code, len(shape), *shape, *out)
    spans = [stride for extent, stride in zip(shape, out) if extent > 1]
    return Repeated(packed) if spans and 0 not in shape and not any(spans) else packed


@functools.lru_cache(4096)
def expanded(packed, shape):
    """The layout of an array broadcast from the right to `shape` by strides of 0; None where its
    extents do not allow it."""
    code, rank, *numbers = _UNPACK(packed)
    lead = len(shape) - rank
    own, strides = numbers[:rank], numbers[5 : 5 + rank]
    if lead < 0 or any(n not in (1, wanted) for n, wanted in zip(own, shape[lead:])):
        return None
    strides = [stride if n > 1 else 0 for n, stride in zip(own, strides)]
    return layout(code, shape, (0,) * lead + tuple(strides))


@functools.lru_cache(4096)
def in_a_row(packed):
    """(elements, layout): a Repeated layout with its last axis laid out, the others still broadcast."""
    code, rank, *numbers = _UNPACK(packed)
    shape = tuple(numbers[:rank])
    last = max(i for i, extent in enumerate(shape) if extent > 1)
    return shape[last], layout(code, shape, tuple(int(i == last) for i in range(rank)))


@functools.lru_cache(4096)
def described(dtype, shape, strides, item):
    """(fovea_dtype, layout) of an array by its library's dtype object."""
    code = dtype_code(dtype)
    return code, layout(code, shape, strides, item)


def numpy_dtype(code):
    import numpy

    if code in (Dtype.BF16, Dtype.E4M3, Dtype.E5M2, Dtype.E8M0):
        import ml_dtypes

        return numpy.dtype(getattr(ml_dtypes, NAMES[code]))
    return numpy.dtype(NAMES[code])
