"""A training on all ranks beside the reference."""

import zlib

import numpy

from mpicoll.support.arrays import element_type
from mpicoll.train import SGD, Adam, AdamW, Trainer

from . import models, reference
from .drawing import OF_ALLREDUCE

#: how far losses, and the way that each tensor has gone, may be from the reference, as parts of it
TOLERANCE = {"float64": 1e-9, "float32": 2e-4, "float16": 3e-2, "bfloat16": 1e-1}
#: the part of the way of all tensors that counts with that of each: a gradient that is a sum of both signs is less exact
OF_ALL = {"float64": 1e-3, "float32": 1e-2, "float16": 1e-1, "bfloat16": 1e-1}
#: the largest error of rounding once
ROUNDING = {"float64": 0.0, "float32": 2.0**-22, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def differences(config, comm):
    """What is wrong with a training on the ranks of `comm`, as texts, the same on all ranks. Collective."""
    trainer, first = trained(config, comm)
    found = list(trainer.params.values())
    mine = zlib.crc32(b"".join(array.tobytes() for array in found))
    texts = []
    if len(set(comm.allgather((mine, tuple(trainer.losses))))) > 1:
        texts.append("parameters or losses differ between ranks")
    report = trainer.report()
    is_least = config["options"]["algorithm"] not in OF_ALLREDUCE  # those send more than the bound
    if is_least and report["bytes_predicted"] not in (None, report["bytes_sent_per_step"]):
        texts.append(f"{report['bytes_sent_per_step']} bytes per step, expected {report['bytes_predicted']}")
    precision = config["options"]["precision"]
    kept = element_type(precision)
    losses, wanted = reference.train(config, comm.Get_size(), lambda array: array.astype(kept).astype("float64"), first)
    tolerance = TOLERANCE[precision]
    # a loss that has become small is as exact as the parameters, not as itself
    least = OF_ALL[precision] * tolerance * max(losses)
    wrong = [pair for pair in zip(trainer.losses, losses) if not numpy.isclose(*pair, rtol=tolerance, atol=least)]
    if wrong or len(trainer.losses) != len(losses):
        texts.append(f"losses {trainer.losses}, expected {losses}")
    whole = numpy.sqrt(sum(numpy.linalg.norm(after - before) ** 2 for after, before in zip(wanted, first)))
    for name, array, after, before in zip(trainer.params, found, wanted, first):
        error = numpy.linalg.norm(array.astype("float64") - after)
        way = numpy.linalg.norm(after - before)
        if not error <= tolerance * (way + OF_ALL[precision] * whole) + ROUNDING[precision] * numpy.linalg.norm(after):
            texts.append(f"{name} is {error:.3g} away from where it should be, {way:.3g} from where it began")
    return [text for texts in comm.allgather(texts) for text in texts]


def trained(config, comm):
    """A trainer after all fits, and the parameters at the beginning."""
    optimizer = _optimizer(config["optimizer"])
    rank, precision = comm.Get_rank(), config["options"]["precision"]
    options = {name: value for name, value in config["options"].items() if name != "precision"}
    if config["kind"] == "function":
        model, params = _function(config, rank)
        trainer = Trainer(model, optimizer, comm, params=params, precision=precision, **options)
    else:
        model = models.chain(config, seed=rank)  # seeds differ: rank 0's parameters must win
        trainer = Trainer(model, optimizer, comm, precision=precision, **options)
        parts = options["accumulate"]
        if options["reproducible"]:
            parts = len(numpy.array_split(numpy.arange(options["reproducible"]), comm.Get_size())[rank])
        model.prepare(config, rank, parts)
    first = reference.initial(config)
    for fit in config["fits"]:
        trainer.fit(models.dataset(config), steps=fit["steps"], batch_size=config["batch"], seed=fit["seed"])
    return trainer, first


def _function(config, rank):
    """The function, and its parameters, which differ between ranks: those of rank 0 must win."""
    matrices = models.mixing(config["arrays"], config["width"], config["seed"])
    arrays = [array + rank for array in models.first_values(config["arrays"], config["seed"])]
    if not config["keyed"]:
        return lambda params, batch: models.regression(params, matrices, *batch), arrays
    names = [f"p{number}" for number in range(len(arrays))]

    def keyed(params, batch):
        loss, gradients = models.regression([params[name] for name in names], matrices, *batch)
        return loss, dict(reversed(list(zip(names, gradients))))

    return keyed, dict(zip(names, arrays))


def _optimizer(options):
    common = {"lr": options["lr"], "weight_decay": options["weight_decay"]}
    if options["name"] == "sgd":
        return SGD(**common, momentum=options["momentum"], nesterov=options["nesterov"])
    return {"adam": Adam, "adamw": AdamW}[options["name"]](**common, eps=options["eps"])
