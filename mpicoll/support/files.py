"""Files that mpicoll exchanges with people and programs: reading JSON, atomic writing."""

import io
import json
import os
from pathlib import Path
from typing import Any

from ..errors import ArgumentError


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ArgumentError, also for text that is nested too deeply.

    >>> parse_json('{"schema": 1}')
    {'schema': 1}
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ArgumentError("it is not JSON that can be read: nested too deeply") from None
    except ValueError as error:  # not text, not JSON, or numbers of thousands of digits
        raise ArgumentError(f"it is not JSON: {error}") from None


def named(path: str | os.PathLike[str]) -> str:
    """A path as an error names it: in quotes where it is blank or not printable."""
    text = os.fspath(path)
    return text if text.strip() and text.isprintable() else repr(text)


def kernel_setting(name: str) -> Path:
    """The file of a setting of the kernel, by its name for `sysctl`."""
    return Path("/proc/sys", name.replace(".", "/"))


def write_whole(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file atomically: it has the old content or all of the new. Raises ArgumentError."""
    data = content.encode(errors="surrogateescape") if isinstance(content, str) else content
    target = Path(os.path.realpath(path))
    try:
        if target.exists() and not target.is_file():  # /dev/stdout, a pipe
            target.write_bytes(data)
        else:
            _replace(target, data)
    except OSError as error:
        raise ArgumentError(f"cannot write {named(path)} ({error.strerror})") from None


def _replace(target: Path, data: bytes) -> None:
    partial = target.with_name(f".{target.name[:200]}.{os.urandom(4).hex()}")
    try:
        with open(partial, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            partial.chmod(target.stat().st_mode & 0o7777)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def save_figure(figure: Any, path: str | os.PathLike[str], **options: Any) -> None:
    """Save a figure of Matplotlib in the format of the file's suffix. options: of `savefig`."""
    content = io.BytesIO()
    figure.savefig(content, format=Path(path).suffix[1:] or None, **options)
    write_whole(path, content.getvalue())


def identity(descriptor: int) -> tuple[int, int]:
    """Device and inode of an open file. Raises OSError where the descriptor is closed."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def is_still(descriptor: int, known: tuple[int, int]) -> bool:
    """Whether a descriptor is of the file with this identity.

    A program may close all descriptors, as one that becomes a daemon does; a file of its own may
    get them then.
    """
    try:
        return identity(descriptor) == known
    except OSError:
        return False
