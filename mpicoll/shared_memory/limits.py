"""Limits of memory: how much there is, and the error where a limit is reached."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from mpi4py import MPI

from ..errors import SharedMemoryError
from ..support import settings

#: what raises a limit of the system
_REMEDIES = {
    errno.EFBIG: "raise the limit of files (ulimit -f)",
    errno.ENOMEM: "raise the limit of addresses (ulimit -v), the memory of the job, or the number "
    "of mappings (vm.max_map_count)",
    errno.ENOSPC: "raise the memory of the job",
    errno.EBADF: "close no descriptor that the program has not opened",
    errno.EMFILE: "raise the limit of descriptors (ulimit -n)",
    errno.ENFILE: "raise the node's limit of descriptors (fs.file-max)",
}


@contextmanager
def explained(purpose: str) -> Iterator[None]:
    """Raise SharedMemoryError for an OSError within: the purpose, the reason, and what to do."""
    try:
        yield
    except SharedMemoryError:
        raise
    except OSError as error:
        rank = f" on rank {MPI.COMM_WORLD.Get_rank()} of COMM_WORLD" if _is_in_mpi() else ""
        number = error.errno or 0
        remedy = _REMEDIES.get(number, "")
        raised = SharedMemoryError(
            f"no memory to share{rank}, {purpose}: {error.strerror or error} (the node has "
            f"{memory_of_node()} bytes for this process): "
            f"{remedy + ', ' if remedy else ''}forget arrays of comm.empty, or set "
            f"{settings.SHARED_MEMORY}=off"
        )
        raised.errno = number
        raise raised from error


def _is_in_mpi() -> bool:
    return MPI.Is_initialized() and not MPI.Is_finalized()


def memory_of_node() -> int:
    """Bytes of memory that this process may use: the node's memory, or less in a control group."""
    limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _limits():
        try:
            limit = min(limit, int(path.read_text(encoding="ascii")))
        except (OSError, ValueError):  # "max"
            continue
    return limit


@cache
def _limits() -> list[Path]:
    """Files with the memory limits of the control group of this process, and of those around it.

    In a container the outermost one that is visible is its own, whatever its name outside.
    """
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, name = line.split(":", 2)
        group = Path(name.lstrip("/"))
        for inside in (group, *group.parents):
            if not controllers:
                found.append(Path("/sys/fs/cgroup") / inside / "memory.max")
            elif "memory" in controllers.split(","):
                found.append(Path("/sys/fs/cgroup/memory") / inside / "memory.limit_in_bytes")
    return [path for path in found if path.exists()]
