# SPDX-License-Identifier: Apache-2.0
"""A byte model of any kind of attention: its layers, on the tape and over pages."""
from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import fovea
import fovea.experimental
import numpy as np
from long_context.step import view

import training.model
from training.calls import Calls, There
from training.model import Shape
from training.tape import Floats, Ints, Var

if TYPE_CHECKING:
    from compact.kinds import Kind

PAGE = 16  # tokens
LONGEST = 4096  # tokens of a text
EPS = 1e-6  # of the norm that cache_append does


class Attention(Calls):
    """attention_forward by a method's name and its gradient, x_project, and rope."""

    def __init__(self, ctx: fovea.Context) -> None:
        super().__init__(ctx)
        self.recipes = {method.name: method for method in fovea.recipes()}
        self.tables: dict[int, dict[str, There]] = {}

    def read(self, recipe: str, q: Var, k: Var, v: Var) -> Var:
        return self.by_name(recipe, fovea.attention_backward, q=q, k=k, v=v)

    def factored(self, **factors: Var) -> Var:
        """a and b of q, k and v."""
        return self.by_name("tpa", fovea.experimental.tpa_backward, **factors)

    def by_name(self, recipe: str, backward: Callable[..., Any], **inputs: Var) -> Var:
        given = {name: self.there(x.value) for name, x in inputs.items()}
        o, lse = self.recipes[recipe](self.ctx, **given, lse=True)

        def back(dy: Floats) -> None:
            made = {f"d{name}": self.empty(x.shape) for name, x in inputs.items()}
            backward(self.ctx, **given, **made, o=o, lse=lse, dout=self.there(dy), causal=1)
            for name, x in inputs.items():
                x.take(self.here(made[f"d{name}"]))
        return Var(self.here(o), list(inputs.values()), back)

    def project(self, x: Var, weight: Var) -> Var:
        """Head i of x, or its only one, times weight i."""
        shape = (*x.shape[:2], weight.shape[0], weight.shape[2])
        return self.run("project", "y", shape, {"x": x, "weight": weight}, {})

    def rope(self, width: int) -> dict[str, There]:
        if width not in self.tables:
            cos, sin = (self.empty((LONGEST, width // 2)) for _ in range(2))
            fovea.rope_table_get(self.ctx, cos=cos, sin=sin)
            self.tables[width] = dict(cos=cos, sin=sin)
        return self.tables[width]

    def turn(self, x: Var, first: int = 0) -> Var:
        position = np.arange(first, first + x.shape[1], dtype=np.int32)
        fields = dict(self.rope(x.shape[3]), position=self.there(
            np.repeat(position[None], x.shape[0], axis=0)))

        def turned(y: Floats, inverse: int) -> Floats:
            return self.here(fovea.rope_forward(self.ctx, self.there(y), inverse=inverse, **fields))
        return Var(turned(x.value, 0), (x,), lambda dy: x.take(turned(dy, 1)))


class Pages:
    """What a model keeps of texts of one length: pools of pages for each layer, made where a layer
    first writes, and one page table.  seconds: spent in the calls that write and read."""

    def __init__(self, engine: Attention, layers: int, texts: int, capacity: int) -> None:
        pages = -(-capacity // PAGE)
        self.engine, self.texts, self.count = engine, texts, texts * pages
        self.pools: list[dict[str, There]] = [{} for _ in range(layers)]
        self.table = np.full((texts, pages), -1, np.int32)
        self.free = list(range(self.count))
        self.tokens, self.first, self.seconds = 0, 0, 0.0

    def extend(self, n: int) -> None:
        """Makes room for n more tokens of each text."""
        self.first, self.tokens = self.tokens, self.tokens + n
        for page in range(-(-self.first // PAGE), -(-self.tokens // PAGE)):
            for text in range(self.texts):
                self.table[text, page] = self.free.pop()
        there = self.engine.there
        self.page_table = there(self.table)
        self.before, self.after = (there(np.full(self.texts, count, np.int32))
                                   for count in (self.first, self.tokens))

    def append(self, layer: int, part: str, new: dict[str, Floats],
               fields: dict[str, There]) -> None:
        """new: the cache's k, and v if it has one; `part` begins their names here."""
        pools = self.pools[layer]
        for name, x in new.items():
            if part + name not in pools:
                pools[part + name] = self.engine.empty((self.count, PAGE, *x.shape[2:]))
        given = {f"{name}_new": self.engine.there(x) for name, x in new.items()}
        given |= {name: pools[part + name] for name in new}
        started = time.perf_counter()
        fovea.cache_append(self.engine.ctx, **given, page_table=self.page_table,
                           key_len=self.before, **fields)
        self.seconds += time.perf_counter() - started

    def read(self, recipe: str, **fields: Any) -> Floats:
        started = time.perf_counter()
        o = self.engine.recipes[recipe](
            self.engine.ctx, page_table=self.page_table, key_len=self.after, key_max=self.tokens,
            **fields)
        self.seconds += time.perf_counter() - started
        return self.engine.here(o)

    def bytes(self) -> float:
        """Of a token, in all layers."""
        pools = [pool for pools in self.pools for pool in pools.values()]
        return sum(4 * int(np.prod(pool.shape)) for pool in pools) / (self.count * PAGE)


class Model(training.model.Model):
    engine: Attention

    def __init__(self, kind: Kind, engine: Attention, seed: int = 0, layers: int = 4,
                 width: int = 256) -> None:
        self.kind = kind
        super().__init__(Shape(layers=layers, width=width, hidden=kind.hidden), engine, seed)

    def mix(self, index: int, x: Var, state: Pages | None) -> Var:
        return self.kind.mix(Layer(self, index, state), x)

    def forward(self, tokens: Ints, state: Pages | None = None, by_row: bool = False) -> Var:
        if state is not None:
            state.extend(tokens.shape[1])
        return super().forward(tokens, state, by_row)


class Layer(training.model.Layer):
    """What a kind sees of its layer."""

    model: Model
    eps = EPS

    def __init__(self, model: Model, index: int, pages: Pages | None) -> None:
        super().__init__(model, index)
        self.pages, self.engine = pages, model.engine
        self.first = pages.first if pages else 0

    def heads(self, name: str, x: Var, n: int, d: int) -> Var:
        return self.linear(name, x, n * d).reshape(*x.shape[:2], n, d)

    def maps(self, name: str, n: int, d: int, e: int) -> Var:
        return self.weight(name, (n, d, e), size=(n / d)**0.5)

    def out(self, o: Var) -> Var:
        return self.linear("o", o.reshape(*o.shape[:2], -1), self.model.shape.width)

    def project(self, x: Var, weight: Var) -> Var:
        return self.engine.project(x, weight)

    def turn(self, x: Var) -> Var:
        return self.engine.turn(x, self.first)

    def norm_weight(self, name: str, width: int) -> There:
        return self.engine.there(self.weight(f"{name} norm", (1, width), 1.0).value[0])

    def read(self, recipe: str, q: Var, k: Var, v: Var) -> Var:
        return self.engine.read(recipe, q, k, v)

    def factored(self, **factors: Var) -> Var:
        return self.engine.factored(**factors)

    def attend(self, recipe: str, q: Var, k: Var, v: Var) -> Var:
        if self.pages is None:
            return self.read(recipe, self.turn(q), self.turn(k), v)
        self.append(k=k, v=v)
        return self.paged(recipe, {"q": self.turn(q)})

    def append(self, k: Var, v: Var | None = None, part: str = "", turned: bool = True,
               rope_begin: int = 0, norm_weight: There | None = None) -> None:
        """turned: columns of k from rope_begin on turn as they are written."""
        assert self.pages is not None
        fields: dict[str, Any] = {}
        if turned:
            fields = dict(self.engine.rope(k.shape[3] - rope_begin), rope_begin=rope_begin)
        if norm_weight is not None:
            fields |= dict(norm_weight=norm_weight, norm_eps=EPS)
        new = {"k": k.value} if v is None else {"k": k.value, "v": v.value}
        self.pages.append(self.index, part, new, fields)

    def paged(self, recipe: str, queries: dict[str, Var], v_width: int = 0, turned: bool = True,
              scale: float = 0.0) -> Var:
        """v_width: v is a view of as many of k's columns; 0: it has pages.  turned: keys are in the
        pages; else they turn as they are read."""
        assert self.pages is not None
        fields: dict[str, Any] = {n: self.engine.there(x.value) for n, x in queries.items()}
        fields |= self.pages.pools[self.index]
        if v_width:
            k = fields["k"]
            fields["v"] = view(k, (*k.shape[:3], v_width),
                               (PAGE * k.shape[3], k.shape[3], k.shape[3], 1))
        if not turned:
            fields |= self.engine.rope(queries["q"].shape[3])
        if scale:
            fields["scale"] = scale
        return Var(self.pages.read(recipe, **fields))
