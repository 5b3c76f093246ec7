"""print the MPI library, the nodes, the GPUs and the settings of this job (run under mpiexec)."""

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any

from ..errors import LaunchError
from ..support.quirks import applies, loaded
from . import gpus, outfiles
from .options import add_shared
from .values import whole


def add_arguments(parser: ArgumentParser) -> None:
    """Where to write it, and what a job script expects."""
    add = parser.add_argument
    add_shared(parser, "--json")
    add(
        "--gpu",
        action="store_true",
        help=(
            "test device pointers in a separate job on each node; fail without a working GPU"
        ),
    )
    add("--ranks", type=whole, metavar="N", help="fail unless the job has N ranks")
    add("--ranks-per-node", type=whole, metavar="N", help="fail unless each node has N ranks")


def run(arguments: Namespace) -> None:
    """Print everything on rank 0."""
    from mpi4py import MPI

    from ..launch import install_abort_hook

    install_abort_hook()
    outfiles.check(arguments, MPI.COMM_WORLD)
    facts = gather(MPI.COMM_WORLD, arguments.gpu)
    if MPI.COMM_WORLD.Get_rank() == 0:
        print(describe(facts), flush=True)
        if arguments.json:
            outfiles.write_json(arguments.json, {"schema": 1, **facts})
    _check(facts["environment"], arguments.ranks, arguments.ranks_per_node)
    if arguments.gpu:
        from ..support.gpus import use_local_device

        use_local_device()


def _check(where: dict[str, Any], ranks: int | None, each: int | None) -> None:
    """Raise LaunchError, on all ranks, where they are not as many, or not where, they should be."""
    placement = ", ".join(
        f"{host}: {count}" for host, count in zip(where["hosts"], where["ranks_per_node"])
    )
    if ranks not in (None, where["size"]):
        raise LaunchError(
            f"expected {ranks} ranks, got {where['size']} ({placement}): launcher and allocation"
            " disagree; compare the launcher's -n with --nodes and --ntasks-per-node of the job"
        )
    if each is not None and set(where["ranks_per_node"]) != {each}:
        raise LaunchError(
            f"expected {each} ranks on each node, got {placement}: give the job"
            f" --ntasks-per-node={each} (with --ntasks alone SLURM fills nodes as they come), and"
            " mpirun neither hosts nor a mapping"
        )


def gather(comm: Any, trial: bool = False) -> dict[str, Any]:
    """All facts, the same on all ranks. Collective.

    trial: whether to try device pointers.
    """
    from mpi4py import MPI

    from ..communicator import Communicator
    from ..execute import Context
    from ..measure import measured_on

    # bad settings, or ranks that disagree, end here
    topology = Context.of(Communicator(comm)).topology
    hosts = gpus.gather(comm, trial)
    levels = {
        MPI.THREAD_SINGLE: "single",
        MPI.THREAD_FUNNELED: "funneled",
        MPI.THREAD_SERIALIZED: "serialized",
        MPI.THREAD_MULTIPLE: "multiple",
    }
    facts: dict[str, Any] = {
        "environment": measured_on(comm),
        "thread_level": levels[MPI.Query_thread()],
        "transport": topology.transport,
        "shared_memory": topology.refusal or "read directly",
        "engine": _engine(comm),
        **{
            name: hosts[0][name]
            for name in ("cuda_aware", "cuda_aware_by", "gpu_mode", "gpu_mode_because")
        },
        "gpus": hosts,
        "settings": {
            name: value for name, value in sorted(os.environ.items()) if name.startswith("MPICOLL_")
        },
    }
    bcast = wrong_bcast(loaded(), max(facts["environment"]["ranks_per_node"]), os.environ)
    facts["warnings"] = [*_crowded(comm), *bcast, *gpus.warnings(hosts)]
    facts = comm.bcast(facts)
    return facts


def _engine(comm: Any) -> str:
    """Which interpreter executes schedules, and why; all ways there are, where hosts differ."""
    from ..engine import status

    extension, reason = status()
    told = "Python" if extension is None else "C"
    return "; ".join(sorted(set(comm.allgather(f"{told} ({reason})"))))


def _crowded(comm: Any) -> list[str]:
    """Nodes with more ranks than cores that they may run on."""
    from mpi4py import MPI

    from ..support.node import processors, ranks_of_node

    with ranks_of_node(comm) as node:
        sets = node.gather(processors())
    warning = None
    if sets and len(sets) > (cores := len(set().union(*sets))):
        warning = (
            f"{MPI.Get_processor_name()} has {len(sets)} ranks on {cores} cores: "
            "ranks wait busily, so times measured here mean little"
        )
    return [text for text in comm.allgather(warning) if text]


def wrong_bcast(
    vendor: tuple[str, tuple[int, ...]], ranks_of_node: int, environ: Mapping[str, str]
) -> list[str]:
    """A warning about a wrong Bcast, where this version and job are affected."""
    avoided = environ.get("I_MPI_COLL_INTRANODE") == "pt2pt" or environ.get("I_MPI_ADJUST_BCAST")
    if not applies("wrong-bcast", vendor) or ranks_of_node < 5 or avoided:
        return []
    return [
        "Intel MPI 2021.16 to 2021.18: MPI's own Bcast of 20,000 bytes or more may give wrong data"
        " on nodes of five or more ranks (mpicoll's algorithms do not): set"
        " I_MPI_COLL_INTRANODE=pt2pt, or I_MPI_ADJUST_BCAST=1"
    ]


def describe(facts: dict[str, Any]) -> str:
    """The facts in lines for a person."""
    where = facts["environment"]
    lines = [
        f"MPI library     {where['mpi']}",
        f"mpi4py          {where['mpi4py']} (NumPy {where['numpy']}, Python {where['python']})",
        f"thread level    {facts['thread_level']}",
        (
            f"ranks           {where['size']} on {where['nodes']}"
            f" {'node' if where['nodes'] == 1 else 'nodes'}"
        ),
        *(f"  {host}: {ranks}" for host, ranks in zip(where["hosts"], where["ranks_per_node"])),
        f"transport       {facts['transport']}",
        f"inside a node   {facts['shared_memory']}",
        f"interpreter     {facts['engine']}",
        f"machine         {where['machine']}",
        *gpus.describe(facts["gpus"]),
        *(f"{name}={value}" for name, value in facts["settings"].items()),
        *(f"warning: {text}" for text in facts["warnings"]),
    ]
    return "\n".join(lines)
