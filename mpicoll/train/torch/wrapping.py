"""`wrap`, which makes a PyTorch module data-parallel.

model = wrap(module, comm, "zero2", optimizer=torch.optim.AdamW, lr=1e-3)
for features, labels in batches_of_this_rank:
    model.optimizer.zero_grad()
    loss_function(model(features), labels).backward()
    model.optimizer.step()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ...communicator import wrapped
from ...support.checks import agree, check, text_of, together
from ...support.tensors import torch
from ..options import Options, Overlap, Reduction
from ..parallel import fitted
from .data_parallel import DataParallel, is_wrapped

if TYPE_CHECKING:
    from mpi4py import MPI

    from ...algorithms import AllreduceName
    from ...codes import CompressionName


def wrap(
    module: torch.nn.Module,
    comm: MPI.Intracomm,
    strategy: Literal["allreduce", "zero1", "zero2"] = "allreduce",
    *,
    optimizer: type[torch.optim.Optimizer] | None = None,
    overlap: Overlap = "all",
    bucket_bytes: int | None = None,
    parameter_bucket_bytes: int | None = None,
    reduction: Reduction | None = None,
    accumulate: int = 1,
    clip_norm: float | None = None,
    algorithm: AllreduceName | None = None,
    compression: CompressionName | None = None,
    parameter_compression: CompressionName | None = None,
    error_feedback: bool = False,
    **optimizer_options: Any,
) -> DataParallel:
    """Make a module data-parallel: all ranks have the same parameters after each step.

    Every rank computes on its rows.

    Gradients are means over the ranks: with a loss that is a mean over local rows, give all ranks
    as many rows. Collective.

    Parameters
    ----------
    module : torch.nn.Module
        Built alike on every rank, its parameters dense and on one device; rank 0's parameters and
        buffers are broadcast. It is wrapped once, and which parameters require gradients stays.
    comm : Communicator or mpi4py.MPI.Intracomm
        Who trains together.
    strategy : {"allreduce", "zero1", "zero2"}
        All ranks update everything; or each updates its shard (zero1), and keeps only its shard of
        the gradients, too.
    optimizer : subclass of torch.optim.Optimizer, optional
        Made with `optimizer_options`. For zero1 and zero2, on this rank's shard: its update must be
        element by element, and all parameters have the same options.
    overlap, bucket_bytes, parameter_bucket_bytes, reduction, algorithm, compression,
    parameter_compression, error_feedback
        As of `mpicoll.train.options.Options`. With zero1 and zero2 the residuals of error feedback
        are part of the optimizer's `state_dict`; with allreduce see
        `DataParallel.feedback_state_dict`. The shard that a rank keeps uncompressed has the
        module's type, and is part of the optimizer's state, too.
    accumulate : int
        Above 1 lets zero2 add micro-batches up (see `DataParallel.no_sync`).
    clip_norm : float, optional
        The largest norm of all gradients together, with zero1 and zero2.
    **optimizer_options
        For the optimizer, such as ``lr=1e-3``.

    Returns
    -------
    DataParallel

    Raises
    ------
    ArgumentError
        On every rank, where a value cannot be used or ranks differ.
    LaunchError
        Where PyTorch is missing.

    Notes
    -----
    Cost: bytes that a rank sends per step, of K ranks with N bytes of parameters: 2 (K-1)/K N;
    (A+1) (K-1)/K N with zero2 and A backward passes. At first N for the broadcast.
    """
    comm = wrapped(comm)
    options = Options(
        strategy,
        overlap,
        bucket_bytes,
        parameter_bucket_bytes,
        reduction,
        accumulate,
        clip_norm,
        algorithm=algorithm,
        compression=compression,
        parameter_compression=parameter_compression,
        error_feedback=error_feedback,
    )
    named = [*module.named_parameters(), *module.named_buffers()]
    facts = {
        f"tensor {number} of the module": (
            f"{name} {tuple(tensor.shape)} {tensor.dtype} {tensor.requires_grad}"
        )
        for number, (name, tensor) in enumerate(named)
    }
    made = f"{getattr(optimizer, '__name__', optimizer)}({text_of(optimizer_options)})"
    agree(
        comm, {**facts, "number of tensors": len(named), "the optimizer": made, **options.facts()}
    )
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    together(comm, lambda: _check(trained, options, optimizer, optimizer_options))
    nbytes = sum(parameter.numel() * parameter.element_size() for parameter in trained)
    options = fitted(options, nbytes, comm, trained[0].device.type == "cpu")
    return DataParallel(module, comm, options, optimizer, optimizer_options)


def _check(
    trained: Sequence[torch.nn.Parameter],
    options: Options,
    optimizer: type[torch.optim.Optimizer] | None,
    optimizer_options: Mapping[str, Any],
) -> None:
    """Raise ArgumentError for what is alike on all ranks, and wrong."""
    check(
        "strategy",
        options.strategy,
        options.strategy in ("allreduce", "zero1", "zero2"),
        "allreduce, zero1 or zero2",
    )
    options.check()
    places = sorted({str(parameter.device) for parameter in trained})
    check(
        "module",
        places,
        len(places) == 1,
        "parameters that require gradients, all on one device",
    )
    check(
        "module",
        "parameters of a module that is wrapped",
        not any(is_wrapped(parameter) for parameter in trained),
        "one that is not wrapped: go on with what wrap() returned, or wrap "
        "copy.deepcopy(model.module)",
    )
    dtypes = {parameter.dtype for parameter in trained}
    check(
        "module",
        dtypes,
        all(dtype.is_floating_point for dtype in dtypes),
        "parameters of floating types",
    )
    if options.sharded:
        check(
            "optimizer",
            optimizer,
            optimizer is not None,
            f"a class of torch.optim, which {options.strategy} shards",
        )
    else:
        norm = options.clip_norm
        check(
            "clip_norm",
            norm,
            norm is None,
            "None with allreduce; call torch.nn.utils.clip_grad_norm_ before step()",
        )
        unused = optimizer_options if optimizer is None else None
        check("options", unused, not unused, "an optimizer that takes them, or none")
