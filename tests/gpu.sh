#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a GPU, from a build folder made elsewhere (preset cuda) and copied here:
#   tests/gpu.sh build/cuda            conformance, capture, offsets, threads, Python with PyTorch,
#                                      then a million random calls (FOVEA_RANDOM_CALLS)
#   tests/gpu.sh build/cuda sanitize   compute-sanitizer over one case of each kernel and random calls
#                                      of each operation: memcheck, racecheck, initcheck, synccheck,
#                                      but for what tests/sanitize.txt leaves out
#                                      (FOVEA_SANITIZE_ALL=1: nothing)
# Programs run side by side, the long ones in shards, and each is told of as it ends, or when it has
# run for FOVEA_GPU_LIMIT seconds (900), with the case that it was in; FOVEA_GPU_LOGS keeps logs.
set -uo pipefail
mode=${2:-all}
if [ $# = 0 ] || [[ ! $mode =~ ^(all|sanitize)$ ]]; then
  echo "usage: tests/gpu.sh BUILD [all|sanitize], BUILD made by cmake --workflow --preset cuda" >&2
  exit 2
fi
build=$(realpath "$1")
cd "$(dirname "$0")/.."
export LD_LIBRARY_PATH=$build/lib FOVEA_LIBRARY=$build/lib/libfovea.so
export PATH=$PATH:/usr/local/cuda/bin
# What this machine lacks is said at once, not by the last program to start.
missing=0
need() {  # what for, command that succeeds where it is there
  local what=$1
  shift
  "$@" >/dev/null 2>&1 || { echo "gpu: needs $what" >&2; missing=1; }
}
programs="conformance random_calls"
[ $mode = all ] && programs="$programs capture threads offsets contract faults caller"
need "a GPU and its driver (nvidia-smi)" nvidia-smi
need "$FOVEA_LIBRARY" test -e "$FOVEA_LIBRARY"
for program in $programs; do
  need "$build/tests/$program" test -x "$build/tests/$program"
done
if [ $mode = sanitize ]; then
  need "compute-sanitizer, a part of the CUDA toolkit" compute-sanitizer --version
else
  need "PyTorch for CUDA" python3 -c 'import torch; assert torch.cuda.is_available()'
  need "pip install -r tests/python/requirements.txt" \
    python3 -c 'import hypothesis, ml_dtypes, numpy, pytest'
fi
[ $missing = 0 ] || exit 2
logs=${FOVEA_GPU_LOGS:-$(mktemp -d)}
mkdir -p "$logs"
limit=${FOVEA_GPU_LIMIT:-900}
names=() pids=()
report() {  # name, exit status
  echo "--- $1: exit $2, $(tail -1 "$logs/$1")"
  if [ "$2" = 0 ]; then
    grep -E 'suites? ran|[0-9] passed|SUMMARY|unsupported: [0-9]|calls drawn' "$logs/$1"
  elif [ "$2" = 137 ]; then
    echo "killed after $limit s in $(grep -aE '^\[ RUN|::' "$logs/$1" | tail -1)"
  else
    grep -vE 'PASSED|^\[ +(OK|RUN)|^\[-+\]|^=+ *$|Host Frame|host backtrace' "$logs/$1" | head -40
  fi
}
start() {  # name, command
  local name=$1
  shift
  {
    local began=$SECONDS rc
    timeout -s KILL "$limit" "$@" >"$logs/$name" 2>&1
    rc=$?
    grep -q '^\[==========\] 0 tests' "$logs/$name" && rc=9  # nothing is no pass
    echo "=== $((SECONDS - began)) s" >>"$logs/$name"
    flock "$logs" bash -c "$(declare -f report); logs=$logs limit=$limit; report $name $rc"
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
  sharded conformance 10 "$build/tests/conformance" --gtest_filter='*cuda*'
  sharded capture 2 "$build/tests/capture"
  start threads "$build/tests/threads"
  start offsets "$build/tests/offsets"
  start contract "$build/tests/contract"
  start faults "$build/tests/faults"
  start caller "$build/tests/caller"
  start python python3 -m pytest -v -m 'not model' tests/python --ignore=tests/python/test_smollm.py \
    --ignore=tests/python/test_smollm_linear.py \
    --ignore=tests/python/test_distill.py --ignore=tests/python/test_trace_files.py \
    --ignore=tests/python/test_long_context.py --ignore=tests/python/test_linear.py \
    --ignore=tests/python/fovea_torch --ignore=tests/python/hf
  for part in fovea_torch hf; do
    start "python-$part" python3 -m pytest -v "tests/python/$part"
  done
else
  for row in racecheck,8 memcheck,3 initcheck,3 synccheck,3; do
    tool=${row%,*} left_out=()
    while read -r of kernel _; do
      [ "$of" = "$tool" ] && left_out+=(--kernel-name-exclude "kns=$kernel")
    done < <([ "${FOVEA_SANITIZE_ALL:-0}" = 1 ] || grep -v '^#' tests/sanitize.txt)
    sharded $tool ${row#*,} compute-sanitizer --tool $tool --error-exitcode 1 "${left_out[@]}" \
      "$build/tests/conformance" --one-a-kernel --gtest_filter='*/cuda.*'
    # Under racecheck a call takes a second, ten times the others' time.
    calls=600 parts=1
    [ $tool = racecheck ] && calls=40 parts=8
    for ((i = 0; i < parts; ++i)); do
      start $tool-random-$i env FOVEA_RANDOM_EXACT=1 FOVEA_RANDOM_THREADS=1 \
        FOVEA_RANDOM_CALLS=${FOVEA_RANDOM_CALLS:-$calls} FOVEA_RANDOM_FIRST=$((1 + i * 1000000)) \
        compute-sanitizer --tool $tool --error-exitcode 1 "${left_out[@]}" \
        "$build/tests/random_calls" --gtest_filter='*cuda'
    done
  done
fi
while sleep 20 >/dev/null 2>&1; do
  echo "... $SECONDS s, $(cat "$logs"/* | grep -cE '^\[ *OK \]|PASSED') cases done"
done &
ticker=$!
failed=0
finish() {
  for pid in "${pids[@]}"; do
    wait "$pid" || failed=$((failed + 1))
  done
  pids=()
}
finish
if [ "$mode" = all ]; then
  # Alone: its threads fill the GPU and the cores.
  start random env FOVEA_RANDOM_CALLS=${FOVEA_RANDOM_CALLS:-1000000} \
    FOVEA_RANDOM_THREADS=$(nproc) "$build/tests/random_calls" --gtest_filter='*cuda'
  finish
fi
kill $ticker
echo "gpu: ${#names[@]} runs, $failed failed, $SECONDS s"
exit $((failed > 0))
