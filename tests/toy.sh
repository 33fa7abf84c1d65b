#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a new operation touches.  A copy of the working tree gets the operation of tests/toy: its own
# files, one row of src/ops.inc, one line of README.md and one of CHANGELOG.md.  With nothing else
# changed by hand, the copy must generate, build, keep its laws, pass the operation's conformance,
# contract and random calls on the host, be planned by fovea_info, and answer calls from C, Python,
# Rust and Julia.
#   tests/toy.sh [folder to keep the copy in]
# Where cargo or julia is missing its call is skipped; FOVEA_REQUIRE_ALL=1 makes that a failure.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
out=${1:-$(mktemp -d)}
[ -n "${1:-}" ] || trap 'rm -rf "$out"' EXIT
tree=$out/tree
mkdir -p "$tree"
fail() { echo "toy: $*" >&2; exit 1; }
missing() { # tool, what is left out
  [ -z "${FOVEA_REQUIRE_ALL:-}" ] || fail "FOVEA_REQUIRE_ALL is set and $1 is missing"
  echo "toy: SKIPPED $2: $1 is missing"
}
git rev-parse --show-toplevel >/dev/null 2>&1 || { missing "the git checkout" "all"; exit 0; }
git ls-files -co --exclude-standard -z | while IFS= read -r -d '' file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done |
  tar --null -T - -cf - | tar -C "$tree" -xf -
julia=$(command -v julia || true)
[ -n "$julia" ] || julia=$root/.cache/julia/julia

cd "$tree"
git() { command git -c user.name=toy -c user.email=toy@localhost -c core.autocrlf=false "$@"; }
git init -q . && git add -A && git commit -qm "the tree as it was"

# ---- by hand: new files, and a line in each of three lists
own=()
while IFS= read -r file; do
  own+=("${file%.in}")
  mkdir -p "$(dirname "$file")"
  cp "tests/toy/tree/$file" "${file%.in}"
done < <(cd tests/toy/tree && find . -name '*.in' | sed 's,^\./,,' | sort)
echo 'FOVEA_OP(toy, forward, 496)' >>src/ops.inc
sed -i '0,/^| `rope_forward`/s//| `toy_forward` | Short convolutions along the rows. | |\n&/' README.md
sed -i '0,/^- `rope_forward`/s//- `toy_forward`: short convolutions along the rows.\n&/' CHANGELOG.md
changed() { git status --porcelain -uall | sed -n "s/^$1 //p" | sort | tr '\n' ' '; }
by_hand=$(changed ' M')
[ "$by_hand" = "CHANGELOG.md README.md src/ops.inc " ] || fail "by hand are changed $by_hand"
[ "$(changed '??')" = "$(printf '%s\n' "${own[@]}" | sort | tr '\n' ' ')" ] || fail "new are $(changed '??')"

# ---- generated, and the laws of the tree
generated=$(python3 tools/api.py | sed -n 's/^api.py: \(.*\) written$/\1/p')
python3 tools/api.py --check
python3 tools/api.py --gate
python3 tools/layers.py
if command -v clang-format >/dev/null; then
  printf '%s\n' "${own[@]}" | grep -v -e '^include/' -e '\.rs$' | xargs clang-format --dry-run --Werror
fi

# ---- the host library and the tests of this family
launcher=()
if command -v ccache >/dev/null; then
  launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  export CCACHE_BASEDIR=$tree CCACHE_NOHASHDIR=1
fi
cmake -S . -B "$out/build" -G Ninja -DFOVEA_CUDA=OFF -DFOVEA_STATIC=OFF -DFOVEA_BENCH=OFF -DFOVEA_FAMILIES=toy \
  -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 -DCMAKE_C_FLAGS_DEBUG=-O0 "${launcher[@]}" >"$out/configure.log"
cmake --build "$out/build" --target fovea fovea_info abi conformance contract random_calls >"$out/build.log" ||
  { cat "$out/build.log" >&2; fail "does not build"; }
tests() { # program, filter: all pass, and there are some
  local log=$out/$1.log
  "$out/build/tests/$1" --gtest_filter="$2" >"$log" 2>&1 || { tail -n 60 "$log" >&2; fail "$1 fails"; }
  grep -q '^\[  PASSED  \] [1-9]' "$log" || fail "$1 has no test $2"
  echo "toy: $1 $(sed -n 's/^\[  PASSED  \] \(.*\)\.$/\1/p' "$log")"
}
tests abi '*'
if command -v nvcc >/dev/null; then
  nvcc -std=c++20 --expt-relaxed-constexpr -arch=sm_90 -DFOVEA_WITH_CUDA=1 -Iinclude -Isrc -c src/ops/toy/forward.cu -o "$out/toy.o"
  echo "toy: nvcc compiles the CUDA kernel"
fi
tests conformance 'toy_forward/host*'
tests contract '*toy_forward*:ContractCases*'
FOVEA_RANDOM_OP=toy_ FOVEA_RANDOM_CALLS=${FOVEA_TOY_CALLS:-3000} tests random_calls '*.host'

"$out/build/bin/fovea_info" toy_forward b=2 s=4 h=2 d=8 reach=3 dtype=bf16 >"$out/info.txt" || fail "fovea_info plans no call"
grep -q '^kernel *toy_forward\.host' "$out/info.txt" || fail "fovea_info names no kernel: $(cat "$out/info.txt")"

# ---- calls through what was generated
export FOVEA_LIB_DIR=$out/build/lib FOVEA_LIBRARY=$out/build/lib/libfovea.so LD_LIBRARY_PATH=$out/build/lib
wanted="0.0 0.0 0.0 1.0 2.5 4.0 5.5 7.0"
says() { [ "$2" = "$wanted" ] || fail "$1 has $2, wanted $wanted"; echo "toy: $1 has $2"; }
cc -std=c99 -pedantic -Wall -Wextra -Werror -Iinclude tests/toy/calls/toy.c -L"$FOVEA_LIB_DIR" -lfovea -o "$out/toy"
says C "$("$out/toy")"
says Python "$(PYTHONPATH=bindings/python python3 tests/toy/calls/toy.py)"
if command -v cargo >/dev/null; then
  says Rust "$(cd examples/rust && CARGO_TARGET_DIR=$out/rust cargo run --offline --quiet --bin toy)"
else
  missing cargo "the call from Rust"
fi
if [ -x "$julia" ]; then
  says Julia "$("$julia" --startup-file=no --compiled-modules=no -O0 --project=bindings/julia/Fovea tests/toy/calls/toy.jl)"
else
  missing julia "the call from Julia"
fi

# ---- and nothing else has changed
rm -f examples/rust/Cargo.lock
all=$(printf '%s\n' $by_hand $generated | sort -u | tr '\n' ' ')
now=$(git status --porcelain | sed -n 's/^ M //p' | sort | tr '\n' ' ')
new_generated=$(changed '??')
[ "$now" = "$all" ] || fail "changed are $now, of which only $all was written by hand or generated"
[ "$new_generated" = "$(printf '%s\n' "${own[@]}" | sort | tr '\n' ' ')" ] || fail "new are $new_generated"
echo "toy: by hand $by_hand and ${#own[@]} new files of $(cat "${own[@]}" | wc -l) lines; generated: $(echo $generated | wc -w) files"
