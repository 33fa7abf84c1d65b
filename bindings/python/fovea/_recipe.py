# SPDX-License-Identifier: Apache-2.0
"""Methods by name: recipe("streamingllm") is the method's operation with the method's numbers."""

from __future__ import annotations

import ctypes as C
from typing import Any, Callable

from . import _abi, experimental, ops
from ._errors import InvalidArgument
from ._library import check, lib


def _number(text: str) -> int | float | str:
    """The value of a number: of an enum its name."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


class Recipe:
    """A method: call it as its operation, whose numbers default to the method's.

        fovea.recipe("streamingllm")(q, k, v, window_left=1024)

    name, title, paper (an arXiv number, or a model), year, operation, backward (the operation that trains it, or
    ""), numbers (a dict), needs (fields that must be given), words (what it does here, and what not)."""

    def __init__(self, row: _abi.XRecipe) -> None:
        self.name, self.title, self.paper, self.operation, self.backward, self.words = (
            getattr(row, field).decode()
            for field in ("name", "title", "paper", "operation", "backward", "words")
        )
        self.year: int = row.year
        told = (pair.split("=") for pair in row.numbers.decode().split())
        self.numbers: dict[str, int | float | str] = {name: _number(value) for name, value in told}
        self.needs: tuple[str, ...] = tuple(row.needs.decode().split())
        module = experimental if self.operation.startswith("x_") else ops
        self.function: Callable[..., Any] = getattr(module, self.operation.removeprefix("x_"))

    def __call__(self, *inputs: Any, **fields: Any) -> Any:
        """The operation's outputs."""
        for name in self.needs:
            given = fields.get(name)
            if given is None or (isinstance(given, int) and not given):
                raise InvalidArgument(
                    f"recipe {self.name}: {name} is absent, wanted one: {self.words}"
                )
        return self.function(*inputs, **{**self.numbers, **fields})

    @property
    def _source(self) -> str:
        return f"arXiv {self.paper}" if self.paper[0].isdigit() else self.paper

    def __repr__(self) -> str:
        return f"<fovea.recipe({self.name!r}): {self.title}, {self._source}>"

    def __str__(self) -> str:
        """What `python -m fovea recipes` prints of it."""
        fields = [f"{name}=..." for name in self.needs]
        return "\n".join(
            [
                f"{self.name:<20} {self.title}, {self._source} ({self.year})",
                f"    {', '.join([self.operation, *fields, *(f'{n}={v}' for n, v in self.numbers.items())])}",
                *([f"    trained by {self.backward}"] if self.backward else []),
                f"    {self.words}",
            ]
        )


def recipe(name: str) -> Recipe:
    """The method of a paper by its name: fovea.recipe("streamingllm")(q, k, v).

    fovea.recipes() has them all, and `python -m fovea recipes` prints them.  An unknown name is
    InvalidArgument, and the sentence has those that are near it."""
    if not isinstance(name, str):
        raise TypeError(f"recipe: name is {name!r}, wanted a str such as 'streamingllm'")
    row = _abi.XRecipe(C.sizeof(_abi.XRecipe))
    check(lib.fovea_x_recipe_get(name.encode(), C.byref(row)))
    return Recipe(row)


def recipes() -> list[Recipe]:
    """Every method that the library has by name."""
    rows = []
    for index in range(lib.fovea_x_recipe_count()):
        row = _abi.XRecipe(C.sizeof(_abi.XRecipe))
        check(lib.fovea_x_recipe_at(index, C.byref(row)))
        rows.append(Recipe(row))
    return rows
