# SPDX-License-Identifier: Apache-2.0
"""A finished trace: what every file of it is written from."""
from dataclasses import dataclass

import numpy as np

RECORD = np.dtype([("layer", "<i4"), ("head", "<i4"), ("q_block", "<i4"), ("k_block", "<i4"),
                   ("weight", "<f4")])  # as fovea.TraceSession streams them


@dataclass
class TokenWeights:
    """Exact attention weights of the rows of one block, each row's heaviest tokens."""
    block: int          # of rows
    text: list          # of each token of the whole text
    key: np.ndarray     # (layers, heads, rows, top) i32
    weight: np.ndarray  # the same, f32; of all keys of the row, so a row's sum is at most 1


@dataclass
class Trace:
    about: dict           # model, tokens, layers, block_rows, block_keys, keep, edge_kind, ...
    edges: np.ndarray     # of RECORD, in the order layer, head, row block, slot
    retained: np.ndarray  # (layers, heads, row blocks): mean part of a row's attention kept
    row_text: list        # text of each block of query rows
    key_text: list        # text of each block of keys
    tokens: TokenWeights | None = None

    @property
    def layers(self):
        return self.about["layers"]

    @property
    def heads(self):
        return self.retained.shape[1]

    def share(self, edges):
        """Mean attention of an edge's rows in its key block, 0 .. 1: a mass is the rows' sum."""
        block = self.about["block_rows"]
        rows = np.minimum(self.about["tokens"] - edges["q_block"] * np.int64(block), block)
        return (edges["weight"] / rows).astype(np.float32)


def block_text(text, offsets, block):
    """The text cut where every `block` tokens begin.  offsets: (begin, end) of each token in it."""
    starts = [offsets[i][0] for i in range(0, len(offsets), block)]
    ends = starts[1:] + [offsets[-1][1]]
    return [text[begin:end] for begin, end in zip(starts, ends)]


def block_mean(x, block):
    """Means over blocks of the last axis; the last block may be short."""
    starts = np.arange(0, x.shape[-1], block)
    counts = np.diff(np.append(starts, x.shape[-1]))
    return (np.add.reduceat(x.astype(np.float64), starts, -1) / counts).astype(np.float32)
