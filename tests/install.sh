#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs a build into a fresh prefix and builds examples/c against it as a user would: CMake
# package and pkg-config, shared and static.  All must print the same rows.
#   tests/install.sh <build folder>
set -euo pipefail
build=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
prefix=$out/prefix
cmake --install "$build" --prefix "$prefix" >/dev/null
libdir=$(dirname "$(find "$prefix" -name libfovea.so | head -n 1)")

for static in OFF ON; do
  cmake -S examples/c -B "$out/cmake-$static" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" -DSTATIC_FOVEA=$static >/dev/null
  cmake --build "$out/cmake-$static" >/dev/null
  "$out/cmake-$static/attend" >"$out/cmake-$static.txt"
done

export PKG_CONFIG_PATH=$libdir/pkgconfig
# The prefix a package was configured for need not be where it was unpacked.
pc="pkg-config --define-variable=prefix=$prefix"
cc -std=c99 -pedantic -Wall -Wextra -Werror examples/c/attend.c $($pc --cflags --libs fovea) -o "$out/shared"
LD_LIBRARY_PATH=$libdir "$out/shared" >"$out/shared.txt"
cc -std=c99 examples/c/attend.c $($pc --cflags fovea) "$libdir/libfovea.a" \
  $($pc --static --libs-only-l --libs-only-L fovea | sed 's/-lfovea\b//') -o "$out/static"
"$out/static" >"$out/static.txt"
"$out/cmake-OFF/dlopen" "$libdir/libfovea.so" >"$out/dlopen.txt"

[ "$(wc -l <"$out/shared.txt")" = 16 ] || { echo "install: wanted 16 rows" >&2; cat "$out/shared.txt" >&2; exit 1; }
for other in cmake-OFF cmake-ON static dlopen; do
  cmp "$out/shared.txt" "$out/$other.txt"
done
if ldd "$out/cmake-ON/attend" | grep -q libfovea; then
  echo "install: the static example still loads libfovea.so" >&2
  exit 1
fi
echo "install: CMake package and pkg-config, shared, static and dlopen agree"
