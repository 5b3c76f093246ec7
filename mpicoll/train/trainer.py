"""The trainer: one loop over steps and epochs for every strategy."""

from ..algorithms import list_algorithms
from ..communicator import Communicator
from ..errors import ArgumentError
from .checks import agree, check, check_integer, check_word
from .data import Sampler
from .extras import require
from .progress import progress_bar
from .strategies import STRATEGIES, AllReduce

PRECISIONS = ("float64", "float32")


class Trainer:
    """Trains a model on the ranks of a communicator with the losses of a single process, up to rounding.

    model, optimizer: built alike on every rank; the first parameters are those of rank 0. The model is converted to
    `precision` in place (default: it keeps its own). comm: a Communicator, or an MPI.Intracomm, which is wrapped.
    strategy: `allreduce` or `parameter_server`. algorithm: of the allreduce of the gradients; `native` is MPI's own.

    After `fit`: `losses`, one per step; `epochs`, one dict each; `test_accuracy`; `parameters` are in the model.
    Collective. Raises ArgumentError on every rank where a value is not usable or the ranks do not have the same ones.
    """

    def __init__(self, model, optimizer, comm, strategy="allreduce", precision=None, algorithm="ring"):
        self.comm = comm if isinstance(comm, Communicator) else Communicator(comm)
        self.precision = model.parameters.dtype.name if precision is None else precision
        options = {"strategy": strategy, "precision": self.precision, "algorithm": algorithm}
        layers = {f"layer {number} of the model": text for number, text in enumerate(model.describe())}
        agree(self.comm, {**layers, "the optimizer": repr(optimizer), **options})
        _check_options(**options)
        if self.precision != model.parameters.dtype.name:
            model.to(dtype=self.precision)
        self.model, self.optimizer = model, optimizer
        kind = STRATEGIES[strategy]
        self.strategy = kind(model, optimizer, self.comm, *([algorithm] if kind is AllReduce else []))
        self.losses, self.epochs, self.test_accuracy = [], [], None

    def fit(self, dataset=None, epochs=None, batch_size=64, seed=0, steps=None, progress=False):
        """Train for `epochs` passes over the data, or for `steps` updates, across epochs; give one of the two.

        dataset: a Dataset on every rank, with `parameter_server` on rank 0 (others may pass None). batch_size: samples
        of one step on all ranks together. seed: of the order of the samples. progress: rank 0 draws a bar (tqdm).
        A second call goes on with parameters and optimizer as they are. Collective; raises ArgumentError on all ranks.
        """
        agree(self.comm, {"epochs": epochs, "steps": steps, "batch_size": batch_size, "seed": seed})
        check("epochs, steps", (epochs, steps), (epochs is None) != (steps is None), "one of them, the other None")
        check_integer("steps" if epochs is None else "epochs", steps if epochs is None else epochs, 1)
        check_integer("batch_size", batch_size, 1)
        if progress:
            require("tqdm")
        facts = self.strategy.load(dataset)
        self._check_facts(facts)
        sampler = Sampler(facts["training samples"], batch_size, seed, self.comm.Get_rank(), self.comm.Get_size())
        self.strategy.start()
        steps = epochs * len(sampler) if steps is None else steps
        with progress_bar(sampler.total(steps), progress and self.comm.Get_rank() == 0) as advance:
            for batches in sampler.epochs(steps):
                self._run_epoch(sampler, batches, facts["test samples"], advance)

    def report(self):
        """Costs on this rank: medians over the steps so far, and the memory that stays.

        Seconds `step_s`, `compute_s`, `communication_s` (samples included; waiting for slower ranks too) and
        `exposed_s` (communication during which nothing is computed); bytes `bytes_sent_per_step` (gradients and
        parameters), `data_bytes_sent_per_step` (samples), `parameter_bytes`, `gradient_bytes`, `optimizer_bytes`.
        `bytes_estimated` is true where MPI's own call moved the gradients: the lower bound of any allreduce then.
        """
        meter = self.strategy.meter
        if not meter.steps:
            raise ArgumentError("report() needs at least one step; call fit() first")
        seconds = {name: meter.typical(name) for name in ("step_s", "compute_s", "communication_s", "exposed_s")}
        return seconds | {
            "bytes_sent_per_step": meter.typical("bytes"),
            "data_bytes_sent_per_step": meter.typical("data_bytes"),
            "bytes_estimated": self.strategy.estimate is not None,
            "parameter_bytes": self.model.parameters.nbytes,
            "gradient_bytes": self.strategy.gradient_bytes(),
            "optimizer_bytes": self.optimizer.nbytes,
        }

    def _run_epoch(self, sampler, batches, tests, advance):
        """Make the steps of one epoch and write them down."""
        meter = self.strategy.meter
        first = len(meter.steps)
        for batch in batches:
            advance(len(batch), self.strategy.step(sampler, batch))
        losses, sizes = self.strategy.settle(), [len(batch) for batch in batches]
        self.losses += losses
        self.test_accuracy = self.strategy.count_correct() / tests if tests else None
        self.epochs.append({
            "epoch": len(self.epochs) + 1,
            "loss": sum(loss * size for loss, size in zip(losses, sizes)) / sum(sizes),
            "test_accuracy": self.test_accuracy,
            "seconds": meter.total("step_s", first),
            **{name: meter.total(name, first) for name in ("compute_s", "communication_s", "exposed_s")},
        })

    def _check_facts(self, facts):
        """The data must fit the model."""
        inputs, outputs = self.model.inputs, self.model.outputs
        check("features of the data", facts["features"], facts["features"] == inputs, f"the model's {inputs} inputs")
        check("classes of the data", facts["classes"], facts["classes"] <= outputs, f"at most the model's {outputs}")


def _check_options(strategy, precision, algorithm):
    check_word("strategy", strategy, STRATEGIES)
    check_word("precision", precision, PRECISIONS)
    check_word("algorithm", algorithm, list_algorithms("allreduce"))
    if strategy != "allreduce" and algorithm != "ring":
        raise ArgumentError(f"algorithm: {strategy} makes no allreduce that {algorithm!r} could do; leave it out")
