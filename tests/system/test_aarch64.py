"""The package on an emulated AArch64, with NumPy, mpi4py and MPICH for it: bits of reductions, and calls on ranks.

The emulator gives memory the order of this machine. Real AArch64 reorders more, which nothing here shows.
"""

import re
import shutil
import subprocess
import sys
import zipfile

import pytest

from tests.support.compiling import LIBRARY, compiled
from tests.support.launching import ROOT, environment, installations
from tests.support.launching import completed as run

pytestmark = pytest.mark.thorough
CROSS = "aarch64-linux-gnu-gcc"
TOOLS = (CROSS, "qemu-aarch64", "apt-get", "dpkg")
#: of Debian, besides Python itself
LIBRARIES = ["libc6", "zlib1g", "libexpat1", "libffi8", "libgcc-s1", "libstdc++6", "libbz2-1.0", "liblzma5", "libuuid1"]
WHEELS = ["numpy", "mpi4py", "mpich", "ml_dtypes", "pytest", "pluggy", "iniconfig", "packaging", "pygments"]


def download(place):
    """Debian's Python for AArch64 in root/, and packages for it in site/; the version of Python."""
    (place / "apt/lists/partial").mkdir(parents=True)
    (place / "apt/cache/archives/partial").mkdir(parents=True)
    (place / "apt.conf").write_text(
        'APT::Architecture "arm64"; APT::Architectures {"arm64";}; APT::Sandbox::User "root"; Dir::State::status "/dev/null"; '
        f'Dir::State "{place}/apt"; Dir::State::lists "{place}/apt/lists"; Dir::Cache "{place}/apt/cache";'
    )
    apt = {"cwd": place / "apt", "env": {**environment(), "APT_CONFIG": str(place / "apt.conf")}}
    run("apt-get", "update", **apt)
    version = re.search(r"Depends: python(3\.\d+)$", run("apt-cache", "depends", "python3", **apt), re.MULTILINE)[1]
    python = [f"python{version}-minimal", f"libpython{version}-minimal", f"libpython{version}-stdlib"]
    run("apt-get", "download", *python, *LIBRARIES, **apt)
    for package in (place / "apt").glob("*.deb"):
        run("dpkg", "-x", package, place / "root")
    platforms = [word for glibc in (17, 27, 28) for word in ("--platform", f"manylinux_2_{glibc}_aarch64")]
    run(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--python-version", version,
        *platforms, "--platform", "manylinux2014_aarch64", "--dest", place / "wheels", *WHEELS)  # fmt: skip
    for wheel in (place / "wheels").iterdir():
        zipfile.ZipFile(wheel).extractall(place / "site")
    return version


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    """The words of a command that is Python on AArch64, which finds the package; and the clone that it is in."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)}")
    place = tmp_path_factory.mktemp("aarch64")
    try:
        version = download(place)
    except (AssertionError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"Python or packages for AArch64 could not be downloaded: {str(error)[-500:]}")
    clone = place / "clone"
    run("git", "-c", "safe.directory=*", "clone", "-q", ROOT, clone)
    compiled(CROSS, clone / "mpicoll/_engine.abi3.so", *LIBRARY)
    root = place / "root"
    [mpich] = (place / "site").glob("mpich-*.data/data/lib")
    paths = {
        "LD_LIBRARY_PATH": f"{mpich}:{root}/usr/lib/aarch64-linux-gnu",
        "PYTHONPATH": f"{place}/site:{clone}",
    }
    variables = [word for name, value in paths.items() for word in ("-E", f"{name}={value}")]
    return ["qemu-aarch64", "-L", root, *variables, root / f"usr/bin/python{version}"], clone


def test_its_bits_are_those_of_numpy_there(emulated):
    python, clone = emulated
    words = ["-q", "-p", "no:faulthandler", "-o", "addopts=", "tests/unit/test_engine.py", "-k", "bits or requests or fields"]
    printed = run(*python, "-m", "pytest", *words, cwd=clone)
    assert int(re.search(r"(\d+) passed", printed)[1]) > 250 and "skipped" not in printed


@pytest.mark.parametrize("ranks", [1, 2])
def test_calls_on_ranks(emulated, ranks):
    python, clone = emulated
    launchers = [one.mpiexec for one in installations() if one.name == "mpich"]
    if ranks > 1 and not launchers:
        pytest.skip("no mpiexec of MPICH")
    launcher = [launchers[0], "-n", ranks] if ranks > 1 else []
    # the emulator has no process_vm_readv
    env = environment(MPIR_CVAR_CH4_CMA_ENABLE="0")
    printed = run(*launcher, *python, "-m", "tests.support.aarch64_rank", cwd=clone, env=env)
    told = [f"aarch64: rank {rank} of {ranks}, mpicoll._engine, wrong: 0" for rank in range(ranks)]
    assert sorted(printed.splitlines()) == told
