#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs a build, moves the prefix, and builds examples/c against it as a user would: CMake package
# and pkg-config, shared and static.  All must print the same rows.  Then: the installed program, a
# libdir of two levels, the pkg-config file of the build tree, the components of the CMake package
# without a CUDA toolkit.
#   tests/install.sh <build folder>
set -euo pipefail
build=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
libraries=${FOVEA_LIB_DIR:-$build/lib}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
fail() { echo "install: $*" >&2; exit 1; }
quiet() { "$@" >"$out/log" 2>&1 || { cat "$out/log" >&2; fail "failed: $*"; }; }
unset PKG_CONFIG_PATH LD_LIBRARY_PATH CMAKE_PREFIX_PATH

# Not the prefix that was configured, and not the one that was installed to.
cmake --install "$build" --prefix "$out/first" >/dev/null
mv "$out/first" "$out/prefix"
prefix=$out/prefix
libdir=$(dirname "$(find "$prefix" -name libfovea.so | head -n 1)")
! grep -rIl -e "$out/first" "$prefix" || fail "these files hold the old prefix"

# ---- the program finds the library of its own prefix, and needs no environment
info() { env -i "$prefix/bin/fovea_info" "$@"; }
path=$(info | sed -n 's/^library *[0-9.]*, //p')
[ "$path" = "$(realpath "$libdir/libfovea.so")" ] || fail "fovea_info has the library '$path', wanted that of $libdir"
info attention_forward b=1 s=4 t=4 h=2 g=2 d=8 --host | grep -q '^kernel *attention_forward\.host\.' || fail "fovea_info plans no call"

for static in OFF ON; do
  quiet cmake -S examples/c -B "$out/cmake-$static" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" -DSTATIC_FOVEA=$static
  quiet cmake --build "$out/cmake-$static"
  "$out/cmake-$static/attend" >"$out/cmake-$static.txt"
done

# ---- pkg-config, with nothing but its path
with_pkg_config() { # folder of fovea.pc, program
  PKG_CONFIG_PATH=$1 pkg-config --exists --print-errors fovea || fail "$1 is no place of fovea.pc"
  # shellcheck disable=SC2046
  cc -std=c99 -pedantic -Wall -Wextra -Werror examples/c/attend.c $(PKG_CONFIG_PATH=$1 pkg-config --cflags --libs fovea) -o "$2"
  LD_LIBRARY_PATH=$(PKG_CONFIG_PATH=$1 pkg-config --variable=libdir fovea) "$2" >"$2.txt"
}
with_pkg_config "$libdir/pkgconfig" "$out/shared"
with_pkg_config "$libraries" "$out/uninstalled"
export PKG_CONFIG_PATH=$libdir/pkgconfig
# shellcheck disable=SC2046
cc -std=c99 examples/c/attend.c $(pkg-config --cflags fovea) "$libdir/libfovea.a" \
  $(pkg-config --static --libs-only-l --libs-only-L fovea | sed 's/-lfovea\b//') -o "$out/static"
"$out/static" >"$out/static.txt"
unset PKG_CONFIG_PATH
"$out/cmake-OFF/dlopen" "$libdir/libfovea.so" >"$out/dlopen.txt"

[ "$(wc -l <"$out/shared.txt")" = 16 ] || { cat "$out/shared.txt" >&2; fail "wanted 16 rows"; }

# ---- a libdir of two levels, as Debian's, and moved
mkdir -p "$out/multi/lib"
cp -P "$libraries"/libfovea* "$out/multi/lib"
quiet cmake -S . -B "$out/multi" -DFOVEA_CUDA=OFF -DFOVEA_INFO=OFF -DFOVEA_TESTS=OFF -DFOVEA_BENCH=OFF \
  -DCMAKE_INSTALL_LIBDIR=lib/x86_64-linux-gnu -DCMAKE_INSTALL_INCLUDEDIR=include/of/fovea
quiet cmake --install "$out/multi" --prefix "$out/second"
mv "$out/second" "$out/third"
with_pkg_config "$out/third/lib/x86_64-linux-gnu/pkgconfig" "$out/multiarch"
quiet cmake -S examples/c -B "$out/cmake-multi" -G Ninja -DCMAKE_PREFIX_PATH="$out/third"
quiet cmake --build "$out/cmake-multi"
"$out/cmake-multi/attend" >"$out/cmake-multi.txt"

for other in cmake-OFF cmake-ON cmake-multi uninstalled multiarch static dlopen; do
  cmp "$out/shared.txt" "$out/$other.txt"
done
! ldd "$out/cmake-ON/attend" | grep libfovea || fail "the static example still loads libfovea.so"

# ---- the CMake package of a CUDA build, where no CUDA toolkit is
config=$libdir/cmake/fovea/foveaConfig.cmake
sed -i 's/if(OFF/if(ON/' "$config" # a host build says OFF, and is made to say ON
grep -q 'find_package(CUDAToolkit QUIET)' "$config" || fail "foveaConfig.cmake does not look for CUDA"
package() { # wanted components, a line that is wanted...
  local wanted=$1 line
  shift
  quiet cmake -S tests/consume/package -B "$out/package" -G Ninja --fresh -DWANTED="$wanted" \
    -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON
  cp "$out/log" "$out/package.txt"
  for line in "$@"; do
    grep -q -- "$line" "$out/package.txt" || { cat "$out/package.txt" >&2; fail "components '$wanted': wanted '$line'"; }
  done
}
package "" "has fovea$" "found 1 shared TRUE static FALSE"
quiet cmake --build "$out/package"
"$out/package/with_fovea" | cmp - "$out/shared.txt"
package shared "has fovea$" "found 1 shared TRUE static FALSE"
package static "found 0" "component static: the static library was built with CUDA and needs cudart_static"
package "shared;fortran" "found 0" "component fortran: fovea has the components shared and static"
rm "$libdir/cmake/fovea/foveaStatic.cmake"
package static "found 0" "component static: this fovea was built without its static library"
echo "install: moved prefixes, CMake package and pkg-config, shared, static and dlopen agree"
