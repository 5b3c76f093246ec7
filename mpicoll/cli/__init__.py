"""The command line: `mpicoll CMD …`, the same as `python -m mpicoll CMD …`.

Each command is one module here with a docstring (its help), `add_arguments(parser)` and
`run(arguments)`.
"""

import argparse
import os
import re
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from importlib import import_module
from typing import Any, NoReturn

from ..errors import MpicollError, ScheduleError, did_you_mean
from ..support import settings
from ..support.commands import ON_RANKS
from ..support.launcher import is_first, starting_within
from ..support.optional import require
from ..support.version import __version__
from . import outfiles

#: characters of a line that somebody reads
_LONG = 1000
#: seconds that the start of MPI may take where the launcher lets a job go on without some of its
#: ranks
_START = 300.0
COMMANDS = (
    "list",
    "show",
    "verify",
    "simulate",
    "info",
    "doctor",
    "bench",
    "tune",
    "train",
    "cluster",
    "slurm",
    "diagnose",
    "top",
)


class Parser(argparse.ArgumentParser):
    """Reports an error in one line of readable length, printed by the first rank only."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Like argparse's, but unknown arguments are an error of the subcommand."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(
                "unrecognized arguments:"
                f" {' '.join(unknown)}{did_you_mean(unknown[0].split('=')[0], self._words())}"
            )
        return parsed, unknown

    def add_argument(self, *names: Any, **keywords: Any) -> argparse.Action:
        """Like argparse's; a default that is a number or a text is added to the help."""
        default = keywords.get("default")
        if default not in (None, (), [], argparse.SUPPRESS) and not isinstance(default, bool):
            keywords["help"] += " (default %(default)s)"
        return super().add_argument(*names, **keywords)

    def error(self, message: str) -> NoReturn:
        """Print the message, and end with status 2."""
        if wrong := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
            message += did_you_mean(wrong[1], re.findall(r"[\w-]+", wrong[2]))
        if is_first():
            print(
                f"{self.prog}: error: {_readable(' '.join(message.split()))} (see {self.prog}"
                " --help)",
                file=sys.stderr,
            )
        sys.exit(2)

    def _words(self) -> list[str]:
        """The options there are."""
        return [name for action in self._actions for name in action.option_strings]


def make_parser() -> Parser:
    """The parser of all commands."""
    parser = Parser(prog="mpicoll", description="Collective communication for Python on MPI.")
    parser.add_argument("--version", action="version", version=f"mpicoll {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="CMD")
    for name in COMMANDS:
        module = import_module(f".{name}", __package__)
        summary = (module.__doc__ or "").strip().splitlines()[0]
        command = commands.add_parser(name, help=summary, description=summary)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def commands() -> dict[str, list[str]]:
    """The options of each command."""
    action = next(
        action
        for action in make_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    return {
        name: [word for one in parser._actions for word in one.option_strings]
        for name, parser in action.choices.items()
    }


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Parse the command line, run one command and exit.

    An MpicollError ends in one line and status 2, a wrong schedule in status 1.
    """
    parsed = make_parser().parse_args(arguments)
    if parsed.command not in ON_RANKS and not is_first():
        sys.exit(0)
    try:
        if parsed.command in ON_RANKS:
            # elsewhere the launcher ends a job one of whose processes dies before MPI is there
            limited = (
                starting_within(settings.timeout() or _START)
                if getattr(parsed, "elastic", False)
                else nullcontext()
            )
            with limited:
                require("mpi4py.MPI", f"mpicoll {parsed.command}")
        status = parsed.run(parsed)
        sys.stdout.flush()
        if not status:
            outfiles.write_done(parsed)
        sys.exit(status)
    except BrokenPipeError:  # `mpicoll list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except MpicollError as error:
        _stop(f"mpicoll {parsed.command}: error: ", _readable(str(error)), error)


def _readable(message: str) -> str:
    """The message with over-long lines cut and control characters escaped."""
    shown = "".join(
        letter if letter.isprintable() or letter == "\n" else ascii(letter)[1:-1]
        for letter in message
    )
    return "\n".join(
        line if len(line) < _LONG else f"{line[:_LONG]} …" for line in shown.split("\n")
    )


def _stop(program: str, message: str, error: MpicollError) -> NoReturn:
    """Print one line and end; under MPI every rank must end, also those that saw no error."""
    mpi = sys.modules.get("mpi4py.MPI")
    status = 1 if isinstance(error, ScheduleError) else 2
    if mpi is not None and mpi.Is_initialized() and mpi.COMM_WORLD.Get_size() > 1:
        from ..launch import abort, words_of

        if mpi.COMM_WORLD.Get_rank():
            # where all ranks see the same error, rank 0 says it and ends the job before the others
            # do
            time.sleep(3)
            message = f"rank {mpi.COMM_WORLD.Get_rank()} on {mpi.Get_processor_name()}: {message}"
        abort(program + message, status, because=words_of(error))
    print(program + message, file=sys.stderr, flush=True)
    sys.exit(status)
