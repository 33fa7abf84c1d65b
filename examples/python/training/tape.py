# SPDX-License-Identifier: Apache-2.0
"""Reverse-mode differentiation over NumPy arrays: the few functions that the models need.

A `Var` holds an array and how its gradient goes to what it was made from.  `backward` walks the
variables from the last made to the first.  What needs no gradient keeps nothing."""
from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
_numbers = itertools.count()


class Var:
    def __init__(self, value: Any, parents: Sequence[Var] = (),
                 back: Callable[[Floats], None] | None = None, trained: bool = False) -> None:
        self.value: Floats = np.asarray(value, np.float32)
        self.parents = tuple(p for p in parents if p.needs)
        self.needs: bool = trained or bool(self.parents)
        self.back = back if self.parents else None
        self.grad: Floats | None = None
        self.owned = False  # grad is an array of its own, which may be added to in place
        self.number = next(_numbers)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    def take(self, grad: Floats) -> None:
        """Adds to the gradient; summed over the axes that a broadcast made."""
        if not self.needs:
            return
        if (more := grad.ndim - self.value.ndim) > 0:
            grad = grad.sum(axis=tuple(range(more)))
        axes = tuple(i for i, n in enumerate(self.shape) if n == 1 and grad.shape[i] != 1)
        if axes:
            grad = grad.sum(axis=axes, keepdims=True)
        self.owned = self.grad is not None
        self.grad = grad if self.grad is None else self.grad + grad

    def __add__(self, other: Any) -> Var:
        other = var(other)

        def back(dy: Floats) -> None:
            self.take(dy)
            other.take(dy)
        return Var(self.value + other.value, (self, other), back)

    def __mul__(self, other: Any) -> Var:
        other = var(other)

        def back(dy: Floats) -> None:
            if self.needs:
                self.take(dy * other.value)
            if other.needs:
                other.take(dy * self.value)
        return Var(self.value * other.value, (self, other), back)

    def __sub__(self, other: Any) -> Var:
        return self + var(other) * -1.0

    def __rsub__(self, other: Any) -> Var:
        return self * -1.0 + var(other)

    __radd__, __rmul__ = __add__, __mul__

    def __pow__(self, power: float) -> Var:
        return Var(self.value**power, (self,), lambda dy: self.take(
            dy * np.float32(power) * self.value**np.float32(power - 1)))

    def __getitem__(self, index: Any) -> Var:
        def back(dy: Floats) -> None:  # in place: a token's slice costs what it holds
            if self.grad is None:
                self.grad = np.zeros(self.shape, np.float32)
            elif not self.owned:
                self.grad = self.grad.copy()
            self.owned = True
            self.grad[index] += dy
        return Var(self.value[index], (self,), back)

    def reshape(self, *shape: int) -> Var:
        return Var(self.value.reshape(shape), (self,),
                   lambda dy: self.take(dy.reshape(self.shape)))

    def sum(self, axis: int = -1) -> Var:
        """The axis stays, with one element."""
        return Var(self.value.sum(axis=axis, keepdims=True), (self,),
                   lambda dy: self.take(np.broadcast_to(dy, self.shape)))

    def broadcast(self, *shape: int) -> Var:
        """A view with strides of 0."""
        return Var(np.broadcast_to(self.value, shape), (self,), self.take)

    def backward(self) -> None:
        found, todo = {self.number: self}, [self]
        while todo:
            for parent in todo.pop().parents:
                if parent.number not in found:
                    found[parent.number] = parent
                    todo.append(parent)
        self.grad = np.ones_like(self.value)
        for number in sorted(found, reverse=True):
            node = found.pop(number)
            if node.back is not None and node.grad is not None:
                node.back(node.grad)
                node.grad = None


def var(x: Any) -> Var:
    return x if isinstance(x, Var) else Var(x)


def _map(x: Var, y: Floats, slope: Callable[[], Any]) -> Var:
    return Var(y, (x,), lambda dy: x.take(dy * slope()))


def exp(x: Var) -> Var:
    y = np.exp(x.value)
    return _map(x, y, lambda: y)


def log(x: Var) -> Var:
    return _map(x, np.log(x.value), lambda: 1 / x.value)


def tanh(x: Var) -> Var:
    y = np.tanh(x.value)
    return _map(x, y, lambda: 1 - y * y)


def _sigmoid(x: Floats) -> Floats:
    y: Floats = 0.5 * np.tanh(0.5 * x) + np.float32(0.5)
    return y


def sigmoid(x: Var) -> Var:
    y = _sigmoid(x.value)
    return _map(x, y, lambda: y * (1 - y))


def silu(x: Var) -> Var:
    a = _sigmoid(x.value)
    return _map(x, x.value * a, lambda: a * (1 + x.value * (1 - a)))


def softplus(x: Var) -> Var:
    y: Floats = np.logaddexp(np.float32(0), x.value)
    return _map(x, y, lambda: _sigmoid(x.value))


def elu_plus_one(x: Var) -> Var:
    low = np.exp(np.minimum(x.value, 0))
    return _map(x, np.where(x.value >= 0, x.value + 1, low),
                lambda: np.where(x.value >= 0, np.float32(1), low))


def softmax(x: Var) -> Var:
    y = np.exp(x.value - x.value.max(axis=-1, keepdims=True))
    y /= y.sum(axis=-1, keepdims=True)
    return Var(y, (x,), lambda dy: x.take(y * (dy - (dy * y).sum(axis=-1, keepdims=True))))


def concat(parts: Sequence[Var], axis: int = -1) -> Var:
    ends = np.cumsum([part.shape[axis] for part in parts])[:-1]

    def back(dy: Floats) -> None:
        for part, piece in zip(parts, np.split(dy, ends, axis=axis)):
            part.take(piece)
    return Var(np.concatenate([part.value for part in parts], axis=axis), parts, back)


def stack(parts: Sequence[Var], axis: int) -> Var:
    def back(dy: Floats) -> None:
        for part, piece in zip(parts, np.moveaxis(dy, axis, 0)):
            part.take(piece)
    return Var(np.stack([part.value for part in parts], axis=axis), parts, back)


def linear(x: Var, w: Var, by_row: bool = False) -> Var:
    """x (.., n) w (n, m).  by_row: each row is a product of its own, so that its bits do not depend
    on how many rows there are."""
    flat = x.value.reshape(-1, x.shape[-1])

    def back(dy: Floats) -> None:
        dy = dy.reshape(-1, dy.shape[-1])
        if x.needs:
            x.take((dy @ w.value.T).reshape(x.shape))
        if w.needs:
            w.take(flat.T @ dy)
    y = (flat[:, None] @ w.value)[:, 0] if by_row else flat @ w.value
    return Var(y.reshape(*x.shape[:-1], -1), (x, w), back)


def rows(w: Var, index: Ints) -> Var:
    """w[index]"""
    def back(dy: Floats) -> None:
        dw = np.zeros_like(w.value)
        np.add.at(dw, index.ravel(), dy.reshape(-1, dy.shape[-1]))
        w.take(dw)
    return Var(w.value[index], (w,), back)


def cross_entropy(logits: Var, target: Ints) -> Var:
    """Mean of -log p[target] in nats, over the targets that are not negative."""
    flat, wanted = logits.value.reshape(-1, logits.shape[-1]), target.ravel()
    at = np.flatnonzero(wanted >= 0)
    y = flat[at] - flat[at].max(axis=1, keepdims=True)
    p = np.exp(y)
    total = p.sum(axis=1, keepdims=True)
    loss = (np.log(total[:, 0]) - y[np.arange(len(at)), wanted[at]]).mean()

    def back(dy: Floats) -> None:
        d = p / total
        d[np.arange(len(at)), wanted[at]] -= 1
        whole = np.zeros_like(flat)
        whole[at] = d * (dy / np.float32(len(at)))
        logits.take(whole.reshape(logits.shape))
    return Var(loss, (logits,), back)
