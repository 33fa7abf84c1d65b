# SPDX-License-Identifier: Apache-2.0
"""What is measured.  A case makes inputs, runs fovea and its peer on them, and counts the work.

fovea gets (b, s, h, d) memory and torch (b, h, s, d) memory, each its natural contiguous layout;
both allocate their outputs in every call, as their users do.  A family is a file: its cases, and
which of them are measured on the host and on CUDA."""

from itertools import chain

from . import (
    attention,
    codes,
    conv,
    decode,
    kl,
    latent_peers,
    linear,
    methods,
    peers,
    project,
    quant,
    select,
    sparse,
    sparse_flex,
    tpa,
    trace,
)
from .base import PeerFailed as PeerFailed

FAMILIES = (
    attention,
    quant,
    codes,
    kl,
    conv,
    trace,
    decode,
    sparse,
    sparse_flex,
    select,
    linear,
    methods,
    peers,
    latent_peers,
    project,
    tpa,
)


def host():
    return chain.from_iterable(family.host() for family in FAMILIES)


def cuda():
    return chain.from_iterable(family.cuda() for family in FAMILIES)
