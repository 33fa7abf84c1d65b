#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the programs of the documentation: each operation's in every language, each guide's.

    tools/docs_run.py FOLDER     works in FOLDER; FOVEA_LIBRARY and FOVEA_LIB_DIR name the library

All C programs are one binary, all C++ programs one, all Rust programs one crate, those of Python
and Julia one process each.  The languages run side by side, and must print the same numbers.  Where
cargo or julia is missing its programs are skipped; FOVEA_REQUIRE_ALL=1 makes that a failure."""

import contextlib
import io
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap
from concurrent import futures

import api as parser
import docs_sentences
import docs_snippets

ROOT = pathlib.Path(__file__).resolve().parents[1]
TOLERANCE = 1e-4  # of printed f32 numbers, relative to 1 + |x|
SUFFIXES = [language.suffix for language in docs_snippets.LANGUAGES]
NUMBER = re.compile(r"-?(?:inf|nan|\d+\.?\d*(?:e[+-]?\d+)?)", re.I)
CARGO = """[package]
name = "docs"
version = "0.0.0"
edition = "2021"
[dependencies]
fovea = {{ path = "{root}/bindings/rust/fovea" }}
[workspace]
"""


def fail(text):
    sys.exit(f"docs: {text}")


def run(command, **options):
    done = subprocess.run(
        [str(word) for word in command], text=True, capture_output=True, **options
    )
    if done.returncode:
        fail(f"{' '.join(map(str, command[:3]))} ...:\n{done.stdout[-3000:]}{done.stderr[-6000:]}")
    return done.stdout


def sections(text):
    """{name: numbers} of lines `== name` and what follows each."""
    found = {}
    for part in text.split("== ")[1:]:
        name, _, rest = part.partition("\n")
        rest = re.sub(r"\b(Float32|Int32)\[", "", rest)
        found[name.strip()] = [float(x) for x in NUMBER.findall(rest)][:4]
    return found


def c_programs(folder, files, library):
    """Each file is included under another name of main."""
    text = "#include <stdio.h>\n#include <string.h>\n"
    for path in files:
        name = path.stem.replace("-", "_")
        own = ("main", *docs_snippets.FILLS)
        text += "".join(f"#define {each} {each}_{name}\n" for each in own)
        text += f'#include "{path}"\n' + "".join(f"#undef {each}\n" for each in own)
    text += "int main(int n, char** names) {\n  int i, bad = 0;\n  for (i = 1; i < n; ++i) {\n"
    text += '    printf("== %s\\n", names[i]);\n'
    for path in files:
        call = f"main_{path.stem.replace('-', '_')}()"
        text += f'    if (!strcmp(names[i], "{path.stem}") && {call}) bad = 1;\n'
    text += "  }\n  return bad;\n}\n"
    source, program = folder / "all.c", folder / "all"
    source.write_text(text)
    compiled([source], program, library)
    return run([program, *(path.stem for path in files)])


def cpp_programs(folder, files, library):
    """Programs that include the same headers are one unit, so that no include of a page is missed.

    A page's main returns nothing, which only a function of that name may: here it becomes void."""
    units = {}
    for path in files:
        units.setdefault(path.read_text().partition("\n\n")[0], []).append(path)
    sources = []
    for at, (includes, paths) in enumerate(units.items()):
        text = includes + "\n"
        for path in paths:
            text += f"#define main() unused_{path.stem} = 0; void run_{path.stem}()\n"
            text += f'namespace {path.stem} {{\n#include "{path}"\n}}\n#undef main\n'
        sources.append(folder / f"unit_{at}.cpp")
        sources[-1].write_text(text)
    calls = "".join(
        f'  std::puts("== {p.stem}");\n  {p.stem}::run_{p.stem}();\n' for p in files
    )
    named = "".join(f"namespace {p.stem} {{ void run_{p.stem}(); }}\n" for p in files)
    sources.append(folder / "all.cpp")
    sources[-1].write_text(f"#include <cstdio>\n{named}int main() {{\n{calls}}}\n")
    compiled(sources, folder / "all_cpp", library)
    return run([folder / "all_cpp"])


def compiled(sources, program, library):
    """C99 or C++17, whichever the first source is."""
    strict = ["-O0", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers"]
    cpp = ["c++", "-std=c++17", *strict, "-Wpedantic", "-Wconversion", "-Wshadow"]
    command = cpp if sources[0].suffix == ".cpp" else ["cc", "-std=c99", *strict]
    rpath = f"-Wl,-rpath,{library.parent}"
    run([*command, f"-I{ROOT}/include", *sources, library, rpath, "-lm", "-o", program])


def python_programs(files):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        for path in files:
            print(f"== {path.stem}")
            try:
                exec(compile(path.read_text(), str(path), "exec"), {"__name__": "__main__"})
            except Exception as why:  # the page is wrong, whatever it raises
                fail(f"{path.name}: {type(why).__name__}: {why}")
    return out.getvalue()


def rust_programs(folder, files, libraries):
    crate = folder / "crate"
    (crate / "src").mkdir(parents=True, exist_ok=True)
    (crate / "Cargo.toml").write_text(CARGO.format(root=ROOT))
    modules = "".join(
        f'mod {path.stem} {{ include!("{path}"); pub fn call() -> fovea::Result<()> {{ main() }} }}\n'
        for path in files
    )
    calls = "".join(f'    println!("== {p.stem}");\n    {p.stem}::call()?;\n' for p in files)
    (crate / "src/main.rs").write_text(
        f"{modules}\nfn main() -> fovea::Result<()> {{\n{calls}    Ok(())\n}}\n"
    )
    environment = {
        **os.environ,
        "FOVEA_LIB_DIR": str(libraries),
        "LD_LIBRARY_PATH": str(libraries),
        "CARGO_TARGET_DIR": os.environ.get("CARGO_TARGET_DIR", str(folder / "rust")),
        "RUSTFLAGS": "-D warnings",
    }
    return run(["cargo", "run", "--offline", "--quiet"], cwd=crate, env=environment)


def julia_programs(folder, files, julia):
    lines = []
    for path in files:
        lines.append(f'println("== {path.stem}")\nmodule M_{path.stem}\ninclude("{path}")\nend\n')
    (folder / "all.jl").write_text("".join(lines))
    return run(
        [
            julia,
            "--startup-file=no",
            "-O0",
            f"--project={ROOT}/bindings/julia/Fovea",
            folder / "all.jl",
        ]
    )


def tool(name, *places):
    """The path of a program; None, said aloud, where it is missing and may be."""
    found = shutil.which(name) or next((str(p) for p in places if p.exists()), None)
    if not found:
        if os.environ.get("FOVEA_REQUIRE_ALL"):
            fail(f"FOVEA_REQUIRE_ALL is set and {name} is missing")
        print(f"docs: SKIPPED the programs in {name}'s language: {name} is missing")
    return found


def compare(results):
    """The first language's numbers are the others' as well, finite and not all 0."""
    first, wanted = next(iter(results.items()))
    for op, numbers in wanted.items():
        if not numbers or not all(map(math.isfinite, numbers)) or not any(numbers):
            fail(f"{op} in {first} prints {numbers}")
        for language, found in results.items():
            got = found.get(op, [])
            near = len(got) == len(numbers) and all(
                abs(a - b) <= TOLERANCE * (1 + abs(b)) for a, b in zip(got, numbers)
            )
            if not near:
                fail(f"{op} prints {got} in {language} and {numbers} in {first}")


def blocks(page, fence):
    """The page's blocks of a language that are run: those without `not run` before them."""
    pattern = rf"(<!-- not run[^>]*-->\n)?^( *)```{fence}\n(.*?)^ *```$"
    found = re.finditer(pattern, page.read_text(), re.M | re.S)
    return [textwrap.dedent(m[3]) for m in found if not m[1]]


def alone(path, library):
    """Compiles and runs a program."""
    program = path.with_suffix(f"{path.suffix}.out")
    compiled([path], program, library)
    run([program])


def guides(folder, library):
    """Python blocks of a page are one session; each block in C or C++ is a program of its own."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    python, c, cpp = [], [], []
    for page in sorted((ROOT / "docs").rglob("*.md")):
        session = "\n".join(blocks(page, "python"))
        if session:
            python.append(folder / f"{page.stem}.py")
            python[-1].write_text(session)
        for suffix, found in (("c", c), ("cpp", cpp)):
            for number, text in enumerate(blocks(page, suffix)):
                found.append(folder / f"{page.stem}_{number}.{suffix}")
                found[-1].write_text(text)
    if not python or not c or not cpp:
        fail("the guides have no program in Python, C or C++")
    python_programs(python)
    with futures.ThreadPoolExecutor() as pool:
        list(pool.map(lambda path: alone(path, library), c + cpp))
    return len(python), len(c), len(cpp)


def main(argv):
    if len(argv) != 1:
        sys.exit(__doc__)
    folder = pathlib.Path(argv[0]).resolve()
    library = pathlib.Path(os.environ["FOVEA_LIBRARY"]).resolve()
    libraries = os.environ.get("FOVEA_LIB_DIR", library.parent)
    snippets = folder / "programs"
    shutil.rmtree(snippets, ignore_errors=True)
    snippets.mkdir(parents=True)
    api = parser.parse(ROOT / "include/fovea")
    written = docs_snippets.write(api, snippets)
    files = {suffix: sorted(snippets.glob(f"*.{suffix}")) for suffix in SUFFIXES}
    jobs = {
        "C": (c_programs, folder, files["c"], library),
        "C++": (cpp_programs, folder, files["cpp"], library),
    }
    if tool("cargo"):
        jobs["Rust"] = (rust_programs, folder, files["rs"], libraries)
    if julia := tool("julia", ROOT / ".cache/julia/julia"):
        jobs["Julia"] = (julia_programs, folder, files["jl"], julia)
    sys.path.insert(0, str(ROOT / "bindings/python"))
    with futures.ThreadPoolExecutor() as pool:  # compilers and interpreters of their own
        running = {language: pool.submit(*job) for language, job in jobs.items()}
        printed = {"Python": python_programs(files["py"])}
        printed |= {language: job.result() for language, job in running.items()}
    order = [language.name for language in docs_snippets.LANGUAGES if language.name in printed]
    results = {language: sections(printed[language]) for language in order}
    compare(results)
    print(f"docs: {written} operations print the same in {', '.join(results)}")
    docs_sentences.check(api)
    pages, c, cpp = guides(folder / "guides", library)
    print(f"docs: the guides run, {pages} in Python, {c} programs in C and {cpp} in C++")


if __name__ == "__main__":
    main(sys.argv[1:])
