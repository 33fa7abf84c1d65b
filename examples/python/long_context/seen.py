# SPDX-License-Identifier: Apache-2.0
"""Which keys a call lets a row read, told from the call's fields by the words of the headers.

What a method reads is told by its own calls, and not by the method: attention.h and sparse.h define
what their fields mean, and this file is that definition in NumPy, for a few rows at a time."""
from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from long_context.step import Fields, Step

Flags = NDArray[np.bool_]
Numbers = NDArray[np.int64]


def keys_read(step: Step, rows: Numbers) -> tuple[Flags, NDArray[np.float64]]:
    """((h, rows, keys) whether a head's row reads the key, (h, rows) how many keys it reads): more
    than there are flags where summaries are read too."""
    flags = np.zeros((step.heads, len(rows), step.keys), bool)
    more = np.zeros((step.heads, len(rows)))
    for fields in step.reads:
        there = count_of_keys(step, fields)
        seen = window(step, fields, rows, there)
        if "index" in fields or "column" in fields:
            seen &= listed(step, fields, rows, there)
        stand_for = fields["stand_for"]
        if stand_for is None:
            flags |= seen
        elif isinstance(stand_for, str):  # summaries
            more += seen.sum(axis=2)
        else:  # of slots: the position of each, (g, slots)
            position = np.repeat(step.here(stand_for), step.heads // len(stand_for), axis=0)
            head, row, slot = np.nonzero(seen)
            flags[head, row, position[head, slot]] = True
    return flags, flags.sum(axis=2) + more


def count_of_keys(step: Step, fields: Fields) -> int:
    if (length := fields.get("key_len")) is not None:
        return int(step.here(length)[0])
    return int(fields["k"].shape[1])


def window(step: Step, fields: Fields, rows: Numbers, keys: int) -> Flags:
    """(h, rows, keys) by causality and windows; p_j = key_step j + key_shift."""
    context = fields.get("context_len")
    aligned = keys if context is None else int(step.here(context)[0])
    p_row = (rows + aligned - step.rows)[None, :, None]
    p_key = (np.arange(keys) * (fields.get("key_step") or 1) + fields.get("key_shift", 0))
    if (table := fields.get("head_window")) is not None:
        left, right, sinks = (column[:, None, None] for column in step.here(table).T)
    else:
        left, sinks = np.array(fields.get("window_left", 0)), np.array(fields.get("sink_keys", 0))
        right = np.array(fields.get("causal", 0))
    near = (left <= 0) | (p_key > p_row - left) | (p_key < sinks)
    seen: Flags = near & ((right <= 0) | (p_key < p_row + right))
    return np.broadcast_to(seen, (step.heads, len(rows), keys)).copy()


def listed(step: Step, fields: Fields, rows: Numbers, keys: int) -> Flags:
    """(h, rows, keys) by the list of each row: entries, columns and what is always seen."""
    seen = np.zeros((step.heads, len(rows), keys), bool)
    list_row = rows // (fields.get("block_rows") or 1)
    block = fields.get("block_keys", 0)
    for name, count_name, span, apart in (
            ("index", "index_count", block, fields.get("entry_keys") or block),
            ("column", "column_count", 1, 1)):
        if (entries := fields.get(name)) is None:
            continue
        number = array(step, entries)[0][:, list_row]  # (x, rows, keep)
        counts = fields.get(count_name)
        last = number.shape[2] if counts is None else array(step, counts)[0][:, list_row, None]
        used = (np.arange(number.shape[2]) < last) & (number >= 0)
        lists = step.heads // len(number)
        for i in range(span):
            at = number * apart + i
            head, row, entry = np.nonzero(used & (at < keys))
            for j in range(lists):
                seen[head * lists + j, row, at[head, row, entry]] = True
    p_row = (rows + keys - step.rows)[:, None]
    always = np.arange(keys) < fields.get("first_keys", 0)
    last_keys = fields.get("last_keys", 0)
    near = (np.arange(keys) > p_row - last_keys) & (np.arange(keys) <= p_row)
    out: Flags = seen | always | near
    return out


def array(step: Step, given: Any) -> NDArray[Any]:
    """A list as NumPy's, also one that is a view of the GPU's memory."""
    whole = getattr(given, "whole", None)
    if whole is None:
        return np.asarray(step.here(given))
    flat = np.asarray(step.here(whole)).reshape(-1)[given.offset:]
    return np.lib.stride_tricks.as_strided(
        flat, given.shape, [flat.itemsize * n for n in given.strides])


class Recall:
    """Of the keys that dense attention puts most on, the share of that attention which a method
    reads; and how many keys it reads, of those that a row sees."""

    def __init__(self, top: int = 64, every: int = 64) -> None:
        self.top, self.every = top, every
        self.found, self.read = list[float](), list[float]()

    def __call__(self, step: Step, o: object) -> None:
        rows = np.arange(step.rows)
        rows = rows[(rows + step.before) % self.every == self.every - 1]
        if not len(rows):
            return
        if any("skipped" in fields for fields in step.reads):
            self.read.append(1 - float(step.here(step.beside)[0]) / tiles_seen(step))
            return
        flags, count = keys_read(step, rows)
        place = rows + step.before
        p = dense(step, rows)
        top = np.argpartition(-p, min(self.top, step.keys) - 1, axis=2)[..., :self.top]
        weight = np.take_along_axis(p, top, axis=2)
        kept = weight * np.take_along_axis(flags, top, axis=2)
        self.found += (kept.sum(axis=2) / weight.sum(axis=2)).ravel().tolist()
        self.read += (count / (place + 1)).ravel().tolist()


def tiles_seen(step: Step) -> int:
    """Tiles of 64 keys that groups of 64 rows may see, over all heads."""
    last = np.minimum(np.arange(64, step.rows + 64, 64), step.rows) + step.before
    tiles: int = step.heads * int((-(-last // 64)).sum())
    return tiles


def dense(step: Step, rows: Numbers) -> NDArray[np.float64]:
    """(h, rows, keys) probabilities of dense attention on the same queries and keys."""
    k = np.repeat(step.cache_keys(), step.heads // step.key_heads, axis=1).transpose(1, 2, 0)
    q = step.here(step.q)[0][rows].astype(np.float32).swapaxes(0, 1)
    score = q @ k / np.sqrt(step.width)
    score[:, (rows + step.before)[:, None] < np.arange(step.keys)] = -np.inf
    p: NDArray[np.float64] = np.exp(score - score.max(axis=2, keepdims=True)).astype(np.float64)
    p /= p.sum(axis=2, keepdims=True)
    return p


