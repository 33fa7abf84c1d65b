#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# fovea as a part of another CMake project, a C one without a build type: by add_subdirectory and by
# FetchContent of a git repository.  One family of operations on the host is compiled, once.
#   tests/consume/run.sh <build folder>      FOVEA_LIB_DIR or its lib: the library to compare with
set -euo pipefail
build=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."
root=$PWD
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
fail() { echo "consume: $*" >&2; exit 1; }
quiet() { "$@" >"$out/log" 2>&1 || { cat "$out/log" >&2; fail "failed: $*"; }; }
libraries=${FOVEA_LIB_DIR:-$build/lib}
unset FOVEA_LIBRARY FOVEA_LIB_DIR LD_LIBRARY_PATH

cc -std=c99 -Iinclude examples/c/attend.c -L"$libraries" -lfovea -Wl,-rpath,"$libraries" -o "$out/attend"
"$out/attend" >"$out/wanted" 2>"$out/log"

# The tree as it is here, as a repository of its own.
tree=$out/fovea
mkdir "$tree"
cp -R CMakeLists.txt LICENSE include src lib "$tree"
rm -f "$tree"/lib/libfovea* "$tree"/lib/fovea.pc
git() { command git -C "$tree" -c user.name=consume -c user.email=consume@localhost -c core.autocrlf=false "$@"; }
git init -q . && git add -A && git commit -qm "the tree as it is"
commit=$(git rev-parse HEAD)

common=(-G Ninja -DFOVEA_FAMILIES=attention -DFOVEA_EXAMPLE="$root/examples/c/attend.c")
if command -v ccache >/dev/null; then
  common+=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  export CCACHE_BASEDIR=$out CCACHE_NOHASHDIR=1
fi
project=$root/tests/consume/parent

# ---- FetchContent, built and run
quiet cmake -S "$project" -B "$out/fetch" "${common[@]}" -DFETCH="file://$tree" -DFETCH_TAG="$commit"
quiet cmake --build "$out/fetch"
for target in with_fovea with_fovea_static; do
  "$out/fetch/$target" 2>"$out/log" | cmp - "$out/wanted" || fail "$target prints other rows"
done
! ldd "$out/fetch/with_fovea_static" | grep libfovea || fail "the static program loads libfovea.so"
commands=$(ninja -C "$out/fetch" -t commands with_fovea)
grep 'forward_host.cpp' <<<"$commands" | grep -q -- '-O3' || fail "fovea is not optimised"
! grep 'attend.c.o -c' <<<"$commands" | grep -qE -- '-O[0-9]|-fvisibility|-std=c99' || fail "the parent's own flags changed"
quiet cmake --install "$out/fetch" --prefix "$out/prefix"
[ "$(cd "$out/prefix" && find . -type f)" = ./bin/with_fovea ] || fail "installed with the parent: $(find "$out/prefix" -type f)"
(cd "$out/fetch" && ctest -N) | grep -q 'Total Tests: 0' || fail "the parent has fovea's tests"

# ---- add_subdirectory: the same project, configured, and with FOVEA_INSTALL
quiet cmake -S "$project" -B "$out/add" "${common[@]}" -DFOVEA="$tree" -DFOVEA_INSTALL=ON -DCMAKE_BUILD_TYPE=Debug
commands=$(ninja -C "$out/add" -t commands with_fovea)
! grep 'forward_host.cpp' <<<"$commands" | grep -q -- ' -O3 -DNDEBUG' || fail "the parent's build type is not fovea's"
grep -q 'pkgconfig/fovea.pc' "$out/add/fovea/cmake_install.cmake" || fail "FOVEA_INSTALL installs nothing"
echo "consume: FetchContent and add_subdirectory leave the parent as it was"
