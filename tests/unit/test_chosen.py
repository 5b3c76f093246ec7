"""What the shipped table takes, and the report that sets it beside what was measured."""

import json

import pytest

from benchmarks.report import chosen
from mpicoll.select import Query, choose
from mpicoll.transport import Topology

OPEN_MPI, MPICH = "Open MPI v5.0.11", "MPICH 5.0.2"
ONE_NODE, HOSTS, MORE_HOSTS = (0, 0), tuple(range(7)), tuple(range(13))
TAKEN = [
    ("reduce_scatter", ONE_NODE, OPEN_MPI, 256 << 10, ("circulant", None)),
    ("reduce_scatter", ONE_NODE, MPICH, 1 << 20, ("circulant", None)),
    ("reduce_scatter", ONE_NODE, MPICH, 64 << 10, ("native", None)),
    ("bcast", HOSTS, OPEN_MPI, 16 << 10, ("native", None)),
    ("bcast", HOSTS, MPICH, 16 << 10, ("native", None)),
    ("bcast", HOSTS, MPICH, 64 << 10, ("circulant", 16384)),
    ("bcast", MORE_HOSTS, OPEN_MPI, 256 << 10, ("circulant", 16384)),
    ("bcast", HOSTS, OPEN_MPI, 256 << 10, ("pipeline", 60000)),
    ("reduce", HOSTS, OPEN_MPI, 16 << 10, ("native", None)),
    ("reduce", HOSTS, MPICH, 4 << 10, ("circulant", 16384)),
    ("reduce", HOSTS, MPICH, 16 << 10, ("circulant", 16384)),
    ("reduce", HOSTS, MPICH, 64 << 10, ("circulant", 16384)),
    ("reduce", MORE_HOSTS, OPEN_MPI, 256 << 10, ("circulant", 16384)),
    ("reduce", HOSTS, MPICH, 1 << 20, ("pipeline", 60000)),
]


IN_C = [
    ("allreduce", ONE_NODE, OPEN_MPI, 8, "recursive_doubling"),
    ("allreduce", ONE_NODE, OPEN_MPI, 1 << 20, "ring"),
    ("allreduce", ONE_NODE, OPEN_MPI, 4 << 20, "native"),
    ("allreduce", (0, 0, 0), OPEN_MPI, 4 << 20, "ring"),
    ("bcast", ONE_NODE, MPICH, 8, "binomial"),
    ("bcast", (0, 0, 0), MPICH, 8, "binomial"),
    ("bcast", (0, 1), MPICH, 64, "native"),
    ("allreduce", (0, 1), OPEN_MPI, 4 << 10, "recursive_doubling"),
    ("allreduce", (0, 1), OPEN_MPI, 16 << 10, "native"),
    ("allreduce", tuple(range(4)), OPEN_MPI, 4 << 10, "native"),
    ("allreduce", tuple(range(4)), OPEN_MPI, 8 << 10, "recursive_doubling"),
    ("allreduce", HOSTS, OPEN_MPI, 8 << 10, "recursive_doubling"),
    ("allreduce", (0, 0, 1, 1), OPEN_MPI, 1 << 10, "recursive_doubling"),
    ("allreduce", (0, 0, 1, 1), MPICH, 16 << 10, "reduce_bcast"),
    ("allreduce", HOSTS, OPEN_MPI, 32 << 10, "circulant"),
    ("allreduce", HOSTS, MPICH, 8, "native"),
    ("allreduce", HOSTS, MPICH, 32 << 10, "circulant"),
]


@pytest.mark.parametrize("collective, nodes, library, nbytes, wanted", IN_C)
def test_the_shipped_table_where_schedules_run_in_c(collective, nodes, library, nbytes, wanted):
    query = Query(collective, Topology(nodes, "tcp", library), nbytes)
    assert choose(query._replace(engine="c")).name == wanted
    assert choose(query).name == "native"


@pytest.mark.parametrize("collective, nodes, library, nbytes, wanted", TAKEN)
def test_the_shipped_table(collective, nodes, library, nbytes, wanted):
    assert choose(Query(collective, Topology(nodes, "tcp", library), nbytes))[:2] == wanted


def rows(nbytes, *times):
    return [{"collective": "bcast", "bytes": nbytes, "algorithm": word, "segment_bytes": cut, "median_us": time, **more}
            for word, cut, time, more in times]  # fmt: skip


def test_cells(tmp_path):
    path, facts = tmp_path / "others.json", {"mpi": MPICH, "size": 7, "nodes": 7}
    small = rows(4096, ("native", None, 12.0, {}), ("native again", None, 11.0, {}), ("auto", None, 10.5, {"chose": "native"}),
                 ("linear", 60000, 10.0, {}), ("binomial", None, 1.0, {"hopeless": True}))  # fmt: skip
    middle = rows(64 << 10, ("native", None, 30.0, {}), ("circulant", 60000, 20.0, {}))
    large = rows(1 << 20, ("native", None, 30.0, {}), ("pipeline", 60000, 20.0, {}))
    path.write_text(json.dumps({"environment": facts, "results": [*small, *middle, *large]}), encoding="utf-8")
    found = list(chosen.cells(path))
    assert [(cell.nbytes, cell.chosen, cell.best, cell.ratio) for cell in found] == [
        (4096, "native", "linear", 1.05),
        (64 << 10, "circulant", "circulant", None),  # in other pieces than the table's
        (1 << 20, "pipeline", "pipeline", 1.0),
    ]
    assert found[0].place == f"{MPICH}, 7 hosts"


def test_the_committed_results():
    text = chosen.table()
    assert "| all | " in text and "within 1.1 x" in text
    assert chosen.topology_of({"mpi": MPICH, "size": 4, "nodes": 2, "placement": "round-robin"}).nodes == (0, 1, 0, 1)
