#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tests/headers/check.sh <include dir> [--require]: every public header alone, in every C from C99
# and every C++ from C++98, with gcc and clang, without a warning and without hidden padding; the
# C++ header through its test, in every C++ from C++17, with and without exceptions; then bindgen.
# A missing tool is reported; with --require it is a failure.
set -uo pipefail
include=${1:?usage: tests/headers/check.sh <include dir> [--require]}
require=${2:-}
flags=(-fsyntax-only -pedantic -Wall -Wextra -Wpadded -Werror -I "$include")
failures=0 checked=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

have() {
  command -v "$1" >/dev/null 2>&1 && return 0
  echo "headers: $1 is not installed"
  [ "$require" = --require ] && failures=$((failures + 1))
  return 1
}

# A layout is looked at (clang warns of padding only then) by asking for every size.
unit() { # header
  echo "#include \"fovea/$1\""
  echo "extern int fovea_header_is_compiled;"
  sed -n 's/^} \(fovea_[a-z_0-9]*\);$/typedef char size_of_\1[sizeof(\1)];/p' "$include/fovea/$1"
}

language() { # compiler, -x language, standards...
  local compiler=$1 kind=$2 standard header
  shift 2
  have "$compiler" || return
  for standard in "$@"; do
    # What this run would let through if it let hidden padding through.
    if printf 'struct padded { int a; long long b; };\ntypedef char size_of[sizeof(struct padded)];\n' |
      "$compiler" -x "$kind" -std="$standard" "${flags[@]}" -Wno-long-long - 2>/dev/null; then
      echo "headers: $compiler -std=$standard does not see hidden padding"
      failures=$((failures + 1))
    fi
    for header in "$include"/fovea/*.h "$include"/fovea/experimental/*.h; do
      header=${header#"$include"/fovea/}
      checked=$((checked + 1))
      if ! unit "$header" | "$compiler" -x "$kind" -std="$standard" "${flags[@]}" - 2>"$work/log"; then
        echo "headers: fovea/$header fails with $compiler -std=$standard"
        cat "$work/log"
        failures=$((failures + 1))
      fi
    done
  done
}

for compiler in gcc clang; do language "$compiler" c c99 c11 c17 c2x; done
for compiler in g++ clang++; do language "$compiler" c++ c++98 c++11 c++14 c++17 c++20; done

# The .hpp are templates: what counts is their use, which tests/hpp is.
hpp() { # compiler, warnings...
  local compiler=$1 standard
  shift
  have "$compiler" || return
  for standard in c++17 c++20 c++2b; do
    checked=$((checked + 1))
    if ! { "$compiler" -std=$standard -fsyntax-only -Werror "$@" -I "$include" "$tests/hpp/hpp.cpp" &&
      "$compiler" -std=$standard -fsyntax-only -Werror "$@" -fno-exceptions -fno-rtti \
        -I "$include" "$tests/hpp/plain.cpp"; } 2>"$work/log"; then
      echo "headers: tests/hpp fails with $compiler -std=$standard"
      cat "$work/log"
      failures=$((failures + 1))
    fi
  done
}
# What must not compile, and the words that say why.
refused() { # words, statements
  checked=$((checked + 1))
  if printf '#include <fovea/fovea.hpp>\n#include <vector>\nint main() { %s }\n' "$2" |
    g++ -std=c++17 -fsyntax-only -x c++ -I "$include" - 2>"$work/log" || ! grep -q "$1" "$work/log"; then
    echo "headers: fovea.hpp wanted to refuse '$2' with '$1'"
    cat "$work/log"
    failures=$((failures + 1))
  fi
}
refused "of a temporary container" 'fovea::tensor(std::vector<float>(4), {4});'
refused "of a temporary container" 'fovea::input(std::vector<float>(4), {4});'
for x in 'std::vector<float>' 'float*' 'fovea::Buffer<float>'; do
  refused "const memory: fovea::input views" "auto p = fovea::params<fovea_attention_forward_params>();
    const $x made{}; const auto& x = made; p.o = fovea::tensor(x, {4}, {1});"
done
refused "invalid conversion from" 'const void* x = nullptr; fovea::tensor(x, FOVEA_F32, {4});'
refused "dtype_of<double>" 'double x[4]; fovea::tensor(x, {4});'
refused "dtype_of<bool>" 'bool x[4]; fovea::tensor(x, {4});'
refused "Operation<int>" 'fovea::run(nullptr, 1);'
refused "use of deleted function" 'auto a = fovea::Context::host(); auto b = a;'
refused "use of deleted function" 'fovea::Buffer<float> a; auto b = a;'
tests=$(dirname "$0")/..
# g++ warns of fields that a designated initializer leaves out, which is what they are for.
hpp g++ -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wold-style-cast -Wno-missing-field-initializers
hpp clang++ -Weverything -Wno-c++98-compat -Wno-c++98-compat-pedantic
if command -v nvcc >/dev/null; then  # whose front end is neither gcc nor clang
  checked=$((checked + 1))
  if ! nvcc -x cu -std=c++17 -I "$include" -c "$tests/hpp/hpp.cpp" -o "$work/hpp.o" 2>"$work/log"; then
    echo "headers: tests/hpp fails with nvcc"
    cat "$work/log"
    failures=$((failures + 1))
  fi
fi
if have bindgen; then
  checked=$((checked + 1))
  declared=$(cat "$include"/fovea/*.h | grep -c '^FOVEA_API')
  if ! bindgen --no-layout-tests --allowlist-function 'fovea_.*' "$include/fovea/fovea.h" -- -I "$include" >"$work/fovea.rs" 2>"$work/log"; then
    echo "headers: bindgen fails"
    cat "$work/log"
    failures=$((failures + 1))
  else  # all on one line where there is no rustfmt
    found=$(grep -o 'pub fn fovea_' "$work/fovea.rs" | wc -l)
    if [ "$found" != "$declared" ]; then
      echo "headers: bindgen found $found functions, the headers declare $declared"
      failures=$((failures + 1))
    fi
  fi
fi
echo "headers: $checked checks, $failures failures"
[ $failures = 0 ]
