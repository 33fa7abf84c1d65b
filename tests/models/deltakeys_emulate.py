"""Compiles the text of the gradient kernels for the CPU and runs it: deltakeys_emulate.cpp."""

import pathlib
import re
import subprocess
import sys

root = pathlib.Path(__file__).resolve().parents[2]
out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "/tmp/deltakeys")
out.mkdir(exist_ok=True)
def read(name):
    return re.sub(r"#(include|pragma).*", "", (root / "src" / name).read_text())


def part(name, begin, end):
    text = read(name)
    at = text.index(begin)
    return text[at : text.index(end, at)]


text = "namespace fovea::cuda::sm90 {\n"
text += part("cuda/tile/mma_sm90.cuh", "template <int N>\nstruct PipelineState", "// ---- TMA")
text += part("cuda/tile/pipeline_sm90.cuh", "__device__ inline void barrier_arrive_warp", "}  // namespace")
text += "}  // namespace fovea::cuda::sm90\nnamespace fovea::cuda {\n"
text += part("cuda/loop/chain_sm90.cuh", "template <int D>\nstruct ChainState", "// d += A V of a chunk")
text += part("ops/delta/forward_sm90.cuh", "template <int Dtype, int N>\n__device__ __forceinline__ void pack_rows", "// d += A B', A packed")
text += part("cuda/loop/chain_sm90.cuh", "template <int Dtype>\n__device__ __forceinline__ void load_values", "// The scores of a chunk")
entry = "template <class Shape>\n__global__"
text += part("ops/delta/forward_sm90.cuh", "template <DeltaConfig90 C>\nstruct DeltaShape90", "// Sums as the A operand")
text += part("ops/delta/forward_sm90.cuh", "template <class Shape>\nclass DeltaBlock90", entry)
chain = "template <class States, class Reverse>"
text += part("ops/delta/backward_chain_sm90.cuh", "template <DeltaConfig90 C>\nstruct DeltaStatesShape90", chain)
text += part("ops/delta/backward_low_chain_sm90.cuh", "template <int D_", chain)
text += "}  // namespace fovea::cuda\n"
for name in ("key", "low"):
    kernel = read(f"ops/delta/backward_{name}_tile_sm90.cuh")
    text += re.sub(r"template <class Shape>\n__global__.*?\n}\n", "", kernel, flags=re.S)
(out / "emulated.h").write_text(text)
include = ["include", "src", "tests/models", "build/linb", "build/host"]
flags = [f"-I{root / path}" for path in include] + [f"-I{out}", "-I/usr/local/cuda/include"]
source = str(root / "tests/models/deltakeys_emulate.cpp")
command = ["g++", "-std=c++20", "-O2", "-w", "-fpermissive", *flags, source, "-o", str(out / "run")]
subprocess.run(command, check=True)
subprocess.run([str(out / "run")], check=True)
