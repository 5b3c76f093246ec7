"""Communication hooks of DistributedDataParallel."""

# PyTorch compares the annotations of a hook with its own classes: here they are no strings

from collections.abc import Mapping
from typing import Any, Optional, get_args

from ..algorithms import AllreduceName
from ..codes import CompressionName
from ..support.checks import check, check_word
from ..support.optional import require

torch = require("torch", "the backend of torch.distributed")


class CompressionHook:
    """A hook that sends gradients in codes, with its residuals; made by `compression_hook`."""

    def __init__(
        self, compression: CompressionName, error_feedback: bool, algorithm: Optional[AllreduceName]
    ) -> None:
        # PyTorch asks a hook for the names that a function has
        self.__name__ = "mpicoll_compression_hook"
        self.__qualname__ = self.__name__
        self._options = (compression, error_feedback, algorithm)
        self._made: Any = None

    @property
    def _averaging(self) -> Any:
        if self._made is None:
            from .averaging import Averaging  # it needs MPI, which the process group has started

            self._made = Averaging(*self._options)
        return self._made

    def __call__(
        self, state: Any, bucket: torch.distributed.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        """Begin to average a bucket. state: the process group."""
        group = torch.distributed.group.WORLD if state is None else state
        future: torch.futures.Future[torch.Tensor] = self._averaging.begin(group, bucket)
        return future

    def state_dict(self, module: torch.nn.Module) -> dict[str, torch.Tensor]:
        """What codes have lost of the gradients of a module on this rank. Local.

        Parameters
        ----------
        module : torch.nn.Module
            The one that has this hook, in DistributedDataParallel or by itself.

        Returns
        -------
        dict
            {name of a parameter: float32 tensor of its shape}. Every rank has its own, for a file
            of its own. Empty before the first backward, and without error feedback.
        """
        lost = self._averaging.lost()
        return {
            name: torch.from_numpy(lost[id(parameter)].copy()).view(parameter.shape)
            for name, parameter in _named(module).items()
            if id(parameter) in lost
        }

    def load_state_dict(
        self, module: torch.nn.Module, state_dict: Mapping[str, torch.Tensor]
    ) -> None:
        """Go on with what `state_dict` gave, of this rank or another one. Local.

        What is loaded on some rank is added to its next gradients: where there are fewer ranks, add
        up the tensors of several.

        Raises
        ------
        ArgumentError
            The module has no such parameters.
        """
        named = _named(module)
        lost = {}
        for name, values in state_dict.items():
            shape = tuple(named[name].shape) if name in named else None
            check(f"residuals of {name}", tuple(values.shape), tuple(values.shape) == shape,
                  "no parameter of that name" if shape is None else f"shape {shape}")  # fmt: skip
            flat = values.detach().to(torch.float32).reshape(-1)
            lost[id(named[name])] = flat.numpy().copy()
        self._averaging.restore(lost)


def _named(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """The parameters of a module by the names that they have without DistributedDataParallel."""
    if isinstance(module, torch.nn.parallel.DistributedDataParallel):
        module = module.module
    return dict(module.named_parameters())


def compression_hook(
    compression: CompressionName,
    error_feedback: bool = False,
    *,
    algorithm: Optional[AllreduceName] = None,
) -> CompressionHook:
    """A hook for ``DistributedDataParallel.register_comm_hook`` that sends gradients in codes.

    Gradients become their averages over the ranks, with the same bits on all. Parameters of one
    dimension, such as biases, are averaged exactly. For gradients in host memory.

    Parameters
    ----------
    compression : {"int8", "int4", "bfloat16", "float16"}
        The codes, as in the calls of `Communicator`.
    error_feedback : bool
        Add to each step's gradients what the codes of this rank lost in the steps before. That
        takes two float32 vectors of all parameters on each rank.
    algorithm : str, optional
        Of the reductions, with error_feedback "pairwise" alone. Without it, nothing is compressed
        where all ranks share a node, which it would slow down.

    Returns
    -------
    CompressionHook
        The hook. Its state is the process group, None for the default one, which must be
        mpicoll's. Each module needs a hook of its own. For checkpoints it has
        ``state_dict(module)`` and ``load_state_dict(module, state_dict)``.

    Raises
    ------
    ArgumentError
        For an unknown compression, or an algorithm that does not fit. In backward, where the
        process group is not mpicoll's, or gradients are on a device.

    Examples
    --------
    >>> model = DistributedDataParallel(module)  # doctest: +SKIP
    >>> model.register_comm_hook(
    ...     None, mpicoll.torch.compression_hook("int8", error_feedback=True)
    ... )  # doctest: +SKIP
    """
    check_word("compression", compression, get_args(CompressionName))
    check("error_feedback", error_feedback, error_feedback in (False, True), "False or True")
    good = not error_feedback or algorithm in (None, "pairwise")
    check("algorithm", algorithm, good, "pairwise with error_feedback")
    return CompressionHook(compression, error_feedback, algorithm)
