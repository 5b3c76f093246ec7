"""The program `mpicoll`, also as `python -m mpicoll`.

Commands that run on ranks start MPI before anything else is imported: otherwise SLURM may refuse
what MPI publishes, "value not properly terminated in client request" (quirk: ucx-address-grows).
"""

import sys

from .support.commands import ON_RANKS


def main() -> None:
    """Run the command of the command line; does not return."""
    words = set(sys.argv[1:])
    # --help needs no MPI, and --elastic starts it with a time limit
    if ON_RANKS & set(sys.argv[1:2]) and not words & {"-h", "--help", "--elastic"}:
        try:
            import mpi4py.MPI  # noqa: F401
        except (ImportError, RuntimeError):
            pass  # the command says what is missing
    from . import cli

    cli.main()


if __name__ == "__main__":
    main()
