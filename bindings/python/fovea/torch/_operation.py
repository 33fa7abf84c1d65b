# SPDX-License-Identifier: Apache-2.0
"""Operation: a Kernel as a torch.library operation, with its gradient, and beside it a direct path.

The dispatcher's way costs tens of microseconds, so plain tensors take the direct path: the kernel
alone, or within one autograd.Function.  torch.compile, export, FakeTensor, functorch, dispatch modes
and tensor subclasses take the operation."""

import torch
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from .._errors import InvalidArgument
from ._arguments import need, number

_PLAIN = {torch.Tensor, torch.nn.Parameter, type(None)}
_NUMBERS = {int, float, bool}
_modes = torch._C._len_torch_dispatch_stack
_functorch = torch._C._functorch.peek_interpreter_stack
_tracing = torch._C._get_tracing_state
TWICE = (
    "{}: its gradient was differentiated, but it has no second derivative: call backward without "
    "create_graph, or take this part from torch.nn.functional.scaled_dot_product_attention"
)
FORWARD = (
    "{}: it has no forward-mode derivative (jvp): take backward, torch.func.grad or vjp, or "
    "torch.nn.functional.scaled_dot_product_attention for this part"
)


class Operation:
    """torch.ops.fovea.<name>(*tensors, *numbers) -> all outputs, and its direct path.

    kernel        the forward
    types         {number: its type in the schema}
    required      how many of the tensors are not optional
    backward      the kernel of the gradient, or None.  It takes the forward's tensors, the outputs
                  numbered in `saved`, then the gradients of the outputs numbered in `through`.
    gradients     {tensor's name: output of the backward that is its gradient}"""

    def __init__(self, name, kernel, types, required, backward=None, saved=(), through=(),
                 gradients=()):  # fmt: skip
        self.name, self.kernel, self.types = name, kernel, types
        self.inputs = [field.name for field in kernel.inputs]
        self.required, self.backward, self.saved, self.through = required, backward, saved, through
        self.all = (True,) * len(kernel.outputs)
        self.places = {
            self.inputs.index(tensor): [f.name for f in backward.outputs].index(gradient)
            for tensor, gradient in dict(gradients).items()
        }
        self.constant = [i for i in range(len(self.inputs)) if i not in self.places]
        self.numbers = [f"{types[n]} {n}" for n in kernel.numbers]
        kernel.required = required
        self.define()

    # The direct path

    def __call__(self, tensors, numbers, wanted=None):
        """The outputs, None where not wanted; `wanted` is a tuple of bools, None for all."""
        if is_compiling():
            return self.dispatched(tensors, numbers, wanted)
        if not _NUMBERS.issuperset(map(type, numbers)):  # a tensor's number may change
            names = self.kernel.numbers
            numbers = tuple([number(self.name, name, x) for name, x in zip(names, numbers)])
        if not self.plain(tensors):
            return self.dispatched(tensors, numbers, wanted)
        if torch.is_grad_enabled():
            for i, x in enumerate(tensors):
                if x is not None and x.requires_grad:
                    self.differentiable(tensors)
                    return self.recorded(tensors, numbers, wanted or self.all)
        return self.kernel(tensors, numbers, wanted or self.all)

    def recorded(self, tensors, numbers, wanted):
        """The outputs as _Recorded gives them: it has no place for those that are not wanted."""
        made = _record(self, numbers, wanted, *tensors)
        if wanted == self.all:
            return made
        made = iter(made)
        return [next(made) if keep else None for keep in wanted]

    def plain(self, tensors):
        return (
            _PLAIN.issuperset(map(type, tensors))
            and tensors[0] is not None
            and not (tensors[0].is_meta or tensors[0].is_nested)
            and not (_modes() or _functorch() is not None or _tracing() is not None)
            and forward_ad._current_level < 0
        )

    def dispatched(self, tensors, numbers, wanted):
        for i, (name, x) in enumerate(zip(self.inputs, tensors)):
            if x is not None or i < self.required:
                need(self.name, name, x)
            if x is not None and not is_compiling() and forward_ad.unpack_dual(x).tangent is not None:
                raise RuntimeError(FORWARD.format(self.name))
        if torch.is_grad_enabled():
            self.differentiable(tensors)
        if _functorch() is not None and not is_compiling():
            made = _Transformed.apply(self, numbers, *tensors)
        else:
            made = self.op(*tensors, *numbers)
        made = (made,) if isinstance(made, torch.Tensor) else made
        return [y if keep else None for y, keep in zip(made, wanted or self.all)]

    def differentiable(self, tensors):
        """Refuses a tensor that requires grad and would get none."""
        for i in self.constant:
            x = tensors[i]
            if x is not None and x.requires_grad:
                raise InvalidArgument(
                    f"{self.name}: {self.inputs[i]} requires grad, but this operation gives it no "
                    "gradient: pass it detached, or call under torch.no_grad()"
                )

    # Gradients

    def differentiate(self, tensors, outputs, numbers, incoming, needs):
        """Gradients of the tensors that `needs` names by place, as a dict."""
        wanted = [False] * len(self.backward.outputs)
        for i in needs:
            wanted[self.places[i]] = True
        made = self.backward(
            (*tensors, *[outputs[i] for i in self.saved], *incoming), numbers, tuple(wanted)
        )
        return {i: self.fitting(made[self.places[i]], tensors[i]) for i in needs}

    @staticmethod
    def fitting(gradient, tensor):
        """Where the library sums no further (one element for all scores), torch does."""
        if gradient.shape != tensor.shape:
            gradient = gradient.sum_to_size(tensor.shape)
        return gradient if gradient.dtype == tensor.dtype else gradient.to(tensor.dtype)

    def incoming(self, outputs, grads):
        """Gradients of the outputs that the backward reads; the first may not be absent where it is
        the backward's required dout."""
        grads = [grads[i] for i in self.through]
        if grads[0] is None and self.first_required:
            grads[0] = torch.zeros_like(outputs[self.through[0]])
        return grads

    @property
    def first_required(self):
        names = {field.name for field in self.backward.inputs}
        return bool(names & {"dout", "dy"})

    # The torch.library operation

    def schema(self, results):
        tensors = [
            f"Tensor{'?' if i >= self.required else ''} {name}"
            for i, name in enumerate(self.inputs)
        ]
        results = "Tensor" if results == 1 else f"({', '.join(['Tensor'] * results)})"
        return f"({', '.join(tensors + self.numbers)}) -> {results}"

    def split(self, arguments):
        count = len(self.inputs)
        return tuple(arguments[:count]), tuple(arguments[count:])

    def define(self):
        def run(*arguments):
            tensors, numbers = self.split(arguments)
            return _joined(self.kernel(tensors, numbers, self.all))

        def fake(*arguments):
            tensors, numbers = self.split(arguments)
            self.kernel.validate(tensors)
            results = self.kernel.results(tensors, numbers, self.all)
            return _joined([y.new(tensors[0]) for y in results])

        self.op = torch.library.custom_op(
            f"fovea::{self.name}", run, mutates_args=(), schema=self.schema(len(self.all))
        )
        self.op.register_fake(fake)
        _batch(self.op, self.name)
        if self.backward is None:
            return
        self.define_backward()

        def remember(ctx, inputs, output):
            tensors, ctx.numbers = self.split(inputs)
            outputs = (output,) if isinstance(output, torch.Tensor) else output
            ctx.save_for_backward(*tensors, *outputs)
            ctx.set_materialize_grads(False)

        def backward(ctx, *grads):
            made = self.backward_by(self.gradients, ctx, grads, 0)
            return (*made, *[None] * len(self.numbers))

        self.op.register_autograd(backward, setup_context=remember)

    def backward_by(self, gradients, ctx, grads, skipped):
        """Gradients for all tensors by gradients(tensors, numbers, needs)."""
        count = len(self.inputs)
        saved = ctx.saved_tensors  # once: activation checkpointing unpacks it once only
        tensors, outputs = saved[:count], saved[count:]
        if all(grads[i] is None for i in self.through):
            return [None] * count
        needs = [i in self.places and ctx.needs_input_grad[skipped + i] for i in range(count)]
        made = gradients(
            (*tensors, *[outputs[i] for i in self.saved], *self.incoming(outputs, grads)),
            ctx.numbers,
            needs,
        )
        order = list(self.places)
        return [made[order.index(i)] if needs[i] else None for i in range(count)]

    def gradients(self, tensors, numbers, needs):
        return self.backward_op(*tensors, *numbers, needs)

    def define_backward(self):
        count, order = len(self.inputs), list(self.places)
        fields = [f.name for f in self.backward.inputs]
        tensors = [
            f"Tensor{'?' if self.optional(i) else ''} {name}" for i, name in enumerate(fields)
        ]
        arguments = ", ".join([*tensors, *self.numbers, "bool[] needs"])
        results = ", ".join(["Tensor"] * len(order))

        def split(arguments):
            *rest, needs = arguments
            tensors, numbers = tuple(rest[: len(fields)]), tuple(rest[len(fields) :])
            return tensors, numbers, [i for i in order if needs[i]]

        def run(*arguments):
            tensors, numbers, needs = split(arguments)
            kept = dict(zip(self.saved, tensors[count:]))
            incoming = tensors[count + len(self.saved) :]
            made = self.differentiate(tensors[:count], kept, numbers, incoming, needs)
            return tuple([made[i] if i in made else tensors[0].new_empty(0) for i in order])

        def fake(*arguments):
            tensors, numbers, needs = split(arguments)
            return tuple(
                tensors[i].new_empty(tensors[i].shape) if i in needs
                else tensors[0].new_empty(0) for i in order
            )  # fmt: skip

        def twice(ctx, *grads):
            raise RuntimeError(TWICE.format(self.name))

        name = f"fovea::{self.name}_backward"
        self.backward_op = torch.library.custom_op(
            name, run, mutates_args=(), schema=f"({arguments}) -> ({results})"
        )
        self.backward_op.register_fake(fake)
        self.backward_op.register_autograd(twice, setup_context=lambda ctx, inputs, output: None)
        _batch(self.backward_op, f"{self.name}_backward")

    def optional(self, i):
        count = len(self.inputs)
        if i < count:
            return i >= self.required
        i -= count + len(self.saved)
        return i > 0 or (i == 0 and not self.first_required)


class _Recorded(torch.autograd.Function):
    """The direct path where gradients are wanted."""

    @staticmethod
    def forward(ctx, operation, numbers, wanted, *tensors):
        outputs = operation.kernel(tensors, numbers, operation.all)
        ctx.operation, ctx.numbers, ctx.wanted = operation, numbers, wanted
        ctx.save_for_backward(*tensors, *outputs)
        ctx.set_materialize_grads(False)
        if len(operation.through) < len(outputs):
            ctx.mark_non_differentiable(
                *[y for i, y in enumerate(outputs) if wanted[i] and i not in operation.through]
            )
        return tuple([y for y, keep in zip(outputs, wanted) if keep])

    @staticmethod
    def backward(ctx, *grads):
        operation = ctx.operation
        if len(grads) < len(ctx.wanted):
            given = iter(grads)
            grads = [next(given) if keep else None for keep in ctx.wanted]
        if torch.is_grad_enabled():  # create_graph: the operation's own gradient refuses
            return (None, None, None, *operation.backward_by(operation.gradients, ctx, grads, 3))
        count = len(operation.inputs)
        out = [None] * (3 + count)
        if all(grads[i] is None for i in operation.through):
            return tuple(out)
        saved = ctx.saved_tensors  # once: activation checkpointing unpacks it once only
        tensors, outputs = saved[:count], saved[count:]
        needs = [i for i in operation.places if ctx.needs_input_grad[3 + i]]
        incoming = operation.incoming(outputs, grads)
        made = operation.differentiate(tensors, outputs, ctx.numbers, incoming, needs)
        for i, gradient in made.items():
            out[3 + i] = gradient
        return tuple(out)

    @staticmethod
    def jvp(ctx, *tangents):
        raise RuntimeError(FORWARD.format(ctx.operation.name))


# Function.apply first looks for functorch, which `plain` has done: a fifth of the call's time.
_record = super(torch.autograd.Function, _Recorded).apply


class _Transformed(torch.autograd.Function):
    """The way of functorch (torch.func.grad, vmap, vjp), which custom_op does not go."""

    @staticmethod
    def forward(operation, numbers, *tensors):
        return tuple(operation(tensors, numbers))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.operation, ctx.numbers, *tensors = inputs
        ctx.save_for_backward(*tensors, *output)
        ctx.set_materialize_grads(False)
        through = ctx.operation.through
        ctx.mark_non_differentiable(*[y for i, y in enumerate(output) if i not in through])

    @staticmethod
    def backward(ctx, *grads):
        def gradients(tensors, numbers, needs):
            return _TransformedGradient.apply(ctx.operation, numbers, tuple(needs), *tensors)

        return (None, None, *ctx.operation.backward_by(gradients, ctx, grads, 2))

    @staticmethod
    def jvp(ctx, *tangents):
        raise RuntimeError(FORWARD.format(ctx.operation.name))

    @staticmethod
    def vmap(info, where, operation, numbers, *tensors):
        return _looped(
            lambda *xs: _Transformed.apply(operation, numbers, *xs), info, where[2:], tensors
        )


class _TransformedGradient(torch.autograd.Function):
    @staticmethod
    def forward(operation, numbers, needs, *tensors):
        return operation.gradients(tensors, numbers, list(needs))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.name = inputs[0].name

    @staticmethod
    def backward(ctx, *grads):
        raise RuntimeError(TWICE.format(ctx.name))

    @staticmethod
    def vmap(info, where, operation, numbers, needs, *tensors):
        return _looped(
            lambda *xs: _TransformedGradient.apply(operation, numbers, needs, *xs),
            info, where[3:], tensors,
        )  # fmt: skip


def _joined(outputs):
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _batch(op, name):
    """vmap as a loop over its batch: right for every argument, and no faster than the loop."""
    if not hasattr(torch.library, "register_vmap"):  # torch 2.4
        return

    def loop(info, where, *arguments):
        return _looped(op, info, where, arguments)

    op.register_vmap(loop)


def _looped(op, info, where, arguments):
    """op on each element of the batch, and the results stacked."""
    made = [
        op(*[x if w is None else x.select(w, i) for x, w in zip(arguments, where)])
        for i in range(info.batch_size)
    ]
    if isinstance(made[0], torch.Tensor):
        return torch.stack(made), 0
    return tuple(map(torch.stack, zip(*made))), (0,) * len(made[0])
