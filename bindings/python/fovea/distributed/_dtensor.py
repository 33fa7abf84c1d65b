# SPDX-License-Identifier: Apache-2.0
"""attention of DTensors: what a placement cuts, and what is exchanged for it."""

from __future__ import annotations

import sys

from .._errors import InvalidArgument
from . import _peers, _ring

OP = "attention"
AXES = "batch", "tokens", "heads"


def is_one(x):
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(x, module.DTensor)


def cuts(q, k, v, mesh):
    """For each axis of the mesh 0, 1 or 2, the dimension that it cuts, or None: replicated."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not is_one(x):
            raise InvalidArgument(f"{OP}: {name} is no DTensor, wanted q, k and v alike")
        if x.dim() != 4:
            raise InvalidArgument(f"{OP}: {name} has {x.dim()} dimensions, wanted 4")
        if x.device_mesh != q.device_mesh or tuple(x.placements) != tuple(q.placements):
            raise InvalidArgument(
                f"{OP}: {name} lies as {tuple(x.placements)} on {x.device_mesh}, wanted "
                f"{tuple(q.placements)} on {q.device_mesh} as q"
            )
    if mesh is not None and mesh != q.device_mesh:
        raise InvalidArgument(f"{OP}: mesh is {mesh}, wanted None or {q.device_mesh} of q")
    made = []
    for axis, placement in enumerate(q.placements):
        dim = placement.dim % 4 if placement.is_shard() else None
        if dim == 3 or not (placement.is_shard() or placement.is_replicate()):
            raise InvalidArgument(
                f"{OP}: q lies as {placement} on axis {axis}, wanted Shard(0), Shard(1), Shard(2) "
                "or Replicate()"
            )
        if dim == 1 and 1 in made:
            raise InvalidArgument(
                f"{OP}: tokens are cut over two axes of the mesh, wanted one: give heads the other"
            )
        made.append(dim)
    for dim, what in enumerate(AXES):
        parts = 1
        for axis, cut in enumerate(made):
            parts *= q.device_mesh.size(axis) if cut == dim else 1
        for name, x in (("q", q), ("k", k), ("v", v)):
            if x.shape[dim] % parts:
                raise InvalidArgument(
                    f"{OP}: {name} is {tuple(x.shape)}, wanted a multiple of {parts} for the {what} "
                    "of so many ranks"
                )
    return made


def attention(tensors, mesh, alibi, sink_logit, return_lse, options):
    """fovea.distributed.attention of DTensors."""
    from torch.distributed.tensor import DTensor, Shard

    made = cuts(*tensors, mesh)
    q = tensors[0]
    mesh, placements = q.device_mesh, q.placements
    _ring.of_heads(OP, q, alibi=alibi, sink_logit=sink_logit)
    for axis, dim in enumerate(made):
        if dim == 2:
            rank, size = mesh.get_local_rank(axis), mesh.size(axis)
            alibi, sink_logit = [
                None if x is None else x.chunk(size)[rank] for x in (alibi, sink_logit)
            ]
    group = mesh.get_group(made.index(1)) if 1 in made else _peers.Alone(OP)
    o, lse = _ring.ring_attention(
        *[x.to_local() for x in tensors], group, alibi=alibi, sink_logit=sink_logit,
        return_lse=True, **options,
    )  # fmt: skip
    o = DTensor.from_local(o, mesh, placements, run_check=False)
    if not return_lse:
        return o
    places = [Shard({0: 0, 1: 2, 2: 1}[dim]) if dim is not None else placement
              for dim, placement in zip(made, placements)]  # fmt: skip
    return o, DTensor.from_local(lse, mesh, places, run_check=False)
