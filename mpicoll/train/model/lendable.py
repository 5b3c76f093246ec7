"""What models have in common: flat parameters, until a trainer places them elsewhere."""

from __future__ import annotations

from collections.abc import Callable

from ...support.arrays import Array
from ...support.checks import check


class Lendable:
    """Base of the models."""

    #: None where a trainer has them
    _parameters: Array | None
    gradients: Array | None

    def lend(self, read: Callable[[], Array]) -> None:
        """The layers get other views now; `read()` gives a copy of all parameters."""
        self._parameters = None
        self.gradients = None
        self._read = read

    @property
    def is_lent(self) -> bool:
        """Whether its parameters lie in the buffers of a trainer."""
        return self._parameters is None

    def is_lent_by(self, read: Callable[[], Array]) -> bool:
        """Whether `lend` was called last with this function."""
        return self.is_lent and self._read == read

    @property
    def parameters(self) -> Array:
        """All parameters in the order of `tensors`."""
        return self._read() if self._parameters is None else self._parameters

    @parameters.setter
    def parameters(self, values: Array) -> None:
        """For `model.parameters += …`."""
        own = self._parameters
        expected = "a model that no trainer has taken over"
        check("parameters", "those in its buffers", own is not None, expected)
        assert own is not None
        own[...] = values
