"""The pages people read, README and docs/; their Python on ranks: `mpiexec -n 2 python -m tests.support.pages [PAGE …]`."""

import importlib.util
import re
import sys
from pathlib import Path

import numpy
from mpi4py import MPI

import mpicoll

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def blocks(page, language):
    """What stands between fences of a language."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def run(page, comm, ran):
    """Run a page's Python from top to bottom, as in one program that has a communicator and two vectors.

    ran: blocks of other pages, which are not run again.
    """
    names = {"__name__": page.stem, "mpicoll": mpicoll, "MPI": MPI, "comm": comm, "x": numpy.ones(1000), "y": numpy.ones(1000)}
    for number, block in enumerate(blocks(page, "python"), 1):
        where = f"{page.name}, block {number}"
        if block in ran:
            continue
        if "import torch" in block and importlib.util.find_spec("torch") is None:
            print(f"{where} needs PyTorch")
            continue
        exec(compile(block, where, "exec"), names)
        ran.add(block)
        print(f"{where} ran")


def main():
    """All pages, or those that are named, on all ranks."""
    mpicoll.install_abort_hook()
    ran = set()
    for page in PAGES:
        if len(sys.argv) > 1 and page.stem not in sys.argv[1:]:
            continue
        run(page, mpicoll.Communicator(MPI.COMM_WORLD), ran)


if __name__ == "__main__":
    main()
