# SPDX-License-Identifier: Apache-2.0
"""Of bindings/python/fovea: _abi.py (the ABI as ctypes), ops.py and experimental.py (one function per
operation), and their types (emit_python_types.py)."""

import keyword
import textwrap

import emit_python_types

DTYPES = "f32 f16 bf16 e4m3 e5m2 e2m1 i8 i32 i64 u8 i4 e8m0".split()  # fovea_dtype is index + 1
BY_VALUE = {
    "void": "None",
    "int32_t": "C.c_int32",
    "int64_t": "C.c_int64",
    "size_t": "C.c_size_t",
    "float": "C.c_float",
    "const char*": "C.c_char_p",
    "void*": "C.c_void_p",
    "const void*": "C.c_void_p",
    "void**": "C.POINTER(C.c_void_p)",
    "fovea_context*": "C.c_void_p",
    "fovea_context**": "C.POINTER(C.c_void_p)",
}
SCALARS = {"i64": ("q", "0"), "f32": ("f", "0.0"), "i32": ("i", "0")}
# An extent that the header's words, not a tensor, give: r is b where no tensor has r, and the
# reverse without key_start (core.h); a merge without `row` writes as many rows as its parts have.
IMPLIED = {"r": ("b", None), "b": ("r", "key_start"), "s": ("u", "row")}
# Rows of the states that a call writes: those of the states that it reads, or one a sequence where
# no state_out_row says otherwise.  What tells them, its extent, and the input that must be absent.
STATES = ("state_in", "state_k_in", "state_v_in")
SLOTS_OUT = [(STATES, "slots", None), (("start",), "r", "state_out_row"), ((), "b", "state_out_row")]
# Rows of o without those of history, which every sequence has.
DERIVED = {
    "rows_out": "v_q[2][1] - history * call.sequences(v_query_start)",
    "heads": "max(v_k[2][2], v_v[2][2])",
    "heads_out": "max(v_q[2][2], v_k[2][2], v_v[2][2])",
}
# An extent that follows from an input and a number of the call.
COMPUTED = {("trace_forward", "n"): ("q", "-(-v_q[2][1] // (block_rows or 64))")}
# The last extent of a field of bits, and what it counts; `keys` ends one that broadcasts too.
BITS = {"bytes": "keys", "block_bytes": "blocks"}
# What the binding asks to count it: inputs, then numbers.
COUNTS = {"keys": (("k", "page_table", "key_start"), "key_max"), "blocks": (("k", "page_table"), "block_keys")}
TOP = (
    "# SPDX-License-Identifier: Apache-2.0\n"
    "# Written by tools/api.py from include/fovea: edit the headers instead.\n"
)
EXPERIMENTAL = """Operations outside the ABI promise: a release may change or remove them.

C calls them fovea_x_NAME, and the library's sentences x_NAME."""
# What a call of these looks like is more than its inputs and outputs by name.
EXAMPLES = {
    "attention_forward": [
        "q = numpy.random.rand(2, 64, 8, 128).astype(numpy.float32)  # (b, s, h, d)",
        "k = numpy.random.rand(2, 64, 2, 128).astype(numpy.float32)  # (b, t, g, d)",
        "v = numpy.random.rand(2, 64, 2, 128).astype(numpy.float32)  # (b, t, g, e)",
        "o = fovea.attention_forward(q, k, v, causal=True)",
        "o, lse = fovea.attention_forward(q, k, v, causal=True, lse=True)",
    ],
    "cache_append": [
        "fovea.cache_append(k_new=k_new, v_new=v_new, k=k, v=v, key_len=key_len)",
    ],
    "rope_table_get": ["cos, sin = fovea.rope_table_get(positions=4096, half=64, base=10000.0)"],
    "quant_quantize": [
        "blocks = -(-x.shape[1] // 128)",
        "code, scale = fovea.quant_quantize(x, code=True, block=128, n=blocks)",
    ],
    "trace_forward": ["selected, o = fovea.trace_forward(q, k, v=v, keep=16, selected=True, o=True)"],
}
CHECK_SIZES = """for _struct, _size in SIZES.items():
    if C.sizeof(_struct) != _size:
        raise ImportError(f"{_struct.__name__} has {C.sizeof(_struct)} bytes, wanted {_size}")
"""
DECLARE = '''def declare(lib):
    """Gives every function of the library its types."""
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
'''


def camel(name):
    return "".join(word.capitalize() for word in name.removeprefix("fovea_").split("_"))


def members(enum):
    """Values with the enum's own prefix taken off: FOVEA_SCALING_YARN is YARN of Scaling."""
    prefix = f"FOVEA_{enum['name'].removeprefix('fovea_').upper()}_"
    for value in enum["values"]:
        yield value["name"].removeprefix(prefix).removeprefix("FOVEA_"), value


def ctype(name, api):
    if name in BY_VALUE:
        return BY_VALUE[name]
    bare = name.removeprefix("const ").rstrip("*")
    if bare in {e["name"] for e in api["enums"]}:
        base = "C.c_int"
    elif bare in {s["name"] for s in api["structs"]}:
        base = camel(bare)
    else:
        base = BY_VALUE[bare]
    return f"C.POINTER({base})" if name.endswith("*") else base


def abi(api):
    out = [
        TOP + '"""The C ABI: enums, structs, functions."""\nimport ctypes as C\nimport enum\n',
        f'VERSION = "{api["version"]}"',
    ]
    out += [
        f"{c['name'].removeprefix('FOVEA_')} = {c['value']}"
        for c in api["constants"]
        if "VERSION" not in c["name"]
    ]
    for e in api["enums"]:
        out.append(f'\n\nclass {camel(e["name"])}(enum.IntEnum):\n    """{e["doc"]}"""\n')
        for name, value in members(e):
            line = f"    {name} = {value['value']}"
            note = f"  # {value['doc']}" if value["doc"] else ""
            if len(line + note) > 100:
                out += textwrap.wrap(
                    value["doc"], 94, initial_indent="    # ", subsequent_indent="    # "
                )
                note = ""
            out.append(line + note)
    for s in api["structs"]:
        out.append(f"\n\nclass {camel(s['name'])}(C.Structure):\n    _fields_ = [")
        for f in s["fields"]:
            times = f" * {f['count']}" if f["count"] > 1 else ""
            out.append(f'        ("{f["name"]}", {ctype(f["type"], api)}{times}),')
        out.append("    ]")
    out.append("\n\nSIZES = {")
    out += [f"    {camel(s['name'])}: {s['size']}," for s in api["structs"]]
    out.append("}\n" + CHECK_SIZES + "\nFUNCTIONS = {")
    for f in api["functions"]:
        types = ", ".join(ctype(a["type"], api) for a in f["args"])
        out.append(fold(f'    "{f["name"]}": ({ctype(f["returns"], api)}, [{types}]),'))
    return "\n".join(out) + "\n}\n\n\n" + DECLARE


class Operation:
    """What the text of one Python function needs to know about one operation."""

    def __init__(self, op, struct, enums):
        self.name, self.struct, self.enums = op["name"], struct, enums
        self.experimental = op["name"].startswith("x_")
        self.python = op["name"].removeprefix("x_")  # of the function
        self.fields = struct["fields"]
        self.tensors = [f for f in self.fields if f["kind"] == "tensor"]
        self.scalars = [f for f in self.fields if f["kind"] in SCALARS]
        self.inputs = [f for f in self.tensors if f["direction"] != "out"]
        self.outputs = [f for f in self.tensors if f["direction"] == "out"]
        self.required = [f for f in self.inputs if not f["optional"]]
        self.twins = {f["name"]: self.twin(f) for f in self.outputs}
        self.plans = {
            f["name"]: [] if self.twins[f["name"]] else self.plan(f) for f in self.outputs
        }
        self.sources = {s[0] for plan in self.plans.values() for part in plan for s in part[1]}
        self.spreads = {f["name"]: self.spread(f) for f in self.tensors if self.broadcasts(f)}
        self.given = [part[0] for plan in self.plans.values() for part in plan if part[2]]
        self.given = list(dict.fromkeys(self.given))

    def broadcasts(self, field):
        """Does the binding broadcast this array: bits, and what is added to scores?"""
        last = field["dims"][-1]
        return last in BITS and field["dtypes"] == ["u8"] or last == "keys" and (
            field["direction"] == "in" or field["sums"]
        )

    def spread(self, field):
        """(texts of the extents but the last, text of what the last counts)."""
        plan = self.plan({"dims": field["dims"][:-1]})
        last = field["dims"][-1]
        inputs, number = COUNTS[BITS.get(last, last)]
        has = {f["name"] for f in self.inputs}
        self.sources |= {s[0] for part in plan for s in part[1]} | (has & set(inputs))
        views = [f"v_{name}" if name in has else "None" for name in inputs]
        count = f"call.{BITS.get(last, last)}({', '.join([*views, number])})"
        return [self.extent(part) for part in plan], count

    def index_of(self, field, dim):
        """(index, less) where `field` says the extent `dim`, whether paged or not."""
        for i, d in enumerate(field["dims"]):
            if d == dim or d == f"{dim}+1":
                if not field["paged_dims"] or field["paged_dims"][i] == d:
                    return i, int(d != dim)
        return None

    def twin(self, output):
        """The input whose gradient or copy an output is: it has its shape."""
        same = [f for f in self.inputs if f["dims"] == output["dims"] and not f["paged_dims"]]
        return next((f for f in same if f"d{f['name']}" == output["name"]), None) or next(
            (f for f in same if not f["optional"]), None
        )

    def plan(self, output):
        """For each dim: (dim, [(input, index, less, only without)], can the caller be asked)."""
        plan = []
        for dim in output["dims"]:
            if dim.isdigit() or dim in {f["name"] for f in self.scalars}:
                plan.append((dim, [], False))
                continue
            if (self.name, dim) in COMPUTED:
                plan.append((dim, [(COMPUTED[self.name, dim][0], None, 0, None)], False))
                continue
            found = self.find(dim)
            if dim in DERIVED:
                read = [f for f in self.inputs if f"v_{f['name']}" in DERIVED[dim]]
                plan.append((dim, [(f["name"], 0, 0, None) for f in read], False))
                continue
            if dim == "slots_out":
                found = [
                    (*s[:3], without)
                    for names, other, without in SLOTS_OUT
                    for s in self.find(other)
                    if not names or s[0] in names
                ]
            if dim == "code_d":  # where a byte holds one code
                found = self.find("d")
                plan.append((dim, [(*s[:3], None) for s in found], True))
                continue
            if not found and dim in IMPLIED or found and dim == "r" and not self.static(found):
                other, without = IMPLIED[dim]
                found = found + [(*s[:3], without) for s in self.find(other)]
            plan.append((dim, found, not self.static(found)))
        return plan

    def find(self, dim):
        """The first required input that says an extent, else every optional one that would."""
        found = [(f["name"], *at, None) for f in self.inputs if (at := self.index_of(f, dim))]
        first = next((s for s in found if s[0] in {f["name"] for f in self.required}), None)
        return [first] if first else found

    def static(self, found):
        return (
            len(found) == 1
            and found[0][3] is None
            and found[0][0] in {f["name"] for f in self.required}
        )

    def wanted_by_default(self, output):
        """A required output, or the gradient of a required input."""
        return not output["optional"] or output["name"][1:] in {f["name"] for f in self.required}

    def extent(self, part):
        dim, found, ask = part
        if dim in DERIVED and not ask:
            return DERIVED[dim]
        if not found and not ask:
            return dim
        if not ask:
            name, index, less, _ = found[0]
            if index is None:
                return COMPUTED[self.name, dim][1]
            return f"v_{name}[2][{index}]" + (f" - {less}" if less else "")
        parts = [
            f"(v_{n}{f' if {without} is None else None' if without else ''}, {i}, {less})"
            for n, i, less, without in found
        ]
        return f"call.size({', '.join([repr(dim).replace(chr(39), chr(34)), dim, *parts])})"

    def dtype(self, output):
        codes = [DTYPES.index(d) + 1 for d in output["dtypes"]]
        if output["dtype_as"]:
            return f"v_{output['dtype_as']}[1]"
        if len(codes) == 1:
            return str(codes[0])
        if output["dims"][0] in ("slots_out", "snapshots"):  # a state, whatever the data's dtype is
            own = output["name"].replace("_out", "_in")
            state = own if own in STATES else "state_in"
            return f"v_{state}[1] if v_{state} is not None else 1"
        first = self.required[0]["name"]
        return f"v_{first}[1] if v_{first}[1] in {tuple(codes)} else {codes[0]}"

    def kept(self, name):
        """Is the view of this field read again?"""
        return (
            name in self.sources
            or name in {t["name"] for t in self.twins.values() if t}
            or any(o["dtype_as"] == name for o in self.outputs)
            or (
                any(not o["dtype_as"] and len(o["dtypes"]) > 1 for o in self.outputs)
                and name == self.required[0]["name"]
            )
        )


def safe(name):
    return name + "_" if keyword.iskeyword(name) else name


def either(op):
    """The first parameter.  Where inputs go by position it is ctx or, ctx left out, the first."""
    return f"ctx_or_{safe(op.required[0]['name'])}" if op.required else "ctx"


def signature(op):
    required = [safe(f["name"]) for f in op.required]
    args = [f"{either(op)}=None"] + ["/"] * bool(required) + [f"{name}=None" for name in required]
    words = ["ctx=None"] * bool(required) + [f"{f['name']}=None" for f in op.outputs]
    words += [f"{safe(f['name'])}=None" for f in op.inputs if f["optional"]]
    words += [f"{dim}=None" for dim in op.given]
    words += [f"{f['name']}={SCALARS[f['kind']][1]}" for f in op.scalars]
    text = f"def {op.python}({', '.join(args + ['*'] * bool(words) + words)}):"
    return textwrap.fill(text, 100, subsequent_indent=" " * (5 + len(op.python)))


def described(f, enums):
    if f["kind"] != "tensor":
        return ", ".join(f'"{name}"' for name in enums[f["enum"]]) if "enum" in f else f["doc"]
    if f["dims"][-1] in BITS and f["dtypes"] == ["u8"]:
        whole = ", ".join([*f["dims"][:-1], BITS[f["dims"][-1]]])
        return f"bool ({whole}) or broadcastable, or ({', '.join(f['dims'])}) u8" + (
            f": {f['doc']}" if f["doc"] else ""
        )
    dtypes = " or ".join(
        ([f"as {f['dtype_as']}"] if f["dtype_as"] else [])
        + ([" ".join(f["dtypes"])] if f["dtypes"] else [])
    )
    paged = f" or paged ({', '.join(f['paged_dims'])})" if f["paged_dims"] else ""
    if f["dims"][-1] == "keys":
        paged += " or broadcastable"
    return f"({', '.join(f['dims'])}){paged} {dtypes}" + (f": {f['doc']}" if f["doc"] else "")


def example(op):
    """Lines of a call as one types it.  An operation whose outputs all come on request gets the
    first three of them."""
    if op.name in EXAMPLES:
        return EXAMPLES[op.name]
    where = "fovea.experimental" if op.experimental else "fovea"
    got = [f["name"] for f in op.outputs if op.wanted_by_default(f)]
    asked = [] if got else [f["name"] for f in op.outputs[:3]]
    words = [safe(f["name"]) for f in op.required] + [f"{name}=True" for name in asked]
    call = f"{where}.{op.python}({', '.join(words)})"
    names = ", ".join(got + asked)
    if len(names) + len(call) <= 90:
        return [f"{names} = {call}" if names else call]
    if not names:
        return textwrap.wrap(call, 94, subsequent_indent="    ")
    wrapped = textwrap.wrap(f"outputs = {call}", 94, subsequent_indent="    ")
    return [*wrapped, f"{names} = outputs"]


def docstring(op):
    lines = op.struct["doc"].strip().split("\n")
    out = ["    " + line if line else "" for line in lines]
    out[0] = '    """' + out[0].lstrip()

    def group(title, fields):
        if fields:
            out.extend(["", f"    {title}"])
            for f in fields:
                out.extend(
                    textwrap.wrap(
                        f"{f['name']}: {described(f, op.enums)}",
                        100,
                        initial_indent=" " * 6,
                        subsequent_indent=" " * 10,
                        break_on_hyphens=False,
                    )
                )

    out.extend(["", "    Example", *(f"      {line}" for line in example(op))])
    out.extend(["", "    ctx: a fovea.Context, first or by name; None: that of the first array's device"])
    group("Inputs", op.required)
    group("Outputs, new unless passed", [f for f in op.outputs if not f["optional"]])
    group(
        "Outputs, new unless passed or False",
        [f for f in op.outputs if f["optional"] and op.wanted_by_default(f)],
    )
    group(
        "Outputs on request, by True or an array",
        [f for f in op.outputs if f["optional"] and not op.wanted_by_default(f)],
    )
    group("Optional inputs", [f for f in op.inputs if f["optional"]])
    if op.given:
        out.extend(["", f"    {', '.join(op.given)}: extents of new outputs that no input tells."])
    group("Numbers", op.scalars)
    out.append('    """')
    return "\n".join(out)


def enum_name(op, field):
    """What the module of the operation calls the enum of a field."""
    return dict(enums_of([op]))[camel(field["enum"])]


def spread_shape(op, name):
    extents, count = op.spreads[name]
    return f"({', '.join([*extents, count])})"


def body(op):
    required = [safe(f["name"]) for f in op.required]
    arrays = [safe(f["name"]) for f in op.outputs + op.inputs]
    first, also = either(op), " and ctx is None" if required else ""
    begin = (
        f"call, inputs = _{op.name}.begin({first}, ctx, {', '.join(required)})\n"
        f"        [{', '.join(required)}] = inputs"
        if required
        else f"call = _{op.name}.begin_by(ctx, {', '.join(arrays)})"
    )
    out = [
        f"    if {first}.__class__ is Context{also}:\n        call = Call({first}, _{op.name})\n"
        f"    else:\n        {begin}"
    ]
    # What broadcasts comes last: the others say to what.
    for f in sorted(op.inputs, key=lambda f: f["name"] in op.spreads):
        name, var = f["name"], safe(f["name"])
        kept = op.kept(name)
        write = f["direction"] == "inout"
        rank = len(f["dims"]) if kept else None
        extra = f", {rank}, True" if write else f", {rank}" if rank else ""
        put = f'{f"v_{name} = " if kept else ""}call.put("{name}", {f["offset"]}, {var}{extra})'
        if f["dims"][-1] in BITS and name in op.spreads:
            extents, count = op.spreads[name]
            put = f'call.bits("{name}", {f["offset"]}, {var}, ({", ".join(extents)}), {count})'
        elif name in op.spreads:
            extra = f", None, False, {spread_shape(op, name)}"
            put = f'{f"v_{name} = " if kept else ""}call.put("{name}", {f["offset"]}, {var}{extra})'
        if not f["optional"]:
            out.append("    " + put)
        else:
            if kept:
                out.append(f"    v_{name} = None")
            out.append(f"    if {var} is not None:\n        {put}")
    for f in op.outputs:
        name = f["name"]
        twin = op.twins[name]
        if twin and twin["optional"]:
            shape = f'call.twin("{name}", "{twin["name"]}", v_{twin["name"]})'
        elif twin:
            shape = f"v_{twin['name']}[2]"
        else:
            extents = [op.extent(part) for part in op.plans[name]]
            shape = f"({extents[0]},)" if len(extents) == 1 else f"({', '.join(extents)})"
        if "call." in shape:  # not known at all, perhaps, when the output itself is passed
            shape = "lambda: " + shape
        spread = f", {spread_shape(op, name)}" if name in op.spreads else ""
        call = f'call.out("{name}", {f["offset"]}, {name}, {shape}, {op.dtype(f)}{spread})'
        if not f["optional"]:
            out.append(f"    {name} = {call}")
        elif op.wanted_by_default(f):
            out.append(f"    {name} = None if {name} is False else {call}")
        else:
            out.append(
                f"    if {name} is not None:\n        {name} = None if {name} is False else {call}"
            )
    for f in op.scalars:
        kind = SCALARS[f["kind"]][0]
        if "enum" in f:
            out.append(
                f"    if {f['name']}:\n"
                f'        call.enum({f["offset"]}, {f["name"]}, "{f["name"]}", {enum_name(op, f)})'
            )
        else:
            out.append(
                f"    if {f['name']}:\n"
                f'        call.scalar("{kind}", {f["offset"]}, {f["name"]}, "{f["name"]}")'
            )
    out.append(f"    return call.run({', '.join(f['name'] for f in op.outputs)})")
    return "\n".join(fold(line) for text in out for line in text.split("\n"))


def fold(line):
    """A long call over several lines; no string in one has a space."""
    indent = len(line) - len(line.lstrip())
    return (
        line
        if len(line) <= 100
        else textwrap.fill(
            line.strip().replace(" = ", "\0=\0"),  # a line may not end with =
            100,
            initial_indent=" " * indent,
            subsequent_indent=" " * (indent + 4),
            break_on_hyphens=False,
        ).replace("\0", " ")
    )


def operations_of(api):
    structs = {s["name"]: s for s in api["structs"]}
    enums = {e["name"]: [name.lower() for name, _ in members(e)] for e in api["enums"]}
    return [Operation(op, structs[op["params"]], enums) for op in api["ops"]]


def enums_of(operations):
    """fovea's name and Python's: experimental enums lose their X as experimental operations do."""
    names = sorted({f["enum"] for op in operations for f in op.scalars if "enum" in f})
    return [(camel(name), camel(name.replace("fovea_x_", "fovea_", 1))) for name in names]


def ops(operations, title, every=None):
    """The text of a module of operations; `every`: those whose Op it holds, None: ops.py has them."""
    enums = enums_of(operations)
    exported = [f'"{op.python}"' for op in operations] + [f'"{name}"' for _, name in enums]
    out = [
        f'{TOP}"""{title}\n\nInputs come first; by keyword outputs, optional inputs, numbers (0: the '
        'default).  ctx may be\nleft out."""'
    ]
    out += ["from . import _abi", "from ._op import Op"] if every else []
    out += ["from ._call import Call", "from ._core import Context"]
    if enums:
        names = [own if own == name else f"{own} as {name}" for own, name in enums]
        out.append(f"from ._abi import {', '.join(names)}")
    if not every:
        names = ", ".join(f"_{op.name}" for op in operations)
        out.append(textwrap.fill(f"from .ops import ({names})", 100, subsequent_indent=" " * 17))
    out.append(
        "\n" + textwrap.fill(f"__all__ = [{', '.join(exported)}]", 100, subsequent_indent=" " * 11)
    )
    out += [""] * bool(every)
    for op in every or []:
        out.append(fold(f'_{op.name} = Op("{op.name}", _abi.{camel(op.struct["name"])})'))
    for op in operations:
        out.append(f"\n\n{signature(op)}\n{docstring(op)}\n{body(op)}")
    return "\n".join(out) + "\n"


def emit(api):
    operations = operations_of(api)
    stable = [op for op in operations if not op.experimental]
    unstable = [op for op in operations if op.experimental]
    types = emit_python_types
    return {
        "bindings/python/fovea/_abi.py": abi(api),
        "bindings/python/fovea/ops.py": ops(stable, "The operations.", operations),
        "bindings/python/fovea/experimental.py": ops(unstable, EXPERIMENTAL),
        "bindings/python/fovea/ops.pyi": TOP + types.stub(stable, api, enums_of(stable)),
        "bindings/python/fovea/experimental.pyi": TOP + types.stub(unstable, api, enums_of(unstable)),
    }
