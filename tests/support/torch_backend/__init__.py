"""What the tests of the PyTorch backend run on ranks: PyTorch's own suite, and trainings that must equal one process."""

import subprocess
from functools import lru_cache

from tests.support.launching import environment


def require_torch(installation):
    """Skip the test where PyTorch is not installed beside that MPI."""
    import pytest  # not on ranks, where frameworks may be installed without it

    if not _has_torch(installation.python):
        pytest.skip(f"PyTorch is not installed beside {installation.name}: pip install 'mpicoll[torch]' expecttest")


@lru_cache
def _has_torch(python):
    code = "import sys, importlib.util; sys.exit(not importlib.util.find_spec('torch'))"
    return subprocess.run([python, "-c", code], env=environment()).returncode == 0
