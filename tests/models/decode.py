#!/usr/bin/env python3
"""Runs recur_steps_simt on the CPU, thread by thread, and holds its bits to recur_forward_simt's.

decode/model.cpp is compiled with the kernels' own headers.  Threads are fibers: barriers, shuffles
and cp.async are emulated, so order of sums, barriers and turns of items are those of the kernel.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

here = pathlib.Path(__file__).resolve().parent
root = here.parent.parent


def main():
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder)
        for name in ("recur.cuh", "recur_forward.cuh", "recur_steps.cuh", "recur.cu"):
            text = (root / "src/cuda/loop" / name).read_text()
            text = re.sub(r'asm volatile\("prefetch[^;]*;[^;]*;', ";", text)
            to = out / "cuda/loop" / name
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_text(text)
        command = ["g++", "-std=c++20", "-O2", "-g", "-mfma", "-ffp-contract=off", "-w"]
        command += [f"-I{out}", f"-I{here}/decode", f"-I{root}/src", f"-I{root}/include"]
        command += [f"-I{root}/build/linb", "-I/usr/local/cuda/include"]
        command += ["-Wl,--unresolved-symbols=ignore-all", f"{here}/decode/model.cpp", "-o", f"{out}/model"]
        subprocess.run(command, check=True)
        return subprocess.run([f"{out}/model", *sys.argv[1:]]).returncode


if __name__ == "__main__":
    sys.exit(main())
