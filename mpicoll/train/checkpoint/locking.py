"""A lock on a directory for one writer, which ends with its process, and notes who it is."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...errors import LaunchError

#: a file system without locks: there is nothing to hold
_WITHOUT = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@contextmanager
def lock(path: Path, directory: Path) -> Iterator[None]:
    """Hold the lock `path` of a directory.

    Raises LaunchError where another process has it, on any host.

    It is a lock of the system on a file that stays: it is gone when its process is, so what a crash
    leaves is no obstacle. A server of NFS keeps it for a while where a whole host is gone: then a
    job of SLURM that is queued again, which has the same number, takes over at once, and everybody
    else is told which file to remove.
    """
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.lockf(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _read(number)
            own_job = os.environ.get("SLURM_JOB_ID")
            again = (
                own_job is not None
                and holder.get("job") == own_job
                and holder.get("host") != socket.gethostname()
            )
            if error.errno not in _WITHOUT and not again:
                raise LaunchError(_in_use(path, directory, holder)) from None
        _write(number)
        yield
    finally:
        os.close(number)


def _in_use(path: Path, directory: Path, holder: dict[str, Any]) -> str:
    job = f", SLURM job {holder['job']}" if holder.get("job") else ""
    who = f"process {holder.get('process', '?')} on {holder.get('host', 'an unknown host')}{job}"
    return (
        f"checkpoints: {directory} is in use by another training ({who}); expected a directory "
        "for each, since two would overwrite each other's checkpoints. Wait for it, or use "
        f"another directory; if it is dead, remove {path}"
    )


def _read(number: int) -> dict[str, Any]:
    try:
        found = json.loads(os.pread(number, 4096, 0))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(number: int) -> None:
    holder = {
        "host": socket.gethostname(),
        "process": os.getpid(),
        "job": os.environ.get("SLURM_JOB_ID"),
    }
    text = json.dumps(holder).encode()
    os.ftruncate(number, 0)
    os.pwrite(number, text, 0)
