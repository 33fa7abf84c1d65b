# SPDX-License-Identifier: Apache-2.0
"""The attention of the example in few bits: methods by name, and caches of 8, 4 and 2 bits.

    ByMethod   the prompt by x_quantised_forward with a method's numbers; later tokens, one by one or
               in chunks, by attention_forward over a cache in bf16
    Bits8      cache_append finds a scale for each token and head, attention_forward reads the codes
    Kivi       x_kv_append and x_kv_decode; the prompt reads its own keys in bf16, as KIVI does
    Kvarn      the same of tiles, over q, k and v that Hadamard's matrix turns"""
from __future__ import annotations

import functools
import time
from collections.abc import Callable

import fovea
import numpy as np

from smollm.model import Config, Floats
from smollm.paged import PagedAttention, There

Make = Callable[[Config, int, fovea.Context], PagedAttention]

BITS = {"e4m3": 8, "i8": 8, "i4": 4, "e2m1": 4, "plain": 16}
GROUP, RESIDUAL = 32, 128  # of KIVI
# What Hopper has instructions for.  Which kernel ran is last_kernel's to say.
HOPPER = {
    "bf16": "bf16 native",
    "e4m3": "codes widened to bf16",
    "i8": "codes widened to bf16",
    "kivi2": "2-bit codes widened to bf16",
    "kivi4": "4-bit codes widened to bf16",
    "kvarn": "codes widened to bf16",
    "fa3_fp8": "e4m3 native",
    "sageattention": "i8 and f16 native",
    "sageattention2": "i8 and e4m3 native",
    "sageattention2pp": "i8 and e4m3 native, f16 sums in f32",
    "sageattention2_int4": "i4 emulated, e4m3 native",
    "sageattention3": "e2m1 emulated",
    "sagebwd": "i8 native",
}


class ByMethod(PagedAttention):
    def __init__(self, name: str, config: Config, capacity: int, ctx: fovea.Context) -> None:
        self.method = fovea.recipe(name)
        super().__init__(config, capacity, ctx, "bf16")

    def read(self, layer: int, turned: There, q: Floats, k: Floats, v: Floats) -> There:
        if self.length > len(q):
            return super().read(layer, turned, q, k, v)
        o: There = self.run(self.method, turned, self.turn(k),
                            self.there(v[None].astype(self.dtype)), causal=1)
        return o


class Bits8(PagedAttention):
    def __init__(self, code: str, config: Config, capacity: int, ctx: fovea.Context) -> None:
        super().__init__(config, capacity, ctx, "bf16")
        pool = (self.table.size, self.page, config.key_heads)
        for pools in (self.k, self.v):
            pools[:] = [ctx.empty((*pool, config.head_dim), code) for _ in pools]
        self.scales = [{name: ctx.empty((*pool, 1), "f32") for name in ("k_scale", "v_scale")}
                       for _ in self.k]

    def attend(self, layer: int, q: Floats, k: Floats, v: Floats) -> Floats:
        started = time.perf_counter()
        turned, scales = self.turn(q), self.scales[layer]
        written = {f"{name}_out": x for name, x in scales.items()}
        new = [self.there(x[None].astype(self.dtype)) for x in (k, v)]
        self.run(fovea.cache_append, k_new=new[0], v_new=new[1], key_len=self.len_before,
                 **self.cache(layer), **written, **self.rope)
        o = self.run(fovea.attention_forward, q=turned, key_len=self.len_after,
                     key_max=self.length, causal=1, **self.cache(layer), **scales)
        out: Floats = self.here(o)[0].astype(np.float32)
        self.seconds += time.perf_counter() - started
        return out


class Kivi(PagedAttention):
    def __init__(self, name: str, config: Config, capacity: int, ctx: fovea.Context) -> None:
        self.method, self.config = fovea.recipe(name), config
        self.bits = int(self.method.numbers["bits"])
        super().__init__(config, capacity, ctx, "bf16", page=4 * GROUP)
        self.k, self.v = [], []  # codes stand in their place
        self.numbers = {"bits": self.bits, "group": GROUP}
        self.held = [{name: ctx.empty(*shape) for name, shape in self.shapes().items()}
                     for _ in range(config.layers)]
        self.reset()

    def shapes(self) -> dict[str, tuple[tuple[int, ...], str]]:
        pool, g, d = self.table.size, self.config.key_heads, self.config.head_dim
        groups, words = self.page // GROUP, GROUP * self.bits // 32
        return {
            "k_code": ((pool, groups, g, d, words), "i32"),
            "k_scale": ((pool, groups, g, d), "f16"), "k_zero": ((pool, groups, g, d), "f16"),
            "v_code": ((pool, self.page, g, d * self.bits // 32), "i32"),
            "v_scale": ((pool, self.page, g, d // GROUP), "f16"),
            "v_zero": ((pool, self.page, g, d // GROUP), "f16"),
            "k_tail": ((1, RESIDUAL, g, d), "bf16"), "v_tail": ((1, RESIDUAL + 1, g, d), "bf16"),
        }

    def reset(self) -> None:
        super().reset()
        for held in getattr(self, "held", []):
            held["counter"] = self.there(np.zeros((1, 4), np.int32))

    def rewind(self, length: int) -> None:
        if length not in (0, self.length):
            raise ValueError("this cache forgets all tokens or none")
        if length == 0:
            self.reset()

    def attend(self, layer: int, q: Floats, k: Floats, v: Floats) -> Floats:
        started = time.perf_counter()
        held = {**self.held[layer], "page_table": self.page_table}
        x, y, z = self.turn(q), self.turn(k), self.there(v[None].astype(self.dtype))
        self.run(fovea.experimental.kv_append, k_new=y, v_new=z, **held, **self.numbers)
        if self.length == len(q):
            o = self.run(fovea.attention_forward, x, y, z, causal=1)
        else:
            o = self.run(self.method, x, **held)
        out: Floats = self.here(o)[0].astype(np.float32)
        self.seconds += time.perf_counter() - started
        return out


class Kvarn(Kivi):
    def __init__(self, name: str, config: Config, capacity: int, ctx: fovea.Context) -> None:
        self.basis: Floats = fovea.levels.hadamard(config.head_dim)
        super().__init__(name, config, capacity, ctx)
        told = self.method.numbers
        self.numbers = {key: int(told[key]) for key in ("bits", "group", "v_bits")}
        self.numbers["format"] = int(fovea.experimental.KvFormat.TILES)

    def shapes(self) -> dict[str, tuple[tuple[int, ...], str]]:
        told = {key: int(self.method.numbers[key]) for key in ("group", "v_bits")}
        pool, g, d = self.table.size, self.config.key_heads, self.config.head_dim
        tiles, words = self.page // told["group"], told["group"] * self.bits // 32
        channels, tokens = (pool, tiles, g, d), (pool, self.page, g)
        late = ((1, RESIDUAL, g, d), "bf16")
        return {
            "k_code": ((*channels, words), "i32"), "k_factor": (tokens, "f16"),
            "k_scale": (channels, "f16"), "k_zero": (channels, "f16"), "k_tail": late,
            "v_code": ((*tokens, d * told["v_bits"] // 32), "i32"), "v_factor": (channels, "f16"),
            "v_scale": ((*tokens, 1), "f16"), "v_zero": ((*tokens, 1), "f16"), "v_tail": late,
        }

    def turn(self, x: Floats) -> There:
        turned = np.asarray(self.here(super().turn(x))).astype(np.float32) @ self.basis
        return self.there(turned.astype(self.dtype))

    def attend(self, layer: int, q: Floats, k: Floats, v: Floats) -> Floats:
        return super().attend(layer, q, k, v @ self.basis) @ self.basis.T


def plain(config: Config, capacity: int, ctx: fovea.Context) -> PagedAttention:
    return PagedAttention(config, capacity, ctx, "bf16")


def caches() -> dict[str, Make]:
    """Each cache by name, bf16 first."""
    made: dict[str, Make] = {"bf16": plain}
    made |= {code: functools.partial(Bits8, code) for code in ("e4m3", "i8")}
    return made | {method.name: functools.partial(
                       Kvarn if "v_bits" in method.numbers else Kivi, method.name)
                   for method in fovea.recipes() if method.operation == "x_kv_decode"
                   and "group" in method.numbers}


def methods() -> dict[str, Make]:
    """Each method of quantised attention by name."""
    return {method.name: functools.partial(ByMethod, method.name)
            for method in fovea.recipes() if method.operation == "x_quantised_forward"}


def bytes_a_token(name: str, config: Config) -> float:
    """k and v of a token in all layers as attention reads them: codes, and scales of a token."""
    columns = config.layers * config.key_heads * config.head_dim
    if name == "bf16":
        return 4.0 * columns
    if name in ("e4m3", "i8"):
        return 2 * columns * (1 + 4 / config.head_dim)
    told = fovea.recipe(name).numbers
    if "v_bits" in told:  # scale and zero of a line, a factor of a column, k and v together
        bits, v_bits, tile = (float(told[key]) for key in ("bits", "v_bits", "group"))
        return columns * ((bits + v_bits) / 8 + 6 / tile + 6 / config.head_dim)
    if "bits" in told:
        return 2 * columns * (float(told["bits"]) / 8 + 4 / GROUP)
    micro = 1 / 16 if told["code"] == "e2m1" else 0
    return columns * ((BITS[str(told["code"])] + BITS[str(told["v_code"])]) / 8 + 2 * micro)
