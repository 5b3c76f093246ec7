"""What a measurement ran on: MPI, versions, ranks, nodes, machine."""

import os
import platform
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import mpi4py
import numpy as np
from mpi4py import MPI

from ..support.node import ranks_of_node
from ..support.quirks import library


def measured_on(comm: MPI.Comm) -> dict[str, Any]:
    """The facts a result is worth nothing without, the same dict on all ranks. Collective.

    hosts and ranks_per_node are in the order of the nodes' lowest ranks; a node is where ranks can
    share memory.
    """
    placement = nodes(comm)
    facts = {
        "mpi": library(),
        "mpi4py": mpi4py.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "size": comm.Get_size(),
        "nodes": len(placement),
        "hosts": [name for name, _ in placement],
        "ranks_per_node": [ranks for _, ranks in placement],
        "machine": machine(),
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": command(),
    }
    agreed: dict[str, Any] = comm.bcast(facts)
    return agreed


def nodes(comm: MPI.Comm) -> list[tuple[str, int]]:
    """(node name, ranks on it) of each node. Collective."""
    with ranks_of_node(comm) as node:
        mine = (MPI.Get_processor_name(), node.Get_size()) if node.Get_rank() == 0 else None
    return [entry for entry in comm.allgather(mine) if entry]


def machine() -> str:
    """Processor and number of cores."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    model = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model
    )
    return f"{model}, {os.cpu_count()} cores"


def command() -> str:
    """The command line, with the program's name as typed, without its path."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    program = f"python -m {spec.name.removesuffix('.__main__')}" if spec else Path(sys.argv[0]).name
    return " ".join([program, *sys.argv[1:]])
