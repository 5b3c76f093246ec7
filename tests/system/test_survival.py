"""Ranks are killed (SIGKILL) and the others go on: a solver, trainings; and what is said where that cannot be."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import numpy
import pytest

from benchmarks.run.dying import CUT
from benchmarks.run.survive import PARALLEL, Plan
from benchmarks.run.survive import run as trained
from mpicoll.cluster import Cluster
from mpicoll.cluster.job import Job
from mpicoll.cluster.namespaces import unavailable
from tests.support import owing as owing_program
from tests.support.compressing import quantised
from tests.support.launching import PATIENCE, ROOT, environment, installations

found = {one.name: one for one in installations()}
OPEN = pytest.mark.skipif("openmpi" not in found, reason="lost ranks are survived with Open MPI only, and none is here")
THOROUGH = pytest.mark.thorough
ENDED_BY_OPEN_MPI = ("I have been reported dead by someone else", "Send error after request freed")
#: relative: after a death a step is summed over other ranks
ROUNDING = 1e-5


def run(name, size, *words, survive=True):
    """Exit status and output of a job that may not hang: its errors, with what launchers say of the dead, come first."""
    one = found[name]
    launcher = [one.mpiexec, *(["--with-ft", "ulfm"] if survive else []), "-n", str(size), one.python]
    job = subprocess.Popen([*launcher, *map(str, words)], env=environment(), stdin=subprocess.DEVNULL, text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)  # fmt: skip
    try:
        output, errors = job.communicate(timeout=PATIENCE / 4)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        raise AssertionError(f"{words}: a hang") from None
    return job.returncode, errors + output


def cut_off(monkeypatch, tolerance, *plan):
    """The row of a training of which a host is cut off.

    Open MPI may end ranks that live: those whose heartbeats are late, and those of which a send fails that it has
    given up before. Such a run says nothing.
    """
    monkeypatch.setenv("OMPI_MCA_mpi_ft_detector_timeout", "10")  # so that this is rare on a busy machine
    for _ in range(4):
        row = trained(Plan(0, *plan), tolerance)
        if not any(reason in row["output"] for reason in ENDED_BY_OPEN_MPI):
            break
    return row


def told(row):
    """The row of a job, and the end of what it printed."""
    output = row.pop("output")
    return f"{row}\n{output[-5000:]}"


def jacobi(size, deaths):
    status, output = run("openmpi", size, "-m", "benchmarks.run.dying", json.dumps(deaths),
                         ROOT / "examples" / "jacobi_survives.py", 600)  # fmt: skip
    assert status == 0, output
    ranks, mean = output.splitlines()[-1].split(" ranks, 600 steps, mean ")
    return int(ranks), mean, output


@OPEN
def test_a_solver_goes_on_with_the_same_result():
    message = "mpicoll.communicator:Communicator.Sendrecv"
    _, whole, _ = jacobi(1, [])
    left, mean, output = jacobi(3, [[1, message, 555]])
    assert (left, mean) == (2, whole) and "rank 1 died, seen in" in output


@pytest.mark.thorough
@OPEN
def test_a_rank_that_is_late_does_not_write_into_a_restored_array():
    """It knows nothing yet of the death of which another one heard."""
    status, output = run("openmpi", 3, "-m", "tests.support.late_after_death")
    assert status == 0 and output.count("done") == 2, output


@OPEN
@pytest.mark.parametrize("end, expected", [
    ("sys.exit('failed')", 1), ("raise SystemExit(3)", 3), ("mpicoll.install_abort_hook(); sys.exit('failed')", 1),
    ("raise SystemExit", 0), ("raise KeyError('failed')", 1),
])  # fmt: skip
def test_the_exit_status_is_that_of_the_program(end, expected, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(f"""
import sys, mpicoll
from mpi4py import MPI
from tests.support.deaths import die
comm = mpicoll.Communicator(MPI.COMM_WORLD)
die(1)
try:
    comm.Allreduce(MPI.IN_PLACE, bytearray(8))
except mpicoll.RankFailure as failure:
    comm.shrink()
    print("died:", failure.ranks)
    {end}
""")
    status, output = run("openmpi", 2, script)
    assert status == expected and "died: (1,)" in output, output


@OPEN
@pytest.mark.parametrize("strategy, deaths, more", [
    ("zero2", [[1, f"{PARALLEL}.hooks:ReducerHooks.backward", 50], [3, f"{PARALLEL}.backup:Backup.hand_over", 1]],
     ()),
    ("allreduce", [[0, f"{PARALLEL}.optimizer_step:Update._apply", 29]], ()),
    ("zero1", [[1, f"{PARALLEL}.optimizer_step:Update._apply", 29]], ("--reproducible", "8")),
    ("zero1", [[1, f"{PARALLEL}.optimizer_step:Update._apply", 29]], ("--algorithm", "native")),
], ids=["a second one dies meanwhile", "in the update", "to the bit", "in calls of MPI's own"])  # fmt: skip
def test_a_training_goes_on_with_the_same_losses(strategy, deaths, more):
    options = ("--strategy", strategy, "--overlap", "all", "--precision", "float32", *more)
    row = trained(Plan(0, 4 if len(deaths) > 1 else 3, options, "", tuple(map(tuple, deaths)), False), ROUNDING)
    assert row["outcome"] == "went on" and row["died"] == len(deaths), told(row)
    assert row["recoveries"][-1]["step"] > 0


@OPEN
@pytest.mark.parametrize("rank, step, options", [
    (0, 12, {"inner_steps": 8, "fragments": 2, "overlap": "all"}),
    pytest.param(1, 6, {"inner_steps": 6, "fragments": 1, "overlap": "none"}, marks=THOROUGH),
    pytest.param(2, 3, {"inner_steps": 1, "fragments": 1, "overlap": "all"}, marks=THOROUGH),
])  # fmt: skip
def test_local_steps_lose_those_of_the_dead_alone(rank, step, options):
    """Not a step of the others: they have the parameters of a simulation in which that rank was left out."""
    status, output = run("openmpi", 3, "-m", "tests.support.local_steps", rank, step, json.dumps(options))
    assert status == 0 and output.count("as simulated") == 2, output


OUTER = f"{PARALLEL}.outer_steps:OuterSteps"


@pytest.mark.thorough
@OPEN
@pytest.mark.parametrize("deaths, inner", [
    ([[1, f"{OUTER}._finish", 9]], "rank"),
    ([[2, f"{OUTER}._add_common", 7]], "rank"),
    ([[0, f"{OUTER}.synchronize", 1]], "rank"),
    ([[1, f"{OUTER}._begin", 9], [3, f"{OUTER}.take_over", 1]], "rank"),
    ([[1, f"{OUTER}._begin", 9], [3, f"{PARALLEL}.strategy:Strategy.__init__", 2]], "rank"),
    ([[1, "mpicoll.train.checkpoint.directory:Checkpoints._write_files", 2]], "rank"),
    ([[1, "mpicoll.train.run:Run._write_down", 2]], "rank"),
    ([[1, f"{PARALLEL}.optimizer_step:Update._apply", 29]], "node"),
])  # fmt: skip
def test_local_steps_go_on(deaths, inner):
    options = ("--strategy", "diloco", "--inner-steps", "6", "--fragments", "2", "--precision", "float32", "--inner", inner)
    plan = Plan(0, 4 if len(deaths) > 1 else 3, options, "", tuple(map(tuple, deaths)), "checkpoint" in deaths[0][1])
    row = trained(plan, tolerance=1.0)  # of the losses, which are those of other samples
    assert row["outcome"] == "went on" and row["died"] == len(deaths), told(row)
    assert row["recoveries"][-1]["step"] > 0


@pytest.mark.thorough
@OPEN
@pytest.mark.skipif(bool(unavailable()), reason=str(unavailable()))
def test_local_steps_go_on_without_a_host_that_is_cut_off(monkeypatch):
    options = ("--strategy", "diloco", "--inner-steps", "6", "--fragments", "2", "--precision", "float32")
    row = cut_off(monkeypatch, 1.0, 4, options, "", ((3, f"{OUTER}._begin", 5, CUT),), False, 4)
    assert row["outcome"] == "went on" and row["cut"] == 1, told(row)


TRAIN = ["-m", "mpicoll", "train", "--data", "synthetic:120,6,3", "--hidden", "8", "--batch-size", "16", "--steps", "3",
         "--elastic"]  # fmt: skip
BOTH_COPIES = [[1, f"{PARALLEL}.backup:Backup._copy_gradients", 25],
               [2, "mpicoll.communicator.communicator:Communicator.shrink", 1]]  # 2 holds what 1 had  # fmt: skip


@pytest.mark.thorough
@OPEN
def test_a_shard_lost_with_its_copy_is_taken_from_the_checkpoint():
    options = ("--strategy", "zero2", "--overlap", "all", "--precision", "float32")
    row = trained(Plan(0, 4, options, "", tuple(map(tuple, BOTH_COPIES)), saved=True), ROUNDING)
    assert row["outcome"] == "went on" and row["died"] == 2, told(row)
    assert [(one["ranks"], one["step"]) for one in row["recoveries"]] == [(2, 20)]


@pytest.mark.thorough
@OPEN
def test_a_shard_lost_with_its_copy_and_no_checkpoint_ends_the_job():
    training = ["mpicoll", *TRAIN[2:], "--strategy", "zero1", "--steps", "30"]
    status, output = run("openmpi", 3, "-m", "benchmarks.run.dying", json.dumps(BOTH_COPIES), *training)
    assert status and "the optimizer state of rank 1 was lost with its copy: both ranks died" in output, output


@pytest.mark.thorough
@OPEN
@pytest.mark.skipif(bool(unavailable()), reason=str(unavailable()))
def test_a_training_goes_on_on_hosts_with_several_ranks(monkeypatch):
    """Others wait in a collective of MPI's own for the rank: that must not succeed, with rubbish received."""
    monkeypatch.setenv("OMPI_MCA_mpi_ft_detector_timeout", "30")  # nothing is cut off, and a busy machine is late
    options = ("--strategy", "allreduce", "--overlap", "gradients", "--precision", "float32")
    death = (1, "mpicoll.train.checkpoint.directory:Checkpoints._write_files", 2)
    row = trained(Plan(0, 4, options, "", (death,), True, 2), ROUNDING)
    assert row["outcome"] == "went on" and row["died"] == 1, told(row)


@pytest.mark.thorough
@OPEN
def test_heartbeats_of_the_virtual_cluster_may_be_late_where_cores_are_shared():
    name = "OMPI_MCA_mpi_ft_detector_timeout"
    job = Job("openmpi", found["openmpi"].python, survive=True)
    shared = 64 * os.cpu_count()
    assert float(job.environment({}, shared)[name]) >= 32 and job.environment({name: "3"}, shared)[name] == "3"


@pytest.mark.thorough
@OPEN
@pytest.mark.skipif(bool(unavailable()), reason=str(unavailable()))
@pytest.mark.parametrize("hosts, ranks, victim, strategy", [(4, 4, 3, "allreduce"), (3, 6, 4, "zero2")])
def test_a_host_that_is_cut_off(hosts, ranks, victim, strategy, monkeypatch):
    """One rank misses its heartbeats. All others must be told, those that wait for it in a tree of agreement, too."""
    options = ("--strategy", strategy, "--overlap", "all", "--precision", "float32")
    cut = (victim, f"{PARALLEL}.optimizer_step:Update.publish", 40, CUT)
    row = cut_off(monkeypatch, ROUNDING, ranks, options, "", (cut,), False, hosts)
    assert row["outcome"] == "went on" and row["cut"] == 1 and "step_s" in row["interruptions"][0], told(row)


FIRST_MESSAGE = """
import sys, time
from pathlib import Path
from mpi4py import MPI
import mpicoll

comm = mpicoll.Communicator(MPI.COMM_WORLD)
folder = Path(sys.argv[1])
if comm.rank == 2:
    (folder / "ready").touch()
    time.sleep(600)
while not (folder / "cut").exists():
    time.sleep(0.01)
try:
    comm.Send(bytearray(1), 2)
    comm.Recv(bytearray(1), 2)
except mpicoll.RankFailure as failure:
    (folder / f"{comm.rank}").write_text(str(failure.ranks))
"""


@pytest.mark.thorough
@OPEN
@pytest.mark.skipif(bool(unavailable()), reason=str(unavailable()))
def test_a_first_message_to_a_host_that_is_cut_off(tmp_path):
    """Ranks 0 and 2 of four neither exchange heartbeats, nor is there an earlier message between them."""
    told_of = [tmp_path / str(rank) for rank in (0, 1, 3)]
    with Cluster(4) as cluster, ThreadPoolExecutor(1) as pool:
        job = pool.submit(cluster.run, ["python", "-c", FIRST_MESSAGE, tmp_path], "openmpi", survive=True, capture_output=True)
        until = time.monotonic() + PATIENCE / 4
        while not all(path.exists() for path in told_of) and not job.done() and time.monotonic() < until:
            if (tmp_path / "ready").exists() and not (tmp_path / "cut").exists():
                cluster.cut("host2")
                (tmp_path / "cut").touch()
            time.sleep(0.01)
        cluster.close()  # the launcher may stay, as it has lost a host
        assert [path.read_text() for path in told_of if path.exists()] == ["(2,)"] * 3, job.result()


@pytest.mark.thorough
@OPEN
def test_heartbeats_of_which_only_one_rank_hears_are_refused(monkeypatch):
    monkeypatch.setenv("OMPI_MCA_mpi_ft_detector", "true")
    status, output = run("openmpi", 2, *TRAIN)
    assert status and "--mca mpi_ft_propagator_with_rbcast true" in output, output


OBJECTS = """
import sys
from mpi4py import MPI
import mpicoll
from tests.support.deaths import die

comm = mpicoll.Communicator(MPI.COMM_WORLD)
rank, reduce = comm.Get_rank(), getattr(comm, sys.argv[1])
reduce((0, rank), MPI.MINLOC)  # where mpi4py makes what it needs
die(3)
try:
    if rank == 1:
        comm.Recv(bytearray(1), source=3)  # it leaves, and the others never hear from it
    while True:  # those who only send hear of it late
        reduce(rank)
except mpicoll.RankFailure:
    comm = comm.shrink()
    print(rank, getattr(comm, sys.argv[1])([rank]))
"""


@pytest.mark.thorough
@OPEN
@pytest.mark.parametrize("name, expected", [
    ("allreduce", ["[0, 1, 2]"] * 3), ("reduce", ["[0, 1, 2]", "None", "None"]),
    ("scan", ["[0]", "[0, 1]", "[0, 1, 2]"]),
    ("exscan", ["None", "[0]", "[0, 1]"]),
])  # fmt: skip
def test_reductions_of_objects_hear_of_a_death(name, expected):
    """mpi4py makes them over a duplicate of its own, which nobody revokes."""
    status, output = run("openmpi", 4, "-c", OBJECTS, name)
    assert sorted(output.splitlines()[-3:]) == [f"{rank} {text}" for rank, text in enumerate(expected)], output


@pytest.mark.skipif(not found, reason="no mpiexec beside this Python or on PATH")
@pytest.mark.parametrize("name", found)
def test_elastic_elsewhere_is_one_message_at_the_start(name):
    status, output = run(name, 2, *TRAIN, survive=False)
    assert status and "elastic: lost ranks cannot be survived here" in output and "mpirun --with-ft ulfm" in output, output


HOSTS = """
import os
from mpi4py import MPI
os.environ |= {"OMPI_MCA_mpi_ft_enable": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
from mpicoll.failure import survival
for components in ("", "^adapt", "han,tuned", "^han", "^adapt,han", "tuned,basic"):
    os.environ["OMPI_MCA_coll"] = components
    if not components:
        del os.environ["OMPI_MCA_coll"]
    survival.refusal.cache_clear()
    print("--mca coll ^han" in survival.refusal())
"""


@pytest.mark.thorough
@OPEN
def test_collectives_that_do_not_notice_a_death_are_refused():
    said = subprocess.run([found["openmpi"].python, "-c", HOSTS], env=environment(), capture_output=True, text=True)
    assert said.stdout.split() == ["True"] * 3 + ["False"] * 3, said.stderr


@pytest.mark.thorough
@OPEN
def test_elastic_on_one_rank_or_with_a_parameter_server_is_refused():
    assert "expected at least 2 ranks, got 1" in run("openmpi", 1, *TRAIN)[1]
    assert "with elastic one of allreduce, zero1, zero2" in run("openmpi", 2, *TRAIN, "--strategy", "parameter_server")[1]


TRAINER, STEP = "mpicoll.train.trainer:Trainer.fit", f"{PARALLEL}.optimizer_step:Update.prepare"
FORWARD, SECURE = f"{PARALLEL}.hooks:ReducerHooks.forward", f"{PARALLEL}.backup:Backup.secure"
SAMPLER = "mpicoll.train.data.sampler:Sampler.__init__"
LAST = "mpicoll.train.monitor.meter:Meter.summary_of_ranks"


def refit(ranks, deaths, **plan):
    """Exit status, what each rank that lived to the end wrote, and the output of a training of several fits."""
    folder = Path(tempfile.mkdtemp(dir="."))
    plan["directory"] = str(folder)
    words = ["-m", "benchmarks.run.dying", json.dumps(deaths), "benchmarks.run.refits", json.dumps(plan)]
    status, output = run("openmpi", ranks, *words, survive=ranks > 1)
    return status, [json.loads(path.read_text()) for path in sorted(folder.glob("result-*.json"))], output


@lru_cache
def alone(*what):
    """What one rank comes to: neither ranks nor strategy matter."""
    status, (result,), output = refit(1, [], **dict.fromkeys(what, True))
    assert status == 0, output
    return result


@OPEN
@pytest.mark.parametrize("ranks, strategy, deaths, what", [
    (4, "zero2", [[1, FORWARD, 2], [3, TRAINER, 2]], ("seeds", "weights", "state")),
    (4, "allreduce", [[1, TRAINER, 2], [2, STEP, 5]], ("weights", "state", "between")),
    pytest.param(4, "zero1", [[0, STEP, 1], [2, SAMPLER, 3]], ("seeds", "state"), marks=THOROUGH),
    pytest.param(3, "zero2", [[1, STEP, 5]], ("between",), marks=THOROUGH),
    pytest.param(3, "zero2", [[1, SECURE, 2]], ("between",), marks=THOROUGH),
    pytest.param(3, "zero1", [[1, STEP, 5]], ("state", "between"), marks=THOROUGH),
    pytest.param(4, "zero2", [[1, LAST, 1], [2, LAST, 2]], (), marks=THOROUGH),
    pytest.param(3, "allreduce", [[0, LAST, 2]], (), marks=THOROUGH),
], ids=["in the first step, and between two fits", "between two fits, and in the first step of one",
        "rank 0 before its first update, and another when a fit begins again", "where parameters were written",
        "before those are known", "where parameters and state were written", "after the last step of each",
        "rank 0 after all"])  # fmt: skip
def test_several_fits_as_if_nobody_had_died(ranks, strategy, deaths, what):
    status, results, output = refit(ranks, deaths, options={"strategy": strategy, "elastic": True}, **dict.fromkeys(what, True))
    assert status == 0 and len(results) == ranks - len(deaths), output
    whole = alone(*what)
    for result in results:
        assert result["ranks"] == len(results) == result["recoveries"][-1]["ranks"], output
        assert result["updates"] == whole["updates"]
        for name in ("losses", "epochs", "parameters"):
            assert result[name] == pytest.approx(whole[name], rel=ROUNDING, abs=ROUNDING), name


@pytest.mark.thorough
@OPEN
def test_masters_go_on_to_the_bit():
    narrow = {"reproducible": 8, "precision": "bfloat16"}
    status, (whole,), output = refit(1, [], options=narrow, state=True)
    assert status == 0, output
    options = narrow | {"strategy": "zero1", "elastic": True}
    status, results, output = refit(4, [[1, STEP, 1], [3, STEP, 6]], options=options, state=True, seeds=True)
    assert status == 0 and [one["losses"] for one in results] == [whole["losses"]] * 2, output


@pytest.mark.thorough
@OPEN
@pytest.mark.parametrize("strategy", ["allreduce", "zero1", "zero2"])
@pytest.mark.parametrize("place", [STEP, f"{PARALLEL}.feedback:ErrorFeedback.feed"])
def test_compressed_gradients(strategy, place, tmp_path):
    """With the losses of a run in which nobody died, as far as codes made by fewer ranks allow."""
    words = ["mpicoll", "train", "--data", "synthetic:300,8,3", "--hidden", "32,32", "--steps", "40", "--strategy", strategy]
    words += ["--compression", "int8", "--error-feedback", "--algorithm", "pairwise", "--elastic"]
    results = []
    for number, deaths in enumerate(([], [[1, place, 11]])):
        path = tmp_path / f"{number}.json"
        status, output = run("openmpi", 3, "-m", "benchmarks.run.dying", json.dumps(deaths), *words, "--json", path)
        assert status == 0, output
        results.append(json.loads(path.read_text()))
    whole, rest = results
    assert len(rest["losses"]) == 40 and [one["ranks"] for one in rest["report"]["recoveries"]] == [2]
    assert rest["losses"] == pytest.approx(whole["losses"], rel=0.05)


@lru_cache
def owing(ranks, strategy, deaths="[]", one=()):
    """What the ranks of a training wrote down of what their codes lost, see `tests.support.owing`, and its output."""
    folder = Path(tempfile.mkdtemp(dir="."))
    status, output = run("openmpi", ranks, "-m", "benchmarks.run.dying", deaths, "tests.support.owing", strategy, folder, *one)
    assert status == 0, output
    return {path.stem: dict(numpy.load(path)) for path in folder.glob("*.npz")}, output


#: before any rank can have the sums of a step; of an allreduce in `owing`: when all copies of residuals have come
FEED = f"{PARALLEL}.feedback:ErrorFeedback.feed"
HAND_OVER = f"{PARALLEL}.backup:Backup.hand_over"
ADD, COMMIT = f"{PARALLEL}.feedback:Remainder.add_to", f"{PARALLEL}.reducer:Reducer.commit"


@pytest.mark.thorough
@OPEN
@pytest.mark.parametrize("strategy, ranks, deaths", [
    ("allreduce", 3, [[1, FEED, 12]]), ("zero1", 3, [[1, FEED, 12]]), ("zero2", 3, [[2, STEP, 12]]),
    ("allreduce", 4, [[1, FEED, 12], [3, HAND_OVER, 1]]),
    ("zero2", 4, [[1, FEED, 12], [3, HAND_OVER, 1]]),
    ("allreduce", 3, [[1, STEP, 12]]),
    ("zero1", 3, [[0, FEED, 1]]), ("allreduce", 3, [[2, FEED, 1]]),
])  # fmt: skip
def test_what_the_codes_of_the_dead_lost_is_owed_by_those_that_live(strategy, ranks, deaths):
    """Residuals, bit for bit those of a run in which nobody died and NumPy's codes of these; and no gradient is missing."""
    whole, _ = owing(ranks, strategy)
    found, output = owing(ranks, strategy, json.dumps(deaths))
    dead = {rank for rank, *_ in deaths}
    living = set(range(ranks)) - dead
    step = int(found[f"taken-{min(living)}"]["generation"])
    nothing = {"lost": numpy.zeros(owing_program.SIZE, "f4")}
    lost = [whole.get(f"after-{ranks}-{rank}-{step}", nothing)["lost"] for rank in range(ranks)]
    copies = [quantised(values, owing_program.CODES) for values in lost]
    missing = sum(values.astype("f8") for values in lost)
    for rank in living:
        taken = found[f"taken-{rank}"]
        wanted = copies[rank] if taken["newest"] > step else lost[rank]
        held = [owner for owner in dead if taken["holders"][owner] == rank and taken["held"] >= step]
        if strategy != "allreduce" or deaths[0][1] == FEED:  # it died after the copy had come
            assert held == [owner for owner in dead if taken["holders"][owner] == rank] and step >= deaths[0][2] - 2, output
        for owner in held:
            wanted = wanted + copies[owner]
        numpy.testing.assert_array_equal(taken["residuals"], wanted)
        missing -= wanted
    ends = [found[f"end-{rank}"] for rank in living]
    unapplied = missing + sum(end["lost"].astype("f8") for end in ends)
    for end in ends:
        applied = -end["weights"].astype("f8").reshape(-1)
        numpy.testing.assert_allclose(applied + unapplied, owing_program.TOTAL, atol=2e-5)
    assert not step or min(abs(lost[rank]).max() for rank in dead) > 1e-3


@pytest.mark.thorough
@OPEN
@pytest.mark.parametrize("death", [[2, FEED, 18], [2, f"{PARALLEL}.strategy:Strategy.step", 13]], ids=["later", "at once"])
def test_what_was_taken_over_is_owed_when_that_rank_dies_too(death):
    """Rank 2 takes over what rank 1 owed, and dies: what the codes of both copies lose is left out alone."""
    found, output = owing(4, "allreduce", json.dumps([[1, FEED, 12], death]))
    assert output.count("ranks died") == 2, output
    missing = 0.0
    for name in ("after-4-1-", "after-3-2-"):  # the last that each has written down: all copies of that step had come
        steps = [int(key.removeprefix(name)) for key in found if key.startswith(name)]
        lost = found[f"{name}{max(steps)}"]["lost"] if steps else found["taken-2"]["residuals"]
        missing += lost.astype("f8") - quantised(lost, owing_program.CODES)
        assert abs(lost).max() > 5 * abs(missing).max() > 0
    ends = [found[f"end-{rank}"] for rank in (0, 3)]
    applied = -ends[0]["weights"].astype("f8").reshape(-1)
    unapplied = missing + sum(end["lost"].astype("f8") for end in ends)
    numpy.testing.assert_allclose(applied + unapplied, owing_program.TOTAL, atol=2e-5)


@pytest.mark.thorough
@OPEN
@pytest.mark.parametrize("strategy, ranks, deaths", [
    ("allreduce", 2, [[1, FEED, 12]]), ("zero1", 3, [[1, FEED, 12]]), ("allreduce", 4, [[1, FEED, 12], [0, ADD, 1]]),
    ("zero2", 4, [[1, FEED, 12], [0, ADD, 1]]),
    ("zero1", 4, [[1, FEED, 12], [0, ADD, 1], [2, ADD, 1]]),
    ("allreduce", 4, [[1, FEED, 12], [0, COMMIT, 12]]),
    ("allreduce", 4, [[1, FEED, 12], [2, COMMIT, 12]]),
    ("allreduce", 4, [[1, FEED, 12], [0, COMMIT, 13]]),
])  # fmt: skip
def test_what_was_lost_is_applied_by_those_that_send_no_codes(strategy, ranks, deaths):
    """One rank is left, or several that share a node; also where the one that adds the residuals dies before that counts."""
    found, output = owing(ranks, strategy, json.dumps(deaths), ("one",))
    assert output.count("ranks died") == len(deaths), output
    dead = {rank for rank, *_ in deaths}
    living = set(range(ranks)) - dead
    taken = [found[f"taken-{rank}"]["residuals"] for rank in living]
    assert len(deaths) > 1 or abs(sum(taken)).max() > 0.03
    step = int(re.search(r"go on after step (\d+)", output)[1])  # the first time
    lost = [found[f"after-{ranks}-{rank}-{step}"]["lost"] for rank in range(ranks)]
    # what codes of copies lose: of the first that died, and of all where a step was taken back
    copied = range(ranks) if strategy != "allreduce" else [1]
    bound = sum(abs(quantised(lost[rank], owing_program.CODES) - lost[rank]) for rank in copied) + 2e-5
    for rank in living:
        end = found[f"end-{rank}"]
        assert not end["lost"].any()
        applied = -end["weights"].astype("f8").reshape(-1)
        assert (abs(applied - owing_program.TOTAL) <= bound).all(), abs(applied - owing_program.TOTAL).max()


@OPEN
@pytest.mark.parametrize("strategy", ["allreduce", "zero1"])
def test_what_copies_of_residuals_cost(strategy):
    found, _ = owing(3, strategy)
    # where an allreduce sends codes of sums, too, shards are whole groups of them
    unit = 3 * 64 if strategy == "allreduce" else 64
    codes = 36 * -(-owing_program.SIZE // unit) * unit // 64  # those of int4
    shard = 0 if strategy == "allreduce" else 4 * owing_program.SIZE // 3
    for rank in range(3):
        end = found[f"end-{rank}"]
        assert end["copy_bytes_per_step"] == shard + codes
        assert end["copy_bytes_held"] == 2 * (shard + 2 * (shard + codes))  # of this rank, and of that whose holder it is


@OPEN
def test_changes_that_no_copy_has_yet_are_not_lost_silently():
    sending = f"{PARALLEL}.backup:Backup._send"  # one when a fit begins with new state, four in its steps
    status, results, output = refit(3, [[1, sending, 6]], options={"strategy": "zero2", "elastic": True},
                                    state=True, between=True)  # fmt: skip
    assert status and not results and "rank 1 died before the first step of this fit was made" in output, output


@OPEN
@pytest.mark.parametrize("strategy", ["allreduce", "zero2"])
@pytest.mark.parametrize("deaths", [[], [[1, f"{PARALLEL}.optimizer_step:Update._complain", 1]]], ids=["alive", "and a death"])
def test_nan_is_told_although_a_rank_dies(strategy, deaths):
    status, results, output = refit(3, deaths, options={"strategy": strategy, "elastic": True}, nan=True,
                                    steps=[9])  # fmt: skip
    assert status and not results and "expected finite gradients, got infinity or nan in" in output, output


HELD = """
import re, sys
import numpy
from mpi4py import MPI
from mpicoll.train import Adam, Dataset, Trainer

def resident():
    text = open("/proc/self/smaps_rollup").read()
    return sum(MPI.COMM_WORLD.allgather(1024 * int(re.search(r"^Pss:\\s+(\\d+)", text, re.M)[1])))  # shared pages count once

def train(shape):
    def loss(params, batch):
        return 0.0, [numpy.broadcast_to(numpy.float32(1e-3), array.shape) for array in params]
    params = [numpy.ones(shape, "f4") for _ in range(8)]
    trainer = Trainer(loss, Adam(), MPI.COMM_WORLD, sys.argv[1], params=params, elastic=True)
    trainer.fit(Dataset(rows, labels, rows[:0], labels[:0]), steps=3, batch_size=8)
    return trainer

rows, labels = numpy.zeros((24, 1), "f4"), numpy.zeros(24, "i8")
first = train((8, 8))  # what is imported and made once
before = resident()
trainer = train((512, 512))
growth, report = resident() - before, trainer.report()
names = "parameter_bytes", "gradient_bytes", "optimizer_bytes", "copy_bytes_held", "scratch_bytes"
told = sum(MPI.COMM_WORLD.allgather(sum(report[name] for name in names)))
if MPI.COMM_WORLD.Get_rank() == 0:
    print("held", growth / told)
"""


@OPEN
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux 4.14, which tells what is resident")
@pytest.mark.parametrize("strategy", [pytest.param(name, marks=THOROUGH) for name in ("allreduce", "zero1", "zero2")])
def test_the_report_has_all_bytes_that_are_held(strategy):
    status, output = run("openmpi", 3, "-c", HELD, strategy)
    assert status == 0, output
    assert float(output.split("held ")[1]) < 1.1, output


@OPEN
@pytest.mark.parametrize("strategy", ["zero1", "allreduce"])
def test_a_training_frees_the_communicator_of_its_copies(strategy, monkeypatch):
    monkeypatch.setenv("MPICOLL_CHECK", "always")
    options = {"strategy": strategy, "compression": "int8", "error_feedback": True, "algorithm": "pairwise", "elastic": True}
    status, output = run("openmpi", 2, "-m", "tests.support.left_by_training", json.dumps(options))
    assert status == 0 and output.count("done") == 2 and "at the end of the program" not in output, output


REPORT, OUTFILES = "mpicoll.train.monitor.report", "mpicoll.cli.outfiles"


@OPEN
@pytest.mark.parametrize("death", [
    [0, f"{OUTFILES}:write_json", 1],
    pytest.param([1, f"{REPORT}:measured_on", 1], marks=THOROUGH), pytest.param([2, f"{REPORT}:nodes", 1], marks=THOROUGH),
    pytest.param([1, "mpicoll.measure.timeline:clock_shift", 1], marks=THOROUGH),
    pytest.param([0, f"{OUTFILES}:write_done", 1], marks=THOROUGH),
    pytest.param([1, f"{OUTFILES}:write_done", 1], marks=THOROUGH),
], ids=str)  # fmt: skip
def test_a_death_after_the_last_step_loses_no_result(death):
    files = ["--json", "result.json", "--done", "done", "--trace", "trace.json", "--checkpoint", "checkpoints"]
    status, output = run("openmpi", 3, "-m", "benchmarks.run.dying", json.dumps([death]), "mpicoll", *TRAIN[2:],
                         "--strategy", "zero1", *files)  # fmt: skip
    assert status == 0 and "after 3 steps" in output, output
    assert len(json.loads(Path("result.json").read_text())["losses"]) == 3
    assert Path("done").exists() and json.loads(Path("trace.json").read_text())


NEVER_STARTED = """
import os, signal
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
from mpicoll.cli import main
main(["train", "--steps", "1", "--elastic"])
"""


@pytest.mark.thorough
@OPEN
def test_a_rank_that_dies_before_mpi_starts_does_not_leave_the_others_waiting(monkeypatch):
    monkeypatch.setenv("MPICOLL_TIMEOUT", "2")
    status, output = run("openmpi", 3, "-c", NEVER_STARTED)
    assert status == 1 and "has waited 2 s in MPI_Init for the others" in output, output


MADE = """
from mpi4py import MPI
import mpicoll

comm = mpicoll.Communicator(MPI.COMM_WORLD)
try:
    comm.Dup().Barrier()
except mpicoll.RankFailure:
    print(comm.shrink().allreduce(1), "are left")
"""


@pytest.mark.thorough
@OPEN
def test_ranks_that_die_while_communicators_are_made(tmp_path):
    (tmp_path / "made.py").write_text(MADE)
    deaths = [[3, "mpicoll.transport.channel:_taken", 1], [1, "mpicoll.transport.channel:meet", 1]]  # in Dup, and in shrink
    status, output = run("openmpi", 4, "-m", "benchmarks.run.dying", json.dumps(deaths), tmp_path / "made.py")
    assert status == 0 and output.splitlines()[-2:] == ["2 are left"] * 2, output


FIRST = """
from mpi4py import MPI
import mpicoll

world = MPI.COMM_WORLD
try:
    comm = mpicoll.Communicator(world)
    comm.Barrier()
except mpicoll.RankFailure as failure:
    assert failure.ranks == (2,) or "not known here yet" in str(failure), failure
    comm = mpicoll.Communicator(world.Shrink())
print(comm.allreduce(1), "are left")
"""


@pytest.mark.thorough
@OPEN
@pytest.mark.parametrize("place", [
    "transport.channel:ranks_of_node", "transport.topology:meet", "transport.topology:require_awareness",
    "execute.context:Channel.first",
])  # fmt: skip
def test_ranks_that_die_while_the_first_communicator_is_made(place, tmp_path):
    """Before, between and after its messages."""
    (tmp_path / "first.py").write_text(FIRST)
    deaths = [[2, f"mpicoll.{place}", 1]]
    status, output = run("openmpi", 5, "-m", "benchmarks.run.dying", json.dumps(deaths), tmp_path / "first.py")
    assert status == 0 and output.splitlines()[-4:] == ["4 are left"] * 4, output


@pytest.mark.thorough
@OPEN
@pytest.mark.parametrize("place", ["transport.topology:meet", "support.node:share_cores"])
def test_a_training_begins_with_the_ranks_that_live(place):
    deaths = [[1, f"mpicoll.{place}", 1]]
    status, output = run("openmpi", 3, "-m", "benchmarks.run.dying", json.dumps(deaths), "mpicoll", *TRAIN[2:])
    assert status == 0 and re.search(r"\b2 ranks\b", output), output


THREADS = """
import os, signal, threading
import numpy
from mpi4py import MPI
import mpicoll

comm = mpicoll.Communicator(MPI.COMM_WORLD)
ended = []

def work(mine):
    x = numpy.ones(1000)
    try:
        for call in range(10**9):
            if mine is all_ranks and call == 50 and comm.Get_rank() == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            mine.Allreduce(MPI.IN_PLACE, x)
    except mpicoll.RankFailure:
        ended.append(mine)

all_ranks, without = comm.Dup(), comm.Split(comm.Get_rank() == 2)
threads = [threading.Thread(target=work, args=(mine,)) for mine in (all_ranks, without)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(ended) == 2
print(comm.shrink().allreduce(1), "are left")
"""


@pytest.mark.thorough
@OPEN
def test_threads_with_a_communicator_each_hear_of_a_death():
    """Also on the one that the dead rank is not in: nobody may wait there for ranks that have left."""
    status, output = run("openmpi", 4, "-c", THREADS)
    assert status == 0 and output.splitlines()[-3:] == ["3 are left"] * 3, output


MEANWHILE = """
import time
from mpi4py import MPI
import mpicoll
from tests.support.deaths import die

mpicoll.install_abort_hook()
comm = mpicoll.Communicator(MPI.COMM_WORLD, timeout=100)
others = [comm.Dup() for _ in range(8)]
die(1)
while not comm.Get_failed().size:
    time.sleep(0.1)
time.sleep(1)
try:
    comm.Barrier()
except mpicoll.RankFailure:
    print(comm.shrink().allreduce(1), "are left")
"""


@OPEN
def test_a_rank_dies_while_the_others_compute():
    """The thread that answers questions of ranks meets the death first; it goes on, and does not end the job."""
    status, output = run("openmpi", 3, "-c", MEANWHILE)
    assert status == 0 and output.splitlines()[-2:] == ["2 are left"] * 2 and "Traceback" not in output, output


REPLACED = """
import numpy
from mpi4py import MPI
import mpicoll
from tests.support.deaths import die

comm = mpicoll.Communicator(MPI.COMM_WORLD)
rank = comm.Get_rank()
column = MPI.INT.Create_vector(3, 1, 2).Commit()
x, status = numpy.arange(6, dtype="i4").reshape(3, 2) + 10 * rank, MPI.Status()
comm.Sendrecv_replace([x, 1, column], (rank + 1) % 3, 5, source=(rank - 1) % 3, recvtag=5, status=status)
assert (x[:, 0] == numpy.arange(0, 6, 2) + 10 * ((rank - 1) % 3)).all() and (x[:, 1] == numpy.arange(1, 6, 2) + 10 * rank).all()
assert status.Get_source() == (rank - 1) % 3 and status.Get_count(column) == 1
die(2)
try:
    while True:
        comm.Sendrecv_replace(x, (rank + 1) % 3, source=(rank - 1) % 3)
except mpicoll.RankFailure:
    comm = comm.shrink()
    x[:] = rank
    comm.Sendrecv_replace(x, 1 - rank, source=1 - rank)
    print(rank, "has", x[0, 1])
"""


@pytest.mark.thorough
@OPEN
def test_sendrecv_replace_hears_of_a_death():
    status, output = run("openmpi", 3, "-c", REPLACED)
    assert status == 0 and sorted(output.splitlines()[-2:]) == ["0 has 1", "1 has 0"], output


QUANTISED = """
import os, signal
import numpy
from mpi4py import MPI
import mpicoll
from mpicoll.buffers import Compression

comm = mpicoll.Communicator(MPI.COMM_WORLD)
rank = comm.Get_rank()
x = numpy.ones(4 * 256, "f4")
encode, codes = Compression.encode, []

def encode_or_die(*arguments, **names):
    codes.append(1)
    if rank == 2 and len(codes) == 8:  # two calls: three contributions and a sum each
        os.kill(os.getpid(), signal.SIGKILL)
    encode(*arguments, **names)

Compression.encode = encode_or_die
comm.Allreduce(MPI.IN_PLACE, x, compression="int8", algorithm="pairwise")
try:
    comm.Allreduce(MPI.IN_PLACE, x, compression="int8", algorithm="pairwise")
    comm.Barrier()
except mpicoll.RankFailure:
    comm = comm.shrink()
    x[:] = 1
    comm.Allreduce(MPI.IN_PLACE, x, compression="int8", algorithm="pairwise")
    print("all are", x.min(), x.max())
"""


@pytest.mark.thorough
@OPEN
def test_a_rank_that_dies_between_its_two_quantisations(monkeypatch):
    monkeypatch.setenv("MPICOLL_ENGINE", "python")
    status, output = run("openmpi", 4, "-c", QUANTISED)
    assert status == 0 and output.splitlines()[-3:] == ["all are 3.0 3.0"] * 3, output


def test_shrink_without_help_of_mpi_says_what_to_do():
    code = ("import mpicoll; from mpi4py import MPI\n"
            "try: mpicoll.Communicator(MPI.COMM_WORLD).shrink()\n"
            "except mpicoll.LaunchError as error: print(error)")  # fmt: skip
    said = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True)
    assert "shrink: lost ranks cannot be survived here" in said.stdout, said.stderr


FAMILY = """
import sys
import numpy
from mpi4py import MPI
import mpicoll
from tests.support.deaths import die

method, word, form = sys.argv[1:]

class Calls:
    # the call on a ring of the ranks of a communicator

    def __init__(self, comm):
        self.comm = comm.Create_cart([comm.size], [True])
        each, places = [1] * comm.size, [8 * rank for rank in range(comm.size)]
        x, self.y = numpy.full(comm.size, comm.rank + 1.0), numpy.zeros(comm.size)
        types = [MPI.DOUBLE] * comm.size
        pair = numpy.full(2, comm.rank + 1.0), numpy.zeros(2)
        self.arguments = {
            "Barrier": (), "Scan": (x, self.y), "Exscan": (x, self.y),
            "Alltoallw": ([x, each, places, types], [self.y, each, places, types]),
            "Neighbor_alltoall": pair,
        }[method]

    def make(self):
        if form == "blocking":
            return getattr(self.comm, method)(*self.arguments, algorithm=word)
        if form == "begun":
            return getattr(self.comm, "I" + method.lower())(*self.arguments, algorithm=word).Wait()
        plan = getattr(self.comm, method + "_init")(*self.arguments, algorithm=word)
        plan.Start()
        plan.Wait()
        plan.Free()

comm = mpicoll.Communicator(MPI.COMM_WORLD)
calls = Calls(comm)
for _ in range(3):
    calls.make()
die(1)
try:
    while True:
        calls.make()
except mpicoll.RankFailure:
    comm = comm.shrink()
    calls = Calls(comm)
    calls.make()
    print("all are there:", comm.allreduce(1))
"""


@pytest.mark.thorough
@OPEN
@pytest.mark.parametrize("form", ["blocking", "begun", "plan"])
@pytest.mark.parametrize("method, word", [
    ("Barrier", "tree"), ("Barrier", "native"), ("Scan", "recursive_doubling"), ("Exscan", "two_phase"),
    ("Exscan", "native"), ("Alltoallw", "pairwise"), ("Neighbor_alltoall", "direct"), ("Neighbor_alltoall", "native"),
])  # fmt: skip
def test_scans_barriers_and_exchanges_hear_of_a_death(method, word, form):
    """No rank waits for ever, whatever serves the call; the survivors make it again among themselves."""
    if (method, word) == ("Neighbor_alltoall", "native") and form != "blocking":
        pytest.skip("Open MPI's own calls that return early swap directions on such a grid: they are refused")
    status, output = run("openmpi", 3, "-c", FAMILY, method, word, form)
    assert status == 0 and output.count("all are there: 2") == 2, output
