"""What may import what: dependencies point one way, and what needs no MPI runs without it."""

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import mpicoll

PACKAGE = Path(mpicoll.__file__).parent
#: each layer may import those before it; modules that are not named here may not join them the wrong way round
LAYERS = [
    {"errors"}, {"units", "settings"}, {"schedule"}, {"collectives", "dataflow"}, {"algorithms", "network"},
    {"symbols", "costs", "ops", "layout", "memory"}, {"verify", "simulate", "buffers", "topology"},
    {"execute", "wire", "table"}, {"select", "work"},
    {"workload"}, {"measure"}, {"probe"}, {"call", "explain", "tune"}, {"arguments"}, {"communicator"}, {"train"}, {"cli"},
]
WITHOUT_MPI = ("errors", "units", "settings", "schedule", "collectives", "dataflow", "algorithms", "symbols", "verify", "costs",
               "network", "simulate", "cli.list", "cli.show", "cli.verify", "cli.simulate", "cli.userfile")


def modules():
    """Path of every module of the package, by its name below `mpicoll`."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imported(name, path):
    """The absolute names that a module imports anywhere in it, also inside functions."""
    package = ["mpicoll", *name.split(".")] if name else ["mpicoll"]
    package = package if path.name == "__init__.py" else package[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[:len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{source}.{alias.name}" for alias in node.names)


def units_used(unit):
    """The files or folders directly in mpicoll that `unit` imports, itself left out."""
    names = [used for name, path in modules() if name.split(".")[0] == unit for used in imported(name, path)]
    direct = {used.split(".")[1] for used in names if used.startswith("mpicoll.")}
    return {used for used in direct if find_spec(f"mpicoll.{used}")} - {unit}


def reached(unit):
    """All that `unit` imports, directly or through others."""
    found, todo = set(), [unit]
    while todo:
        new = units_used(todo.pop()) - found
        found |= new
        todo += new
    return found


@pytest.mark.parametrize("unit", sorted({name.split(".")[0] for name, _ in modules() if name}))
def test_dependencies_point_one_way(unit):
    assert unit not in reached(unit), "imports itself through others"
    level = next((number for number, layer in enumerate(LAYERS) if unit in layer), None)
    if level is not None:
        assert reached(unit).isdisjoint(set().union(*LAYERS[level:]) - {unit})


@pytest.mark.parametrize("module", ["mpicoll", *(f"mpicoll.{name}" for name in WITHOUT_MPI)])
def test_schedules_and_proofs_need_neither_mpi_nor_numpy(module):
    code = f"import sys, {module}; print({{'mpi4py', 'numpy', 'cupy'}} & {{name.split('.')[0] for name in sys.modules}})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


def test_only_buffers_and_the_choice_of_a_device_import_cupy():
    using = {name for name, path in modules() if any(used.split(".")[0] == "cupy" for used in imported(name, path))}
    assert using <= {"buffers", "train.node"}


def test_no_submodule_shares_a_public_name():
    public = set(mpicoll.__all__) - set(mpicoll._SUBMODULES)
    assert public.isdisjoint(name.split(".")[0] for name, _ in modules())


def test_public_names_are_there():
    for name in set(mpicoll.__all__) - {"Communicator", "install_abort_hook"}:  # those load MPI
        assert getattr(mpicoll, name) is not None
    assert sorted(mpicoll.__all__) == dir(mpicoll)
    assert not hasattr(mpicoll, "nonsense")
