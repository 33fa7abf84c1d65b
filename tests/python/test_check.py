# SPDX-License-Identifier: Apache-2.0
"""FOVEA_CHECK=1 names a bad page on both backends.  The environment is read once a process, so each
case is a process of its own; tests/inspect.cpp has every field, on the host."""

import os
import subprocess
import sys

import fovea
import pytest

PROGRAM = """
import sys
import numpy as np
import fovea

ctx = fovea.Context(sys.argv[1])
q, cache = (np.ones((1, s, 2, 16), np.float32) for s in (1, 4))
place = lambda x: ctx.array(np.ascontiguousarray(x))
table = np.array([[0, int(sys.argv[2])]], np.int32)
length = np.array([6], np.int32)
o = fovea.attention_forward(
    ctx, place(q), place(cache), place(cache), page_table=place(table), key_len=place(length)
)
print(o.numpy().ravel()[0])
"""


def run(backend, page, check):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, backend, str(page)],
        env={**os.environ, "FOVEA_CHECK": check, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("backend", ["host", "cuda"])
def test_a_page_outside_the_pool_is_named_when_asked(backend):
    if not fovea.device_count(backend):
        pytest.skip("no CUDA device here")
    assert run(backend, 0, "1").stdout.strip() == "1.0"
    for check in "", "0":
        assert run(backend, 7, check).stdout.strip() == "1.0"
    found = run(backend, 7, "1")
    said = "attention_forward: page_table[0][1] is 7, wanted -1 .. 0 (FOVEA_CHECK)"
    assert found.returncode == 1 and said in found.stderr
