"""`mpicoll doctor` under mpiexec, and on the virtual cluster with a slow host."""

import json

import pytest

from mpicoll.cluster import Cluster
from mpicoll.cluster.links import burst
from mpicoll.cluster.namespaces import unavailable
from mpicoll.doctor.pairs import LATE
from tests.support.each import EACH, ONE
from tests.support.launching import PATIENCE, environment, installations, mpiexec

if not installations():
    pytest.skip("no mpiexec beside this Python or on PATH", allow_module_level=True)
REASON = unavailable()


@EACH
def test_on_one_machine(installation, tmp_path):
    """Two ranks: what is found depends on the machine, but page, document, model and status agree."""
    written, model = tmp_path / "found.json", tmp_path / "model.json"
    output = mpiexec(installation, 2, "doctor", "--json", written, "--output", model, module="mpicoll", check=False)
    assert "examined      2 ranks on 1 node" in output, output
    found = json.loads(written.read_text())
    assert found["schema"] == 1 and [rank["rank"] for rank in found["measured"]["ranks"]] == [0, 1]
    assert {result["digests"][0] for result in found["measured"]["cores"]} == {3941899462}
    assert sum(pair["wrong"] for pair in found["measured"]["inside"]) == 0
    serious = [finding for finding in found["findings"] if finding["severity"] != "note"]
    assert ("nothing slow or wrong was found" in output) == (not serious)
    fitted = json.loads(model.read_text())
    assert fitted["kind"] == "model of a cluster" and fitted["eager"] == found["measured"]["eager"] in (0, *LATE)


@pytest.mark.thorough
@pytest.mark.skipif(bool(REASON), reason=str(REASON))
@ONE
def test_a_slow_host_is_named(installation, tmp_path):
    written = tmp_path / "found.json"
    with Cluster(3, "100mbit") as cluster:
        for where, device in (("host1", "eth0"), ("login", "host1")):
            limits = f"rate 10mbit ceil 10mbit burst {burst(1e7)}b cburst {burst(1e7)}b".split()
            words = ["tc", "class", "change", "dev", device, "parent", "1:", "classid", "1:1", "htb", *limits]
            cluster.call(words, where, check=True)
        done = cluster.run(["python", "-m", "mpicoll", "doctor", "--json", str(written)], installation.name,
                           python=installation.python, env=environment(), timeout=PATIENCE)  # fmt: skip
    found = json.loads(written.read_text())["findings"]
    assert [finding["nodes"] for finding in found if finding["kind"] == "node-slow"] == [[1]]
    assert done.returncode
