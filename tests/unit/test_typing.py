"""Type checkers accept the public modules and a correct program, and find eleven mistakes; all is documented."""

import ast
import inspect
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

import mpicoll
from mpicoll import algorithms, collectives
from mpicoll.algorithms import names

ROOT = Path(mpicoll.__file__).resolve().parents[1]
PROGRAMS = Path(__file__).resolve().parents[1] / "support" / "typing"
CORRECT, MISTAKES = PROGRAMS / "correct.py", PROGRAMS / "mistakes.py"
#: `algorithm` of each collective
NAMES = {
    "allreduce": names.AllreduceName,
    "reduce_scatter": names.ReduceScatterName,
    "allgather": names.AllgatherName,
    "alltoall": names.AlltoallName,
    "bcast": names.BcastName,
    "reduce": names.ReduceName,
    "scatter": names.ScatterName,
    "gather": names.GatherName,
    "scan": names.ScanName,
    "exscan": names.ExscanName,
    "barrier": names.BarrierName,
}

BLOCKING = ("Bcast", "Scatter", "Scatterv", "Gather", "Gatherv", "Allgather", "Allgatherv", "Alltoall", "Alltoallv",
            "Reduce", "Allreduce", "Reduce_scatter_block", "Reduce_scatter", "Scan", "Exscan", "Barrier",
            "Alltoallw")  # fmt: skip
#: the blocking method of each non-blocking and each persistent one
FORMS = {form: name for name in BLOCKING for form in (f"I{name.lower()}", f"{name}_init")}


def run(*command):
    return subprocess.run([sys.executable, "-m", *map(str, command)], cwd=ROOT, capture_output=True, text=True)


@cache
def mypy():
    """What mypy says of the package and both programs: {file: lines}."""
    files = run("mypy", "--no-color-output", "--show-error-codes", "--no-error-summary", "mpicoll", CORRECT, MISTAKES)
    assert files.returncode in (0, 1), files.stdout + files.stderr
    found = {}
    for line in files.stdout.splitlines():
        path, number, kind, _ = line.split(":", 3)
        if kind.strip() == "error":
            found.setdefault((ROOT / path).resolve(), set()).add(int(number))
    return found, files.stdout


@cache
def pyright():
    """The same of pyright, as basedpyright brings it: with its own node, so that nothing is fetched when it runs."""
    found, text = {}, []
    for files in ((), (CORRECT, MISTAKES)):  # first those that pyproject.toml names
        done = run("basedpyright", "--pythonpath", sys.executable, "--outputjson", *files)
        assert done.returncode in (0, 1), done.stdout + done.stderr
        for one in json.loads(done.stdout)["generalDiagnostics"]:
            if one["severity"] == "error":
                line = one["range"]["start"]["line"] + 1
                text.append(f"{one['file']}:{line}: {one['message']}")
                found.setdefault(Path(one["file"]).resolve(), set()).add(line)
    return found, "\n".join(text)


@pytest.mark.thorough
@pytest.mark.parametrize("checker", [mypy, pyright])
def test_public_modules_and_a_correct_program_pass(checker):
    found, text = checker()
    assert set(found) <= {MISTAKES}, text


@pytest.mark.thorough
@pytest.mark.parametrize("checker", [mypy, pyright])
def test_ten_mistakes_are_found_in_ten_lines(checker):
    wanted = {number for number, line in enumerate(MISTAKES.read_text().splitlines(), 1) if "  # " in line}
    found, text = checker()
    assert len(wanted) == 11 and found.get(MISTAKES) == wanted, text


@pytest.mark.parametrize("collective", NAMES)
def test_names_for_type_checkers_are_those_of_the_registry(collective):
    literal, name = get_args(NAMES[collective])
    declared = list(algorithms.declared(getattr(algorithms, collective), collective))
    assert set(get_args(literal)) == {one.name for one in declared}.union(algorithms.library_names(collective))
    assert name is names.AlgorithmName


def test_collectives_for_type_checkers_are_those_there_are():
    assert set(get_args(collectives.CollectiveName)) == set(collectives.COLLECTIVES) == set(NAMES)
    started = {f"i{name}" for name in collectives.COLLECTIVES}
    known = set(get_args(collectives.CallName))
    assert known >= {*collectives.COLLECTIVES, *started}
    for name in known:  # as mpi4py spells its methods, or without capitals
        assert hasattr(mpicoll.Communicator, name.capitalize())
        assert collectives.of_call(name)[1] == name.lower().startswith("i")


def test_lazy_names_are_those_that_type_checkers_see():
    tree = ast.parse(Path(mpicoll.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    assert {name: home for name, home in seen.items() if home} == mpicoll._HOME
    assert {name for name, home in seen.items() if not home} == set(mpicoll._SUBMODULES)
    assert {*seen, "__version__"} == set(mpicoll.__all__)


def public_functions():
    from mpicoll.communicator import Communicator
    from mpicoll.schedule import bounds, pieces, renamed, rounds
    from mpicoll.simulate import predict

    own = [value for kind in Communicator.__mro__ if kind.__module__.startswith("mpicoll") for value in vars(kind).values()]
    methods = [value for value in own if inspect.isfunction(value) and not value.__name__.startswith("_")]
    return [*methods, bounds, pieces, renamed, rounds, predict, mpicoll.list_algorithms, mpicoll.register,
            mpicoll.verify.check, mpicoll.verify.cases]


@pytest.mark.parametrize("function", public_functions(), ids=lambda function: function.__qualname__)
def test_public_functions_are_annotated_and_documented(function):
    parameters = [name for name in inspect.signature(function).parameters if name not in ("self", "arguments", "keywords")]
    assert {*parameters, "return"} <= set(function.__annotations__)
    assert function.__doc__
    if "segment_bytes" in parameters and function.__name__ not in FORMS:  # a blocking collective, or `explain`
        headings = {line.strip() for line in function.__doc__.splitlines()}
        assert {"Parameters", "Raises"} <= headings
        documented = function.__doc__.partition("Parameters")[2].partition("Raises")[0]
        assert all(name in documented for name in parameters)


@pytest.mark.parametrize("form", FORMS)
def test_a_form_has_the_parameters_of_the_blocking_method_and_one_line_that_names_it(form):
    method, blocking = getattr(mpicoll.Communicator, form), getattr(mpicoll.Communicator, FORMS[form])
    kind = "Persistent" if form.endswith("_init") else "Non-blocking"
    assert method.__doc__ == f"{kind} `{FORMS[form]}`; see there."
    parameters = dict(inspect.signature(method).parameters)
    assert ("info" in parameters) == (kind == "Persistent")
    parameters.pop("info", None)
    assert parameters == dict(inspect.signature(blocking).parameters)
