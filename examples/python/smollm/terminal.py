# SPDX-License-Identifier: Apache-2.0
"""What the commands share: progress on standard error, a failure as one sentence, options.

It needs the standard library only, so that --help works before anything is installed."""
import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

INTERRUPTED = 130  # the shell's exit code for Ctrl-C
_last = -2.0  # when a line of progress was last written


def say(line: str, done: bool = False) -> None:
    """A line of progress.  On a terminal the next overwrites it, unless it is done; elsewhere only
    one in two seconds is written."""
    global _last
    if sys.stderr is None:
        return
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="\n" if done else "", file=sys.stderr, flush=True)
    elif line and (done or time.perf_counter() - _last > 2):
        _last = time.perf_counter()
        print(line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def sentences(name: str, interrupted: str | Callable[[], str] = "interrupted") -> Iterator[None]:
    """Turns what goes wrong inside into one sentence and an exit code: 1, or 130 for Ctrl-C.
    `interrupted` is the sentence of Ctrl-C, or a function that gives it."""
    with contextlib.suppress(ValueError):  # another thread's
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a command began with SIG_DFL
    for stream, errors in ((sys.stdin, "replace"), (sys.stdout, "replace")):
        if hasattr(stream, "reconfigure"):  # no letter of an answer is an error in any locale
            stream.reconfigure(errors=errors)
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except KeyboardInterrupt:
        leave(name, interrupted() if callable(interrupted) else interrupted, INTERRUPTED)
    except BrokenPipeError:
        leave(name, "whoever read the output has closed it", 1)
    except MemoryError as why:
        leave(name, f"out of memory: {why}", 1)
    except ModuleNotFoundError as why:
        needs = os.path.join(os.path.dirname(os.path.abspath(__file__)), "requirements.txt")
        leave(name, f"{why}: pip install -r {needs}", 1)
    except OSError as why:
        leave(name, f"{why.filename}: {why.strerror}" if why.filename else why.strerror or why, 1)
    except ImportError as why:
        leave(name, why, 1)
    except RuntimeError as why:  # fovea's errors are of this kind, and have a sentence
        if type(why).__module__.partition(".")[0] != "fovea":
            raise
        leave(name, why, 1)


def leave(name: str, why: object, code: int) -> NoReturn:
    """Writes the sentence and exits.  What is still to be written to a closed pipe is dropped."""
    with contextlib.suppress(OSError, ValueError):
        say("")
        if sys.stderr is not None:
            print(f"{name}: {why}", file=sys.stderr, flush=True)
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):  # or the interpreter would complain at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    raise SystemExit(code) from None


class Parser(argparse.ArgumentParser):
    """A wrong option is one sentence, not the whole usage."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(formatter_class=Help, **fields)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (--help lists the options)\n")


class Help(argparse.ArgumentDefaultsHelpFormatter):
    """Each default once, and none where there is none to tell."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default in (None, False, "") or "default" in (action.help or ""):
            return action.help
        return super()._get_help_string(action)
