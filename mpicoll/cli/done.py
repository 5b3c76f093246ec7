"""`--done FILE`: how a job script learns that the work is complete."""

from datetime import datetime


def add_argument(parser):
    """The option, the same for all commands that work on the ranks."""
    parser.add_argument("--done", metavar="FILE", help="rank 0 writes this when all is done, and only then: what a job "
                        "script should go by, since a launcher's exit status may be 0 after the loss of a node")  # fmt: skip


def write(arguments):
    """Write the file, on rank 0, where the command has the option and it was given."""
    if getattr(arguments, "done", None):
        from mpi4py import MPI

        from ..environment import command

        if MPI.COMM_WORLD.Get_rank() == 0:
            with open(arguments.done, "w", encoding="utf-8") as file:
                print(datetime.now().astimezone().isoformat(timespec="seconds"), command(), file=file)
