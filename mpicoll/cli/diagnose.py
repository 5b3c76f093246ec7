"""read the reports of a job's ranks (MPICOLL_REPORT): who is missing, who waits for whom."""

import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from ..reports import State, diagnose, past_calls, read_reports
from ..support.units import format_seconds
from .values import whole


def add_arguments(parser: ArgumentParser) -> None:
    """Where the reports are."""
    add = parser.add_argument
    add("folder", metavar="DIR", type=Path, help="the job's MPICOLL_REPORT")
    add(
        "--calls",
        metavar="N",
        type=whole,
        default=0,
        help="also show the last N calls of each rank, up to 1000",
    )


def run(arguments: Namespace) -> None:
    """Print the diagnosis."""
    states = read_reports(arguments.folder)
    for state in states if arguments.calls > 0 else ():
        print(_calls(state, arguments.calls))
    print(diagnose(states, range(max(state["size"] for state in states))))


def _calls(state: State, count: int) -> str:
    """The last calls of a rank, a line each."""
    lines = [f"Rank {state['rank']}, its last calls:"]
    for one in past_calls(state)[-count:]:
        begun = time.strftime("%H:%M:%S", time.localtime(one.begun)) + f"{one.begun % 1:.6f}"[1:]
        call = f"{one.call} by {one.served or 'MPI'}"
        lines.append(
            f"  {begun} {format_seconds(one.seconds):>8}  {one.communicator} {one.number}: {call}"
            f" at {one.site}"
        )
    return "\n".join(lines)
