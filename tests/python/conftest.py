# SPDX-License-Identifier: Apache-2.0
"""The binding under test is this tree's; FOVEA_LIBRARY or a build tree gives the library."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bindings/python"))
import fovea  # noqa: E402


@pytest.fixture
def ctx():
    with fovea.Context("host", threads=2) as context:
        yield context
