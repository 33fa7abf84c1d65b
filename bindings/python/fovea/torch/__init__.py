# SPDX-License-Identifier: Apache-2.0
"""fovea for PyTorch: attention with autograd, torch.compile and autocast.

    import fovea.torch
    o = fovea.torch.attention(q, k, v, causal=True)  # (b, s, h, d)
    o.sum().backward()

Needs torch 2.4 or later.  `import fovea` alone does not import torch."""

import torch as _torch

if tuple(int(n) for n in _torch.__version__.split("+")[0].split(".")[:2]) < (2, 4):
    raise ImportError(f"fovea.torch: torch is {_torch.__version__}, wanted 2.4 or later")

from ._attention import Trace, attention, decode, trace, varlen_attention  # noqa: E402
from ._cache import QuantisedCache  # noqa: E402
from ._convolution import MultiTokenAttention, conv_attention  # noqa: E402
from ._divergence import KLDistillationLoss, kl_loss  # noqa: E402
from ._flash import activate, register  # noqa: E402
from ._place import context  # noqa: E402
from ._quantised import quantised_attention  # noqa: E402
from ._sdpa import scaled_dot_product_attention  # noqa: E402

__all__ = [
    "KLDistillationLoss",
    "MultiTokenAttention",
    "QuantisedCache",
    "Trace",
    "activate",
    "attention",
    "context",
    "conv_attention",
    "decode",
    "kl_loss",
    "quantised_attention",
    "register",
    "scaled_dot_product_attention",
    "trace",
    "varlen_attention",
]
