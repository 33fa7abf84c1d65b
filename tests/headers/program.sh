#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tests/headers/program.sh <libfovea.so>: the program in fovea.h, as typed, is C99 without a warning
# and C++11, links against the library and prints the row that the header promises.
set -euo pipefail
library=${1:?usage: tests/headers/program.sh <libfovea.so>}
header=$(cd "$(dirname "$0")/../.." && pwd)/include/fovea/fovea.h
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# From its #include lines to the brace that closes main, without the comment's margin.
sed -n '/^ \*    #include/,/^ \*    }$/s/^ \*    //p' "$header" >"$work/program.c"
grep -q 'int main(void)' "$work/program.c" || { echo "program: fovea.h holds no program" >&2; exit 1; }
cc -std=c99 -pedantic -Wall -Wextra -Werror -I "$(dirname "$header")/.." "$work/program.c" "$library" \
  -Wl,-rpath,"$(cd "$(dirname "$library")" && pwd)" -o "$work/program"
cp "$work/program.c" "$work/program.cpp"
c++ -std=c++11 -pedantic -Wall -Werror -fsyntax-only -I "$(dirname "$header")/.." "$work/program.cpp"
"$work/program" >"$work/out"
wanted=$(sed -n 's/.*prints "\(.*\)".*/\1/p' "$header")
[ -n "$wanted" ] || { echo "program: fovea.h does not say what its program prints" >&2; exit 1; }
[ "$(cat "$work/out")" = "$wanted" ] || { echo "program: printed '$(cat "$work/out")', wanted '$wanted'" >&2; exit 1; }
echo "program: the program of fovea.h compiles, runs and prints $wanted"
