# SPDX-License-Identifier: Apache-2.0
"""Layers of constant size: a step is the formula, any cut of a text gives the same, the gradient is
a slope, and the command learns, judges, keeps its files and answers."""
import os
import pathlib
import subprocess
import sys

# NumPy's BLAS spins while it waits, which starves everything on a machine that is also building.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy as np  # noqa: E402
import pytest  # noqa: E402

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples/python"
sys.path.insert(0, str(EXAMPLES))
from linear import engine  # noqa: E402
from smollm import transfer  # noqa: E402
from smollm.model import Config  # noqa: E402
from smollm.reference import ReferenceAttention  # noqa: E402
from smollm.window import WINDOW, Features, WindowAttention, read_window  # noqa: E402
from training.table import read_tsv  # noqa: E402

SMALL = Config(layers=2, heads=4, key_heads=2, head_dim=16, rope_base=1e4, norm_eps=1e-5,
               context=512)
TOKENS = 150


@pytest.fixture
def qkv():
    random = np.random.default_rng(3)
    return [random.standard_normal((TOKENS, heads, SMALL.head_dim), np.float32)
            for heads in (SMALL.heads, SMALL.key_heads, SMALL.key_heads)]


@pytest.fixture
def phi():
    """Of older keys that count: as much as the window's, about."""
    features = Features(SMALL, 8)
    for name in ("q b", "k b"):
        features.weights[name].value += np.float32(3)
    return features


def attend(ctx, phi, qkv, cuts, older=True):
    attention = WindowAttention(SMALL, TOKENS, ctx, {1: phi}, older)
    out = []
    for first, last in zip((0, *cuts), (*cuts, TOKENS)):
        attention.extend(last - first)
        out.append(attention.attend(1, *(x[first:last] for x in qkv)))
    return np.concatenate(out), attention


def formula(phi, qkv):
    """Both sets of keys under one denominator, in float64."""
    rope = ReferenceAttention(SMALL)
    rope.extend(TOKENS)
    q, k, v = (np.asarray(x, np.float64) for x in qkv)

    def features(name, x):
        w, b = (phi.weights[f"{name} {of}"].value.astype(np.float64) for of in "wb")
        y = np.einsum("shd,hdm->shm", x, w)
        return np.exp(np.concatenate([y, -y], axis=2) + b)
    group = SMALL.heads // SMALL.key_heads
    near = np.einsum("shd,thd->hst", rope.rotate(q), rope.rotate(k).repeat(group, axis=1))
    far = np.einsum("shd,thd->hst", features("q", q), features("k", k).repeat(group, axis=1))
    age = np.arange(TOKENS)[:, None] - np.arange(TOKENS)
    near = np.where((age >= 0) & (age < WINDOW), np.exp(near / SMALL.head_dim**0.5), 0)
    far = np.where(age >= WINDOW, far, 0)
    p = near + far
    p /= p.sum(axis=2, keepdims=True)
    return np.einsum("hst,thd->shd", p, v.repeat(group, axis=1)), far.sum(axis=2) / near.sum(axis=2)


def test_a_row_is_the_formula(ctx, phi, qkv):
    want, share = formula(phi, qkv)
    assert share[:, -1].min() > 0.05 and (share[:, :WINDOW] == 0).all()
    got, _ = attend(ctx, phi, qkv, ())
    np.testing.assert_allclose(got, want, atol=2e-5)


@pytest.mark.parametrize("cuts", [(1, 2, 3), (63, 64, 65, 129), (40, 140), range(1, TOKENS)])
def test_a_text_does_not_depend_on_its_cuts(ctx, phi, qkv, cuts):
    want, whole = attend(ctx, phi, qkv, ())
    got, attention = attend(ctx, phi, qkv, cuts)
    np.testing.assert_allclose(got, want, atol=2e-5)
    assert attention.bytes() == whole.bytes()


def test_without_older_keys_it_is_the_window(ctx, phi, qkv):
    got, attention = attend(ctx, phi, qkv, (), older=False)
    with_state, whole = attend(ctx, phi, qkv, ())
    np.testing.assert_array_equal(got[:WINDOW], with_state[:WINDOW])
    assert np.abs(got[WINDOW:] - with_state[WINDOW:]).max() > 0.01
    assert attention.bytes() < whole.bytes()


def test_another_text_begins_anew(ctx, phi, qkv):
    want, attention = attend(ctx, phi, qkv, ())
    attention.rewind(0)
    attention.extend(TOKENS)
    np.testing.assert_array_equal(attention.attend(1, *qkv), want)
    with pytest.raises(ValueError, match="all tokens or none"):
        attention.rewind(5)


def test_the_gradient_is_a_slope(ctx, phi, qkv):
    ours = engine.Fovea(ctx)
    q, k, v = (x[None] for x in qkv)
    wanted = np.random.default_rng(4).standard_normal(q.shape, np.float32)
    seen = transfer.Seen(q, k, v, wanted, read_window(ours, q, k, v))
    out = np.random.default_rng(5).standard_normal((SMALL.heads * SMALL.head_dim, 8), np.float32)
    loss = transfer.error(ours, phi, seen, out)
    loss.backward()
    grads = {name: w.grad.astype(np.float64) for name, w in phi.weights.items()}
    squares = sum((grad**2).sum() for grad in grads.values())
    step, losses = 0.002 / squares, []
    for sign in (1, -2):
        for name, w in phi.weights.items():
            w.value = w.value + np.float32(sign * step) * grads[name].astype(np.float32)
        losses.append(float(transfer.error(ours, phi, seen, out).value))
    assert losses[0] - losses[1] == pytest.approx(2 * step * squares, rel=0.02)


def test_layers_have_numbers_ranges_and_a_sentence():
    assert transfer.layers_of("5,10-12", 30) == [5, 10, 11, 12]
    assert transfer.layers_of("all", 3) == [0, 1, 2]
    for wrong in ("x", "", "30", "3-", "5-4"):
        with pytest.raises(SystemExit, match="--linear"):
            transfer.layers_of(wrong, 30)


def row(loss, share):
    return transfer.Row("", loss, 1.0, share, 0, 0)


def test_a_missed_bar_is_said():
    assert "the bar of a half is missed" in transfer.verdict([row(2, 1), row(3, 0), row(2.6, 0.4)])
    assert "the bar of a half is met" in transfer.verdict([row(2, 1), row(3, 0), row(2.4, 0.6)])
    assert "nothing to win back" in transfer.verdict([row(2, 1), row(2, 0), row(2, np.nan)])


def test_the_command_learns_judges_and_answers(tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, str(EXAMPLES / "smollm/generate.py"), "--linear", "1,2", "--tokens",
               "3", "--steps", "12", "--windows", "1", "--held-out", "1", "--held-tokens", "200",
               "--state-tokens", "400", "--threads", "2", "--linear-out", str(out), "Hi"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = read_tsv(out / "linear.tsv")
    assert [row["reads"] for row in rows] == list(transfer.NAMES)
    assert int(rows[0]["bytes_whole"]) == 2 * int(rows[0]["bytes_half"])
    for constant in rows[1:]:
        assert 0 < int(constant["bytes_half"]) == int(constant["bytes_whole"])
    assert all(1 < float(row["loss"]) < 5 for row in rows)
    assert (out / "linear.md").read_text() in done.stdout
    assert (out / "linear.png").read_bytes().startswith(b"\x89PNG")
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 0 and "features.npz" in again.stderr
    assert again.stdout.strip() == done.stdout.strip().splitlines()[-1].strip()
    command[command.index("1,2")] = "1"
    other = subprocess.run(command, capture_output=True, text=True)
    assert other.returncode == 1 and "features of layers [1, 2], wanted [1]" in other.stderr
