# SPDX-License-Identifier: Apache-2.0
"""transformers and PyTorch are downloads of gigabytes: these tests run where both are."""

import importlib.util
import os
import pathlib

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test asks the network
os.environ.setdefault("OMP_NUM_THREADS", "1")  # OpenMP's threads spin, and the models are tiny
MISSING = [n for n in ("torch", "transformers") if not importlib.util.find_spec(n)]
SENTENCE = f"{', '.join(MISSING)} not installed: pip install torch transformers"


class Told(pytest.Item):
    def runtest(self):
        if os.environ.get("FOVEA_REQUIRE_ALL"):
            pytest.fail(f"FOVEA_REQUIRE_ALL is set and {SENTENCE}", pytrace=False)
        pytest.skip(SENTENCE)

    def repr_failure(self, excinfo, style=None):
        return str(excinfo.value)


class Absent(pytest.File):
    def collect(self):
        yield Told.from_parent(self, name="needs")


def pytest_pycollect_makemodule(module_path, parent):
    here = pathlib.Path(__file__).parent
    if MISSING and module_path.parent == here:
        return Absent.from_parent(parent, path=module_path)
