"""print the collectives and their algorithms, with rounds, bytes and order of operands."""

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence

from .. import algorithms, collectives
from ..verify import check
from .options import compressible
from .screen import folded

SIZES = 8, 13
SEGMENTS = 8
HEADINGS = (
    "collective",
    "algorithm",
    *(f"rounds, p={size}" for size in SIZES),
    *(f"sent, p={size}" for size in SIZES),
    "ordered",
    "any size",
    "what it does",
)
NCCL = algorithms.NCCL
SERVED_BY_NCCL = [
    name for name in collectives.COLLECTIVES if NCCL in algorithms.library_names(name)
]
NOTE = f"""p: ranks; m: bytes of the whole vector; sent: the most that any rank sends (pipelines:
with {SEGMENTS} segments). ordered: operands stay in rank order, so that operations need not be
commutative. folded: at sizes that it does not fit (most often, that are no power of two), extra
ranks fold into their neighbours first. for study: served where it is named, never chosen or tuned.
All figures are counted by the verifier. nccl is beside them {algorithms.LIBRARIES[NCCL]},
through CuPy, on arrays in device memory, only when asked for: for {", ".join(SERVED_BY_NCCL)}."""

_FIGURES = "  {:<21}{:>11} {:>4}  {:>9} {:>8}  {:>7}  {:>8}"


def add_arguments(parser: ArgumentParser) -> None:
    """Of what, and how the table is written."""
    parser.add_argument("collective", nargs="?", help="one collective, such as allreduce")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")


def run(arguments: Namespace) -> None:
    """Print the table."""
    chosen = (
        [collectives.find(arguments.collective)]
        if arguments.collective
        else [*collectives.COLLECTIVES.values()]
    )
    if arguments.markdown:
        print(_markdown([row for collective in chosen for row in _rows(collective)]))
    else:
        print(*_plain(chosen), sep="\n")


def _rows(collective: collectives.Collective) -> Iterator[tuple[str, ...]]:
    for algorithm in algorithms.registered(collective.name):
        costs = [_cost(algorithm, size) for size in SIZES]
        ordered = ("yes" if algorithm.ordered else "no") if collective.reduces else "-"
        reach = "folded" if getattr(algorithm.generator, "folds", False) else "yes"
        yield (
            collective.name,
            algorithm.name,
            *(rounds for rounds, _ in costs),
            *(sent for _, sent in costs),
            ordered,
            reach,
            ("For study: " if algorithm.study else "") + _summary(algorithm.generator),
        )
    unknown = ["-"] * 2 * len(SIZES)
    what = f"{algorithms.LIBRARIES[algorithms.NATIVE]}."
    yield (
        collective.name,
        algorithms.NATIVE,
        *unknown,
        "yes" if collective.reduces else "-",
        "yes",
        what,
    )


def _cost(algorithm: algorithms.Algorithm, size: int) -> tuple[str, str]:
    """Rounds, and the most a rank sends, as text."""
    blocks = algorithm.vector_blocks(size, SEGMENTS)
    cost = check(algorithm.collective, algorithm.generator, size, blocks=blocks)
    return str(cost.rounds), of_vector(cost.bytes_sent, blocks)


def of_vector(part: int, blocks: int) -> str:
    """A number of blocks as a fraction of the vector's m bytes.

    >>> of_vector(6, 4), of_vector(8, 4), of_vector(1, 1)
    ('6/4 m', '2 m', 'm')
    """
    whole, rest = divmod(part, blocks)
    return f"{part}/{blocks} m" if rest else "m" if whole == 1 else f"{whole} m"


def _summary(generator: Callable[..., object]) -> str:
    """What the docstring says before its first full stop, colon or semicolon."""
    line = (generator.__doc__ or "").strip().partition("\n")[0]
    return re.split(r"[.:;](?:\s|$)", line)[0] + "."


def _plain(chosen: Iterable[collectives.Collective]) -> Iterator[str]:
    """A table for each collective, with what each algorithm does below its figures."""
    for collective in chosen:
        yield folded(f"{collective.name}. {collective.promise}", rest="  ")
        yield _FIGURES.format("", "rounds: p=8", "p=13", "sent: p=8", "p=13", "ordered", "any size")
        for _, name, *figures, summary in _rows(collective):
            yield _FIGURES.format(name, *figures)
            yield folded(summary, "      ", "      ")
        if able := compressible(collective.name):
            yield folded(f"with codes, as compression= asks for: {', '.join(able)}.", "  ", "    ")
        yield ""
    yield folded(NOTE)


def _markdown(table: Iterable[Sequence[str]]) -> str:
    rows = [HEADINGS, ["---"] * len(HEADINGS), *table]
    return "\n".join([*("| " + " | ".join(row) + " |" for row in rows), "", NOTE])
