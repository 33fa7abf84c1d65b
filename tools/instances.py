#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the compiler made of the tuned Hopper kernels, and whether it may stand.

    tools/instances.py NVCC ARGUMENT...      the launcher of their compilations (instances.cmake):
        fails where ptxas serialises wgmma or ignores setmaxnreg, and where a kernel spills; writes
        <object>.tsv beside the object.  With --Ofast-compile it only compiles.
    tools/instances.py --report BUILD        all of these as one table: kernel, registers at entry,
        spilled bytes, seconds of its file"""

import pathlib
import re
import subprocess
import sys
import time

# C7508: setmaxnreg ignored.  C7510 to C7518, C7520: products wait for one another.
FAULT = re.compile(r"\(C75(08|1[0-8]|20)\)")
ENTRY = re.compile(r"Compiling entry function '(\w+)'")
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")
# Bytes that a kernel may spill, until it is mended: conv_attention's widest taps at width 128.
SPILLED = {
    f"conv_gradient_sm90<ConvGradient90<ConvGradientConfig90{{{dtype}, {taps}}}> >": 8
    for dtype in (2, 3)
    for taps in ("128, 128, (ConvLines)0, 6, 3, 5",)
} | {"gla_forward_sm90_kernel<GlaShape90<2, 128, 1, 4, 4> >": 28}
COLUMNS = "kernel registers spilled_bytes file_seconds".split()


def demangle(name):
    try:
        done = subprocess.run(["c++filt", name], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return name
    name = re.sub(r"\(\w+\)(\d)|fovea::cuda::", r"\1", done.stdout.strip())
    return re.sub(r"^void ", "", name.split(">(")[0]) + ">" * (">(" in name)


def compile_one(command):
    optimised = not any(word.startswith("--Ofast-compile") for word in command)
    begun = time.monotonic()
    done = subprocess.run(
        command + ["-Xptxas=-v"] * optimised,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    seconds = time.monotonic() - begun
    rows, wrong = [], []
    for line in done.stdout.splitlines():
        if FAULT.search(line):
            wrong += [line] * optimised
        elif entry := ENTRY.search(line):
            rows.append([demangle(entry[1]), "0", "0", f"{seconds:.1f}"])
        elif rows and (found := SPILLS.search(line)):
            rows[-1][2] = found[1]
        elif rows and (found := REGISTERS.search(line)):
            rows[-1][1] = found[1]
        elif "ptxas info" not in line and line.strip():
            print(line, file=sys.stderr)
    wrong += [
        f"{row[0]}: spills {row[2]} bytes" for row in rows if int(row[2]) > SPILLED.get(row[0], 0)
    ]
    for line in wrong:
        print(f"error: {line}", file=sys.stderr)
    target = pathlib.Path(command[command.index("-o") + 1])
    if wrong:
        target.unlink(missing_ok=True)
    elif done.returncode == 0 and optimised:
        target.with_suffix(".tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    return done.returncode or (1 if wrong else 0)


def main():
    if sys.argv[1:2] == ["--report"]:
        found = pathlib.Path(sys.argv[2]).rglob("instances/*.cu.tsv")
        lines = [line for path in sorted(found) for line in path.read_text().splitlines()]
        return print("\n".join(["\t".join(COLUMNS), *lines]))
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    command = sys.argv[1:]
    if "-o" in command and any(x in command for x in ("-c", "-dc")):
        sys.exit(compile_one(command))
    sys.exit(subprocess.run(command).returncode)


if __name__ == "__main__":
    main()
