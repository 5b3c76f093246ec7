"""print what MPI, the nodes, the GPUs and the settings of this job are (run under mpiexec)."""

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any

from ..errors import LaunchError
from . import outfiles

_THREADS = ("single", "funneled", "serialized", "multiple")


def add_arguments(parser: ArgumentParser) -> None:
    """Where to write it, and what a job script expects."""
    parser.add_argument("--json", metavar="FILE", help="write the same for programs here")
    parser.add_argument("--ranks", type=int, metavar="N", help="end with an error unless there are so many")
    parser.add_argument("--ranks-per-node", type=int, metavar="N", help="end with an error unless each node has so many")


def run(arguments: Namespace) -> None:
    """Print everything on rank 0."""
    from mpi4py import MPI

    from ..launch import install_abort_hook

    install_abort_hook()
    outfiles.check(arguments, MPI.COMM_WORLD)
    facts = gather(MPI.COMM_WORLD)
    if MPI.COMM_WORLD.Get_rank() == 0:
        print(describe(facts), flush=True)
        if arguments.json:
            outfiles.write_json(arguments.json, {"schema": 1, **facts})
    _check(facts["environment"], arguments.ranks, arguments.ranks_per_node)


def _check(where: dict[str, Any], ranks: int | None, each: int | None) -> None:
    """Raise LaunchError, on all ranks, where they are not as many, or not where, they should be."""
    found = ", ".join(f"{host}: {count}" for host, count in zip(where["hosts"], where["ranks_per_node"]))
    if ranks not in (None, where["size"]):
        raise LaunchError(f"expected {ranks} ranks, got {where['size']} ({found}): launcher and allocation disagree; "
                          "compare the launcher's -n with --nodes and --ntasks-per-node of the job")  # fmt: skip
    if each is not None and set(where["ranks_per_node"]) != {each}:
        raise LaunchError(f"expected {each} ranks on each node, got {found}: give the job --ntasks-per-node={each} (with "
                          "--ntasks alone SLURM fills nodes as they come), and mpirun neither hosts nor a mapping")  # fmt: skip


def gather(comm: Any) -> dict[str, Any]:
    """Everything there is to say, the same on all ranks. Collective."""
    from mpi4py import MPI

    from ..buffers import cuda_awareness, gpu_mode
    from ..communicator import Communicator
    from ..execute import Context
    from ..measure import measured_on

    transport = Context.of(Communicator(comm)).topology.transport  # bad settings, or ranks that disagree, end here
    aware, how = cuda_awareness()
    facts: dict[str, Any] = {
        "environment": measured_on(comm),
        "thread_level": _THREADS[(MPI.THREAD_SINGLE, MPI.THREAD_FUNNELED, MPI.THREAD_SERIALIZED,
                                  MPI.THREAD_MULTIPLE).index(MPI.Query_thread())],
        "transport": transport,
        "cuda_aware": aware,
        "cuda_aware_by": how,
        "gpu_mode": gpu_mode(),
        "settings": {name: value for name, value in sorted(os.environ.items()) if name.startswith("MPICOLL_")},
    }  # fmt: skip
    facts["warnings"] = [*_crowded(comm), *_pointers(facts)]
    facts = comm.bcast(facts)
    return facts


def _crowded(comm: Any) -> list[str]:
    """Nodes with more ranks than cores that they may run on."""
    from mpi4py import MPI

    own = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    node = MPI.Intracomm.Split_type(comm, MPI.COMM_TYPE_SHARED)
    sets = node.gather(own)
    node.Free()
    warning = None
    if sets and len(sets) > len(set().union(*sets)):
        warning = (f"{MPI.Get_processor_name()} has {len(sets)} ranks on {len(set().union(*sets))} cores: "
                   "ranks wait busily, so times measured here mean little")  # fmt: skip
    return [text for text in comm.allgather(warning) if text]


def _pointers(facts: dict[str, Any]) -> Iterator[str]:
    if facts["gpu_mode"] == "direct" and facts["cuda_aware"] is not True:
        yield "MPICOLL_GPU=direct gives device pointers to MPI, but this MPI library does not say that it takes them"


def describe(facts: dict[str, Any]) -> str:
    """The facts in lines for a person."""
    where = facts["environment"]
    aware = {True: "yes", False: "no", None: "unknown"}[facts["cuda_aware"]]
    lines = [
        f"MPI library     {where['mpi']}",
        f"mpi4py          {where['mpi4py']} (NumPy {where['numpy']}, Python {where['python']})",
        f"thread level    {facts['thread_level']}",
        f"ranks           {where['size']} on {where['nodes']} {'node' if where['nodes'] == 1 else 'nodes'}",
        *(f"  {host}: {ranks}" for host, ranks in zip(where["hosts"], where["ranks_per_node"])),
        f"transport       {facts['transport']}",
        f"machine         {where['machine']}",
        f"CUDA-aware      {aware} ({facts['cuda_aware_by']})",
        f"device memory   {facts['gpu_mode']} (MPICOLL_GPU)",
        *(f"{name}={value}" for name, value in facts["settings"].items()),
        *(f"warning: {text}" for text in facts["warnings"]),
    ]
    return "\n".join(lines)
