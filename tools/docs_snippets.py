# SPDX-License-Identifier: Apache-2.0
"""A program in each language from a docs_calls.Program.  All print the same four numbers.

    python3 tools/docs_snippets.py FOLDER     writes <op>.c, .cpp, .py, .rs, .jl of every operation

Another language is a class below and a row of LANGUAGES."""

import pathlib
import re
import sys

import api as parser
import docs_calls
import emit_julia
import emit_python
import emit_rust

ROOT = pathlib.Path(__file__).resolve().parents[1]
FILLS = ("wave", "codes", "halves")


def fill(one):
    """Which function fills an array: "wave", "codes" of 8-bit floats, "halves" of f16, or None."""
    if one.values != "wave":
        return None
    return {"e4m3": "codes", "e5m2": "codes", "f16": "halves"}.get(one.dtype, "wave")


def numbers(one):
    """The array's own values, or None."""
    if isinstance(one.values, range):
        return [one.values[i % len(one.values)] for i in range(one.count)]
    return one.values if isinstance(one.values, list) else None


def wrapped(text, indent, width=96):
    """A call too long for a line, an argument a line as far as they fit."""
    if len(text) <= width:
        return text
    head, _, rest = text.partition("(")
    inner, _, tail = rest.rpartition(")")
    lines, line = [], " " * indent
    for part in re.split(r", (?![^\[\(]*[\]\)])", inner):
        if len(line) + len(part) > width - 1 and line.strip():
            lines.append(line.rstrip())
            line = " " * indent
        line += part + ", "
    return "\n".join([head + "(", *lines, line.rstrip(" ,"), " " * (indent - 4) + ")" + tail])


class Language:
    """What the programs of every language ask of the ABI."""

    def __init__(self, api):
        self.structs = {s["name"][6:-7]: s for s in api["structs"]}
        self.ops = {op["name"]: op for op in api["ops"]}
        self.enums = {e["name"]: e for e in api["enums"]}

    def tensors(self, call):
        """The call's fields as (description, name), in the header's order."""
        return [f for f in self.structs[call.op]["fields"] if f["name"] in call.fields]

    def field(self, call, name):
        return next(f for f in self.structs[call.op]["fields"] if f["name"] == name)

    def flag(self, call, name):
        return emit_rust.is_flag(self.field(call, name))

    def constant(self, call, name, value):
        """The enum of a field and its value's name: ("fovea_x_gate", "SIGMOID"); else None."""
        enum = self.field(call, name).get("enum")
        if not enum:
            return None
        names = {v["value"]: v["name"] for v in self.enums[enum]["values"]}
        return enum, emit_rust.constant_name(enum, names[value])

    def enums_named(self, program):
        """The enums of the calls' numbers."""
        found = set()
        for call in program.calls:
            for name, value in call.numbers.items():
                if constant := self.constant(call, name, value):
                    found.add(constant[0])
        return found

    @staticmethod
    def header_of(enum):
        """Where an enum is defined, below include/fovea."""
        folder = ROOT / "include/fovea"
        return next(
            str(path.relative_to(folder))
            for path in folder.rglob("*.h")
            if f"typedef enum {enum} " in path.read_text()
        )

    def assign(self, call, variable, mark):
        """The scalars of a call in C and C++; mark: what ends a float."""
        out = []
        for name, value in call.numbers.items():
            text = f"{value}{mark}" if isinstance(value, float) else value
            if found := self.constant(call, name, value):
                text = f"{found[0].upper()}_{found[1]}"
            out.append(f"  {variable}.{name} = {text};")
        return out

    def word(self, call, name, value):
        """A keyword's value in a language that writes true as `TRUE` and names enums by `NAMED`."""
        if found := self.constant(call, name, value):
            return self.NAMED.format(found[1].lower())
        return self.TRUTH[bool(value)] if self.flag(call, name) else value

    def first(self, program):
        """Each wave begins elsewhere: {array: its first number}."""
        waves = [name for name, one in program.arrays.items() if fill(one) == "wave"]
        return {name: at for at, name in enumerate(waves)}

    def fills(self, program, texts):
        used = {fill(one) for one in program.arrays.values()}
        return [texts[name] for name in FILLS if name in used]

    def written(self, program):
        """The arrays that a call writes."""
        fields = [f for call in program.calls for f in self.tensors(call)]
        return {f["name"] for f in fields if f["direction"] != "in"}

    def variables(self, program):
        """p, or the verbs where there are more calls than one."""
        verbs = [self.ops[call.op]["verb"] for call in program.calls]
        return verbs if len(verbs) > 1 else ["p"]

    def dims(self, program, name):
        """The extents of an array in letters, as a comment has them."""
        for call in program.calls:
            if name in call.fields:
                found = self.field(call, name)
                paged = "page_table" in call.fields and found["paged_dims"]
                return found["paged_dims"] if paged else found["dims"]


class C(Language):
    name, suffix, fence = "C", "c", "c"
    TYPES = {
        "f32": "float",
        "i32": "int32_t",
        "i64": "int64_t",
        "i8": "int8_t",
        "u8": "uint8_t",
        "e4m3": "uint8_t",
        "f16": "uint16_t",
    }
    FILLS = {
        "wave": """static void wave(float* x, int n, int first) {
  for (int i = 0; i < n; ++i) x[i] = sinf((float)(first + i));
}
""",
        "codes": """static void codes(uint8_t* x, int n) { /* e4m3: small positive numbers */
  for (int i = 0; i < n; ++i) x[i] = (uint8_t)(i % 64);
}
""",
        "halves": """static void halves(uint16_t* x, int n) { /* f16: 0.5 .. 1 */
  for (int i = 0; i < n; ++i) x[i] = (uint16_t)(0x3800 + i % 64 * 16);
}
""",
    }

    def text(self, program):
        fills = self.fills(program, self.FILLS)
        heads = ["#include <fovea/fovea.h>"]
        header = self.structs[program.op]["header"]
        named = {self.header_of(enum) for enum in self.enums_named(program)}
        more = {header, *named} if header.startswith("experimental/") else named
        heads += [f"#include <fovea/{path}>" for path in sorted(more) if path.startswith("experimental/")]
        heads += ["#include <math.h>"] if "wave" in "".join(fills) else []
        out = heads + ["#include <stdio.h>", "", *fills, "int main(void) {"]
        out += self.declare(program)
        out += self.shapes(program)
        out.append("  fovea_context* ctx = NULL;")
        variables = self.variables(program)
        for call, variable in zip(program.calls, variables):
            out.append(f"  fovea_{call.op}_params {variable} = {{0}};")
        first = self.first(program)
        for name, one in program.arrays.items():
            if fill(one) == "wave":
                out.append(f"  wave({name}, {one.count}, {first[name]});")
            elif fill(one):
                out.append(f"  {fill(one)}({name}, {one.count});")
        for call, variable in zip(program.calls, variables):
            out += self.fill_params(program, call, variable)
        run = " ||\n      ".join(
            [
                "fovea_context_create(FOVEA_HOST, 0, &ctx)",
                *(f"fovea_{c.op}(ctx, &{name})" for c, name in zip(program.calls, variables)),
            ]
        )
        shown = program.arrays[program.shown]
        mark = "%d" if shown.dtype == "i32" else "%g"
        count = min(4, shown.count)
        values = ", ".join(f"{program.shown}[{i}]" for i in range(count))
        out += [
            f"  if ({run}) {{",
            "    puts(fovea_last_error());",
            "    return 1;",
            "  }",
            f'  printf("{" ".join([mark] * count)}\\n", {values});',
            "  fovea_context_destroy(ctx);",
            "  return 0;",
            "}",
        ]
        return "\n".join(out) + "\n"

    def declare(self, program):
        out, groups = [], {}
        for name, one in program.arrays.items():
            if numbers(one) is None:
                groups.setdefault(self.TYPES[one.dtype], []).append(f"{name}[{one.count}]")
            else:
                values = ", ".join(map(str, numbers(one)))
                out.append(f"  {self.TYPES[one.dtype]} {name}[] = {{{values}}};")
        for ctype, names in groups.items():
            line = f"  static {ctype} "
            for name in names:
                if len(line) + len(name) > 92:
                    out.append(line.rstrip(" ,") + ";")
                    line = f"  static {ctype} "
                line += name + ", "
            out.append(line.rstrip(" ,") + ";")
        return [wrapped_list(line) for line in out]

    def shape_names(self, program):
        """{array: the variable that has its shape}; arrays of one shape share one."""
        found = {}
        for name, one in program.arrays.items():
            found.setdefault(one.shape, f"{name}_shape")
        return {name: found[one.shape] for name, one in program.arrays.items()}

    def shapes(self, program):
        out, done = [], set()
        for name, variable in self.shape_names(program).items():
            if variable not in done:
                done.add(variable)
                letters = ", ".join(self.dims(program, name))
                extents = ", ".join(map(str, program.arrays[name].shape))
                out.append(f"  const int64_t {variable}[] = {{{extents}}}; /* ({letters}) */")
        return out

    def fill_params(self, program, call, variable):
        out, shapes = [f"  {variable}.struct_size = sizeof {variable};"], self.shape_names(program)
        for f in self.tensors(call):
            one = program.arrays[f["name"]]
            view = f"FOVEA_{one.dtype.upper()}, {len(one.shape)}, {shapes[one.name]}"
            out.append(f"  {variable}.{one.name} = fovea_contiguous({one.name}, {view});")
        return out + self.assign(call, variable, "f")


def wrapped_list(line, width=96):
    """`  int32_t x[] = {...};` over several lines where it is long."""
    if len(line) <= width:
        return line
    head, _, rest = line.partition("{")
    values = rest.removesuffix("};").split(", ")
    rows = [", ".join(values[at : at + 24]) for at in range(0, len(values), 24)]
    return head + "{\n      " + ",\n      ".join(rows) + "};"


class Cpp(Language):
    name, suffix, fence = "C++", "cpp", "cpp"
    TYPES = {
        "f32": "float",
        "i32": "std::int32_t",
        "u8": "std::uint8_t",
        "e4m3": "fovea::e4m3",
        "f16": "fovea::f16",
    }
    FILLS = {
        "wave": """static std::vector<float> wave(int first, std::size_t n) {
  std::vector<float> x(n);
  for (float& value : x) value = std::sin(static_cast<float>(first++));
  return x;
}
""",
        "codes": """static std::vector<fovea::e4m3> codes(std::size_t n) {  // small positive numbers
  std::vector<fovea::e4m3> x(n);
  for (std::size_t i = 0; i < n; ++i) x[i].bits = static_cast<std::uint8_t>(i % 64);
  return x;
}
""",
        "halves": """static std::vector<fovea::f16> halves(std::size_t n) {  // 0.5 .. 1
  std::vector<fovea::f16> x(n);
  for (std::size_t i = 0; i < n; ++i) x[i].bits = static_cast<std::uint16_t>(0x3800 + i % 64 * 16);
  return x;
}
""",
    }

    def text(self, program):
        fills = self.fills(program, self.FILLS)
        header = self.structs[program.op]["header"]
        folder = "experimental/" if header.startswith("experimental/") else ""
        out = ["#include <cmath>"] if "std::sin" in "".join(fills) else []
        out += ["#include <cstdio>", f"#include <fovea/{folder}fovea.hpp>", "#include <vector>", ""]
        out += [*fills, "int main() {", *self.declare(program)]
        out.append("  auto ctx = fovea::Context::host();")
        variables, views = self.variables(program), {}
        for call, variable in zip(program.calls, variables):
            out.append(f"  auto {variable} = fovea::params<fovea_{call.op}_params>();")
            out += self.fill_params(program, call, variable, views)
            out.append(f"  fovea::run(ctx, {variable});")
        shown = program.arrays[program.shown]
        mark = "%d" if shown.dtype == "i32" else "%g"
        count = min(4, shown.count)
        values = ", ".join(f"{program.shown}[{i}]" for i in range(count))
        out += [f'  std::printf("{" ".join([mark] * count)}\\n", {values});', "}"]
        return "\n".join(out) + "\n"

    def declare(self, program):
        """Arrays of one type share a line as far as they fit; what no call writes is const."""
        first, written, groups, out = self.first(program), self.written(program), {}, []
        for name, one in program.arrays.items():
            mark = "" if name in written else "const "
            kind = f"std::vector<{self.TYPES[one.dtype]}>"
            if fill(one):
                begin = f"{first[name]}, " if fill(one) == "wave" else ""
                text = f"{name} = {fill(one)}({begin}{one.count})"
                groups.setdefault((f"  {mark}auto ", fill(one)), []).append(text)
            elif isinstance(one.values, range):
                groups.setdefault((f"  {kind} ", ""), []).append(f"{name}({one.count})")
            elif numbers(one) is None:
                groups.setdefault((f"  {mark}{kind} ", ""), []).append(f"{name}({one.count})")
            else:
                values = ", ".join(map(str, numbers(one)))
                groups.setdefault((f"  {mark}{kind} ", ""), []).append(f"{name}{{{values}}}")
        for (head, _), texts in groups.items():
            line = head
            for text in texts:
                if len(line) + len(text) > 94:
                    out.append(line.rstrip(" ,") + ";")
                    line = head
                line += text + ", "
            out.append(line.rstrip(" ,") + ";")
        for name, one in program.arrays.items():
            if isinstance(one.values, range):
                each = f"for (int i = 0; i < {one.count}; ++i) {name}[i]"
                out.append(f"  {each} = i % {len(one.values)};")
        return out

    def fill_params(self, program, call, variable, views):
        """views: {array: the field that has its view already}."""
        out, known, written = [], [], self.written(program)
        for f in self.tensors(call):
            name, one = f["name"], program.arrays[f["name"]]
            if name in views:
                known.append(f"  {variable}.{name} = {views[name]};")
                continue
            view = "tensor" if name in written else "input"
            shape = f"{{{', '.join(map(str, one.shape))}}}"
            line = f"  {variable}.{name} = fovea::{view}({name}, {shape});"
            out.append((line, ", ".join(self.dims(program, name))))
            views[name] = f"{variable}.{name}"
        width = max((len(line) for line, _ in out), default=0)
        out = known + [f"{line:{width}}  // ({dims})" for line, dims in out]
        return out + self.assign(call, variable, "F")


class Python(Language):
    name, suffix, fence = "Python", "py", "python"
    TYPES = {
        "f32": "np.float32",
        "i32": "np.int32",
        "u8": "np.uint8",
        "e4m3": "ml_dtypes.float8_e4m3fn",
        "f16": "np.float16",
    }
    TRUTH, NAMED = ("False", "True"), '"{}"'
    FILLS = {
        "wave": '''def wave(first, *shape):
    """Sines, so that every language has the same numbers."""
    return np.sin(first + np.arange(np.prod(shape), dtype=np.float32)).reshape(shape)

''',
        "codes": '''def codes(*shape):
    """e4m3: small positive numbers."""
    bytes_ = (np.arange(np.prod(shape)) % 64).astype(np.uint8)
    return bytes_.view(ml_dtypes.float8_e4m3fn).reshape(shape)

''',
        "halves": '''def halves(*shape):
    """f16: 0.5 .. 1."""
    words = 0x3800 + np.arange(np.prod(shape)) % 64 * 16
    return words.astype(np.uint16).view(np.float16).reshape(shape)

''',
    }

    def text(self, program):
        fills = self.fills(program, self.FILLS)
        out = ["import fovea", "import numpy as np", "", *([""] if fills else [])]
        if any("ml_dtypes" in text for text in fills):
            out.insert(1, "import ml_dtypes")
        out += [line for text in fills for line in text.split("\n")]
        made = {name for call in program.calls for name in self.made(call)}
        first = self.first(program)
        for name, one in program.arrays.items():
            if name in made:
                continue
            dims = f"  # ({', '.join(self.dims(program, name))})"
            out.append(f"{name} = {self.values(one, first)}{dims}")
        out.append('with fovea.Context("host") as ctx:')
        out += ["    " + wrapped(self.call(program, call), 8, 92) for call in program.calls]
        out.append(f"print({program.shown}.ravel()[:4])")
        return "\n".join(out) + "\n"

    def values(self, one, first):
        shape = ", ".join(map(str, one.shape)) + ("," if len(one.shape) == 1 else "")
        if fill(one) == "wave":
            return f"wave({first[one.name]}, {shape})"
        if fill(one):
            return f"{fill(one)}({shape})"
        dtype = self.TYPES[one.dtype]
        if isinstance(one.values, range):
            return f"(np.arange({one.count}, dtype={dtype}) % {len(one.values)}).reshape({shape})"
        if numbers(one) is None:
            return f"np.zeros(({shape}), {dtype})"
        return f"np.array({nested(numbers(one), one.shape)}, {dtype})"

    def operation(self, call):
        return emit_python.Operation(self.ops[call.op], self.structs[call.op], self.enums)

    def extents(self, call, f):
        """Extents of an output that no input of the call says."""
        parts = self.operation(call).plans[f["name"]]
        said = lambda found: any(source[0] in call.fields for source in found)  # noqa: E731
        return [dim for dim, found, ask in parts if ask and not said(found)]

    def made(self, call):
        """Outputs that the call makes."""
        op = self.operation(call)
        return [f["name"] for f in op.outputs if f["name"] in call.fields]

    def call(self, program, call):
        op = self.operation(call)
        arguments = ["ctx"] + [f["name"] for f in op.required]
        results = []
        for f in op.outputs:
            if f["name"] in call.fields:
                results.append(f["name"])
                arguments += [] if op.wanted_by_default(f) else [f"{f['name']}=True"]
                shape = dict(zip(f["dims"], program.arrays[f["name"]].shape))
                arguments += [
                    text
                    for dim in self.extents(call, f)
                    if (text := f"{dim}={shape[dim]}") not in arguments
                ]
            elif op.wanted_by_default(f):
                arguments.append(f"{f['name']}=False")
        given = [f["name"] for f in op.inputs if f["optional"] and f["name"] in call.fields]
        arguments += [f"{name}={name}" for name in given]
        arguments += [
            f"{name}={self.word(call, name, value)}" for name, value in call.numbers.items()
        ]
        left = f"{', '.join(results)} = " if results else ""
        name = f"experimental.{call.op[2:]}" if call.op.startswith("x_") else call.op
        return f"{left}fovea.{name}({', '.join(arguments)})"


def nested(values, shape):
    """[[0, 1], [2, 3]] of (2, 2)."""
    if len(shape) <= 1:
        return str(values)
    step = len(values) // shape[0]
    return "[" + ", ".join(
        nested(values[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])
    ) + "]"  # fmt: skip


class Rust(Language):
    name, suffix, fence = "Rust", "rs", "rust"
    TYPES = {"f32": "f32", "i32": "i32", "u8": "u8", "e4m3": "u8", "f16": "u16"}
    FORMATS = {"e4m3": "E4m3", "f16": "F16"}
    TRUTH = "false", "true"
    FILLS = {
        "wave": """fn wave(first: usize, n: usize) -> Vec<f32> {
    (first..first + n).map(|i| (i as f32).sin()).collect()
}
""",
        "codes": """// e4m3: small positive numbers
fn codes(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i % 64) as u8).collect()
}
""",
        "halves": """// f16: 0.5 .. 1
fn halves(n: usize) -> Vec<u16> {
    (0..n).map(|i| (0x3800 + i % 64 * 16) as u16).collect()
}
""",
    }

    @staticmethod
    def path(op):
        return ("experimental::" if op.startswith("x_") else "") + emit_rust.camel(op)

    def word(self, call, name, value):
        found = self.constant(call, name, value)
        if not found:
            return super().word(call, name, value)
        return f"{emit_rust.alias(found[0])}::{found[1]}"

    def enums_of(self, call):
        """The paths of enums whose values the call names."""
        found = [self.constant(call, name, value) for name, value in call.numbers.items()]
        return {
            ("experimental::" if one[0].startswith("fovea_x_") else "") + emit_rust.alias(one[0])
            for one in found
            if one
        }

    def text(self, program):
        kinds = {emit_rust.kind(f) for call in program.calls for f in self.tensors(call)}
        names = {self.path(call.op) for call in program.calls} | {"Context"}
        names |= {path for call in program.calls for path in self.enums_of(call)}
        names |= {"Tensor"} if "in" in kinds else set()
        names |= {"TensorMut"} if "out" in kinds else set()
        names |= {self.FORMATS[a.dtype] for a in program.arrays.values() if a.dtype in self.FORMATS}
        use = f"use fovea::{{{', '.join(sorted(names))}}};"
        out = [wrapped_use(use), "", *self.fills(program, self.FILLS)]
        out += ["fn main() -> fovea::Result<()> {", "    let ctx = Context::host()?;"]
        first = self.first(program)
        written = {
            f["name"]
            for call in program.calls
            for f in self.tensors(call)
            if emit_rust.kind(f) == "out"
        }
        for name, one in program.arrays.items():
            mark = "mut " if name in written else ""
            dims = f" // ({', '.join(self.dims(program, name))})"
            out.append(f"    let {mark}{name} = {self.values(one, first)};{dims}")
        for call in program.calls:
            out += self.call(program, call)
        out += [
            f'    println!("{{:?}}", &{program.shown}[..{min(4, program.arrays[program.shown].count)}]);',
            "    Ok(())",
            "}",
        ]
        return "\n".join(out) + "\n"

    def values(self, one, first):
        if fill(one) == "wave":
            return f"wave({first[one.name]}, {one.count})"
        if fill(one):
            return f"{fill(one)}({one.count})"
        if isinstance(one.values, range):
            return f"(0..{one.count}).map(|i| i % {len(one.values)}).collect::<Vec<i32>>()"
        kind = self.TYPES[one.dtype]
        if numbers(one) is None:
            return f"vec![0{kind}; {one.count}]"
        head, *rest = map(str, numbers(one))
        return f"vec![{', '.join([head + kind, *rest])}]"

    def view(self, program, f):
        one = program.arrays[f["name"]]
        shape = ", ".join(map(str, one.shape))
        mark, view = ("&", "Tensor") if emit_rust.kind(f) == "in" else ("&mut ", "TensorMut")
        new = f"of::<{self.FORMATS[one.dtype]}>" if one.dtype in self.FORMATS else "new"
        return f"{mark}{view}::{new}({mark}{one.name}, &[{shape}])?"

    def call(self, program, call):
        required, optional = emit_rust.split(self.structs[call.op])
        out = [f"    {emit_rust.camel(call.op)}::new("]
        out += [f"        {self.view(program, f)}," for f in required]
        out.append("    )")
        pad = "    "
        if not required:
            out, pad = [f"    {emit_rust.camel(call.op)}::new()"], "        "
        for f in optional:
            if f["name"] in call.fields:
                out.append(f"{pad}.{f['name']}({self.view(program, f)})")
            elif f["name"] in call.numbers:
                value = self.word(call, f["name"], call.numbers[f["name"]])
                out.append(f"{pad}.{f['name']}({value})")
        return out + [pad + ".run(&ctx)?;"]


def wrapped_use(text, width=96):
    if len(text) <= width:
        return text
    head, _, rest = text.partition("{")
    names, line, lines = rest.removesuffix("};").split(", "), "    ", []
    for name in names:
        if len(line) + len(name) > width - 2:
            lines.append(line.rstrip())
            line = "    "
        line += name + ", "
    return "\n".join([head + "{", *lines, line.rstrip(), "};"])


class Julia(Language):
    name, suffix, fence = "Julia", "jl", "julia"
    TYPES = {"f32": "Float32", "i32": "Int32", "u8": "UInt8", "e4m3": "Fovea.E4M3", "f16": "Float16"}
    TRUTH, NAMED = ("false", "true"), ":{}"
    FILLS = {
        "wave": "wave(first, size...) = "
        "reshape(sin.(Float32.(first:first + prod(size) - 1)), size)\n",
        "codes": "# e4m3: small positive numbers\n"
        "codes(size...) = reshape(reinterpret(Fovea.E4M3, UInt8.((0:prod(size) - 1) .% 64)), size)\n",
        "halves": "# f16: 0.5 .. 1\n"
        "halves(size...) = "
        "reshape(reinterpret(Float16, UInt16.(0x3800 .+ (0:prod(size) - 1) .% 64 .* 16)), size)\n",
    }

    def text(self, program):
        fills = self.fills(program, self.FILLS)
        if "sin" in program.arrays:  # which hides the function
            fills = [text.replace("sin.(", "Base.sin.(") for text in fills]
        out = ["using Fovea", "", *fills, "ctx = Context(:host)"]
        first = self.first(program)
        made = {name for call in program.calls for name in self.made(call)}
        for name, one in program.arrays.items():
            if name not in made:
                dims = f"  # ({', '.join(reversed(self.dims(program, name)))})"
                out.append(f"{name} = {self.values(one, first)}{dims}")
        shown = program.shown
        for call in program.calls:
            text, alone = self.call(call)
            out.append(wrapped(text, 4))
            if not alone and call is program.calls[-1] and shown in self.made(call):
                shown = f"out.{shown}"
            elif not alone:
                needed = [n for n in self.made(call) if n in program.calls[-1].fields]
                out.append(f"{', '.join(needed)} = {', '.join(f'out.{n}' for n in needed)}")
        count = min(4, program.arrays[program.shown].count)
        shown = f"{shown}[1:{count}]"
        # An array made from f16 is f16.  Julia prints its type too, whose name holds a number.
        if any(one.dtype == "f16" for one in program.arrays.values()):
            shown = f"Float32.({shown})"
        out.append(f"println({shown})")
        return "\n".join(out) + "\n"

    def values(self, one, first):
        size = ", ".join(map(str, reversed(one.shape)))
        if fill(one) == "wave":
            return f"wave({first[one.name]}, {size})"
        if fill(one):
            return f"{fill(one)}({size})"
        kind = self.TYPES[one.dtype]
        if isinstance(one.values, range):
            return f"reshape({kind}.((0:{one.count - 1}) .% {len(one.values)}), {size})"
        if numbers(one) is None:
            return f"zeros({kind}, {size})"
        values = f"{kind}[{', '.join(map(str, numbers(one)))}]"
        return values if len(one.shape) == 1 else f"reshape({values}, {size})"

    def operation(self, call):
        return emit_julia.Op(self.ops[call.op], self.structs[call.op])

    def made(self, call):
        """Outputs that the call makes: of its first input's type, if they have it, and of extents
        that what it is given says."""
        op = self.operation(call)
        types = set(op.like["dtypes"]) if op.like else set()

        def said(dim):
            if dim.isdigit() or op.told(dim) or not op.sources(dim) and dim in emit_julia.DERIVED:
                return True
            follow = [name for other, _ in op.follows(dim) for name, *_ in op.sources(other)]
            return {name for name, *_ in op.sources(dim)}.union(follow) & set(call.fields)

        return [
            f["name"]
            for f in op.outputs
            if f["name"] in call.fields
            and (f["dtype_as"] or len(f["dtypes"]) == 1 or types & set(f["dtypes"]))
            and all(map(said, f["dims"]))
        ]

    def call(self, call):
        """(its text, whether its result is one array)."""
        op = self.operation(call)
        made = self.made(call)
        named = [f["name"] for f in op.keywords if f["name"] in call.fields]
        words = [f"{name}={'true' if name in made else name}" for name in named]
        wanted = {name for name, on in self.defaults(op.function).items() if on == "true"}
        words += [f"{f['name']}=false" for f in op.outputs if f["name"] in wanted - set(named)]
        words += [f"{name}={self.word(call, name, value)}" for name, value in call.numbers.items()]
        inputs = ", ".join(["ctx", *(f["name"] for f in op.positional)])
        text = f"{op.function}({inputs}{'; ' if words else ''}{', '.join(words)})"
        left = {0: "", 1: f"{made[0] if made else ''} = "}.get(len(made), "out = ")
        return left + text, len(made) <= 1

    def defaults(self, function):
        """{keyword: default} of the generated function."""
        text = (ROOT / "bindings/julia/Fovea/src/ops.jl").read_text()
        found = re.search(
            rf"^function {re.escape(function)}\(ctx[^;)]*;(.*?)\)\n", text, re.M | re.S
        )
        return dict(re.findall(r"(\w+)=(\w+)", found[1])) if found else {}


LANGUAGES = [C, Cpp, Python, Rust, Julia]


def programs(api):
    """{op: {language: text}} of every operation that has a small call."""
    structs = {s["name"][6:-7]: s for s in api["structs"]}
    languages = [language(api) for language in LANGUAGES]
    found = {}
    for op in structs.keys() & {op["name"] for op in api["ops"]}:
        if program := docs_calls.program(op, structs):
            found[op] = {language: language.text(program) for language in languages}
    return found


def write(api, folder):
    """A file for each program; how many operations there are."""
    folder.mkdir(parents=True, exist_ok=True)
    found = programs(api)
    for op, texts in found.items():
        for language, text in texts.items():
            (folder / f"{op}.{language.suffix}").write_text(text)
    return len(found)


def main(argv):
    if len(argv) != 1:
        sys.exit(__doc__)
    count = write(parser.parse(ROOT / "include/fovea"), pathlib.Path(argv[0]))
    print(f"docs: {count} operations in {len(LANGUAGES)} languages")


if __name__ == "__main__":
    main(sys.argv[1:])
