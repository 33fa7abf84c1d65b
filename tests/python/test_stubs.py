# SPDX-License-Identifier: Apache-2.0
"""The package's types, as mypy --strict reads them, and the stubs beside the functions."""

import ast
import importlib.util
import inspect
import os
import pathlib
import re
import subprocess
import sys

import fovea
import pytest
from stub_text import parameters

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGE = ROOT / "bindings/python/fovea"


# What a user types, and the stubs with calls that must be taken and refused.
COMMAND = "mypy --strict examples/python"
STUBS = ("tests/python/typed", "bindings/python/fovea/__init__.py")
TORCH = all(map(importlib.util.find_spec, ("torch", "transformers")))
OF_TORCH = (
    "train.py", "finetune.py", "distill_torch.py", "long_train.py", "right_torch.py",
    "wrong_torch.py",
)  # fmt: skip


def files():
    """Those of COMMAND and STUBS.  Where PyTorch or transformers is missing, what subclasses their
    classes has no types to check; with FOVEA_REQUIRE_ALL nothing is left out."""
    if TORCH or os.environ.get("FOVEA_REQUIRE_ALL"):
        inside = [*stubs("*.pyi"), *stubs("torch/*.pyi"), *stubs("distributed/*.pyi")]
        return [*COMMAND.split()[2:], *STUBS, *inside]
    found = [*ROOT.glob("examples/python/**/*.py"), *HERE.glob("typed/*.py")]
    kept = [str(path) for path in found if path.name not in OF_TORCH]
    return [*kept, STUBS[1], *stubs("[!t]*.pyi")]


def stubs(pattern):
    return map(str, sorted(PACKAGE.glob(pattern)))


@pytest.fixture(scope="module")
def errors():
    """(file, line) -> what mypy says there.  A first run reads NumPy and torch, 20 seconds; .cache
    spares them later."""
    if not os.environ.get("FOVEA_REQUIRE_ALL"):
        pytest.importorskip("mypy")
    options = ["--no-error-summary", "--hide-error-context"]
    done = subprocess.run(
        [sys.executable, "-m", *COMMAND.split()[:2], *options, *files()],
        env={"PATH": ""},
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode < 2 and not done.stderr, done.stdout + done.stderr
    said = {}
    for line in done.stdout.splitlines():
        if found := re.match(r"(.*?):(\d+): error: (.*)", line):
            at = (ROOT / found[1]).resolve(), int(found[2])
            said[at] = said.get(at, "") + found[3] + "\n"
    return said


def of(errors, folder):
    return {at: why for at, why in errors.items() if folder in at[0].parents}


def test_right_calls_have_their_types(errors):
    assert {at: why for at, why in errors.items() if at[0].name.startswith("right")} == {}


def test_the_package_is_free_of_errors(errors):
    assert of(errors, PACKAGE) == {}


def test_the_examples_are_free_of_errors(errors):
    assert of(errors, ROOT / "examples") == {}


@pytest.mark.parametrize("name", ["wrong.py", "wrong_torch.py"])
def test_wrong_calls_are_refused(errors, name):
    path = HERE / "typed" / name
    if name in OF_TORCH and str(STUBS[0]) not in files():
        pytest.skip("torch or transformers not installed: pip install torch transformers")
    wanted = {
        (path, number): found[1]
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (found := re.search(r"# wrong: (.*)", line))
    }
    assert len(wanted) > 10 and {at for at in errors if at[0] == path} == set(wanted)
    for at, text in wanted.items():
        assert text in errors[at], (at, errors[at])


def test_every_public_name_of_torch_and_transformers_is_used():
    text = (HERE / "typed/right_torch.py").read_text()
    for module in ("torch/__init__.py", "distributed/__init__.py", "transformers.py"):
        tree = ast.parse((PACKAGE / module).read_text())
        names = next(
            ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign) and node.targets[0].id == "__all__"
        )
        for name in names:
            used = f"fovea.{module.partition('/')[0].partition('.')[0]}.{name}"
            assert re.search(rf"\b{re.escape(used)}\b", text), used


def test_the_stub_of_transformers_has_the_names_and_parameters():
    import fovea.transformers as module

    path = PACKAGE / "transformers.pyi"
    told = parameters(path)
    named = {name.partition(".")[0] for name in told} | {"METHODS", "NAME"}
    assert named == set(module.__all__) and re.search(r'^NAME: .*"(.*)"', path.read_text(), re.M)
    for name, wanted in told.items():
        of, _, method = name.partition(".")
        real = getattr(module, of)
        if method and not isinstance(inspect.getattr_static(real, method), property):
            real = getattr(real, method)
        elif method or inspect.isclass(real):
            continue
        assert wanted == set(inspect.signature(real).parameters), name


def stub_parameters(path):
    """name -> all parameters of its overloads and of the fields they unpack."""
    told = parameters(path)
    return {n: (p | told["_" + n]) - {"fields"} for n, p in told.items() if "_" + n in told}


@pytest.mark.parametrize("module", [fovea.ops, fovea.experimental], ids=lambda m: m.__name__)
def test_stubs_have_the_parameters_of_the_functions(module):
    told = stub_parameters(PACKAGE / (module.__name__.partition(".")[2] + ".pyi"))
    real = {
        name: {p for p in inspect.signature(getattr(module, name)).parameters if "ctx_or_" not in p}
        for name in module.__all__
        if name[0].islower()
    }
    assert told == real


def test_the_package_says_that_it_is_typed():
    assert (PACKAGE / "py.typed").exists()
