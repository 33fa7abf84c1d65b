# SPDX-License-Identifier: Apache-2.0
"""The binding under test is this tree's; FOVEA_LIBRARY or a build tree gives the library."""

import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bindings/python"))
import fovea  # noqa: E402

if os.environ.get("FOVEA_REQUIRE_ALL"):  # no test is skipped because PyTorch is not there
    import torch  # noqa: F401


def pytest_configure(config):
    config.addinivalue_line("markers", "model: reads the packaged language model, 90 MB")


@pytest.fixture
def ctx():
    with fovea.Context("host", threads=2) as context:
        yield context
