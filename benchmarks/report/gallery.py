"""The page of all algorithms: what each does and costs, its source, and its picture."""

import inspect
import subprocess
import sys

from mpicoll import algorithms, collectives

from .compared import PICTURES

#: ranks in the pictures: no power of two
SIZE = 5


def page():
    """Markdown: a heading per collective and algorithm."""
    parts = []
    for collective in collectives.COLLECTIVES:
        parts.append(f"## {collective}\n")
        for one in algorithms.registered(collective):
            text = inspect.getdoc(inspect.unwrap(one.generator)) or ""
            parts.append(
                f"### {collective}: {one.name}\n\n{text}\n\n"
                f"![{one.name}, {SIZE} ranks](pictures/algorithms/{collective}-{one.name}.png)\n"
            )
    return "\n".join(parts) + "\n"


def draw():
    """All pictures, by the command that users have."""
    folder = PICTURES / "algorithms"
    folder.mkdir(exist_ok=True)
    for collective in collectives.COLLECTIVES:
        for one in algorithms.registered(collective):
            path = folder / f"{collective}-{one.name}.png"
            words = ["show", collective, one.name, "--size", str(SIZE), "--plot", str(path)]
            subprocess.run(
                [sys.executable, "-m", "mpicoll", *words], check=True, capture_output=True
            )
