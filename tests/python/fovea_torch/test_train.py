# SPDX-License-Identifier: Apache-2.0
"""examples/python/train.py learns, and takes the same steps as with torch's attention."""

import pathlib
import sys

EXAMPLES = pathlib.Path(__file__).resolve().parents[3] / "examples/python"


def test_train_as_torch(monkeypatch, device):
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    import train

    text = (EXAMPLES / "README.md").read_bytes()
    ours = train.train(text, 12, device, train.ours, report=lambda line: None)
    theirs = train.train(text, 12, device, train.theirs, report=lambda line: None)
    assert ours[-1] < ours[0] - 1
    assert all(abs(a - b) < 1e-2 for a, b in zip(ours, theirs)), (ours, theirs)
