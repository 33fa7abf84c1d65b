# SPDX-License-Identifier: Apache-2.0
"""__init__.pyi says what fovea.torch has: every public name, with the parameters it really takes."""

import inspect
import pathlib

import pytest
from stub_text import parameters

pytest.importorskip("torch")
import fovea.torch


def test_the_stub_has_the_names_and_parameters():
    told = parameters(pathlib.Path(fovea.torch.__file__).parent / "__init__.pyi")
    assert {name.partition(".")[0] for name in told} == set(fovea.torch.__all__)
    for name, wanted in told.items():
        of, _, method = name.partition(".")
        real = getattr(fovea.torch, of)
        if inspect.isclass(real) and not method:
            continue
        real = getattr(real, method) if method else real
        real = real.fget if isinstance(real, property) else real
        assert wanted == set(inspect.signature(real).parameters), name
