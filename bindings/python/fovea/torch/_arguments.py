# SPDX-License-Identifier: Apache-2.0
"""Arguments as the operations take them: autocast, bits of masks, integers, scales."""

import torch

from .._errors import InvalidArgument

_INTEGERS = (torch.int64, torch.int16, torch.int8, torch.uint8)


def need(op, name, x):
    """x where it is a dense tensor."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{op}: {name} is a {type(x).__name__}, wanted a torch.Tensor")
    if x.is_nested:
        raise InvalidArgument(
            f"{op}: {name} is nested, wanted a dense tensor; varlen_attention takes packed sequences"
        )
    return x


def flag(op, name, x):
    """A bool; 0 and 1, and NumPy's and torch's scalars, count as one."""
    if x is True or x is False:
        return x
    if hasattr(x, "item") and x.shape == ():
        x = x.item()
    if not isinstance(x, int) or x not in (0, 1):
        raise TypeError(f"{op}: {name} is {x!r}, wanted True or False")
    return bool(x)


def autocast(*tensors):
    """The tensors as torch.autocast has them for scaled_dot_product_attention: in its dtype, but
    for None, integers, bool and float64."""
    kind = tensors[0].device.type if isinstance(tensors[0], torch.Tensor) else ""
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple([
        x.to(dtype)
        if x is not None and x.is_floating_point() and x.dtype not in (dtype, torch.float64)
        else x
        for x in tensors
    ])  # fmt: skip


def integers(op, name, x):
    """Lengths, starts and tables as int32, which the library reads."""
    if x is None or not isinstance(x, torch.Tensor) or x.dtype == torch.int32:
        return x  # the operation refuses what is no tensor
    if x.dtype not in _INTEGERS:
        raise TypeError(f"{op}: {name} has dtype {x.dtype}, wanted torch.int32 or torch.int64")
    return x.to(torch.int32)


def single(x):
    """Small parameters in f32, which the library reads; differentiable."""
    if x is None or not isinstance(x, torch.Tensor) or x.dtype == torch.float32:
        return x
    return x.float()


def number(op, name, x):
    """The number in a torch or NumPy scalar; any other number as it is."""
    if isinstance(x, (list, tuple, dict)) or (hasattr(x, "item") and x.shape != ()):
        raise TypeError(f"{op}: {name} is a {type(x).__name__}, wanted a number")
    if getattr(x, "requires_grad", False):
        raise InvalidArgument(f"{op}: {name} requires grad, but has no gradient: pass {name}.item()")
    return x.item() if hasattr(x, "item") else x


def scaling(op, scale, name="scale"):
    """0.0, the library's default, for None."""
    if scale is None:
        return 0.0
    if isinstance(scale, torch.Tensor):
        scale = number(op, name, scale)
    elif isinstance(scale, (str, bytes, list, tuple)):
        raise TypeError(f"{op}: {name} is {scale!r}, wanted a number more than 0, or None")
    if not scale > 0:
        raise InvalidArgument(f"{op}: {name} is {scale}, wanted more than 0, or None")
    return float(scale)


def bits(op, mask, keys):
    """A bool mask as bits along its last axis, a byte for 8 keys, the first key in bit 0."""
    if mask is None:
        return None
    need(op, "mask", mask)
    if mask.dtype == torch.uint8 and mask.dim() and mask.shape[-1] == -(-keys // 8):
        return mask  # packed already
    if mask.dtype != torch.bool:
        raise TypeError(
            f"{op}: mask has dtype {mask.dtype} and shape {tuple(mask.shape)}, wanted torch.bool, "
            f"or torch.uint8 with a bit for each of {keys} keys; numbers added to scores are a bias"
        )
    if not mask.dim() or mask.shape[-1] not in (1, keys):
        raise InvalidArgument(
            f"{op}: mask has shape {tuple(mask.shape)}, wanted {keys} keys in its last axis, or 1"
        )
    width = -(-keys // 8)
    wide = mask.expand(*mask.shape[:-1], keys).to(torch.uint8)
    wide = torch.nn.functional.pad(wide, (0, 8 * width - keys)).unflatten(-1, (width, 8))
    shifts = torch.arange(8, dtype=torch.uint8, device=mask.device)
    return (wide << shifts).sum(-1, dtype=torch.uint8)
