# SPDX-License-Identifier: Apache-2.0
"""Where libfovea may lie.  The package asks when it is imported, setup.py when it is packed."""

import pathlib
import sys


def names():
    """The file names of the library on this system, the preferred one first."""
    return {"win32": ["fovea.dll"], "darwin": ["libfovea.dylib"]}.get(
        sys.platform, ["libfovea.so", "libfovea.so.0"]
    )


def in_folder(folder):
    """The library in a folder, or None."""
    return next((path for name in names() if (path := folder / name).exists()), None)


def cached(build, variable):
    """What a CMake build folder was configured with, "" where it says nothing."""
    try:
        lines = (build / "CMakeCache.txt").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    found = (line.partition("=")[2] for line in lines if line.startswith(variable + ":"))
    return next(found, "")


def built(root):
    """Libraries of a checkout: lib/ of the preset release, then build folders, the newest first.
    Partial builds are left out: they lack operations."""
    folders = [
        folder
        for folder in [root / "build/lib", *root.glob("build/*/lib")]
        if not cached(folder.parent, "FOVEA_FAMILIES")
    ]
    libraries = [path for folder in folders if (path := in_folder(folder))]
    libraries.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    return [path for path in [in_folder(root / "lib")] if path] + libraries


def checkout(package):
    """The checkout that a package folder lies in, bindings/python/fovea, or None."""
    root = pathlib.Path(package).resolve().parents[2]
    return root if (root / "include/fovea/core.h").exists() else None
