# SPDX-License-Identifier: Apache-2.0
"""Linear attention trained from scratch: gradients are right, the loss is that of the recurrence in
NumPy, a text does not depend on the cuts of its prompt, and a model learns to recall."""
import os
import pathlib
import sys

# NumPy's BLAS spins while it waits, which starves everything on a machine that is also building.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy as np  # noqa: E402
import pytest  # noqa: E402

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples/python"
sys.path.insert(0, str(EXAMPLES))
from linear import engine, lm, recall  # noqa: E402
from linear.methods import CORRECTING, METHODS  # noqa: E402
from linear.model import Model, Shape, State  # noqa: E402
from smollm.text import distinct_text  # noqa: E402
from training import table, tape  # noqa: E402
from training.text import windows  # noqa: E402

TINY = Shape(layers=1, width=16, head_count=2, hidden=16)
SMALL = "--steps 2 --rows 2 --tokens 32 --layers 1 --held-out 2 --threads 1".split()


@pytest.fixture(scope="module")
def text():
    return np.frombuffer(distinct_text(None).encode(), np.uint8).astype(np.int64)


@pytest.fixture
def ours(ctx):
    return engine.Fovea(ctx)


@pytest.mark.parametrize("name", METHODS)
def test_the_curve_is_that_of_the_recurrence(name, text, ours, monkeypatch):
    monkeypatch.setattr(lm, "CHECKED", 24 if name in ("gla", "gated_deltanet") else 6)
    assert lm.check(METHODS[name], text, ours, seed=0) <= 1e-3


@pytest.mark.parametrize("name", METHODS)
def test_gradients_are_slopes(name, text, ours):
    """Along its own gradient the loss changes as the gradient says."""
    model = Model(METHODS[name], TINY, ours)
    x, y = windows(text, np.array([100, 5000]), 16)
    tape.cross_entropy(model.forward(x), y).backward()
    along = {name: w.grad for name, w in model.weights.items()}
    assert all(grad is not None for grad in along.values())
    squares = sum(float((grad.astype(np.float64) ** 2).sum()) for grad in along.values())
    model.trained, step, losses = False, 0.0005 / squares, []
    for sign in (1, -2):
        for name, w in model.weights.items():
            w.value += np.float32(sign * step) * along[name]
        losses.append(float(tape.cross_entropy(model.forward(x), y).value))
    assert losses[0] - losses[1] == pytest.approx(2 * step * squares, rel=0.02)


def test_the_command_trains_writes_and_saves(tmp_path, capsys):
    rows = lm.main([*SMALL, "--method", "all", "--write", "8", "--out", str(tmp_path)])
    assert [row.method for row in rows] == list(METHODS)
    assert all(2 < row.bits < 10 and row.state_bytes > 0 for row in rows)
    assert [row["method"] for row in table.read_tsv(tmp_path / "lm.tsv")] == list(METHODS)
    assert (tmp_path / "lm.png").read_bytes().startswith(b"\x89PNG")
    heard = capsys.readouterr()
    assert heard.err.count("the logits are the same bits") == len(METHODS)
    assert all(f"{name} writes:" in heard.out and f"| {name} |" in heard.out for name in METHODS)
    for row in rows:
        with np.load(tmp_path / f"{row.method}.npz") as weights:
            assert sum(weights[name].size for name in weights) == row.weights
    with pytest.raises(SystemExit) as why:
        lm.main([*SMALL, "--method", "gla", "--out", str(tmp_path)])
    assert why.value.code == 1 and "--force" in capsys.readouterr().err


@pytest.mark.parametrize("name", METHODS)
def test_a_state_does_not_grow(name, text, ours):
    model = Model(METHODS[name], TINY, ours)
    model.trained, state, sizes = False, State(1), []
    for first in (0, 3, 40):
        whole = model.forward(text[None, first:first + 37], state)
        sizes.append(state.bytes())
    assert sizes[0] == sizes[1] == sizes[2] > 0 and state.tokens == 111
    assert np.isfinite(whole.value).all()


def test_a_state_goes_on_as_the_whole_text_does(text, ours):
    """Training reads a text at once and without a state: the same logits, to rounding."""
    for name in METHODS:
        model = Model(METHODS[name], TINY, ours)
        model.trained, state = False, State(1)
        whole = model.forward(text[None, :40]).value
        parts = [model.forward(text[None, i:i + 8], state).value for i in range(0, 40, 8)]
        np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, atol=2e-3, err_msg=name)


def test_recall_is_learned(tmp_path):
    small = "--pairs 2 --tokens 8 --vocabulary 9 --steps 160 --rows 32 --enough 0.95".split()
    row, = recall.main([*small, "--threads", "1", "--method", "deltanet", "--out", str(tmp_path)])
    assert row.accuracy > 0.9 and row.method in CORRECTING
    assert (tmp_path / "recall.png").read_bytes().startswith(b"\x89PNG")
    assert "deltanet" in (tmp_path / "recall.md").read_text()


def test_answers_are_the_values_of_their_keys():
    args = recall.arguments(["--pairs", "4", "--tokens", "24", "--vocabulary", "32"])
    tokens, answers = recall.texts(np.random.default_rng(3), 16, args)
    assert (answers[:, :8] == -1).all()
    for line, wanted in zip(tokens, answers):
        pairs, asked = dict(zip(line[0:8:2], line[1:8:2])), np.flatnonzero(wanted >= 0)
        assert sorted(line[asked]) == sorted([*pairs, *pairs]) and min(pairs) > 0
        assert [pairs[key] for key in line[asked]] == list(wanted[asked])
        assert (line[8:][wanted[8:] < 0] == 0).all() and min(pairs.values()) > max(pairs)


@pytest.mark.parametrize("command, options, words", [
    (lm, ["--method", "gla,none"], "--method has none, wanted some of linear_transformer"),
    (recall, ["--method", "gla,,"], "--method has an empty name"),
])
def test_names_that_are_not_there(command, options, words):
    with pytest.raises(SystemExit) as why:
        command.main(options)
    assert words in str(why.value.code)


@pytest.mark.parametrize("command, options", [
    (lm, ["--steps", "0"]), (lm, ["--prompt", ""]), (lm, ["--text", "nowhere"]),
    (lm, ["--rate", "0"]), (recall, ["--tokens", "16"]), (recall, ["--vocabulary", "8"]),
])
def test_wrong_options(command, options):
    with pytest.raises(SystemExit) as why:
        command.main(options)
    assert why.value.code == 2
