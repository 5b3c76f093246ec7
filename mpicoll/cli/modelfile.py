"""The option `--network MODEL.json`: a file of `mpicoll doctor --output`."""

from pathlib import Path

from ..errors import ArgumentError
from ..simulate import ClusterModel, model_from
from ..support.files import named, parse_json


def read_model(path: str) -> ClusterModel:
    """Read a model. Raises ArgumentError, which names the file."""
    try:
        return model_from(parse_json(Path(path).read_bytes()))
    except OSError as error:
        raise ArgumentError(f"--network: cannot read {named(path)} ({error.strerror})") from None
    except ArgumentError as error:
        raise ArgumentError(f"--network {named(path)}: {error}") from None
    except ValueError as error:  # a path with a null byte
        raise ArgumentError(f"--network: cannot read {named(path)} ({error})") from None
