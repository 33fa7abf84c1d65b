# SPDX-License-Identifier: Apache-2.0
"""InfLLM over a growing cache: chunks of a prompt and single tokens, with representatives from the
local scores, beside the paper's rule in float64."""

import fovea
import numpy as np
import pytest
from fovea import experimental

H, G, D, LENGTH = 4, 2, 16, 120
WINDOW, BLOCK, FIRST, RANKED = 16, 8, 8, 2


def turned(x, position):
    """x (..., d) of float64, rotated by its position."""
    half = x.shape[-1] // 2
    angle = np.asarray(position)[..., None] * 1e4 ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate(
        [a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], -1
    )


class Paper:
    """Scores of all tokens at min(distance, window); lists, representatives and local scores."""

    def __init__(self, q, k, v, count):
        group = H // G
        self.q, self.k, self.v = q, k.repeat(group, 1), v.repeat(group, 1)  # (length, h, d)
        self.count, self.local = count, np.zeros((H, LENGTH))
        self.representative = []

    def chunk(self, begin, end):
        blocks = len(self.representative)
        mean = turned(self.q[begin:end], WINDOW).mean(0)
        score = [(mean * r).sum() for r in self.representative]
        best = sorted(range(blocks), key=lambda n: (-score[n], n))[: self.count]
        rows = []
        for i in range(begin, end):
            seen = [
                j for j in range(i + 1)
                if i - j < WINDOW or j < FIRST or j >= FIRST + BLOCK * blocks
                or (j - FIRST) // BLOCK in best
            ]  # fmt: skip
            back = np.minimum(i - np.array(seen), WINDOW)[:, None]
            q = turned(np.broadcast_to(self.q[i], (len(seen), H, D)), back)
            x = (q * self.k[seen]).sum(-1) / D**0.5  # (keys, h)
            p = np.exp(x) / np.exp(x).sum(0)
            near = np.array(seen) > i - WINDOW
            self.local[:, np.array(seen)[near]] += p[near].T
            rows.append(np.einsum("jh,jhd->hd", p, self.v[seen]))
        while FIRST + BLOCK * (len(self.representative) + 1) <= end - WINDOW:
            at = FIRST + BLOCK * len(self.representative)
            local = self.local[:, at : at + BLOCK]
            rank = np.argsort(-local, axis=1, kind="stable")[:, :RANKED]
            self.representative.append(
                np.stack([self.k[at + rank[h], h].mean(0) for h in range(H)])
            )
        return np.stack(rows)


class Memory:
    """The same by calls on caches of LENGTH tokens."""

    def __init__(self, ctx, q, k, v, count):
        place = np.arange(LENGTH)[:, None]
        single = lambda x: np.ascontiguousarray(x[None], np.float32)  # noqa: E731
        self.ctx, self.count = ctx, count
        self.q, self.far = single(turned(q, place)), single(turned(q, WINDOW))
        self.k, self.near, self.v = single(k), single(turned(k, place)), single(v)
        self.score = np.zeros((1, H, LENGTH), np.float32)
        self.representative = np.zeros((1, LENGTH // BLOCK, H, D), np.float32)
        self.blocks = 0  # keys of them

    def chunk(self, begin, end):
        length = lambda n: np.array([n], np.int32)  # noqa: E731
        o = experimental.infllm_forward(
            self.ctx, self.q[:, begin:end], self.far[:, begin:end], self.k, self.near, self.v,
            self.representative, key_len=length(end), block_len=length(self.blocks),
            local_score=self.score, window=WINDOW, init_keys=FIRST, block_keys=BLOCK,
            count=self.count,
        )  # fmt: skip
        ready = max(0, (end - WINDOW) // BLOCK * BLOCK)
        if ready > self.blocks:
            experimental.pool_forward(
                self.ctx, self.k, y=self.representative, rank_score=self.score,
                key_len=length(ready), old_len=length(self.blocks), block=BLOCK, ranked=RANKED,
                want=16,
            )  # fmt: skip
            self.blocks = ready
        return o[0]


def tokens(seed):
    random = np.random.default_rng(seed)
    return [random.standard_normal((LENGTH, heads, D)) for heads in (H, G, G)]


def run(one, sizes):
    begin, rows = 0, []
    while begin < LENGTH:
        end = min(LENGTH, begin + sizes[min(len(rows), len(sizes) - 1)])
        rows.append(one.chunk(begin, end))
        begin = end
    return np.concatenate(rows)


@pytest.mark.parametrize("sizes", [(1,), (24,), (40, 7, 1)])
@pytest.mark.parametrize("count", [1, 3, 100])
def test_a_growing_cache_is_the_papers(ctx, sizes, count):
    given = tokens(3)
    paper, memory = Paper(*given, count), Memory(ctx, *given, count)
    np.testing.assert_allclose(run(memory, sizes), run(paper, sizes), atol=2e-5)
    np.testing.assert_allclose(memory.score[0], paper.local, atol=2e-5)


def test_chunks_are_single_tokens_where_all_blocks_are_chosen(ctx):
    given = tokens(4)
    chunks, single = Memory(ctx, *given, 100), Memory(ctx, *given, 100)
    np.testing.assert_allclose(run(chunks, (50, 9)), run(single, (1,)), atol=1e-5)
    np.testing.assert_allclose(chunks.score, single.score, atol=1e-5)
