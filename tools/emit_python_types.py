# SPDX-License-Identifier: Apache-2.0
"""bindings/python/fovea/ops.pyi and experimental.pyi: the types of the operations.

An operation is overloads, each with ctx first and without it.  A is the type of the first input.

| overload | gives |
| --- | --- |
| no output on request | what comes by itself: None, A, or a tuple |
| one output on request | that one more, where the operation has at most four such |
| both, where it has two | two more |
| anything else | Any: more outputs, False or a bool for one, inputs whose library makes no outputs |

Outputs of integers are Any, as their type is not the first input's."""

import textwrap

SCALARS = {"i64": "Int", "i32": "Int", "f32": "Float"}
SINGLES = 4  # outputs on request that are told apart
WANTED, ABSENT, ANYTHING = "Wanted", "None", "Output"
HEAD = '''"""Types of the operations: see ../../../tools/emit_python_types.py for how outputs are typed."""
from typing import Any, Literal, overload

from typing_extensions import TypedDict, Unpack

from ._core import Context
from ._types import A, Array, Float, Int, Output, Wanted
'''


def field(name, kind):
    return f"    {name}: {kind}"


def words(op, safe, enums):
    """The TypedDict of what no overload tells apart."""
    lines = [field(safe(f["name"]), "Array | None") for f in op.inputs if f["optional"]]
    lines += [field(name, "Int | None") for name in op.given]
    for f in op.scalars:
        kind = SCALARS[f["kind"]]
        if "enum" in f:
            name, members = enums[f["enum"]]
            kind = f"Literal[{', '.join(repr(m.lower()) for m in members)}] | {name} | Int".replace("'", '"')
        lines.append(field(f["name"], kind))
    return lines or ["    pass"]


def given(op, asked):
    """(parameters, result) of the overload that asks for these outputs."""
    params, results = [], []
    for f in op.outputs:
        by_itself = op.wanted_by_default(f)
        if by_itself:
            params.append(f"{f['name']}: {WANTED} | None = ...")
        elif f["name"] in asked:
            params.append(f"{f['name']}: {WANTED}")
        else:
            params.append(f"{f['name']}: {ABSENT} = ...")
        if by_itself or f["name"] in asked:
            floats = f["dtype_as"] or any(d[0] != "i" and d[0] != "u" for d in f["dtypes"])
            results.append("A" if floats else "Any")
    return params, result(results)


def result(types):
    return "None" if not types else types[0] if len(types) == 1 else f"tuple[{', '.join(types)}]"


def shapes_of(op):
    """(parameters of outputs, result) of each overload."""
    request = [f["name"] for f in op.outputs if not op.wanted_by_default(f)]
    out = [given(op, [])]
    if len(request) <= SINGLES:
        out += [given(op, [name]) for name in request]
        if len(request) == 2:
            out.append(given(op, request))
    return out


def overloads(op, safe):
    """Each shape with ctx first and without it; then what no shape fits."""
    required = [safe(f["name"]) for f in op.required]
    anything = [f"{f['name']}: {ANYTHING} = ..." for f in op.outputs]
    shapes = shapes_of(op)
    own = [s for s in shapes if required or "A" not in s[1].replace("Any", "")]
    for params, gives in own + ([(anything, "Any")] if op.outputs else []):
        first = "A" if "A" in gives.replace("Any", "") else "Array"
        inputs = [f"{name}: {'Array' if i else first}" for i, name in enumerate(required)]
        for args in (["ctx: Context | None", *inputs], inputs):
            keywords = [] if args[:1] == ["ctx: Context | None"] else ["ctx: Context | None = ..."]
            keywords += params
            if not required and keywords[:1] == ["ctx: Context | None = ..."]:
                continue
            if not required:
                args = ["ctx: Context | None = ..."]
            yield [*args, *(["*"] if keywords else []), *keywords], gives


def function(op, safe):
    found = list(overloads(op, safe))
    for params, gives in found:
        mark = "@overload\n" if len(found) > 1 else ""
        fields = f"**fields: Unpack[_{op.python}]"
        yield mark + lined(f"def {op.python}(", [*params, fields], f") -> {gives}: ...")


def lined(head, parts, tail):
    """head, parts and tail in lines of 100 columns; a part is not broken."""
    glued = [part.replace(" ", "\0") for part in parts]
    text = textwrap.fill(
        f"{head}{', '.join(glued)}{tail}".replace(" -> ", "\0->\0").replace(": ...", ":\0..."),
        100, subsequent_indent=" " * len(head.lstrip()), break_on_hyphens=False, break_long_words=False,
    )
    return text.replace("\0", " ")


def stub(operations, api, names):
    """The text of a module's stub; names: (ABI's, Python's) of its enums."""
    from emit_python import camel, members, safe

    python = dict(names)
    enums = {
        e["name"]: (python[camel(e["name"])], [name for name, _ in members(e)])
        for e in api["enums"]
        if camel(e["name"]) in python
    }
    out = [HEAD + "\n".join(f"from ._abi import {own} as {name}" for own, name in names) + "\n"]
    exported = [f'"{op.python}"' for op in operations] + [f'"{name}"' for _, name in names]
    out.append(textwrap.fill(f"__all__ = [{', '.join(exported)}]", 100, subsequent_indent=" " * 11))
    for op in operations:
        lines = [line if len(line) <= 100 else fold(line) for line in words(op, safe, enums)]
        out.append("\n".join([f"\nclass _{op.python}(TypedDict, total=False):", *lines]))
        out.append("\n".join(["", *function(op, safe)]))
    return "\n".join(out) + "\n"


def fold(line):
    if len(line) > 100 and ": " in line:  # an annotation goes on inside brackets alone
        name, kind = line.split(": ", 1)
        line = f"{name}: ({kind})"
    return textwrap.fill(line, 100, subsequent_indent=" " * 8, break_on_hyphens=False)
