"""Optional packages, imported when they are needed."""

from importlib import import_module
from types import ModuleType

from ..errors import LaunchError

#: the package and the extra of mpicoll that bring a module, where the one is not named like it, the other not `train`
_PACKAGES = {"sklearn.datasets": "scikit-learn", "matplotlib.figure": "matplotlib", "cupy": "CuPy"}
_EXTRAS = {"torch": "torch", "ml_dtypes": "bf16", "cupy": "cuda13", "matplotlib.figure": "plot"}
_NOTES = {"cupy": " (or cuda12, as your driver is)"}


def require(name: str, purpose: str = "training") -> ModuleType:
    """The module `name`, or a LaunchError that says what it is needed for and how to install it.

    >>> require("math").sqrt(4)
    2.0
    """
    try:
        return import_module(name)
    except ImportError as error:
        package, extra = _PACKAGES.get(name, name), _EXTRAS.get(name, "train")
        remedy = f'install it with: pip install "mpicoll[{extra}]"{_NOTES.get(name, "")}'
        raise LaunchError(f"{purpose} needs {package} ({error}); {remedy}") from error
