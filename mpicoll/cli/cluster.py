"""run a command on hosts of a virtual cluster on this machine (needs root).

The command runs on MPI ranks, or once on SLURM's login node.

With --slurm the hosts are SLURM's nodes, and the command runs once, on the login node: `… --slurm
-- sbatch --wait job.sh`, or `… --slurm -- bash` to look around; `cluster crash HOST` there takes a
host's power (`boot` gives it back), `cluster cut HOST` its network (`mend`). The exit status is the
command's; 2 where an option is wrong, 130 after Ctrl-C.
"""

import argparse
import signal
import sys

from ..errors import ArgumentError
from ..support.files import named
from .values import assignment, whole

USAGE = (
    "mpicoll cluster --hosts N --rate R --mpi openmpi|mpich|intelmpi [options] -- COMMAND …, "
    "or --hosts N --slurm -- COMMAND …"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The hosts, their links, and how ranks are placed; defaults are those of `Slurm` and `Job`."""
    from ..cluster import NAMES, NETMODS, PLACEMENTS, Job, Slurm

    parser.usage = USAGE
    add = parser.add_argument
    add("--hosts", type=whole, required=True, metavar="N", help="number of hosts")
    add(
        "--rate",
        metavar="R",
        help="rate of each link: 500mbit, 1Gb/s, or none for no limit (needed without --slurm)",
    )
    add(
        "--mpi",
        choices=tuple(NAMES),
        help="the MPI library whose launcher starts the ranks (needed without --slurm)",
    )
    add("--slurm", action="store_true", help="start SLURM, and run the command on its login node")
    add("--cpus", type=whole, default=Slurm.cpus, metavar="N", help="cores of a host for SLURM")
    add(
        "--gpus",
        type=whole,
        default=Slurm.gpus,
        metavar="N",
        help="GPUs of a host for SLURM: clones of /dev/null",
    )
    add(
        "--shared",
        nargs="+",
        default=Slurm.shared,
        metavar="DIR",
        help="directories below /tmp that all hosts see",
    )
    add(
        "--ranks-per-host",
        type=whole,
        default=Job.ranks_per_host,
        metavar="N",
        help="number of ranks",
    )
    add("--placement", choices=PLACEMENTS, default=Job.placement, help="node fills hosts in order")
    add("--netmod", choices=tuple(NETMODS), default=Job.netmod, help="of MPICH")
    add(
        "--sysctl",
        type=assignment,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the kernel's network for all hosts, as net.ipv4.tcp_sack=0",
    )
    add(
        "--survive",
        action="store_true",
        help="let ranks survive the death of others and the loss of hosts (openmpi)",
    )
    add(
        "--python",
        metavar="PATH",
        help="the `python` of COMMAND (default: this one, or that of .venv-MPI)",
    )
    add(
        "words",
        nargs=argparse.REMAINDER,
        metavar="-- COMMAND",
        help="the command, with its own options",
    )


def run(arguments: argparse.Namespace) -> int:
    """Make the cluster, run the command; its exit status, as a shell gives it."""
    command = _command(arguments.words)
    if not arguments.slurm and not (arguments.rate and arguments.mpi):
        raise ArgumentError("expected --rate and --mpi, or --slurm")
    # a shell's background jobs are born ignoring SIGINT
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(signum, lambda number, frame: sys.exit(128 + number))
    rate = None if arguments.rate == "none" else arguments.rate
    status = (_in_slurm if arguments.slurm else _on_ranks)(arguments, rate, command)
    return status if status >= 0 else 128 - status


def _command(words: list[str]) -> list[str]:
    """What stands behind `--`."""
    if words and words[0] != "--":
        raise ArgumentError(
            f"unrecognized arguments: {' '.join(map(named, words))}; the command comes after `--`"
        )
    if not words[1:]:
        raise ArgumentError("expected a command after `--`, such as `-- python -m mpicoll info`")
    return words[1:]


def _in_slurm(arguments: argparse.Namespace, rate: str | None, command: list[str]) -> int:
    from ..cluster import Cluster, Console, Slurm

    slurm = Slurm(arguments.cpus, arguments.gpus, shared=arguments.shared)
    cluster = Cluster(arguments.hosts, rate, slurm, dict(arguments.sysctl))
    with cluster, Console(cluster):
        return cluster.call(command).returncode


def _on_ranks(arguments: argparse.Namespace, rate: str | None, command: list[str]) -> int:
    from ..cluster import OPTIONS, Cluster, Job

    named = {name: getattr(arguments, name) for name in OPTIONS}
    cluster = Cluster(arguments.hosts, rate, sysctl=dict(arguments.sysctl))
    Job(arguments.mpi, **named)  # what cannot be used is refused before anything is made
    with cluster:
        return cluster.run(command, arguments.mpi, **named).returncode
