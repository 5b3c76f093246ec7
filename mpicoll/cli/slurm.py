"""write SLURM job scripts (new), check them (check), gather a scaling sweep (scaling)."""

import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from string import Template

from ..errors import did_you_mean
from ..support.units import many
from . import outfiles
from .values import assignment

#: options of sbatch that `new` puts in; others are added to the script by hand, or given to sbatch
OPTIONS = (
    "nodes",
    "ntasks-per-node",
    "cpus-per-task",
    "gpus-per-node",
    "mem",
    "time",
    "partition",
    "account",
    "qos",
    "constraint",
    "job-name",
)


def add_arguments(parser: ArgumentParser) -> None:
    """The three actions."""
    from ..slurm import KINDS

    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    new = actions.add_parser("new", help="write a job script, ready for sbatch, from a template")
    new.add_argument(
        "kind",
        choices=KINDS,
        help=(
            "train, bench (against MPI), doctor (what is slow), tune (a table), scaling (a sweep),"
            " gpu_check (what a GPU node proves; in a checkout)"
        ),
    )
    new.add_argument(
        "--set",
        type=assignment,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the script, such as STRATEGY=zero1",
    )
    for name in OPTIONS:
        new.add_argument(f"--{name}", metavar="X", help=f"sbatch's --{name}")
    new.add_argument(
        "--directory", default=".", metavar="DIR", help="where to write"
    )
    new.add_argument("--force", action="store_true", help="replace a script that is there")
    check = actions.add_parser(
        "check", help="find known mistakes in a job script before SLURM does"
    )
    check.add_argument("script", nargs="+", metavar="SCRIPT")
    gather = actions.add_parser("scaling", help="table and plot of what scaling.sh measured")
    gather.add_argument("directory", metavar="DIR")
    gather.add_argument("--plot", metavar="FILE.svg", help="also draw it")


def run(arguments: Namespace) -> int | None:
    """Do it; exit status 1 where mistakes were found or results are missing."""
    actions: dict[str, Callable[[Namespace], int | None]] = {
        "new": _new,
        "check": _check,
        "scaling": _scaling,
    }
    return actions[arguments.action](arguments)


def _new(arguments: Namespace) -> None:
    from ..slurm import write

    options = {name: vars(arguments)[name.replace("-", "_")] for name in OPTIONS}
    settings = dict(arguments.set)
    chosen = {name: value for name, value in options.items() if value is not None}
    written = write(arguments.kind, arguments.directory, chosen, settings, arguments.force)
    print(*(f"wrote {path}" for path in written), sep="\n")
    script = written[0]
    command = f"bash {script}"
    output = "scaling/table.txt"
    if named := re.search(
        r"^#SBATCH --job-name=(\S+)", script.read_text(encoding="utf-8"), re.MULTILINE
    ):
        command = f"sbatch {script}"
        output = f"{named[1]}-JOB.out    # JOB: the number that sbatch prints"
    print(f"next: look at {script.with_name('env.sh')} (modules, MPI), then:")
    print(f"  {command}", f"  tail --follow=name --retry {output}", sep="\n")


def _check(arguments: Namespace) -> int:
    from ..slurm import mistakes

    mistakes_found = [
        (script, *mistake)
        for script in arguments.script
        for mistake in (*mistakes(script), *_misspelt(script))
    ]
    print(
        *(f"{script}:{line}: {message}" for script, line, message in mistakes_found),
        sep="\n",
        end="\n" if mistakes_found else "",
    )
    print(f"{many(len(mistakes_found), 'mistake')} found", file=sys.stderr)
    return 1 if mistakes_found else 0


def _misspelt(path: str) -> Iterator[tuple[int, str]]:
    """Unknown options of mpicoll commands in a script, with settings replaced by their values."""
    from . import commands
    from ..slurm import Script

    script = Script(path)
    values = {name: value for name, (_, value) in script.settings.items()}
    options = commands()
    for number, text in script.commands:
        call = re.search(r"\bmpicoll\s+([a-z]+)\b(.*)", Template(text).safe_substitute(values))
        if call and call[1] in options:
            for option in re.findall(r"(?<=\s)(--[A-Za-z][\w-]*)", call[2]):
                if not any(known.startswith(option) for known in options[call[1]]):
                    hint = did_you_mean(option, options[call[1]])
                    yield number, f"mpicoll {call[1]} has no option {option}{hint}"


def _scaling(arguments: Namespace) -> int:
    from ..slurm import gather, table
    from .plots import draw_scaling

    outfiles.check(arguments)
    rows, missing = gather(arguments.directory)
    print(table(rows, missing), flush=True)
    if arguments.plot and rows:
        draw_scaling(arguments.plot, rows)
    return 1 if missing else 0
