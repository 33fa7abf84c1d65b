#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a GPU, from a build folder made elsewhere (preset cuda) and copied here:
#   tests/gpu.sh build/cuda            conformance, capture, offsets, threads, Python with PyTorch
#   tests/gpu.sh build/cuda sanitize   compute-sanitizer memcheck, racecheck, initcheck on small cases
set -uo pipefail
build=$(cd "$1" && pwd)
mode=${2:-all}
cd "$(dirname "$0")/.."
export LD_LIBRARY_PATH=$build/lib FOVEA_LIBRARY=$build/lib/libfovea.so
failed=0
run() {
  local began=$SECONDS
  echo "=== $*"
  "$@" || { failed=$((failed + 1)); echo "FAILED: $*"; }
  echo "=== $((SECONDS - began)) s"
}
if [ "$mode" = all ]; then
  run "$build/tests/conformance" --gtest_brief=1 --gtest_filter='*cuda*'
  run "$build/tests/capture" --gtest_brief=1
  run "$build/tests/threads" --gtest_brief=1
  run "$build/tests/offsets" --gtest_brief=1
  run "$build/tests/contract" --gtest_brief=1
  run python3 -m pytest -q tests/python --ignore=tests/python/test_smollm.py
else
  for tool in memcheck racecheck initcheck; do
    run compute-sanitizer --tool $tool --error-exitcode 1 --kernel-name-exclude regex:none \
      "$build/tests/conformance" --gtest_brief=1 --gtest_filter='*cuda*small*'
  done
fi
echo "gpu: $failed failed"
exit $((failed > 0))
