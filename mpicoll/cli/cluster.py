"""Run a command on the ranks of a virtual cluster: `python -m mpicoll.cluster [options] -- python -m mpicoll bench …`.

With --slurm the hosts are SLURM's nodes, and the command runs once, on the login node: `… --slurm -- sbatch --wait job.sh`,
or `… --slurm -- bash` to look around; `cluster crash HOST` there takes a host's power (`boot` gives it back), `cluster cut
HOST` its network (`mend`). The exit status is the command's; 2 where an option is wrong, 130 after Ctrl-C.
"""

import argparse
import signal
import sys

from ..errors import MpicollError
from . import launch
from .cluster import Cluster
from .console import Console
from .slurm import Slurm


def main(arguments=None):
    """Parse, run, exit."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    parser = _parser()
    end = words.index("--") if "--" in words else len(words)
    options, command = parser.parse_args(words[:end]), words[end + 1 :]
    if not command:
        parser.error("expected a command after `--`, such as `-- python -m mpicoll info`")
    if not options.slurm and not (options.rate and options.mpi):
        parser.error("expected --rate and --mpi, or --slurm")
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):  # a shell's background jobs are born ignoring SIGINT
        signal.signal(signum, lambda number, frame: sys.exit(128 + number))
    try:
        sys.exit(_run(options, command))
    except MpicollError as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")


def _parser():
    """The options."""
    usage = "%(prog)s --hosts N --rate R --mpi openmpi|mpich [options] -- COMMAND …, or --hosts N --slurm -- COMMAND …"
    parser = argparse.ArgumentParser(prog="python -m mpicoll.cluster", usage=usage, description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--hosts", type=int, required=True, metavar="N", help="how many")
    add("--rate", metavar="R", help="of each link, as 500mbit or 1Gb/s; none: no limit (needed without --slurm)")
    add("--mpi", choices=tuple(launch.NAMES), help="whose launcher starts the ranks (needed without --slurm)")
    add("--slurm", action="store_true", help="start SLURM, and the command on its login node")
    add("--cpus", type=int, default=4, metavar="N", help="of a host, as SLURM sees it (default 4)")
    add("--gpus", type=int, default=0, metavar="N", help="of a host, as SLURM sees it: clones of /dev/null (default 0)")
    add("--shared", nargs="+", default=(), metavar="DIR", help="directories below /tmp that all hosts shall see")
    add("--ranks-per-host", type=int, default=1, metavar="N", help="default 1")
    add("--placement", choices=launch.PLACEMENTS, default="node", help="node fills hosts in order (default)")
    add("--netmod", choices=tuple(launch.NETMODS), default="ofi", help="of MPICH (default ofi)")
    add("--python", metavar="PATH", help="the `python` of COMMAND (default: this one, or that of .venv-MPI)")
    return parser


def _run(options, command):
    """The command's exit status, as a shell gives it."""
    rate = None if options.rate == "none" else options.rate
    if options.slurm:
        slurm = Slurm(options.cpus, options.gpus, shared=options.shared)
        with Cluster(options.hosts, rate, slurm) as cluster, Console(cluster):
            status = cluster.call(command).returncode
    else:
        named = {name: getattr(options, name) for name in launch.OPTIONS}
        cluster = Cluster(options.hosts, rate)
        launch.Job(options.mpi, **named)  # what cannot be used is refused before anything is made
        with cluster:
            status = cluster.run(command, options.mpi, **named).returncode
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    main()
