# SPDX-License-Identifier: Apache-2.0
"""What a .pyi file says of its functions."""

import ast


def parameters(path):
    """name, or Class.method -> its parameters, of overloads all; and Class -> its annotated fields."""
    out = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            out.setdefault(node.name, set()).update(_of(node.args))
        elif isinstance(node, ast.ClassDef):
            inner = node.body
            out[node.name] = {x.target.id for x in inner if isinstance(x, ast.AnnAssign)}
            for method in (x for x in inner if isinstance(x, ast.FunctionDef)):
                out.setdefault(f"{node.name}.{method.name}", set()).update(_of(method.args))
    return out


def _of(args):
    return {x.arg for x in [*args.args, *args.kwonlyargs, *filter(None, [args.vararg, args.kwarg])]}
