"""Options of `mpicoll train`: read, and refused, without MPI."""

import argparse
import subprocess
import sys

import pytest

from mpicoll.cli import train as command
from mpicoll.errors import ArgumentError


def parse(*words):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(words)


def test_config_holds_what_will_be_used():
    assert command._config(parse())["epochs"] == 15
    config = command._config(parse("--steps", "7", "--hidden", "32, 16"))
    assert (config["epochs"], config["steps"], config["hidden"]) == (None, 7, [32, 16])
    assert command._config(parse("--hidden", ""))["hidden"] == []


@pytest.mark.parametrize("text", ["a", "512,,512", "1.5", "-3", "512;512"])
def test_hidden_must_be_numbers(text):
    with pytest.raises(ArgumentError, match="--hidden: expected widths such as 512,512"):
        command._config(parse(f"--hidden={text}"))


def test_epochs_and_steps_exclude_each_other(capsys):
    with pytest.raises(SystemExit):
        parse("--epochs", "1", "--steps", "1")
    assert "not allowed with" in capsys.readouterr().err


def test_everything_but_the_trainer_works_without_mpi():
    code = "import sys, mpicoll.train, mpicoll.cli.train; assert 'mpi4py' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
