# SPDX-License-Identifier: Apache-2.0
"""Latents beside the kernels that others publish: FlashMLA's decode and its lists of single keys, and
vLLM's Triton decode.  As in peers.py a peer is what Python imports, and results are compared.
FlashMLA plans a decode once and keeps the plan, as its users do; ours is planned in each call."""

import dataclasses
import importlib

import torch

from .base import LIMITS, size
from .decode import Latent
from .peers import Peer, importable
from .sparse import LatentList

NAMES = {"flash_mla": "FlashMLA", "vllm": "vLLM"}


@dataclasses.dataclass(frozen=True)
class LatentBeside(Latent):
    """Absorbed MLA of one row a sequence, over pages of 64."""

    page: int = 64
    module: str = "flash_mla"
    splits = 4  # vLLM's

    @property
    def peer(self):
        return NAMES[self.module]

    def words(self):
        yield f"mla_decode_beside_{self.module.replace('_', '')}"
        yield f"h{self.h}_b{self.b}_n{size(self.t)}_page{self.page}"

    def setup(self, ctx, device, seed):
        own, _ = super().setup(ctx, device, seed)
        q, k, v = own.inputs[1:]
        table, length = own.fields["page_table"], own.fields["key_len"]
        scale = own.fields["scale"]

        def flash_mla():
            peer = importlib.import_module("flash_mla")
            plan, _ = peer.get_mla_metadata()
            call = peer.flash_mla_with_kvcache
            return lambda: [call(q, k, table, length, self.values, plan, softmax_scale=scale)[0]]

        def vllm():
            peer = importlib.import_module("vllm.v1.attention.ops.triton_decode_attention")
            empty = lambda *shape: torch.empty(shape, dtype=torch.float32, device=device)
            o = torch.empty(self.b, self.h, self.values, dtype=q.dtype, device=device)
            lse, parts = empty(self.b, self.h), empty(self.b, self.h, self.splits, self.values + 1)
            mine = q[:, 0], k, v, o, lse, table, length, parts, self.splits, scale, self.page

            def run():
                peer.decode_attention_fwd(*mine)
                return [o[:, None]]

            return run

        return own, Peer({"flash_mla": flash_mla, "vllm": vllm}[self.module])


@dataclasses.dataclass(frozen=True)
class ListBeside(LatentList):
    """The rows of one sequence, each with a list of its own."""

    peer = "FlashMLA"
    limit = LIMITS["bf16"]

    def words(self):
        yield f"latent_list_beside_flashmla_b{self.b}_h{self.h}"
        yield f"n{size(self.n)}_t{size(self.t)}_count{self.count}"

    def setup(self, ctx, device, seed):
        own, _ = super().setup(ctx, device, seed)
        own.compared = 1
        q, k = own.inputs[1:3]
        index = own.fields["index"][0].transpose(0, 1).contiguous()

        def make():
            call = importlib.import_module("flash_mla").flash_mla_sparse_fwd
            return lambda: [call(q[0], k[0], index, 576**-0.5)[0][None]]

        return own, Peer(make)


def host():
    return ()


def cuda():
    if importable("flash_mla"):
        for h in (16, 64, 128):
            yield from (LatentBeside(h, b, t) for b, t in ((128, 8192), (1, 131072)))
        for h in (64, 128):
            yield from (ListBeside(1, h, 4096, t) for t in (8192, 32768))
    if importable("vllm"):
        for h in (16, 128):
            yield from (LatentBeside(h, b, t, module="vllm") for b, t in ((128, 8192), (1, 131072)))
