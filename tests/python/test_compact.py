# SPDX-License-Identifier: Apache-2.0
"""Attention with a small cache: gradients are right, pages give the logits of training, latents of
full rank and lists of all keys are dense attention, and the commands write what they measure."""
import os
import pathlib
import sys

# NumPy's BLAS spins while it waits, which starves everything on a machine that is also building.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy as np  # noqa: E402
import pytest  # noqa: E402

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples/python"
sys.path.insert(0, str(EXAMPLES))
from compact import lm  # noqa: E402
from compact.kinds import KINDS  # noqa: E402
from compact.model import PAGE, Attention, Model, Pages  # noqa: E402
from smollm.text import distinct_text  # noqa: E402
from training import table, tape  # noqa: E402
from training.adam import Adam  # noqa: E402
from training.model import train_step  # noqa: E402
from training.text import windows  # noqa: E402


@pytest.fixture(scope="module")
def text():
    return np.frombuffer(distinct_text(None).encode(), np.uint8).astype(np.int64)


@pytest.fixture
def engine(ctx):
    return Attention(ctx)


def tiny(name, engine):
    """With weights that start at 0 moved, so that all count."""
    model = Model(KINDS[name], engine, layers=1, width=16)
    for w in model.weights.values():
        w.value += np.float32(0.3) * (w.value == 0)
    return model


@pytest.mark.parametrize("name", KINDS)
def test_gradients_are_slopes(name, text, engine):
    """Along its own gradient each weight changes the loss as the gradient says."""
    model = tiny(name, engine)
    x, y = windows(text, np.array([100, 5000]), 16)
    tape.cross_entropy(model.forward(x), y).backward()
    model.trained = False
    for name, w in model.weights.items():
        assert w.grad is not None, name
        along = w.grad.astype(np.float64)
        squares, kept, losses = float((along**2).sum()), w.value, []
        for sign in (1, -1):
            step = sign * 0.01 / squares**0.5
            w.value = (kept + step * along).astype(np.float32)
            losses.append(float(tape.cross_entropy(model.forward(x), y).value))
        w.value = kept
        assert losses[0] - losses[1] == pytest.approx(0.02 * squares**0.5, rel=0.02), name


@pytest.mark.parametrize("name", KINDS)
def test_a_step_lowers_the_loss(name, text, engine):
    model = tiny(name, engine)
    adam, batch = Adam(model.weights, 3e-3, 4, most=1.0), windows(text, np.arange(0, 900, 300), 24)
    losses = [train_step(model, adam, *batch) for _ in range(3)]
    assert losses[0] > losses[1] > losses[2]
