# SPDX-License-Identifier: Apache-2.0
"""What the package promises of itself: its stub, and what importing it imports."""

import inspect
import pathlib
import subprocess
import sys

import fovea.distributed
from stub_text import parameters


def test_the_stub_has_the_names_and_parameters():
    told = parameters(pathlib.Path(fovea.distributed.__file__).parent / "__init__.pyi")
    assert set(told) == set(fovea.distributed.__all__)
    for name, wanted in told.items():
        real = getattr(fovea.distributed, name)
        if name == "Cost":
            assert wanted == set(real._fields)
        elif not inspect.isclass(real):
            assert wanted == set(inspect.signature(real).parameters), name


def test_fovea_alone_imports_no_torch_and_this_no_compiler():
    for code, absent in (("fovea", "torch"), ("fovea.distributed", "torch._dynamo")):
        text = f"import sys, {code}; print({absent!r} in sys.modules)"
        folder = pathlib.Path(fovea.__file__).parents[1]
        done = subprocess.run(
            [sys.executable, "-c", text], capture_output=True, text=True, cwd=folder
        )
        assert done.stdout.strip() == "False", done.stdout + done.stderr
