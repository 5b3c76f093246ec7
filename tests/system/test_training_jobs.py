"""Training jobs as people run them: killed, stopped by a signal, failing on one rank, traced.

Signals come through each MPI's launcher; the rest is tried on one of those found here. MPICOLL_TEST_ALL=1: on each.
"""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.support.each import EACH, ONE, OTHER
from tests.support.launching import PATIENCE, ROOT, environment, installations, mpiexec

SMALL = ["--data", "synthetic:120,6,3", "--hidden", "8", "--batch-size", "16", "--seed", "5"]

if not installations():
    pytest.skip("no mpiexec beside this Python or on PATH", allow_module_level=True)
for needed in ("tqdm", "threadpoolctl"):
    pytest.importorskip(needed)


def train(installation, size, *options, **more):
    return mpiexec(installation, size, "train", *SMALL, *options, module="mpicoll", **more)


def started(installation, size, *options):
    """A job in the background; its output is read by `communicate`."""
    command = [installation.mpiexec, "-n", str(size), installation.python, "-m", "mpicoll", "train", *SMALL, *options]
    return subprocess.Popen([*map(str, command)], env=environment(), stdin=subprocess.DEVNULL, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip


def checkpoints(directory):
    return sorted(directory.glob("step-*"))


def wait_for_a_checkpoint(job, directory):
    """Until the job has one, and is in the middle of its work."""
    end = time.monotonic() + PATIENCE
    while not checkpoints(directory):
        assert job.poll() is None and time.monotonic() < end, job.communicate()[0]
        time.sleep(0.01)


def results(path):
    return json.loads(path.read_text())


#: longer than any test waits: the job has to be ended
ENDLESS = ["--strategy", "zero2", "--steps", "100000000", "--checkpoint-every", "40"]


def finish(installation, tmp_path, directory):
    """Go on some steps from what is there; the losses of both and those of a run of as many steps without a break."""
    done = int(checkpoints(directory)[-1].name.removeprefix("step-"))
    last = ["--strategy", "zero2", "--steps", done + 25]
    output = train(installation, 2, *last, "--checkpoint", directory, "--resume", "--json", tmp_path / "resumed.json")
    assert f"resumed from {directory}/step-{done:010d}, step {done}" in output, output
    train(installation, 2, *last, "--json", tmp_path / "whole.json")
    resumed, whole = results(tmp_path / "resumed.json"), results(tmp_path / "whole.json")
    assert len(whole["losses"]) == done + 25 and resumed["losses"] == whole["losses"]
    assert resumed["test_accuracy"] == whole["test_accuracy"]


@pytest.mark.thorough
@ONE
def test_a_killed_job_goes_on_with_the_same_losses(installation, tmp_path):
    directory = tmp_path / "checkpoints"
    job = started(installation, 2, *ENDLESS, "--checkpoint", directory)
    wait_for_a_checkpoint(job, directory)
    os.killpg(job.pid, signal.SIGKILL)
    for number in _ranks_of(directory):
        os.kill(number, signal.SIGKILL)
    job.communicate()
    finish(installation, tmp_path, directory)


def _ranks_of(directory):
    """Processes whose command line names the directory: those that the launcher put into sessions of their own."""
    for entry in os.listdir("/proc"):
        try:
            if entry.isdecimal() and str(directory).encode() in open(f"/proc/{entry}/cmdline", "rb").read().split(b"\0"):
                yield int(entry)
        except OSError:  # it has ended meanwhile
            continue


@EACH
def test_sigusr1_ends_a_job_with_a_checkpoint(installation, tmp_path):
    directory = tmp_path / "checkpoints"
    done = tmp_path / "done"
    job = started(installation, 2, *ENDLESS, "--checkpoint", directory, "--json", tmp_path / "stopped.json", "--done", done)
    wait_for_a_checkpoint(job, directory)
    os.kill(job.pid, signal.SIGUSR1)
    output, _ = job.communicate(timeout=PATIENCE)
    assert job.returncode == 0, output
    stopped = results(tmp_path / "stopped.json")
    assert f"stopped by SIGUSR1 after step {len(stopped['losses'])}; go on with --resume" in output
    assert stopped["report"]["stopped"] == "SIGUSR1" and not done.exists()
    assert checkpoints(directory)[-1].name == f"step-{len(stopped['losses']):010d}"
    finish(installation, tmp_path, directory)
    assert results(tmp_path / "resumed.json")["losses"][: len(stopped["losses"])] == stopped["losses"]


BROKEN = '''
import numpy
from mpi4py import MPI
from mpicoll.launch import install_abort_hook
from mpicoll.train import SGD, Trainer
from mpicoll.train.data.sources import synthetic

install_abort_hook()
calls = []

def model(params, batch):
    calls.append(1)
    if MPI.COMM_WORLD.Get_rank() == 1 and len(calls) == 4:
        {failure}
    return 0.0, [numpy.zeros(6)]

trainer = Trainer(model, SGD(), MPI.COMM_WORLD, "{strategy}", params=[numpy.zeros(6)])
trainer.fit(synthetic(0, 120, 6, 3), steps=1000, batch_size=16)
'''
FAILURES = {
    "exception": ("raise KeyError('lost my way')", "KeyError: 'lost my way'"),
    "nan": ("return 0.0, [numpy.full(6, numpy.nan)]", "BadGradient: update 4: expected finite gradients, got infinity or nan "
            "in array 0: lower the learning rate"),
}  # fmt: skip


@pytest.mark.thorough
@ONE
@pytest.mark.parametrize("failure", FAILURES)
def test_an_exception_on_one_rank_ends_the_job(installation, tmp_path, failure):
    code, message = FAILURES[failure]
    (tmp_path / "broken.py").write_text(BROKEN.format(failure=code, strategy="zero2"))
    with pytest.raises(AssertionError, match="exit status 1\n") as failed:
        mpiexec(installation, 2, module="broken", PYTHONPATH=f"{tmp_path}:{ROOT}")
    output = str(failed.value)
    assert "failed, the job ends" in output and "Traceback" in output and message in output, output
    assert failure == "nan" or "mpicoll: rank 1 failed" in output


@pytest.mark.thorough
@OTHER
def test_a_trace_has_events_of_all_ranks(installation, tmp_path):
    path = tmp_path / "trace.json"
    train(installation, 3, "--strategy", "zero2", "--steps", "4", "--bucket-bytes", "200", "--trace", path)
    events = [event for event in results(path)["traceEvents"] if event["ph"] == "X"]
    for rank in range(3):
        mine = {(event["cat"], event["name"]) for event in events if event["pid"] == rank}
        assert {("step", f"step {number}") for number in range(4)} <= mine
        assert {("compute", "forward and backward"), ("communication", "reduce 0"), ("communication", "gather 0")} <= mine


ALL = """--data synthetic:200,6,3 --strategy zero2 --optimizer adamw --lr 0.01 --hidden 8,8 --batch-size 16 --epochs 2
 --overlap all --bucket-bytes 1K --parameter-bucket-bytes 2K --reduction reduce_scatter --accumulate 2 --clip-norm 1.0
 --precision float16 --loss-scale dynamic --algorithm ring --seed 7 --device cpu --checkpoint-every 5""".split()


@ONE
def test_all_options_together(installation, tmp_path):
    files = ["--checkpoint", tmp_path / "checkpoints", "--trace", tmp_path / "trace.json", "--json", tmp_path / "result.json"]
    files += ["--metrics", tmp_path / "metrics.jsonl"]
    output = mpiexec(installation, 2, "train", *ALL, *files, "--resume", module="mpicoll")
    result, report = results(tmp_path / "result.json"), results(tmp_path / "result.json")["report"]
    assert len(result["losses"]) == 20 and result["config"]["strategy"] == "zero2"
    assert {"step_s", "compute_s", "communication_s", "exposed_s", "bytes_sent_per_step", "parameter_bytes", "gradient_bytes",
            "optimizer_bytes", "skipped", "stopped"} <= set(report)  # fmt: skip
    assert report["bytes_sent_per_step"] == report["bytes_predicted"]
    output = " ".join(output.split())  # lines fold where numbers happen to end them
    for text in ("2 ranks, zero2 (reduce_scatter ring, allgather ring;", "hidden", "waiting for the slowest rank", "(theory "):
        assert text in output, output
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "step" in line] == list(range(1, 21))
    assert [line for line in lines if "step" not in line] == result["epochs"]
    steps = {"step", "epoch", "samples", "loss", "hidden", "step_s", "compute_s", "communication_s", "exposed_s", "bytes"}
    assert steps <= set(lines[0]) and lines[0]["bytes"] == report["bytes_sent_per_step"]
    again = mpiexec(installation, 2, "train", *ALL, *files, "--resume", module="mpicoll")
    assert "nothing was left to do: the checkpoint has all steps already" in again, again


@pytest.mark.thorough
@pytest.mark.parametrize(("options", "message"), [
    ("--metrics /nowhere/metrics", "metrics: cannot write /nowhere/metrics (No such file or directory)"),
    ("--overlap half", "overlap: expected one of none, gradients, all, got 'half'"),
    ("--reduction sum --strategy zero1", "reduction: expected for zero1 one of allreduce, reduce_scatter, got 'sum'"),
    ("--accumulate 0", "accumulate: expected an integer of at least 1, got 0"),
    ("--clip-norm -1", "clip_norm: expected a norm above 0, or None, got -1.0"),
    ("--precision int8", "precision: expected one of float64, float32, float16, bfloat16, got 'int8'"),
    ("--loss-scale none", "loss_scale: expected dynamic or a number above 0, got 'none'"),
    ("--algorithm rign", "algorithm: expected one of"),
    ("--schedule sine", "schedule: expected constant, cosine:STEPS, linear:STEPS or step:EVERY[,FACTOR], got 'sine'"),
    ("--device tpu", "device: expected one of cpu, cuda, got 'tpu'"),
    ("--steps 0", "steps: expected an integer of at least 1, got 0"),
    ("--data missing.npz", "missing.npz"),
    ("--data synthetic:1,2", "--data: expected synthetic:SAMPLES,FEATURES,CLASSES"),
    ("--checkpoint-every 3", "checkpoint: expected a directory, since checkpoint_every is given"),
    ("--resume", "--resume needs --checkpoint DIR, the directory of the checkpoints to go on from"),
    ("--keep 0 --checkpoint {there}", "keep: expected an integer of at least 1, got 0"),
    ("--trace missing/trace.json", "--trace: cannot write missing/trace.json"),
    ("--bucket-bytes much", "--bucket-bytes"),
])
def test_values_that_cannot_be_used(options, message, tmp_path):
    """One clear line. One process is enough: that all ranks say the same is the business of tests/mpi."""
    words = [*SMALL, "--steps", "2", *options.format(there=tmp_path).split()]
    done = subprocess.run([sys.executable, "-m", "mpicoll", "train", *words], env=environment(), text=True,
                          capture_output=True, timeout=PATIENCE)  # fmt: skip
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert done.stderr.count("error: ") == 1


@pytest.mark.thorough
def test_values_that_ranks_together_cannot_use(tmp_path):
    first, directory = installations()[0], tmp_path / "checkpoints"
    for options, message in [(["--batch-size", 2], "batch_size: expected at least one sample per rank, 3 for 3 ranks"),
                             (["--data", "synthetic:2,6,3"], "samples: expected at least one sample per rank")]:  # fmt: skip
        output = train(first, 3, "--steps", 2, *options, check=False)
        assert output.count("mpicoll train: error: ") >= 1 and message in output and "Traceback" not in output, output
    train(first, 2, "--steps", 2, "--checkpoint", directory)
    output = train(first, 2, "--steps", 2, "--checkpoint", directory, check=False)
    assert "checkpoint: expected an empty directory, or resume=True (--resume) to go on" in output, output
