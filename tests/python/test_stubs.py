# SPDX-License-Identifier: Apache-2.0
"""The package's types, as mypy --strict reads them, and the stubs beside the functions."""

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


@pytest.fixture(scope="module")
def errors():
    """(file, line) -> what mypy --strict says there, of the files in typed/, the stubs and the
    examples, whose own functions need no types.  The cache in .cache spares later runs NumPy."""
    if not os.environ.get("FOVEA_REQUIRE_ALL"):
        pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", "--config-file", str(HERE / "typed/mypy.ini")]
    command += ["--cache-dir", str(ROOT / ".cache/mypy"), "--no-error-summary", "--hide-error-context"]
    files = [PACKAGE / "__init__.py", *PACKAGE.glob("*.pyi"), *HERE.glob("typed/*.py")]
    files += sorted((ROOT / "examples/python").rglob("*.py"))
    done = subprocess.run(
        [*command, *map(str, files)],
        env={"MYPYPATH": f"{ROOT / 'bindings/python'}:{ROOT / 'examples/python'}", "PATH": ""},
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


def test_right_calls_have_their_types(errors):
    assert {at: why for at, why in errors.items() if at[0] == HERE / "typed/right.py"} == {}


def test_the_package_is_free_of_errors(errors):
    assert {at: why for at, why in errors.items() if PACKAGE in at[0].parents} == {}


def test_wrong_calls_are_refused(errors):
    path = HERE / "typed/wrong.py"
    wanted = {
        (path, number): found[1]
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (found := re.search(r"# wrong: (.*)", line))
    }
    assert len(wanted) > 15 and {at for at in errors if at[0] == path} == set(wanted)
    for at, text in wanted.items():
        assert text in errors[at], (at, errors[at])


def test_the_examples_use_fovea_as_its_types_say(errors):
    """No line that calls fovea is in error; what else mypy finds there is not about fovea."""
    found = {}
    for (path, number), why in errors.items():
        if ROOT / "examples" in path.parents:
            line = path.read_text().splitlines()[number - 1]
            if "fovea." in line or "fovea" in why:
                found[path.name, number] = why
    assert found == {}


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
