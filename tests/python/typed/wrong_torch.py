# SPDX-License-Identifier: Apache-2.0
"""As wrong.py, of fovea.torch, fovea.distributed and fovea.transformers."""

import fovea.distributed
import fovea.torch
import fovea.transformers
from torch import Tensor


def calls(q: Tensor, starts: Tensor) -> None:
    fovea.torch.attention(q, q, q, casual=True)  # wrong: No overload
    fovea.torch.attention(q, q)  # wrong: No overload
    fovea.torch.attention(q, q, q, scale="big")  # wrong: No overload
    fovea.torch.varlen_attention(q, q, q, starts)  # wrong: No overload
    fovea.torch.kl_loss(q, q, q, q, direction="sideways")  # wrong: Literal['sideways']
    fovea.torch.trace(q, q, q)  # wrong: Missing named argument "keep"
    fovea.torch.MultiTokenAttention(64, 8, mix="never")  # wrong: Literal['never']
    fovea.torch.quantised_attention(q, q, q)  # wrong: No overload
    fovea.torch.QuantisedCache("kivi2", 8, 2)  # wrong: Missing positional argument "width"
    fovea.torch.flash(q, q, q)  # wrong: has no attribute
    one: Tensor = fovea.torch.attention(q, q, q, return_lse=True)  # wrong: Incompatible types
    fovea.transformers.register(3)  # wrong: incompatible type "int"
    fovea.transformers.QuantisedCache(2)  # wrong: incompatible type "int"
    fovea.transformers.mask(3)  # wrong: Too many arguments
    fovea.distributed.ring_attention(q, q, q, layout="striped")  # wrong: No overload
    fovea.distributed.decode(q, q, q)  # wrong: No overload
    fovea.distributed.cost("pipe", 2, 4)  # wrong: Literal['pipe']
    print(one)
