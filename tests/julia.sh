#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The Julia package and its example; tools/julia.sh puts a Julia where Debian has none.
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
