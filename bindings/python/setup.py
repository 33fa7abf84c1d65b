# SPDX-License-Identifier: Apache-2.0
"""Packs libfovea into the package, and builds it where there is none.  README.md has the table of
FOVEA_LIBRARY, FOVEA_CUDA and CMAKE_ARGS, which say which library."""

import importlib.util
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = HERE / "fovea"
SOURCES = ["CMakeLists.txt", "LICENSE", "include", "src", "lib", "programs"]

spec = importlib.util.spec_from_file_location("_find", PACKAGE / "_find.py")
find = importlib.util.module_from_spec(spec)
spec.loader.exec_module(find)


def stop(sentence):
    raise SystemExit(f"fovea: {sentence}")


def say(sentence):
    """On stderr, and on the terminal: pip shows what a build prints only when it fails."""
    print(f"fovea: {sentence}", file=sys.stderr, flush=True)
    try:
        with open("/dev/tty", "w") as terminal:
            terminal.write(f"\nfovea: {sentence}\n")
    except OSError:
        pass


def given_library():
    """FOVEA_LIBRARY: a file, or None.  "none" means a package without library."""
    path = os.environ.get("FOVEA_LIBRARY", "")
    if path in ("", "none"):
        return None
    # A relative path is meant from where pip was called, which is the shell's PWD.
    file = pathlib.Path(os.environ.get("PWD", ".")) / pathlib.Path(path).expanduser()
    if file.is_dir():
        file = find.in_folder(file) or stop(f"FOVEA_LIBRARY is {path}, a folder without library")
    if not file.is_file():
        stop(f"FOVEA_LIBRARY is {path}, no such file")
    return file.resolve()


def given_cuda():
    """FOVEA_CUDA: True, False, or None where it is not set."""
    word = os.environ.get("FOVEA_CUDA", "").upper()
    if word not in ("", "ON", "OFF", "1", "0"):
        stop(f"FOVEA_CUDA is {os.environ['FOVEA_CUDA']}, wanted ON or OFF")
    return None if word == "" else word in ("ON", "1")


LIBRARY = given_library()
EMPTY = os.environ.get("FOVEA_LIBRARY") == "none"
CUDA = given_cuda()


def source_root():
    """The sources of the library: inside a source distribution, or around this folder."""
    for root in (HERE / "source", HERE.parents[1]):
        if all((root / name).exists() for name in SOURCES):
            return root
    return None


def version():
    return re.search(r'^VERSION = "(.*)"', (PACKAGE / "_abi.py").read_text(), re.M).group(1)


def describe(path):
    """(version, toolkit) of a library, or None where it cannot be loaded here."""
    code = (
        "import ctypes, sys; lib = ctypes.CDLL(sys.argv[1]); get = lib.fovea_build_get; "
        "get.restype = ctypes.c_char_p; print(get(1).decode(), get(3).decode())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    words = done.stdout.decode().split()
    return tuple(words) if done.returncode == 0 and len(words) == 2 else None


def built_library(root):
    """The first library of a checkout that fits FOVEA_CUDA, of those that pip did not build."""
    if root != HERE.parents[1]:
        return None
    for path in find.built(root):
        if path.parents[1].name.startswith("pip-"):
            continue
        facts = describe(path)
        fits = facts and facts[0] == version() and (CUDA is None or CUDA == (facts[1] != "none"))
        if fits:
            return path.resolve()
        say(f"{path} is passed over: {'it does not fit' if facts else 'it does not load'}")
    return None


def nvcc():
    """The CUDA compiler that CMake will find, or None."""
    inside = pathlib.Path(os.environ.get("CUDA_PATH", "/nowhere")) / "bin/nvcc"
    return os.environ.get("CUDACXX") or shutil.which("nvcc") or shutil.which(str(inside))


def compile_library(root):
    """Builds root with CMake, what changed since the last time, and returns the library."""
    cuda = bool(nvcc()) if CUDA is None else CUDA
    if cuda and not nvcc():
        stop("FOVEA_CUDA is ON, and nvcc is not on PATH: set CUDACXX to its path")
    inside = root == HERE.parents[1]
    folder = (root if inside else HERE) / "build" / ("pip-cuda" if cuda else "pip-host")
    if not (folder / "lib").exists():
        if cuda:
            say(
                "compiling for the CPU and for CUDA: about 15 minutes on 8 cores, half an hour on "
                "2. FOVEA_CUDA=OFF leaves CUDA out, CMAKE_ARGS=-DCMAKE_CUDA_ARCHITECTURES=90 "
                "compiles for one GPU generation"
            )
        else:
            say("compiling for the CPU: one or two minutes on 2 cores")
    switch = "ON" if cuda else "OFF"
    off = [f"-DFOVEA_{name}=OFF" for name in ("STATIC", "TESTS", "BENCH", "INSTALL")]
    ninja = ["-G", "Ninja"] if shutil.which("ninja") else []
    configure = ["cmake", "-S", str(root), "-B", str(folder), *ninja, "-DCMAKE_BUILD_TYPE=Release"]
    configure += [f"-DFOVEA_CUDA={switch}", f"-DFOVEA_LIBRARY_DIR={folder}/lib", *off]
    configure += shlex.split(os.environ.get("CMAKE_ARGS", ""))
    build = ["cmake", "--build", str(folder), "--target", "fovea"]
    if "CMAKE_BUILD_PARALLEL_LEVEL" not in os.environ:
        build += ["--parallel", str(os.cpu_count() or 1)]
    for command in (configure, build):
        if subprocess.run(command).returncode:
            stop(f"this failed, its reason is above: {shlex.join(command)}")
    return find.in_folder(folder / "lib").resolve()


def library():
    """The file to pack.  Builds it where there is none."""
    if LIBRARY or EMPTY:
        return LIBRARY
    root = source_root()
    if root is None:
        stop(
            f"the library's sources are neither in {HERE / 'source'} nor in {HERE.parents[1]}: set "
            "FOVEA_LIBRARY to the path of libfovea.so, or to none for a package without it"
        )
    return built_library(root) or compile_library(root)


def requirements():
    """CMake from PyPI where the library is to be compiled and the system's is missing or old."""
    if LIBRARY or EMPTY:
        return []
    needed = ["ninja"] if not (shutil.which("ninja") or shutil.which("make")) else []
    words = ""
    if shutil.which("cmake"):
        words = subprocess.run(["cmake", "--version"], stdout=subprocess.PIPE).stdout.decode()
    number = re.search(r"(\d+)\.(\d+)", words)
    if not number or tuple(map(int, number.groups())) < (3, 25):
        needed.append("cmake>=3.25")
    return needed


class WithLibrary(build_py):
    def run(self):
        folder = pathlib.Path(self.build_lib) / "fovea"
        if not self.editable_mode:
            shutil.rmtree(folder, ignore_errors=True)  # what an earlier build left there
        super().run()
        path = library()  # an editable package finds it in the checkout
        if path and not self.editable_mode:
            suffix = re.sub(r"(\.\d+)+$", "", path.name).rpartition(".")[2]
            name = "fovea.dll" if suffix == "dll" else f"libfovea.{suffix}"
            (folder / "lib").mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / "lib" / name)
            say(f"the package holds {path}")


class Platform(bdist_wheel):
    """A wheel with library is this platform's, and any Python's."""

    def get_tag(self):
        tag = super().get_tag()
        return tag if EMPTY else ("py3", "none", tag[2])


class Binary(Distribution):
    """Puts the library into platlib, where auditwheel wants it."""

    def has_ext_modules(self):
        return not EMPTY


class WithSources(sdist):
    """The sources of the library go along, in source/."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        root = source_root()
        if root is None:
            stop(f"the library's sources are not in {HERE.parents[1]}: no source distribution")
        target = pathlib.Path(base_dir) / "source"
        skip = shutil.ignore_patterns("libfovea*", "fovea.pc", "abi", "*.pyc", "__pycache__")
        for name in SOURCES:
            if (root / name).is_dir():
                shutil.copytree(root / name, target / name, ignore=skip)
            else:
                target.mkdir(exist_ok=True)
                shutil.copyfile(root / name, target / name)
        # In the checkout this is a link to the root's.
        licence = pathlib.Path(base_dir) / "LICENSE"
        licence.unlink(missing_ok=True)
        shutil.copyfile(root / "LICENSE", licence)


setup(
    distclass=Binary,
    cmdclass={"build_py": WithLibrary, "bdist_wheel": Platform, "sdist": WithSources},
    setup_requires=requirements(),
)
