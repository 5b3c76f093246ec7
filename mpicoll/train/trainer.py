"""The trainer: one loop over steps and epochs for every strategy."""

import sys
from contextlib import ExitStack

import numpy
from mpi4py import MPI

from ..communicator import Communicator
from ..errors import ArgumentError
from ..support.checks import agree, check, check_integer
from ..support.optional import require
from .checkpoint import Checkpoints, stop_signals
from .data import Sampler
from .model import FunctionModel
from .monitor import finite, metrics_file, progress_bar
from .parallel import Options, Strategy


class Trainer:
    """Trains a model on the ranks of a communicator with the losses of a single process, up to rounding.

    model, optimizer: built alike on every rank; the first parameters are those of rank 0. model: a `Model` (`mlp`), or a
    function (params, (features, labels)) -> (mean loss, gradients) with its arrays as `params` (a dict or sequence). Its
    parameters then live in buffers of the trainer. comm: a Communicator, or an MPI.Intracomm, which is wrapped. precision:
    default that of the model. The other options: see `Options`.

    After `fit`: `losses`, one per step; `epochs`, one dict each; `test_accuracy`; `stopped`, the signal that ended it, or None.
    Collective. Raises ArgumentError on every rank where a value is not usable or the ranks do not have the same ones.
    """

    def __init__(self, model, optimizer, comm, strategy="allreduce", *, params=None, precision=None, **options):
        self.comm = comm if isinstance(comm, Communicator) else Communicator(comm)
        if callable(model):
            check("params", params, params is not None, "the arrays that the function trains")
            model = FunctionModel(model, params)
        unknown = sorted(set(options) - set(Options.names()))
        check("options", ", ".join(unknown), not unknown, f"some of {', '.join(Options.names())}")
        self.options = Options(strategy, precision=precision or model.parameters.dtype.name, **options)
        layers = {f"layer {number} of the model": text for number, text in enumerate(model.describe())}
        agree(self.comm, {**layers, "the optimizer": repr(optimizer), **self.options.facts()})
        self.options.check()
        wide = self.options.precision if self.options.precision in ("float64", "float32") else "float32"
        if model.parameters.dtype != wide:
            model.to(dtype=wide)
        self.model, self.optimizer = model, optimizer
        self.strategy = Strategy(model, optimizer, self.comm, self.options)
        self.losses, self.epochs, self.test_accuracy, self.stopped = [], [], None, None
        self._checkpoints = None

    @property
    def params(self):
        """{name: array}: the parameters after the last update; waits for what is under way. Local."""
        exchange = self.strategy.exchange
        exchange.settle()
        layout = exchange.layout
        return {tensor.name: layout.view(exchange.parameters, number) for number, tensor in enumerate(layout.tensors)}

    def state_dict(self):
        """Copies of the parameters by name, and the number of steps; every rank has all of them."""
        return {"parameters": {name: array.copy() for name, array in self.params.items()}, "steps": len(self.losses)}

    def fit(self, dataset=None, epochs=None, batch_size=64, seed=0, steps=None, progress=False, checkpoint=None,
            checkpoint_every=None, keep=3, resume=False, metrics=None):  # fmt: skip
        """Train for `epochs` passes over the data, or for `steps` updates, across epochs; give one of the two.

        dataset: a Dataset on every rank, with `parameter_server` on rank 0 (others may pass None). batch_size: samples
        of one step on all ranks together. seed: of the order of the samples. progress: rank 0 draws a bar (tqdm).
        checkpoint: a directory that all ranks share: a checkpoint is written there after each `checkpoint_every` steps
        (default: each epoch), at the end, and where SIGUSR1 or SIGTERM ask for it, which then end the training (`stopped`);
        the newest `keep` stay. resume: go on from the newest whole one, if there is any; epochs and steps count from the first
        start. metrics: a file to which rank 0 adds a JSON line per step (step, epoch, samples; loss, of rank 0's samples;
        its seconds and bytes; `hidden` over the last 20 steps) and per epoch (as in `epochs`). A second call goes on with
        parameters and optimizer as they are. Collective; raises ArgumentError on all ranks.
        """
        agree(self.comm, {"epochs": epochs, "steps": steps, "batch_size": batch_size, "seed": seed, "checkpoint": checkpoint,
                          "checkpoint_every": checkpoint_every, "keep": keep, "resume": resume})  # fmt: skip
        check("epochs, steps", (epochs, steps), (epochs is None) != (steps is None), "one of them, the other None")
        check_integer("steps" if epochs is None else "epochs", steps if epochs is None else epochs, 1)
        check_integer("batch_size", batch_size, 1)
        if checkpoint_every is not None:
            check_integer("checkpoint_every", checkpoint_every, 1)
            check("checkpoint", checkpoint, checkpoint is not None, "a directory, since checkpoint_every is given")
        check("resume", resume, checkpoint is not None or not resume, "False, or a checkpoint directory to resume from")
        if progress:
            require("tqdm")
        facts = self.strategy.feed.load(dataset)
        self._check_facts(facts)
        sampler = Sampler(facts["training samples"], batch_size, seed, self.comm.Get_rank(), self.comm.Get_size())
        self._checkpoints = self._open(checkpoint, keep, resume) if checkpoint is not None else None
        self._facts = {**facts, "batch_size": batch_size, "seed": seed}
        done = self._resume() if resume else 0
        self._every = checkpoint_every or len(sampler)
        steps, self.stopped = epochs * len(sampler) if steps is None else steps, None
        with ExitStack() as stack:
            stop = stack.enter_context(stop_signals()) if self._checkpoints else None
            advance = stack.enter_context(progress_bar(sampler.total(steps), sampler.total(done), progress and self._root))
            self._log = stack.enter_context(metrics_file(metrics, self.comm))
            self._done = done
            for batches in sampler.epochs(steps, done):
                self._run_epoch(sampler, batches, facts["test samples"], advance, stop)
                if self.stopped:
                    break
            self._save()
        self.strategy.binding.rest()
        if self.strategy.meter.steps:
            self.strategy.meter.summary_of_ranks()

    @property
    def _root(self):
        return self.comm.Get_rank() == 0

    def report(self):
        """Costs on this rank: medians over the steps so far, and the memory that stays.

        Seconds `step_s`, `compute_s`, `communication_s` (during which anything was being sent, samples included; waiting for
        slower ranks too), `exposed_s` (of it that during which nothing was computed); `hidden`, the part of the communication
        that computation could hide and did, 0 to 1, or None; over all ranks `compute_min_s`, `compute_median_s`,
        `compute_max_s`, `slowest_rank`, and `waiting_s`, how much longer the slowest computed than this rank. Bytes
        `bytes_sent_per_step` (gradients and parameters), `bytes_predicted` by theory (None: parameter server),
        `data_bytes_sent_per_step` (samples), `parameter_bytes`, `gradient_bytes`, `optimizer_bytes` (float32 masters
        included). `bytes_estimated` is true where MPI's own call moved the buckets: the lower bound of any algorithm then.
        """
        strategy, meter = self.strategy, self.strategy.meter
        if not meter.steps:
            raise ArgumentError("report() needs at least one step; call fit() first")
        seconds = {name: meter.typical(name) for name in ("step_s", "compute_s", "communication_s", "exposed_s")}
        return seconds | (meter.ranks or {}) | {
            "hidden": meter.hidden(),
            "bytes_sent_per_step": meter.typical("bytes"),
            "bytes_predicted": strategy.predicted_bytes(),
            "data_bytes_sent_per_step": meter.typical("data_bytes"),
            "bytes_estimated": self.options.algorithm == "native",
            "parameter_bytes": strategy.exchange.parameters.nbytes,
            "gradient_bytes": strategy.exchange.gradient_bytes,
            "optimizer_bytes": strategy.update.nbytes,
        }  # fmt: skip

    def _run_epoch(self, sampler, batches, tests, advance, stop):
        """Make the steps of one epoch, or what is left of it, and write them down."""
        meter, feed = self.strategy.meter, self.strategy.feed.batches(sampler, batches, self.options.accumulate)
        first = len(meter.steps)
        for batch in batches:
            asked = self._ask(stop)
            with meter.step():
                loss = self.strategy.step(next(feed), len(batch))
            hidden = meter.hidden(-20)
            advance(len(batch), loss, hidden)
            self._done += 1
            self._log(step=self._done, epoch=len(self.epochs) + 1, samples=len(batch), loss=finite(float(loss)), hidden=hidden,
                      **meter.steps[-1])  # fmt: skip
            if self._stop_now(asked, stop):
                break
            if self._done % self._every == 0 and self._done % len(sampler):
                self._save()
        feed.close()
        if not self.stopped or self._done % len(sampler) == 0:
            self._write_down(sampler, first, tests)
        if self._done % self._every == 0:
            self._save()

    def _write_down(self, sampler, first, tests):
        """Loss and accuracy of an epoch; seconds of the part of it that this run made."""
        self.losses += self.strategy.settle()
        count = (self._done - 1) % len(sampler) + 1
        losses, sizes = self.losses[-count:], sampler.sizes[:count]
        correct, meter = self.strategy.count_correct() if tests else None, self.strategy.meter
        self.test_accuracy = None if correct is None else correct / tests
        self.epochs.append({
            "epoch": len(self.epochs) + 1,
            "loss": sum(loss * size for loss, size in zip(losses, sizes)) / sum(sizes),
            "test_accuracy": self.test_accuracy,
            "seconds": meter.total("step_s", first),
            **{name: meter.total(name, first) for name in ("compute_s", "communication_s", "exposed_s")},
        })
        self._log(**self.epochs[-1] | {"loss": finite(self.epochs[-1]["loss"])})

    # Stopping and checkpoints.

    def _ask(self, stop):
        """Begin to find out, during the step, whether any rank got a signal."""
        if stop is None:
            return None
        self._flag = numpy.array([stop.received is not None], "i4")
        return self.comm.Iallreduce(MPI.IN_PLACE, self._flag, op=MPI.MAX, algorithm="native")

    def _stop_now(self, asked, stop):
        if asked is not None:
            asked.Wait()
            if self._flag[0]:
                self.stopped = next(filter(None, self.comm.allgather(stop.received)))
        return self.stopped

    def _open(self, directory, keep, resume):
        """The checkpoints in a directory; those of another run would be mixed with this one's, so there may be none."""
        checkpoints, self._saved = Checkpoints(directory, self.comm, keep), None
        steps = [] if resume else checkpoints.steps()
        good, expected = not steps, "an empty directory, or resume=True (--resume) to go on from what is there"
        check("checkpoint", directory, good, expected)
        return checkpoints

    def _save(self):
        """A checkpoint of all steps so far, unless there is one."""
        if self._checkpoints is None or self._saved == self._done:
            return
        self.losses += self.strategy.settle()
        update, exchange = self.strategy.update, self.strategy.exchange
        vectors, elements = update.vectors(), exchange.layout.plain[-1]
        meta = {"layers": self.model.describe(), "optimizer": type(self.optimizer).__name__, "updates": self.optimizer.steps,
                "data": self._facts, "losses": self.losses, "epochs": self.epochs, "precision": self.options.precision,
                "scale": None if self.strategy.scale is None else self.strategy.scale.state()}  # fmt: skip
        self._checkpoints.save(self._done, vectors, dict.fromkeys(vectors, elements), meta)
        self._saved = self._done

    _saved, _done = None, 0

    def _resume(self):
        """Take over the newest whole checkpoint; returns the steps done."""
        found = self._checkpoints.load(self._accept)
        if found is None:
            return 0
        self.strategy.update.restore(found, found.meta["updates"])
        self.strategy.exchange.settle()
        if self.strategy.scale is not None and found.meta["scale"] is not None:
            self.strategy.scale.restore(found.meta["scale"])
        self.losses, self.epochs = list(found.meta["losses"]), list(found.meta["epochs"])
        self.test_accuracy = self.epochs[-1]["test_accuracy"] if self.epochs else None
        self._done = self._saved = found.step
        if self._root:
            print(f"mpicoll: resumed from {found.path}, step {found.step}", file=sys.stderr, flush=True)
        return found.step

    def _accept(self, meta):
        """Raise ArgumentError for a checkpoint of another model, data set or optimizer."""
        mine = {"layers": self.model.describe(), "optimizer": type(self.optimizer).__name__, "data": self._facts}
        for name, value in mine.items():
            check(f"checkpoint: {name}", meta.get(name), meta.get(name) == value, f"this run's {value}; use another directory")

    def _check_facts(self, facts):
        """The data must fit the model."""
        inputs, outputs = self.model.inputs, self.model.outputs
        if inputs is not None:
            check("features of the data", facts["features"], facts["features"] == inputs, f"the model's {inputs} inputs")
            check("classes of the data", facts["classes"], facts["classes"] <= outputs, f"at most the model's {outputs}")
