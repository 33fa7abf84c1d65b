# SPDX-License-Identifier: Apache-2.0
"""Finds and loads libfovea."""

import ctypes as C
import ctypes.util
import os
import pathlib

from . import _abi, _find
from ._errors import BY_STATUS, FoveaError


def _named(path):
    """FOVEA_LIBRARY: a file, a folder that holds one, or a bare name for the system's loader."""
    file = pathlib.Path(path)
    if file.is_dir():
        if found := _find.in_folder(file):
            return str(found)
        raise ImportError(f"FOVEA_LIBRARY is {path}, a folder without {_find.names()[0]}")
    if len(file.parts) > 1 and not file.exists():
        raise ImportError(f"FOVEA_LIBRARY is {path}, no such file")
    return path


def _path():
    """The library: FOVEA_LIBRARY alone if set, the package, the checkout, the system."""
    if path := os.environ.get("FOVEA_LIBRARY"):
        return _named(path)
    here = pathlib.Path(__file__).resolve().parent
    root = _find.checkout(here)
    inside = [path for folder in (here, here / "lib") if (path := _find.in_folder(folder))]
    if found := [*inside, *(_find.built(root) if root else [])]:
        return str(found[0])
    if found := ctypes.util.find_library("fovea"):
        return found
    tried = [str(here), str(here / "lib")]
    if root:
        tried += [str(root / "lib"), str(root / "build/*/lib")]
        command = f"cmake -S {root} --preset release -DFOVEA_TESTS=OFF -DFOVEA_BENCH=OFF && "
        command += f"cmake --build {root}/build/release"
    else:
        command = "pip install --force-reinstall --no-deps <checkout of fovea>/bindings/python"
    raise ImportError(
        f"{_find.names()[0]} was not found in {', '.join(tried)} or on the system.\n"
        f"Build it:  {command}\n"
        "or set FOVEA_LIBRARY to the path of one."
    )


def _load():
    path = _path()
    try:
        lib = C.CDLL(path)
    except OSError as why:
        raise ImportError(f"cannot load {path}: {why}") from None
    if not hasattr(lib, "fovea_version"):
        raise ImportError(f"{path} is not fovea: it has no fovea_version")
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
