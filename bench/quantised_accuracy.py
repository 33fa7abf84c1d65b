#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How far each method of quantised attention and each low-bit cache is from exact attention.

    python3 bench/quantised_accuracy.py            # writes bench/quantised_accuracy.tsv
    python3 bench/quantised_accuracy.py --check    # fails where the table is not what it writes

Inputs, rounded to f16:
    D1  normal numbers
    D2  biased channels: q by 0.5, k by 0.5 and 8 in four of them, v by 0.3
    D3  normal numbers and, of each thousand, one of ten times their size
Methods attend 1024 rows to 1024 keys, 2 heads of 128.  Caches are read by one row of each of 8 heads
over 4096 keys.  KVQuant has 1 % of outliers, and levels of 512 tokens that follow.  TurboQuant is
given keys and values that are turned by a random rotation, KVarN by Hadamard's matrix.  The truth is float64 on the same inputs.
For each: the cosine of all of o, the L1 norm of what is off by that of o, and the largest relative
L2 error of a row.  On the host."""

import argparse
import pathlib
import sys

import ml_dtypes  # noqa: F401  fovea.recipe gives codes as its types
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bindings/python"))
import fovea  # noqa: E402

TABLE = ROOT / "bench/quantised_accuracy.tsv"
HEADS = "name", "inputs", "mask", "cosine", "relative L1", "worst row"
WIDTH, GROUP, RESIDUAL, PAGE = 128, 32, 128, 128


def inputs(kind, rows, keys, heads, seed):
    """q (1, rows, heads, d), k and v (1, keys, heads, d) in f16."""
    random = np.random.default_rng(seed)
    q, k, v = (random.standard_normal((1, n, heads, WIDTH)) for n in (rows, keys, keys))
    if kind == "D2":
        q += 0.5 * random.standard_normal((heads, WIDTH))
        bias = 0.5 * random.standard_normal((heads, WIDTH))
        bias[:, random.choice(WIDTH, 4, replace=False)] += 8 * random.choice([-1, 1], 4)
        k += bias
        v += 0.3 * random.standard_normal((heads, WIDTH))
    if kind == "D3":
        for x in (q, k, v):
            x += (random.random(x.shape) < 0.001) * 10 * random.standard_normal(x.shape)
    return [x.astype(np.float16) for x in (q, k, v)]


def exact(q, k, v, causal):
    q, k, v = (x.astype(np.float64).swapaxes(1, 2) for x in (q, k, v))
    x = q @ k.swapaxes(2, 3) / np.sqrt(WIDTH)
    if causal:
        x[..., ~np.tri(*x.shape[2:], x.shape[3] - x.shape[2], dtype=bool)] = -np.inf
    p = np.exp(x - x.max(-1, keepdims=True))
    return (p @ v / p.sum(-1, keepdims=True)).swapaxes(1, 2)


def measures(o, want):
    o = o.astype(np.float64)
    off = o - want
    cosine = (o * want).sum() / np.sqrt((o * o).sum() * (want * want).sum())
    rows = np.linalg.norm(off, axis=-1) / np.linalg.norm(want, axis=-1)
    return f"{cosine:.5f}", f"{np.abs(off).sum() / np.abs(want).sum():.4f}", f"{rows.max():.4f}"


def by_method(ctx, method, kind, causal):
    q, k, v = inputs(kind, 1024, 1024, 2, 7)
    o = np.empty(q.shape, np.float32)
    method(ctx, q, k, v, o=o, causal=int(causal))
    return measures(o, exact(q, k, v, causal))


def by_cache(ctx, method, kind):
    heads, keys = 8, 4096
    q, k, v = inputs(kind, 1, keys, heads, 7)
    bits, pages = method.numbers["bits"], keys // PAGE
    f16 = lambda *shape: np.zeros(shape, np.float16)
    words = lambda *shape: np.zeros(shape, np.int32)
    scales = (pages, PAGE // GROUP, heads, WIDTH), (pages, PAGE, heads, WIDTH // GROUP)
    held = {
        "k_code": words(*scales[0], GROUP * bits // 32),
        "v_code": words(pages, PAGE, heads, WIDTH * bits // 32),
        "k_scale": f16(*scales[0]), "k_zero": f16(*scales[0]),
        "v_scale": f16(*scales[1]), "v_zero": f16(*scales[1]),
        "k_tail": f16(1, RESIDUAL, heads, WIDTH), "v_tail": f16(1, RESIDUAL + 1, heads, WIDTH),
        "counter": words(1, 4), "page_table": np.arange(pages, dtype=np.int32)[None],
    }  # fmt: skip
    fovea.experimental.kv_append(ctx, k, v, bits=bits, group=GROUP, **held)
    return measures(method(ctx, q, **held, o=np.empty(q.shape, np.float32)), exact(q, k, v, False))


def by_tiles(ctx, method, kind):
    """KVarN's cache, flushed: all tokens are in codes."""
    heads, keys = 8, 4096
    q, k, v = inputs(kind, 1, keys, heads, 7)
    numbers = {name: method.numbers[name] for name in ("bits", "group", "v_bits")}
    tile, pages = numbers["group"], keys // numbers["group"]
    f16 = lambda *shape: np.zeros(shape, np.float16)
    words = lambda *shape: np.zeros(shape, np.int32)
    held = {
        "k_code": words(pages, 1, heads, WIDTH, tile * numbers["bits"] // 32),
        "v_code": words(pages, tile, heads, WIDTH * numbers["v_bits"] // 32),
        "k_scale": f16(pages, 1, heads, WIDTH), "k_zero": f16(pages, 1, heads, WIDTH),
        "v_scale": f16(pages, tile, heads, 1), "v_zero": f16(pages, tile, heads, 1),
        "k_factor": f16(pages, tile, heads), "v_factor": f16(pages, 1, heads, WIDTH),
        "k_tail": f16(1, tile, heads, WIDTH), "v_tail": f16(1, tile, heads, WIDTH),
        "counter": words(1, 4), "page_table": np.arange(pages, dtype=np.int32)[None],
    }  # fmt: skip
    turn = fovea.levels.hadamard(WIDTH).astype(np.float64)
    turned = [(x.astype(np.float64) @ turn).astype(np.float16) for x in (q, k, v)]
    fovea.experimental.kv_append(ctx, *turned[1:], format=3, flush=1, **numbers, **held)
    o = method(ctx, turned[0], **held, o=np.empty(q.shape, np.float32))
    return measures(o.astype(np.float64) @ turn.T, exact(q, k, v, False))


def by_levels(ctx, method, kind):
    """KVQuant's caches and TurboQuant's."""
    heads, keys, more = 8, 4096, 512
    q, k, v = inputs(kind, 1, keys + more, heads, 7)
    bits, pages = method.numbers["bits"], keys // PAGE
    words = lambda *shape: np.zeros(shape, np.int32)
    held = {
        "k_code": words(pages, PAGE // GROUP, heads, WIDTH, GROUP * bits // 32),
        "v_code": words(pages, PAGE, heads, WIDTH * bits // 32),
        "counter": words(1, 4), "page_table": np.arange(pages, dtype=np.int32)[None],
    }  # fmt: skip
    turn = np.eye(WIDTH)
    if method.numbers["format"] == "levels":
        held |= fovea.levels.kvquant(k[0, keys:], v[0, keys:], bits)
        held |= {f"{name}_outlier": words(pages, PAGE, heads * WIDTH // 100) for name in "kv"}
        held["v_bound"] = np.zeros((pages, PAGE, 2), np.float32)
    else:
        turn = np.linalg.qr(np.random.default_rng(8).standard_normal((WIDTH, WIDTH)))[0]
        held |= {f"{name}_level": fovea.levels.turboquant(bits, WIDTH) for name in "kv"}
        held |= {f"{name}_norm": np.zeros((pages, PAGE, heads), np.float32) for name in "kv"}
    k, v = k[:, :keys], v[:, :keys]
    format = {"levels": 1, "norms": 2}[method.numbers["format"]]
    turned = [(x.astype(np.float64) @ turn).astype(np.float16) for x in (q, k, v)]
    fovea.experimental.kv_append(ctx, *turned[1:], bits=bits, format=format, **held)
    if format == 1:  # keys turn after they are read; an angle of 0 leaves each error as it is
        held["cos"], held["sin"] = (np.full((keys, WIDTH // 2), x, np.float32) for x in (1, 0))
    o = method(ctx, turned[0], **held, o=np.empty(q.shape, np.float32))
    return measures(o.astype(np.float64) @ turn.T, exact(q, k, v, False))


def decoded(ctx, method, kind):
    if "v_bits" in method.numbers:
        return by_tiles(ctx, method, kind)
    return (by_cache if "group" in method.numbers else by_levels)(ctx, method, kind)


def table():
    """The lines of the table."""
    lines = ["\t".join(HEADS)]
    with fovea.Context("host") as ctx:
        for method in fovea.recipes():
            for kind in ("D1", "D2", "D3"):
                if method.operation == "x_quantised_forward":
                    for mask in ("full", "causal"):
                        found = by_method(ctx, method, kind, mask == "causal")
                        lines.append("\t".join((method.name, kind, mask, *found)))
                elif method.operation == "x_kv_decode":
                    found = decoded(ctx, method, kind)
                    lines.append("\t".join((method.name, kind, "decode", *found)))
    return "\n".join(lines) + "\n"


def apart(line, other):
    """Whether two lines say other things: a last digit may be another's CPU."""
    line, other = line.split("\t"), other.split("\t")
    if line[:3] != other[:3] or len(line) != len(other):
        return True
    return any(abs(float(a) - float(b)) > 1e-4 + 0.05 * float(b) for a, b in zip(line[3:], other[3:]))


def main():
    parser = argparse.ArgumentParser(description="Writes the accuracy table.")
    parser.add_argument("--check", action="store_true", help="compares, and writes nothing")
    made = table()
    if not parser.parse_args().check:
        TABLE.write_text(made)
        print(made, end="")
        return
    kept = TABLE.read_text().splitlines()
    new = made.splitlines()
    wrong = [x for x, y in zip(kept[1:], new[1:]) if apart(x, y)]
    if wrong or kept[0] != new[0] or len(kept) != len(new):
        raise SystemExit(f"quantised_accuracy: run it again: {(wrong or ['other lines'])[0]}")


if __name__ == "__main__":
    main()
