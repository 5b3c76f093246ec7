"""Options and machines that the virtual cluster refuses."""

import os
import re

import pytest

from mpicoll.cluster import NAMES, Cluster
from mpicoll.cluster.installation import find
from mpicoll.cluster.namespaces import unavailable
from mpicoll.errors import ArgumentError, LaunchError
from mpicoll.support.units import parse_rate
from tests.support.cluster_tool import tool
from tests.support.launching import PATIENCE, installations


@pytest.mark.parametrize(("options", "message"), [
    (["--rate", "fast"], "got 'fast'"), (["--rate", "0mbit"], "got '0mbit'"), (["--rate", "1GB/s"], "bits per second"),
    (["--rate", "8bit"], "100kbit to 1tbit"),
    (["--hosts", "0"], "got 0"), (["--hosts", "1000"], "1 to 250"), (["--ranks-per-host", "0"], "got 0"),
    (["--python", "missing/python"], "missing/python has no mpi4py"),
    (["--sysctl", "net.ipv4.tcp_sack"], "NAME=VALUE, got 'net.ipv4.tcp_sack'"),
    (["--sysctl", "vm.swappiness=1"], "vm.swappiness belongs to the whole machine"),
    (["--slurm", "--cpus", "0"], "cpus: expected 1 or more, got 0"),
])  # fmt: skip
def test_options_that_cannot_be_used(options, message):
    job = tool("--hosts", 2, "--rate", "1gbit", "--mpi", "mpich", *options, command=["true"])
    output, errors = job.communicate(timeout=PATIENCE)
    assert job.returncode == 2 and "cluster: error: " in errors and message in errors, errors
    assert "Traceback" not in errors and not output


def test_a_command_is_needed():
    job = tool("--hosts", 2, "--rate", "1gbit", "--mpi", "mpich")
    assert "expected a command after `--`" in job.communicate(timeout=PATIENCE)[1] and job.returncode == 2


def test_from_python_a_bad_value_is_an_error():
    for wrong in ({"hosts": 0}, {"hosts": 2, "rate": "1mbps"}):
        with pytest.raises(ArgumentError):
            Cluster(**wrong)
    with pytest.raises(ArgumentError, match="'lam'"):
        Cluster(hosts=2).run(["true"], "lam")


@pytest.mark.parametrize("installation", installations(), ids=lambda found: found.name)
def test_the_interpreter_of_the_wanted_mpi(installation):
    assert find(installation.name, installation.python) == (installation.python, installation.mpiexec)
    other = next(name for name in NAMES if name != installation.name)
    with pytest.raises(LaunchError, match=re.escape(installation.python)):
        find(other, installation.python)


def test_not_root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "run it as root" in unavailable()


def test_missing_programs(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("mpicoll.cluster.namespaces.with_tools", lambda: "/nowhere")
    assert "apt-get install iproute2 util-linux" in unavailable()


def test_rates():
    assert parse_rate("500mbit") == parse_rate("0.5 Gb/s") == 5e8 and parse_rate("8bit") == 8
    for wrong in ("", "500", "-1mbit", "1Mib/s", "1mbps", "1MB/s", "nan", "inf"):
        with pytest.raises(ArgumentError):
            parse_rate(wrong)
