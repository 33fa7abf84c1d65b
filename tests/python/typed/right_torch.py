# SPDX-License-Identifier: Apache-2.0
"""Every public name of fovea.torch, fovea.distributed and fovea.transformers, as mypy --strict must take it, with the
types it must find.  Never run: see test_stubs.py."""

from typing import Any, Literal, assert_type

import fovea.distributed
import fovea.torch
import fovea.transformers
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

Both = tuple[Tensor, Tensor]


def functions(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, weight: Tensor) -> None:
    assert_type(fovea.torch.attention(q, k, v, causal=True, window_left=3, bias=q), Tensor)
    assert_type(fovea.torch.attention(q, k, v, scale=1, key_len=lengths, return_lse=True), Both)
    packed = fovea.torch.varlen_attention(q, k, v, lengths, query_max=9, alibi=weight)
    assert_type(packed, Tensor)
    two = fovea.torch.varlen_attention(q, k, v, lengths, lengths, query_max=9, return_lse=True)
    assert_type(two, Both)
    assert_type(fovea.torch.decode(q, k, v, page_table=lengths, key_len=lengths, splits=2), Tensor)
    assert_type(fovea.torch.decode(q, k, v, cos=q, sin=q, return_lse=True), Both)
    assert_type(fovea.torch.conv_attention(q, k, v, weight, mix_after=weight, history=3), Tensor)
    assert_type(fovea.torch.conv_attention(q, k, v, weight, return_lse=True), Both)
    loss = fovea.torch.kl_loss(q, k, q, k, direction="student_teacher", reduction="none")
    assert_type(loss, Tensor)
    o = fovea.torch.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    assert_type(o, Tensor)


def low_bits(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> None:
    assert_type(fovea.torch.quantised_attention(q, k, v, "sage2", causal=True, seed=3), Tensor)
    assert_type(fovea.torch.quantised_attention(q, k, v, "fa3_fp8", return_lse=True), Both)
    cache = fovea.torch.QuantisedCache("kivi2", 8, 2, 128, capacity=4096, dtype=torch.float16)
    cache.append(k, v, query_len=lengths)
    assert_type(cache.decode(q, window_left=64, sink_keys=4), Tensor)
    assert_type(cache.decode(q, return_lse=True), Both)
    assert_type(cache.lengths, Tensor)
    print(cache.bytes_a_token + cache.nbytes)
    cache.select([1, 1, 0])
    cache.crop(lengths)
    cache.reserve(8192)
    cache.reset()


def around(q: Tensor, k: Tensor, v: Tensor) -> None:
    found = fovea.torch.trace(q, k, v, keep=4, return_mass=True)
    assert_type(found, fovea.torch.Trace)
    assert_type(found.selected, Tensor)
    assert_type(found.mass, Tensor | None)
    ctx = fovea.torch.context(torch.device("cuda", 1))
    assert_type(ctx, fovea.Context)
    assert_type(fovea.torch.register("ours"), str)
    fovea.torch.activate()


def over_ranks(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, mesh: DeviceMesh) -> None:
    own = fovea.distributed.shard(q, mesh, layout="contiguous")
    assert_type(fovea.distributed.unshard(own, dim=1), Tensor)
    assert_type(fovea.distributed.positions(64, mesh, device="cpu"), Tensor)
    with fovea.distributed.context_parallel(mesh, buffers=[q], buffer_seq_dims=[1]):
        pass
    assert_type(fovea.distributed.attention(q, k, v, mesh, query_start=[0, 9]), Tensor)
    assert_type(fovea.distributed.ring_attention(q, k, v, causal=True, return_lse=True), Both)
    assert_type(fovea.distributed.head_attention(q, k, v, alibi=lengths), Tensor)
    o = fovea.distributed.decode(q, k, v, context_len=lengths, page_table=lengths)
    assert_type(o, Tensor)
    assert_type(fovea.distributed.kl_loss(q, k, q, k, reduction="sum"), Tensor)
    assert_type(fovea.distributed.gla(q, k, v, gate_head=lengths), Tensor)
    assert_type(fovea.distributed.delta(q, k, v, beta=lengths, return_state=True), Both)
    assert_type(fovea.distributed.trace(q, k, v, keep=4), fovea.torch.Trace)
    told: fovea.distributed.Cost = fovea.distributed.cost("ring", 8, 1 << 20, key_heads=2)
    assert_type(told.seconds, float)
    try:
        fovea.distributed.ring_attention(q, k, v, None)
    except fovea.distributed.PeerError as why:
        print(why)


def modules(x: Tensor, k: Tensor) -> None:
    loss = fovea.torch.KLDistillationLoss(causal=True, reduction="sum", sink_keys=4)
    assert_type(loss.forward(x, k, x, k, key_len=k), Tensor)
    layer = fovea.torch.MultiTokenAttention(64, 8, num_kv_heads=2, mix="both", dtype=torch.bfloat16)
    assert_type(layer.forward(x, rotate=lambda q, k: (q, k)), Tensor)
    layer.reset_parameters()
    torch.nn.Sequential(layer, loss).to("cpu")


def in_transformers(module: torch.nn.Module, q: Tensor, given: dict[str, Any]) -> None:
    assert_type(fovea.transformers.NAME, Literal["fovea"])
    fovea.transformers.register()
    fovea.transformers.register(name="ours")
    assert_type(fovea.transformers.METHODS, tuple[str, ...])
    cache = fovea.transformers.QuantisedCache("kivi4", residual=64)
    assert_type(cache.nbytes + cache.bytes_a_token, int)
    mask = fovea.transformers.mask(**given)
    assert_type(mask, fovea.transformers.Mask | Tensor)
    o, nothing = fovea.transformers.attention(module, q, q, q, mask, softcap=30.0, recipe=None)
    assert_type(o, Tensor)
    assert_type(nothing, None)
    if isinstance(mask, fovea.transformers.Mask):
        assert_type(mask[:, 0], Tensor)
        assert_type(mask.shape, tuple[int, ...])
        print(mask.array, mask.fields, mask.dim(), mask.contiguous().ndim)
