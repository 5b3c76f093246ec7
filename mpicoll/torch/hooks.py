"""Communication hooks of DistributedDataParallel."""

# PyTorch compares the annotations of a hook with its own classes: here they are no strings

from collections.abc import Callable
from typing import Any, Optional, get_args

from ..algorithms import AllreduceName
from ..codes import CompressionName
from ..support.checks import check, check_word
from ..support.optional import require

torch = require("torch", "the backend of torch.distributed")


def compression_hook(
    compression: CompressionName,
    error_feedback: bool = False,
    *,
    algorithm: Optional[AllreduceName] = None,
) -> Callable[..., Any]:
    """A hook for ``DistributedDataParallel.register_comm_hook`` that sends gradients in codes.

    Gradients become their averages over the ranks, with the same bits on all. Parameters of one
    dimension, such as biases, are averaged exactly. For gradients in host memory.

    Parameters
    ----------
    compression : {"int8", "int4", "bfloat16", "float16"}
        The codes, as in the calls of `Communicator`.
    error_feedback : bool
        Add to each step's gradients what the codes of this rank lost in the steps before. That
        takes two float32 vectors of all parameters on each rank, and is in no checkpoint.
    algorithm : str, optional
        Of the reductions, with error_feedback "pairwise" alone. Without it, nothing is compressed
        where all ranks share a node, which it would slow down.

    Returns
    -------
    callable
        The hook. Its state is the process group, None for the default one, which must be
        mpicoll's. Each module needs a hook of its own.

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
    averaging = None

    def mpicoll_compression_hook(
        state: Any, bucket: torch.distributed.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        nonlocal averaging
        if averaging is None:
            from .averaging import Averaging  # it needs MPI, which the process group has started

            averaging = Averaging(compression, error_feedback, algorithm)
        group = torch.distributed.group.WORLD if state is None else state
        return averaging.begin(group, bucket)

    return mpicoll_compression_hook
