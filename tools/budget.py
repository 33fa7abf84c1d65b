#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a build costs in CPU seconds, and whether that may stand.

    tools/budget.py --run COMMAND ARGUMENT...   the launcher of every compilation where cmake got
        -DFOVEA_TIMES=ON: writes <object>.seconds beside the object
    tools/budget.py BUILD                       holds the objects of that folder to the bars below;
        names the ten slowest files where they do not

CPU seconds, because other programs do not lengthen them as much as seconds of the clock.  They do by
half, where two threads share a core, so the bars are seconds of a known machine: each minute of the
build compiles a small program too.  What that takes on average beside REFERENCE is the factor of the
bars.  It is measured within the build, because a core that other programs share for an hour may be
idle right after it.  An object that ccache had costs nothing and tells nothing: where more than one
in a hundred is such, the sums are not judged, and the output says so."""

import json
import os
import pathlib
import resource
import shlex
import subprocess
import sys
import tempfile
import time

# 1,450 of 28 operations; 13 of the sparse wave, at most 400 a family; 300 of linear attention; 300 of
# wide heads; 300 of quantised attention.
ALL = 3800  # about 3,400 are used, added up from two builds
FAST = 2300  # with FOVEA_FAST_COMPILE; 1,890 are used
TESTS = 340  # 4 to 5 an operation, of which there are 76; 305 are used
FILE = 25  # tuned instances are exempt: a file of theirs holds one width of one dtype
CACHED = "cached"
REFERENCE = 2.65  # CPU seconds of PROGRAM where the bars were measured
SAMPLES = "reference.seconds"  # in the build folder: CPU seconds of PROGRAM, a line each
EVERY = 60  # seconds from one of them to the next
PROGRAM = """#include <regex>
#include <string>
#include <unordered_map>
int f(const char* x) {
  std::unordered_map<std::string, int> m;
  return std::regex_match(x, std::regex("a+(b|c)*d")) + m[x];
}
"""


def children():
    """CPU seconds of the processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def sample():
    """Compiles PROGRAM, if that was last done a while ago, and keeps what it took."""
    kept = pathlib.Path(SAMPLES)
    if kept.exists() and time.time() - kept.stat().st_mtime < EVERY:
        return
    kept.touch()
    with tempfile.NamedTemporaryFile("w", suffix=".cpp") as source:
        source.write(PROGRAM)
        source.flush()
        before = children()
        command = ["c++", "-std=c++20", "-O2", "-c", source.name, "-o", os.devnull]
        if subprocess.run(command).returncode == 0:
            with kept.open("a") as to:
                to.write(f"{children() - before:.2f}\n")


def run(command):
    """Runs a compilation in the build folder; returns its exit status."""
    kept = pathlib.Path(tempfile.gettempdir(), f"fovea_ccache_{os.getpid()}")
    status = subprocess.run(command, env={**os.environ, "CCACHE_STATSLOG": str(kept)}).returncode
    hit = kept.exists() and "cache_hit" in kept.read_text()
    kept.unlink(missing_ok=True)
    if status == 0 and "-o" in command and "-c" in command:
        seconds = CACHED if hit else f"{children():.2f}"
        pathlib.Path(command[command.index("-o") + 1] + ".seconds").write_text(seconds + "\n")
        sample()
    return status


def objects(build):
    """The objects that a build knows of, relative to its folder."""
    for row in json.loads((build / "compile_commands.json").read_text()):
        words = shlex.split(row["command"])
        yield os.path.relpath(pathlib.Path(row["directory"], words[words.index("-o") + 1]), build)


def read(build, name):
    """Seconds of an object, CACHED, or None where nothing was written since it was compiled."""
    compiled = build / name
    record = build / (name + ".seconds")
    if not record.exists() or record.stat().st_mtime < compiled.stat().st_mtime:
        return None
    text = record.read_text().strip()
    return text if text == CACHED else float(text)


def factor(build):
    """How many times longer than where the bars were measured the build's minutes took, at least 1."""
    samples = [float(line) for line in (build / SAMPLES).read_text().split()] or [REFERENCE]
    print(f"the small program: {len(samples)} times, {min(samples):.2f} to {max(samples):.2f} CPU s")
    return max(1.0, sum(samples) / len(samples) / REFERENCE)


def judge(build):
    """Prints the sums and what is above its bar; returns whether all may stand."""
    # The library's copies with sanitizers have no bar: each file of theirs is one of the library's.
    ours = [name for name in objects(build) if not name.startswith("CMakeFiles/fovea_objects_")]
    built = [name for name in ours if (build / name).exists()]
    found = {name: read(build, name) for name in built}
    unknown = [name for name, seconds in found.items() if seconds is None]
    if unknown or not built:
        print(f"no record of {unknown[0] if unknown else 'any object'} in {build}: configure with")
        print("-DFOVEA_TIMES=ON and build again")
        return False
    cached = sum(seconds == CACHED for seconds in found.values())
    costs = {name: seconds for name, seconds in found.items() if seconds != CACHED}
    tests = sum(seconds for name, seconds in costs.items() if name.startswith("tests/"))
    total = sum(costs.values())
    slow = factor(build)
    fast = "FOVEA_FAST_COMPILE:BOOL=ON" in (build / "CMakeCache.txt").read_text()
    bars = FAST if fast else ALL, TESTS, FILE
    all_most, tests_most, file_most = (round(bar * slow) for bar in bars)
    print(f"{total:.0f} CPU s of {all_most} for {len(costs)} objects, tests {tests:.0f} of {tests_most}")
    print(f"bars times {slow:.2f}: how much slower this machine compiles than theirs")

    wrong = [
        f"{name}: {seconds:.1f} CPU s, at most {file_most}"
        for name, seconds in costs.items()
        if seconds > file_most and "/instances/" not in name
    ]
    if cached * 100 > len(built):
        print(f"{cached} objects came out of ccache: the sums are NOT judged")
    else:
        wrong += [f"the build: {total:.0f} CPU s, at most {all_most}"] * (total > all_most)
        wrong += [f"the tests: {tests:.0f} CPU s, at most {tests_most}"] * (tests > tests_most)
    for line in wrong:
        print(f"error: {line}")
    if wrong:
        print("the ten slowest:")
        for name, seconds in sorted(costs.items(), key=lambda row: -row[1])[:10]:
            print(f"{seconds:7.1f}  {name}")
    return not wrong


def main():
    if sys.argv[1:2] == ["--run"] and len(sys.argv) > 2:
        sys.exit(run(sys.argv[2:]))
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    sys.exit(0 if judge(pathlib.Path(sys.argv[1]).absolute()) else 1)


if __name__ == "__main__":
    main()
