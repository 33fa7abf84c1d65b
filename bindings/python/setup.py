# SPDX-License-Identifier: Apache-2.0
"""A wheel that holds libfovea belongs to this platform; one without finds the library elsewhere.
Put the library in: FOVEA_LIBRARY=../../build/release/lib/libfovea.so pip wheel --no-deps ."""

import os
import pathlib
import shutil

from setuptools import setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    from wheel.bdist_wheel import bdist_wheel

LIBRARY = os.environ.get("FOVEA_LIBRARY")


class WithLibrary(build_py):
    def run(self):
        super().run()
        if LIBRARY:
            folder = pathlib.Path(self.build_lib) / "fovea/lib"
            folder.mkdir(parents=True, exist_ok=True)
            suffix = "".join(s for s in pathlib.Path(LIBRARY).suffixes if not s[1:].isdigit())
            shutil.copyfile(pathlib.Path(LIBRARY).resolve(), folder / f"libfovea{suffix}")


class Platform(bdist_wheel):
    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = not LIBRARY

    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


setup(cmdclass={"build_py": WithLibrary, "bdist_wheel": Platform})
