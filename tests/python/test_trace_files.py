# SPDX-License-Identifier: Apache-2.0
"""fovea-trace: what its files say is what trace_forward said, and each says the same."""

import csv
import json
import os
import pathlib
import subprocess
import sys

import fovea
import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples/python"
sys.path.insert(0, str(EXAMPLES))
from fovea_trace import files, record  # noqa: E402

TEXT = "\n".join(f"Rule {i}: say what was got, “and” what was <wanted> & why." for i in range(40))
BLOCK, KEEP = 16, 4


@pytest.fixture
def trace(ctx):
    """Two layers of random queries and keys, streamed; beside them what trace_forward says."""
    random = np.random.default_rng(8)
    got, wanted = bytearray(), []
    fields = dict(block_rows=BLOCK, block_keys=2 * BLOCK, causal=True)
    layers = [2, 5]
    with fovea.TraceSession(ctx, keep=KEEP, edge_kind="mass", **fields).begin(
        got.extend
    ) as session:
        for layer in layers:
            q = random.standard_normal((1, 250, 4, 8), dtype=np.float32)
            k = random.standard_normal((1, 250, 2, 8), dtype=np.float32)
            session.trace(q, k, layer=layer)
            wanted.append(
                fovea.trace_forward(ctx, q, k, keep=KEEP, selected=True, edge_mass=True, **fields)
            )
    about = dict(title="random", tokens=250, layers=layers, heads=4, block_rows=BLOCK,
                 block_keys=2 * BLOCK, keep=KEEP, edge_kind="mass")  # fmt: skip
    row_text = [f'row "{i}"\n<' for i in range(16)]
    retained = random.random((2, 4, 16), dtype=np.float32)
    edges = np.frombuffer(got, record.RECORD)
    return record.Trace(about, edges, retained, row_text, [f"key {i} é" for i in range(8)]), wanted


def tuples(trace, wanted):
    """(layer, head, row block, key block, weight) from selected and edge_mass."""
    for layer, (selected, mass) in zip(trace.layers, wanted):
        for head, q, slot in np.ndindex(selected.shape[1:]):
            if selected[0, head, q, slot] >= 0:
                yield layer, head, q, int(selected[0, head, q, slot]), mass[0, head, q, slot]


def test_every_file_has_the_edges_of_trace_forward(trace, tmp_path):
    trace, wanted = trace
    want = list(tuples(trace, wanted))
    assert len(want) > 300

    files.write_npz(trace, tmp_path / "trace.npz")
    with np.load(tmp_path / "trace.npz") as npz:  # no pickle
        assert [tuple(e) for e in npz["edge"]] == [w[:4] for w in want]
        assert np.array_equal(npz["edge_weight"], np.array([w[4] for w in want]))
        assert np.array_equal(npz["retained"], trace.retained)
        assert npz["row_text"].tolist() == trace.row_text
        assert npz["key_text"].tolist() == trace.key_text
        assert json.loads(str(npz["about"])) == trace.about

    files.write_csv(trace, tmp_path / "trace.csv")
    with open(tmp_path / "trace.csv", newline="") as file:
        header, *lines = csv.reader(file)
    assert header == ["layer", "head", "q_block", "k_block", "weight"]
    assert [(*map(int, line[:4]), np.float32(line[4])) for line in lines] == want

    files.write_json(trace, tmp_path / "trace.json")
    graph = json.loads((tmp_path / "trace.json").read_text())
    assert graph["directed"] is True and graph["graph"] == trace.about
    nodes = {node["id"]: node for node in graph["nodes"]}
    assert len(nodes) == 16 + 8
    assert nodes["q3"]["text"] == trace.row_text[3]
    assert (nodes["q3"]["first_token"], nodes["q3"]["last_token"]) == (48, 63)
    assert (nodes["k7"]["first_token"], nodes["k7"]["last_token"]) == (224, 249)
    got = [(link["layer"], link["head"], nodes[link["source"]]["block"],
            nodes[link["target"]]["block"], np.float32(link["weight"]))
           for link in graph["links"]]  # fmt: skip
    assert got == want


def test_a_score_that_json_cannot_say_is_null(trace, tmp_path):
    trace, _ = trace
    trace.edges = trace.edges.copy()
    trace.edges["weight"][0] = -np.inf
    files.write_json(trace, tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text())["links"][0]["weight"] is None


def test_progress_counts_edges(trace, tmp_path, monkeypatch):
    trace, _ = trace
    monkeypatch.setattr(files, "STEP", 100)
    seen = []
    files.write_csv(trace, tmp_path / "trace.csv", lambda done, total: seen.append((done, total)))
    assert seen == [(i, len(trace.edges)) for i in range(0, len(trace.edges), 100)]


def test_blocks_of_text_are_the_whole_text():
    offsets = [(i, i + 1) for i in range(len(TEXT))]
    blocks = record.block_text(TEXT, offsets, 64)
    assert "".join(blocks) == TEXT and len(blocks[0]) == 64
    assert np.allclose(record.block_mean(np.arange(5.0)[None], 2), [[0.5, 2.5, 4]])


def run(*arguments):
    command = [sys.executable, str(EXAMPLES / "fovea_trace/command.py"), *map(str, arguments)]
    environment = {**os.environ, "PYTHONUTF8": "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_the_command_traces_a_model(tmp_path):
    text = tmp_path / "rules.txt"
    text.write_text(TEXT, encoding="utf-8")
    ran = run(text, "--out", tmp_path / "out", "--layers", "0,2-3", "--tokens", 300, "--keep", 3,
              "--block-rows", 32, "--block-keys", 16)  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "trace_forward.host" in ran.stderr and "tracing the first 300" in ran.stderr
    with np.load(tmp_path / "out/trace.npz") as npz:
        edge, weight, retained = npz["edge"], npz["edge_weight"], npz["retained"]
        assert "".join(npz["row_text"]) == "".join(npz["key_text"])
        assert TEXT.startswith("".join(npz["row_text"]))
    assert sorted(set(edge[:, 0])) == [0, 2, 3] and retained.shape == (3, 9, 10)
    rows = np.zeros((4, 9, 10))
    np.add.at(rows, tuple(edge[:, :3].T), weight)
    np.testing.assert_allclose(
        rows[[0, 2, 3]], np.broadcast_to([32] * 9 + [12], (3, 9, 10)), rtol=1e-4
    )
    assert retained.min() > 0 and retained.max() <= 1
    np.testing.assert_allclose(retained[..., 0], 1, atol=1e-4)  # two blocks of keys, three kept
    lines = (tmp_path / "out/trace.csv").read_text().count("\n")
    links = json.loads((tmp_path / "out/trace.json").read_text())["links"]
    assert lines - 1 == len(links) == len(edge)
    assert "://" not in (tmp_path / "out/trace.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "words, why",
    [
        (["nowhere.txt"], "nowhere.txt"),
        ([__file__, "--keep", "0"], "--keep is 0, wanted 1 .. 256"),
        ([__file__, "--layers", "40"], "wanted layers of 0 .. 29"),
        ([__file__, "--layers", "x"], "wanted such as 0-3,7"),
    ],
)
def test_the_command_says_what_is_wrong(words, why):
    ran = run(*words)
    assert ran.returncode != 0 and why in ran.stderr and "Traceback" not in ran.stderr
