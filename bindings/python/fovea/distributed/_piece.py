# SPDX-License-Identifier: Apache-2.0
"""Pieces: what rows of one rank see of the keys of another, as calls that the library knows.

A call aligns rows and keys at their ends (attention.h: p_i = i + Lk - Lq).  Rows at A.. and keys at
C.. of one text have other distances, but windows are distances too: both move by the same amount.
Rows that see no key and keys that no row sees are cut off first; the windows then stay positive."""

from __future__ import annotations

from typing import NamedTuple, Optional


class Piece(NamedTuple):
    """One call: rows and keys by their places on their ranks, windows of the call."""

    rows: tuple[int, int]
    keys: tuple[int, int]
    left: int
    right: int
    starts: Optional[tuple[int, ...]] = None  # packed: sequences of rows and keys alike


class Seen(NamedTuple):
    """What rows see: windows as attention's, keys at the front of a text, where texts begin."""

    left: int
    right: int
    sinks: int
    starts: tuple[int, ...]
    packs: bool = True  # several texts may be one call; a batch has calls of one text alone


def cut(a, rows, c, keys, left, right):
    """The piece of rows at positions a.. and keys at c.., or None where no row sees a key."""
    y = max(0, c - a - right + 1) if right else 0
    z = min(rows, c + keys - 1 - a + left) if left else rows
    if y >= z:
        return None
    x = max(0, a + y - left + 1 - c) if left else 0
    w = min(keys, a + z - 1 + right - c) if right else keys
    if x >= w:
        return None
    moved = (w - x) - (z - y) - ((a + y) - (c + x))
    near = left + moved if left and left + moved < w - x else 0
    far = right - moved if right and right - moved < z - y else 0
    return Piece((y, z), (x, w), near, far)


def _placed(piece, rows, keys):
    (y, z), (x, w) = piece.rows, piece.keys
    return piece._replace(rows=(y + rows, z + rows), keys=(x + keys, w + keys))


def pieces(row_chunks, key_chunks, seen):
    """The pieces of a rank's rows and another's keys, by their chunks, (first position, tokens)."""
    out, row_at = [], 0
    for a, rows in row_chunks:
        key_at = 0
        for c, keys in key_chunks:
            out += _between(a, rows, row_at, c, keys, key_at, seen)
            key_at += keys
        row_at += rows
    return out


def _between(a, rows, row_at, c, keys, key_at, seen):
    left, right, sinks, starts, packs = seen
    sinks = sinks if left else 0
    out, packed = [], []
    for first, last in zip(starts, starts[1:]):
        p, r = max(a, first), min(a + rows, last)
        u, w = max(c, first), min(c + keys, last)
        if p >= r or u >= w:
            continue
        if (p, r) == (u, w) and not sinks and packs and len(starts) > 2:
            packed.append((p, r))
            continue
        front = min(max(first + sinks, u), w)
        for x, n, near in ((u, front - u, 0), (front, w - front, left)):
            piece = cut(p, r - p, x, n, near, right) if n > 0 else None
            if piece:
                out.append(_placed(piece, row_at + p - a, key_at + x - c))
    if packed:
        span = (packed[0][0], packed[-1][1])
        at = [(x - c0 + to for x in span) for c0, to in ((a, row_at), (c, key_at))]
        at = [tuple(x) for x in at]
        begins = tuple(p - span[0] for p, _ in packed) + (span[1] - span[0],)
        out.append(Piece(*at, left, right, begins if len(packed) > 1 else None))
    return out
