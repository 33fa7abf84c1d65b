#!/bin/sh
# Runs the kernels of x_gla_backward with key gates, as they are in src/, on the CPU: a fibre a CUDA
# thread; TMA, wgmma, mma.sync, ldmatrix, mbarriers and shuffles are functions of shim/.
#   run.sh BUILD_FOLDER     makes BUILD_FOLDER/emu_run
#   emu_run FILTER [twice]  cases whose name or kernel has FILTER, by tests/harness/compare.h; twice:
#                           the same bits.  Of each output: rms error over rms value, then over that
#                           of the rounded oracle, then largest errors
#   SEED=n: other draws.  SCHED=n emu_run ...     warps by chance, some far ahead, instead of in turn
# Products end at once: what is wrong between commit and wait it does not see.
set -e
here=$(cd "$(dirname "$0")" && pwd); root=$here/../../..; out=$1; mkdir -p $out/gen; cd $out
rm -rf src; cp -r $root/src src
for f in tile/mma_sm90 tile/mma_sm80 tile/convert block/softmax; do rm src/cuda/$f.cuh; done; rm src/cuda/launch.h
sed -i 's/extern __shared__ __align__(1024)/extern/; s/extern __shared__/extern/; s/^  __shared__ /  static /' src/ops/gla/*.cu*
sed -i 's/static_cast<uint32_t>(__cvta_generic_to_shared(p))/static_cast<uint32_t>(static_cast<const unsigned char*>(p) - emu_shared())/; s/#include <cstdint>/#include <cstdint>\n#include "emu.h"\nnamespace fovea::cuda { inline unsigned char* emu_shared(); }/' src/cuda/tile/layout.cuh
cp $root/src/cuda/tile/mma_sm80.cuh src/real80.cuh; cp $root/src/cuda/tile/mma_sm90.cuh src/real90.cuh
python3 $root/tools/api.py --tests gen/generated
g++ -std=c++20 -O2 -g1 -ffp-contract=off -w -DFOVEA_WITH_CUDA=1 -I$here/shim -I$here -Isrc -I$root/include -c $here/emu.cpp -o emu.o
for f in tests/models/glakeys/drive.cpp src/ops/gla/plan.cpp src/core/status.cpp src/core/contract.cpp tests/cases/all.cpp tests/cases/table.cpp tests/contract.cpp tests/contract_call.cpp tests/cases/gla.cpp; do
  g++ -std=c++20 -O2 -w -DFOVEA_BUILDING -DFOVEA_WITH_CUDA=1 -I$root/include -I$root/src -I$root/tests -Igen -c $root/$f -o obj_$(echo $f | tr / _).o
done
g++ -o emu_run emu.o obj_*.o -static -no-pie -Wl,--unresolved-symbols=ignore-all -lgtest -lpthread
