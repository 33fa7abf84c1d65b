# SPDX-License-Identifier: Apache-2.0
"""The products of compact attention beside PyTorch's bmm of the same operands: MLA's absorb, out and
expand, of few tokens by the bytes and of prompts by the flops."""

import dataclasses

import torch

from .base import Case, Own, size, unrecorded

WIDTHS = {"absorb": (128, 512), "out": (512, 128), "expand": (512, 128)}
SHORT = 1024  # tokens: fewer are bound by the bytes


@dataclasses.dataclass(frozen=True)
class Product(Case):
    """n tokens; `expand` has one head of x for all h of y."""

    form: str
    n: int
    h: int = 128
    mask = ""
    family = "x_project"
    peer = "torch bmm"
    limit = 7e-3

    def words(self):
        yield self.form
        yield f"n{size(self.n)}_h{self.h}"

    @property
    def widths(self):
        return WIDTHS[self.form]

    @property
    def bytes(self):
        d, f = self.widths
        heads = 1 if self.form == "expand" else self.h
        return (self.h * d * f + self.n * (heads * d + self.h * f)) * self.itemsize

    @property
    def unit(self):
        return "GB/s" if self.n < SHORT else "TFLOP/s"

    @property
    def scale(self):
        return 1e-9 if self.n < SHORT else 1e-12

    @property
    def work(self):
        d, f = self.widths
        return self.bytes if self.n < SHORT else 2 * self.n * self.h * d * f

    def setup(self, ctx, device, seed):
        normal, (d, f) = self.draw(device, seed), self.widths
        x = normal(1, self.n, 1 if self.form == "expand" else self.h, d)
        weight = normal(self.h, d, f) / 16
        own = self.own(ctx, (x, weight), y=torch.empty(1, self.n, self.h, f, dtype=x.dtype, device=device))
        heads = x[0].transpose(0, 1).expand(self.h, -1, -1)
        return own, unrecorded(lambda: torch.bmm(heads, weight)[None])


@dataclasses.dataclass(frozen=True)
class Gradient(Product):
    """dx and dweight of a prompt; those of expand's x are a sum over the heads."""

    backward = True
    limit = 1e-2

    @property
    def work(self):
        return 2 * super().work

    def setup(self, ctx, device, seed):
        normal, (d, f) = self.draw(device, seed), self.widths
        x = normal(1, self.n, 1 if self.form == "expand" else self.h, d)
        weight, dy = normal(self.h, d, f) / 16, normal(1, self.n, self.h, f)
        heads, gradient = x[0].transpose(0, 1).expand(self.h, -1, -1), dy[0].transpose(0, 1)

        def peer():
            if self.form == "expand":
                dx = torch.einsum("nhf,hdf->nd", dy[0], weight)[None, None]
            else:
                dx = torch.bmm(gradient, weight.transpose(1, 2))[None]
            return [dx, torch.bmm(heads.transpose(1, 2), gradient)]

        return Own("x_project_backward", ctx, x, weight, dy), peer


def host():
    for form in WIDTHS:
        yield Product(form, 16, 16)


def cuda():
    for form in WIDTHS:
        for n in (1, 16, 128, 4096):
            yield Product(form, n)
    yield Product("absorb", 100, 16)
    yield Product("out", 100, 16)
    for form in WIDTHS:
        yield Gradient(form, 4096)
