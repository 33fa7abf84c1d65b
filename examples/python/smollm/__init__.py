# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M-Instruct with every attention done by fovea: see README.md."""
import importlib.util
import pathlib
import sys

if importlib.util.find_spec("fovea") is None:  # not installed: this checkout's binding
    sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "bindings/python"))
