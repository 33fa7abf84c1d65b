"""Compiles the text of the gradient kernels for the CPU and runs it: deltakeys_emulate.cpp."""

import pathlib
import re
import subprocess
import sys

root = pathlib.Path(__file__).resolve().parents[2]
out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "/tmp/deltakeys")
out.mkdir(exist_ok=True)
text = (root / "src/cuda/tile/pipeline_sm90.cuh").read_text()
layout = re.search(r"struct SharedLayout .*?\n};\n", text, flags=re.S).group(0)
text = "namespace fovea::cuda::sm90 {\ntemplate <int N>\nstruct Pipeline {\n  static constexpr int bytes = N * 16;\n};\n"
text += layout + "}  // namespace fovea::cuda::sm90\n"
for name in ("key", "low"):
    kernel = (root / f"src/ops/delta/backward_{name}_tile_sm90.cuh").read_text()
    kernel = re.sub(r"#(include|pragma).*", "", kernel)
    text += re.sub(r"template <class Shape>\n__global__.*?\n}\n", "", kernel, flags=re.S)
(out / "emulated.h").write_text(text)
include = ["include", "src", "tests/models", "build/linb", "build/host"]
flags = [f"-I{root / path}" for path in include] + [f"-I{out}", "-I/usr/local/cuda/include"]
source = str(root / "tests/models/deltakeys_emulate.cpp")
command = ["g++", "-std=c++20", "-O2", "-w", "-fpermissive", *flags, source, "-o", str(out / "run")]
subprocess.run(command, check=True)
subprocess.run([str(out / "run")], check=True)
