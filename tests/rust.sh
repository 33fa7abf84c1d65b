#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The Rust crates, offline: their tests, each way to find the library, the programs of the README in
# an empty environment, documentation and packages without a library, and the example.
#   tests/rust.sh <build folder>      libraries from FOVEA_LIB_DIR, or the folder's lib
set -euo pipefail
build=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
root=$PWD
libraries=$(cd "${FOVEA_LIB_DIR:-$build/lib}" && pwd)
if ! command -v cargo >/dev/null; then
  echo "rust: cargo is missing" >&2
  exit 1
fi
fail() { echo "rust: $*" >&2; exit 1; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# Nothing of the caller's environment: this is how a user's shell looks.
bare() { # [NAME=value ...] command ...
  env -i PATH="$PATH" HOME="$HOME" CARGO_NET_OFFLINE=true CARGO_TARGET_DIR="$target" \
    CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0 "$@"
}
target=$build/rust

# ---- the crates' own tests: linked in, linked shared, opened
cd "$root/bindings/rust"
static=
[ ! -e "$libraries/libfovea.a" ] || static=,static
# Cargo 1.65 runs documentation tests without the path of linked libraries.
bare FOVEA_LIB_DIR="$libraries" LD_LIBRARY_PATH="$libraries" cargo test --quiet --features "half$static"
bare FOVEA_LIBRARY="$libraries/libfovea.so" cargo test --quiet --test context --test calls
bare FOVEA_LIBRARY="$libraries/libfovea.so" cargo test --quiet --features dlopen --test context --test missing

# ---- a prepared call costs the host no more than a plain one
bare FOVEA_LIBRARY="$libraries/libfovea.so" cargo run --quiet --example overhead >"$scratch/times"
awk -F'\t' '{ ns[$1] = $2 } END { exit !(NR == 3 && ns["rust prepared"] <= ns["rust"]) }' "$scratch/times" ||
  fail "a prepared call is slower: $(tr '\n\t' '; ' <"$scratch/times")"

# ---- the README's program outside the tree, beside a checkout that has been built
tree=$scratch/checkout target=$scratch/target
mkdir -p "$tree/build/release" "$tree/bindings/rust" "$scratch/user"
ln -s "$root/include" "$tree/"
cp -r "$root/bindings/rust/fovea" "$root/bindings/rust/fovea-sys" "$tree/bindings/rust/"
ln -s "$libraries" "$tree/build/release/lib"
cd "$scratch/user"
cargo init --quiet --vcs none --name user
bare cargo add --quiet fovea --path "$tree/bindings/rust/fovea"
sed -n '/^```rust$/,/^```$/p' "$root/bindings/rust/README.md" | sed -n '2,/^```$/p' | grep -v '^```' >src/main.rs
prints() { # what, command ...
  local what=$1
  shift
  "$@" >"$scratch/said" 2>&1 || { cat "$scratch/said" >&2; fail "$what does not run"; }
  grep -q '^o\[0\] = 0\.[12][0-9]* by attention_forward\.host' "$scratch/said" ||
    fail "$what printed $(cat "$scratch/said")"
}
prints "cargo run" bare cargo run --quiet
if [ -n "$static" ]; then
  prints "the program alone" bare "$target/debug/user"
  readelf -d "$target/debug/user" | grep -q 'NEEDED.*libfovea' && fail "libfovea.a lay there, and libfovea.so was linked"
fi
prints "cargo run with libfovea.so" bare FOVEA_LIBRARY="$libraries/libfovea.so" cargo run --quiet
readelf -d "$target/debug/user" | grep -q 'NEEDED.*libfovea.so.0' || fail "FOVEA_LIBRARY named libfovea.so, which was not linked"
prints "cargo run with dlopen" bare cargo run --quiet --features fovea/dlopen
prints "the program alone with dlopen" bare "$target/debug/user"
if bare FOVEA_LIBRARY=/nowhere/libfovea.so "$target/debug/user" >"$scratch/said" 2>&1; then
  fail "a missing FOVEA_LIBRARY is not noticed"
fi
grep -q 'Library("cannot open libfovea: /nowhere/libfovea.so: .*: set FOVEA_LIBRARY to its file")' "$scratch/said" ||
  fail "the missing library is told so: $(cat "$scratch/said")"

# ---- no library: the sentence names what was tried and what helps
refuses() { # wanted words, NAME=value ...
  local words=$1
  shift
  if bare "$@" cargo build --quiet >"$scratch/said" 2>&1; then fail "built with $*"; fi
  grep -q -- "$words" "$scratch/said" || { cat "$scratch/said" >&2; fail "$* is not refused with: $words"; }
  grep -q 'cmake --preset release' "$scratch/said" || fail "$*: no command that helps"
}
refuses 'FOVEA_LIBRARY is /nowhere.so: no such file' FOVEA_LIBRARY=/nowhere.so
refuses 'FOVEA_LIBRARY is lib/libfovea.so, wanted an absolute path' FOVEA_LIBRARY=lib/libfovea.so
refuses "FOVEA_LIBRARY is $libraries: a folder, wanted a file" FOVEA_LIBRARY="$libraries"
refuses 'FOVEA_LIB_DIR is /nowhere, which has no libfovea.a or libfovea.so' FOVEA_LIB_DIR=/nowhere
rm "$tree/build/release/lib"
if compgen -G '/usr/lib*/libfovea*' || compgen -G '/usr/lib/*/libfovea*' || compgen -G '/usr/local/lib*/libfovea*'; then
  echo "rust: a library is installed here: the build without one is not tried"
else
  refuses 'libfovea.a or libfovea.so was not found.  Tried:' PKG_CONFIG_LIBDIR=/nowhere
  for place in 'pkg-config fovea: ' "^ *$tree/lib\$" /usr/local/lib 'FOVEA_LIBRARY (a file)'; do
    grep -q -- "$place" "$scratch/said" || { cat "$scratch/said" >&2; fail "the sentence does not name $place"; }
  done
fi

# ---- half as Debian packages it
half=$(compgen -G '/usr/share/cargo/registry/half-[12]*' | tail -n 1 || true)
if [ -n "$half" ]; then
  mkdir -p "$scratch/half/src" "$scratch/half/tests"
  cp "$root/bindings/rust/fovea/tests/calls.rs" "$scratch/half/tests/"
  touch "$scratch/half/src/lib.rs"
  sed 's/"user"/"halves"/' "$scratch/user/Cargo.toml" >"$scratch/half/Cargo.toml"
  cat >>"$scratch/half/Cargo.toml" <<END
[features]
default = ["half"]
half = ["fovea/half", "dep:half"]
[dependencies.half]
version = "*"
optional = true
[patch.crates-io]
half = { path = "$half" }
END
  (cd "$scratch/half" && bare FOVEA_LIBRARY="$libraries/libfovea.so" cargo test --quiet --test calls halves >"$scratch/said" 2>&1) ||
    { cat "$scratch/said" >&2; fail "the crate half of $half"; }
  grep -q '1 passed' "$scratch/said" || fail "no test of $half ran"
else
  echo "rust: librust-half-dev is missing: only the stand-in for the crate half is tested"
fi

# ---- documentation and packages, without a library
target=$build/rust
cd "$root/bindings/rust"
bare DOCS_RS=1 RUSTDOCFLAGS="-D warnings" cargo doc --quiet --no-deps --features dlopen,half
package() { # crate, further arguments: builds what would be published
  bare cargo package --quiet --allow-dirty -p "$@" >"$scratch/said" 2>&1 || { cat "$scratch/said" >&2; fail "$1 does not package"; }
}
at_hand() { # crate, folder: into the registry that stands in for crates.io
  cp -r "$2" "$scratch/registry/$1"
  printf '{"files":{},"package":"%064d"}' 0 >"$scratch/registry/$1/.cargo-checksum.json"
}
mkdir "$scratch/registry"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' fovea/Cargo.toml)
package fovea-sys --features dlopen
at_hand fovea-sys "$target/package/fovea-sys-$version"
at_hand half standin/half
package fovea --features dlopen,half --config 'source.crates-io.replace-with="at-hand"' \
  --config "source.at-hand.directory='$scratch/registry'"
for file in README.md LICENSE Cargo.toml src/ops.rs src/x_ops.rs examples/overhead.rs; do
  [ -s "$target/package/fovea-$version/$file" ] || fail "the package of fovea lacks $file"
done

# ---- the example prints what C prints
cd "$root/examples/rust"
bare FOVEA_LIBRARY="$libraries/libfovea.so" cargo run --quiet --bin attend >"$build/attend.rust.txt"
cc -std=c99 -I"$root/include" "$root/examples/c/attend.c" -L"$libraries" -lfovea -o "$build/attend.c.out"
LD_LIBRARY_PATH=$libraries "$build/attend.c.out" >"$build/attend.c.txt"
cmp "$build/attend.c.txt" "$build/attend.rust.txt"
bare FOVEA_LIBRARY="$libraries/libfovea.so" cargo run --quiet --bin decode | grep -q "^50 steps by attention_forward"
