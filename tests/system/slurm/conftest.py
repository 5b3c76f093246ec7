"""Four hosts of the virtual cluster with SLURM, for all tests here."""

from contextlib import contextmanager
from pathlib import Path

import pytest

from mpicoll.cluster import Cluster, slurm
from mpicoll.cluster.namespaces import unavailable
from tests.support.slurm_lab import FOUND, Lab

REASON = unavailable() or slurm.unavailable()


@pytest.fixture(scope="package")
def cluster(tmp_path_factory):
    if REASON:
        pytest.skip(REASON)
    shared = tmp_path_factory.getbasetemp(), *(Path(found.python).parents[1] for found in FOUND.values())
    with one_scheduling_group(), Cluster(hosts=4, slurm=slurm.Slurm(cpus=8, gpus=2, shared=shared)) as cluster:
        yield cluster


@contextmanager
def one_scheduling_group():
    """A rank that yields its core yields only to its session, where Linux schedules sessions as groups: hosts would starve."""
    switch = Path("/proc/sys/kernel/sched_autogroup_enabled")
    before = switch.read_text() if switch.exists() else None
    if before:
        switch.write_text("0")
    yield
    if before:
        switch.write_text(before)


@pytest.fixture
def lab(cluster, tmp_path):
    lab = Lab(cluster, tmp_path)
    yield lab
    lab.clear()
