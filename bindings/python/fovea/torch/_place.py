# SPDX-License-Identifier: Apache-2.0
"""Where a call runs: one fovea context for each (thread, device), on torch's current stream."""

import threading

import torch

from .._core import Context
from .._errors import InvalidArgument
from .._library import check, lib

PLANS = 1024  # prepared calls that a place keeps; past these it starts again
_thread = threading.local()
_stream_number = getattr(torch._C, "_cuda_getCurrentRawStream", None) or (
    lambda device: torch.cuda.current_stream(device).cuda_stream
)


class Place:
    """A context of this thread, and the calls that were prepared on it."""

    __slots__ = ("context", "handle", "device", "cuda", "index", "following", "plans")

    def __init__(self, device):
        if device.type not in ("cpu", "cuda"):
            raise InvalidArgument(f"is on {device}, wanted cpu or cuda")
        self.device, self.cuda, self.index = device, device.type == "cuda", device.index
        self.context = Context("cuda", device.index) if self.cuda else Context("host")
        self.handle = self.context._handle
        self.following = None  # CUDA: the stream; host: the number of threads
        self.plans = {}

    def follow(self):
        """Moves to torch's current stream; on the host to torch's number of threads."""
        if self.cuda:
            # NULL means the context's own to fovea; 1 (cudaStreamLegacy) is CUDA's default stream
            now = _stream_number(self.index) or 1
            if now != self.following:
                check(lib.fovea_context_set_stream(self.handle, now))
        else:
            now = torch.get_num_threads()
            if now != self.following:
                check(lib.fovea_context_set_threads(self.handle, now))
        self.following = now

    def keep(self, key, plan):
        if len(self.plans) >= PLANS:
            self.plans.clear()
        self.plans[key] = plan


def place_of(device):
    """This thread's place on a device; the error is the rest of a sentence that names the field.
    A context that was closed is made anew, without the calls that were prepared on it."""
    try:
        place = _thread.places[device]
        if place.context._handle:
            return place
    except AttributeError:
        _thread.places = {}
    except KeyError:
        pass
    place = _thread.places[device] = Place(device)
    return place


def context(device=None):
    """The fovea.Context that calls of this thread on `device` use (default: the CPU)."""
    try:
        return place_of(torch.device("cpu" if device is None else device)).context
    except InvalidArgument as why:
        raise InvalidArgument(f"context: device {why}") from None
