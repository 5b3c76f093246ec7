"""Optional packages, imported when they are needed."""

from importlib import import_module

from ..errors import LaunchError


def require(name):
    """The module `name`, or a LaunchError that says how to install it."""
    try:
        return import_module(name)
    except ImportError as error:
        package = {"sklearn.datasets": "scikit-learn"}.get(name, name)
        extra = {"torch": "torch", "ml_dtypes": "bf16", "cupy": "cuda13"}.get(name, "train")
        remedy = f'install it with: pip install "mpicoll[{extra}]"'
        raise LaunchError(f"training needs {package} ({error}); {remedy}") from error
