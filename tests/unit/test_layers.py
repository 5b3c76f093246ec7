"""The rooms of the package import one another in one direction, and what needs no MPI runs without it.

A room is a folder of the package or a file beside its folders. `docs/architecture.md` lists them in order: a room imports
only rooms before it.
"""

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import mpicoll
from tests.support.launching import ROOT

PACKAGE = Path(mpicoll.__file__).parent
#: rooms in their order, each with what the page says of it
LISTED = dict(re.findall(r"^- `([\w/]+)(?:/|\.py)` (.*)$", (ROOT / "docs/architecture.md").read_text(), re.MULTILINE))
ORDER = [path.replace("/", ".") for path in LISTED]
WITHOUT_MPI = ("errors", "schedule", "collectives", "algorithms", "verify", "binding", "simulate", "cluster", "reports",
               "support.units", "support.settings", "support.checks", "support.quirks", "train.options",
               "cli.list", "cli.show", "cli.verify", "cli.simulate", "cli.userfile", "cli.cluster", "cli.diagnose")


def modules():
    """Path of every module of the package, by its dotted name below `mpicoll`."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


MODULES = dict(modules())
ROOMS = {name for name, path in MODULES.items() if path.name == "__init__.py" or "." not in name} - {""}


def room_of(name):
    """The room that a dotted name below `mpicoll` lies in; '' for the package itself."""
    while name and name not in ROOMS:
        name = name.rpartition(".")[0]
    return name


def imported(name):
    """The absolute names that a module imports anywhere in it, also inside functions."""
    path = MODULES[name]
    package = ["mpicoll", *filter(None, name.split("."))]
    package = package if path.name == "__init__.py" else package[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[:len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{source}.{alias.name}" for alias in node.names)


def of_the_package(name):
    """The names below `mpicoll` that a module imports."""
    return [used.removeprefix("mpicoll.") for used in imported(name) if used.startswith("mpicoll.")]


def rooms_used(room):
    """The other rooms that a room imports."""
    names = [used for name in MODULES if room_of(name) == room for used in of_the_package(name)]
    return {room_of(used) for used in names} - {room, ""}


def test_the_page_lists_each_room_with_the_first_line_of_its_docstring():
    first_lines = {room: ast.get_docstring(ast.parse(MODULES[room].read_text())).splitlines()[0] for room in ROOMS}
    assert dict(zip(ORDER, LISTED.values())) == first_lines


@pytest.mark.parametrize("room", ORDER)
def test_a_room_imports_only_rooms_before_it(room):
    assert rooms_used(room) <= set(ORDER[:ORDER.index(room)])


def test_other_rooms_are_entered_by_their_faces():
    """`from ..execute import bind`, not `from ..execute.binder import bind`; the modules of support stand for themselves."""
    for name in MODULES:
        for used in of_the_package(name):
            room = room_of(used)
            if room and room != room_of(name) and room not in ("support", "cli") and not room_of(name).startswith(room):
                face = import_module(f"mpicoll.{room}")
                assert used == room or hasattr(face, used.removeprefix(f"{room}.")), f"{name} imports {used}"


@pytest.mark.parametrize("module", ["mpicoll", *(f"mpicoll.{name}" for name in WITHOUT_MPI)])
def test_schedules_and_proofs_need_neither_mpi_nor_numpy(module):
    code = f"import sys, {module}; print({{'mpi4py', 'numpy', 'cupy'}} & {{name.split('.')[0] for name in sys.modules}})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


#: what takes long to load and no program needs at its start
LATER = {"bz2", "difflib", "lzma", "secrets", "socket", "statistics", "subprocess", "tempfile", "uuid", "numpy.typing",
         "mpicoll.bench", "mpicoll.measure", "mpicoll.cli", "mpicoll.train", "mpicoll.verify", "mpicoll.support.child_job"}


def test_a_communicator_is_made_without_what_few_programs_need():
    code = "import sys, numpy; from mpi4py import MPI; before = set(sys.modules); import mpicoll; "
    code += "mpicoll.Communicator(MPI.COMM_WORLD); print(*(set(sys.modules) - before))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "mpicoll.communicator" in result.stdout.split()
    assert not LATER & set(result.stdout.split())


def test_only_the_gpu_room_and_the_choice_of_a_device_import_cupy():
    using = {name for name in MODULES if any(used.split(".")[0] == "cupy" for used in imported(name))}
    assert using <= {"gpu.device", "support.gpus"}


def test_no_submodule_shares_a_public_name():
    public = set(mpicoll.__all__) - set(mpicoll._SUBMODULES)
    assert public.isdisjoint(name.split(".")[0] for name in MODULES)


def test_public_names_are_there():
    loading_mpi = {"Communicator", "Explanation", "Plan", "Request", "install_abort_hook", "use_local_device"}
    for name in set(mpicoll.__all__) - loading_mpi:
        assert getattr(mpicoll, name) is not None
    assert sorted(mpicoll.__all__) == dir(mpicoll)
    assert not hasattr(mpicoll, "nonsense")
