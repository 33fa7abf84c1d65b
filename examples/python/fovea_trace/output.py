# SPDX-License-Identifier: Apache-2.0
"""The folder of a trace: looked at before the work, so that no trace is lost or written over."""
from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterable


class Folder:
    """Files get their names only when they are whole.  `saved` names those that have one."""

    def __init__(self, path: pathlib.Path, names: Iterable[str], force: bool = False) -> None:
        self.path, self.made = path, not path.exists()
        self.saved: list[str] = []
        there = [name for name in names if (path / name).exists()]
        if there and not force:
            raise FileExistsError(f"{path} has a {there[0]} already: --force writes over it, "
                                  "--out names another folder")
        if not self.made and not path.is_dir():
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        path.mkdir(parents=True, exist_ok=True)
        try:
            with tempfile.TemporaryFile(dir=path):  # the one sure way to learn it
                pass
        except OSError as why:
            self.close()
            raise OSError(why.errno, why.strerror, str(path)) from None

    def save(self, name: str, write: Callable[[pathlib.Path], object]) -> None:
        """write(path) writes the file; a failure leaves what was there before."""
        part = self.path / f".{name}.part"
        try:
            write(part)
            os.replace(part, self.path / name)
        finally:
            with contextlib.suppress(OSError):
                part.unlink()
        self.saved.append(name)

    def close(self) -> None:
        """Removes the folder if it was made in vain."""
        if self.made and not self.saved:
            with contextlib.suppress(OSError):
                self.path.rmdir()

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
