# SPDX-License-Identifier: Apache-2.0
"""QuantisedCache: keys and values of a layer in 2 or 4 bits, by the name of the method."""

import torch

from .. import levels, ops
from .._errors import InvalidArgument
from .._recipe import recipes
from . import _table
from ._arguments import flag, integers, need, scaling, single
from ._operation import Operation

_METHODS = {
    r.name: dict(r.numbers)
    for r in recipes()
    if r.operation == "x_kv_decode" and "group" in r.numbers  # levels and norms have their own fields
}
CACHES = tuple(_METHODS)  # what QuantisedCache takes
_PAGES = "k_code k_scale k_zero v_code v_scale v_zero".split()
_FACTORS = "k_factor v_factor".split()  # of tiles (KVarN)
_ROWS = "k_tail v_tail counter".split()
_TYPES = {**_table.TYPES, **dict.fromkeys("bits group format v_bits".split(), "int"), "flush": "bool"}
_TILES = 3  # fovea_x_kv_format


class Update(Operation):
    """An operation that writes into its own inputs, those in `written`, and gives nothing."""

    def __init__(self, name, kernel, types, required, written):
        self.written = kernel.written = written
        super().__init__(name, kernel, types, required)

    def schema(self, results):
        tensors = [
            f"Tensor{f'(a{i}!)' if name in self.written else ''}{'?' if i >= self.required else ''} "
            + name
            for i, name in enumerate(self.inputs)
        ]
        return f"({', '.join(tensors + self.numbers)}) -> ()"

    def define(self):
        def run(*arguments):
            self.kernel(*self.split(arguments), ())

        def fake(*arguments):
            self.kernel.validate(self.split(arguments)[0])

        self.op = torch.library.custom_op(
            f"fovea::{self.name}", run, mutates_args=self.written, schema=self.schema(0)
        )
        self.op.register_fake(fake)

    def dispatched(self, tensors, numbers, wanted):
        for i, (name, x) in enumerate(zip(self.inputs, tensors)):
            if x is not None or i < self.required:
                need(self.name, name, x)
        if torch.is_grad_enabled():
            self.differentiable(tensors)
        self.op(*tensors, *numbers)


def _decoded(x):
    return _table._rows(x, _table._tokens(x), x["v_tail"].shape[-1])


kv_append = Update(
    "kv_append",
    _table.kernel(ops._x_kv_append,
                  f"k_new:4 v_new:4 {' '.join(_PAGES + _ROWS)} page_table {' '.join(_FACTORS)} "
                  "query_start query_len cache_row", "", "query_max bits group flush format v_bits",
                  lambda x: []),
    _TYPES, 12, (*_PAGES, *_ROWS, *_FACTORS),
)  # fmt: skip

kv_decode = Operation(
    "kv_decode",
    _table.kernel(ops._x_kv_decode,
                  f"q:4 {' '.join(_PAGES + _ROWS)} page_table {' '.join(_FACTORS)} query_start "
                  "query_len cache_row sink_logit", "o:4 lse:3",
                  "query_max key_max window_left window_right sink_keys scale causal bits group "
                  "splits format v_bits", _decoded),
    _TYPES, 11,
)  # fmt: skip


def uncoded(words, bits):
    """The codes in words of 32 bits, along the last axis, in f32."""
    shifts = torch.arange(0, 32, bits, device=words.device, dtype=torch.int32)
    return ((words[..., None] >> shifts) & (2**bits - 1)).flatten(-2).float()


class QuantisedCache:
    """A cache of keys and values in 2 or 4 bits: KIVI, `recipe` "kivi2" or "kivi4", or KVarN,
    "kvarn", which turns q, k and v by a Hadamard matrix, and o back.

        cache = fovea.torch.QuantisedCache("kivi2", 8, 2, 128)  # 8 sequences, 2 key heads of 128
        cache.append(k, v)                                      # (b, s, g, d), rotated already
        o = cache.decode(q)                                     # rows of q are the last tokens

    rows          sequences
    heads, width, value_width   key heads, and columns of keys and of values (None: width)
    group         keys of a channel, or channels of a value, that share a scale and a zero: times the
                  bits a multiple of 32; divides value_width.  KVarN: tokens of a tile
    residual      the newest keys, in 16 bits until there are so many; a multiple of group
    page          tokens of a page, a multiple of group
    capacity      tokens of a sequence that there is memory for; it doubles when it is exceeded
    dtype         torch.float16 or torch.bfloat16, of k, v and q

    Memory grows in `append` alone: a graph that is captured wants a capacity.  Prefill in chunks is
    append and decode of each chunk; KIVI itself reads the prompt in 16 bits and then appends it."""

    def __init__(self, recipe, rows, heads, width, value_width=None, *, group=None, residual=128,
                 page=None, capacity=0, dtype=torch.bfloat16, device=None):  # fmt: skip
        if recipe not in _METHODS:
            raise InvalidArgument(
                f"QuantisedCache: recipe is {recipe!r}, wanted one of {', '.join(CACHES)}"
            )
        numbers = _METHODS[recipe]
        self.recipe, self.bits = recipe, numbers["bits"]
        self.v_bits = numbers.get("v_bits", self.bits)
        self.tiles = "v_bits" in numbers
        self.group = group or numbers["group"]
        self.rows, self.heads, self.width = rows, heads, width
        self.value_width = width if value_width is None else value_width
        self.residual, self.dtype, self.device = residual, dtype, torch.device(device or "cpu")
        self.page = page or (1 if self.tiles else 4) * self.group
        self.check()
        self.turns = None
        if self.tiles:
            self.turns = [
                torch.from_numpy(levels.hadamard(n)).to(self.device)
                for n in (width, self.value_width)
            ]
        self.capacity, self.most = 0, 0  # most: tokens that no sequence has more of
        part = self.empty(rows, residual, heads, width, dtype=dtype)
        self.k_tail, self.counter = part, self.empty(rows, 4, dtype=torch.int32)
        ring = residual if self.tiles else residual + 1
        self.v_tail = self.empty(rows, ring, heads, self.value_width, dtype=dtype)
        self.reserve(max(capacity, 1))

    def check(self):
        def wrong(name, wanted):
            return InvalidArgument(f"QuantisedCache: {name} is {getattr(self, name)}, wanted {wanted}")

        for name in ("rows", "heads", "width", "value_width", "group", "residual", "page"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise wrong(name, "an int of at least 1")
        if self.group * self.bits % 32:
            raise wrong("group", f"a multiple of {32 // self.bits} with {self.bits} bits")
        if self.tiles and self.value_width * self.v_bits % 32:
            raise wrong("value_width", f"a multiple of {32 // self.v_bits} with {self.v_bits} bits")
        if not self.tiles and self.value_width % self.group:
            raise wrong("value_width", f"a multiple of group, {self.group}")
        for name in ("residual", "page"):
            if getattr(self, name) % self.group:
                raise wrong(name, f"a multiple of group, {self.group}")
        if self.dtype not in (torch.float16, torch.bfloat16):
            raise wrong("dtype", "torch.float16 or torch.bfloat16: the newest tokens keep 16 bits")

    def empty(self, *shape, dtype):
        return torch.zeros(shape, dtype=dtype, device=self.device)

    @property
    def pages(self):
        """Names of what pages hold."""
        return [*_PAGES, *_FACTORS] if self.tiles else _PAGES

    def turned(self, x, value=False, back=False):
        """Rows in the basis that the cache keeps, and `back`."""
        if self.turns is None or x is None:
            return x
        turn = self.turns[value]
        return (x.float() @ (turn.T if back else turn)).to(x.dtype)

    def reserve(self, tokens):
        """Memory for at least so many tokens of each sequence; what is there is kept."""
        if tokens <= self.capacity:
            return
        before, pages = self.capacity // self.page, -(-max(tokens, 2 * self.capacity) // self.page)
        groups, g = self.page // self.group, self.heads
        d, e = self.width, self.value_width
        runs = 1 if self.tiles else e // self.group
        shapes = {  # heads outside of a page's tokens: kernels read those fastest
            "k_code": (g, groups, d, self.group * self.bits // 32), "k_scale": (g, groups, d),
            "k_zero": (g, groups, d), "v_code": (g, self.page, e * self.v_bits // 32),
            "v_scale": (g, self.page, runs), "v_zero": (g, self.page, runs),
            "k_factor": (g, self.page), "v_factor": (g, groups, e),
        }  # fmt: skip
        for name in self.pages:
            shape = shapes[name]
            kind = torch.int32 if name.endswith("code") else torch.float16
            new = self.empty(self.rows, pages, *shape, dtype=kind)
            if before:
                old = getattr(self, name).transpose(1, 2).unflatten(0, (self.rows, before))
                new[:, :before] = old
            setattr(self, name, new.flatten(0, 1).transpose(1, 2))
        self.capacity = pages * self.page
        self.tabulate()

    def tabulate(self):
        count = self.rows * self.capacity // self.page
        table = torch.arange(count, dtype=torch.int32, device=self.device)
        self.page_table = table.view(self.rows, -1)

    @property
    def lengths(self):
        """(rows) i32, on the cache's device: tokens of each sequence."""
        return self.counter[:, 0]

    @property
    def bytes_a_token(self):
        """Of a token of one sequence that is quantised: codes, scales, zeros and factors of all key
        heads."""
        d, e, group = self.width, self.value_width, self.group
        bits = group * (d * self.bits + e * self.v_bits)  # of a group of tokens
        bits += 32 * d + 16 * group + 32 * group + 16 * e if self.tiles else 32 * (d + e)
        return self.heads * bits // (8 * group)

    @property
    def nbytes(self):
        """All that is allocated: pages, newest tokens, counters."""
        return sum(getattr(self, n).nbytes for n in (*self.pages, *_ROWS, "page_table"))

    def held(self):
        return [getattr(self, n, None) for n in (*_PAGES, *_ROWS, "page_table", *_FACTORS)]

    def append(self, k, v, *, query_start=None, query_len=None, cache_row=None, query_max=0,
               flush=False):  # fmt: skip
        """Puts tokens behind those that are there: k (b, s, g, d), v (b, s, g, e).

        query_start   (b + 1): k and v are packed, (tokens, g, d), b sequences behind one another;
                      query_max, the longest of them, is then wanted
        query_len     (b): the first so many tokens of each sequence alone
        cache_row     (b): sequences of the cache that these are; None: their own numbers
        flush         quantises at the end what is due, without waiting for the next token"""
        need("append", "k", k)
        if k.dim() == 3 and not query_max:
            raise InvalidArgument("append: query_max is 0, wanted the longest packed sequence")
        self.most += query_max if k.dim() == 3 else k.shape[1]
        self.reserve(self.most)
        tensors = (
            self.turned(k), self.turned(v, True), *self.held(),
            integers("append", "query_start", query_start),
            integers("append", "query_len", query_len), integers("append", "cache_row", cache_row),
        )  # fmt: skip
        numbers = (query_max, self.bits, self.group, flag("append", "flush", flush), *self.format())
        kv_append(tensors, numbers)

    def format(self):
        return (_TILES, self.v_bits) if self.tiles else (0, 0)

    def decode(self, q, *, causal=True, scale=None, window_left=0, window_right=0, sink_keys=0,
               sink_logit=None, query_start=None, query_len=None, cache_row=None, query_max=0,
               splits=0, return_lse=False):  # fmt: skip
        """Attention of q (b, s, h, d), the last s tokens of each sequence, over what is there.  Gives
        o in q's dtype, and with return_lse (o, lse).  The fields are those of fovea.torch.decode."""
        tensors = (
            self.turned(q), *self.held(), integers("decode", "query_start", query_start),
            integers("decode", "query_len", query_len),
            integers("decode", "cache_row", cache_row), single(sink_logit),
        )  # fmt: skip
        numbers = (
            query_max, 0, window_left, window_right, sink_keys, scaling("decode", scale),
            flag("decode", "causal", causal), self.bits, self.group, splits, *self.format(),
        )  # fmt: skip
        o, lse = kv_decode(tensors, numbers, (True, bool(return_lse)))
        o = self.turned(o, True, back=True)
        return (o, lse) if return_lse else o

    def reset(self):
        """Forgets every token; the memory stays."""
        self.counter.zero_()
        self.most = 0

    def crop(self, length):
        """Forgets tokens: `length`, an int or (rows), is how many each sequence keeps at most.

        Keys are in codes by whole groups: where a group is cut, what is left of it goes back to the
        newest tokens as its codes say, and is rounded again with the tokens that follow."""
        now = self.counter.tolist()
        length = torch.as_tensor(length).clamp(min=0).expand(self.rows).tolist()
        for row, ((had, keys, values, _), n) in enumerate(zip(now, length)):
            n = min(n, had)
            begin = n // self.group * self.group
            if n < keys and begin < n:
                self.uncode(row, begin, n, values)
                keys, values = begin, min(values, begin)
            now[row][:3] = n, min(keys, n), min(values, n)
        self.counter.copy_(torch.tensor(now, dtype=torch.int32))
        self.most = max((x[0] for x in now), default=0)

    def uncode(self, row, begin, end, values):
        """Writes the tokens [begin, end), keys of one group and the values below `values`, into the
        tails."""
        page, at = begin // self.page, begin % self.page
        page += row * (self.capacity // self.page)
        block, here = at // self.group, slice(at, at + max(0, min(values, end) - begin))
        keys = uncoded(self.k_code[page, block], self.bits)[..., : end - begin]
        keys = keys * self.k_scale[page, block][..., None] + self.k_zero[page, block][..., None]
        keys = keys.permute(2, 0, 1)
        v = uncoded(self.v_code[page, here], self.v_bits)
        v = v.unflatten(-1, (self.v_scale.shape[-1], -1))
        v = v * self.v_scale[page, here][..., None] + self.v_zero[page, here][..., None]
        v = v.flatten(-2)
        if self.tiles:
            keys = keys * self.k_factor[page, at : at + len(keys), :, None]
            v = v * self.v_factor[page, block]
        self.k_tail[row, : end - begin] = keys.to(self.dtype)
        slots = torch.arange(begin, begin + len(v), device=self.device)
        slots = slots - begin if self.tiles else slots % (self.residual + 1)
        self.v_tail[row, slots] = v.to(self.dtype)

    def select(self, rows):
        """The cache of other sequences: row i is what `rows[i]` was (beam search).  A row may come
        more than once."""
        rows = torch.as_tensor(rows, device=self.device).long()
        pages = self.capacity // self.page
        for name in self.pages:
            x = getattr(self, name).transpose(1, 2).unflatten(0, (self.rows, pages))
            setattr(self, name, x[rows].flatten(0, 1).transpose(1, 2))
        for name in _ROWS:
            setattr(self, name, getattr(self, name)[rows])
        self.rows = len(rows)
        self.tabulate()

    def __repr__(self):
        return (
            f"<fovea.torch.QuantisedCache {self.recipe}: {self.rows} x {self.heads} heads of "
            f"{self.width}, {self.bytes_a_token} bytes a token, on {self.device}>"
        )
