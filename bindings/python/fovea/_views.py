# SPDX-License-Identifier: Apache-2.0
"""Other people's arrays as fovea_tensor views, and new arrays like them.

A viewer takes (array, context, write) and gives (address, dtype, shape, layout[, owner]): `layout`
is the bytes of fovea_tensor after `data`, remembered per shape and strides because packing them is
most of a call's price.  It says why not in a sentence that follows the field's name.  No array
library is imported here unless the caller's array comes from it, NumPy apart, which is optional."""

import ctypes as C
import sys

from ._errors import InvalidArgument
from ._layout import (
    BITS,
    DLPACK,
    FORMATS,
    NAMES,
    TYPESTRS,
    described,
    dtype_code,
    layout,
    numpy_dtype,
)

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13  # DLPack device types
_address = C.c_size_t.from_address
_capsule_pointer = C.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = C.c_void_p, [C.py_object, C.c_char_p]


def _elsewhere(what, ctx):
    raise InvalidArgument(f"is {what}, but the context computes on {ctx}: copy it there first")


def _readonly():
    raise InvalidArgument("is read-only, but the operation writes it")


# Where the data of a NumPy array is.  `data` is the first member of PyArrayObject, after the object's
# header: a quarter of the price of the documented ways, and taken only where it gives what they do.
_HEADER = object.__basicsize__


def _documented_data(a):
    # PyArrayInterface.data: a third of the price of __array_interface__
    return _address(_capsule_pointer(a.__array_struct__, None) + 40).value


def _first_member(a):
    return _address(id(a) + _HEADER).value


_numpy_data = _documented_data


def _choose_numpy_data():
    global _numpy_data
    import numpy

    whole = numpy.zeros(7)
    agree = all(_first_member(a) == _documented_data(a) for a in (whole, whole[2:], whole[::-1]))
    _numpy_data = _first_member if agree else _documented_data


def _numpy(a, ctx, write):
    if ctx._place > -1:
        _elsewhere("a NumPy array in host memory", ctx)
    if write and not a.flags.writeable:
        _readonly()
    shape = a.shape
    code, bytes_after = described(a.dtype, shape, a.strides, a.itemsize)
    return _numpy_data(a), code, shape, bytes_after


def _torch_stream(device):
    torch = sys.modules["torch"]
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # a tenth of the public one's price
    return raw(device) if raw else torch.cuda.current_stream(device).cuda_stream


def _torch(t, ctx, write):
    if t.requires_grad and ctx._place != -2 and recording():
        raise InvalidArgument(DROPS_GRADIENT)
    place = t.get_device() if t.is_cuda or t.is_cpu else -2
    if place != ctx._place and ctx._place != -2 and not (place == -1 and t.is_pinned()):
        _elsewhere(f"a torch tensor on {t.device}", ctx)
    if place >= 0 and ctx._follows:
        ctx._follow(_torch_stream(place))
    try:
        address, shape = t.data_ptr(), t.shape
    except RuntimeError:
        raise InvalidArgument(_unreadable(t)) from None
    if not address:
        if t.numel():
            raise InvalidArgument(f"is a torch tensor without memory ({t.device})")
        address = 256  # NULL would mean "not given"
    code, bytes_after = described(t.dtype, shape, t.stride(), 1)
    return address, code, shape, bytes_after


def _unreadable(t):
    """Why a torch tensor has no address."""
    if t.is_nested:
        return "is a nested torch tensor, wanted a dense one: pad it, or pack it with query_start"
    if t.layout is not sys.modules["torch"].strided:
        return f"is a torch tensor of layout {t.layout}, wanted a dense one: x.to_dense()"
    return (
        "is a torch tensor without memory of its own, as within torch.func and vmap: fovea.torch "
        "has attention for them"
    )


DROPS_GRADIENT = (
    "requires grad, and its gradient would be lost: fovea.torch records gradients; or pass "
    "x.detach() or call under torch.no_grad(), and take gradients from the *_backward operation"
)


def recording():
    """Whether torch records gradients now, of which it sees nothing here."""
    return sys.modules["torch"].is_grad_enabled()


def _cupy(a, ctx, write):
    if a.device.id != ctx._place and ctx._place != -2:
        _elsewhere(f"a CuPy array on cuda:{a.device.id}", ctx)
    if ctx._follows:
        ctx._follow(sys.modules["cupy"].cuda.get_current_stream().ptr)
    code, bytes_after = described(a.dtype, a.shape, a.strides, a.itemsize)
    return a.data.ptr or 256, code, a.shape, bytes_after


def _buffer(b, ctx, write):
    if b.place != ctx._place and ctx._place != -2 and not b.host:
        _elsewhere(f"a Buffer on {'host' if b.place < 0 else f'cuda:{b.place}'}", ctx)
    if b.address is None:
        raise InvalidArgument("is a freed Buffer")
    return b.address or 256, b.dtype, b.shape, layout(b.dtype, b.shape, None)


def _interface(x, interface, write):
    address, readonly = interface["data"]
    if write and readonly:
        _readonly()
    if interface.get("mask") is not None:
        raise InvalidArgument("has a mask, which fovea would not read")
    code = TYPESTRS.get(interface["typestr"])
    if code is None:
        raise TypeError(f"has dtype {interface['typestr']}, which fovea cannot read here")
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    return (
        address or 256,
        code,
        shape,
        layout(code, shape, strides and tuple(strides), BITS[code] // 8),
    )


def _cuda_interface(x, ctx, write):
    if ctx._place == -1:
        _elsewhere(f"a {type(x).__name__} in CUDA memory", ctx)
    interface = x.__cuda_array_interface__
    if interface.get("stream") is not None:
        ctx._after(interface["stream"])
    return _interface(x, interface, write)


def _array_interface(x, ctx, write):
    if ctx._place > -1:
        _elsewhere(f"a {type(x).__name__} in host memory", ctx)
    return _interface(x, x.__array_interface__, write)


class _DLTensor(C.Structure):
    _fields_ = [
        ("data", C.c_void_p),
        ("device_type", C.c_int32),
        ("device_id", C.c_int32),
        ("ndim", C.c_int32),
        ("code", C.c_uint8),
        ("bits", C.c_uint8),
        ("lanes", C.c_uint16),
        ("shape", C.POINTER(C.c_int64)),
        ("strides", C.POINTER(C.c_int64)),
        ("byte_offset", C.c_uint64),
    ]


class _DLManagedVersioned(C.Structure):
    _fields_ = [
        ("major", C.c_uint32),
        ("minor", C.c_uint32),
        ("context", C.c_void_p),
        ("deleter", C.c_void_p),
        ("flags", C.c_uint64),
        ("tensor", _DLTensor),
    ]


_capsule_name = C.pythonapi.PyCapsule_GetName
_capsule_name.restype, _capsule_name.argtypes = C.c_char_p, [C.py_object]


def _dlpack(x, ctx, write):
    kind, device = x.__dlpack_device__()
    kind, device = int(kind), int(device)
    on_gpu = kind in (CUDA, CUDA_MANAGED)
    place = device if on_gpu else -1 if kind in (CPU, CUDA_HOST) else -3
    if place != ctx._place and ctx._place != -2 and not (kind == CUDA_HOST and ctx._place >= 0):
        _elsewhere(f"a {type(x).__name__} on DLPack device ({kind}, {device})", ctx)
    wanted = {"stream": ctx._dlpack_stream()} if on_gpu else {}
    try:
        capsule = x.__dlpack__(max_version=(1, 0), **wanted)
    except TypeError:  # a producer older than DLPack 1.0
        capsule = x.__dlpack__(**wanted)
    if on_gpu:
        ctx._after(wanted["stream"])
    name = _capsule_name(capsule)
    at = _capsule_pointer(capsule, name)
    if name == b"dltensor_versioned":
        managed = _DLManagedVersioned.from_address(at)
        if managed.major != 1:
            raise TypeError(
                f"offers DLPack {managed.major}.{managed.minor}, wanted 1.x or the form before it"
            )
        if write and managed.flags & 1:
            _readonly()
        tensor = managed.tensor
    else:
        tensor = _DLTensor.from_address(at)
    code = DLPACK.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if code is None:
        raise TypeError(
            f"has DLPack dtype (code {tensor.code}, {tensor.bits} bits), which fovea does not have"
        )
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None
    # The capsule, never renamed, owns the memory: it lives in the view for as long as the call.
    return (
        (tensor.data or 256) + tensor.byte_offset,
        code,
        shape,
        layout(code, shape, strides),
        capsule,
    )


class _PyBuffer(C.Structure):
    _fields_ = [("buf", C.c_void_p)] + [(f"word{i}", C.c_size_t) for i in range(12)]


def _memory(x, ctx, write):
    """Anything with the buffer protocol: bytes, array.array, memoryview, ctypes arrays."""
    if ctx._place > -1:
        _elsewhere(f"a {type(x).__name__} in host memory", ctx)
    view = memoryview(x)
    if write and view.readonly:
        _readonly()
    code = FORMATS.get(view.format.lstrip("@<="))
    if code is None:
        raise TypeError(f"has buffer format {view.format!r}, which fovea cannot read")
    raw = _PyBuffer()
    C.pythonapi.PyObject_GetBuffer(C.py_object(view), C.byref(raw), 0x18)  # PyBUF_STRIDES
    address = raw.buf
    C.pythonapi.PyBuffer_Release(C.byref(raw))  # `view` holds the exporter's memory in place
    return (
        address or 256,
        code,
        view.shape,
        layout(code, view.shape, view.strides, view.itemsize),
        view,
    )


def _shifted(x, keys, zeros, bits):
    """Packs the last axis of x by shifts and sums, on x's own device."""
    lead, width = tuple(x.shape[:-1]), -(-keys // 8)
    wide = zeros((*lead, 8 * width))
    wide[..., :keys] = x
    return (wide.reshape(*lead, width, 8) << bits).sum(-1, dtype=bits.dtype)


def pack_bits(x, keys, ctx):
    """A bool array as bits along its last axis, which has `keys` elements or 1: the first in bit 0
    of a byte.  By x's own library, on its device and its current stream, whose number comes with
    it (None: no stream)."""
    viewer = viewers.get(type(x)) or viewer_of(x)
    if viewer is _torch:
        torch = sys.modules["torch"]
        bits = torch.arange(8, dtype=torch.uint8, device=x.device)
        packed = _shifted(x, keys, bits.new_zeros, bits)
        return packed, _torch_stream(x.get_device()) or 1 if x.is_cuda else None
    if viewer is _cupy:
        cupy = sys.modules["cupy"]
        with x.device:
            bits = cupy.arange(8, dtype="uint8")
            packed = _shifted(x, keys, lambda shape: cupy.zeros(shape, "uint8"), bits)
            return packed, cupy.cuda.get_current_stream().ptr or 1
    if ctx._place > -1:
        raise TypeError(
            "has dtype bool: on CUDA give a torch or CuPy mask, or bits packed in uint8, the first "
            "key in bit 0 of a byte"
        )
    import numpy

    wide = numpy.broadcast_to(numpy.asarray(x), (*x.shape[:-1], keys))
    return numpy.packbits(wide, axis=-1, bitorder="little"), None


viewers = {}  # type -> viewer, filled as types are met


def place_of(x):
    """Where an array's memory is: -1 the host, else the number of the CUDA device, None where the
    array does not tell.  What is no array counts as the host's: its viewer says what is wrong."""
    try:
        viewer = viewers.get(type(x)) or viewer_of(x)
    except TypeError:
        return -1
    if viewer is _numpy:
        return -1
    if viewer is _torch:
        return x.get_device() if x.is_cuda else -1
    if viewer is _cupy:
        return x.device.id
    if viewer is _buffer:
        return x.place
    if viewer is _dlpack or (viewer is _cuda_interface and hasattr(x, "__dlpack_device__")):
        kind, device = x.__dlpack_device__()
        return int(device) if int(kind) in (CUDA, CUDA_MANAGED) else -1
    return None if viewer is _cuda_interface else -1


def viewer_of(x):
    """The viewer of a type met for the first time."""
    cls = type(x)
    if x is None:
        raise TypeError("was not given")
    family = {f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in cls.__mro__}
    if "fovea.Buffer" in family:
        viewer = _buffer
    elif "numpy.MaskedArray" in family:
        raise TypeError("is a masked array, whose mask fovea would not read")
    elif "numpy.ndarray" in family:
        _choose_numpy_data()
        viewer = _numpy
    elif "torch.Tensor" in family:
        viewer = _torch
    elif "cupy.ndarray" in family:
        viewer = _cupy
    elif hasattr(x, "__cuda_array_interface__"):
        viewer = _cuda_interface
    elif hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        viewer = _dlpack
    elif hasattr(x, "__array_interface__"):
        viewer = _array_interface
    else:
        try:
            memoryview(x).release()
        except TypeError:
            raise TypeError(
                f"is a {cls.__name__}, wanted an array: NumPy's, torch's, CuPy's, or one with "
                "DLPack, the CUDA array interface or the buffer protocol"
            ) from None
        viewer = _memory
    viewers[cls] = viewer
    return viewer


def empty_like(like, shape, code, ctx):
    """A new array for an output, from the library that `like` came from."""
    viewer = viewers.get(type(like))
    if viewer is _torch:
        torch = sys.modules["torch"]
        if dtype_code(like.dtype) == code:
            return like.new_empty(shape)
        return like.new_empty(shape, dtype=getattr(torch, NAMES[code]))
    if viewer is _cupy:
        cupy = sys.modules["cupy"]
        with like.device:
            return cupy.empty(shape, dtype=numpy_dtype(code))
    if viewer is _buffer or ctx._place > -1:
        return ctx.empty(shape, code)
    if viewer is _numpy and dtype_code(like.dtype) == code:
        return sys.modules["numpy"].empty(shape, like.dtype)
    try:
        import numpy
    except ImportError:
        return ctx.empty(shape, code)
    return numpy.empty(shape, numpy_dtype(code))
