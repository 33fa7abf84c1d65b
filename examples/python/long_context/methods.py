# SPDX-License-Identifier: Apache-2.0
"""The methods: each a row of METHODS, and a few calls of fovea's operations.

A method reads the cache of every layer.  Which rows it serves is its base class:

    Everywhere   prompt and generated tokens
    Prompt       the prompt; generated tokens read everything
    Generated    generated tokens; the prompt reads everything

`keep` is the share of the keys that a row is to read, and `budget` the number of keys that it comes
to.  Methods that choose by a share of the attention instead have their own number, and 1 for a keep
of 1.  What a method has to learn, it learns from `SAMPLE` tokens of the text behind those that are
judged, or from half as many that come twice, while dense attention reads them: `learn`.  What it
keeps beside the cache begins with what dense attention read of a prompt: `start`."""
from __future__ import annotations

from typing import Any

import fovea
import fovea.experimental as x
import numpy as np
from numpy.typing import NDArray

from long_context.step import Step, There, like, view

SAMPLE = 1024  # tokens
State = dict[str, Any]


class Method:
    """keep: the share of keys; length: the longest text.  `learned` and `state` are by layer."""

    name, paper, note = "", "", ""
    learns = ""  # "text", or "twice": the second time, heads that find what was said look far back
    starts = False
    most_rows = 0  # of generated tokens in a step; 0: any number.  A state is then of one text

    def __init__(self, keep: float, length: int) -> None:
        self.all = keep >= 1
        self.length = length
        self.budget = length + 64 if self.all else max(64, int(keep * length) // 64 * 64)
        self.learned: dict[int, Any] = {}
        self.state: dict[int, State] = {}

    def prefill(self, step: Step) -> There:
        return step.attend()

    def decode(self, step: Step) -> There:
        return step.attend()

    def learn(self, step: Step, o: There) -> None:
        """From a step of dense attention on another text."""

    def start(self, step: Step, o: There) -> None:
        """From the prompt, which dense attention reads."""


class Everywhere(Method):
    def read(self, step: Step) -> There:
        raise NotImplementedError

    def prefill(self, step: Step) -> There:
        return self.read(step)

    def decode(self, step: Step) -> There:
        return self.read(step)


class Prompt(Method):
    block = 64  # rows and keys

    def read(self, step: Step) -> There:
        raise NotImplementedError

    def prefill(self, step: Step) -> There:
        return self.read(step)

    def tiles(self, step: Step, **fields: Any) -> There:
        """Attention of row blocks over the key blocks that x_select_block finds."""
        found = step.blocks(self.block, block_rows=self.block, force_own=1, **fields)
        return step.over(found, self.block, self.block)

    def antidiagonals(self, step: Step) -> There:
        """(1, h, row blocks, key blocks): attention of 8 tokens as one, summed over each block."""
        blocks = (-(-n // self.block) for n in (step.rows, step.keys))
        return step.run(
            x.probe_forward, step.q, **step.paged, causal=1, group_stride=8, reversed=1,
            block_sum=step.empty(1, step.heads, *blocks), block_rows=self.block,
            block_keys=self.block)

    def means(self, step: Step) -> dict[str, There]:
        return dict(row=step.pool(self.block, of="q"), column=step.pool(self.block))


class Generated(Method):
    def read(self, step: Step) -> There:
        raise NotImplementedError

    def decode(self, step: Step) -> There:
        return self.read(step)


class Dense(Everywhere):
    name, paper, note = "dense", "2307.08691", "every key"

    def read(self, step: Step) -> There:
        return step.attend()


class StreamingLLM(Everywhere):
    name, paper, note = "streamingllm", "2309.17453", "4 first keys and a window"

    def read(self, step: Step) -> There:
        return step.attend(window_left=self.budget - 4, sink_keys=4)


def local_mass(step: Step, near: int, first: int) -> NDArray[np.float64]:
    """(h) share of the attention of the last 64 rows that is on nearby and first keys."""
    columns, diagonals = (step.here(y)[0].astype(np.float64) for y in step.sums(
        step.last_rows(64), step.heads, diagonals=True))
    held: NDArray[np.float64] = (columns[:, :first].sum(1) + diagonals[:, :near].sum(1)) / 64
    return held


class HeadWindows(Everywhere):
    """A window for each head, 0 for all keys."""

    learns = "twice"

    def learn(self, step: Step, o: There) -> None:
        self.learned[step.layer] = local_mass(step, min(256, step.rows // 4), 4)

    def windows(self, layer: int) -> tuple[NDArray[Any], int]:
        raise NotImplementedError

    def read(self, step: Step) -> There:
        left, sinks = self.windows(step.layer)
        left = np.zeros_like(left) if self.all else left
        table = np.stack([left, np.ones_like(left), np.full_like(left, sinks)], axis=1)
        return step.attend(head_window=step.there(table.astype(np.int32)))


class MoA(HeadWindows):
    name, paper = "moa", "2406.14909"
    note = "windows by head: the most local third 1/4, the least 7/4 of the keys; no search"

    def windows(self, layer: int) -> tuple[NDArray[Any], int]:
        held = self.learned[layer]
        rank = np.argsort(np.argsort(-held, kind="stable"), kind="stable") * 3 // len(held)
        return np.array([self.budget // 4, self.budget, 7 * self.budget // 4])[rank], 64


class DuoAttention(HeadWindows):
    name, paper = "duoattention", "2410.10819"
    note = "half of the key heads read everything, the more local half 64 first keys and a window"

    def windows(self, layer: int) -> tuple[NDArray[Any], int]:
        groups = {i: held.reshape(3, -1).mean(1) for i, held in self.learned.items()}
        middle = np.median(np.concatenate(list(groups.values())))
        streams = np.repeat(groups[layer] > middle, len(self.learned[layer]) // 3)
        return np.where(streams, max(64, self.budget - 64), 0), 64


class MoBA(Everywhere):
    name, paper, note = "moba", "2502.13189", "means of 64 keys; row by row; its own block always"
    block = 64

    def read(self, step: Step) -> There:
        count = -(-self.budget // self.block)
        found = step.blocks(self.block, row=step.q, column=step.pool(self.block), complete=1,
                            force_own=1, forced_count=1, count=count, keep=count)
        return step.over(found, self.block)


class NSA(Everywhere):
    """Gates are those that bring the three branches nearest to dense attention."""

    name, paper = "nsa", "2502.11089"
    note = "means of 32 keys; half the keys selected, half a window; one fitted gate a head"
    learns = "text"
    block, span, stride = 64, 32, 16

    def branches(self, step: Step) -> list[There]:
        spans = [step.pool(self.span, of=of, apart=self.stride, complete=1) for of in "kv"]
        there = max(0, (step.keys - self.span) // self.stride + 1)
        length = step.there(np.array([there], np.int32))
        coarse = step.attend(
            k=spans[0], v=spans[1], key_len=length, key_step=self.stride,
            key_shift=self.span - 1, context_len=step.pages["key_len"], stand_for="summaries")
        count = max(3, self.budget // (1 if self.all else 2) // self.block)
        found = step.blocks(
            self.block, row=step.q, column=spans[0], x=step.key_heads, normalise="softmax",
            reduce="sum", complete=1, remap_step=self.block // self.stride,
            remap_span=self.span // self.stride, force_first=1, force_previous=1, force_own=1,
            forced_count=1, count=count, keep=count)
        return [coarse, step.over(found, self.block), step.attend(window_left=self.budget // 2)]

    def learn(self, step: Step, o: There) -> None:
        parts = [step.here(branch)[0] for branch in self.branches(step)]
        whole, gates = step.here(o)[0], np.zeros((3, step.heads), np.float32)
        for head in range(step.heads):
            a = np.stack([part[:, head].ravel() for part in parts], axis=1).astype(np.float64)
            gates[:, head] = np.linalg.lstsq(a, whole[:, head].ravel(), rcond=None)[0]
        self.learned[step.layer] = gates

    def read(self, step: Step) -> There:
        fitted = self.learned[step.layer]
        if self.all:  # the branch that then has every key
            fitted = np.repeat(np.array([[0], [1], [0]], np.float32), step.heads, axis=1)
        shape = (1, step.rows, step.heads, step.width)
        gates = [view(step.there(gate), shape, (0, 0, 1, 0)) for gate in fitted]
        coarse, chosen, near = self.branches(step)
        return step.run(x.combine_forward, coarse, x2=chosen, x3=near, gate=gates[0],
                        gate2=gates[1], gate3=gates[2])


class DSA(Everywhere):
    name, paper = "dsa", "2512.02556"
    note = "no indexer: the model's own relu(q k), summed over all heads; one list for all heads"

    def read(self, step: Step) -> There:
        return step.over(step.tokens(x=1, measure="relu_weighted", reduce="sum",
                                     count=self.budget, keep=self.budget))


class MSA(Everywhere):
    name, paper = "msa", "2606.13392"
    note = "no indexer: the model's own q k; the best key of 16 stands for them; a list a key head"
    block = 16

    def read(self, step: Step) -> There:
        count = -(-self.budget // self.block)
        found = step.tokens(x=step.key_heads, reduce="max", pool_keys=self.block, force_last=1,
                            count=count, keep=count)
        return step.over(found, self.block)


class BLASST(Everywhere):
    name, paper = "blasst", "2512.12087"
    note = "tiles far below the row's largest score are skipped: 4 nats"
    margin = 4.0

    def read(self, step: Step) -> There:
        if self.all:
            return step.sparse()
        return step.sparse(skip_margin=self.margin, skipped=True)


class CHAI(Everywhere):
    name, paper = "chai", "2403.08058"
    note = "6 clusters of 9 heads by the first 5 tokens share scores; every key"
    clusters = 6

    def read(self, step: Step) -> There:
        if step.before == 0:
            first = [like(y, 1, 5, n, step.width) for y, n in
                     ((step.q, step.heads), (step.new_keys(), step.key_heads))]
            clusters = step.heads if self.all else self.clusters
            self.learned[step.layer] = step.run(x.select_heads, *first, clusters=clusters,
                                                causal=1)
        return step.sparse(head_map=self.learned[step.layer])


class MInference(Prompt):
    name, paper = "minference", "2407.02490"
    note = "vertical lines and diagonals that the last 64 rows look at, all heads"

    def read(self, step: Step) -> There:
        sums = step.sums(step.last_rows(min(64, step.rows)), step.heads, diagonals=True)
        half = self.budget // (1 if self.all else 2)
        (vertical, verticals), (slash, slashes) = (
            step.best(y, half, count=half, forced_count=1, force_first=min(forced, half // 2))
            for y, forced in zip(sums, (30, 100)))
        blocks = -(-step.keys // self.block)
        index, count, column, columns = step.run(
            x.select_line, vertical=like(vertical, 1, step.heads, half),
            vertical_count=like(verticals, 1, step.heads), slash=like(slash, 1, step.heads, half),
            slash_count=like(slashes, 1, step.heads), b=1, x=step.heads,
            n=-(-step.rows // self.block), keep=2 * blocks + 2, columns=half, index=True,
            index_count=True, column=True, column_count=True, query_max=step.rows,
            key_max=step.keys, key_len=step.pages["key_len"], block_rows=self.block,
            block_keys=self.block)
        return step.over((index, count), self.block, self.block, entry_keys=1, column=column,
                         column_count=columns)


class XAttention(Prompt):
    name, paper = "xattention", "2503.16428"
    note = "sums along antidiagonals, 8 apart; blocks of 64 that hold 0.9 of them"

    def read(self, step: Step) -> There:
        return self.tiles(step, score=self.antidiagonals(step), forced_count=1, rule="top_p_ge",
                          cover=1.0 if self.all else 0.9,
                          force_first=step.keys if self.all else 1)


class FlexPrefill(Prompt):
    """Lines and diagonals of blocks, as many as hold 0.9 of what the last rows look at, and half
    the budget of each at least.  Heads whose pooled scores tell where the last rows look have the
    least number, and blocks by these scores."""

    name, paper = "flexprefill", "2502.20766"
    note = "blocks of 64 on lines with 0.9 of the last rows' attention, or by pooled scores too"
    cover = 0.9

    def read(self, step: Step) -> There:
        n, u = (-(-tokens // self.block) for tokens in (step.rows, step.keys))
        least = step.keys if self.all else self.budget // 2 // self.block * self.block
        o, index, count = step.run(
            x.flex_forward, step.q, v=step.v, **step.paged, n=n, keep=u, index=True,
            index_count=True, block=self.block, cover=self.cover, threshold=0.1, min_budget=least)
        step.read_lists(index, count, self.block)
        return o


class SampleAttention(Prompt):
    name, paper = "sampleattention", "2406.15486"
    note = "every 20th row votes; keys with 0.95 of the votes, and a window of 8 %"

    def read(self, step: Step) -> There:
        every = min(20, step.rows)
        first, rows = (step.rows - 1) % every, -(-step.rows // every)
        place = step.before + np.arange(first, step.rows, every, dtype=np.int32)
        row = step.heads * step.width
        sampled = view(step.q, (1, rows, step.heads, step.width),
                       (0, every * row, step.width, 1), first * row)
        votes, = step.sums(sampled, step.heads, query_position=step.there(
            np.tile(place, (1, step.heads, 1))))
        column, columns = step.best(votes, step.keys, rule="top_p_ge",
                                    cover=1.0 if self.all else 0.95)
        n = -(-step.rows // self.block)
        near = 0.08 * step.keys / self.block
        found = step.blocks(
            self.block, block_rows=self.block, rule="none", force_own=1,
            force_previous=step.keys if self.all else int(np.ceil(near)),
            score=step.empty(1, step.heads, n, -(-step.keys // self.block)))
        return step.over(
            found, self.block, self.block, column=view(column, (1, step.heads, n, step.keys),
                                                       (0, step.keys, 0, 1)),
            column_count=view(columns, (1, step.heads, n), (0, 1, 0)))


class SeerAttention(Prompt):
    name, paper = "seerattention", "2410.13276"
    note = "no gate: means of 64 rows and 64 keys; as many blocks as the keys ask for"

    def read(self, step: Step) -> There:
        return self.tiles(step, **self.means(step), normalise="softmax", forced_count=1,
                          count=-(-self.budget // self.block))


class SpargeAttn(Prompt):
    name, paper = "spargeattn", "2502.18137"
    note = "means of 64; blocks with at most 0.9 of the softmax; unlike keys always; 16 bits"

    def read(self, step: Step) -> There:
        least = step.there(np.full(step.heads, 0.6, np.float32))
        row, column = (self.alike(step, of, n, least) for of, n in
                       (("q", step.heads), ("k", step.key_heads)))
        found = step.blocks(
            self.block, block_rows=self.block, row=row[0], column=column[0],
            row_forced=row[1], column_forced=column[1], normalise="softmax", rule="top_p_under",
            cover=1.0 if self.all else 0.9, min_extra=1, force_own=1,
            force_first=step.keys if self.all else 1)
        return step.over(found, self.block, self.block,
                         skip_margin=0.0 if self.all else 34.7)

    def alike(self, step: Step, of: str, heads: int, least: There) -> tuple[There, There]:
        blocks = -(-(step.rows if of == "q" else step.keys) // self.block)
        mean, _, unlike = step.pool(
            self.block, of=of, similar=step.empty(1, heads, blocks),
            dissimilar=step.empty(1, heads, blocks, dtype="u8"), similar_least=like(least, heads))
        return mean, unlike


class FlashPrefill(Prompt):
    name, paper = "flashprefill", "2603.06199"
    note = "sums along antidiagonals; blocks of 64 above 0.1 of their row's largest"

    def read(self, step: Step) -> There:
        return self.tiles(step, score=self.antidiagonals(step), normalise="max", rule="above",
                          threshold=-1.0 if self.all else 0.1, force_first=1)


class Quest(Generated):
    name, paper = "quest", "2406.10774"
    note = "largest and smallest of 16 keys bound their scores; its own page; 2 layers are dense"
    page = 16

    def read(self, step: Step) -> There:
        if step.layer < 2 and not self.all:
            return step.attend()
        count = -(-self.budget // self.page)
        found = step.blocks(
            self.page, row=step.q, column=step.pool(self.page, "max"),
            column_low=step.pool(self.page, "min"), measure="box", complete=1, force_own=1,
            forced_count=1, count=count, keep=count)
        return step.over(found, self.page)


class SparQ(Generated):
    name, paper = "sparq", "2312.04985"
    note = "scores from the 16 largest columns of q; half are the last keys; mean of v for the rest"
    most_rows = 64

    def read(self, step: Step) -> There:
        *found, mass = step.tokens(
            x=step.key_heads, measure="subset", subset=step.width if self.all else 16,
            reduce="sum", count=self.budget, keep=self.budget, force_last=self.budget // 2,
            kept_mass=True)
        o = step.over(found)
        shape = (1, step.rows, step.heads, step.width)
        mean = step.pool(step.keys, of="v", heads=step.heads, key_len=step.there(
            np.array([max(step.before, 1)], np.int32)))
        gate = view(mass, shape, (0, 1, step.rows, 0))
        return step.run(x.combine_forward, o, x2=view(mean, shape, (0, 0, step.width, 1)),
                        gate=gate, gate2=gate, gate2_act="complement")


class Loki(Generated):
    """Keys are kept a second time, by their principal components."""

    name, paper = "loki", "2406.02542"
    note = "scores from 16 of 64 principal components of the keys"
    learns, starts = "text", True
    columns = 16

    def learn(self, step: Step, o: There) -> None:
        k = step.cache_keys()
        self.learned[step.layer] = np.stack([
            np.linalg.svd(k[:, head] - k[:, head].mean(0), full_matrices=False)[2].T
            for head in range(step.key_heads)]).astype(np.float32)

    def start(self, step: Step, o: There) -> None:
        if step.before == 0:
            self.state[step.layer] = dict(
                k=step.empty(1, step.reading.capacity, step.key_heads, step.width))
        self.project(step, step.new_keys(), self.state[step.layer]["k"], step.before)

    def project(self, step: Step, what: There, to: There, at: int) -> None:
        heads = what.shape[2]
        step.run(x.project_forward, what, step.there(self.learned[step.layer]),
                 y=like(to, 1, step.rows, heads, step.width, offset=at * heads * step.width))

    def read(self, step: Step) -> There:
        kept = self.state[step.layer]["k"]
        self.project(step, step.new_keys(), kept, step.before)
        q = step.empty(*step.q.shape)
        self.project(step, step.q, q, 0)
        return step.over(step.tokens(
            q=self.first(q, step.rows), k=self.first(kept, step.reading.capacity),
            key_len=step.pages["key_len"], count=self.budget, keep=self.budget))

    def first(self, y: There, tokens: int) -> There:
        heads, width = y.shape[2:]
        return view(y, (1, tokens, heads, self.columns), (0, heads * width, width, 1))


class HashAttention(Generated):
    """Codes of the keys are kept beside the cache."""

    name, paper = "hashattention", "2412.14468"
    note = "no trained hash: 128 random signs; a quarter of the keys are the first and the last"
    learns, starts = "text", True
    bits = 128

    def learn(self, step: Step, o: There) -> None:
        random = np.random.default_rng(step.layer)
        weight = random.standard_normal((step.width, self.bits), np.float32)
        middle = step.cache_keys().mean(0)
        self.learned[step.layer] = weight, (-middle @ weight).astype(np.float32)

    def start(self, step: Step, o: There) -> None:
        if step.before == 0:
            self.state[step.layer] = dict(code=step.empty(
                1, step.reading.capacity, step.key_heads, self.bits // 32, dtype="i32"))
        self.codes(step)

    def codes(self, step: Step) -> There:
        """Keeps those of the new keys, and gives those of the queries."""
        weight, bias = self.learned[step.layer]
        maps = [step.there(np.repeat(weight[None], n, axis=0)) for n in
                (step.key_heads, step.heads)]
        kept = self.state[step.layer]["code"]
        words = step.key_heads * self.bits // 32
        step.run(x.project_forward, step.new_keys(), maps[0], bias=step.there(bias), y=False,
                 code=like(kept, 1, step.rows, step.key_heads, self.bits // 32,
                           offset=step.before * words))
        return step.run(x.project_forward, step.q, maps[1], y=False, h=step.heads,
                        words=self.bits // 32, code=True)

    def read(self, step: Step) -> There:
        edge = self.budget // 8
        heavy = self.budget - 2 * edge
        found = step.tokens(
            q=None, measure="hamming", code_q=self.codes(step),
            code=self.state[step.layer]["code"], key_len=step.pages["key_len"],
            first_keys=edge, last_keys=edge, count=heavy, keep=heavy)
        return step.over(found, first_keys=edge, last_keys=edge)


def everything(step: Step, held: State) -> State:
    """x_cache_step's rule under which no key goes."""
    return dict(rule="heavy", heavy=held["k"].shape[1] - step.rows, recent=0)


class H2O(Generated):
    """The cache is bounded: slots of the keys that were looked at most, and of the last ones."""

    name, paper = "h2o", "2306.14048"
    note = "half the keys by the attention they had, half the last; what goes is gone; 16 at a time"
    starts = True
    most_rows = 16

    def rules(self) -> State:
        return dict(rule="heavy", heavy=self.budget // 2, recent=self.budget // 2)

    def attention_had(self, step: Step) -> There:
        """(1, g, keys) by which a prompt's keys are kept."""
        return step.sums(step.q, step.key_heads)[0]

    def start(self, step: Step, o: There) -> None:
        g = step.key_heads
        slots = max(step.reading.capacity, self.budget) + self.most_rows
        held = dict(k=step.empty(1, slots, g, step.width), v=step.empty(1, slots, g, step.width),
                    position=step.empty(1, g, slots, dtype="i32"), score=step.empty(1, g, slots),
                    count=step.empty(1, g, dtype="i32"))
        self.state[step.layer] = held
        self.append(step, held, everything(step, held))
        had = np.zeros((1, g, slots), np.float32)
        had[:, :, :step.keys] = step.here(self.attention_had(step))
        step.run(x.cache_step, **held, mass=step.there(had), **self.rules())

    def append(self, step: Step, held: State, rules: State) -> NDArray[np.int32]:
        """The new tokens come, after those went that the rules do not keep: how many are live."""
        before = step.there(np.array([step.before], np.int32))
        step.run(x.cache_step, **held, k_new=step.new_keys(), v_new=step.new_values(),
                 old_len=before, **rules)
        live: NDArray[np.int32] = step.here(held["count"])[0, :1].copy()
        return live

    def slots(self, step: Step, held: State, live: NDArray[np.int32]) -> State:
        """The fields of attention over them."""
        return dict(k=held["k"], v=held["v"], key_len=step.there(live),
                    stand_for=np.ascontiguousarray(step.here(held["position"])[0]))

    def read(self, step: Step) -> There:
        held = self.state[step.layer]
        live = self.append(step, held, self.rules())
        held["mass"] = step.empty(*held["score"].shape)
        return step.sparse(mass=held["mass"], **self.slots(step, held, live))


class RocketKV(H2O):
    """First the keys of the prompt go that its last rows do not look at; then Quest's pages."""

    name, paper = "rocketkv", "2502.14051"
    note = "the prompt shrinks by the root of the share; then pages of 16, as quest"
    page = 16

    def rules(self) -> State:
        kept = self.length if self.all else int((self.budget * self.length) ** 0.5)
        return dict(rule="heavy", heavy=kept - 32, recent=32)

    def attention_had(self, step: Step) -> There:
        return step.sums(step.last_rows(32), step.key_heads)[0]

    def read(self, step: Step) -> There:
        held = self.state[step.layer]
        live = self.append(step, held, everything(step, held))
        slots = self.slots(step, held, live)
        there = dict(key_len=slots["key_len"], key_max=int(live[0]))
        high, low = (step.run(
            x.pool_forward, held["k"], **there, block=self.page, want=want,
            y=step.empty(1, -(-int(live[0]) // self.page), step.key_heads, step.width))
            for want in (1, 2))
        count = -(-self.budget // self.page)
        found = step.blocks(
            self.page, row=step.q, column=high, column_low=low, measure="box", complete=1,
            force_own=1, forced_count=1, count=count, keep=count, **there)
        return step.over(found, self.page, **slots)


class InfLLM(Generated):
    """A window beside blocks of older keys, which all stand at one distance."""

    name, paper = "infllm", "2402.04617"
    note = "half a window, half blocks of 64 by 4 keys that stand for them; one list for all heads"
    starts = True
    most_rows = 64
    block, stand = 64, 4

    def start(self, step: Step, o: There) -> None:
        if step.before == 0:
            width = (1, step.reading.capacity, step.key_heads, step.width)
            self.state[step.layer] = dict(
                k=step.empty(*width), v=step.empty(*width),
                score=step.empty(1, step.heads, step.reading.capacity))
        self.keep_new(step)

    def near(self) -> int:
        return self.budget if self.all else self.budget // 2

    def keep_new(self, step: Step) -> None:
        """Keys that are not turned, values, and how much rows nearby look at each key."""
        held = self.state[step.layer]
        new = (1, step.rows, step.key_heads, step.width)
        for name, y in (("k", step.k_plain), ("v", step.v_plain)):
            step.run(x.combine_forward, step.plain(y), y=like(
                held[name], *new, offset=step.before * step.key_heads * step.width))
        shape = (1, step.heads, 1, step.keys)
        score = view(held["score"], shape, (0, step.reading.capacity, 0, 1))
        seen, = step.sums(step.q, step.heads, window_left=self.near())
        step.run(x.combine_forward, score, x2=like(seen, *shape), y=score)

    def read(self, step: Step) -> There:
        self.keep_new(step)
        rows, heads, width, near = step.rows, step.heads, step.width, self.near()
        far, count = step.keys - near, max(3, self.budget // 2 // self.block)
        if far <= 0:
            return step.attend(window_left=near)
        o, lse = step.empty(2, 1, rows, heads, width), step.empty(2, 1, heads, rows)
        parts = [dict(o=like(o, 1, rows, heads, width, offset=i * rows * heads * width),
                      lse=like(lse, 1, heads, rows, offset=i * heads * rows)) for i in range(2)]
        step.attend(window_left=near, **parts[0])
        held = self.state[step.layer]
        q = step.run(fovea.rope_forward, x=step.plain(step.q_plain), **step.reading.rope,
                     position=step.there(np.full((1, rows), near, np.int32)))
        blocks = -(-far // self.block)
        stand = step.run(x.pool_forward, held["k"], rank_score=held["score"], ranked=self.stand,
                         want=16, block=self.block, key_max=far,
                         y=step.empty(1, blocks, heads, width))
        middle = step.run(x.pool_forward, q, block=rows, want=4, y=step.empty(1, 1, heads, width))
        found = step.run(
            x.select_block, row=middle, column=stand, reduce="sum", b=1, x=1, n=1, keep=count,
            index=True, index_count=True, block_rows=rows, block_keys=self.block, query_max=rows,
            key_max=far, force_first=1, force_last=2, forced_count=1, count=count)
        step.over(found, self.block, rows, q=q, k=held["k"], v=held["v"],
                  key_len=step.pages["key_len"], key_shift=near, **parts[1])
        return step.run(fovea.merge_forward, o, lse)


METHODS: dict[str, type[Method]] = {method.name: method for method in (
    Dense, StreamingLLM, MoA, DuoAttention, MoBA, NSA, DSA, MSA, BLASST, CHAI, MInference,
    FlexPrefill, XAttention, SampleAttention, SeerAttention, SpargeAttn, FlashPrefill, Quest,
    SparQ, Loki, HashAttention, H2O, RocketKV, InfLLM)}
