# SPDX-License-Identifier: Apache-2.0
"""bench/quantised_accuracy.tsv has every method and cache, within the limits of its paper's rounding,
and is what its script writes."""

import pathlib
import sys

import fovea
import pytest

pytest.importorskip("ml_dtypes", reason="ml_dtypes not installed: pip install ml_dtypes")
BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))
import quantised_accuracy  # noqa: E402

ROWS = [line.split("\t") for line in quantised_accuracy.TABLE.read_text().splitlines()[1:]]
# The least cosine on D1 and on D2.
COSINES = {
    "fa3_fp8": (0.9975, 0.999), "sageattention": (0.9998, 0.9999),
    "sageattention2": (0.9985, 0.9997), "sageattention2pp": (0.9985, 0.9997),
    "sageattention2_int4": (0.965, 0.995), "sageattention3": (0.970, 0.995),
    "sagebwd": (0.9995, 0.9999), "kivi2": (0.80, 0.985), "kivi4": (0.99, 0.9995),
    "kvquant2": (0.88, 0.998), "kvquant3": (0.96, 0.9993), "kvquant4": (0.99, 0.9998),
    "turboquant": (0.985, 0.9995), "kvarn": (0.85, 0.997),
}  # fmt: skip


def test_the_table_is_whole():
    wanted = set()
    for method in fovea.recipes():
        masks = {"x_quantised_forward": ("full", "causal"), "x_kv_decode": ("decode",)}
        for mask in masks.get(method.operation, ()):
            wanted |= {(method.name, kind, mask) for kind in ("D1", "D2", "D3")}
    assert {tuple(row[:3]) for row in ROWS} == wanted and len(ROWS) == len(wanted)
    assert {row[0] for row in ROWS} == set(COSINES)


def test_within_the_limits():
    for name, kind, _, cosine, *_ in ROWS:
        if kind != "D3":
            assert float(cosine) >= COSINES[name][int(kind[1]) - 1], (name, kind)


@pytest.mark.parametrize("name", COSINES)
def test_it_is_what_the_script_writes(name):
    method = fovea.recipe(name)
    with fovea.Context("host", threads=2) as ctx:
        for row in ROWS:
            if row[0] != name or row[2] == "causal":
                continue
            if row[2] == "decode":
                if row[1] != "D1" and "group" not in method.numbers:
                    continue  # levels take seconds to find
                found = quantised_accuracy.decoded(ctx, method, row[1])
            else:
                found = quantised_accuracy.by_method(ctx, method, row[1], False)
            assert not quantised_accuracy.apart("\t".join(row), "\t".join((*row[:3], *found))), row
