"""The trainer on any number of ranks: the losses of one process, counted bytes, one clear error on every rank."""

import zlib

import numpy
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll.shared_memory import HEAP
from mpicoll.support.gpus import device_module
from mpicoll.support.node import share_cores
from mpicoll.train import SGD, Adam, AdamW, Dataset, Trainer, digits, mlp
from mpicoll.train.options import Options
from mpicoll.train.parallel import fitted
from tests.support.cases import RANK, SIZE, WORLD
from tests.support.training import STRATEGIES, blobs, raises, train

pytestmark = pytest.mark.mpi

#: how messages call the ranks before the last
OTHERS = "rank 0" if SIZE == 2 else f"ranks {', '.join(map(str, range(SIZE - 1)[:8]))}" + (", …" if SIZE > 9 else "")


# ---- the result of one process

LENGTHS = [
    {"epochs": 3, "batch_size": 20},  # 83 samples: a last batch of 3
    {"epochs": 1, "batch_size": max(2, SIZE)},  # one or two samples per rank, and none for some of the last batch
    {"epochs": 2, "batch_size": 500},  # one batch is all there is
    {"steps": 7, "batch_size": 20},  # ends within an epoch
]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("length", LENGTHS)
def test_losses_are_those_of_one_process(strategy, length):
    alone = train(MPI.COMM_SELF, epochs=None, **length) if "steps" in length else train(MPI.COMM_SELF, **length)
    trainer = train(WORLD, strategy, **{"epochs": None, **length})
    reference = WORLD.bcast(alone.losses)
    assert len(trainer.losses) == len(reference) > 0
    numpy.testing.assert_allclose(trainer.losses, reference, rtol=1e-10)
    expected = WORLD.bcast([epoch["loss"] for epoch in alone.epochs])
    numpy.testing.assert_allclose([epoch["loss"] for epoch in trainer.epochs], expected, rtol=1e-10)
    numpy.testing.assert_allclose(trainer.model.parameters, WORLD.bcast(alone.model.parameters), rtol=1e-8)
    assert trainer.test_accuracy == WORLD.bcast(alone.test_accuracy) == trainer.epochs[-1]["test_accuracy"]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("optimizer", [lambda: SGD(0.05, 0.9, nesterov=True), Adam, AdamW])
def test_every_optimizer(strategy, optimizer):
    reference = WORLD.bcast(train(MPI.COMM_SELF, optimizer=optimizer).losses)
    numpy.testing.assert_allclose(train(WORLD, strategy, optimizer).losses, reference, rtol=1e-10)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_without_elastic_nothing_of_it_is_made_or_sent(strategy, monkeypatch):
    def unwanted(*_given, **_named):
        raise AssertionError("made without elastic")

    for place in ("mpicoll.train.parallel.strategy.Backup", "mpicoll.train.elastic.recover",
                  "mpicoll.train.elastic.surviving", "mpicoll.communicator.background.BackgroundExchange.__init__",
                  "mpicoll.train.parallel.backup.Backup.complete"):  # fmt: skip
        monkeypatch.setattr(place, unwanted)
    trainer = train(WORLD, strategy)
    told, reducer = trainer.report(), trainer.strategy.reducer
    assert trainer.strategy.backup is None and reducer.before_last is None
    assert not [name for name in told if name.startswith("copy") or name == "recoveries"]
    if told["bytes_predicted"] is not None and not told["bytes_estimated"]:
        assert told["bytes_sent_per_step"] == told["bytes_predicted"]


@pytest.mark.parametrize("algorithm", ["recursive_doubling", "circulant", "native"])
def test_other_algorithms(algorithm):
    reference = WORLD.bcast(train(MPI.COMM_SELF).losses)
    numpy.testing.assert_allclose(train(WORLD, options={"algorithm": algorithm}).losses, reference, rtol=1e-10)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_parameters_are_the_same_bits_on_all_ranks(strategy, precision):
    trainer = train(WORLD, strategy, precision=precision)
    assert trainer.model.parameters.dtype == precision
    assert len(set(WORLD.allgather(zlib.crc32(trainer.model.parameters)))) == 1
    assert len(set(WORLD.allgather(tuple(trainer.losses)))) == 1


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_second_fit_goes_on(strategy):
    trainer = train(WORLD, strategy, epochs=1)
    trainer.fit(blobs(), epochs=1, batch_size=20, seed=4)
    assert [epoch["epoch"] for epoch in trainer.epochs] == [1, 2]
    assert trainer.epochs[1]["loss"] < trainer.epochs[0]["loss"] and trainer.optimizer.steps == 10


@pytest.mark.parametrize("strategy, options", [
    ("allreduce", {"precision": "float16"}),
    ("parameter_server", {"precision": "float16"}),
    ("zero1", {"precision": "bfloat16"}),
    ("zero1", {"parameter_compression": "int8", "algorithm": "pairwise"}),
    ("zero2", {"parameter_compression": "int8", "algorithm": "pairwise", "precision": "float16"}),
    ("diloco", {"inner_steps": 2, "fragments": 1, "precision": "float16"}),
])  # fmt: skip
def test_what_a_program_writes_to_parameters_is_where_a_fit_begins(strategy, options):
    trainer = Trainer(mlp([12, 16, 4]), SGD(1e-3), WORLD, strategy, **options)
    for value in (0.25, 0.75):
        trainer.fit(blobs(), steps=2, batch_size=20)
        for array in trainer.params.values():
            array[...] = value
        trainer.fit(blobs(), steps=2, batch_size=20)
        assert all(abs(array - value).max() < 0.05 for array in trainer.params.values())


def test_parameter_server_needs_data_on_rank_0_only():
    trainer = Trainer(mlp([12, 16, 4], dtype="float64"), SGD(), WORLD, "parameter_server")
    trainer.fit(blobs() if RANK == 0 else None, epochs=2, batch_size=20)
    assert trainer.report()["optimizer_bytes"] == 0 and len(trainer.losses) == 10


def test_no_test_data_no_accuracy():
    data = blobs()
    trainer = train(WORLD, dataset=Dataset(data.features, data.labels, data.features[:0], data.labels[:0]))
    assert trainer.test_accuracy is None and trainer.epochs[0]["test_accuracy"] is None


@pytest.mark.parametrize("strategy", ["parameter_server", "zero2"])
def test_digits_are_learned(strategy):
    pytest.importorskip("sklearn")
    trainer = Trainer(mlp([64, 64, 10], seed=1), Adam(3e-3), WORLD, strategy)
    trainer.fit(digits(), epochs=12, batch_size=64)
    assert trainer.test_accuracy >= 0.95


# ---- costs


def test_allreduce_sends_the_least_there_is():
    data = blobs(width=11, classes=12)
    model = mlp([11, 12], dtype="float64")  # 144 parameters: equal blocks at 1, 2, 3, 4, 6, … ranks
    comm = mpicoll.Communicator(WORLD)
    trainer = Trainer(model, Adam(), comm)
    trainer.fit(data, steps=3, batch_size=16)
    report = trainer.report()
    if 144 % SIZE == 0:
        assert report["bytes_sent_per_step"] == 2 * (SIZE - 1) * model.parameters.nbytes // SIZE
    assert not report["bytes_estimated"] and report["data_bytes_sent_per_step"] == 0
    padded = -(-144 // SIZE) * SIZE * 8  # a bucket has equal shards, so that all strategies have the same layout
    assert report["gradient_bytes"] == report["parameter_bytes"] == padded
    assert report["optimizer_bytes"] == 2 * padded
    before = comm.sent[1]
    trainer.fit(data, steps=3, batch_size=16)
    extra = comm.sent[1] - before - 3 * report["bytes_sent_per_step"]  # losses and accuracy, at the end
    assert 0 <= extra < 200 * SIZE or 144 % SIZE


def test_parameter_server_counts_data_apart():
    trainer = train(WORLD, "parameter_server", batch_size=24, steps=2, epochs=None)
    report, vector, share = trainer.report(), trainer.model.parameters.nbytes, 24 // SIZE
    if RANK == 0:
        assert report["bytes_sent_per_step"] == (SIZE - 1).bit_length() * vector
        assert report["gradient_bytes"] == (SIZE + 1) * vector
        if 24 % SIZE == 0:
            assert report["data_bytes_sent_per_step"] == (SIZE - 1) * share * (12 + 1) * 8
    else:
        assert report["bytes_sent_per_step"] % vector == 0  # gradients, and the broadcast passed on
        assert report["bytes_sent_per_step"] >= vector and report["data_bytes_sent_per_step"] == 0


def test_native_bytes_are_the_lower_bound_and_marked():
    trainer = train(WORLD, options={"algorithm": "native"})
    report = trainer.report()
    assert report["bytes_estimated"]
    assert report["bytes_sent_per_step"] == report["bytes_predicted"]
    assert report["bytes_predicted"] == 2 * (SIZE - 1) * report["parameter_bytes"] // SIZE


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_times_add_up(strategy):
    trainer = train(WORLD, strategy)
    for step in trainer.strategy.meter.steps:
        assert step["step_s"] >= step["compute_s"] + step["exposed_s"]
        assert step["step_s"] >= step["communication_s"] > 0
    report = trainer.report()
    assert report["compute_min_s"] <= report["compute_median_s"] <= report["compute_max_s"]
    assert 0 <= report["slowest_rank"] < SIZE and report["waiting_s"] >= 0


def test_cores_are_shared_unless_chosen():
    pytest.importorskip("threadpoolctl")
    assert share_cores(WORLD, environ={"OMP_NUM_THREADS": "3"}) is None
    assert share_cores(WORLD, environ={}) >= 1


# ---- errors, on every rank


@pytest.mark.mpi(min_size=2)
def test_different_models_are_found_at_construction():
    last = RANK == SIZE - 1
    widths = [12, 16, 8 if last else 9, 4]
    raises(
        rf"ranks disagree about layer 2 of the model: {OTHERS}: Linear\(16, 9\); rank {SIZE - 1}: Linear\(16, 8\)",
        Trainer, mlp(widths), SGD(), WORLD,
    )
    deeper = mlp([12, 4, 4] if last else [12, 4])
    raises(rf"layer 1 of the model: {OTHERS}: missing; rank {SIZE - 1}: ReLU\(\)", Trainer, deeper, SGD(), WORLD)
    raises(rf"the optimizer: {OTHERS}: SGD\(lr=0.1, .*; rank {SIZE - 1}: SGD\(lr=0.2",
           Trainer, mlp([12, 4]), SGD(0.2 if last else 0.1), WORLD)
    raises(f"strategy: {OTHERS}: allreduce; rank {SIZE - 1}: nonsense",
           Trainer, mlp([12, 4]), SGD(), WORLD, "nonsense" if last else "allreduce")
    dtype = "float32" if last else "float64"
    raises(f"precision: {OTHERS}: float64; rank {SIZE - 1}: float32", Trainer, mlp([12, 4], dtype=dtype), SGD(), WORLD)


@pytest.mark.parametrize("comm", [None, MPI.COMM_NULL, 3])
def test_no_communicator(comm):
    raises("comm: expected a communicator, such as MPI.COMM_WORLD, got ", Trainer, mlp([12, 4]), SGD(), comm)


@pytest.mark.mpi(min_size=2)
def test_an_intercommunicator():
    part = WORLD.Split(RANK == 0)
    between = part.Create_intercomm(0, WORLD, int(RANK == 0))
    raises("use Intercomm.Merge", Trainer, mlp([12, 4]), SGD(), between)
    between.Free()
    part.Free()


@pytest.mark.mpi(min_size=2)
def test_different_arguments_of_fit():
    trainer, last = Trainer(mlp([12, 4]), SGD(), WORLD), RANK == SIZE - 1
    raises(f"batch_size: {OTHERS}: 8; rank {SIZE - 1}: 9", trainer.fit, blobs(), epochs=1, batch_size=9 if last else 8)
    raises("checksum of the labels: ", trainer.fit, blobs(seed=3 if last else 2), epochs=1)
    raises(f"dataset of rank {SIZE - 1}: expected a Dataset on every rank, got None",
           trainer.fit, None if last else blobs(), epochs=1)  # fmt: skip


@pytest.mark.parametrize("options, text", [
    ({"strategy": "zero9"}, "strategy: expected one of parameter_server, allreduce, zero1, zero2, diloco, got 'zero9'"),
    ({"precision": "int8"}, "precision: expected one of float64, float32, float16, bfloat16, got 'int8'"),
    ({"algorithm": "wave"}, "algorithm: expected one of .*ring.*, got 'wave'"),
    ({"strategy": "parameter_server", "algorithm": "native"}, "algorithm: expected for parameter_server one of ring"),
    ({"strategy": "zero1", "algorithm": "tree"}, "algorithm: expected for zero1 one of .*ring.*, got 'tree'"),
    ({"overlap": "some"}, "overlap: expected one of none, gradients, all, got 'some'"),
    ({"bucket_bytes": 0}, "bucket_bytes: expected an integer of at least 1, got 0"),
    ({"parameter_bucket_bytes": -1}, "parameter_bucket_bytes: expected an integer of at least 1, got -1"),
    ({"reduction": "reduce_scatter"}, "reduction: expected for allreduce one of allreduce, got 'reduce_scatter'"),
    ({"strategy": "zero2", "reduction": "sum"}, "reduction: expected for zero2 one of allreduce, reduce_scatter, got 'sum'"),
    ({"accumulate": 0}, "accumulate: expected an integer of at least 1, got 0"),
    ({"clip_norm": 0.0}, "clip_norm: expected a norm above 0, or None, got 0.0"),
    ({"loss_scale": "huge"}, "loss_scale: expected dynamic or a number above 0, got 'huge'"),
    ({"bucket_size": 1}, "options: expected some of .*bucket_bytes.*, got 'bucket_size'"),
])
def test_wrong_options(options, text):
    raises(text, Trainer, mlp([12, 4]), SGD(), WORLD, **options)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("options, text", [
    ({}, "epochs, steps: expected one of them"),
    ({"epochs": 1, "steps": 1}, "epochs, steps: expected one of them"),
    ({"epochs": 0}, "epochs: expected an integer of at least 1, got 0"),
    ({"steps": 1.5}, "steps: expected an integer"),
    ({"steps": 1, "batch_size": 0}, "batch_size: expected an integer of at least 1, got 0"),
    ({"steps": 1, "batch_size": 1 if SIZE > 1 else 0}, "batch_size: expected .*at least (one sample per rank|1)"),
    ({"steps": 1, "seed": -1}, "seed: expected an integer of at least 0"),
    ({"steps": 1, "resume": True}, "resume: expected False, or a checkpoint directory to resume from, got True"),
    ({"steps": 1, "checkpoint_every": 5}, "checkpoint: expected a directory, since checkpoint_every is given, got None"),
    ({"steps": 1, "checkpoint_every": 0}, "checkpoint_every: expected an integer of at least 1, got 0"),
    ({"steps": 1, "dataset": None}, "dataset of rank 0: expected a Dataset on"),
    ({"steps": 1, "dataset": blobs(width=3)}, "features of the data: expected the model's 12 inputs, got 3"),
    ({"steps": 1, "dataset": blobs(classes=9)}, "classes of the data: expected at most the model's 4, got 9"),
])
def test_wrong_arguments_of_fit(strategy, options, text):
    trainer = Trainer(mlp([12, 4]), SGD(), WORLD, strategy)
    raises(text, trainer.fit, **{"dataset": blobs(), **options})
    raises("call fit", trainer.report)


def test_unknown_device():
    raises("device: expected one of cpu, cuda, got 'tpu'", device_module, "tpu", WORLD)
    assert device_module("cpu", WORLD) is numpy


@pytest.mark.parametrize("strategy", ["allreduce", "zero1", "zero2"])
def test_buckets_lie_where_ranks_of_the_node_read_them(strategy):
    trainer = Trainer(mlp([8, 30, 4]), SGD(0.1), WORLD, strategy)
    reducer = trainer.strategy.reducer
    shared = trainer.comm.zeros(4)
    for array in (reducer.parameters, *(reducer.gradients.buffer(bucket) for bucket in reducer.layout.buckets)):
        found = [HEAP.location(one.ctypes.data, one.nbytes) is not None for one in (array, shared)]
        assert found[0] == found[1]  # as any array that the ranks share, where they can


def test_what_is_not_given_follows_the_model_and_the_node():
    options, ranks = Options("zero1"), WORLD.Get_size()
    assert fitted(options, 64 << 20, WORLD, on_host=True).bucket_bytes == 4 << 20
    assert fitted(options, 8 << 20, WORLD, on_host=True).bucket_bytes == 1 << 20
    assert fitted(options, 100, WORLD, on_host=True).bucket_bytes == ranks * 16 << 10
    assert fitted(options, 100, WORLD, on_host=True).algorithm == ("circulant" if ranks > 1 else "ring")
    assert fitted(options, 100, WORLD, on_host=False).algorithm == "ring"
    given = Options("zero1", bucket_bytes=5, algorithm="pairwise")
    assert fitted(given, 8 << 20, WORLD, on_host=True) == given
