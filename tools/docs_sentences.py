#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/sentences.tsv: what each operation answers to an array whose extent does not fit.

    tools/docs_sentences.py     asks the library again and writes the file (FOVEA_LIBRARY)

The pages show these sentences, and tests/docs.sh holds the file to the library."""

import pathlib
import sys

import api as parser
import docs_calls

ROOT = pathlib.Path(__file__).resolve().parents[1]
FILE = ROOT / "docs/sentences.tsv"


def read():
    """{op: sentence}"""
    rows = FILE.read_text().splitlines() if FILE.exists() else []
    return dict(row.split("\t") for row in rows)


def arrays(program):
    """Zeros of the call's arrays, for NumPy's dtypes."""
    import ml_dtypes
    import numpy as np

    kinds = {
        "f32": np.float32,
        "f16": np.float16,
        "i32": np.int32,
        "i64": np.int64,
        "u8": np.uint8,
        "e4m3": ml_dtypes.float8_e4m3fn,
    }
    return {n: np.zeros(a.shape, kinds[a.dtype]) for n, a in program.arrays.items()}


def asked(api):
    """{op: sentence} of the library of today."""
    sys.path.insert(0, str(ROOT / "bindings/python"))
    import fovea

    structs = {s["name"][6:-7]: s for s in api["structs"]}
    found = {}
    with fovea.Context("host") as ctx:
        for op in (row["name"] for row in api["ops"]):
            program = docs_calls.program(op, structs)
            if not program:
                continue
            call, given = program.calls[-1], arrays(program)
            fields = {name: given[name] for name in call.fields}
            found[op] = refusal(fovea, ctx, call, fields)
    return found


def refusal(fovea, ctx, call, fields):
    """The first sentence when one extent after the other is one too large."""
    for name, given in list(fields.items())[1:]:
        for axis in reversed(range(given.ndim)):
            shape = list(given.shape)
            shape[axis] += 1
            wrong = {**fields, name: given.__class__(shape, given.dtype)}
            wrong[name].fill(0)
            try:
                getattr(fovea, call.op)(ctx, **wrong, **call.numbers)
            except fovea.InvalidArgument as why:
                return str(why)
    sys.exit(f"docs: {call.op} takes every extent")


def check(api):
    now, before = asked(api), read()
    for op in now.keys() | before.keys():
        if now.get(op) != before.get(op):
            sys.exit(
                f"docs: {op} answers {now.get(op)!r}, docs/sentences.tsv has {before.get(op)!r}: "
                "run tools/docs_sentences.py"
            )


if __name__ == "__main__":
    rows = asked(parser.parse(ROOT / "include/fovea"))
    FILE.write_text("".join(f"{op}\t{sentence}\n" for op, sentence in rows.items()))
