#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""fovea beside PyTorch in one process: interleaved calls, medians, outputs compared.

    bench/bench.py [--backend host|cuda] [--peer cudnn|flash] [--filter REGEX] [--rounds N]
                   [--threads N] [--list|--dry|--once] [--peer-library OLD.so] [--commit NAME]

Prints a table and appends its rows to bench/results/<device>.tsv (not with --dry).  ratio is the
peer's time over fovea's: above 1 fovea is faster.  Exits 1 where the two disagree.  With
--peer-library the peer is another build of fovea in the same process, and nothing is appended."""

import argparse
import contextlib
import datetime
import importlib
import math
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "bindings/python")]

import torch  # noqa: E402

import cases  # noqa: E402
import fovea  # noqa: E402
import table  # noqa: E402

L2_BYTES = 64 << 20  # rotating inputs of twice this leave nothing of the last call in a cache
SHORT_MS = 0.25  # calls under it are replayed from graphs, or the host's part would be timed


def device_name(backend):
    if backend == "cuda":
        return torch.cuda.get_device_name()
    with contextlib.suppress(OSError, StopIteration):
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    return platform.processor() or platform.machine()


class HostClock:
    def time(self, run):
        begin = time.perf_counter()
        run()
        return (time.perf_counter() - begin) * 1e3


class CudaClock:
    def time(self, run):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(
            400_000
        )  # the host gets ahead: what it spends on the call is not the kernel's
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end)


def captured(calls):
    """What replays the calls, in turn and at least eight of them, and how many those are."""
    calls = calls * -(-8 // len(calls))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # what a first call on a stream allocates is no part of a graph
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    return graph.replay, len(calls)


def named(case, backend):
    """A profiler sees what is launched inside under the name of the case."""
    return torch.cuda.nvtx.range(case) if backend == "cuda" else contextlib.nullcontext()


def peer_of(backend, peer):
    if backend == "host":
        return "torch.sdpa", contextlib.nullcontext
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kernel = getattr(SDPBackend, f"{peer.upper()}_ATTENTION")
    return f"torch.sdpa.{peer}", lambda: sdpa_kernel(kernel)


def distance(ours, theirs):
    worst = 0.0
    for a, b in zip(ours, theirs):
        a, b = a.double(), b.double()
        if not torch.equal(a, b):
            off = float((a - b).norm() / b.norm())
            worst = max(worst, math.inf if math.isnan(off) else off)  # max() passes NaN over
    return worst


def another(library):
    """`fovea` and `cases` once more, over another build of the library."""
    mine = {
        name: sys.modules.pop(name)
        for name in list(sys.modules)
        if name.split(".")[0] == "fovea"
        or str(HERE) in str(getattr(sys.modules[name], "__file__", ""))
    }
    before = os.environ.get("FOVEA_LIBRARY")
    os.environ["FOVEA_LIBRARY"] = str(pathlib.Path(library).resolve())
    try:
        return importlib.import_module("fovea"), importlib.import_module("cases")
    finally:
        sys.modules.update(mine)
        del os.environ["FOVEA_LIBRARY"]
        if before is not None:
            os.environ["FOVEA_LIBRARY"] = before


class Other:
    """A case whose peer is the same call of another build."""

    def __init__(self, case, theirs, ctx):
        self.case, self.theirs, self.ctx = case, theirs, ctx

    def __getattr__(self, name):
        return getattr(self.case, name)

    def setup(self, ctx, device, seed):
        sides = (self.case, ctx), (self.theirs, self.ctx)
        return tuple(case.setup(own, device, seed)[0] for case, own in sides)


def memory(case, run, peer, backend):
    """What a call takes beside inputs and outputs, of cases whose peer takes much."""
    if not case.memory:
        return ""
    words = f"  workspace {run.workspace / 2**20:.1f} MiB"
    if backend == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        peer()
        torch.cuda.synchronize()
        words += f", peer {(torch.cuda.max_memory_allocated() - before) / 2**20:.0f} MiB"
    return words


def checked(ours, theirs):
    """How far apart the two sides of a case are; PeerFailed where the peer refuses its call."""
    mine = ours()
    try:
        yours = theirs()
    except RuntimeError as error:
        raise cases.PeerFailed(str(error)) from error
    return distance(mine, yours)


def times(runs, sides, case, backend, rounds):
    """Medians in ms of these sides of a case (0 is fovea, 1 its peer), whose calls take turns."""
    clock = CudaClock() if backend == "cuda" else HostClock()
    first = min(clock.time(runs[0][0]) for _ in range(3))
    turns, calls = runs, 1
    if backend == "cuda" and first < SHORT_MS and not case.backward:
        replays = {side: captured([pair[side] for pair in runs]) for side in sides}
        turns, calls = [{side: replays[side][0] for side in sides}], replays[0][1]
    samples = {side: [] for side in sides}
    begun = time.perf_counter()
    for i in range(max(rounds, 3)):
        pair = turns[i % len(turns)]
        for side in (sides, sides[::-1])[i % 2]:  # neither always runs in the other's wake
            samples[side].append(clock.time(pair[side]) / calls)
        if i >= 8 and time.perf_counter() - begun > 20:
            break
    return [statistics.median(samples[side][2:]) for side in sides]


def made(case, ctx, backend):
    """Inputs that no cache holds from call to call, each with the two sides' calls on them."""
    device = "cuda" if backend == "cuda" else "cpu"
    least = 1 if case.bytes > 1 << 33 else 2  # a peer that keeps several of them leaves no room
    copies = min(max(least, -(-2 * L2_BYTES // case.bytes)), 8)
    return [case.setup(ctx, device, seed) for seed in range(copies)]


def measure(case, ctx, backend, rounds):
    runs = made(case, ctx, backend)
    runs[0][0]()
    kernel = ctx.last_kernel  # before a peer that is one of our own calls
    try:
        off = max(checked(*pair) for pair in runs)
    except cases.PeerFailed as why:
        (ms,) = times(runs, (0,), case, backend, rounds)
        raise cases.PeerFailed(f"{ms:.3f} ms by {kernel}; its peer: {why}") from why
    ms, peer_ms = times(runs, (0, 1), case, backend, rounds)
    return kernel, ms, peer_ms, off, memory(case, *runs[0], backend)


def output(*command):
    """What a command prints, or "" where it cannot."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def commit():
    """The library's commit, or the checkout's; "+" where sources were changed since."""
    git = "git", "-C", str(HERE.parent)
    built = fovea.build("git")
    name = output(*git, "rev-parse", "--short=12", "HEAD") if built == "unknown" else built
    changed = output(*git, "status", "--porcelain", "--", "include", "lib", "src", "CMakeLists.txt")
    return (name or "-") + ("+" if changed else "")


def driver(backend):
    if backend == "host":
        return "-"
    asked = output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return asked.splitlines()[0] if asked else "-"


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", choices=["host", "cuda"], default="host")
    parser.add_argument("--peer", choices=["cudnn", "flash"], default="cudnn", help="on CUDA")
    parser.add_argument("--filter", default="", help="regular expression on `op/case`")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=2, help="host threads of both")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--dry", action="store_true", help="append nothing to results/")
    parser.add_argument("--commit", help="what rows say, where neither library nor git know it")
    parser.add_argument("--peer-library", help="another libfovea.so, which is then the peer")
    parser.add_argument(
        "--alone", action="store_true", help="time fovea without its peer; append nothing"
    )
    parser.add_argument(
        "--once", action="store_true", help="call fovea once a case, for a profiler; time nothing"
    )
    return parser.parse_args()


def once(chosen, args):
    with fovea.Context(args.backend, threads=args.threads) as ctx:
        for case in chosen:
            run = case.setup(ctx, "cuda" if args.backend == "cuda" else "cpu", 0)[0]
            with named(f"{case.op}/{case.name}", args.backend):
                run()
            ctx.synchronize()


def against(library, chosen, args, stack):
    """The cases beside another build's, and what that peer is called."""
    old, old_cases = another(library)
    theirs = {(c.op, c.name): c for c in getattr(old_cases, args.backend)()}
    ctx = stack.enter_context(old.Context(args.backend, threads=args.threads))
    peer = f"fovea {old.build('git')}"
    print(f"peer: {peer}, {old.library_path}")
    return [Other(c, theirs[c.op, c.name], ctx) for c in chosen], peer


def alone(chosen, ctx, args):
    """A line a case: nothing is compared, so nothing is kept."""
    for case in chosen:
        try:
            runs = made(case, ctx, args.backend)
            runs[0][0]()
            kernel = ctx.last_kernel
            (ms,) = times(runs, (0,), case, args.backend, args.rounds)
        except fovea.Unsupported as why:
            print(f"{case.op}/{case.name}: {why}")
            continue
        rate = case.work / ms * 1e3 * case.scale
        print(f"{case.op + '/' + case.name:65} {ms:9.4f} {rate:9.3f} {case.unit:7} {kernel}", flush=True)


def compare(chosen, ctx, args, peer, keep):
    """Prints a line a case, and gives the row of each that agrees with its peer to keep() at once: a
    run that is cut short loses none.  All rows, and how many disagree."""
    print(
        f"{'op/case':65} {'fovea ms':>9} {'rate':>15} {'peer ms':>9} {'ratio':>6}"
        f"  {'apart':>7}  kernel",
        flush=True,
    )
    rows, wrong = [], 0
    for case in chosen:
        try:
            kernel, ms, peer_ms, off, beside = measure(case, ctx, args.backend, args.rounds)
        except (fovea.Unsupported, cases.PeerFailed) as why:
            print(f"{case.op}/{case.name}: {why}")
            continue
        rate = case.work / ms * 1e3 * case.scale
        bad = not off <= case.limit
        wrong += bad
        print(
            f"{case.op + '/' + case.name:65} {ms:9.3f} {rate:7.3f} {case.unit:7}"
            f" {peer_ms:9.3f} {peer_ms / ms:6.2f}"
            f"  {off:7.1e}  {kernel}{beside}{'  WRONG' if bad else ''}",
            flush=True,
        )
        now = datetime.datetime.now(datetime.timezone.utc)
        row = {"date": now.strftime("%Y-%m-%dT%H:%MZ"), "op": case.op, "case": case.name}
        row |= {"kernel": kernel, "ms": f"{ms:.4f}", "tflops_or_gbs": f"{rate:.3f}"}
        row |= {"peer": case.peer or peer, "peer_ms": f"{peer_ms:.4f}"}
        rows.append(row | {"ratio": f"{peer_ms / ms:.3f}"})
        if not bad:
            keep(rows[-1])
    return rows, wrong


def main():
    args = arguments()
    chosen = [
        c for c in getattr(cases, args.backend)() if re.search(args.filter, f"{c.op}/{c.name}")
    ]
    if args.list:
        return print("\n".join(f"{c.op}/{c.name}" for c in chosen))
    torch.set_num_threads(args.threads)
    peer, backend = peer_of(args.backend, args.peer)
    device = device_name(args.backend)
    if args.backend == "host":
        device += f", {args.threads} threads"
    where = {"device": device, "commit": args.commit or commit()}
    where |= {"driver": driver(args.backend), "torch": torch.__version__}
    with contextlib.ExitStack() as stack:
        stack.enter_context(backend())
        if args.once:
            return once(chosen, args)
        print(f"{device}; fovea {fovea.build('version')} ({where['commit']}); torch", end=" ")
        print(f"{where['torch']}; driver {where['driver']}")
        ctx = stack.enter_context(fovea.Context(args.backend, threads=args.threads))
        if args.alone:
            return alone(chosen, ctx, args)
        if args.peer_library:
            chosen, peer = against(args.peer_library, chosen, args, stack)
        path = HERE / "results" / f"{table.slug(device)}.tsv"
        appends = not (args.peer_library or args.dry)
        if appends:
            print(f"rows go to {path}")
        rows, wrong = compare(
            chosen, ctx, args, peer, lambda row: appends and table.append(path, [where | row])
        )
    if rows and args.peer_library:
        ratios = [float(row["ratio"]) for row in rows]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"{len(rows)} rows: geometric mean {mean:.3f}, least {min(ratios):.3f}")
    return sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
