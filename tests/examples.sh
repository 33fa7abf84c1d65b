#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every program of examples/c and examples/cpp, and the C and C++ of README.md and fovea.hpp, against
# an installed fovea, on the host:
#   1. by CMake, without a warning, and run: each checks its own result
#   2. by the command that its own opening comment tells, as it stands there
#   3. README.md's program in C as C99 and as C++11, the one in C++ and the lines that open fovea.hpp
#   4. examples/python/quantised.py, small, on its toy model: in few bits what is installed runs too
#   tests/examples.sh <build folder>
# ggml_op.c takes part where pkg-config finds ggml, ring_mpi.c where mpicc is, ring_nccl.c where nccl.h is.
set -euo pipefail
build=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
prefix=$out/prefix
fail() { echo "examples: $*" >&2; exit 1; }
cmake --install "$build" --prefix "$prefix" >/dev/null
libdir=$(dirname "$(find "$prefix" -name libfovea.so | head -n 1)")
export PKG_CONFIG_PATH=$libdir/pkgconfig:${PKG_CONFIG_PATH:-}
# Processes of MPI beside one another on any machine, in a container too.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
programs=0 typed=0
run() { # log, command...: a failure shows the log
  local log=$1
  shift
  "$@" >"$log" 2>&1 || { cat "$log" >&2; fail "$* fails"; }
}

# ---- 1: by CMake
for folder in c cpp; do
  tree=$out/$folder
  strict="-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror"
  CFLAGS=$strict CXXFLAGS=$strict cmake -S "examples/$folder" -B "$tree" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" >"$out/log" 2>&1 ||
    { cat "$out/log" >&2; fail "cmake -S examples/$folder fails"; }
  cmake --build "$tree" >"$out/log" 2>&1 || { cat "$out/log" >&2; fail "examples/$folder does not build"; }
  for source in examples/"$folder"/*.c*; do
    name=$(basename "${source%.*}")
    [ "$name" != CMakeLists ] || continue
    [ -x "$tree/$name" ] || { [[ $name = ggml_op || $name = ring_nccl || ( $name = ring_mpi && -z ${FOVEA_REQUIRE_ALL:-} ) ]] && continue; fail "no program of $source"; }
    arguments=() launch=()
    [ "$name" != ring_mpi ] || launch=(mpirun -n 2)
    [ "$name" != dlopen ] || arguments=("$libdir/libfovea.so")
    [ "$name" != serve ] || arguments=(--random)
    run "$tree/$name.out" "${launch[@]}" "$tree/$name" "${arguments[@]}"
    programs=$((programs + 1))
    echo "examples: $folder/$name: $(tail -n 1 "$tree/$name.out")"
  done
done
cmp <("$out/c/attend" 2>/dev/null) <("$out/c/dlopen" "$libdir/libfovea.so")
# serve tells what is wrong with a file of weights.
printf 'PK\5\6' >"$out/cut.npz"
for file in cut none; do
  ! "$out/c/serve" "$out/$file.npz" >/dev/null 2>"$out/log" || fail "serve takes $file.npz"
  grep -q "^serve: $out/$file.npz: \(is cut off, or no .npz file\|cannot be opened\)$" "$out/log" ||
    fail "serve of $file.npz says $(cat "$out/log")"
done

# ---- 2: as each file tells it.  That fovea.pc is right in any prefix is tests/install.sh's to hold.
mkdir "$out/typed"
cp examples/c/*.[ch] examples/cpp/*.cpp "$out/typed"
for source in "$out"/typed/*.c "$out"/typed/*.cpp; do
  command=$(sed -nE 's,^ ?(\*|//) +((cc|c\+\+|mpicc) .*&& (mpirun -n 2 )?\./.*)$,\2,p' "$source" | head -n 1)
  [ -n "$command" ] || fail "$(basename "$source") does not tell how it is compiled"
  if [[ $command == *ggml* ]] && ! pkg-config --exists ggml; then
    echo "examples: ggml_op.c is left out: pkg-config finds no ggml"
    continue
  fi
  if [[ $command == *nccl* ]] && ! echo '#include <cuda_runtime_api.h>
#include <nccl.h>' | cc -E - >/dev/null 2>&1; then
    echo "examples: $(basename "$source") is left out: there is no nccl.h"
    continue
  fi
  if [[ $command == mpicc* ]] && ! command -v mpicc >/dev/null; then
    echo "examples: $(basename "$source") is left out: there is no mpicc"
    continue
  fi
  echo "$command" >"$out/command"
  (cd "$out/typed" && LD_LIBRARY_PATH=$libdir:$(pkg-config --variable=libdir ggml 2>/dev/null || true) \
    run "$out/log" bash -e "$out/command")
  typed=$((typed + 1))
done

# ---- 3: README.md and fovea.hpp
sed -n '/^```c$/,/^```$/p' README.md | sed '/^```/d' >"$out/readme.c"
cp "$out/readme.c" "$out/readme.cpp"
{ printf '#include <fovea/fovea.hpp>\n#include <vector>\nint main() {\n'
  sed -n '/^ \*    auto ctx/,/^ \*    fovea::run/s/^ \*    //p' include/fovea/fovea.hpp
  printf '  return !(o[0] < 1e-6F);\n}\n'; } >"$out/opening.cpp"
grep -q 'int main(void)' "$out/readme.c" || fail "README.md holds no C program"
grep -q 'fovea::run(ctx, p);' "$out/opening.cpp" || fail "fovea.hpp opens with no lines of C++"
sources=("readme.c cc -std=c99" "readme.cpp c++ -std=c++11" "opening.cpp c++ -std=c++17")
if grep -q '^```cpp$' README.md; then
  sed -n '/^```cpp$/,/^```$/p' README.md | sed '/^```/d' >"$out/readme17.cpp"
  sources+=("readme17.cpp c++ -std=c++17")
fi
for of in "${sources[@]}"; do
  read -r source compiler standard <<<"$of"
  # g++ -Wextra warns of = {0}, which zeroes a struct in C.
  run "$out/log" "$compiler" "$standard" -pedantic -Wall -Wextra -Wno-missing-field-initializers -Werror "$out/$source" \
    -I"$prefix/include" -L"$libdir" -lfovea -Wl,-rpath,"$libdir" -o "$out/program"
  run "$out/log" "$out/program"
  case $source in
    readme*) grep -q '^o\[0\] = 1\.000000 by attention_forward\.' "$out/log" || fail "$source printed $(cat "$out/log")" ;;
  esac
done

# ---- 4: few bits from Python
python=$PWD/.venv/bin/python
[ -x "$python" ] || python=python3
if "$python" -c 'import matplotlib, ml_dtypes, numpy' 2>/dev/null; then
  run "$out/log" env FOVEA_LIBRARY="$libdir/libfovea.so" OPENBLAS_NUM_THREADS=1 "$python" examples/python/quantised.py \
    --toy --which bf16,sageattention2,kivi2 --tokens 150 --decode 2 --generate 2 --threads 1 --out "$out/quantised"
  for row in bf16 sageattention2 kivi2; do
    grep -q "^$row	" "$out/quantised/quantised.tsv" || fail "quantised.py has no row of $row"
  done
else
  [ -z "${FOVEA_REQUIRE_ALL:-}" ] || fail "FOVEA_REQUIRE_ALL is set and matplotlib, ml_dtypes or numpy is missing"
  echo "examples: quantised.py is left out: matplotlib, ml_dtypes or numpy is missing"
fi
echo "examples: $programs programs by CMake, $typed by their own command, README.md and fovea.hpp agree"
