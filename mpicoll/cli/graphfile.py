"""The option `--graph FILE`: the graph from which a neighbourhood collective has its schedule."""

from argparse import Namespace
from pathlib import Path

from .. import collectives
from ..errors import ArgumentError
from ..graphs import NEIGHBORHOODS, GraphFile, parse_graph
from ..support.files import named


def read_graph(path: str) -> GraphFile:
    """Read a graph. Raises ArgumentError, which names the file."""
    try:
        return parse_graph(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ArgumentError(f"--graph: cannot read {named(path)} ({error.strerror})") from None
    except (ValueError, ArgumentError) as error:  # a path with a null byte, or no text
        raise ArgumentError(f"--graph {named(path)}: {error}") from None


def has_graph(arguments: Namespace, *excluded: str) -> bool:
    """Whether the collective is one of neighbours, which needs a graph, as no other one does.

    excluded: names of options that have no meaning with a graph; None where they are not given.
    """
    name = arguments.collective
    if name not in NEIGHBORHOODS:
        if arguments.graph:
            expected = " or ".join(NEIGHBORHOODS)
            raise ArgumentError(f"--graph: expected the collective {expected}, got {name}")
        return False
    if not arguments.graph:
        raise ArgumentError(f"{name} has another schedule on each graph: add --graph FILE")
    must_lack(arguments, "--graph", *excluded)
    return True


def must_lack(arguments: Namespace, option: str, *excluded: str) -> None:
    """Raise ArgumentError for options that have no meaning with this one; None: not given."""
    for name in excluded:
        if getattr(arguments, name) is not None:
            raise ArgumentError(f"{option}: it takes no --{name.replace('_', '-')}")


def measured(name: str) -> collectives.Collective:
    """The collective of that name, which `bench` and `tune` measure; ArgumentError otherwise."""
    if name in NEIGHBORHOODS:
        raise ArgumentError(
            f"{name} has another schedule on each graph, and is not measured here: "
            "`mpiexec -n 8 python -m benchmarks.run.halo --dims 2 2 2` in the sources of mpicoll"
            " measures it on a grid"
        )
    return collectives.find(name)
