# SPDX-License-Identifier: Apache-2.0
"""fovea.distributed: attention of texts that are cut over several devices, on torch.distributed.

    import fovea.distributed as fd
    q, k, v = (fd.shard(x) for x in (q, k, v))          # this rank's tokens
    o = fd.ring_attention(q, k, v, causal=True)         # its rows
    whole = fd.unshard(o)

gloo serves CPUs, NCCL GPUs.  fovea moves nothing between devices itself: the process group does.
Needs torch 2.4 or later.  `import fovea` alone does not import torch."""

from ..torch import attention as _attention  # noqa: F401  (its check of torch's version)
from ._context import context_parallel
from ._cost import Cost, cost
from ._decode import decode
from ._divergence import kl_loss
from ._heads import attention, head_attention
from ._order import positions, shard, unshard
from ._peers import PeerError
from ._ring import ring_attention
from ._state import delta, gla
from ._trace import trace

__all__ = [
    "Cost",
    "PeerError",
    "attention",
    "context_parallel",
    "cost",
    "decode",
    "delta",
    "gla",
    "head_attention",
    "kl_loss",
    "positions",
    "ring_attention",
    "shard",
    "trace",
    "unshard",
]
