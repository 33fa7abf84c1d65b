#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tests/headers/symbols.sh <libfovea.so> [--require]: what the library exports is the list in
# bindings/api.json, what it needs is the C and C++ run time, its stack is not executable, and
# abidiff sees no incompatible change since the releases in lib/abi.
set -uo pipefail
library=${1:?usage: tests/headers/symbols.sh <libfovea.so> [--require]}
require=${2:-}
root=$(cd "$(dirname "$0")/../.." && pwd)
failures=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
wrong() {
  echo "symbols: $*"
  failures=$((failures + 1))
}

[ -f "$library" ] || { echo "symbols: $library does not exist"; exit 1; }
# The version node (FOVEA_0) is an absolute symbol of its own: type A.
nm -D --defined-only "$library" | awk '$2 != "A" {sub(/@.*/, "", $3); print $3}' | sort >"$work/exported"
python3 - "$root/bindings/api.json" >"$work/declared" <<'PY'
import json, sys
print("\n".join(sorted(f["name"] for f in json.load(open(sys.argv[1]))["functions"])))
PY
LC_ALL=C sort -o "$work/exported" "$work/exported"
LC_ALL=C sort -o "$work/declared" "$work/declared"
[ -s "$work/declared" ] || wrong "bindings/api.json lists no function"
if ! diff "$work/declared" "$work/exported" >"$work/diff"; then
  wrong "exports differ from bindings/api.json (< declared, > exported)"
  cat "$work/diff"
fi

# Every undefined symbol carries the version of a run-time library; the unversioned ones are hooks
# that the compiler's start files leave weak.
foreign=$(nm -D --undefined-only "$library" | awk '{print $2}' |
  grep -v -E '@(GLIBC|GLIBCXX|CXXABI|GCC)_[0-9.]+$' |
  grep -v -E '^(__gmon_start__|_ITM_deregisterTMCloneTable|_ITM_registerTMCloneTable)$')
[ -z "$foreign" ] || wrong "undefined symbols from elsewhere:" $foreign
foreign=$(readelf -dW "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
  grep -v -E '^(libc|libm|libdl|libpthread|librt|libstdc\+\+|libgcc_s|ld-linux-[a-z0-9-]+)\.so\.[0-9]+$')
[ -z "$foreign" ] || wrong "needs other libraries:" $foreign
stack=$(readelf -lW "$library" | awk '$1 == "GNU_STACK" {print $7 $8}')
case $stack in
  RW*E*) wrong "the stack is executable" ;;
  RW*) ;;
  *) wrong "no GNU_STACK header: the stack would be executable" ;;
esac

if command -v abidiff >/dev/null 2>&1 && command -v abidw >/dev/null 2>&1; then
  # What is experimental may come and go.
  printf '[suppress_function]\nsymbol_name_regexp = ^fovea_x_\n' >"$work/experimental"
  abidiff "$library" "$library" >"$work/log" 2>&1 || wrong "abidiff cannot read the library: $(cat "$work/log")"
  # Appending to a params struct is a change (4) to abidiff; incompatible (8) and errors (1, 2) fail.
  # Fields are held to their places by tools/api.py --gate.
  for baseline in "$root"/lib/abi/*.abi; do
    [ -f "$baseline" ] || continue
    abidiff --suppressions "$work/experimental" "$baseline" "$library" >"$work/log" 2>&1
    if [ $(($? & 11)) != 0 ]; then
      wrong "the ABI of $(basename "$baseline" .abi) is broken"
      cat "$work/log"
    fi
  done
else
  echo "symbols: abidiff is not installed"
  [ "$require" = --require ] && failures=$((failures + 1))
fi
echo "symbols: $(wc -l <"$work/exported") exported, $failures failures"
[ $failures = 0 ]
