"""The virtual cluster: what jobs in it see, what crosses its links, and that nothing of it is left.

What depends little on the MPI library is tried with one of them, spread over both. MPICOLL_TEST_ALL=1: with each.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mpicoll.cluster import Cluster, slurm
from mpicoll.cluster.namespaces import unavailable
from mpicoll.errors import LaunchError
from tests.support.cluster_tool import tool
from tests.support.each import EACH, ONE, OTHER
from tests.support.launching import PATIENCE, environment

REASON = unavailable()
NEEDED = pytest.mark.skipif(bool(REASON), reason=str(REASON))
#: what every process of one test, and no other, has in its environment
MARK = "MPICOLL_TEST_CLUSTER"
NODES = """
from mpi4py import MPI
node = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
seen = MPI.COMM_WORLD.gather((MPI.Get_processor_name(), node.allgather(MPI.COMM_WORLD.rank)))
if seen:
    print(*(f"{host}:{ranks}" for host, ranks in seen), sep="\\n")
"""
SEND = """
import sys
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 0:
    MPI.COMM_WORLD.Send(bytearray(1 << 22), int(sys.argv[1]))
elif MPI.COMM_WORLD.rank == int(sys.argv[1]):
    MPI.COMM_WORLD.Recv(bytearray(1 << 22), 0)
MPI.COMM_WORLD.Barrier()
"""


def marked(mark):
    """Process ids with this mark in their environment."""
    word = f"{MARK}={mark}".encode()
    return [path.parent.name for path in Path("/proc").glob("[0-9]*/environ") if word in content(path).split(b"\0")]


def links():
    return set(os.listdir("/sys/class/net"))


def run(cluster, installation, *command, **options):
    done = cluster.run(command, installation.name, python=installation.python, text=True, timeout=PATIENCE,
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@NEEDED
@EACH
def test_bench_from_the_command_line(installation, tmp_path):
    written = tmp_path / "bench.json"
    command = ["python", "-m", "mpicoll", "bench", "--collective", "allreduce", "--algorithms", "ring,native", "--sizes",
               "64K", "--repeats", "3", "--json", written]  # fmt: skip
    options = ["--hosts", 3, "--rate", "500mbit", "--mpi", installation.name, "--python", installation.python]
    job = tool(*options, command=command, **{MARK: tmp_path})
    output, errors = job.communicate(timeout=PATIENCE)
    assert job.returncode == 0, output + errors
    document = json.loads(written.read_text())
    facts = document["environment"]
    assert (facts["nodes"], facts["hosts"]) == (3, ["host0", "host1", "host2"])
    assert [row["algorithm"] for row in document["results"]] == ["native", "ring"]
    assert not any(row["wrong"] for row in document["results"])
    assert "3 ranks on 3 nodes" in output
    assert not marked(tmp_path)


@pytest.mark.thorough
@NEEDED
@EACH
def test_placement_and_what_crosses_the_link(installation, tmp_path):
    (tmp_path / "nodes.py").write_text(NODES)
    (tmp_path / "send.py").write_text(SEND)
    with Cluster(hosts=2, rate="1Gb/s") as cluster:
        seen = {placement: run(cluster, installation, "python", tmp_path / "nodes.py", placement=placement, ranks_per_host=2)
                for placement in ("node", "round-robin")}  # fmt: skip
        info = run(cluster, installation, "python", "-m", "mpicoll", "info", ranks_per_host=2)
        crossed = []
        for peer in (1, 2):
            before = cluster.traffic()["host0"]
            run(cluster, installation, "python", tmp_path / "send.py", peer, ranks_per_host=2)
            crossed.append(cluster.traffic()["host0"] - before)
    assert seen["node"].split("\n")[:4] == ["host0:[0, 1]", "host0:[0, 1]", "host1:[2, 3]", "host1:[2, 3]"]
    assert seen["round-robin"].split("\n")[:4] == ["host0:[0, 2]", "host1:[1, 3]", "host0:[0, 2]", "host1:[1, 3]"]
    assert re.search(r"ranks +4 on 2 nodes\n +host0: 2\n +host1: 2\n", info), info
    # within the host shared memory, to the other host the whole message; the rest is the launcher's talk
    assert crossed[0] < 1 << 20 and 1 << 22 <= crossed[1] < (1 << 22) + (1 << 20), crossed


@NEEDED
def test_hosts_and_their_links():
    def said(host, *command):
        return subprocess.run(cluster.enter(host, command), capture_output=True, text=True, check=True).stdout

    before = links()
    asked = {"net.ipv4.tcp_slow_start_after_idle": 0}
    with Cluster(hosts=2, rate="80mbit", sysctl=asked) as cluster, Cluster(hosts=2) as other:
        assert links() == before
        assert cluster.goodput == pytest.approx(1e7 * 1448 / 1514) and 0 < cluster.burst <= 64 << 10
        assert other.goodput == float("inf") and other.burst == 0
        assert said("host1", "hostname") == "host1\n" and said("host0", "pwd") == f"{os.getcwd()}\n"
        assert said("host0", "getent", "hosts", "host1").split() == ["10.78.0.2", "host1"]
        for place, device in (("login", "host0"), ("login", "host1"), ("host0", "eth0"), ("host1", "eth0")):
            assert "rate 80Mbit ceil 80Mbit" in said(place, "tc", "class", "show", "dev", device)
        assert said("host1", "cat", "/proc/sys/net/ipv4/tcp_slow_start_after_idle") == "0\n"
        with pytest.raises(LaunchError, match=r"net\.ipv4\.no_such"), Cluster(hosts=1, sysctl={"net.ipv4.no_such": 1}):
            pass
        said("host0", "sh", "-c", "echo seen > /dev/shm/private; sleep 1000 > /dev/null 2>&1 & ipcmk -Q")
        assert said("host1", "ls", "/dev/shm") == "" and "sleep" not in said("host1", "ps", "ax")
        assert "\n0x" in said("host0", "ipcs", "-q") and "\n0x" not in said("host1", "ipcs", "-q")
        identity = said("login", "readlink", "/proc/self/ns/net").strip()
        assert identity in namespaces()
    assert identity not in namespaces() and links() == before and not Path("/dev/shm/private").exists()


def namespaces():
    """Network namespaces that a process is in."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(os.readlink(path))
        except OSError:
            pass
    return found


@pytest.mark.thorough
@NEEDED
def test_hosts_crash_boot_and_are_cut_off():
    def reaches(host):
        """Whether login's packets come back; the kernel gives a host up that does not say where it is."""
        subprocess.run(cluster.enter("login", ["ip", "neigh", "flush", "dev", "eth0"]), check=True)
        code = "import socket, sys; socket.create_connection((sys.argv[1], 1), 100)"
        said = subprocess.run(cluster.enter("login", [sys.executable, "-c", code, host]), capture_output=True, text=True)
        return "refused" in said.stderr  # by the host itself: nobody listens there

    with Cluster(hosts=2, rate="1gbit") as cluster:
        assert reaches("host0") and reaches("host1")
        sleeper = subprocess.Popen(cluster.enter("host1", ["sleep", "1000"]))
        cluster.crash("host1")
        assert sleeper.wait(PATIENCE) and reaches("host0") and not reaches("host1")
        cluster.boot("host1")
        assert reaches("host1")
        cluster.cut("host0")
        assert not reaches("host0") and reaches("host1")
        cluster.mend("host0")
        assert reaches("host0")


SWITCHES = """
sinfo --noheader --Node --format=%N:%t
srun -N2 sh -c 'hostname; ls -d /tmp/*'
cluster crash host1 && cluster boot host1 && cluster cut host0 && cluster mend host0 && srun -N2 true || exit
cluster melt host0 || exit 3
"""


@pytest.mark.thorough
@NEEDED
@pytest.mark.skipif(bool(slurm.unavailable()), reason=str(slurm.unavailable()))
def test_slurm_from_the_command_line(tmp_path):
    job = tool("--hosts", 2, "--slurm", "--shared", tmp_path, command=["sh", "-c", SWITCHES], **{MARK: tmp_path})
    output, errors = job.communicate(timeout=PATIENCE)
    assert job.returncode == 3, output + errors
    assert "expected cluster crash|boot|cut|mend host0|host1, got: melt host0" in errors
    assert {"host0:idle", "host1:idle", "host0", "host1"} <= set(output.split())
    assert f"/tmp/{tmp_path.parts[2]}" in output.split()  # what is shared, in a /tmp of the host's own
    assert not marked(tmp_path)


@pytest.mark.thorough
@NEEDED
@EACH
def test_words_reach_the_ranks_as_they_are(installation, tmp_path):
    """No shell on the way reads them, nor the name of the directory."""
    words = ["a $(touch x) b", "it's", '"', "`touch x`", "; touch x", "new\nline", "", "*", "$HOME", "-x", "\\"]
    (odd := tmp_path / "a 'b' $(touch x)").mkdir()
    with Cluster(2) as cluster:
        code = "import os, sys; print([os.getcwd(), *sys.argv[1:]])"
        said = run(cluster, installation, "python", "-c", code, *words, cwd=odd)
    assert said.count(str([str(odd), *words])) == 2, said  # Intel's launcher may put two ranks into one line
    assert not list(odd.iterdir())


@NEEDED
@EACH
def test_programs_are_found_on_the_path_of_the_caller(installation, tmp_path):
    """Of the environment that a call is given, which may be another than this process's."""
    (program := tmp_path / "mpicoll-says").write_text("#!/bin/sh\necho found\n")
    program.chmod(0o755)
    env = environment(PATH=f"{tmp_path}:{os.environ['PATH']}")
    with Cluster(2) as cluster:
        done = cluster.call([program.name], "host1", env=env, check=True, text=True, stdout=subprocess.PIPE)
        assert done.stdout == "found\n"
        assert run(cluster, installation, program.name, env=env) == 2 * "found\n"


@pytest.mark.thorough
@NEEDED
@EACH
def test_a_command_that_fails(installation, tmp_path):
    options = ["--hosts", 2, "--rate", "none", "--mpi", installation.name, "--python", installation.python]
    job = tool(*options, command=["python", "-c", "raise SystemExit(3)"], **{MARK: tmp_path})
    output, errors = job.communicate(timeout=PATIENCE)
    # Intel's launcher ends the ranks of the other host, and may say so instead
    assert job.returncode in ((3, 255) if installation.name == "intelmpi" else (3,)), output + errors
    assert not marked(tmp_path)


@pytest.mark.thorough
@NEEDED
@EACH
def test_killed(installation, tmp_path):
    is_interrupted_by(signal.SIGKILL, installation, tmp_path)


@pytest.mark.thorough
@NEEDED
@ONE
def test_interrupted(installation, tmp_path):
    is_interrupted_by(signal.SIGINT, installation, tmp_path)


@pytest.mark.thorough
@NEEDED
@OTHER
def test_terminated(installation, tmp_path):
    is_interrupted_by(signal.SIGTERM, installation, tmp_path)


def is_interrupted_by(signum, installation, tmp_path):
    options = ["--hosts", 2, "--rate", "500mbit", "--mpi", installation.name, "--python", installation.python]
    program = "import time; from mpi4py import MPI; print('started', flush=True); time.sleep(1000)"
    before, files = links(), temporary()
    job = tool(*options, "--ranks-per-host", 2, command=["python", "-c", program], **{MARK: tmp_path})
    assert "started" in job.stdout.readline()
    assert len(marked(tmp_path)) > 2
    job.send_signal(signum)
    job.communicate(timeout=PATIENCE)
    assert job.returncode == (-signum if signum == signal.SIGKILL else 128 + signum)
    if signum == signal.SIGKILL:
        wait_for(lambda: not marked(tmp_path))  # the kernel does it, after the tool's end
    assert not marked(tmp_path) and links() == before and temporary() <= files


def temporary():
    """What launchers may leave behind that is of a cluster: it has the name of a host, or names one."""
    there = [path for place in ("/tmp", os.environ["TMPDIR"]) for path in Path(place).iterdir()]
    named = {path for path in there if re.search(r"\b(host0|login)\b", path.name)}
    return named | {path for path in there if path.name.startswith("hydra") and b"host0" in content(path)}


def content(path):
    """Of a file that may be gone by now."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def wait_for(condition):
    """Wait for what must become true, but not for ever."""
    end = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)


@pytest.mark.thorough
@NEEDED
@ONE
def test_a_job_over_its_time_ends_and_the_cluster_goes_on(installation, tmp_path):
    with Cluster(hosts=2) as cluster:
        sleep = ["python", "-c", "import time; time.sleep(1000)"]
        with pytest.raises(subprocess.TimeoutExpired):
            cluster.run(sleep, installation.name, python=installation.python, timeout=3,
                        env=environment(**{MARK: str(tmp_path)}))  # fmt: skip
        wait_for(lambda: not marked(tmp_path))
        assert not marked(tmp_path)
        assert sorted(run(cluster, installation, "hostname").split()) == ["host0", "host1"]


CALLS, BYTES = 6, 1 << 22
REDUCE = """
import sys
import numpy, mpicoll
from mpi4py import MPI
comm = mpicoll.Communicator(MPI.COMM_WORLD)
vector = numpy.ones(int(sys.argv[2]) // 4, "f4")
for call in range(int(sys.argv[1])):
    vector[:] = 1
    comm.Allreduce(MPI.IN_PLACE, vector)
assert (vector == comm.size).all()
said = comm.explain("allreduce", vector)
if comm.rank == 0:
    print(said.algorithm, flush=True)
"""


@pytest.mark.thorough
@NEEDED
@ONE
def test_bytes_that_leave_a_node_are_the_least_there_can_be(installation, tmp_path):
    least_bytes_leave_a_node(installation, "node", tmp_path)


@pytest.mark.thorough
@NEEDED
@OTHER
def test_bytes_are_the_least_however_ranks_are_placed(installation, tmp_path):
    least_bytes_leave_a_node(installation, "round-robin", tmp_path)


def least_bytes_leave_a_node(installation, placement, tmp_path):
    """Four nodes of two ranks: 2 (N-1)/N of the vector, counted on the links."""
    program = tmp_path / "reduce.py"
    program.write_text(REDUCE)
    with Cluster(hosts=4) as cluster:
        options = {"ranks_per_host": 2, "placement": placement}
        before, sent = cluster.traffic(), []
        for calls in (1, 1 + CALLS):
            output = run(cluster, installation, "python", program, calls, BYTES, cwd=tmp_path, **options)
            assert "hierarchical" in output
            after = cluster.traffic()
            sent.append({host: after[host] - before[host] for host in after})
            before = after
    for host in sent[0]:
        counted = (sent[1][host] - sent[0][host]) / CALLS  # what launching sends is in both
        # Headers are counted too: up to 66 bytes for each 1448, and acknowledgements. Ranks that
        # knew nothing of nodes would send 17 % more (node) or 133 % more (round-robin).
        assert counted == pytest.approx(2 * 3 / 4 * BYTES, rel=0.08)
