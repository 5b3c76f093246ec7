"""All network measurements behind the README.

    python -m benchmarks.run.suite [PART …]

It needs root, and takes an hour.

Parts, all on the virtual cluster: hosts and small (allreduce against everything, 2 to 13 hosts,
from 64K and below it), forced (Intel MPI's best preset), others (reduce_scatter, allgather, bcast),
moves (reduce, gather, scatter, blocks of uneven size), alltoall (7 hosts), scans (scan, exscan and barrier, 2 to 13
hosts), between (numbers of
hosts that no rule was made from), compressed (allreduce in int8 and int4, 7 and 13 hosts), placed
(4 hosts x 2 ranks, two placements), law (parameter server against ring, 2 to 8 hosts), bits (what
the same bits cost; one host, 4 and 7), training, torch and backend (2, 4 and 7 hosts, of `backend`
also 4 x 2), loss (seconds until a training has reached a loss, 7 hosts), beside (calls that do not
block beside a computation, 2 and 7 hosts). Each job leaves one file in benchmarks/results/; `python
-m benchmarks.report.tables` then makes the tables.
"""

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from mpicoll.cluster import PLACEMENTS, Cluster

RESULTS = Path(__file__).resolve().parents[1] / "results"
#: hosts and the rate of their links: what two to four cores can move between so many hosts
RATES = {2: "1gbit", 4: "1gbit", 7: "500mbit", 8: "500mbit", 13: "200mbit"}
LIBRARIES = ("openmpi", "mpich")
#: every candidate, although the first calls of ours are bound and take long
SMALL = "--sizes 8,64,512,1K,4K,8K,16K,32K --keep --least 20"
#: numbers of hosts that no rule of the table was made from
BETWEEN = {3: "1gbit", 5: "500mbit", 6: "500mbit", 9: "200mbit", 11: "200mbit"}
#: what of ours is measured there
LIKELY = {
    "allreduce": "ring,circulant,recursive_doubling",
    "reduce_scatter": "ring,circulant,halving",
    "allgather": "ring,circulant,bruck",
    "bcast": "circulant,pipeline,scatter_allgather",
}
#: rooted collectives are pipelined: pieces that their algorithms are measured in, MPI's own too
PIECES = "--segments 8K,16K,32K,60000"
IN_PIECES = f"{PIECES} --forced-segments 16K"
#: of Intel MPI's presets for allreduce the best at 7 hosts
PRESETS = {"I_MPI_ADJUST_ALLREDUCE": "8"}
#: for training, where the cores must compute as well
SLOW = {2: "400mbit", 4: "200mbit", 7: "200mbit"}


@dataclass(frozen=True)
class Job:
    """One job on the virtual cluster; its result is `name`.json. options: of the module."""

    part: str
    name: str
    mpi: str
    hosts: int
    options: str = ""
    module: str = "benchmarks.run.collective"
    rate: str = ""
    ranks_per_host: int = 1
    placement: str = "node"

    def run(self, python):
        """Run it. python: the pattern of interpreters, or None."""
        print(f"--- {self.name}", flush=True)
        rate = self.rate or RATES[self.hosts]
        command = ["python", "-m", self.module, "--link", rate]
        command += ["--json", os.path.relpath(RESULTS / f"{self.name}.json")]
        if self.module == Job.module:
            command += ["--placement", self.placement]
        with Cluster(self.hosts, rate) as cluster:
            status = cluster.run(
                [*command, *self.options.split()],
                self.mpi,
                python=python and python.format(self.mpi),
                env={**os.environ, **(PRESETS if self.part == "forced" else {})},
                ranks_per_host=self.ranks_per_host,
                placement=self.placement,
            ).returncode
        if status:
            sys.exit(f"{self.name}: exit status {status}")


def jobs():
    """All of them."""
    for mpi in LIBRARIES:
        yield from _allreduce(mpi)
        yield from _others(mpi)
        yield from _moves(mpi)
        yield from _scans(mpi)
        yield from _between(mpi)
        yield from _compressed(mpi)
        exchanged = "--collective alltoall --sizes 1K:4M --min-time 2 --peers none --keep"
        yield Job("alltoall", f"alltoall-{mpi}-07", mpi, 7, exchanged)
        yield from _placed(mpi)
    yield from _of_intel_mpi()
    law = "--sizes 4M --algorithms parameter_server,ring --peers none --least 9 --keep"
    for hosts in range(2, 9):
        yield Job("law", f"law-mpich-{hosts}", "mpich", hosts, law, rate="500mbit")
    for mpi in LIBRARIES:
        yield from _training(mpi)
        for hosts in (2, 7):
            name, module = f"beside-{mpi}-{hosts}", "benchmarks.run.beside"
            yield Job("beside", name, mpi, hosts, "--rounds 9", module, RATES[hosts])
        for hosts, ranks in ((1, 2), (4, 1), (7, 1)):
            name = f"bits-{mpi}-{hosts}{'' if ranks == 1 else f'x{ranks}'}"
            rate = RATES.get(hosts, "1gbit")
            yield Job("bits", name, mpi, hosts, "", "benchmarks.run.bits", rate, ranks)


def _allreduce(mpi):
    for hosts in RATES:
        large, small = "--sizes 64K:16M --min-time 4", f"{SMALL} --min-time 3"
        yield Job("hosts", f"hosts-{mpi}-{hosts:02}", mpi, hosts, large)
        yield Job("small", f"small-{mpi}-{hosts:02}", mpi, hosts, small)


def _others(mpi):
    pieces = f" --algorithms circulant,pipeline,scatter_allgather {IN_PIECES}"
    for hosts in RATES:
        for name in ("reduce_scatter", "allgather", "bcast"):
            options = f"--collective {name} --sizes 4K:4M --min-time 2 --peers forced"
            options += pieces if name == "bcast" else ""
            yield Job("others", f"others-{mpi}-{name}-{hosts:02}", mpi, hosts, options)


def _moves(mpi):
    """Reduce, gather and scatter; blocks of which one rank has most, or of random size."""
    pieces = f"--algorithms circulant,pipeline,reduce_scatter_gather {IN_PIECES}"
    for hosts in (4, 7, 13):
        sizes = f"--sizes {'4K:4M' if hosts < 13 else '4K:1M'} --min-time 1 --peers forced"
        cases = [("reduce", "even", pieces), ("gather", "even", ""), ("scatter", "even", "")]
        if hosts > 4:
            uneven = [
                (name, split)
                for name in ("allgather", "reduce_scatter")
                for split in ("one", "random")
            ]
            cases += [(*case, "") for case in (*uneven, ("gather", "one"), ("scatter", "one"))]
        for name, split, more in cases:
            result = f"moves-{mpi}-{name}{'' if split == 'even' else '-' + split}-{hosts:02}"
            options = f"--collective {name} --split {split} {sizes} {more}"
            yield Job("moves", result, mpi, hosts, options)


def _scans(mpi):
    for hosts in (2, 4, 7, 13):
        for name, sizes in (("scan", "8,8K,64K,1M"), ("exscan", "8,8K,64K,1M"), ("barrier", "8")):
            options = f"--collective {name} --sizes {sizes} --min-time 1 --peers forced --least 20 --keep"
            yield Job("scans", f"scans-{mpi}-{name}-{hosts:02}", mpi, hosts, options)


def _between(mpi):
    for hosts, rate in BETWEEN.items():
        for name, words in LIKELY.items():
            options = f"--collective {name} --sizes 16K:1M --min-time 1 --peers forced"
            options += f" --algorithms {words} {PIECES if name == 'bcast' else ''}"
            result = f"between-{mpi}-{name}-{hosts:02}"
            yield Job("between", result, mpi, hosts, options, rate=rate)


def _compressed(mpi):
    """Compressed calls beside exact ones: ours, native, and native with each of its algorithms."""
    options = "--sizes 256K,4M,16M --min-time 4 --peers forced --algorithms ring,circulant"
    for hosts in (7, 13):
        name = f"compressed-{mpi}-{hosts:02}"
        yield Job("compressed", name, mpi, hosts, f"{options} --compression int8,int4")


def _placed(mpi):
    """4 hosts x 2 ranks."""
    for placement in PLACEMENTS:
        where = {"rate": "1gbit", "ranks_per_host": 2, "placement": placement}
        words = "recursive_doubling,reduce_bcast,hierarchical"
        options = f"{SMALL} --min-time 2 --peers none --algorithms {words}"
        yield Job("small", f"placed-small-{mpi}-{placement}", mpi, 4, options, **where)
        words = "hierarchical,ring,circulant"
        options = f"--sizes 1M:16M --algorithms {words},halving_doubling --least 9"
        yield Job("placed", f"placed-{mpi}-{placement}", mpi, 4, options, **where)
        for name in ("reduce_scatter", "allgather"):
            options = f"--collective {name} --sizes 16K:4M --min-time 1 --peers forced"
            options += f" --algorithms {words}"
            yield Job("placed", f"placed-{mpi}-{name}-{placement}", mpi, 4, options, **where)


def _of_intel_mpi():
    large = "--sizes 64K:16M --min-time 4 --peers forced --algorithms ring,circulant"
    small = "--sizes 1K:16K --min-time 3 --peers none"
    small += " --algorithms recursive_doubling,tree,circulant"
    for hosts in (4, 7):
        for part in ("hosts", "forced"):  # in a job of its own, says peers.forced
            yield Job(part, f"{part}-intelmpi-{hosts:02}", "intelmpi", hosts, large)
        yield Job("small", f"small-intelmpi-{hosts:02}", "intelmpi", hosts, small)


def _training(mpi):
    for hosts, rate in SLOW.items():
        has_timeline = (mpi, hosts) == ("mpich", 4)
        options = f"--trace {os.path.relpath(RESULTS / 'timeline')}" if has_timeline else ""
        # minutes: a few cores compute for all of them
        options += " --rounds 1" if hosts > 4 else ""
        trained = "benchmarks.run.training"
        yield Job("training", f"training-{mpi}-{hosts}", mpi, hosts, options, trained, rate)
        peer = "benchmarks.peers.torch_ddp"
        yield Job("torch", f"torch-{mpi}-{hosts}", mpi, hosts, "", peer, rate)
        backend = "benchmarks.peers.torch_backend"
        for ranks in (1, 2) if hosts == 4 else (1,):
            name = f"backend-{mpi}-{hosts}{'' if ranks == 1 else f'x{ranks}'}"
            options = "--most 16M --rounds 3"
            yield Job("backend", name, mpi, hosts, options, backend, rate, ranks)
    reached = "benchmarks.run.time_to_loss"
    yield Job("loss", f"time-to-loss-{mpi}-7", mpi, 7, "", reached, SLOW[7])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help="default: all; also names of single results")
    interpreters = "the interpreters, with {} for openmpi and mpich"
    parser.add_argument("--python", metavar="PATTERN", help=interpreters)
    options = parser.parse_args()
    for job in jobs():
        if not options.parts or {job.part, job.name} & set(options.parts):
            job.run(options.python)


if __name__ == "__main__":
    main()
