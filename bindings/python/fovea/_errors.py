# SPDX-License-Identifier: Apache-2.0
"""fovea_status as exceptions."""


class FoveaError(RuntimeError):
    """A fovea call failed; the text is fovea_last_error()."""


class InvalidArgument(FoveaError, ValueError):
    """No fovea could run this call: fix the caller."""


class Unsupported(FoveaError, NotImplementedError):
    """A valid call that no kernel of this backend, device or build takes."""


class OutOfMemory(FoveaError, MemoryError):
    """The workspace or a buffer could not be had."""


class DeviceError(FoveaError):
    """The device failed: the context can only be closed."""


class InternalError(FoveaError):
    """A bug in fovea."""


BY_STATUS = {1: InvalidArgument, 2: Unsupported, 3: OutOfMemory, 4: DeviceError, 5: InternalError}
