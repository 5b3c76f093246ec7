"""What is handed out: sdist and wheel are built from a clean clone, hold what they should, and work once installed."""

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support import sanitizing
from tests.support.compiling import LIBRARY, PROGRAM, compiled, environment_of
from tests.support.launching import PATIENCE, ROOT
from tests.support.launching import completed as run

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The directory with both; the wheel is made from the sdist."""
    clone, dist = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("dist")
    run("git", "-c", "safe.directory=*", "clone", "-q", ROOT, clone)
    run(sys.executable, "-m", "build", "--outdir", dist, clone)
    return dist


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The folder of programs of a fresh environment with the wheel, which finds NumPy and mpi4py where this Python does."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, symlinks=True, with_pip=True)
    run(place / "bin/python", "-I", "-m", "pip", "install", "-q", "--no-deps", *built.glob("*.whl"))
    packages = Path(run(place / "bin/python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (packages / "others.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    return place / "bin"


def alone(installed, tmp_path, *words):
    """What a command of the installed package prints, where there is no repository around."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return run(installed / "mpicoll", *words, cwd=tmp_path, env=env)


def test_the_wheel_holds_more_than_python(built):
    [wheel] = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    templates = {f"mpicoll/slurm/templates/{path.name}" for path in (ROOT / "jobs").iterdir()}
    assert {"mpicoll/py.typed", "mpicoll/select/default_table.json", *templates} <= names
    assert not [name for name in names if not name.startswith("mpicoll")]


def test_the_sdist_holds_tests_licence_and_what_tests_read(built):
    [sdist] = built.glob("*.tar.gz")
    names = {name.partition("/")[2] for name in tarfile.open(sdist).getnames()}
    tests = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "SECURITY.md", "setup.cfg"} <= names
    assert {"jobs/launch.sh", "docs/pictures/hosts.svg", "benchmarks/report/tables.py"} <= names
    assert {".ci/run", ".ci/wheels", ".ci/sbom", *tests} <= names


def test_the_installed_package_is_the_one_that_runs(installed, tmp_path):
    code = "import mpicoll, mpicoll.cluster.installation as own; print(mpicoll.__file__, own.SOURCE_TREE)"
    said = run(installed / "python", "-c", code, cwd=tmp_path, env={"PATH": os.environ["PATH"]})
    assert said.startswith(str(installed.parent)) and said.split()[1] == "None"


def test_installed_commands(installed, tmp_path):
    assert "halving_doubling" in alone(installed, tmp_path, "list")
    assert "algorithms proved" in alone(installed, tmp_path, "verify", "--max-size", "4")
    assert "--hosts N --rate R" in alone(installed, tmp_path, "cluster", "--help")


def test_installed_templates(installed, tmp_path):
    alone(installed, tmp_path, "slurm", "new", "train", "--nodes", "2")
    assert "#SBATCH --nodes=2" in (tmp_path / "train_cpu.sbatch").read_text()
    assert (tmp_path / "launch.sh").read_text() == (ROOT / "jobs/launch.sh").read_text()


def test_installed_cluster_says_where_it_looks_for_an_mpi(installed, tmp_path):
    words = ["cluster", "--hosts", "1", "--rate", "none", "--mpi", "mpich", "--python", "missing/python", "--", "true"]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([installed / "mpicoll", *words], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 2 and "mpicoll cluster: error: " in done.stderr
    assert "pip install 'mpicoll[mpich]'` in the current directory" in done.stderr


# ---- the extension, where it cannot be compiled or loaded


musl = pytest.mark.skipif(shutil.which("musl-gcc") is None, reason="no musl-gcc (Debian: musl-tools)")
#: an editable installation of this Python would lend its extension
NOT_EDITABLE = "import sys; sys.meta_path = [finder for finder in sys.meta_path if 'editable' not in repr(finder)]"


def installed_with(tmp_path, compiler):
    """Install with this compiler; return what pip printed, and a function that runs Python on what was installed."""
    clone, target = tmp_path / "clone", tmp_path / "target"
    run("git", "-c", "safe.directory=*", "clone", "-q", ROOT, clone)
    words = ["-m", "pip", "install", "-v", "--no-deps", "--target", target, clone]
    pip = subprocess.run([sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                         env=environment_of(compiler, tmp_path))  # fmt: skip
    assert pip.returncode == 0, pip.stdout

    def python(code, **settings):
        command = [sys.executable, "-c", f"{NOT_EDITABLE}; from mpicoll import engine; {code}"]
        environment = {**os.environ, "PYTHONPATH": str(target), **settings}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE)

    return pip.stdout, target, python


def serves_in_python(python, reason):
    """It computes without the extension, and says why; asked for it, it refuses with the same reason."""
    calls = (
        "import numpy, mpicoll; from mpi4py import MPI; x = numpy.ones(3); "
        "mpicoll.Communicator(MPI.COMM_WORLD).Allreduce(MPI.IN_PLACE, x, algorithm='ring'); "
        "print(engine.status(), x.sum())"
    )
    done = python(calls)
    assert done.returncode == 0, done.stderr
    assert re.search(rf"Status\(extension=None, reason=.*{reason}.*\) 3\.0", done.stdout), done.stdout
    refused = python("engine.require()", MPICOLL_ENGINE="c")
    assert refused.returncode == 1
    told = rf"ImportError: MPICOLL_ENGINE=c: mpicoll\._engine cannot be used .*{reason}"
    assert re.search(told, refused.stderr), refused.stderr


def compiler_without(words, compiler, tmp_path):
    """A compiler that is not told some words, for example where the headers of Python are (those of C it knows)."""
    script = tmp_path / "cc"
    script.write_text(f"""#!/bin/sh
for word; do shift; case $word in {words}) ;; *) set -- "$@" "$word" ;; esac; done
exec {compiler} "$@"
""")
    script.chmod(0o755)
    return script


@pytest.mark.parametrize("lacking", ["compiler", "headers"])
def test_it_installs_without(lacking, tmp_path):
    compiler = compiler_without("-I*", "gcc" if lacking == "headers" else "false", tmp_path)
    printed, target, python = installed_with(tmp_path, compiler)
    assert not list(target.rglob("*.so"))
    assert ("Python.h: No such file" in printed) == (lacking == "headers")
    serves_in_python(python, "No module named 'mpicoll._engine'")


@musl
def test_an_extension_for_another_c_library_is_refused_with_its_reason(tmp_path):
    _, target, python = installed_with(tmp_path, compiler_without("-L*", "musl-gcc", tmp_path))
    assert list(target.rglob("_engine.abi3.so"))
    serves_in_python(python, r"libc\.so")


def test_a_python_without_the_lock_gets_a_wheel_without_the_extension(tmp_path):
    """A free-threaded build has no limited API, and setuptools refuses a wheel for it; here its settings say so."""
    clone = tmp_path / "clone"
    run("git", "-c", "safe.directory=*", "clone", "-q", ROOT, clone)
    free_threaded = "import sysconfig; sysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1; import runpy, sys; "
    build = "sys.argv = ['setup.py', '-q', 'bdist_wheel']; runpy.run_path('setup.py', run_name='__main__')"
    run(sys.executable, "-c", free_threaded + build, cwd=clone)
    [wheel] = (clone / "dist").glob("*.whl")
    assert wheel.name.endswith("-none-any.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]


# ---- the extension, for other machines

CROSS = "aarch64-linux-gnu-gcc"
crossing = pytest.mark.skipif(
    shutil.which(CROSS) is None, reason=f"no {CROSS} (Debian: gcc-aarch64-linux-gnu libc6-dev-arm64-cross)")  # fmt: skip
STRICT = ("-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror")


def named_in_the_bill(bill, made):
    """All files with their digests, and what setup.cfg requires."""
    package = bill["metadata"]["component"]
    digests = {part["name"]: part["hashes"] for part in package["components"]}
    assert digests == {
        name: [{"alg": "SHA-256", "content": hashlib.sha256(data).hexdigest()}] for name, data in made.items()
    }
    assert bill["bomFormat"] == "CycloneDX" and package["licenses"] == [{"expression": "BSD-3-Clause"}]
    required = {part["name"] for part in bill["components"] if part["scope"] == "required"}
    assert required == {"mpi4py", "numpy"}
    assert {"torch", "mpich"} <= {part["name"] for part in bill["components"] if part["scope"] == "optional"}


def test_wheels(tmp_path):
    """One for each architecture whose compiler is here, with the extension; the same bytes each time, of the sdist, too."""
    for name, umask in (("one", 0o022), ("two", 0o077)):
        run(ROOT / ".ci/wheels", tmp_path / name, umask=umask)
    made = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    assert made == {path.name: path.read_bytes() for path in (tmp_path / "two").iterdir()}
    wheels = {name for name in made if name.endswith(".whl")}
    [bill] = [name for name in made if name.endswith(".cdx.json")]
    assert len(made) == len(wheels) + 2  # the sdist, and the bill of materials
    named_in_the_bill(json.loads(made.pop(bill)), made)
    architectures = {platform.machine(), *(["aarch64"] if shutil.which(CROSS) else [])}
    assert {name.rpartition("manylinux_2_17_")[2] for name in wheels} == {f"{one}.whl" for one in architectures}
    for path in (tmp_path / "one").glob("*.whl"):
        machine = zipfile.ZipFile(path).read("mpicoll/_engine.abi3.so")[18]
        assert {62: "x86_64", 183: "aarch64"}[machine] in path.name


@pytest.mark.parametrize("compiler", ["gcc", pytest.param(CROSS, marks=crossing), pytest.param("musl-gcc", marks=musl)])
def test_it_compiles_without_a_warning(compiler, tmp_path):
    assert compiled(compiler, tmp_path / "_engine.so", *LIBRARY, *STRICT).stat().st_size > 10_000


@crossing
@pytest.mark.skipif(shutil.which("qemu-aarch64") is None, reason="no qemu-aarch64 (Debian: qemu-user)")
@pytest.mark.parametrize("ranks", [2, 3])
def test_its_pipes_on_another_processor(ranks, tmp_path):
    """Emulated, so the order of memory is that of this machine: its instructions are executed, and no more is shown."""
    program = compiled(CROSS, tmp_path / "threads", *sanitizing.OPTIONS, *PROGRAM, "-static", f"-I{ROOT / 'mpicoll'}",
                       source=sanitizing.THREADS)  # fmt: skip
    assert run("qemu-aarch64", program, ranks, 1000, sanitizing.PATIENCE) == f"{ranks} ranks, 1000 calls: right\n"
