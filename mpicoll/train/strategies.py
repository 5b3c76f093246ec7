"""Strategies: where data, gradients and optimizer live, and which collectives connect them."""

import numpy
from mpi4py import MPI

from .arrays import module_of
from .checks import agree, check
from .meter import Meter


class Strategy:
    """Base: every rank computes its share of each batch and ends each step with the same parameters.

    A subclass says how a rank gets its samples (`load`, `fetch`), how gradients become an update (`exchange`), and how
    losses and correct answers of the ranks come together (`settle`, `count_correct`). All calls are collective.
    """

    algorithm = None
    estimate = None

    def __init__(self, model, optimizer, comm):
        self.model, self.optimizer, self.comm = model, optimizer, comm
        self.module = module_of(model.parameters)
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.meter = Meter(comm, self.module, self.estimate)
        self._losses = []

    def start(self):
        """Give all ranks the parameters of rank 0."""
        self.comm.Bcast(self.model.parameters, root=0, algorithm="binomial")

    def step(self, sampler, batch):
        """One update from the global batch; returns its loss as far as this rank knows it."""
        with self.meter.step():
            features, labels = self.fetch(sampler, batch)
            with self.meter.computing():
                loss = self.model.learn(features, labels, len(batch))
            self._losses.append(self.exchange(loss))
        return loss * len(batch) / max(1, len(labels))

    def gradient_bytes(self):
        """Bytes of all gradients this rank holds at a time."""
        return self.model.gradients.nbytes

    def _place(self, features, labels):
        """Features in the model's precision, and labels, on the model's device."""
        return self.module.asarray(features, dtype=self.model.parameters.dtype), self.module.asarray(labels)


class AllReduce(Strategy):
    """Every rank holds the data and everything else; one in-place Allreduce of the flat gradients per step.

    A rank sends 2 (K-1)/K of the gradients per step (ring, circulant, …), K the number of ranks, which is the least
    possible, and no data. Losses are summed once per epoch, apart from the gradients.
    """

    def __init__(self, model, optimizer, comm, algorithm):
        self.algorithm = algorithm
        if algorithm == "native":
            size = comm.Get_size()
            self.estimate = 2 * (size - 1) * model.gradients.nbytes // size
        super().__init__(model, optimizer, comm)

    def describe(self):
        """Which collectives run in each step."""
        return f"allreduce ({self.algorithm})"

    def load(self, dataset):
        """Take the data set, which every rank must have; returns its facts."""
        facts = {} if dataset is None else dataset.facts()
        agree(self.comm, facts)
        check("dataset", dataset, dataset is not None, "a Dataset on every rank")
        self._train = self._place(dataset.features, dataset.labels)
        self._test = self._place(dataset.test_features, dataset.test_labels)
        return facts

    def fetch(self, sampler, batch):
        """This rank's share of the batch, from its own memory."""
        with self.meter.computing():
            rows = self.module.asarray(sampler.share(batch))
            return self._train[0][rows], self._train[1][rows]

    def exchange(self, loss):
        """Sum the gradients over the ranks, make the same update everywhere; returns this rank's part of the loss."""
        with self.meter.communicating():
            self.comm.Allreduce(MPI.IN_PLACE, self.model.gradients, algorithm=self.algorithm)
        with self.meter.computing():
            self.optimizer.update(self.model.parameters, self.model.gradients)
        return loss

    def settle(self):
        """Losses of the steps since the last call, of the whole batches; equal on all ranks."""
        losses, self._losses = numpy.array(self._losses), []
        self.comm.Allreduce(MPI.IN_PLACE, losses, algorithm=self.algorithm)
        return losses.tolist()

    def count_correct(self):
        """Correct answers on the test data, which the ranks share among them."""
        features, labels = self._test
        mine = slice(self.rank * len(labels) // self.size, (self.rank + 1) * len(labels) // self.size)
        return self.comm.allreduce(self.model.count_correct(features[mine], labels[mine]))


class ParameterServer(Strategy):
    """Rank 0 holds data and optimizer: it scatters samples, gathers gradients, updates, broadcasts parameters.

    Rank 0 receives K-1 gradients and sends all samples of the others and about log2(K) parameter vectors per step:
    it is the bottleneck, which is what this strategy is there to show. It needs memory for K gradients.
    """

    def __init__(self, model, optimizer, comm):
        super().__init__(model, optimizer, comm)
        gradients = model.gradients
        self._all = None if self.rank else self.module.empty((self.size, len(gradients)), gradients.dtype)
        self._all_losses = None if self.rank else numpy.empty(self.size)

    def describe(self):
        """Which collectives run in each step."""
        return "parameter_server (scatterv linear, gather linear, bcast binomial)"

    def gradient_bytes(self):
        """Bytes of all gradients this rank holds at a time: at rank 0 also those of the others."""
        return super().gradient_bytes() + (0 if self.rank else self._all.nbytes)

    def load(self, dataset):
        """Take the data set of rank 0 (the others' is not looked at); returns its facts."""
        facts = self.comm.bcast(dataset.facts() if self.rank == 0 and dataset is not None else None)
        check("dataset", facts, facts is not None, "a Dataset on rank 0")
        if self.rank == 0:
            features = dataset.features.astype(self.model.parameters.dtype)
            self._train = features, dataset.labels.astype("int64")
            self._test = self._place(dataset.test_features, dataset.test_labels)
        self._width = facts["features"]
        return facts

    def fetch(self, sampler, batch):
        """This rank's share of the batch, sent by rank 0."""
        counts = sampler.counts(batch)
        features = numpy.empty((counts[self.rank], self._width), self.model.parameters.dtype)
        labels = numpy.empty(counts[self.rank], "int64")
        with self.meter.computing():
            rows = (None, None) if self.rank else (self._train[0][batch], self._train[1][batch])
        with self.meter.feeding():
            self._scatter(rows[0], features, [count * self._width for count in counts])
            self._scatter(rows[1], labels, counts)
        return self._place(features, labels)

    def _scatter(self, rows, mine, counts):
        """Deal `rows` of rank 0 (elements per rank: `counts`) out into `mine`."""
        sent = None if self.rank else [rows, counts]
        self.comm.Scatterv(sent, mine, root=0, algorithm="linear")

    def exchange(self, loss):
        """Gather gradients and loss at rank 0, update there, broadcast; returns the loss of the batch, at rank 0."""
        with self.meter.communicating():
            self.comm.Gather(self.model.gradients, self._all, root=0, algorithm="linear")
            self.comm.Gather(numpy.array([loss]), self._all_losses, root=0, algorithm="linear")
        if self.rank == 0:
            with self.meter.computing():
                for gradients in self._all[1:]:  # in rank order: the sum does not depend on who was first
                    self._all[0] += gradients
                self.optimizer.update(self.model.parameters, self._all[0])
        with self.meter.communicating():
            self.comm.Bcast(self.model.parameters, root=0, algorithm="binomial")
        return loss if self.rank else float(self._all_losses.sum())

    def settle(self):
        """Losses of the steps since the last call, of the whole batches; equal on all ranks."""
        losses, self._losses = numpy.array(self._losses), []
        self.comm.Bcast(losses, root=0, algorithm="binomial")
        return losses.tolist()

    def count_correct(self):
        """Correct answers on the test data, found by rank 0, which alone has it."""
        return self.comm.bcast(self.model.count_correct(*self._test) if self.rank == 0 else None)


#: the words of `strategy=`
STRATEGIES = {"allreduce": AllReduce, "parameter_server": ParameterServer}
