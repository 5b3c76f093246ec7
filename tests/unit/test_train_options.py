"""Options of `mpicoll train`: read, and refused, without MPI."""

import argparse
import json
import subprocess
import sys

import pytest

from mpicoll.cli import train as command
from mpicoll.errors import ArgumentError
from tests.support.training import train_command


def parse(*words):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(words)


def config(path, *words):
    """The configuration that a result reports."""
    train_command("--data", "synthetic:20,3,2", *words, "--json", str(path))
    return json.loads(path.read_text())["config"]


def test_a_result_reports_what_was_used(excepthooks, tmp_path):
    path = tmp_path / "result.json"
    assert config(path, "--hidden", "4")["epochs"] == 15
    reported = config(path, "--steps", "7", "--hidden", "32, 16")
    assert (reported["epochs"], reported["steps"], reported["hidden"]) == (None, 7, [32, 16])
    assert config(path, "--hidden", "")["hidden"] == []


@pytest.mark.parametrize("text", ["a", "512,,512", "1.5", "-3", "512;512"])
def test_hidden_must_be_numbers(excepthooks, text):
    with pytest.raises(ArgumentError, match="--hidden: expected widths such as 512,512"):
        train_command("--data", "synthetic:20,3,2", f"--hidden={text}")


def test_epochs_and_steps_exclude_each_other(capsys):
    with pytest.raises(SystemExit):
        parse("--epochs", "1", "--steps", "1")
    assert "not allowed with" in capsys.readouterr().err


def test_everything_but_the_trainer_works_without_mpi():
    code = "import sys, mpicoll.train, mpicoll.cli.train; assert 'mpi4py' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
