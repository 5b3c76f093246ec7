"""Standard error of threads that may still run when the program ends, and of a single rank."""

import os
import sys
import warnings
from contextlib import suppress


def print_now(text: str) -> None:
    """Print a line on standard error, without the lock of `sys.stderr`.

    The end of the program stops a daemon thread anywhere. Where one keeps that lock, Python aborts.
    """
    stream = sys.stderr
    if stream is not sys.__stderr__ or stream is None:
        print(text, file=stream, flush=True)
        return
    left = f"{text}\n".encode(errors="backslashreplace")
    with suppress(OSError):
        while left:
            left = left[os.write(stream.fileno(), left) :]


def warn_here(text: str) -> None:
    """Warn on this rank alone, without an error, which would leave the other ranks waiting.

    Where the program makes warnings errors, the text is printed. The warning names the line that
    called the caller's caller.
    """
    try:
        warnings.warn(text, stacklevel=4)
    except UserWarning:
        print_now(text)
