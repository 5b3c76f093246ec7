"""`mpicoll info` and `mpicoll bench` under mpiexec, as people run them; and the tables made of results."""

import json
import re
import subprocess

import pytest

from benchmarks.report import tables
from tests.support.each import EACH, OTHER
from tests.support.launching import PATIENCE, ROOT, environment, installations, mpiexec

MINE = ROOT / "tests" / "support" / "mine.py"

if not installations():
    pytest.skip("no mpiexec beside this Python or on PATH", allow_module_level=True)


@EACH
def test_info(installation, tmp_path):
    written = tmp_path / "info.json"
    output = mpiexec(installation, 2, "info", "--json", written, module="mpicoll", MPICOLL_VERBOSE="0")
    assert output.count("MPI library") == 1, output  # rank 0 alone prints
    assert re.search(r"ranks +2 on 1 node\n", output) and "MPICOLL_VERBOSE=0" in output
    facts = json.loads(written.read_text())
    assert facts["schema"] == 1 and facts["environment"]["ranks_per_node"] == [2]
    assert facts["environment"]["command"].startswith("python -m mpicoll info")
    assert facts["thread_level"] in ("single", "funneled", "serialized", "multiple")
    assert str(ROOT) not in written.read_text().replace(str(tmp_path), "")


@pytest.mark.parametrize(("options", "message"), [
    (["--ranks", 2, "--ranks-per-node", 2], None),
    (["--ranks", 3], r"expected 3 ranks, got 2 \(\S+: 2\): launcher and allocation disagree"),
    (["--ranks-per-node", 1], r"expected 1 ranks on each node, got \S+: 2: give the job --ntasks-per-node=1"),
])  # fmt: skip
def test_info_finds_what_was_expected_or_ends_the_job(options, message):
    output = mpiexec(installations()[0], 2, "info", *options, module="mpicoll", check=message is None)
    assert message is None or re.search(message, output), output


ALONE = """
from mpi4py import MPI
from mpicoll import Communicator
Communicator(MPI.COMM_SELF)
Communicator(MPI.COMM_WORLD)
"""


@pytest.mark.thorough
@EACH
@pytest.mark.parametrize(("options", "status"), [(["-m", "mpicoll", "info"], 2), (["-c", ALONE], 1)])
def test_ranks_that_do_not_know_of_each_other(installation, options, status):
    alone = {"SLURM_STEP_NUM_TASKS": "2"}
    done = subprocess.run([installation.python, *options], env=environment(**alone), cwd=ROOT,
                          capture_output=True, text=True, timeout=PATIENCE)  # fmt: skip
    assert done.returncode == status and "SLURM_STEP_NUM_TASKS=2" in done.stderr, done.stderr


@OTHER
def test_bench(installation, tmp_path):
    """MPICOLL_TEST_ALL: under each MPI; `bench` runs under the others on the virtual cluster."""
    written, drawn = tmp_path / "bench.json", tmp_path / "bench.svg"
    options = ["--file", MINE, "--algorithms", "ring", "--sizes", "4K:16K", "--repeats", 3]
    options += ["--json", written, "--done", tmp_path / "done"]
    if _has(installation, "matplotlib"):
        options += ["--plot", drawn]
    output = mpiexec(installation, 3, "bench", *options, module="mpicoll")
    rows = json.loads(written.read_text())["results"]
    assert [row["algorithm"] for row in rows[:3]] == ["native", "ring", "my_ring"] and len(rows) == 9
    assert not any(row["wrong"] for row in rows)
    assert len(re.findall(r"^ +4K .* 0$", output, re.MULTILINE)) == 3, output
    assert "--plot" not in options or "<svg" in drawn.read_text()
    assert "python -m mpicoll bench" in (tmp_path / "done").read_text()


def test_bench_of_compressed_calls(tmp_path):
    written = tmp_path / "bench.json"
    options = ["--compression", "int8", "--algorithms", "pairwise,auto", "--sizes", "64K", "--repeats", 3]
    output = mpiexec(installations()[0], 3, "bench", *options, "--json", written, module="mpicoll")
    assert re.search(r"--compression int8: pairwise,\s+(# )?auto\s+(# )?are\s+(# )?run\s+(# )?compressed", output), output
    assert re.search(r"64K ~pairwise .* 0$", output, re.MULTILINE) and "errors at most: RMS 0.00" in output, output
    rows = json.loads(written.read_text())["results"]
    said = [(row["algorithm"], row.get("compression"), row.get("quantisations")) for row in rows]
    # inside a node auto sends elements as they are
    assert said == [("native", None, None), ("auto", None, None), ("pairwise", "int8", 2), ("auto", "int8", 0)]
    assert not any(row["wrong"] for row in rows) and 0.5 < rows[2]["of_bound"] <= 1
    assert 0.008 < rows[2]["rms_error"] < 0.01 and rows[3]["rms_error"] < 1e-6


def _has(installation, module):
    return subprocess.run([installation.python, "-c", f"import {module}"], capture_output=True).returncode == 0


WRONG = '''
from mpicoll import Communicator
plain = Communicator.Allreduce
def broken(self, sendbuf, recvbuf, op=None, **named):
    plain(self, sendbuf, recvbuf, **named)
    if self.rank == 1 and named.get("algorithm") == "ring":
        recvbuf[3] += 1
Communicator.Allreduce = broken
from mpicoll.cli import main
main()
'''


@pytest.mark.thorough
def test_a_wrong_result_is_an_exit_status(tmp_path):
    (tmp_path / "broken.py").write_text(WRONG)
    with pytest.raises(AssertionError, match="exit status 1\n") as failed:
        mpiexec(installations()[0], 2, "bench", "--algorithms", "ring", "--sizes", "4K", "--repeats", 3,
                module="broken", PYTHONPATH=f"{tmp_path}:{ROOT}")  # fmt: skip
    output = str(failed.value)
    assert re.search(r"4K .native .* 0\n.*ring .* [1-9]\n", output), output


@pytest.mark.thorough
@pytest.mark.parametrize(("options", "message"), [
    (["--sizes", "64M:4K"], "--sizes"), (["--algorithms", "rign"], "rign"), (["--op", "plus"], "plus"),
    (["--compression", "int8", "--algorithms", "ring"], "ring cannot be compressed; these can: parameter_server"),
    (["--compression", "int8", "--op", "max"], "expected --op sum, got max"), (["--compression", "int3"], "got 'int3'"),
    (["--compression", "int8", "--dtype", "int32"], "expected --dtype float32, float64, float16, bfloat16, got int32"),
    (["--dtype", "float31"], "float31"), (["--root", "2"], "root 2"), (["--json", "missing/file.json"], "cannot write"),
])  # fmt: skip
def test_options_that_cannot_be_used(options, message):
    output = mpiexec(installations()[0], 2, "bench", *options, module="mpicoll", check=False)
    assert output.count("mpicoll bench: error: ") == 1 and message in output and "Traceback" not in output, output


@pytest.mark.thorough
@pytest.mark.parametrize("words", [["bench", "--sises", "4K"], ["list"], ["verify", "rign"]])
def test_nothing_is_said_twice(words):
    output = mpiexec(installations()[0], 2, *words, module="mpicoll", check=False)
    said = [line for line in output.splitlines() if line.startswith(("mpicoll ", "allreduce. "))]
    assert len(said) == 1, output


@pytest.mark.thorough
def test_overhead_and_its_table(tmp_path):
    written = tmp_path / "overhead-x.json"
    options = ["--seconds", 0.05, "--max-bytes", "4K", "--json", written]
    output = mpiexec(installations()[0], 2, *options, module="benchmarks.run.overhead")
    assert "allreduce of 8 bytes" in output
    readme = tmp_path / "README.md"
    readme.write_text("a\n<!-- results:overhead -->\nold\n<!-- end -->\nb\n")
    arguments = ["--readme", str(readme), "--results", str(tmp_path)]
    with pytest.raises(SystemExit, match="differs"):
        tables.main([*arguments, "--check"])
    tables.main(arguments)
    assert re.search(r"\| 4K \|.*\|\n", readme.read_text()) and readme.read_text().endswith("<!-- end -->\nb\n")
    tables.main([*arguments, "--check"])


def test_tables_need_their_results(tmp_path):
    (tmp_path / "README.md").write_text("<!-- results:nothing -->\n<!-- end -->\n")
    with pytest.raises(SystemExit, match="nothing"):
        tables.main(["--readme", str(tmp_path / "README.md"), "--results", str(tmp_path)])


def test_sizes():
    from mpicoll.cli.options import parse_sizes

    assert parse_sizes("4K:16K,100") == [100, 4096, 8192, 16384]
    assert parse_sizes("1K:5K", 4) == [1024, 4096]
