"""`mpicoll train` on any number of ranks: its result, and one clear line for what cannot be."""

import json

import numpy
import pytest

from tests.support.cases import RANK, SIZE, WORLD
from tests.support.training import STRATEGIES, raises, train_command

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_command_writes_its_result(excepthooks, capsys, mpi_tmp_path, strategy):
    for name in ("sklearn", "tqdm", "threadpoolctl"):
        pytest.importorskip(name)
    path = mpi_tmp_path / "result.json"
    train_command("--strategy", strategy, "--hidden", "32", "--steps", "30", "--lr", "0.01", "--json", str(path))
    WORLD.Barrier()
    result, printed = json.loads(path.read_text()), capsys.readouterr()
    assert set(result) == {"schema", "environment", "config", "epochs", "losses", "test_accuracy", "report"}
    assert result["schema"] == 1 and result["environment"]["size"] == SIZE
    assert (len(result["losses"]), len(result["epochs"]), result["config"]["steps"]) == (30, 2, 30)
    assert set(result["epochs"][0]) == {
        "epoch", "loss", "test_accuracy", "seconds", "compute_s", "communication_s", "exposed_s"}
    assert 0 <= result["report"]["parameter_bytes"] - (64 * 32 + 32 + 32 * 10 + 10) * 4 < 4 * SIZE  # one bucket, padded
    if RANK == 0:
        assert f"test accuracy {result['test_accuracy']:.4f}" in printed.out
        assert "bytes sent per step" in printed.out and "samples/s" in printed.err
    else:
        assert not printed.out and not printed.err


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("strategy", STRATEGIES[1:])
def test_compressed(excepthooks, capsys, mpi_tmp_path, strategy):
    pytest.importorskip("tqdm")
    path = mpi_tmp_path / "run.json"
    words = ["--data", "synthetic:90,5,3", "--hidden", "20,20", "--epochs", "2", "--strategy", strategy, "--json", str(path)]
    words += ["--compression", "int8", "--error-feedback", "--algorithm", "pairwise"]
    if strategy != "allreduce":
        words += ["--parameter-compression", "int4"]
    train_command(*words)
    if RANK == 0:
        result = json.loads(path.read_text())
        assert result["config"]["compression"] == "int8" and result["config"]["error_feedback"] is True
        assert result["report"]["bytes_sent_per_step"] == result["report"]["bytes_predicted"]
        assert result["report"]["residual_bytes"] > 0
        assert "pairwise of int8 with error feedback" in " ".join(capsys.readouterr().out.split())
    WORLD.Barrier()


def test_local_steps_in_16_bits_have_no_loss_scale(excepthooks, mpi_tmp_path):
    pytest.importorskip("tqdm")
    path = mpi_tmp_path / "run.json"
    words = ["--data", "synthetic:90,5,3", "--hidden", "8", "--steps", "2", "--strategy", "diloco", "--json", str(path)]
    train_command(*words, "--precision", "float16")
    WORLD.Barrier()
    assert json.loads(path.read_text())["config"]["loss_scale"] is None


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("dtype", ["uint8", "uint64", "bool"])
def test_labels_of_any_integer_type_train_as_those_of_int64(excepthooks, mpi_tmp_path, strategy, dtype):
    for name in ("tqdm", "threadpoolctl"):
        pytest.importorskip(name)
    random, results = numpy.random.default_rng(0), []
    y = random.integers(0, 2 if dtype == "bool" else 4, 90)
    x = random.standard_normal((4, 7))[y] + random.standard_normal((90, 7))
    for kind in ("int64", dtype):
        if RANK == 0:
            numpy.savez(mpi_tmp_path / f"{kind}.npz", x=x, y=y.astype(kind))
        WORLD.Barrier()
        path = mpi_tmp_path / f"{kind}.json"
        given = "--data", str(mpi_tmp_path / f"{kind}.npz"), "--strategy", strategy
        sizes = "--hidden", "8", "--epochs", "2", "--batch-size", "16"
        train_command(*given, *sizes, "--json", str(path))
        WORLD.Barrier()
        results.append(json.loads(path.read_text()))
    assert results[0]["losses"] == results[1]["losses"]
    assert results[0]["test_accuracy"] == results[1]["test_accuracy"] > 0


@pytest.mark.parametrize("words, text", [
    (["--data", "letters"], "--data: expected one of digits, synthetic, .*FILE.npz, got 'letters'"),
    (["--optimizer", "lion"], "--optimizer: expected one of sgd, adam, adamw, got 'lion'"),
    (["--strategy", "zero9"], "strategy: expected one of"),
    (["--batch-size", "0"], "batch-size: expected an integer of at least 1, got 0"),
    (["--hidden", "a,b"], "--hidden: expected widths such as 512,512, got 'a,b'"),
    (["--lr", "-1"], "lr: expected a number above 0, got -1.0"),
    (["--epochs", "0"], "epochs: expected an integer of at least 1, got 0"),
    (["--json", "/nowhere/at/all.json"], "--json: cannot write /nowhere/at/all.json"),
])
def test_wrong_command_lines(excepthooks, words, text):
    for name in ("sklearn", "tqdm", "threadpoolctl"):
        pytest.importorskip(name)
    raises(text, train_command, *words)
