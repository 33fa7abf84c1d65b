#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The include law of the tree, over the #include lines of what is written by hand (instances are
stamped into the build folder and not read):

    include/fovea <- core <- host <- ops        core <- cuda, cuda/tile <- cuda/block <- cuda/loop <- ops

host and cuda never see each other, ops/X never sees ops/Y (but kl_experimental sees kl, whose sides
and tiles its recipes are made of, and pooled sees quantised, whose parts are its own), only api.cpp
sees all ops and only their
.h; .cpp and .h include no .cuh and, outside src/cuda, no CUDA; tests, bench, examples, programs and
bindings see include/fovea and themselves, and tests/core sees core.  Prints file:line for each breach and exits 1."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SUFFIXES = {".c", ".h", ".cpp", ".inc", ".cu", ".cuh"}
SEES = {"include": {"include"}, "core": {"include", "core"}, "host": {"include", "core", "host"},
        "cuda": {"include", "core", "cuda"}, "cuda/tile": {"include", "core", "cuda", "cuda/tile"}}
SEES["cuda/block"] = SEES["cuda/tile"] | {"cuda/block"}
SEES["cuda/loop"] = SEES["cuda/block"] | {"cuda/loop"}
# A folder of experiments on the folder that it experiments with.
SEES_OPS = {"ops/kl_experimental": {"ops/kl"}, "ops/pooled": {"ops/quantised"}}
CUDA = {"cuda", "cuda/tile", "cuda/block", "cuda/loop"}


def room(path):
    """The room of a path below the root: core, cuda/tile, ops/rope, api.cpp, tests ..."""
    parts = path.parts[1:] if path.parts[0] == "src" else path.parts
    deep = parts[0] in ("cuda", "ops") and len(parts) > 2
    return "/".join(parts[:2]) if deep else parts[0]


def target(path, name):
    """The file of this tree that an include means, or None for a system or third-party header."""
    for folder in (path.parent, pathlib.Path("include"), pathlib.Path("src"), pathlib.Path("tests"), pathlib.Path()):
        parts = []
        for part in (folder / name).parts:
            parts = parts[:-1] if part == ".." else parts + [part]
        if (ROOT / "/".join(parts)).is_file():
            return pathlib.Path(*parts)
    return None


def breach(path, name):
    here, to = room(path), target(path, name)
    plain = path.suffix not in (".cu", ".cuh")
    if not to:
        cuda = re.match(r"(cuda|cub|cute?lass|cooperative_groups|mma\.h|nv)", name)
        return "includes CUDA" if cuda and plain and path.parts[0] == "src" and here not in CUDA else None
    there = room(to)
    if path.parts[0] == "src" and plain and to.suffix == ".cuh":
        return "a .cpp, .h or .inc includes a .cuh"
    if path.parts[0] == "include":
        sees = SEES["include"]
    elif path.parts[0] != "src":
        sees = {"include", here} | ({"core"} if path.parts[:2] == ("tests", "core") else set())
    elif to.name == "ops.inc":
        return None
    elif here == "api.cpp":
        sees = {"include", "core"} | ({there} if there.startswith("ops/") and to.suffix == ".h" else set())
    elif here.startswith("ops/"):
        # Device code of an op sees cuda, its .cpp and _host.h see host, its other .h neither: both
        # sides read them.
        host = path.suffix == ".cpp" or path.stem.endswith("_host")
        side = CUDA if not plain else {"host"} if host else set()
        sees = {"include", "core", here} | side | SEES_OPS.get(here, set())
    else:
        sees = SEES.get(here)
        if sees is None:
            return f"src/{here} is no room of this tree"
    return None if there in sees else f"{here} does not see {there}"


def main():
    count, broken = 0, []
    for top in ("include", "src", "tests", "bench", "examples", "programs", "bindings"):
        for file in sorted((ROOT / top).rglob("*")):
            path = file.relative_to(ROOT)
            if file.suffix not in SUFFIXES or not file.is_file() or {"target", "build"} & set(path.parts):
                continue
            for number, line in enumerate(file.read_text().split("\n"), 1):
                if m := re.match(r'\s*#\s*include\s*[<"]([^>"]+)[>"]', line):
                    count += 1
                    if why := breach(path, m[1]):
                        broken.append(f"{path}:{number}: {m[1]}: {why}")
    print("\n".join(broken) if broken else f"layers.py: {count} includes keep the law")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
