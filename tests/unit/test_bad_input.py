"""Bad input of every command is a sentence and an exit status, never a traceback: whatever the words, whatever the files."""

import contextlib
import copy
import io
import json
import os
import re
import signal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpicoll import cli
from mpicoll.errors import ArgumentError
from mpicoll.select import table
from mpicoll.slurm import gather
from mpicoll.slurm import table as lines_of
from mpicoll.train.checkpoint import format as checkpoint
from tests.support.checkpoints import write_manifest

pytestmark = pytest.mark.usefixtures("registry")

#: {a command: words with which it does little}; the test adds others. What would take long is never among them.
CHEAP = {
    "list": [], "show": ["allreduce", "ring", "--size", "3"], "verify": ["--max-size", "2"],
    "simulate": ["allreduce", "--algorithms", "ring", "--size", "4", "--bytes", "1K"],
    "info": [], "diagnose": ["reports"], "top": ["reports", "--once"],
    "bench": ["--algorithms", "ring", "--sizes", "64", "--repeats", "1"],
    "tune": ["--output", "tuned.json", "--collectives", "bcast", "--sizes", "64", "--segments", "64", "--min-time", "0.001"],
    "train": ["--data", "synthetic:20,3,2", "--hidden", "4", "--batch-size", "8", "--steps", "1", "--resume"],
    "cluster": ["--hosts", "2", "--rate", "1mbit", "--mpi", "mpich"],  # nothing behind `--`, so none is made
    "slurm new": ["train", "--directory", "written"], "slurm check": ["job.sh"], "slurm scaling": ["results"],
}  # fmt: skip
JOB = "#!/bin/bash\n#SBATCH --nodes=2\nsrun python train.py\n"
FILES = {
    "empty": b"", "deep.json": b"[" * 100_000, "closed.json": b"[" * 50_000 + b"]" * 50_000, "digits.json": b"9" * 5000,
    "types.json": b'{"schema": 1, "entries": {"mpi": [[]]}, "links": 3}', "binary": bytes(range(256)), "job.sh": JOB.encode(),
    "objects.npz": b"PK\x05\x06" + bytes(18), "mine.py": b"import mpicoll\n",
}  # fmt: skip
NUMBERS = ["-1", "0", "1.5", "nan", "inf", "-inf", "1e400", "9" * 400, "9" * 5000, "0x10", "9" * 400 + "K", "9" * 400 + "mbit",
           "9" * 400 + "us", "1e", "+", "synthetic:" + "9" * 5000 + ",1,1", "cosine:" + "9" * 5000, "٣", "½"]  # fmt: skip
TEXTS = ["", " ", ",", ":", "-", "1K:", ":1K", "x", "a b", "'", '"', "$(touch x)", "a\nb", "allreduce", "ring,", "\udcff", "…",
         "STRATEGY=$(touch x)", "=", "O", "M8", "S3", "i4,f8", "float16", "complex64", "bool", "land", "results",
         "missing/there", "/", "/dev/null/there", *FILES]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with odd files."""
    directory = tmp_path_factory.mktemp("place")
    for name, content in FILES.items():
        (directory / name).write_bytes(content)
        (directory / "results" / f"strong-{len(name)}").mkdir(parents=True, exist_ok=True)
        (directory / "results" / f"strong-{len(name)}" / "result.json").write_bytes(content)
    (directory / "results" / "weak-2" / "result.json").mkdir(parents=True)
    numbers = signal.SIGTERM, signal.SIGHUP, signal.SIGINT
    handlers = {number: signal.getsignal(number) for number in numbers}
    yield directory
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def in_that_place(empty_directory, place, monkeypatch):
    """The commands run there."""
    monkeypatch.chdir(place)


def options_of(command):
    """(option, whether it takes a value) of a command, as its parser has them."""
    parser = cli.make_parser()
    for word in command.split():
        parser = next(action.choices[word] for action in parser._actions if isinstance(action.choices, dict))
    options = [(action.option_strings[0], action.nargs != 0) for action in parser._actions if action.option_strings]
    return [(name, valued) for name, valued in options if name not in ("--help", "-h", "--slurm")]


def run(*words):
    """(exit status, output, error output) of one command in this process; anything else that it raises is a failure."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors), pytest.raises(SystemExit) as end:
        cli.main(list(words))
    code = end.value.code
    if isinstance(code, str):  # what Python itself does with it
        return 1, output.getvalue(), f"{errors.getvalue()}{code}\n"
    return code or 0, output.getvalue(), errors.getvalue()


def check_said(words, status, output, errors):
    """One line says what is wrong, after argparse's usage; no line is as long as a novel."""
    assert status in (0, 1, 2), (words, errors)
    assert "Traceback" not in errors
    said = [line for line in errors.splitlines() if re.match("mpicoll[a-z ]*: error: ", line)]
    if status == 2:
        assert len(said) == 1 and errors.endswith(said[0] + "\n"), (words, errors)
        assert len(said[0]) < 1200, words


LETTERS = st.characters(exclude_categories=["Nd", "Cs"], exclude_characters="\0")  # no digits: 99999 steps take long
VALUES = st.sampled_from(NUMBERS + TEXTS) | st.text(LETTERS, max_size=6)


@st.composite
def command_lines(draw):
    """A command with what makes it cheap, some options with any values, and now and then a word too many or too few."""
    command = draw(st.sampled_from(sorted(CHEAP)))
    words = list(CHEAP[command])
    for name, valued in draw(st.lists(st.sampled_from(options_of(command) or [("--none", True)]), min_size=1, max_size=3)):
        joined = draw(st.booleans())
        value = draw(VALUES)
        words += [f"{name}={value}"] if valued and joined else [name, value] if valued else [name]
    if draw(st.integers(0, 5)) == 0:
        words.insert(draw(st.integers(0, len(words))), draw(VALUES))
    return [*command.split(), *words]


@pytest.mark.parametrize("words", [["bench", "--algorithms", "ring,nccl"], ["tune", "--output", "new.json", "--nccl"]])
def test_nccl_needs_device_memory(place, words):
    status, output, errors = run(*words)
    assert status == 2 and errors.endswith("nccl needs arrays in device memory: add --device cuda\n")
    check_said(words, status, output, errors)


EXAMPLES = 1000 if os.environ.get("MPICOLL_TEST_ALL") else 75


@pytest.mark.slow
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(command_lines())
def test_any_words(place, words):
    check_said(words, *run(*words))


# ---- files that are JSON, and have something odd in them

ENTRY = {"mpi": "MPICH", "transport": "tcp", "ranks": 4, "nodes": "any", "collective": "allreduce",
         "rules": [{"from": "0", "algorithm": "native"},
                   {"from": "4K", "algorithm": "ring", "segment_bytes": 60000}]}  # fmt: skip
LINK = {"mpi": "MPICH", "transport": "tcp", "alpha": 1e-6, "bandwidth": 1e9, "gamma": 1e-10}
TABLE = {"schema": 1, "environment": {}, "entries": [ENTRY], "links": [LINK]}
RESULT = {"config": {"batch_size": 64}, "report": {"step_s": 0.1}, "environment": {"nodes": 2, "size": 4}}
MANIFEST = {"schema": 1, "step": 3, "meta": {}, "files": [{"bytes": 8, "crc32": 0}],
            "vectors": {"parameters": {"dtype": "float32", "total": 2, "pieces": [[0, 2, 0, 0]]}}}  # fmt: skip
ODD = st.sampled_from([None, True, 0, -1, 1.5, 10**400, float("nan"), float("inf"), "", "x", "9" * 400, "inf", [], {}, [[]],
                       [0] * 4, ["x"], {"x": 1}])  # fmt: skip


def nodes_of(document):
    """(container, key) of all that a document holds."""
    for key in document if isinstance(document, dict) else range(len(document)):
        yield document, key
        if isinstance(document[key], (dict, list)):
            yield from nodes_of(document[key])


@st.composite
def spoilt(draw, document):
    """The document with something in it replaced, left out or added."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        container, key = draw(st.sampled_from(list(map(tuple, nodes_of(document))) or [(document, "x")]))
        if draw(st.integers(0, 3)) == 0 and key in container:
            del container[key]
        else:
            container[key] = copy.deepcopy(draw(ODD))
    return document


@settings(max_examples=300, deadline=None, derandomize=True)
@given(spoilt(TABLE))
def test_any_table(document):
    with contextlib.suppress(ArgumentError):
        table.parse(json.dumps(document), "a table")


@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(spoilt(RESULT), spoilt(RESULT))
def test_any_result(tmp_path, one, other):
    for name, document in (("strong-1", one), ("strong-2", other)):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "result.json").write_text(json.dumps(document))
    rows, missing = gather(tmp_path)
    assert len(rows) + len(missing) == 2 and len(lines_of(rows, missing).splitlines()) == 3


@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(spoilt(MANIFEST))
def test_any_manifest(tmp_path, document):
    """Its checksum is right: somebody made it so, or another version."""
    write_manifest(tmp_path / checkpoint.MANIFEST, document)
    with contextlib.suppress(checkpoint.Damaged):
        found = checkpoint.Checkpoint(tmp_path, checkpoint.read_manifest(tmp_path))
        assert set(found.totals) == set(document["vectors"])


@pytest.mark.parametrize("name", sorted(FILES))
def test_any_file(place, name):
    """As a table to extend, a checkpoint, a script, a data set, a file of algorithms."""
    for words in (["tune", *CHEAP["tune"], "--output", name], ["slurm", "check", name],
                  ["train", *CHEAP["train"], "--data", name], ["verify", "--file", name], ["slurm", "scaling", name],
                  ["train", *CHEAP["train"], "--checkpoint", name]):  # fmt: skip
        content = (place / name).read_bytes()
        check_said(words, *run(*words))
        (place / name).write_bytes(content)
    status, _, errors = run("train", *CHEAP["train"], "--checkpoint", "")
    assert status == 2 and "the name of a directory" in errors


def test_damaged_checkpoints_are_skipped(place):
    for step, content in enumerate(FILES.values()):
        path = place / "checkpoints" / f"step-{step:010d}"
        path.mkdir(parents=True)
        (path / "manifest.json").write_bytes(content)
    status, _, errors = run("train", *CHEAP["train"], "--checkpoint", "checkpoints")
    assert status == 0 and errors.count("is skipped: manifest.json is not the manifest") == len(FILES)
