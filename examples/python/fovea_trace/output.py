# SPDX-License-Identifier: Apache-2.0
"""The folder of a trace: looked at before the work, so that no trace is lost or written over."""
import contextlib
import errno
import os
import tempfile


class Folder:
    """Files get their names only when they are whole.  `saved` names those that have one."""

    def __init__(self, path, names, force=False):
        self.path, self.saved, self.made = path, [], not path.exists()
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

    def save(self, name, write):
        """write(path) writes the file; a failure leaves what was there before."""
        part = self.path / f".{name}.part"
        try:
            write(part)
            os.replace(part, self.path / name)
        finally:
            with contextlib.suppress(OSError):
                part.unlink()
        self.saved.append(name)

    def close(self):
        """Removes the folder if it was made in vain."""
        if self.made and not self.saved:
            with contextlib.suppress(OSError):
                self.path.rmdir()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
