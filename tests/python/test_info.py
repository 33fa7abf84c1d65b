# SPDX-License-Identifier: Apache-2.0
"""What the package says of itself: help, names, examples, the report of the machine."""

import ast
import contextlib
import inspect
import io
import os
import pathlib
import pydoc
import subprocess
import sys

import fovea
import numpy as np
import pytest
from fovea import _info

STABLE = [n for n in fovea.ops.__all__ if n[0].islower()]
UNSTABLE = [n for n in fovea.experimental.__all__ if n[0].islower()]
FUNCTIONS = [getattr(fovea, n) for n in STABLE] + [getattr(fovea.experimental, n) for n in UNSTABLE]


def test_help_is_short_and_has_each_operation():
    lines = pydoc.plain(pydoc.render_doc(fovea)).split("\n")
    assert len(lines) < 90 + len(STABLE)
    for name in STABLE:
        told = [line for line in lines if line.strip().startswith(name + " ")]
        assert len(told) == 1 and len(told[0].split()) > 2 and len(told[0]) <= 104
    assert not any("x_kl" in line or "_workspace" in line for line in lines)


def test_names():
    names = dir(fovea)
    assert {*STABLE, "Context", "prepare", "workspace_bytes", "default_context"} <= set(names)
    assert not [n for n in names if n.startswith("x_") or n.endswith("_workspace")]
    assert UNSTABLE and not set(UNSTABLE) & set(STABLE)
    for name in UNSTABLE:
        assert getattr(fovea, f"x_{name}") is getattr(fovea.experimental, name)
    assert fovea.XPool is fovea.experimental.Pool
    everything = {}
    exec("from fovea import *", everything)
    assert {*STABLE, "Context", "FoveaError"} <= set(everything)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_help_of_an_operation(function):
    """Each parameter but ctx_or_ has its line, and the example is a call that the function takes."""
    text = inspect.getdoc(function)
    parameters = inspect.signature(function).parameters
    for name in parameters:
        assert name.startswith("ctx_or_") or name.rstrip("_") in text
    example = inspect.cleandoc(text.split("Example\n")[1].split("\n\n")[0])
    calls = [n for n in ast.walk(ast.parse(example)) if isinstance(n, ast.Call)]
    mine = [c for c in calls if ast.unparse(c.func).endswith("." + function.__name__)]
    assert mine
    for call in mine:
        where = fovea if ast.unparse(call.func).count(".") == 1 else fovea.experimental
        assert getattr(where, function.__name__) is function
        inspect.signature(function).bind(*call.args, **{k.arg: 0 for k in call.keywords})


def example_of(function):
    text = inspect.getdoc(function)
    return inspect.cleandoc(text.split("Example\n")[1].split("\n\n")[0])


def test_the_examples_that_are_whole_run():
    names = {"numpy": np, "fovea": fovea}
    exec(example_of(fovea.attention_forward), names)
    assert names["o"].shape == (2, 64, 8, 128) and names["lse"].shape == (2, 8, 64)
    names["dout"] = names["o"]
    exec(example_of(fovea.attention_backward), names)
    assert names["dk"].shape == names["k"].shape
    exec(example_of(fovea.rope_table_get), names)
    assert names["cos"].shape == (4096, 64)
    names["x"] = names["q"]
    exec(example_of(fovea.rope_forward), names)
    assert names["y"].shape == names["x"].shape
    exec(example_of(fovea.quant_quantize), names)
    assert names["scale"].shape == (2, 8, 1)
    exec(example_of(fovea.trace_forward), names)
    assert names["selected"].shape == (2, 8, 1, 16)
    teacher = {f"{n}_teacher": names[n] for n in "qk"}
    names.update(teacher, q_student=names["q"], k_student=names["k"])
    exec(example_of(fovea.kl_forward), names)
    assert np.abs(names["kl"]).max() < 1e-5


def test_the_report():
    report = fovea.collect_env()
    assert report["fovea"] == fovea.__version__
    assert report["git"] == fovea.build("git") and report["operations"].isdigit()
    assert os.path.realpath(fovea.library_path) in report["library"]
    with fovea.Context() as ctx:
        assert f"of {ctx.get('multiprocessors')}, " in report["host"]
        fovea.attention_forward(ctx, *[np.ones((1, 1, 1, 8), np.float32)] * 3)
        assert report["host"].endswith("kernels " + ctx.last_kernel.split(".")[2])
    assert report["numpy"] == np.__version__
    if fovea.device_count("cuda") == 0:
        assert report["CUDA devices"].startswith("none")
    else:
        assert "compute capability" in report["cuda:0"]
    text = str(report)
    assert len(text.split("\n")) == len(report) and repr(report) == text


def test_the_report_survives_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(_info.pathlib, "Path", lambda _: tmp_path / "absent")
    monkeypatch.setattr(_info, "_libcuda", lambda: None)
    monkeypatch.setattr(_info, "device_count", lambda _: 2)

    def broken(*_, **__):
        raise fovea.DeviceError("the device fell off")

    monkeypatch.setattr(_info, "Context", broken)
    report = fovea.collect_env()
    assert report["CUDA driver"] == "none found"
    assert report["cuda:1"] == report["host"] == "not told: the device fell off"


@pytest.mark.parametrize(
    "text",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23 2025\nGCC version: 12\n",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (x@y)\n",
    ],
)
def test_the_driver_is_told_by_what_the_kernel_says(monkeypatch, tmp_path, text):
    (tmp_path / "version").write_text(text)
    monkeypatch.setattr(_info.pathlib, "Path", lambda _: tmp_path / "version")

    class Driver:
        @staticmethod
        def cuDriverGetVersion(number):
            number._obj.value = 13020
            return 0

    monkeypatch.setattr(_info, "_libcuda", Driver)
    assert _info._driver() == "570.86.15, CUDA 13.2"


def test_the_command_prints_it_without_numpy():
    env = {
        "PYTHONPATH": str(pathlib.Path(fovea.__file__).parents[1]),
        "FOVEA_LIBRARY": fovea.library_path,
        "FOVEA_OF_THIS_TEST": "told",
    }
    command = [sys.executable, "-S", "-m", "fovea"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert "FOVEA_OF_THIS_TEST" in done.stdout and "kernels" in done.stdout
    code = "import sys, fovea; fovea.collect_env(); print([m for m in sys.modules if m in ('numpy', 'torch')])"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_help_of_the_package_prints():
    with contextlib.redirect_stdout(io.StringIO()) as out:
        pydoc.help(fovea.attention_forward)
    assert "o, lse = fovea.attention_forward(q, k, v, causal=True, lse=True)" in out.getvalue()
