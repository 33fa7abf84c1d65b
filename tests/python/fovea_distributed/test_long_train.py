# SPDX-License-Identifier: Apache-2.0
"""examples/python/long_train.py: two processes take the steps of one, and write what it writes."""

import pathlib
import re
import subprocess
import sys

PROGRAM = pathlib.Path(__file__).resolve().parents[3] / "examples/python/long_train.py"


def run(*arguments):
    command = [sys.executable, str(PROGRAM), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_two_processes_are_as_one():
    done = run("--tokens", "512", "--steps", "3", "--prompt", "64", "--write", "4")
    assert done.returncode == 0, done.stderr
    losses = [float(x) for x in re.findall(r"loss (\S+) by one process", done.stdout)]
    assert len(losses) == 3 and losses[-1] < losses[0]
    off = re.search(r"^largest difference (\S+) nats$", done.stdout, re.M)
    assert float(off[1]) < 1e-5
    assert re.search(r"^tokens/s: \d+ by one process, \d+ by 2; MiB a rank: \[\d+, \d+\]$",
                     done.stdout, re.M)  # fmt: skip


def test_tokens_that_do_not_divide_are_refused():
    done = run("--tokens", "510")
    assert done.returncode == 2
    assert "--tokens is 510, wanted a multiple of 4 for 2 ranks" in done.stderr
