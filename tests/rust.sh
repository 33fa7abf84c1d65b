#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The Rust crates, offline, in each way they can find the library, and the example.
#   tests/rust.sh <build folder>      libraries from FOVEA_LIB_DIR, or the folder's lib
set -euo pipefail
build=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
root=$PWD
libraries=${FOVEA_LIB_DIR:-$build/lib}
export FOVEA_LIB_DIR=$libraries LD_LIBRARY_PATH=$libraries CARGO_TARGET_DIR=$build/rust CARGO_NET_OFFLINE=true
if ! command -v cargo >/dev/null; then
  echo "rust: cargo is missing" >&2
  exit 1
fi
cd "$root/bindings/rust"
cargo test --offline --quiet
cargo test --offline --quiet --features dlopen
cargo test --offline --quiet --features static
cd "$root/examples/rust"
cargo run --offline --quiet --bin attend >"$build/attend.rust.txt"
cc -std=c99 -I"$root/include" "$root/examples/c/attend.c" -L"$libraries" -lfovea -o "$build/attend.c.out"
"$build/attend.c.out" >"$build/attend.c.txt"
cmp "$build/attend.c.txt" "$build/attend.rust.txt"
