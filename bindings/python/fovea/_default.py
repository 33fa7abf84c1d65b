# SPDX-License-Identifier: Apache-2.0
"""The contexts of calls that name none: one for each thread and device."""

from __future__ import annotations

import atexit
import threading
from typing import Any

from ._core import Buffer, Context, place_named
from ._errors import InvalidArgument
from ._info import device_count
from ._views import place_of


class _Mine(threading.local):
    """This thread's contexts by place: -1 the host, else the CUDA device.  They are freed with the
    thread; those of the thread that leaves the program, at exit."""

    def __init__(self):
        self.contexts = {}

    def at(self, place):
        ctx = self.contexts.get(place)
        if ctx is None or not ctx._handle:
            ctx = self.contexts[place] = Context("host") if place < 0 else Context("cuda", place)
        return ctx

    def close(self):
        contexts, self.contexts = self.contexts, {}
        for ctx in contexts.values():
            ctx.close()


_mine = _Mine()
atexit.register(_mine.close)


def default_context(device: Any = "host") -> Context:
    """The context that a call without ctx uses on a device: "host", "cuda:1", a torch.device.

    Each thread has its own.  It is made at its first use and closed with the thread.  One that was
    closed is made anew."""
    backend, number = place_named(device, "default_context: device")
    return _mine.at(number if backend == "cuda" else -1)


def context_of(x):
    """The context for a call whose first array is x: a Buffer's own, else the default one."""
    if isinstance(x, Buffer) and x.ctx._handle:
        return x.ctx
    place = place_of(x)
    if place is None:
        if device_count("cuda") > 1:
            raise InvalidArgument(
                f"a {type(x).__name__} does not tell its device: pass ctx, such as "
                'fovea.default_context("cuda:0")'
            )
        place = 0
    return _mine.at(place)
