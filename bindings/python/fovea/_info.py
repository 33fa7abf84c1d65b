# SPDX-License-Identifier: Apache-2.0
"""What the library was built from, and what is here: build, device_count, collect_env."""

from __future__ import annotations

import ctypes as C
import os
import pathlib
import platform
import re
import sys
from importlib import metadata

from . import _abi
from ._abi import Backend, Build
from ._call import member
from ._core import Context
from ._errors import FoveaError
from ._library import check, lib, library_path

# Distributions worth knowing, whether imported or not.
_PACKAGES = ("numpy", "ml_dtypes", "torch", "triton", "transformers", "cupy", "cupy-cuda11x",
             "cupy-cuda12x", "cupy-cuda13x", "jax")
_SIMD = "avx2 fma f16c avx512f avx512_bf16 avx512_fp16 amx_bf16 neon asimd sve".split()


def build(key: str | Build) -> str:
    """A fact of the build: "version", "git", "compiler", "toolkit", "architectures" or
    "operations"."""
    fact: str = lib.fovea_build_get(member(Build, key, "build: key")).decode()
    return fact


def device_count(backend: str | Backend = "cuda") -> int:
    """Devices of a backend here; 0 without a driver, a GPU or CUDA in the build."""
    count = C.c_int32()
    check(lib.fovea_device_count(member(Backend, backend, "device_count: backend"), C.byref(count)))
    return count.value


class Environment(dict[str, str]):
    """Facts by name; printed, a line each."""

    def __str__(self) -> str:
        width = max(map(len, self))
        return "\n".join(f"{name:<{width}}  {fact}" for name, fact in self.items())

    __repr__ = __str__


def collect_env() -> Environment:
    """What an issue should tell of this machine, as a dict that prints as a report.  Imports no
    array library, and does not fail where something is missing."""
    facts = Environment()
    facts["fovea"] = _abi.VERSION
    facts["library"] = f"{build('version')}, {os.path.realpath(library_path)}"
    facts["git"] = build("git")
    facts["compiler"] = build("compiler")
    facts["CUDA toolkit"] = build("toolkit")
    facts["architectures"] = build("architectures")
    facts["operations"] = str(len(build("operations").split(",")))
    facts["platform"] = platform.platform()
    facts["CPU"] = _cpu()
    facts["host"] = _told(_host)
    facts["CUDA driver"] = _told(_driver)
    count = device_count("cuda")
    if not count:
        facts["CUDA devices"] = "none: no driver, no GPU, or no CUDA in this library"
    for number in range(count):
        facts[f"cuda:{number}"] = _told(_gpu, number)
    facts["Python"] = f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}"
    for name in _PACKAGES:
        if (version := _version(name)) is not None:
            facts[name] = version
    facts.update({name: os.environ[name] for name in sorted(os.environ) if name.startswith("FOVEA_")})
    return facts


def _told(fact, *of):
    try:
        return fact(*of)
    except (FoveaError, OSError) as why:
        return f"not told: {why}"


def _version(name):
    """Of a package that is imported, else of one that is installed."""
    module = sys.modules.get(name)
    try:
        return str(getattr(module, "__version__", None) or metadata.version(name))
    except metadata.PackageNotFoundError:
        return None


def _cpu():
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    name = re.search(r"^model name\s*: (.+)$", text, re.M)
    flags = re.search(r"^(?:flags|Features)\s*: (.+)$", text, re.M)
    has = flags[1].split() if flags else []
    told = " ".join(flag for flag in _SIMD if flag in has)
    return f"{name[1] if name else platform.processor() or platform.machine()} ({told or 'flags unknown'})"


def _host():
    """Threads and memory as the library reports them, and the instructions that its kernel takes."""
    from .ops import attention_forward

    with Context("host") as ctx:
        x = memoryview((C.c_float * 8)()).cast("B").cast("f", (1, 1, 1, 8))
        attention_forward(ctx, x, x, x, o=memoryview((C.c_float * 8)()).cast("B").cast("f", (1, 1, 1, 8)))
        return (
            f"{ctx.get('threads')} threads of {ctx.get('multiprocessors')}, {_gib(ctx)}, "
            f"kernels {ctx.last_kernel.split('.')[2]}"
        )


def _gib(ctx):
    free, total = ctx.get("free_bytes"), ctx.get("total_bytes")
    return f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free"


def _driver():
    """The driver's version, and the CUDA that it runs."""
    told = []
    try:
        text = pathlib.Path("/proc/driver/nvidia/version").read_text()
        told += re.findall(r"Kernel Module (?:for \S+)?\s*([\d.]+)", text)[:1]
    except OSError:
        pass
    number = C.c_int()
    if (cuda := _libcuda()) is not None and cuda.cuDriverGetVersion(C.byref(number)) == 0:
        told.append(f"CUDA {number.value // 1000}.{number.value % 1000 // 10}")
    return ", ".join(told) or "none found"


def _libcuda():
    try:
        return C.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None


def _gpu(number):
    with Context("cuda", number) as ctx:
        capability = ctx.get("architecture")
        facts = f"compute capability {capability // 10}.{capability % 10}"
        facts += f", {ctx.get('multiprocessors')} multiprocessors, {_gib(ctx)}"
    name, cuda = C.create_string_buffer(256), _libcuda()
    known = cuda is not None and cuda.cuDeviceGetName(name, 256, number) == 0
    return f"{name.value.decode()}, {facts}" if known else facts
