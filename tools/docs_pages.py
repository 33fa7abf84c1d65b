#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The pages of the site, as Markdown.

    tools/docs_pages.py FOLDER     writes FOLDER/pages and FOLDER/mkdocs.yml for `mkdocs build`

    page                              from
    operations/<op>.md                the params struct, docs_calls.py, bench/results, sentences.tsv
    headers/<header>.md               the header's opening comment, enums, functions
    performance.md                    the README's table and the pictures of bench/results
    index.md, guides/, decisions.md   docs/, as they are
    contributing.md, bindings/, ...   the files that FILES names

tools/docs builds the site from them."""

import pathlib
import posixpath
import re
import shutil
import sys

import api as parser
import docs_sentences
import docs_snippets
import docs_text
import emit_recipes

ROOT = pathlib.Path(__file__).resolve().parents[1]
INCLUDE = ROOT / "include/fovea"
FILES = {  # file of the repository: its page
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "bindings/python/README.md": "bindings/python.md",
    "bindings/rust/README.md": "bindings/rust.md",
    "bindings/julia/README.md": "bindings/julia.md",
    "lib/abi/README.md": "abi.md",
}
PLACES = {  # what else a link of those files may name
    "README.md": "index.md",
    "README.md#building": "guides/install.md",
    "bench": "performance.md",
    "bench/README.md": "performance.md",
    "bench/results": "performance.md",
    "examples/python/fovea_trace": "guides/trace.md",
    "include/fovea": "headers/fovea.md",
    "include/fovea/fovea.hpp": "guides/cpp.md",
    "bindings/python": "bindings/python.md",
    "bindings/rust": "bindings/rust.md",
    "bindings/julia": "bindings/julia.md",
}
ROWS = 8  # of the tables of speed, at most
ERRORS = """| status | when |
| --- | --- |
| `FOVEA_INVALID_ARGUMENT` | a field is not as the tables above say: shape, dtype, overlap, a number out of range |
| `FOVEA_UNSUPPORTED` | the call is valid and no kernel of this build, device or backend takes it |
| `FOVEA_OUT_OF_MEMORY` | the workspace could not be had, or the fixed one is too small |
"""


def header_page(header):
    return f"headers/{header.removesuffix('.h').replace('/', '_')}.md"


def opening(header):
    """The opening comment of a header, as api.py reads comments."""
    reader = parser.Reader(INCLUDE, header, {})
    while not (line := reader.next()).startswith("/**"):
        pass
    text = parser.doc_block(reader, line)
    return re.split(r"\n(?:Extents of its own:|In fovea\.h:)\n", text)[0].rstrip()


class Site:
    def __init__(self, api):
        self.api = api
        self.ops = {op["name"]: op for op in api["ops"]}
        self.structs = {s["name"][6:-7]: s for s in api["structs"] if s["name"].endswith("_params")}
        self.headers = ["fovea.h", *parser.headers_of(INCLUDE)]
        self.programs = docs_snippets.programs(api)
        self.sentences = docs_sentences.read()
        self.pages = {op: f"operations/{op}.md" for op in self.ops}
        self.pages |= {header: header_page(header) for header in self.headers}
        self.pages |= {
            f["name"][6:]: f"{header_page(f['header'])}#{f['name']}"
            for f in api["functions"]
            if "op" not in f
        }
        for enum in api["enums"]:
            address = f"{header_page(self.enum_header(enum))}#{enum['name']}"
            self.pages[enum["name"][6:]] = address

    def enum_header(self, enum):
        for header in self.headers[1:]:
            if f"typedef enum {enum['name']} " in (INCLUDE / header).read_text():
                return header
        raise KeyError(enum["name"])

    def prose(self, here):
        return docs_text.Prose(self.pages, here)

    # ---- an operation

    def tensor_row(self, f, prose):
        doc, absent = f["doc"], "**required**"
        if f["optional"]:
            found = re.search(r"(?:^|; |: )absent: ([^;]+)", doc)
            absent = "not computed" if f["direction"] == "out" else "not given"
            if found:
                absent, doc = found[1], (doc[: found.start()] + doc[found.end() :]).strip("; ")
        dims = f"`({', '.join(f['dims'])})`"
        if f["paged_dims"]:
            dims += f"<br>paged `({', '.join(f['paged_dims'])})`"
        dtypes = " or ".join(
            ([f"as `{f['dtype_as']}`"] if f["dtype_as"] else [])
            + ([" ".join(f["dtypes"])] if f["dtypes"] else [])
        )
        access = f["direction"] + (", sums" if f["sums"] else "")
        cells = [
            f"`{f['name']}`",
            access,
            f"{dims}<br>{dtypes}",
            prose.cell(absent) if f["optional"] else absent,
            prose.cell(doc),
        ]
        return f"| {' | '.join(cells)} |"

    def number_row(self, f, prose):
        doc, default = f["doc"], ""
        if found := re.search(r"(?:^|; |, )0: (.+?)(?=;|, 1:|$)", doc):
            default = found[1]
            doc = (doc[: found.start()] + doc[found.end() :]).strip("; ,")
        if f.get("enum"):
            first = next(e for e in self.api["enums"] if e["name"] == f["enum"])["values"][0]
            default, doc = first["name"], f["enum"]
        kind = {"i64": "int64", "i32": "int32", "f32": "float"}[f["kind"]]
        cells = [f"`{f['name']}`", kind, prose.cell(default), prose.cell(doc)]
        return f"| {' | '.join(cells)} |"

    def fields(self, op, prose):
        fields = self.structs[op]["fields"]
        tensors = [f for f in fields if f["kind"] == "tensor"]
        numbers = [f for f in fields if f["kind"] in ("i64", "i32", "f32") and f["doc"] != "0"]
        out = ["## Fields\n"]
        letters = prose.up + header_page("core.h") + "#extents"
        for title, which in (("Inputs", ("in", "inout")), ("Outputs", ("out",))):
            rows = [self.tensor_row(f, prose) for f in tensors if f["direction"] in which]
            if rows:
                out.append(f"### {title}\n")
                out.append(
                    "| field | | shape and dtype | if absent | meaning |\n| --- | --- | --- | --- | --- |"
                )
                out[-1] += "\n" + "\n".join(rows) + "\n"
        if numbers:
            out.append(
                "### Numbers\n\n| field | type | if 0 | meaning |\n| --- | --- | --- | --- |"
            )
            out[-1] += "\n" + "\n".join(self.number_row(f, prose) for f in numbers) + "\n"
        out.append(
            f"The letters are those of [core.h]({letters}). Extents follow this order whatever the strides.\n"
        )
        return "\n".join(out)

    def twins(self, op, prose):
        """Links to the other direction and to the rest of the header."""
        header = self.structs[op]["header"]
        family = [o for o in self.ops if self.structs[o]["header"] == header and o != op]
        other = {"forward": "backward", "backward": "forward"}.get(self.ops[op]["verb"])
        twin = f"{self.ops[op]['family']}_{other}"
        words = [f"Header: {prose(header)}"]
        if twin in self.ops:
            label = "Gradient" if other == "backward" else "Forward"
            words.append(f"{label}: {prose.named(twin)}")
        elif self.ops[op]["verb"] == "forward" and self.ops[op]["family"] in ("quant", "trace"):
            words.append("No gradient")
        if rest := [o for o in family if o != twin]:
            words.append("See also: " + ", ".join(prose.named(o) for o in rest))
        return " · ".join(words) + "\n"

    def computes(self, op, prose):
        """(what it computes, its limits)."""
        struct = self.structs[op]
        whole, shared = struct["doc"], opening(struct["header"])
        own, limits = docs_text.limits(whole)
        rest, shared_limits = docs_text.limits(shared)
        alone = whole.strip() == shared.strip()
        out = ["## What it computes\n", docs_text.markdown(rest if alone else own, prose)]
        if not alone and not op.endswith("_backward"):
            out += [f"### From {struct['header']}\n", docs_text.markdown(rest, prose)]
        both = [limits] if limits else []
        if shared_limits and (not limits or struct["header"].startswith("experimental/")):
            both.append(shared_limits)
        text = "\n".join(docs_text.markdown(part, prose) for part in both)
        forward = op.removesuffix("backward") + "forward"
        if not text and op.endswith("_backward") and forward in self.ops:
            text = f"Those of {prose.named(forward)}.\n"
        return "\n".join(out), text or "None beyond the fields' own.\n"

    def example(self, op):
        if op not in self.programs:
            return "No program yet: `tests/golden` has no case of this operation.\n"
        out = []
        for language, text in self.programs[op].items():
            body = "\n".join("    " + line if line else "" for line in text.split("\n"))
            fenced = f"    ```{language.fence}\n{body.rstrip()}\n    ```"
            out.append(f'=== "{language.name}"\n\n{fenced}\n')
        out.append("All five print the same numbers; the project's tests run them.\n")
        return "\n".join(out)

    def errors(self, op, prose):
        out = ["## Errors\n", ERRORS]
        if op in self.sentences:
            out.append(
                f"A sentence names operation, field, got and wanted:\n\n```text\n{self.sentences[op]}\n```\n"
            )
        needs = [
            (f["name"], found[0])
            for f in self.structs[op]["fields"]
            if f["kind"] == "tensor"
            and (
                found := re.search(
                    r"\b(?:needs|with|not with|only with) [a-z_]+(?: or [a-z_]+)?$",
                    f.get("doc", ""),
                )
            )
        ]
        if needs:
            out.append(
                "Fields that go together: "
                + "; ".join(f"`{n}` {prose(w)}" for n, w in needs)
                + ".\n"
            )
        manual = prose.up + header_page("fovea.h") + "#errors"
        out.append(
            f"On CUDA a fault of the kernel comes later, as `FOVEA_DEVICE_ERROR`: [Errors]({manual}).\n"
        )
        return "\n".join(out)

    def speed(self, op, prose):
        rows = speeds().get(op, [])
        if not rows:
            return "## Speed\n\nNot measured: `bench/results` has no row of this operation.\n"
        out = "## Speed\n\n| device | what | fovea | rate | beside | times as fast | date |\n"
        out += "| --- | --- | --- | --- | --- | --- | --- |\n" + unbroken("\n".join(rows[:ROWS]))
        more = f" {len(rows) - ROWS} more rows are in `bench/results`." if len(rows) > ROWS else ""
        return (
            out
            + f"\n\nMedians of `bench/bench.py`; [how it is measured]({prose.up}performance.md).{more}\n"
        )

    def operation(self, op):
        here = f"operations/{op}.md"
        prose = self.prose(here)
        computes, limits = self.computes(op, prose)
        out = [f"# {op}\n"]
        if op.startswith("x_"):
            out.append(
                '!!! warning "Experimental"\n    Names, fields and layout may change with any release.\n'
            )
        out += [self.twins(op, prose), computes, "## A call\n", self.example(op)]
        out += [
            self.fields(op, prose),
            f"## Limits\n\n{limits}",
            self.errors(op, prose),
            self.speed(op, prose),
        ]
        return "\n".join(out)

    def operations(self):
        prose = self.prose("operations/index.md")
        out = ["# Operations\n"]
        for title, experimental in (("Stable", False), ("Experimental", True)):
            out.append(f"## {title}\n\n| operation | what | header |\n| --- | --- | --- |")
            for op in self.ops:
                if op.startswith("x_") == experimental:
                    struct = self.structs[op]
                    first = re.split(r"(?<=[.:;])\s", " ".join(struct["doc"].split()))[0]
                    first = re.sub(r"(, \.\.\.|[:;.])$", "", first)
                    header = prose(struct["header"])
                    out[-1] += f"\n| {prose.named(op)} | {prose.cell(first)}. | {header} |"
            out[-1] += "\n"
        out.append("Experimental operations stand outside the ABI promise.\n")
        return "\n".join(out)

    # ---- a header

    def header(self, header):
        here = header_page(header)
        prose = self.prose(here)
        text = opening(header)
        out = [f"# {header}\n", docs_text.markdown(text, prose, "##")]
        ops = [op for op in self.ops if self.structs[op]["header"] == header]
        if ops:
            out.append(
                "## Operations of this header\n\n"
                + "\n".join(f"- {prose.named(op)}" for op in ops)
                + "\n"
            )
        enums = [
            e for e in self.api["enums"] if header != "fovea.h" and self.enum_header(e) == header
        ]
        if enums:
            out.append("## Enumerations\n")
        for enum in enums:
            rows = "\n".join(
                f"| `{v['name']}` | {v['value']} | {prose.cell(v['doc'])} |" for v in enum["values"]
            )
            out.append(f"### {enum['name']}\n\n{docs_text.markdown(enum['doc'], prose)}")
            out.append(f"| name | value | meaning |\n| --- | --- | --- |\n{rows}\n")
        return "\n".join([*out, *self.declared(header, prose)])

    def declared(self, header, prose):
        """What a header declares beside operations and enums."""
        out = []
        for struct in self.api["structs"]:
            if struct["header"] != header or struct["name"].endswith("_params"):
                continue
            rows = "\n".join(
                f"| `{f['name']}` | `{f['type']}{'[' + str(f['count']) + ']' if f['count'] > 1 else ''}` | {prose.cell(f['doc'])} |"
                for f in struct["fields"]
            )
            out += [f"## {struct['name']}\n", docs_text.markdown(struct["doc"], prose)]
            out.append(f"| field | type | meaning |\n| --- | --- | --- |\n{rows}\n")
        for opaque in self.api["opaque"] if header == "core.h" else []:
            out += [f"## {opaque['name']}\n", docs_text.markdown(opaque["doc"], prose)]
        functions = [f for f in self.api["functions"] if f["header"] == header and "op" not in f]
        if functions:
            out.append("## Functions\n")
        for f in functions:
            args = ", ".join(f"{a['type']} {a['name']}" for a in f["args"]) or "void"
            out.append(f"### {f['name']}\n\n```c\n{f['returns']} {f['name']}({args});\n```\n")
            out.append(docs_text.markdown(f["doc"], prose))
        return out

    # ---- methods by name

    def methods(self, prose):
        """A table of src/recipes.json, and what each method's words are."""
        rows = emit_recipes.recipes(self.api)
        out = ["| name | paper | operation | numbers | to be given | trained by |", "| --- " * 6 + "|"]
        for row in rows:
            paper = row["paper"]
            if re.fullmatch(emit_recipes.ARXIV, paper):
                paper = f"[{paper}](https://arxiv.org/abs/{paper})"
            code = lambda words: " ".join(f"`{word}`" for word in words)
            cells = [
                f"[`{row['name']}`](#{row['name']})",
                f"{paper}, {row['year']}",
                prose.named(row["operation"]),
                code(emit_recipes.numbers_text(row).split()),
                code(row["needs"]),
                prose.named(row["backward"]) if row["backward"] else "",
            ]
            out.append(f"| {' | '.join(cells)} |")
        for row in rows:
            out.append(f"\n### {row['name']}\n\n{row['title']}. {prose(row['words'])}")
        return "\n".join(out)

    # ---- files of the repository

    def copied(self, text, source, page):
        """A Markdown file on its page: links to pages, pictures beside them, other links as text."""
        prose, pictures = self.prose(page), []
        places = PLACES | FILES | {path: path.removeprefix("docs/") for path in docs_files()}

        def link(match):
            mark, label, target = match[1], match[2], match[3]
            if re.match(r"(https?:|#|mailto:)", target):
                return match[0]
            path, _, anchor = target.partition("#")
            path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path)).rstrip("/")
            if mark:
                pictures.append(path)
                return f"![{label}]({prose.up}pictures/{path.replace('/', '-')})"
            if f"{path}#{anchor}" in places:
                return f"[{label}]({prose.up}{places[f'{path}#{anchor}']})"
            if path in places:
                return f"[{label}]({prose.up}{places[path]}{'#' + anchor if anchor else ''})"
            return label

        text = text.replace("<!-- the table of fovea.h -->", bits())
        text, out = text.replace("<!-- the methods by name -->", self.methods(prose)), []
        for at, part in enumerate(re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)):
            if at % 2 == 0:
                part = re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", link, part)
                part = re.sub(
                    r"(?<!\[)`((?:fovea_)?[a-z_]+)`(?!\])", lambda m: prose.named(m[1]), part
                )
            out.append(part)
        return "".join(out), pictures


def bits():
    """The table of fovea.h of what bits depend on."""
    rows = re.findall(r"^ +(\S.*?) {2,}((?:(?:no|may) *){5})$", opening("fovea.h"), re.M)
    if not rows:
        raise SystemExit("docs: fovea.h has no table of what bits depend on")
    lines = ["| | run | place | neighbours | batch, host | batch, CUDA |", "| --- " * 6 + "|"]
    for what, words in rows:
        names = re.sub(r"[a-z_]*_[a-z_*]+", lambda m: f"`{m[0]}`", what)
        lines.append(f"| {names} | {' | '.join(words.split())} |")
    return "\n".join(lines)


def docs_files():
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))


def bench():
    """The modules of bench that read its tables."""
    sys.path.insert(0, str(ROOT / "bench"))
    import headlines
    import labels

    return headlines, labels


def speeds():
    """{op: rows of its table}, the README's first."""
    headlines, labels = bench()
    chosen = {
        (key[0], key[1], case): called
        for key, cases in headlines.ROWS.items()
        for case, called in cases.items()
    }
    first, rest = {}, {}
    for slug, rows in sorted(headlines.measured().items(), reverse=True):  # GPUs first
        for row in rows:
            if labels.apart(row):
                continue
            words = labels.words(row)
            called = (
                chosen.get((slug, row["op"], row["case"]))
                or f"{words.what}, {words.label}, {words.length}"
            )
            line = headlines.line(row, called) + f" {row['date'][:10]} |"
            into = first if (slug, row["op"], row["case"]) in chosen else rest
            into.setdefault(row["op"], []).append(line)
    return {op: first.get(op, []) + rest.get(op, []) for op in first.keys() | rest.keys()}


def unbroken(text):
    """Numbers stay with their units."""
    return re.sub(r"(\d) (ms|µs|[TG]FLOP/s|GB/s|Mrow/s)\b", "\\1&nbsp;\\2", text)


def performance():
    """(the page, the pictures it shows)."""
    headlines, labels = bench()
    out = ["# Performance\n", unbroken(headlines.block()) + "\n"]
    out.append(
        "Both libraries run in one process, their calls alternate, and their outputs are compared.\n"
        "Times are medians. A ratio above 1 means that fovea is faster.\n"
    )
    pictures = []
    for device, rows in sorted(headlines.measured().items(), reverse=True):
        found = [f"bench/results/{device}-{family}.png" for family in labels.TITLES]
        shown = [path for path in found if (ROOT / path).exists()]
        if shown:
            out.append(f"## {rows[0]['device']}\n")
        for path in shown:
            title = labels.TITLES[pathlib.Path(path).stem.removeprefix(device + "-")]
            head = title if "_" in title else title[0].upper() + title[1:]
            out.append(f"### {head}\n\n![{title}](pictures/{path.replace('/', '-')})\n")
        pictures += shown
    return "\n".join(out), pictures


def navigation(site):
    """The `nav` of mkdocs.yml, indented as it stands there."""
    families, experimental = {}, []
    for op in site.ops:
        if op.startswith("x_"):
            experimental.append(op)
        else:
            families.setdefault(site.structs[op]["header"].removesuffix(".h"), []).append(op)
    rows = ["  - Operations:", "    - operations/index.md"]
    for family, ops in families.items():
        rows += [f"    - {family}:", *(f"      - {op}: operations/{op}.md" for op in ops)]
    rows += ["    - experimental:", *(f"      - {op}: operations/{op}.md" for op in experimental)]
    rows.append("  - Headers:")
    for header in site.headers:
        title = {"fovea.h": "fovea.h, the manual", "core.h": "core.h, the rules"}.get(
            header, header
        )
        rows.append(f'    - "{title}": {header_page(header)}')
    return "\n".join(rows)


def write(folder):
    pages = folder / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    site = Site(parser.parse(INCLUDE))
    texts, pictures = {}, []
    for op in site.ops:
        texts[f"operations/{op}.md"] = site.operation(op)
    texts["operations/index.md"] = site.operations()
    for header in site.headers:
        texts[header_page(header)] = site.header(header)
    texts["performance.md"], found = performance()
    pictures += found
    for source in [*FILES, *docs_files()]:
        page = FILES.get(source) or source.removeprefix("docs/")
        texts[page], found = site.copied((ROOT / source).read_text(), source, page)
        pictures += found
    for page, text in texts.items():
        (pages / page).parent.mkdir(parents=True, exist_ok=True)
        (pages / page).write_text(text)
    (pages / "pictures").mkdir()
    for path in sorted(set(pictures)):
        shutil.copy(ROOT / path, pages / "pictures" / path.replace("/", "-"))
    shutil.copy(ROOT / "docs/site.css", pages / "site.css")
    config = (
        (ROOT / "docs/mkdocs.yml")
        .read_text()
        .replace("  # the operations and headers\n", navigation(site) + "\n")
    )
    (folder / "mkdocs.yml").write_text(config)
    return len(texts)


def main(argv):
    if len(argv) != 1:
        sys.exit(__doc__)
    print(f"docs: {write(pathlib.Path(argv[0]).resolve())} pages")


if __name__ == "__main__":
    main(sys.argv[1:])
