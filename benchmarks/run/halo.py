"""Halo exchange of a three-dimensional 7-point stencil, beside MPI's own calls.

    mpicoll cluster --hosts 4 --ranks-per-host 2 --rate 1gbit --mpi openmpi -- \\
        python -m benchmarks.run.halo --dims 2 2 2 --link 1gbit --json FILE
    mpiexec -n 8 python -m benchmarks.run.halo --dims 2 2 2 --json FILE

A grid of ranks; each has a cube of doubles, and sends a face to each neighbour: Neighbor_alltoall
by every algorithm and by MPI itself, blocking and as a plan, in turn. Each exchange is checked
against MPI's result first. `ratio`, `least_ratio`: MPI's median by the candidate's, of the same
form, and the same of their least times.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll.measure import alternate, measured_on, statistics
from mpicoll.measure.timing import calls_per_time, repeats_for

ALGORITHMS = ("default", "direct", "packed", "combined", "native")
FORMS = ("blocking", "persistent")
#: of a cube: its face has the square of it
LENGTHS = (1, 4, 16, 32, 64, 128, 256)


def options_of(algorithm: str) -> dict[str, Any]:
    """The keyword of a call."""
    return {} if algorithm == "default" else {"algorithm": algorithm}


class Halo:
    """The faces of one cube, and the exchanges of them."""

    def __init__(self, grid: Any, length: int) -> None:
        self.grid = grid
        places = 2 * grid.Get_dim()
        rng = np.random.default_rng(grid.Get_rank())
        self.faces = rng.random((places, length, length))
        self.halo = np.zeros_like(self.faces)
        self._plans: list[Any] = []

    def calls(self) -> dict[str, Callable[[], object]]:
        """{"mpi" or algorithm, and form: a function that exchanges the faces}."""
        faces = self.faces
        halo = self.halo
        own = MPI.Cartcomm(self.grid)
        found: dict[str, Callable[[], object]] = {
            "mpi blocking": lambda: own.Neighbor_alltoall(faces, halo)
        }
        found["mpi persistent"] = self._started(own.Neighbor_alltoall_init(faces, halo))
        for name in ALGORITHMS:
            found[f"{name} blocking"] = self._blocking(name)
            try:
                plan = self.grid.Neighbor_alltoall_init(faces, halo, **options_of(name))
            except mpicoll.ArgumentError:  # Open MPI's own plans swap directions on such a grid
                continue
            found[f"{name} persistent"] = self._started(plan)
        return found

    def _blocking(self, algorithm: str) -> Callable[[], object]:
        options = options_of(algorithm)
        return lambda: self.grid.Neighbor_alltoall(self.faces, self.halo, **options)

    def _started(self, plan: Any) -> Callable[[], object]:
        self._plans.append(plan)

        def exchange() -> None:
            plan.Start()
            plan.Wait()

        return exchange

    def check(self, calls: dict[str, Callable[[], object]]) -> None:
        """Every call has the result of MPI's own."""
        calls["mpi blocking"]()
        wanted = self.halo.copy()
        for name, call in calls.items():
            if name == "mpi persistent":  # quirk of Open MPI: neighbor-directions
                continue
            for _ in range(3):
                self.halo[wanted != 0] = -1
                call()
                assert np.array_equal(self.halo, wanted), name

    def free(self) -> None:
        """Free the plans."""
        for plan in self._plans:
            plan.Free()


def row_of(grid: Any, length: int, seconds: float) -> dict[str, Any]:
    """One size."""
    halo = Halo(grid, length)
    calls = halo.calls()
    halo.check(calls)
    once = alternate(grid, calls, 3)
    several = calls_per_time({name: float(times.min()) for name, times in once.items()})
    repeats = repeats_for(grid, calls, seconds, calls=several)
    times = alternate(grid, calls, repeats, calls=several)
    chosen = grid.explain("neighbor_alltoall", halo.faces, halo.halo).algorithm
    medians = {name: float(np.median(each)) for name, each in times.items()}
    results = {}
    for name in calls:
        native = medians[f"mpi {name.split()[1]}"]
        least = float(times[f"mpi {name.split()[1]}"].min() / times[name].min())
        results[name] = {
            **statistics(times[name]),
            "ratio": round(native / medians[name], 3),
            "least_ratio": round(least, 3),
        }
    halo.free()
    return {
        "length": length,
        "bytes_per_face": halo.faces[0].nbytes,
        "repeats": repeats,
        "calls": several,
        "chosen": chosen,
        "results": results,
    }


def main() -> None:
    """Measure all sizes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--dims", type=int, nargs="+", default=[2, 2, 2], help="of the grid")
    add("--periodic", action="store_true", help="the grid wraps around")
    add("--lengths", type=int, nargs="+", default=LENGTHS, help="of a cube, in doubles")
    add("--seconds", type=float, default=5.0, help="for each size")
    add("--link", default="none", help="the cluster's --rate, for the record")
    add("--json", type=Path, help="write the result there")
    options = parser.parse_args()
    world = mpicoll.Communicator(MPI.COMM_WORLD)
    grid = world.Create_cart(options.dims, [options.periodic] * len(options.dims))
    rows = []
    for length in options.lengths:
        row = row_of(grid, length, options.seconds)
        rows.append(row)
        if world.Get_rank() == 0:
            for name, figures in row["results"].items():
                text = f"{name:<20} {figures['median_us']:>9.0f} us  x {figures['ratio']:.2f}"
                print(f"{row['bytes_per_face']:>8} bytes {text}, least {figures['least_ratio']:.2f}")
    document = {
        "schema": 1,
        "environment": measured_on(world),
        "dims": options.dims,
        "periodic": options.periodic,
        "link": options.link,
        "rows": rows,
    }
    if options.json and world.Get_rank() == 0:
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
