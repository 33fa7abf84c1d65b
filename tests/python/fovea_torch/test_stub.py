# SPDX-License-Identifier: Apache-2.0
"""__init__.pyi says what fovea.torch has: every public name, with the parameters it really takes."""

import ast
import inspect
import pathlib

import pytest

pytest.importorskip("torch")
import fovea.torch


def told():
    """name, or class.method -> its parameters; of overloads all."""
    tree = ast.parse((pathlib.Path(fovea.torch.__file__).parent / "__init__.pyi").read_text())
    out = {}

    def read(node, name):
        a = node.args
        named = {x.arg for x in [*a.args, *a.kwonlyargs, *filter(None, [a.vararg, a.kwarg])]}
        out.setdefault(name, set()).update(named)

    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            read(node, node.name)
        for method in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(method, ast.FunctionDef):
                read(method, f"{node.name}.{method.name}")
        if isinstance(node, ast.ClassDef):
            out.setdefault(node.name, set())
    return out


def test_the_stub_has_the_names_and_parameters():
    stub = told()
    assert {name.partition(".")[0] for name in stub} == set(fovea.torch.__all__)
    for name, parameters in stub.items():
        of, _, method = name.partition(".")
        real = getattr(fovea.torch, of)
        if inspect.isclass(real) and not method:
            continue
        real = getattr(real, method) if method else real
        assert parameters == set(inspect.signature(real).parameters), name
