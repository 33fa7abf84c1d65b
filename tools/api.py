#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads the public headers and writes everything that must agree with them.

    tools/api.py            write bindings/, the tables of the contract, of src/recipes.json and of
                            fovea_info, the lists of fovea.h and core.h, core.h's version into the
                            manifests of Rust and Julia
    tools/api.py --check    exit 1 and list the files that are not what would be written
    tools/api.py --gate     exit 1 unless every lib/abi/<release>.json is a prefix of today's ABI
    tools/api.py --headers DIR   read the headers of another folder (with any of the above)
    tools/api.py --tests DIR     write what the C++ tests include into DIR, and nothing else

The headers are a strict dialect: one enum value or struct field a line, each field with its
comment.  What this parser cannot read it refuses with file:line, so the dialect is kept.
Standard library only.  emit_*.py beside this file turn the parsed ABI into text."""
import importlib
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
EMITTERS = ["emit_cpp", "emit_python", "emit_rust", "emit_julia", "emit_recipes"]
MANIFESTS = ["bindings/rust/fovea-sys/Cargo.toml", "bindings/rust/fovea/Cargo.toml",
             "bindings/julia/Fovea/Project.toml", "bindings/julia/build_tarballs.jl"]

SCALARS = {"int64_t": (8, "i64"), "float": (4, "f32"), "int32_t": (4, "i32"), "size_t": (8, "size"), "void*": (8, "pointer"), "const char*": (8, "text")}
ORDER = {"size": 0, "tensor": 1, "i64": 2, "f32": 3, "i32": 4, "reserved": 5}
DTYPES = "f32 f16 bf16 e4m3 e5m2 e2m1 i8 i32 i64 u8 i4 e8m0".split()
# Names that the comments of any header may use for an extent: what it is in the small calls of the
# C++ tests, and what core.h prints of it.  A header's own stand in its opening comment.
# None: src/core/contract.cpp gives it its meaning.
DIMS = {
    "b": (2, "batch: the sequences of a padded or paged call; 1 in a packed one"),
    "s": (3, "query rows of a sequence; in a packed call those of all sequences"),
    "t": (5, "keys of a sequence, or slots of a cache row; packed, those of all sequences"),
    "h": (4, "query heads"),
    "g": (2, "key heads, a divisor of h: query head i reads key head i / (h / g)"),
    "d": (8, "columns of a query and of a key"),
    "e": (6, "columns of a value"),
    "f": (2, "kl.h: columns of the student; cache.h: heads of v"),
    "n": (2, "what the operation counts: parts, pairs, row blocks, scales, entries of a list"),
    "u": (3, "a second count: rows of a part (merge.h), of k_out (cache.h), blocks of keys"),
    "x": (2, "kl.h: key heads of a student; linear.h: heads of v; else heads with a list"),
    "pages": (3, "pages in a row of page_table"),
    "pool": (6, "pages of a pool"),
    "pool2": (6, "pages of the pool that is copied to"),
    "page": (2, "tokens of a page"),
    "groups": (2, "scales of a row of codes, each of an equal part of its columns"),
    "positions": (16, "rows of cos and sin"),
    "half": (2, "pairs of columns that turn"),
    "width": (4, "columns under the RMSNorm, the first of d"),
    "r": (None, "sequences, see below"),
    "key_b": (None, "batch of a key tensor, see below"),
    "rows": (None, "rows of a cache or of page_table, see below"),
    "keys": (None, "key columns that a row of scores has, see below"),
    "bytes": (None, "ceil(keys / 8) exactly, a bit for each key column; the stride pads"),
    "padded": (128, "quant.h: token columns of transposed codes"),
    "q_blocks": (1, "quant.h: scales of a query head"),
    "k_blocks": (1, "quant.h: scales of a key head"),
    "v_blocks": (1, "quant.h: scales of a value head"),
    "rows_out": (3, "conv_attention.h: rows of o, which history has not"),
    "kernel_rows": (2, "taps of the convolution over rows"),
    "kernel_columns": (3, "taps of the convolution over keys"),
    "group_heads": (2, "heads that are mixed with each other"),
    "block_bytes": (1, "trace.h: a bit for each key block, in whole bytes"),
    "keep": (2, "key blocks that a row block keeps, places of a list"),
    "cap": (4, "rows of an edge list"),
    "columns": (2, "single keys that a list row has beside its entries"),
    "tiles": (3, "element masks of list entries"),
    "tile_rows": (2, "rows of an element mask"),
    "tile_bytes": (1, "a bit for each key of an element mask, in whole bytes"),
}
GLOSSARY = " *  Extents (printed by tools/api.py):\n"
# What a header says of itself in its opening comment: letters that no other header uses,
#   Extents of its own:
#     name = extent in tests: meaning
# and its rows of fovea.h's list of operations and of its table of bits.
OWN_EXTENTS = " *  Extents of its own:\n"
MANUAL = " *  In fovea.h:\n"


class Refused(Exception):
    pass


class Reader:
    """The lines of one header; `refuse` names the line being read."""

    def __init__(self, folder, header, own):
        self.path, self.header, self.own, self.at = folder / header, header, own, 0
        self.lines = self.path.read_text().split("\n")

    def refuse(self, why):
        raise Refused(f"{self.path}:{self.at}: {why}")

    def next(self):
        if self.at >= len(self.lines):
            self.refuse("the file ends inside a declaration")
        self.at += 1
        return self.lines[self.at - 1].rstrip()

    def declaration(self):
        """A line, with those that its comment goes on over."""
        line = self.next()
        while "/**<" in line and not line.endswith("*/"):
            more = self.next().strip()
            if "/*" in more:
                self.refuse("the comment above has no end")
            line += " " + more
        return line

    def more(self):
        return self.at < len(self.lines)


def doc_block(reader, line):
    """A /** ... */ block as text: the common indent after ' *' is kept, so formulas stay aligned."""
    text = [line.strip()[3:]]
    while not text[-1].endswith("*/"):
        line = reader.next()
        if not line.startswith(" *"):
            reader.refuse("a line of a /** block starts with ' *'")
        text.append(line[2:])
    text[-1] = text[-1][:-2]
    lines = [t[1:] if t.startswith(" ") else t for t in text]
    lines = [t[1:] if i and t.startswith(" ") else t for i, t in enumerate(lines)]
    text = "\n".join(t.rstrip() for t in lines).strip()
    return text.partition("\n" + MANUAL[3:].strip() + "\n")[0].rstrip()


def read_enum(reader, name, doc, text=""):
    values = []
    while True:
        line = reader.declaration()
        if line == f"}} {name};":
            break
        m = re.fullmatch(r"  (FOVEA_[A-Z0-9_]+) = (\d+)(,?)\s*(?:/\*\*< (.+) \*/)?", line)
        if not m:
            reader.refuse("wanted `  FOVEA_NAME = number, /**< words */`, one value a line")
        values.append({"name": m[1], "value": int(m[2]), "doc": m[4] or ""})
    if not values:
        reader.refuse(f"enum {name} is empty")
    if len({v["value"] for v in values}) != len(values):
        reader.refuse(f"enum {name} gives one number twice")
    return {"name": name, "doc": doc, "values": values}


def rows_behind(text, line, row):
    """The matches of `row` on the lines behind `line`, as far as they go."""
    found, at = [], text.find(line)
    if at >= 0:
        for following in text[at + len(line):].split("\n"):
            if not (m := re.fullmatch(row, following)):
                break
            found.append(m)
    return found


def own_extents(folder):
    """name -> (extent, meaning), of every header's own letters."""
    own = {}
    for header in headers_of(folder):
        for m in rows_behind((folder / header).read_text(), OWN_EXTENTS, r" \*    (\w+) = (\d+): (.+?)(?: \*/)?"):
            if m[1] in DIMS or m[1] in own:
                raise Refused(f"{folder / header}: the extent `{m[1]}` has its meaning elsewhere")
            own[m[1]] = (int(m[2]), m[3])
    return own


def dims_of(reader, text):
    dims = [d.strip() for d in text.split(",")]
    for dim in dims:
        if not (dim in DIMS or dim in reader.own or dim in ("r+1", "n+1", "u+1") or re.fullmatch(r"[1-9]\d*", dim)):
            reader.refuse(f"unknown dim `{dim}`: wanted a row of `Extents of its own:`, if it is meant")
    if len(dims) > 5:
        reader.refuse(f"{len(dims)} dims, at most 5 fit a tensor")
    return dims


def read_tag(reader, comment, earlier):
    """[dir, optional, sums] (dims) or paged (dims) dtypes: words, with dtypes `as x`, `as x or` and
    one or several, or several"""
    m = re.fullmatch(r"\[(in|out|inout)(, optional)?(, sums)?\] \(([^)]*)\)(?: or paged \(([^)]*)\))? ([^:]*?)(?:: (.+))?", comment)
    if not m:
        reader.refuse("wanted `[in|out|inout, optional, sums] (dims) dtypes: words`")
    direction, words = m[1], m[7] or ""
    dtypes, dtype_as = m[6].split(), None
    if dtypes[:1] == ["as"]:
        dtype_as = dtypes[1] if len(dtypes) > 1 else ""
        dtypes = dtypes[3:] or ["?"] if dtypes[2:3] == ["or"] else dtypes[2:] and ["?"]
        target = earlier.get(dtype_as)
        if not target or target["kind"] != "tensor" or target["optional"]:
            reader.refuse(f"`as {dtype_as}` names no required tensor above this field")
    for dtype in dtypes:
        if dtype not in DTYPES:
            reader.refuse(f"`{m[6]}` is not `as x`, `as x or dtypes` or dtypes")
    if not dtypes and not dtype_as:
        reader.refuse("no dtype")
    if len(set(dtypes)) != len(dtypes):
        reader.refuse(f"`{m[6]}` names a dtype twice")
    if m[3] and direction == "in":
        reader.refuse("only an output sums")
    alias = None
    if direction != "in" and "may be " in words:
        a = re.search(r"\bmay be (\w+)(\[0\])?(?: exactly)?(?:, when (\w+) is absent)?", words)
        if not a:
            reader.refuse("wanted `may be x`, `may be x[0] exactly` (`, when y is absent`)")
        alias = {"field": a[1], "first": bool(a[2]), "without": a[3]}
    return {"direction": direction, "optional": bool(m[2]), "sums": bool(m[3]), "may_alias": alias,
            "dims": dims_of(reader, m[4]), "paged_dims": dims_of(reader, m[5]) if m[5] else None,
            "dtypes": dtypes, "dtype_as": dtype_as, "doc": words}


def read_struct(reader, name, doc, structs, enums, constants):
    fields, offset, is_params = {}, 0, name.endswith("_params")
    while True:
        line = reader.declaration()
        if line == f"}} {name};":
            break
        m = re.fullmatch(r"  (void\*|const char\*|\w+) (\w+)(?:\[(\w+)\])?;\s*(?:/\*\*< (.+) \*/)?", line)
        if not m:
            reader.refuse("wanted `  type name; /**< comment */`, one field a line")
        ctype, field, count, comment = m[1], m[2], m[3], m[4] or ""
        if field in fields:
            reader.refuse(f"{field} stands twice in {name}")
        if ctype in SCALARS:
            size, kind = SCALARS[ctype]
        elif ctype in structs:
            size, kind = structs[ctype]["size"], "tensor" if ctype == "fovea_tensor" else "struct"
        else:
            reader.refuse(f"unknown type {ctype}: wanted one of {', '.join(list(SCALARS) + list(structs))}")
        count = 1 if count is None else constants.get(count) or (int(count) if count.isdigit() else 0)
        if count < 1:
            reader.refuse(f"the extent of {field} is neither a number nor a #define above")
        align = 8 if size % 8 == 0 else 4
        if offset % align:
            reader.refuse(f"hidden padding before {field}: it would move from byte {offset} to {offset + align - offset % align}")
        if field.startswith("reserved"):
            kind = "reserved"
        entry = {"name": field, "type": ctype, "count": count, "offset": offset, "size": size * count, "kind": kind}
        if is_params:
            if not comment:
                reader.refuse(f"{field} has no /**< comment */")
            if not fields and (field, ctype, comment) != ("struct_size", "size_t", f"sizeof({name})"):
                reader.refuse(f"the first field is `size_t struct_size; /**< sizeof({name}) */`")
            if kind not in ORDER or (kind == "size" and fields):
                reader.refuse(f"a params struct holds no {ctype} field")
        if kind == "tensor" and is_params:
            entry.update(read_tag(reader, comment, fields))
        else:
            entry["doc"] = comment
            if comment in enums:
                entry["enum"] = comment
        fields[field] = entry
        offset += size * count
    tensors = {f["name"] for f in fields.values() if f["kind"] == "tensor"}
    for f in fields.values():
        if (alias := f.get("may_alias")) and not {alias["field"], alias["without"] or alias["field"]} <= tensors:
            reader.refuse(f"wanted `may be x` of tensors of {name}: {f['name']} may be {alias['field']}")
    if offset % 8:
        reader.refuse(f"hidden padding at the end of {name}: add `int32_t reserved; /**< 0 */`")
    return {"name": name, "header": reader.header, "doc": doc, "size": offset, "fields": list(fields.values())}


def read_function(reader, line, doc):
    start = reader.at
    while not line.endswith(";"):
        line += " " + reader.next().strip()
    text = re.sub(r"\s+", " ", line).replace("( ", "(")
    m = re.fullmatch(r"FOVEA_API ((?:const )?\w+\*?) (fovea_[a-z0-9_]+)\((.*)\);", text)
    if not m:
        reader.at = start
        reader.refuse("wanted `FOVEA_API type fovea_name(type name, ...);`")
    args = []
    for arg in [] if m[3] == "void" else m[3].split(", "):
        a = re.fullmatch(r"((?:const )?\w+\**) (\w+)", arg)
        if not a:
            reader.refuse(f"cannot read the argument `{arg}` of {m[2]}")
        args.append({"name": a[2], "type": a[1]})
    return {"name": m[2], "returns": m[1], "args": args, "doc": doc, "header": reader.header}


def headers_of(folder):
    """Every header of the folder, in the order of src/ops.inc: core.h first, experimental ones last."""
    families = [family for family, _, _ in read_registry().values()]

    def place(header):
        prefix = "x_" + header[13:-2] if header.startswith("experimental/") else header[:-2]
        first = next((i for i, family in enumerate(families) if family.startswith(prefix)), len(families))
        return header != "core.h", header.startswith("experimental/"), first, header

    found = [str(path.relative_to(folder)) for path in [*folder.glob("*.h"), *folder.glob("experimental/*.h")]]
    return sorted((h for h in found if h not in ("fovea.h", "export.h")), key=place)


def parse(folder):
    enums, structs, functions, opaque, constants, docs = {}, {}, {}, [], {}, {}
    own = own_extents(folder)
    # A header may have fields of another's enum, which stands behind it.
    enum_names = {name for header in headers_of(folder) for name in re.findall(r"^typedef enum (\w+) \{", (folder / header).read_text(), re.M)}
    for header in headers_of(folder):
        reader, doc, brace = Reader(folder, header, own), "", 0
        if reader.next() != "/* SPDX-License-Identifier: Apache-2.0 */":
            reader.refuse("wanted the SPDX line first")
        while reader.more():
            line = reader.next()
            if line == "":
                continue
            if line.startswith("/**"):
                doc = doc_block(reader, line)
                docs.setdefault(header, doc)
                continue
            if m := re.match(r"typedef (?:enum|struct) (fovea_\w+) |FOVEA_API .*?(fovea_\w+)\(", line):
                if (m[1] or m[2]).startswith("fovea_x_") != header.startswith("experimental/"):
                    reader.refuse(f"{m[1] or m[2]}: names of experimental/, and no others, begin with fovea_x_")
            if m := re.fullmatch(r"typedef enum (\w+) \{", line):
                enums[m[1]] = read_enum(reader, m[1], doc)
            elif m := re.fullmatch(r"typedef struct (\w+) \{", line):
                first = header not in {s["header"] for s in structs.values()}
                if not doc and first:
                    doc = docs.get(header, "")
                if not doc:
                    reader.refuse(f"{m[1]} has no /** comment")
                structs[m[1]] = read_struct(reader, m[1], doc, structs, enum_names, constants)
            elif m := re.fullmatch(r"typedef struct (\w+) \1;", line):
                opaque.append({"name": m[1], "doc": doc})
            elif line.startswith("FOVEA_API "):
                function = read_function(reader, line, doc)
                if function["name"] in functions:
                    reader.refuse(f"{function['name']} is declared twice")
                functions[function["name"]] = function
                if function["name"].endswith("_workspace"):
                    continue  # the doc, if any, is the op's as well
            elif m := re.fullmatch(r"#define (FOVEA_\w+) (\d+)", line):
                constants[m[1]] = int(m[2])
            elif line == 'extern "C" {':
                brace += 1
            elif line == "}":
                brace -= 1
            elif line.startswith("#define") and line.endswith("\\"):
                while reader.next().endswith("\\"):
                    pass
            elif not re.fullmatch(r"#(ifndef \w+_H|define \w+_H|endif|ifdef __cplusplus|include [<\"][a-z0-9_./]+[>\"])", line):
                reader.refuse(f"this is outside the dialect: `{line}`")
            doc = ""
        if brace:
            reader.refuse('extern "C" is not closed')
    return assemble(enums, structs, functions, opaque, constants)


def read_registry():
    """family_verb -> size at first release, from src/ops.inc."""
    rows = {}
    for number, line in enumerate((ROOT / "src/ops.inc").read_text().split("\n"), 1):
        m = re.fullmatch(r"FOVEA_OP\((\w+), (\w+), (\d+)\)", line)
        if m:
            rows[f"{m[1]}_{m[2]}"] = (m[1], m[2], int(m[3]))
        elif line and not line.startswith("//"):
            raise Refused(f"src/ops.inc:{number}: wanted `FOVEA_OP(family, verb, bytes)`")
    return rows


def assemble(enums, structs, functions, opaque, constants):
    """Checks what no single declaration shows, and gives the whole as one plain value."""
    version = ".".join(str(constants[f"FOVEA_VERSION_{part}"]) for part in ("MAJOR", "MINOR", "PATCH"))
    if {d.upper() for d in DTYPES} != {v["name"][6:] for v in enums["fovea_dtype"]["values"]}:
        raise Refused("core.h: fovea_dtype and DTYPES of tools/api.py differ")
    known = set(SCALARS) | set(structs) | set(enums) | {o["name"] for o in opaque} | {"void", "char"}
    for f in functions.values():
        for ctype in [f["returns"]] + [a["type"] for a in f["args"]]:
            if ctype not in SCALARS and ctype.replace("const ", "").rstrip("*") not in known:
                raise Refused(f"{f['header']}: {f['name']} uses the unknown type {ctype}")
    ops, rows = [], read_registry()
    for op, (family, verb, first_size) in rows.items():
        params = structs.get(f"fovea_{op}_params")
        if not params:
            raise Refused(f"src/ops.inc: {op} has no struct fovea_{op}_params in the headers")
        pointer = [{"name": "ctx", "type": "fovea_context*"}, {"name": "params", "type": f"const {params['name']}*"}]
        for name, args in ((f"fovea_{op}", pointer), (f"fovea_{op}_workspace", pointer + [{"name": "bytes", "type": "size_t*"}])):
            f = functions.get(name)
            if not f or f["returns"] != "fovea_status" or f["args"] != args:
                raise Refused(f"{params['header']}: wanted `fovea_status {name}({', '.join(a['type'] + ' ' + a['name'] for a in args)})`")
            f["op"], f["doc"] = op, f["doc"] or params["doc"]
        first = [f for f in params["fields"] if f["offset"] < first_size]
        if first_size not in [f["offset"] for f in params["fields"]] + [params["size"]] or first_size % 8:
            raise Refused(f"src/ops.inc: {op} was {first_size} bytes at its first release, but no field ends there ({params['size']} today)")
        kinds = [ORDER[f["kind"]] for f in first]
        if kinds != sorted(kinds):
            raise Refused(f"{params['header']}: fields of {params['name']} stand as struct_size, tensors, i64, f32, i32, reserved")
        ops.append({"name": op, "family": family, "verb": verb, "params": params["name"], "first_size": first_size})
        if op.startswith("x_") and first_size != params["size"]:
            raise Refused(f"src/ops.inc: {op} is experimental: wanted its {params['size']} bytes of today")
    stray = [s for s in structs if s.endswith("_params") and s[6:-7] not in rows]
    if stray:
        raise Refused(f"src/ops.inc: no row for {', '.join(stray)}")
    for x in [*enums.values(), *structs.values(), *functions.values(), *ops]:
        if x["name"].removeprefix("fovea_").startswith("x_"):
            x["experimental"] = True
    return {"version": version, "constants": [{"name": k, "value": v} for k, v in constants.items()],
            "enums": list(enums.values()), "opaque": opaque, "structs": list(structs.values()), "ops": ops, "functions": list(functions.values())}


def gate(api, old, release):
    """Sentences for whatever of `old` today's ABI no longer has in the same place.  What is
    experimental promises nothing."""
    broken = []
    old = {k: [x for x in v if not x.get("experimental")] if isinstance(v, list) else v for k, v in old.items()}

    def same(kind, before, now, keys):
        for key in keys:
            if before.get(key) != now.get(key):
                broken.append(f"{release}: {kind}: {key} was {before.get(key)}, is {now.get(key)}")

    def each(kind, before, now, visit):
        now = {x["name"]: x for x in now}
        for x in before:
            if x["name"] not in now:
                broken.append(f"{release}: {kind} {x['name']} is gone")
            else:
                visit(f"{kind} {x['name']}", x, now[x["name"]])

    def enum(kind, a, b):
        each(f"{kind}:", a["values"], b["values"], lambda k, x, y: same(k, x, y, ["value"]))

    def struct(kind, a, b):
        names = [f["name"] for f in b["fields"]][:len(a["fields"])]
        each(f"{kind}:", a["fields"], b["fields"], lambda k, x, y: same(k, x, y, ["type", "count", "offset"]))
        if names != [f["name"] for f in a["fields"]]:
            broken.append(f"{release}: {kind}: the released fields are no prefix of today's")
        if b["size"] != a["size"] and not a["name"].endswith("_params"):
            broken.append(f"{release}: {kind} is frozen at {a['size']} bytes, is {b['size']}")

    each("enum", old["enums"], api["enums"], enum)
    each("struct", old["structs"], api["structs"], struct)
    each("op", old["ops"], api["ops"], lambda k, x, y: same(k, x, y, ["params", "first_size"]))
    each("function", old["functions"], api["functions"], lambda k, x, y: same(k, x, y, ["returns", "args"]))
    return broken


def with_glossary(core):
    """core.h with the rows of DIMS behind GLOSSARY."""
    rows = "".join(f" *    {name:<14}  {meaning}\n" for name, (_, meaning) in DIMS.items())
    text, found = re.subn(re.escape(GLOSSARY) + r"(?: \*    [^\n]*\n)*", lambda _: GLOSSARY + rows, core)
    if found != 1:
        raise Refused(f"core.h: wanted the line `{GLOSSARY.strip()}` once")
    return text


def with_manual(manual, folder):
    """fovea.h with the includes of the stable headers, and the rows that they say of themselves."""
    headers = [h for h in headers_of(folder) if not h.startswith("experimental/")]
    bits, operations = [], []
    for header in headers[1:]:
        rows = rows_behind((folder / header).read_text(), MANUAL, r" \*    (bits, )?([^:]+): (.+?)(?: \*/)?")
        bits += [f" *    {m[2]:<36}  " + "".join(f"{word:<{width}}" for word, width in zip(m[3].split(), (5, 7, 12, 13, 9))).rstrip()
                 for m in rows if m[1] and len(m[3].split()) == 5]
        operations += [f" *    {m[2]:<33}  {m[3]}" for m in rows if not m[1]]
        if not any(m[1] for m in rows) or all(m[1] for m in rows):
            raise Refused(f"{folder / header}: wanted `In fovea.h:` last in the opening comment, with rows `name: words` and `bits, name: run place neighbours host cuda`")
    lines = lambda rows: "".join(row + "\n" for row in rows)
    for before, rows, after in ((r" \* +run  place  neighbours .*\n", lines(bits), r" \*    experimental .*\n"),
                                (r" \*  Operations\..*\n \*\n", lines(operations).rstrip("\n") + " */\n", "#ifndef"),
                                ("#define FOVEA_FOVEA_H\n\n", lines(f'#include "{h}"' for h in sorted(headers)), "\n#endif")):
        manual, found = re.subn(f"({before})(?:.+\n)*?({after})", lambda m: m[1] + rows + m[2], manual, count=1)
        if not found:
            raise Refused(f"fovea.h: wanted the line `{before}`")
    return manual


def with_version(path, version):
    """A manifest with the version of core.h at each place that has fovea's."""
    place = r'(^version = v?|fovea-sys = .*\bversion = )"[^"]*"'
    text, found = re.subn(place, lambda m: f'{m[1]}"{version}"', (ROOT / path).read_text(), flags=re.M)
    if not found:
        raise Refused(f'{path}: wanted a line `version = "{version}"`')
    return text


def headers_inc(folder):
    """What src/api.cpp includes: every public header."""
    text = "// SPDX-License-Identifier: Apache-2.0\n// Generated by tools/api.py: every public header.\n"
    return text + "".join(f'#include "fovea/{h}"\n' for h in sorted([*headers_of(folder), "fovea.h"]))


def outputs(api):
    files = {}
    for name in EMITTERS:
        if (ROOT / "tools" / f"{name}.py").exists():
            files.update({str(path): text for path, text in importlib.import_module(name).emit(api).items()})
    return files


def main(argv):
    sys.path.insert(0, str(ROOT / "tools"))
    folder = ROOT / "include/fovea"
    if "--headers" in argv:
        at = argv.index("--headers")
        folder = pathlib.Path(argv[at + 1])
        argv = argv[:at] + argv[at + 2:]
    tests = None
    if "--tests" in argv:
        at = argv.index("--tests")
        tests = pathlib.Path(argv[at + 1])
        argv = argv[:at] + argv[at + 2:]
    if argv not in ([], ["--check"], ["--gate"]):
        sys.exit(__doc__)
    try:
        api = parse(folder)
        files = outputs(api)
        emit_cpp = importlib.import_module("emit_cpp")
        files["include/fovea/core.h"] = with_glossary((ROOT / "include/fovea/core.h").read_text())
        files["include/fovea/fovea.h"] = with_manual((ROOT / "include/fovea/fovea.h").read_text(), folder)
        files["src/core/headers.inc"] = headers_inc(folder)
        meanings = {name: meaning for name, (_, meaning) in (DIMS | own_extents(folder)).items()}
        files["programs/fovea_info/operations.inc"] = emit_cpp.info_table(api, meanings)
        files["programs/fovea_info/headers.h"] = emit_cpp.headers_h(headers_of(folder))
        files |= {path: with_version(path, api["version"]) for path in MANIFESTS}
    except Refused as why:
        sys.exit(f"api.py: {why}")
    if tests:
        tests.mkdir(parents=True, exist_ok=True)
        extents = {name: extent for name, (extent, _) in (DIMS | own_extents(folder)).items() if extent}
        for name, text in emit_cpp.emit_tests(api, headers_of(folder), extents).items():
            if not (tests / name).exists() or (tests / name).read_text() != text:  # else nothing is compiled again
                (tests / name).write_text(text)
        return 0
    if argv == ["--gate"]:
        releases = sorted((ROOT / "lib/abi").glob("*.json"))
        broken = [b for path in releases for b in gate(api, json.loads(path.read_text()), path.stem)]
        print("\n".join(broken) if broken else f"api.py: {len(releases)} releases are prefixes of today's ABI")
        return 1 if broken else 0
    changed = []
    for path, text in files.items():
        target = ROOT / path
        if not target.exists() or target.read_text() != text:
            changed.append(path)
            if not argv:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text)
    for path in changed:
        print(f"api.py: {path} {'differs: run tools/api.py' if argv else 'written'}")
    return 1 if argv and changed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
