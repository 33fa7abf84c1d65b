#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Percentages of what the machine can do, of every kernel that a bench case launches, by Nsight
Compute.

    bench/counters.py [--filter REGEX]     # of `op/case`, see bench.py --list --backend cuda

Prints tab-separated rows: the case, the kernel, its microseconds under the profiler, and how busy
were the matrix cores, the exponential units, the issue slots, shared memory, L2 and device memory."""

import argparse
import csv
import pathlib
import re
import subprocess
import sys

BENCH = pathlib.Path(__file__).resolve().parent / "bench.py"
HEADLINES = (
    "forward/prefill_d(64|128|256)_(full|causal)_n(1k|16k)$|backward/prefill_d128_(full|causal)_n16k$"
    "|decode_b(1_n8k|64_n8k|16_n32k)(_page16)?$|e4m3$"
    "|kl_(forward|backward)/d128_causal_n16k$|conv_(forward|backward)_6x11_d128_causal_n4k$"
)
COLUMNS = {
    "us": "gpu__time_duration.sum",
    "matrix%": "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active",
    "exp%": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",
    "issue%": "sm__inst_issued.avg.pct_of_peak_sustained_active",
    "shared%": "l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_active",
    "l2%": "lts__t_sectors.avg.pct_of_peak_sustained_elapsed",
    "dram%": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
}


def kernels(regex):
    """[{metric: value, "name": kernel, "case": op/case}], in the order of their launches."""
    run = [sys.executable, BENCH, "--backend", "cuda", "--once", "--filter", regex]
    command = ["ncu", "--clock-control", "none", "--csv", "--print-units", "base", "--nvtx"]
    command += ["--kernel-name-base", "demangled", "-k", "regex:fovea"]
    command += ["--metrics", ",".join(COLUMNS.values()), *run]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode:
        sys.exit(f"ncu failed:\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    lines = [line for line in ran.stdout.splitlines() if line.startswith('"')]
    found = {}
    for row in csv.DictReader(lines):
        ranges = " ".join(text for name, text in row.items() if "Push" in name)
        case = re.search(r":(\w+/\w+):", ranges)
        if not case:  # what set the case up
            continue
        kernel = found.setdefault(row["ID"], {"name": row["Kernel Name"], "case": case[1]})
        kernel[row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
    return found.values()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--filter", default=HEADLINES, help="regular expression on `op/case`")
    print("\t".join(["case", "kernel", *COLUMNS]))
    for kernel in kernels(parser.parse_args().filter):
        name = re.sub(r"<unnamed>::|\(anonymous namespace\)::", "", kernel["name"])
        name = re.split(r"[<(]", name)[0].split("::")[-1]
        values = [kernel[metric] for metric in COLUMNS.values()]
        values[0] /= 1e3  # ns
        print("\t".join([kernel["case"], name, *(f"{x:.1f}" for x in values)]))


if __name__ == "__main__":
    main()
