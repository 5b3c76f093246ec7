"""read the reports that the ranks of a job left in a folder (MPICOLL_REPORT): who is missing, and who waits for whom."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from ..reports import diagnose, read_reports


def add_arguments(parser: ArgumentParser) -> None:
    """Where the reports are."""
    parser.add_argument("folder", metavar="DIR", type=Path, help="what MPICOLL_REPORT was in the job")


def run(arguments: Namespace) -> None:
    """Print the diagnosis."""
    states = read_reports(arguments.folder)
    print(diagnose(states, range(max(state["size"] for state in states))))
