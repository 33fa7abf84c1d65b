# SPDX-License-Identifier: Apache-2.0
"""A finished trace: what every file of it is written from."""
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

RECORD = np.dtype([("layer", "<i4"), ("head", "<i4"), ("q_block", "<i4"), ("k_block", "<i4"),
                   ("weight", "<f4")])  # as fovea.TraceSession streams them
Edges = NDArray[np.void]  # of RECORD
Floats = NDArray[np.float32]
About = dict[str, Any]


@dataclass
class TokenWeights:
    """Exact attention weights of the rows of one block, each row's heaviest tokens."""
    block: int              # of rows
    text: list[str]         # of each token of the whole text
    key: NDArray[np.int32]  # (layers, heads, rows, top)
    weight: Floats          # the same; of all keys of the row, so a row's sum is at most 1


@dataclass
class Trace:
    about: About         # model, tokens, layers, block_rows, block_keys, keep, edge_kind, ...
    edges: Edges         # in the order layer, head, row block, slot
    retained: Floats     # (layers, heads, row blocks): mean part of a row's attention kept
    row_text: list[str]  # of each block of query rows
    key_text: list[str]  # of each block of keys
    tokens: TokenWeights | None = None

    @property
    def layers(self) -> list[int]:
        layers: list[int] = self.about["layers"]
        return layers

    @property
    def heads(self) -> int:
        return int(self.retained.shape[1])

    def share(self, edges: Edges) -> Floats:
        """Mean attention of an edge's rows in its key block, 0 .. 1: a mass is the rows' sum."""
        block = self.about["block_rows"]
        rows = np.minimum(self.about["tokens"] - edges["q_block"] * np.int64(block), block)
        share: Floats = (edges["weight"] / rows).astype(np.float32)
        return share


def block_text(text: str, offsets: Sequence[tuple[int, int]], block: int) -> list[str]:
    """The text cut where every `block` tokens begin.  offsets: (begin, end) of each token in it."""
    starts = [offsets[i][0] for i in range(0, len(offsets), block)]
    ends = starts[1:] + [offsets[-1][1]]
    return [text[begin:end] for begin, end in zip(starts, ends)]


def block_mean(x: Floats, block: int) -> Floats:
    """Means over blocks of the last axis; the last block may be short."""
    starts = np.arange(0, x.shape[-1], block)
    counts = np.diff(np.append(starts, x.shape[-1]))
    mean: Floats = (np.add.reduceat(x.astype(np.float64), starts, -1) / counts).astype(np.float32)
    return mean
