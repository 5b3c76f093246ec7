"""How the commands start MPI: what its library tells the launcher does not depend on what Python imported."""

import subprocess

import pytest

from tests.support.launching import PATIENCE, environment, installations

MPICH = [found for found in installations() if found.name == "mpich"]
TEXT = b"left by Python; "
#: after the first import of the command line or of NumPy, freed memory of many sizes is full of this text
DIRTY = f"""
import ctypes, sys
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name in ("mpicoll.cli", "numpy"):
            sys.meta_path.remove(self)
            blocks = []
            for size in [*range(16, 2048, 16), *range(2048, 120_000, 1024)]:
                for _ in range(8):
                    block = libc.malloc(size)
                    ctypes.memmove(block, {TEXT} * (size // {len(TEXT)} + 1), size)
                    blocks.append(block)
            for block in blocks[::2]:  # not all: malloc would return them to the system
                libc.free(block)

sys.meta_path.insert(0, Finder())
"""


@pytest.mark.thorough
@pytest.mark.skipif(not MPICH, reason="MPICH is not installed: pip install 'mpicoll[mpich]'")
@pytest.mark.parametrize("command", ["mpicoll info", "mpicoll train --steps 1 --data synthetic:100,4,2"])
def test_no_old_memory_goes_to_the_launcher(command, tmp_path):
    """MPICH 5.0.2 over UCX publishes bytes that it never wrote. SLURM's pmi2 refuses them where they have grown too long."""
    (tmp_path / "sitecustomize.py").write_text(DIRTY)
    env = environment(MPIR_CVAR_CH4_NETMOD="ucx", MPIR_CVAR_NOLOCAL="1")
    env["PYTHONPATH"] = f"{tmp_path}:{env['PYTHONPATH']}"
    words = [MPICH[0].mpiexec, "-verbose", "-n", "2", MPICH[0].python, "-m", *command.split()]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    told = [line for line in (done.stdout + done.stderr).splitlines() if "cmd=put" in line or "cmd=mput" in line]
    assert told and not [line for line in told if TEXT.hex().upper() in line]
