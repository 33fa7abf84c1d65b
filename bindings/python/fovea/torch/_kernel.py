# SPDX-License-Identifier: Apache-2.0
"""Kernel: one function of the library on torch tensors, at the price of the C call and little more.

A call is prepared once for each set of shapes, strides, dtypes and numbers.  Afterwards it writes
the addresses of its tensors into the params that were filled then, and runs them."""

import ctypes as C
import struct

import torch

from .._call import _KINDS, _SCALARS, _TENSOR
from .._errors import FoveaError, InvalidArgument
from .._layout import Repeated, dtype_code, expanded, layout
from .._library import check
from ._place import place_of

_KIND = {C.c_int64: "q", C.c_float: "f", C.c_int32: "i"}
NOWHERE = 256  # an address for a tensor without elements; NULL would mean "not given"


class Field:
    """A tensor of the params struct.

    rank     of the field; a tensor of one dimension less stands for a first extent of 1 (packed)
    turned   the tensor is (b, h, s, d) where the call has heads_first
    spread   name of the shape that the tensor is broadcast to"""

    __slots__ = ("name", "offset", "rank", "turned", "spread")

    def __init__(self, params, name, rank=None, turned=False, spread=None):
        self.name, self.offset = name, getattr(params, name).offset
        self.rank, self.turned, self.spread = rank, turned, spread

    def view(self, shape, stride, heads_first):
        """(shape, stride) of the field from those of the tensor."""
        if self.rank is not None and len(shape) == self.rank - 1:
            return (1, *shape), (max(shape[0], 1) * max(stride[0], 1), *stride)
        if self.turned and heads_first:
            (b, h, s, d), (sb, sh, ss, sd) = shape, stride
            return (b, s, h, d), (sb, ss, sh, sd)
        return tuple(shape), tuple(stride)


class Output:
    """What a call is to make: shape, strides (None: contiguous), dtype, and the value of elements
    that the library does not write (None: it writes all)."""

    __slots__ = ("shape", "stride", "dtype", "fill")

    def __init__(self, shape, dtype, stride=None, fill=None):
        self.shape, self.stride, self.dtype, self.fill = tuple(shape), stride, dtype, fill

    def new(self, like):
        if self.stride is not None:
            y = like.new_empty_strided(self.shape, self.stride, dtype=self.dtype)
        else:
            y = like.new_empty(self.shape, dtype=self.dtype)
        return y if self.fill is None else y.fill_(self.fill)


class Plan:
    """A prepared call: params, the words of addresses in it, which tensors go where."""

    __slots__ = ("params", "words", "inputs", "outputs", "copies")

    def __init__(self, params):
        self.params = params
        self.words = (C.c_uint64 * (C.sizeof(params) // 8)).from_buffer(params)
        self.inputs, self.outputs, self.copies = [], [], []


class Kernel:
    """kernel(tensors, numbers, wanted) -> outputs, None where not wanted.

    inputs, outputs   Fields, in the order of the arguments
    numbers           names, in the order of the arguments; those in `words` are no fields
    results           (tensors, numbers, wanted) -> Outputs, None where not wanted
    shapes            (tensors, numbers) -> {name of a spread: shape}"""

    def __init__(self, op, inputs, outputs, numbers, results, shapes=None):
        self.op, self.inputs, self.outputs, self.results = op, inputs, outputs, results
        self.numbers, self.shapes, self.required = numbers, shapes, 0
        self.written = ()  # names of inputs that the call writes into
        types = dict((name, kind) for name, kind, *_ in op.params._fields_)
        self.scalars = [
            (i, name, _KIND[types[name]], getattr(op.params, name).offset)
            for i, name in enumerate(numbers)
            if name in types
        ]
        self.heads_first = numbers.index("heads_first") if "heads_first" in numbers else None

    def __call__(self, tensors, numbers, wanted):
        device = tensors[0].device
        try:
            place = place_of(device)
        except FoveaError as why:
            raise type(why)(f"{self.op.name}: {self.inputs[0].name} {why}") from None
        key = (
            self,
            numbers,
            wanted,
            *[None if x is None else (x.dtype, x.shape, x.stride(), x.device) for x in tensors],
        )
        plan = place.plans.get(key)
        if plan is None:
            plan = self.prepare(tensors, numbers, wanted)
            place.keep(key, plan)
        if plan.copies:
            return self.with_copies(plan, tensors, numbers, wanted)
        words, first, made = plan.words, tensors[0], []
        for i, word in plan.inputs:
            words[word] = tensors[i].data_ptr() or NOWHERE
        for word, like, output in plan.outputs:
            if word is None:
                made.append(None)
                continue
            y = torch.empty_like(first) if like else output.new(first)
            words[word] = y.data_ptr() or NOWHERE
            made.append(y)
        place.follow()
        status = self.op.run(place.handle, plan.params)
        if status:
            check(status)
        return made

    def with_copies(self, plan, tensors, numbers, wanted):
        """Again with tensors of their own memory where the strides are none that fovea takes."""
        tensors = list(tensors)
        for i, shape in plan.copies:
            x = tensors[i]
            tensors[i] = (x if shape is None else x.expand(shape)).clone(
                memory_format=torch.contiguous_format
            )
        return self(tuple(tensors), numbers, wanted)

    def prepare(self, tensors, numbers, wanted):
        self.validate(tensors)
        plan = Plan(self.op.params(self.op.size))
        heads_first = self.heads_first is not None and numbers[self.heads_first]
        shapes = self.shapes(tensors, numbers) if self.shapes else {}
        for i, (field, x) in enumerate(zip(self.inputs, tensors)):
            if x is not None:
                with self.naming(field):
                    packed = self.layout(field, x, x.stride(), heads_first, shapes)
                    # Tensor cores want contiguous rows: a copy costs less than the portable kernel.
                    scattered = x.is_cuda and field.spread is None and x.stride()[-1:] > (1,)
                    repeated = packed.__class__ is Repeated
                    if field.name in self.written:  # a copy would be written in its place
                        if repeated:
                            raise InvalidArgument(f"has strides {x.stride()}: elements share memory")
                    elif repeated or scattered:
                        plan.copies.append((i, shapes.get(field.spread)))
                _TENSOR(plan.params, field.offset, NOWHERE, packed)
                plan.inputs.append((i, field.offset // 8))
        for i, name, kind, offset in self.scalars:
            try:
                _SCALARS[kind](plan.params, offset, numbers[i])
            except (struct.error, OverflowError):
                raise TypeError(
                    f"{self.op.name}: {name} is {numbers[i]!r}, wanted {_KINDS[kind]}"
                ) from None
        first = tensors[0]
        for field, output in zip(self.outputs, self.results(tensors, numbers, wanted)):
            if output is None:
                plan.outputs.append((None, False, None))
                continue
            y = output.new(torch.empty(0, device="meta", dtype=output.dtype))
            with self.naming(field):
                packed = self.layout(field, y, y.stride(), heads_first, shapes)
            _TENSOR(plan.params, field.offset, NOWHERE, packed)
            like = (
                output.fill is None
                and (output.dtype, output.shape) == (first.dtype, first.shape)
                and y.stride() == first.stride()
            )
            plan.outputs.append((field.offset // 8, like, output))
        return plan

    def layout(self, field, x, stride, heads_first, shapes):
        shape, stride = field.view(x.shape, stride, heads_first)
        packed = layout(dtype_code(x.dtype), shape, stride)
        if field.spread is None:
            return packed
        wide = expanded(packed, shapes[field.spread])
        if wide is None:
            raise InvalidArgument(
                f"has shape {tuple(x.shape)}, wanted {shapes[field.spread]} or one that broadcasts "
                "to it from the right"
            )
        return wide

    def validate(self, tensors):
        """What is known without sizes: kinds, devices, ranks.  The library checks the rest."""
        first = tensors[0]
        packed = any(
            x is not None and field.name in ("query_start", "key_start")
            for field, x in zip(self.inputs, tensors)
        )
        for i, (field, x) in enumerate(zip(self.inputs, tensors)):
            if x is None:
                if i < self.required:
                    raise TypeError(f"{self.op.name}: {field.name} is None, wanted a torch.Tensor")
                continue
            with self.naming(field):
                if x.device != first.device:
                    raise InvalidArgument(
                        f"is on {x.device}, wanted {first.device} as {self.inputs[0].name}"
                    )
                if x.layout != torch.strided or x.is_nested:
                    raise InvalidArgument(
                        f"is {'nested' if x.is_nested else x.layout}, wanted a dense tensor"
                    )
                fewer = field.rank is not None and field.rank - x.dim()
                if fewer and not (fewer == 1 and packed):
                    raise InvalidArgument(
                        f"has {x.dim()} dimensions {tuple(x.shape)}, wanted {field.rank}"
                    )
                dtype_code(x.dtype)

    def naming(self, field):
        return _Naming(self.op.name, field.name)


class _Naming:
    """Puts the operation and the field before what an error says."""

    def __init__(self, op, field):
        self.what = f"{op}: {field}"

    def __enter__(self):
        pass

    def __exit__(self, kind, why, _):
        if kind is not None and issubclass(kind, (TypeError, FoveaError)):
            raise kind(f"{self.what} {why}") from None
