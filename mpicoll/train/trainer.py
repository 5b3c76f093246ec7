"""The trainer: one loop over steps and epochs for every strategy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy
from mpi4py import MPI

from ..communicator import Communicator, wrapped
from ..errors import ArgumentError
from ..support.arrays import Array, element_type, module_of
from ..support.checks import agree, check, together
from . import elastic
from .data import Dataset, Sampler
from .history import History
from .model import AnyModel, Arrays, FunctionModel, LossFunction, Model
from .optim import Optimizer
from .options import OptionKeywords, Options, Precision, StrategyName
from .parallel import LocalSteps, ShardsLost, Strategy, fitted
from .run import FitOptions, Run
from .snapshots import Snapshots

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Trainer:
    """Train a model on the ranks of a communicator, with the losses of a single process.

    Up to rounding. Collective.

    Parameters
    ----------
    model : Model or callable
        Built alike on every rank; the first parameters are those of rank 0. Its parameters then
        live in buffers of the trainer. A `Model` (see `mlp`), or a function ``(params, (features,
        labels)) -> (mean loss, gradients)``.
    optimizer : SGD, Adam or AdamW
        Built alike on every rank.
    comm : Communicator or mpi4py.MPI.Intracomm
        Who trains together.
    strategy : {"allreduce", "parameter_server", "zero1", "zero2", "diloco"}
        How the ranks share the work: all update everything; rank 0 updates; each updates its shard
        (zero1), and keeps only its shard of the gradients, too (zero2). With diloco each rank, or
        node, trains by itself for `inner_steps`, between which the ranks average what these have
        changed: losses are then not those of a single process.
    params : dict or sequence of arrays, optional
        What the function trains; of one floating dtype.
    precision : {"float64", "float32", "float16", "bfloat16"}, optional
        Of parameters and gradients in memory and on the wire; by default that of the model. With 16
        bits there are float32 masters, and the arithmetic is float32.
    **options
        The other fields of `mpicoll.train.options.Options`, by name: overlap, bucket_bytes,
        parameter_bucket_bytes, reduction, accumulate, clip_norm, loss_scale, algorithm,
        compression, parameter_compression, error_feedback, reproducible, elastic; of diloco
        inner_steps, fragments, inner, outer_lr, outer_momentum. With elastic `comm` is the
        communicator of those that live.

    Raises
    ------
    ArgumentError
        On every rank, where a value is not usable or the ranks do not have the same ones.
    LaunchError
        On every rank, with elastic, where this MPI ends the job when a rank dies.
    RankFailure
        With elastic, where ranks die while it is made, or, in `fit`, a shard is lost with its copy
        and there is no checkpoint.

    Notes
    -----
    Cost: bytes that a rank sends per step, of K ranks with N bytes of parameters: 2 (K-1)/K N with
    allreduce and zero1; (A+1) (K-1)/K N with zero2 and A micro-batches; with diloco those of
    allreduce in `inner_steps`. With parameter_server rank 0 receives (K-1) N, and sends about
    log2(K) N.

    Examples
    --------
    >>> trainer = Trainer(mlp([64, 32, 10]), Adam(), MPI.COMM_WORLD, "zero1")  # doctest: +SKIP
    >>> trainer.fit(digits(), epochs=10, batch_size=64)  # doctest: +SKIP
    >>> trainer.test_accuracy  # doctest: +SKIP
    0.96
    """

    def __init__(
        self,
        model: Model | LossFunction,
        optimizer: Optimizer,
        comm: MPI.Intracomm,
        strategy: StrategyName = "allreduce",
        *,
        params: Arrays | None = None,
        precision: Precision | None = None,
        **options: Unpack[OptionKeywords],
    ) -> None:
        self.comm = wrapped(comm)
        self.model = together(self.comm, lambda: _understood(model, params, options))
        together(self.comm, lambda: _check_optimizer(optimizer))
        # one that no option allows is found by its check
        stored: Any = precision or self.model.parameters.dtype.name
        self.options = Options(strategy, precision=stored, **options)
        if self.options.reproducible and not self.comm.reproducible:  # the caller's stays as it is
            self.comm = Communicator(self.comm.Dup(), reproducible=True)
        if self.options.elastic:
            together(self.comm, lambda: elastic.require(self.comm, self.model.parameters))
        layers = {
            f"layer {number} of the model": text
            for number, text in enumerate(self.model.describe())
        }
        facts = {
            "the optimizer": repr(optimizer),
            **self.options.facts(),
            "check": self.comm._context.check,
        }
        agree(self.comm, {**layers, **facts})
        together(self.comm, self.options.check)
        wide = (
            self.options.precision
            if self.options.precision in ("float64", "float32")
            else "float32"
        )
        # by another trainer: it takes its values along
        if self.model.parameters.dtype != wide or self.model.is_lent:
            self.model.to(dtype=wide)
        self.optimizer = optimizer
        #: the options before they were fitted to the ranks
        self.asked = self.options
        self._history = History()
        #: the history with which the present fit began
        self._begun = History()
        self.strategy = self._made(self.comm)
        self.optimizer.owned = True

    def _made(self, comm: Communicator) -> Strategy:
        """The strategy on some ranks; its options fit these. Collective."""
        values = self.model.parameters
        nbytes = values.size * element_type(self.asked.precision).itemsize
        self.options = fitted(self.asked, nbytes, comm, module_of(values) is numpy)
        strategy = LocalSteps if self.options.is_local else Strategy
        return strategy(self.model, self.optimizer, comm, self.options)

    @property
    def losses(self) -> list[float]:
        """The loss of each step: the mean over its batch, the same on all ranks."""
        return self._history.losses

    @property
    def epochs(self) -> list[dict[str, Any]]:
        """Costs and results of each epoch.

        `epoch`, `loss`, `test_accuracy`, `seconds`, `compute_s`, `communication_s`, `exposed_s`.
        """
        return self._history.epochs

    @property
    def test_accuracy(self) -> float | None:
        """The part of the test samples classified correctly after the last epoch, or None."""
        return self._history.test_accuracy

    @property
    def stopped(self) -> str | None:
        """The signal that ended the training, "SIGUSR1" or "SIGTERM", or None."""
        return self._history.stopped

    @property
    def params(self) -> dict[str, Array]:
        """The parameters after the last update by name, views of the trainer's buffers. Local.

        Waits for those in flight. What is written to them, alike on all ranks, is where the next
        `fit` begins. With diloco they are those that all ranks have in common: where an exception
        has ended a `fit`, copies that cannot be written to.

        Raises
        ------
        StaleParameters
            Where an exception has ended an update half made: only `fit` with resume goes on then.
            Not after BadGradient, where other parts of that update may have been made.
        """
        return self.strategy.named()

    def state_dict(self) -> dict[str, Any]:
        """The state of the model. Local.

        Returns
        -------
        dict
            `parameters`: copies of all of them by name; `steps`: how many were made. Every rank has
            all of it.
        """
        return {
            "parameters": {name: array.copy() for name, array in self.params.items()},
            "steps": len(self.losses),
        }

    def fit(
        self,
        dataset: Dataset | None = None,
        epochs: int | None = None,
        batch_size: int = 64,
        seed: int = 0,
        steps: int | None = None,
        progress: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int | None = None,
        keep: int = 3,
        resume: bool = False,
        metrics: str | os.PathLike[str] | None = None,
    ) -> None:
        """Train for some epochs, or for some steps across epochs. Collective.

        A second call goes on with parameters and optimizer as they are.

        Parameters
        ----------
        dataset : Dataset
            On every rank; with parameter_server on rank 0, others may pass None.
        epochs, steps : int
            Passes over the data, or updates; give one of the two.
        batch_size : int
            Samples of one step on all ranks together.
        seed : int
            Of the order of the samples.
        progress : bool
            Whether rank 0 draws a bar (tqdm).
        checkpoint : path, optional
            A directory that all ranks share. A checkpoint is written there after each
            `checkpoint_every` steps, at the end, and where SIGUSR1 or SIGTERM ask for it, which
            then end the training (`stopped`).
        checkpoint_every : int, optional
            Steps from one checkpoint to the next; by default those of an epoch.
        keep : int
            How many checkpoints stay, the newest.
        resume : bool
            Whether to go on from the newest whole checkpoint, if there is any; epochs and steps
            count from the first start.
        metrics : path, optional
            A file to which rank 0, which alone needs to give it, adds a JSON line per step (step,
            epoch, samples; loss, of rank 0's samples; its seconds and bytes; `hidden` over the last
            20 steps) and per epoch (as in `epochs`). ``"tensorboard:DIR"`` and
            ``"wandb:PROJECT"`` write the numbers for these tools instead.

        Raises
        ------
        ArgumentError
            On every rank, where a value is not usable or the ranks do not have the same ones.
        BadGradient
            On every rank, where a gradient on any is infinite or nan and there is no loss_scale.
            Other parts of that update may have been made; no checkpoint has them.
        LaunchError
            On every rank, where a checkpoint cannot be written or read; where tqdm is missing.
        ParametersDiffer
            On every rank, where ranks no longer have the same parameters: compared at the start and
            the end, before each checkpoint, and after each 100 steps (``MPICOLL_CHECK=always``:
            each one; ``off``: never).
        """
        options = FitOptions(
            epochs,
            steps,
            batch_size,
            seed,
            checkpoint,
            checkpoint_every,
            keep,
            resume,
            progress,
            metrics,
        )
        self._begun = self._history.copy()
        self.strategy.update.take_written()
        if self.strategy.survival is None:
            self._fit(dataset, options)
        else:
            self.strategy.survival.open(self.losses)
            elastic.surviving(self.comm, lambda comm: self._fit_on(comm, dataset, options))

    def _fit_on(self, comm: Communicator, dataset: Dataset | None, options: FitOptions) -> None:
        """The same on the ranks of `comm`: fewer than before where some have died."""
        recovered = None
        if comm is not self.comm:
            has_checkpoint = options.checkpoint is not None
            recovered = elastic.recover(self.strategy, comm, self._made, has_checkpoint)
            self.strategy = recovered.strategy
            self.comm = comm
        self._fit(dataset, options, recovered)

    def _fit(
        self,
        dataset: Dataset | None,
        options: FitOptions,
        recovered: elastic.Recovered | None = None,
    ) -> None:
        """Make the steps that are left. recovered: where ranks have died."""
        agree(self.comm, options.facts())
        together(self.comm, options.check)
        together(self.comm, self._check_model)
        strategy = self.strategy
        survival = strategy.survival
        history = self._history
        losses = None
        lost = None
        if recovered is None:
            strategy.settle()
        else:  # nothing is left of what an exception may have ended
            losses = recovered.losses
            lost = recovered.lost
        facts = strategy.loader.load(dataset)
        self._check_data(facts)
        sampler = Sampler(
            facts["training samples"],
            options.batch_size,
            options.seed,
            strategy.rank,
            strategy.size,
            strategy.options.micro_batches,
        )
        data = {**facts, "batch_size": options.batch_size, "seed": options.seed}
        resumes = options.resume or lost is not None
        snapshots = None
        if options.checkpoint is not None:
            may_exist = resumes or losses is not None
            snapshots = Snapshots(
                options.checkpoint, options.keep, may_exist, strategy, history, data
            )
        epoch = len(sampler)
        steps = options.steps_of(sampler)
        if losses is None:
            done = self._begin(snapshots if resumes else None, lost, epoch, steps)
            cut_short = history.cut_short
        else:
            history.losses = losses
            done = len(history.losses) - len(self._begun.losses)
            cut_short = done == steps and done % epoch > 0
        known = len(self._begun.epochs) + done // epoch + cut_short
        del history.epochs[known:]
        run = Run(strategy, history, sampler, options, snapshots, facts["test samples"], done)
        if survival is not None:
            survival.secure(history.losses)
        if len(history.epochs) < known:  # ranks died when its steps were made
            run.write_down()
        run()
        strategy.hooks.rest()
        if survival is not None:
            survival.wait()
        if strategy.meter.steps:
            strategy.meter.summary_of_ranks()

    def _begin(
        self, snapshots: Snapshots | None, lost: ShardsLost | None, epoch: int, steps: int
    ) -> int:
        """Where `fit` begins: the steps done before.

        lost: with ranks that died; epoch: its steps; steps: asked for.
        """
        history = self._history
        done = snapshots.resume() if snapshots else 0
        if not done and lost is None:
            history.losses += self.strategy.take_up()
        if lost is not None:
            if not done:
                raise lost
            assert self.strategy.survival is not None
            self.strategy.survival.recoveries[-1]["step"] = len(history.losses)
        self._begun.losses = history.losses[: len(history.losses) - done]
        history.cut_short = history.cut_short and done % epoch > 0  # else it was another fit's
        if history.cut_short and done < steps:
            history.epochs.pop()  # it goes on, and is written down when it is over
            history.cut_short = False
        before = len(history.epochs) - done // epoch - history.cut_short
        self._begun.epochs = history.epochs[:before]
        return done

    def report(self) -> dict[str, Any]:
        """Costs on this rank: medians over the steps so far, and the memory that stays. Local.

        Returns
        -------
        dict
            Seconds of a step:

            - `step_s`, `compute_s`;
            - `communication_s`, during which anything was being sent, samples included; waiting for
              slower ranks too;
            - `exposed_s`, of it that during which nothing was computed;
            - over all ranks `compute_min_s`, `compute_median_s`, `compute_max_s` (of
              `slowest_rank`), and `waiting_s`, how much longer the slowest computed than this rank.

            `hidden`, the part of the communication that computation could hide and did, 0 to 1, or
            None, as where MPI's own calls moved the buckets: `communication_s` then is from their
            start until they were awaited. Bytes of a step:

            - `bytes_sent_per_step` (gradients and parameters), `bytes_predicted` by theory (None:
              parameter server);
            - `bytes_estimated`, true where MPI's own call moved the buckets: the lower bound of any
              algorithm then;
            - `data_bytes_sent_per_step` (samples).

            Bytes held: `parameter_bytes`, `gradient_bytes`, `optimizer_bytes` (float32 masters
            included), `scratch_bytes` (of the bucket collectives, where they are schedules),
            `residual_bytes` (of error feedback, with what it computes in).

            With diloco figures of a step are means over `inner_steps`. `outer_bytes` are held for
            the outer steps. `drift` is how far this rank's parameters were from the average of all
            when they were exchanged, as a part of their norm: a median over the rounds.

            With elastic, of a step: `copy_bytes_per_step`, sent to the holder; `copy_s`, from first
            to last, pauses for gradients and parameters included; `copy_exposed_s`, in which this
            rank did nothing but copy or wait for it (what copies delay is not in it);
            `copy_bytes_held`; and `recoveries`, with `ranks`, `step` and `seconds` of each.

        Raises
        ------
        ArgumentError
            Before the first step.
        """
        strategy = self.strategy
        meter = self.strategy.meter
        if not meter.steps:
            raise ArgumentError("report() needs at least one step; call fit() first")
        seconds = {
            name: meter.typical(name)
            for name in ("step_s", "compute_s", "communication_s", "exposed_s")
        }
        return (
            seconds
            | (meter.ranks or {})
            | strategy.report()
            | {
                "hidden": meter.hidden(),
                "bytes_sent_per_step": meter.typical("bytes"),
                "bytes_predicted": strategy.predicted_bytes(),
                "data_bytes_sent_per_step": meter.typical("data_bytes"),
                "bytes_estimated": not self.options.counted,
                "parameter_bytes": strategy.reducer.parameters.nbytes,
                "gradient_bytes": strategy.reducer.gradients.nbytes,
                "optimizer_bytes": strategy.update.nbytes,
                "scratch_bytes": strategy.reducer.scratch_bytes,
                "residual_bytes": strategy.reducer.residual_bytes,
            }
        )

    def _check_model(self) -> None:
        """The model must still be this trainer's."""
        kept = self.model.is_lent_by(self.strategy.reducer.plain)
        check(
            "model",
            "another Trainer's",
            kept,
            "this trainer's: a model belongs to the last Trainer that was made with it",
        )

    def _check_data(self, facts: Mapping[str, int]) -> None:
        """The data must fit the model."""
        inputs = self.model.inputs
        outputs = self.model.outputs
        if inputs is not None:
            check(
                "features of the data",
                facts["features"],
                facts["features"] == inputs,
                f"the model's {inputs} inputs",
            )
        if outputs is not None:
            check(
                "classes of the data",
                facts["classes"],
                facts["classes"] <= outputs,
                f"at most the model's {outputs}",
            )


def _check_optimizer(optimizer: Optimizer) -> None:
    """Raise ArgumentError unless it is an optimizer that no other trainer has."""
    check(
        "optimizer",
        optimizer,
        isinstance(optimizer, Optimizer),
        "SGD, Adam or AdamW, as in Trainer(model, Adam(), comm)",
    )
    expected = (
        "one of its own: this one is another Trainer's, and so are its momentum and its count of "
        "steps"
    )
    check("optimizer", optimizer, not optimizer.owned, expected)


def _understood(
    model: Model | LossFunction, params: Arrays | None, options: Mapping[str, object]
) -> AnyModel:
    """The model, made of its function if need be.

    Raises ArgumentError where there is no such option.
    """
    unknown = sorted(set(options) - set(Options.names()))
    check("options", ", ".join(unknown), not unknown, f"some of {', '.join(Options.names())}")
    if not callable(model):
        good = all(hasattr(model, name) for name in ("tensors", "learn", "lend"))
        check("model", model, good, "a Model, such as mlp([64, 32, 10]), or a function with params")
        return model
    check("params", params, params is not None, "the arrays that the function trains")
    assert params is not None
    return FunctionModel(model, params)
