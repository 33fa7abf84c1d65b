#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a GPU, from a build folder made elsewhere (preset cuda) and copied here:
#   tests/gpu.sh build/cuda            conformance, capture, offsets, threads, Python with PyTorch
#   tests/gpu.sh build/cuda sanitize   compute-sanitizer memcheck, racecheck, initcheck on small cases
# Programs run side by side, the long ones in shards, and each is told of as it ends; FOVEA_GPU_LOGS
# keeps their logs.
set -uo pipefail
build=$(cd "$1" && pwd)
mode=${2:-all}
cd "$(dirname "$0")/.."
export LD_LIBRARY_PATH=$build/lib FOVEA_LIBRARY=$build/lib/libfovea.so
logs=${FOVEA_GPU_LOGS:-$(mktemp -d)}
mkdir -p "$logs"
names=() pids=()
report() {  # name, exit status
  echo "--- $1: exit $2, $(tail -1 "$logs/$1")"
  if [ "$2" = 0 ]; then
    grep -E 'suites? ran|passed|SUMMARY|unsupported: [0-9]' "$logs/$1"
  else
    grep -vE '^\[ +(OK|RUN)|^=+$' "$logs/$1" | head -40
  fi
}
start() {  # name, command
  local name=$1
  shift
  {
    local began=$SECONDS rc
    "$@" >"$logs/$name" 2>&1
    rc=$?
    echo "=== $((SECONDS - began)) s" >>"$logs/$name"
    flock "$logs" bash -c "$(declare -f report); logs=$logs; report $name $rc"
    exit $rc
  } &
  names+=("$name") pids+=($!)
}
sharded() {  # name, shards, command
  local name=$1 shards=$2
  shift 2
  for ((i = 0; i < shards; ++i)); do
    start "$name-$i" env GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i "$@"
  done
}
if [ "$mode" = all ]; then
  sharded conformance 10 "$build/tests/conformance" --gtest_brief=1 --gtest_filter='*cuda*'
  sharded capture 2 "$build/tests/capture" --gtest_brief=1
  start threads "$build/tests/threads" --gtest_brief=1
  start offsets "$build/tests/offsets" --gtest_brief=1
  start contract "$build/tests/contract" --gtest_brief=1
  start python python3 -m pytest -q tests/python --ignore=tests/python/test_smollm.py \
    --ignore=tests/python/test_distill.py \
    --ignore=tests/python/test_trace_files.py
else
  for tool in memcheck racecheck initcheck; do
    sharded $tool 4 compute-sanitizer --tool $tool --error-exitcode 1 \
      "$build/tests/conformance" --gtest_brief=1 --gtest_filter='*cuda*small*:*cuda*tuned*'
  done
fi
failed=0
for pid in "${pids[@]}"; do
  wait "$pid" || failed=$((failed + 1))
done
echo "gpu: ${#names[@]} runs, $failed failed, $SECONDS s"
exit $((failed > 0))
