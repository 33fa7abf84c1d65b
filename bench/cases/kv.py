# SPDX-License-Identifier: Apache-2.0
"""Low-bit caches, decode: one row a sequence over the codes of KIVI, KVQuant or TurboQuant, beside
our own attention over the same tokens in 16 bits.  The rate counts the bytes of codes and of what
belongs to them."""

import dataclasses
import importlib

import fovea
import fovea.levels
import torch

from .base import Case, Own, PeerFailed, size
from .peers import Peer, importable

GROUP, RESIDUAL = 32, 128


@dataclasses.dataclass(frozen=True)
class LowBit(Case):
    b: int
    h: int
    g: int
    t: int
    bits: int
    d: int = 128
    page: int = 64
    tokens_first: bool = False  # pages whose tokens lie outside of their heads
    unit, scale, limit = "GB/s", 1e-9, 0  # codes of random numbers are far from the numbers
    family, peer, op = "x_kv", "fovea 16 bits", "x_kv_decode"

    def words(self):
        yield f"kivi{self.bits}_b{self.b}_n{size(self.t)}_h{self.h}_g{self.g}"
        yield None if self.d == 128 else f"d{self.d}"
        yield None if self.page == 64 else f"page{self.page}"
        yield "tokens_first" if self.tokens_first else None

    @property
    def bytes(self):
        codes = (self.t - RESIDUAL) * (self.bits * self.d / 8 + 4 * self.d / GROUP)
        return int(2 * self.b * self.g * (codes + RESIDUAL * self.d * self.itemsize))

    work = bytes

    def cache(self, device):
        pages, words = -(-self.t // self.page) + 1, self.bits * self.d // 32
        pool, groups = pages * self.b, self.page // GROUP

        def of(*shape, dtype=torch.float16):
            return torch.zeros(shape, dtype=dtype, device=device)

        def values(columns, dtype=torch.float16):
            if self.tokens_first:
                return of(pool, self.page, self.g, columns, dtype=dtype)
            return of(pool, self.g, self.page, columns, dtype=dtype).transpose(1, 2)

        kind = torch.bfloat16
        table = torch.randperm(pool, device=device).reshape(self.b, pages).int()
        return {
            "k_code": of(pool, groups, self.g, self.d, self.bits, dtype=torch.int32),
            "k_scale": of(pool, groups, self.g, self.d),
            "k_zero": of(pool, groups, self.g, self.d),
            "v_code": values(words, torch.int32),
            "v_scale": values(self.d // GROUP),
            "v_zero": values(self.d // GROUP),
            "k_tail": of(self.b, RESIDUAL, self.g, self.d, dtype=kind),
            "v_tail": of(self.b, RESIDUAL + 1, self.g, self.d, dtype=kind),
            "counter": of(self.b, 4, dtype=torch.int32),
            "page_table": table,
        }

    def setup(self, ctx, device, seed):
        normal = self.draw(device, seed)
        q = normal(self.b, 1, self.h, self.d)
        k, v = (normal(self.b, self.t, self.g, self.d) for _ in "kv")
        cache = self.cache(device)
        fovea.x_kv_append(ctx, k, v, bits=self.bits, **cache)
        fields = {**cache, "bits": self.bits, "key_max": self.t, "causal": 1}
        own = Own("x_kv_decode", ctx, q, compared=0, **fields)
        return own, Own("attention_forward", ctx, q, k, v, compared=0, causal=1)


@dataclasses.dataclass(frozen=True)
class Levels(LowBit):
    method: str = "kvquant"  # with 1 % of outliers and rotated keys; or turboquant
    peer = "fovea 16 bits"

    def words(self):
        first, *rest = super().words()
        yield first.replace("kivi", self.method)
        yield from rest

    @property
    def outliers(self):
        return round(self.g * self.d / 200) * 2 if self.method == "kvquant" else 0

    @property
    def bytes(self):
        apart = 8 * self.outliers + 8 if self.method == "kvquant" else 8 * self.g
        return int(self.b * self.t * (2 * self.g * self.bits * self.d / 8 + apart))

    work = bytes

    def cache(self, device):
        cache = super().cache(device)
        for name in ("k_scale", "k_zero", "v_scale", "v_zero", "k_tail", "v_tail"):
            del cache[name]
        pool = len(cache["v_code"])

        def of(*shape, dtype=torch.float32):
            return torch.zeros(shape, dtype=dtype, device=device)

        def table(level):
            return torch.as_tensor(level, device=device)

        if self.method == "turboquant":
            level = table(fovea.levels.turboquant(self.bits, self.d))
            norms = {name: of(pool, self.page, self.g) for name in ("k_norm", "v_norm")}
            return {**cache, **norms, "k_level": level, "v_level": level}
        level = table(fovea.levels.turboquant(self.bits, 6))  # nearly evenly within -1 .. 1
        entries = {
            name: of(pool, self.page, self.outliers, dtype=torch.int32)
            for name in ("k_outlier", "v_outlier")
        }
        bounds = {"k_offset": of(self.g, self.d), "k_range": of(self.g, self.d) + 2.5}
        bounds["v_bound"] = of(pool, self.page, 2)
        return {**cache, **entries, **bounds, "k_level": level, "v_level": level}

    def setup(self, ctx, device, seed):
        normal = self.draw(device, seed)
        q = normal(self.b, 1, self.h, self.d)
        k, v = (normal(self.b, self.t, self.g, self.d) for _ in "kv")
        cache = {**self.cache(device), "bits": self.bits, "format": 1 + (self.method != "kvquant")}
        fovea.x_kv_append(ctx, k, v, **cache)
        fields = {**cache, "e": self.d, "key_max": self.t, "causal": 1}
        if self.method == "kvquant":
            place = torch.arange(self.t, device=device)[:, None]
            angle = place * 1e4 ** (-2 * torch.arange(self.d // 2, device=device) / self.d)
            fields |= {"cos": angle.cos().float(), "sin": angle.sin().float()}
        own = Own("x_kv_decode", ctx, q, compared=0, **fields)
        return own, Own("attention_forward", ctx, q, k, v, compared=0, causal=1)


def o_of(call):
    made = call.run(*call.inputs, **call.fields)
    return made if isinstance(made, torch.Tensor) else made[0]


@dataclasses.dataclass(frozen=True)
class TurboQuantBeside(Levels):
    """vLLM's Triton decode over a cache of its own (turboquant_4bit_nc) of the same tokens.  Its codes
    are others than ours, so each is held to attention in 16 bits: `apart` of it at most."""

    method: str = "turboquant"
    peer, apart = "vLLM", 0.3

    def words(self):
        yield from super().words()
        yield "beside_vllm"

    def setup(self, ctx, device, seed):
        own, exact = super().setup(ctx, device, seed)
        q, k, v = exact.inputs[1:]
        return own, Peer(lambda: self.vllm(q, k, v, o_of(own), o_of(exact)))

    def vllm(self, q, k, v, ours, wanted):
        where, ops = "vllm.model_executor.layers.quantization.turboquant.", "vllm.v1.attention.ops."
        config = importlib.import_module(where + "config").TurboQuantConfig.from_cache_dtype(
            "turboquant_4bit_nc", self.d
        )
        level = importlib.import_module(where + "centroids").get_centroids(self.d, config.mse_bits)
        store = importlib.import_module(ops + "triton_turboquant_store").triton_turboquant_store
        decode = importlib.import_module(ops + "triton_turboquant_decode")
        one = torch.ones(1, 1, device=q.device)
        while len(one) < self.d:
            one = torch.cat((torch.cat((one, one), 1), torch.cat((one, -one), 1)))
        turn, level = one * self.d**-0.5, level.to(q.device).float()
        middle, bits = (level[1:] + level[:-1]) / 2, (config.mse_bits, config.key_packed_size)
        pages = -(-self.t // self.page)
        table = torch.randperm(self.b * pages, device=q.device).int().reshape(self.b, pages)
        shape = self.b * pages, self.page, self.g, config.slot_size_aligned
        cache = torch.zeros(shape, dtype=torch.uint8, device=q.device)
        token = torch.arange(self.t, device=q.device)
        for row in range(self.b):
            slot = (table[row, token // self.page] * self.page + token % self.page).int()
            store(k[row], v[row], cache, slot, turn, middle, *bits, config.value_quant_bits)
        length = torch.full((self.b,), self.t, dtype=torch.int32, device=q.device)
        empty = lambda *shape: torch.empty(shape, dtype=torch.float32, device=q.device)
        room = {"mid_o_buf": empty(self.b, self.h, 32, self.d + 1), "lse_buf": empty(self.b, self.h)}
        room["output_buf"] = torch.empty_like(q[:, 0])

        def run():
            return [decode.triton_turboquant_decode_attention(
                q[:, 0], cache, table, length, turn, level, self.d**-0.5, *bits,
                config.value_quant_bits, norm_correction=config.norm_correction, PiT=turn, **room,
            )[:, None]]  # fmt: skip

        for name, made in (("ours", ours), ("the peer", run()[0])):
            off = (made.float() - wanted.float()).norm() / wanted.float().norm()
            if not off < self.apart:
                raise PeerFailed(f"{name} is {off:.2f} of attention in 16 bits from it")
        return run


def host():
    for bits in (2, 4):
        yield LowBit(1, 32, 8, 8192, bits)


def cuda():
    for bits in (2, 4):
        for b, h, t in ((32, 64, 8192), (8, 64, 32768), (1, 64, 8192), (32, 8, 8192)):
            yield LowBit(b, h, 8, t, bits)
    yield LowBit(32, 128, 8, 8192, 2)
    yield LowBit(32, 64, 8, 8192, 2, tokens_first=True)
    yield LowBit(32, 64, 8, 8192, 2, page=256)
    for bits in (2, 3, 4):
        yield Levels(32, 64, 8, 8192, bits)
    for b, h, t in ((8, 64, 32768), (1, 64, 8192)):
        yield Levels(b, h, 8, t, 4)
    yield Levels(32, 64, 8, 8192, 4, method="turboquant")
    if importable("vllm"):
        for b, t in ((32, 8192), (8, 32768), (1, 8192)):
            yield TurboQuantBeside(b, 64, 8, t, 4)
