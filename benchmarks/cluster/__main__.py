"""Run a command on the ranks of a virtual cluster: `python -m benchmarks.cluster [options] -- python -m mpicoll bench …`.

The exit status is the command's; 2 where an option is wrong, 130 after Ctrl-C.
"""

import argparse
import signal
import sys

from mpicoll.errors import MpicollError

from . import launch
from .cluster import Cluster


def main(arguments=None):
    """Parse, run, exit."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    parser = _parser()
    end = words.index("--") if "--" in words else len(words)
    options, command = parser.parse_args(words[:end]), words[end + 1 :]
    if not command:
        parser.error("expected a command after `--`, such as `-- python -m mpicoll info`")
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):  # a shell's background jobs are born ignoring SIGINT
        signal.signal(signum, lambda number, frame: sys.exit(128 + number))
    try:
        sys.exit(_run(options, command))
    except MpicollError as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")


def _parser():
    """The options."""
    usage = "%(prog)s --hosts N --rate R --mpi openmpi|mpich [options] -- COMMAND …"
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", usage=usage, description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--hosts", type=int, required=True, metavar="N", help="how many")
    add("--rate", required=True, metavar="R", help="of each link, as 500mbit or 1Gb/s; none: no limit")
    add("--mpi", required=True, choices=tuple(launch.NAMES))
    add("--ranks-per-host", type=int, default=1, metavar="N", help="default 1")
    add("--placement", choices=launch.PLACEMENTS, default="node", help="node fills hosts in order (default)")
    add("--netmod", choices=tuple(launch.NETMODS), default="ofi", help="of MPICH (default ofi)")
    add("--python", metavar="PATH", help="the `python` of COMMAND (default: this one, or that of .venv-MPI)")
    return parser


def _run(options, command):
    """The command's exit status, as a shell gives it."""
    named = {name: getattr(options, name) for name in launch.OPTIONS}
    cluster = Cluster(options.hosts, None if options.rate == "none" else options.rate)
    launch.Job(options.mpi, **named)  # what cannot be used is refused before anything is made
    with cluster:
        status = cluster.run(command, options.mpi, **named).returncode
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    main()
