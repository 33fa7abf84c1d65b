# SPDX-License-Identifier: Apache-2.0
"""Ranks: processes in one group that run a function each and give back what it returns.

The group is of gloo, on the CPU.  With FOVEA_RANKS=cuda it is of NCCL, a GPU each, and tests that
want more ranks than there are GPUs are skipped."""

import datetime
import multiprocessing
import os
import sys
import tempfile
import traceback

import pytest

CUDA = os.environ.get("FOVEA_RANKS") == "cuda"


def serve(rank, size, store, seconds, pipe):
    """A rank's life: groups of all and of pairs, then one function after the other."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if CUDA:
        torch.cuda.set_device(rank)
        torch.set_default_device(f"cuda:{rank}")
    dist.init_process_group(
        "nccl" if CUDA else "gloo", init_method=f"file://{store}", rank=rank, world_size=size,
        timeout=datetime.timedelta(seconds=60),
    )  # fmt: skip
    groups = {size: dist.group.WORLD}
    if seconds:  # of a group that is to fail; a slow machine's start is no failure
        groups[size] = dist.new_group(timeout=datetime.timedelta(seconds=seconds))
    else:
        if size == 4:
            groups[2] = [dist.new_group(pair) for pair in ([0, 1], [2, 3])][rank // 2]
        groups[1] = [dist.new_group([one]) for one in range(size)][rank]
    pipe.send("ready")
    while (work := pipe.recv()) is not None:
        function, of, arguments = work
        try:
            torch.manual_seed(0)
            pipe.send((True, on_host(function(groups[of], **arguments))))
        except Exception as why:
            pipe.send((False, (type(why).__name__, str(why), traceback.format_exc())))


def on_host(made):
    """Results without tensors that live on a GPU of another process."""
    if isinstance(made, (tuple, list)):
        return type(made)(map(on_host, made))
    return made.cpu() if hasattr(made, "cpu") else made


class Ranks:
    def __init__(self, size, seconds=None, preload=()):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # of what is preloaded
        fork = multiprocessing.get_context("forkserver")
        # optimizers import torch._dynamo: once for all ranks
        modules = ["torch", "torch.distributed", "torch._dynamo", "fovea.distributed", *preload]
        fork.set_forkserver_preload(modules)
        self.folder = tempfile.TemporaryDirectory()
        store, self.size = os.path.join(self.folder.name, "store"), size
        self.pipes, self.processes = [], []
        for rank in range(size):
            mine, theirs = fork.Pipe()
            arguments = rank, size, store, seconds, theirs
            process = fork.Process(target=serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(mine)
            self.processes.append(process)
        for pipe in self.pipes:
            assert pipe.poll(120) and pipe.recv() == "ready"

    def run(self, of, function, **arguments):
        """What function(group, **arguments) gives on each rank of a group of `of`; raises what a
        rank raised."""
        made = self.outcomes(of, function, **arguments)
        for good, what in made:
            if not good:
                raise AssertionError(what[2])
        return [what for _, what in made]

    def outcomes(self, of, function, seconds=120, **arguments):
        """(True, what it gave) or (False, (class, sentence, trace)) of each rank; None of a dead
        one."""
        self.start(of, function, **arguments)
        return [self.answer(pipe, seconds) for pipe in self.pipes[:of]]

    def start(self, of, function, **arguments):
        if of > self.size:
            pytest.skip(f"{of} ranks are wanted, there are {self.size} GPUs")
        for pipe in self.pipes[:of]:
            pipe.send((function, of, arguments))

    @staticmethod
    def answer(pipe, seconds):
        assert pipe.poll(seconds), "a rank does not answer"
        try:
            return pipe.recv()
        except EOFError:
            return None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pipe, process in zip(self.pipes, self.processes):
            try:
                pipe.send(None)
            except OSError:
                pass
        for process in self.processes:
            process.join(5)
            if process.is_alive():
                process.kill()
        self.folder.cleanup()
