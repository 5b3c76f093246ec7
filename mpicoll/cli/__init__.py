"""The command line: `mpicoll CMD …`, the same as `python -m mpicoll CMD …`.

Each command is one module here with a docstring (its help), `add_arguments(parser)` and `run(arguments)`.

May import: everything.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from ..errors import MpicollError
from ..support.version import __version__
from . import outfiles

COMMANDS = ("list", "show", "verify", "simulate", "info", "bench", "tune", "train", "cluster", "slurm")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Parse the command line and run one command; errors of mpicoll's own end in one line and status 2."""
    parser = argparse.ArgumentParser(prog="mpicoll", description="Collective communication for Python on MPI.")
    parser.add_argument("--version", action="version", version=f"mpicoll {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="CMD")
    for name in COMMANDS:
        module = import_module(f".{name}", __package__)
        summary = (module.__doc__ or "").strip().splitlines()[0]
        command = commands.add_parser(name, help=summary, description=summary)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    parsed = parser.parse_args(arguments)
    try:
        status = parsed.run(parsed)
        sys.stdout.flush()
        if not status:
            outfiles.write_done(parsed)
        sys.exit(status)
    except BrokenPipeError:  # `mpicoll list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except MpicollError as error:
        _stop(f"mpicoll {parsed.command}: error: ", str(error))


def _stop(program: str, message: str) -> NoReturn:
    """Print one line and end; under MPI every rank must end, also those that saw no error."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and mpi.COMM_WORLD.Get_size() > 1:
        from ..launch import abort

        if mpi.COMM_WORLD.Get_rank():
            time.sleep(3)  # where all ranks see the same error, rank 0 says it and ends the job before the others do
            message = f"rank {mpi.COMM_WORLD.Get_rank()} on {mpi.Get_processor_name()}: {message}"
        abort(program + message, status=2)
    print(program + message, file=sys.stderr, flush=True)
    sys.exit(2)
