#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The Julia package, its installation, the programs of its page and its example; tools/julia.sh puts
# a Julia where Debian has none.
set -euo pipefail
cd "$(dirname "$0")/.."
julia=$(command -v julia || true)
[ -n "$julia" ] || julia=.cache/julia/julia
if ! [ -x "$julia" ]; then
  echo "julia: missing: run tools/julia.sh" >&2
  exit 1
fi
# -O0: most of the time would go into optimizing code that runs once.
"$julia" -O0 --startup-file=no --project=bindings/julia/Fovea bindings/julia/Fovea/test/runtests.jl
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
"$julia" --startup-file=no --project=bindings/julia/Fovea examples/julia/attend.jl >"$out/julia.txt"
cc -std=c99 -Iinclude examples/c/attend.c "$FOVEA_LIBRARY" -Wl,-rpath,"$(dirname "$FOVEA_LIBRARY")" -o "$out/attend"
"$out/attend" >"$out/c.txt"
cmp "$out/c.txt" "$out/julia.txt"

# The page's first two blocks, in an empty environment: Pkg.develop and the program.  A registry
# without packages keeps Pkg from the network.
page=bindings/julia/README.md
block() { awk -v want="$1" '/^```julia$/ { n++; next } /^```/ { if (n == want) exit; next } n == want' $page; }
mkdir -p "$out/depot/registries/none" "$out/project" "$out/packages/Fovea_jll/src"
printf 'name = "none"\nuuid = "5d0c47a1-7e5b-4a6f-9d4d-3f6f0f1f6c11"\nrepo = ""\n[packages]\n' \
  >"$out/depot/registries/none/Registry.toml"
block 1 >"$out/install.jl"
block 2 >"$out/program.jl"
fresh() { env -i PATH="$PATH" HOME="$out" JULIA_DEPOT_PATH="$out/depot" "$@"; }
run() { fresh "$@" -O0 --startup-file=no --project="$out/project" "${script[@]}"; }
script=("$out/install.jl")
run "$julia" 2>"$out/install.txt" || { cat "$out/install.txt" >&2; exit 1; }
script=("$out/program.jl")
run FOVEA_LIBRARY="$FOVEA_LIBRARY" "$julia" | grep -q '^(128, 8, 64, 2) by attention_forward.host'

# A program that loads Fovea_jll has the library from it.
cp -L "$FOVEA_LIBRARY" "$out/libfovea.so"
echo "module Fovea_jll; const libfovea_path = \"$out/libfovea.so\"; end" >"$out/packages/Fovea_jll/src/Fovea_jll.jl"
script=(-e 'using Fovea_jll, Fovea; println(Fovea.library_path())')
[ "$(run JULIA_LOAD_PATH="@:@stdlib:$out/packages" "$julia")" = "$out/libfovea.so" ]
