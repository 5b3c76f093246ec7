"""The page of all algorithms: what each does and costs, its source, and its picture."""

import inspect
import subprocess
import sys

from mpicoll import algorithms, collectives, graphs

from .compared import PICTURES

#: ranks in the pictures: no power of two
SIZE = 5
#: in those of collectives of neighbours
GRAPH = PICTURES.parents[1] / "examples" / "halo.graph"


def page():
    """Markdown: a heading per collective and algorithm."""
    parts = []
    headed = None
    for one, _, what in _shown():
        collective = one.collective
        if collective != headed:
            parts.append(f"## {collective}\n")
            headed = collective
        text = inspect.getdoc(inspect.unwrap(one.generator)) or ""
        parts.append(
            f"### {collective}: {one.name}\n\n{text}\n\n"
            f"![{one.name}, {what}](pictures/algorithms/{collective}-{one.name}.png)\n"
        )
    return "\n".join(parts) + "\n"


def draw():
    """All pictures, by the command that users have."""
    folder = PICTURES / "algorithms"
    folder.mkdir(exist_ok=True)
    for one, options, _ in _shown():
        path = folder / f"{one.collective}-{one.name}.png"
        words = ["show", one.collective, one.name, *options, "--plot", str(path)]
        subprocess.run([sys.executable, "-m", "mpicoll", *words], check=True, capture_output=True)


def _shown():
    """(algorithm, options of `mpicoll show`, what the picture has) of every algorithm."""
    for collective in collectives.COLLECTIVES:
        for one in algorithms.registered(collective):
            yield one, ["--size", str(SIZE)], f"{SIZE} ranks"
    for collective in graphs.NEIGHBORHOODS:
        for one in algorithms.registered(collective):
            yield one, ["--graph", str(GRAPH)], "6 ranks on 3 nodes"
