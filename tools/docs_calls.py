# SPDX-License-Identifier: Apache-2.0
"""One small call of each operation, from which docs_snippets.py writes a program in each language.

Shapes, dtypes and numbers are those of tests/golden/<op>_1.safetensors, which every operation has.
A gradient is preceded by the forward that gives it its statistics.  SPECIAL has what reads better
otherwise.  What the programs are filled with is the same in all languages, and so is what they
print: tests/docs.sh compares."""

import dataclasses
import json
import math
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[1]
DTYPES = {
    "F32": "f32",
    "F16": "f16",
    "BF16": "bf16",
    "I32": "i32",
    "I64": "i64",
    "U8": "u8",
    "I8": "i8",
    "F8_E4M3": "e4m3",
    "F8_E5M2": "e5m2",
}
# Optional inputs left out.  Without lists x_compressed has every compressed key.
UNUSED = {
    "kl_backward": {"dtotal"},
    "merge_backward": {"dlse"},
    "x_compressed_backward": {"index", "index_count"},
}
# Backwards whose forward has another name, and the numbers it needs: SageBwd's, unsmoothed.
FORWARDS = {
    "x_quant_backward": (
        "x_quantised_forward",
        {"k_block": 64, "q_block": 64, "v_block": 64, "code": 1, "v_code": 1}
        | {"p_format": 3, "accumulate": 1},
    ),
}


@dataclasses.dataclass
class Array:
    """A tensor of the program.  values: numbers in order; a range: its numbers, again and again;
    "wave": sines; None: written first."""

    name: str
    dtype: str
    shape: tuple
    values: object = "wave"

    @property
    def count(self):
        return math.prod(self.shape)


@dataclasses.dataclass
class Call:
    op: str
    fields: list  # names of arrays, which are those of their fields
    numbers: dict


@dataclasses.dataclass
class Program:
    op: str
    arrays: dict  # {name: Array}, in the order of use
    calls: list
    shown: str  # the array whose first numbers are printed


def arrays(*rows):
    return {row[0]: Array(*row) for row in rows}


KV = ["k_code", "k_scale", "k_zero", "v_code", "v_scale", "v_zero", "k_tail", "v_tail"]
KV_NUMBERS = {"bits": 4, "group": 8}

SPECIAL = {
    "cache_append": lambda: Program(
        "cache_append",
        arrays(
            ("k_new", "f32", (2, 1, 2, 8)),
            ("v_new", "f32", (2, 1, 2, 8)),
            ("k", "f32", (4, 4, 2, 8), None),
            ("v", "f32", (4, 4, 2, 8), None),
            ("page_table", "i32", (2, 2), [0, 1, 2, 3]),
            ("key_len", "i32", (2,), [0, 5]),
            ("key_len_out", "i32", (2,), None),
        ),
        [
            Call(
                "cache_append",
                ["k_new", "v_new", "k", "v", "page_table", "key_len", "key_len_out"],
                {},
            )
        ],
        "k",
    ),
    "cache_copy": lambda: Program(
        "cache_copy",
        arrays(
            ("source", "f32", (4, 4, 2, 8)),
            ("target", "f32", (2, 4, 2, 8), None),
            ("pair", "i32", (2, 2), [2, 0, 3, 1]),
        ),
        [Call("cache_copy", ["source", "target", "pair"], {})],
        "target",
    ),
    "cache_get": lambda: Program(
        "cache_get",
        arrays(
            ("k", "f32", (4, 4, 2, 8)),
            ("page_table", "i32", (2, 2), [2, 0, 3, 1]),
            ("key_len", "i32", (2,), [5, 8]),
            ("k_out", "f32", (2, 8, 2, 8), None),
        ),
        [Call("cache_get", ["k", "page_table", "key_len", "k_out"], {})],
        "k_out",
    ),
    "rope_forward": lambda: Program(
        "rope_forward",
        arrays(
            ("cos", "f32", (8, 4), None),
            ("sin", "f32", (8, 4), None),
            ("x", "f32", (1, 8, 2, 8)),
            ("y", "f32", (1, 8, 2, 8), None),
        ),
        [
            Call("rope_table_get", ["cos", "sin"], {"position_begin": 1}),
            Call("rope_forward", ["x", "y", "cos", "sin"], {}),
        ],
        "y",
    ),
    "rope_table_get": lambda: Program(
        "rope_table_get",
        arrays(("cos", "f32", (8, 4), None), ("sin", "f32", (8, 4), None)),
        [Call("rope_table_get", ["cos", "sin"], {"position_begin": 1})],
        "sin",
    ),
    "quant_quantize": lambda: Program(
        "quant_quantize",
        arrays(
            ("x", "f32", (1, 64, 2, 16)),
            ("code", "e4m3", (1, 64, 2, 16), None),
            ("scale", "f32", (1, 2, 1), None),
        ),
        [Call("quant_quantize", ["x", "code", "scale"], {"hadamard": 1, "seed": 7})],
        "scale",
    ),
    "quant_dequantize": lambda: Program(
        "quant_dequantize",
        arrays(
            ("code", "e4m3", (1, 64, 2, 16)),
            ("scale", "f32", (1, 2, 1), [0.5, 0.25]),
            ("y", "f32", (1, 64, 2, 16), None),
        ),
        [Call("quant_dequantize", ["y", "code", "scale"], {})],
        "y",
    ),
    "quant_forward": lambda: Program(
        "quant_forward",
        arrays(
            ("q", "e4m3", (1, 64, 2, 16)),
            ("k", "e4m3", (1, 96, 1, 16)),
            ("v", "e4m3", (1, 96, 1, 16)),
            ("k_scale", "f32", (1, 1, 1), [0.5]),
            ("o", "f32", (1, 64, 2, 16), None),
        ),
        [Call("quant_forward", ["q", "k", "v", "k_scale", "o"], {"causal": 1})],
        "o",
    ),
    "x_kv_append": lambda: Program(
        "x_kv_append",
        arrays(
            ("k_new", "f16", (1, 12, 1, 8)),
            ("v_new", "f16", (1, 12, 1, 8)),
            ("k_code", "i32", (2, 1, 1, 8, 1), None),
            ("k_scale", "f16", (2, 1, 1, 8), None),
            ("k_zero", "f16", (2, 1, 1, 8), None),
            ("v_code", "i32", (2, 8, 1, 1), None),
            ("v_scale", "f16", (2, 8, 1, 1), None),
            ("v_zero", "f16", (2, 8, 1, 1), None),
            ("k_tail", "f16", (1, 8, 1, 8), None),
            ("v_tail", "f16", (1, 9, 1, 8), None),
            ("counter", "i32", (1, 4), None),
            ("page_table", "i32", (1, 2), [1, 0]),
        ),
        [Call("x_kv_append", ["k_new", "v_new", *KV, "counter", "page_table"], KV_NUMBERS)],
        "counter",
    ),
    "x_kv_decode": lambda: Program(
        "x_kv_decode",
        arrays(
            ("q", "f16", (1, 1, 2, 8)),
            ("k_code", "i32", (2, 1, 1, 8, 1), range(7)),
            ("k_scale", "f16", (2, 1, 1, 8)),
            ("k_zero", "f16", (2, 1, 1, 8)),
            ("v_code", "i32", (2, 8, 1, 1), range(5)),
            ("v_scale", "f16", (2, 8, 1, 1)),
            ("v_zero", "f16", (2, 8, 1, 1)),
            ("k_tail", "f16", (1, 8, 1, 8)),
            ("v_tail", "f16", (1, 9, 1, 8)),
            ("counter", "i32", (1, 4), [12, 8, 3, 0]),
            ("page_table", "i32", (1, 2), [1, 0]),
            ("o", "f16", (1, 1, 2, 8), None),
            ("lse", "f32", (1, 2, 1), None),
        ),
        [
            Call(
                "x_kv_decode",
                ["q", *KV, "counter", "page_table", "o", "lse"],
                {**KV_NUMBERS, "causal": 1},
            )
        ],
        "lse",
    ),
    "trace_forward": lambda: Program(
        "trace_forward",
        arrays(
            ("q", "f32", (1, 64, 2, 16)),
            ("k", "f32", (1, 128, 1, 16)),
            ("selected", "i32", (1, 2, 4, 2), None),
            ("score", "f32", (1, 2, 4, 2), None),
        ),
        [
            Call(
                "trace_forward",
                ["q", "k", "selected", "score"],
                {"keep": 2, "block_rows": 16, "block_keys": 16, "causal": 1},
            )
        ],
        "score",
    ),
}


def golden(op):
    """(metadata, {tensor: (dtype, shape, bytes)}) of the operation's first case, or None."""
    path = ROOT / f"tests/golden/{op}_1.safetensors"
    if not path.exists():
        return None
    raw = path.read_bytes()
    size = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:size])
    meta = header.pop("__metadata__")
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        data = raw[size + begin : size + end]
        tensors[name] = DTYPES[entry["dtype"]], tuple(entry["shape"]), data
    return meta, tensors


def array(name, tensor, written):
    """Integers are the file's own; what is written starts empty; the rest are waves."""
    dtype, shape, data = tensor
    if written:
        return Array(name, dtype, shape, None)
    if kind := {"i32": "i", "i64": "q", "u8": "B"}.get(dtype):
        values = list(memoryview(data).cast(kind))
        return Array(name, dtype, shape, values if len(values) <= 12 else range(max(values) + 1))
    return Array(name, dtype, shape)


def program(op, structs):
    """The Program of an operation; None where it has no golden file yet."""
    if op in SPECIAL:
        return SPECIAL[op]()
    found = golden(op)
    if not found:
        return None
    meta, tensors = found
    fields = [f for f in structs[op]["fields"] if f["name"] in tensors]
    floats = {f["name"] for f in structs[op]["fields"] if f["kind"] == "f32"}
    numbers = {
        name: float(round(value, 6)) if name in floats else value
        for name, value in json.loads(meta["params"]).items()
    }
    if op.endswith("_backward"):
        return gradient(op, structs, fields, tensors, numbers)
    outputs = [f for f in fields if f["direction"] != "in"]
    kept = [f["name"] for f in outputs if not f["optional"]] or [outputs[0]["name"]]
    kept += [f["name"] for f in outputs if f["name"] == "lse" and "lse" not in kept]
    fields = [f for f in fields if f["direction"] == "in" or f["name"] in kept]
    made = {f["name"]: array(f["name"], tensors[f["name"]], f["direction"] != "in") for f in fields}
    return Program(op, made, [Call(op, list(made), numbers)], kept[0])


def gradient(op, structs, fields, tensors, numbers):
    """The backward behind the forward that gives it what it takes of it."""
    forward, more = FORWARDS.get(op, (op.removesuffix("backward") + "forward", {}))
    fields = [f for f in fields if f["name"] not in UNUSED.get(op, ())]
    inputs = [f["name"] for f in fields if f["direction"] == "in"]
    twin = {f["name"]: f for f in structs[forward]["fields"]} if forward in structs else {}
    takes = [n for n in inputs if n in twin and twin[n].get("direction") == "out"]
    made, calls = {}, []
    given = list(takes)
    if takes:  # the forward writes its required outputs too
        own = golden(forward)[1]
        given += [n for n, f in twin.items() if f.get("direction") == "out" and not f["optional"]]
        tensors = {**own, **tensors}
        if op in FORWARDS:  # o is made in the dtype of q, and dout has that of o: f32 all
            tensors = {name: ("f32", *rest) for name, (_, *rest) in tensors.items()}
        shared = [n for n in inputs if n in twin and n not in takes]
        given = [n for n in twin if n in given]
        for name in shared + given:
            made[name] = array(name, tensors[name], name in given)
        shared_numbers = {n: v for n, v in numbers.items() if n in twin}
        calls.append(Call(forward, list(made), {**shared_numbers, **more}))
    for f in fields:
        if f["name"] not in made:
            made[f["name"]] = array(f["name"], tensors[f["name"]], f["direction"] != "in")
    calls.append(Call(op, [f["name"] for f in fields], numbers))
    outputs = [f["name"] for f in fields if f["direction"] != "in"]
    return Program(op, made, calls, outputs[0])
