# SPDX-License-Identifier: Apache-2.0
"""Finds and loads libfovea."""

import ctypes as C
import ctypes.util
import os
import pathlib
import sys

from . import _abi
from ._abi import Backend, Build
from ._errors import BY_STATUS, FoveaError


def _candidates():
    """Where libfovea may be: FOVEA_LIBRARY alone if set, the package, a build tree, the system."""
    if path := os.environ.get("FOVEA_LIBRARY"):
        yield path
        return
    here = pathlib.Path(__file__).resolve().parent
    names = {"win32": ["fovea.dll"], "darwin": ["libfovea.dylib"]}.get(
        sys.platform, ["libfovea.so", "libfovea.so.0"]
    )
    folders = [here, here / "lib"]
    root = here.parents[2]
    if (root / "include/fovea/core.h").exists():
        folders += [root / "lib", root / "build/lib", *sorted(root.glob("build/*/lib"))]
    yield from (
        str(folder / name) for folder in folders for name in names if (folder / name).exists()
    )
    if found := ctypes.util.find_library("fovea"):
        yield found


def _load():
    path = next(_candidates(), None)
    if path is None:
        raise ImportError(
            "libfovea was not found beside the package, in a build tree or on the system: "
            "set FOVEA_LIBRARY to its path"
        )
    try:
        lib = C.CDLL(path)
    except OSError as why:
        raise ImportError(f"cannot load {path}: {why}") from None
    lib.fovea_version.restype = C.c_int32
    number, (major, minor, _) = lib.fovea_version(), map(int, _abi.VERSION.split("."))
    if number // 10000 != major or (major == 0 and number // 100 != minor):
        raise ImportError(
            f"{path} is fovea {number // 10000}.{number // 100 % 100}, "
            f"this package is {_abi.VERSION}"
        )
    _abi.declare(lib)
    return lib, path


lib, library_path = _load()


def check(status):
    if status:
        raise BY_STATUS.get(status, FoveaError)(lib.fovea_last_error().decode())


def build(key):
    """A fact of the build: "version", "git", "toolkit", "architectures" or "operations"."""
    return lib.fovea_build_get(Build[key.upper()]).decode()


def device_count(backend="cuda"):
    """Devices of a backend here; 0 without a driver, a GPU or CUDA in the build."""
    count = C.c_int32()
    check(lib.fovea_device_count(Backend[backend.upper()], C.byref(count)))
    return count.value
