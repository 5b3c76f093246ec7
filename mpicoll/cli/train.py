"""train a small network on real data, data-parallel over the ranks (run under mpiexec)."""

from argparse import ArgumentParser, Namespace
from typing import Any

from ..errors import ArgumentError
from ..train.options import Options
from . import outfiles
from .options import add_fields, add_shared
from .screen import folded
from .values import number, whole


def add_arguments(parser: ArgumentParser) -> None:
    """Options; the defaults reach a test accuracy of about 0.97 on the digits in seconds."""
    add = parser.add_argument
    add(
        "--data",
        default="digits",
        help=(
            "digits: 8 x 8 handwritten digits from scikit-learn; "
            "synthetic[:SAMPLES,FEATURES,CLASSES]; FILE.npz with arrays `features` and `labels`"
        ),
    )
    add("--hidden", default="512,512", metavar="N,N", help="widths of the hidden layers")
    add("--optimizer", default="adam", help="sgd, adam or adamw")
    add("--lr", type=number, metavar="R", help="learning rate (default: 0.1 for sgd, else 0.001)")
    schedule = "learning-rate schedule: constant, cosine:STEPS, linear:STEPS, step:EVERY"
    add("--schedule", default="constant", help=schedule)
    warmup = "steps of linear learning-rate warm-up"
    add("--warmup", type=whole, default=0, metavar="STEPS", help=warmup)
    add("--batch-size", type=whole, default=64, metavar="N", help="samples per step, of all ranks")
    length = parser.add_mutually_exclusive_group()
    passes = "passes over the training data (default 15)"
    length.add_argument("--epochs", type=whole, metavar="N", help=passes)
    length.add_argument("--steps", type=whole, metavar="N", help="updates, across epochs")
    add_fields(parser, Options)
    order = "seed of the data split, of the initial weights and of the order of samples"
    add("--seed", type=whole, default=0, metavar="N", help=order)
    add_shared(parser, "--device")
    directory = "write checkpoints to this directory, which all ranks share"
    add("--checkpoint", metavar="DIR", help=directory)
    every = "steps between checkpoints (default: an epoch)"
    add("--checkpoint-every", type=whole, metavar="N", help=every)
    add("--keep", type=whole, default=3, metavar="N", help="number of checkpoints to keep")
    resume = "continue from the newest checkpoint, if there is one"
    add("--resume", action="store_true", help=resume)
    trace = "write a timeline that Perfetto opens (https://ui.perfetto.dev)"
    add("--trace", metavar="FILE", help=trace)
    metrics = "append a JSON line for each step and each epoch to this file; tensorboard:DIR and"
    metrics += " wandb:PROJECT write them for these tools"
    add("--metrics", metavar="FILE", help=metrics)
    add("--json", metavar="FILE", help="write configuration, losses, times and bytes to this file")
    add_shared(parser, "--done")


def run(arguments: Namespace) -> None:
    """Train, and print and write the result on rank 0."""
    from mpi4py import MPI

    from ..launch import install_abort_hook

    install_abort_hook()
    from ..execute import Context
    from ..measure import write_timeline
    from ..support.node import share_cores
    from ..train import living, surviving
    from ..train.monitor import document, summary

    comm = living(MPI.COMM_WORLD)
    config = _config(arguments)

    def begin(comm: Any) -> tuple[Any, Any]:
        with Context.of(comm).watched("sharing the cores of a node"):
            share_cores(comm, most=1 if arguments.reproducible else None)
        return _build(config, comm)

    (trainer, dataset), comm = surviving(comm, begin)
    outfiles.check(arguments, comm)
    trainer.strategy.meter.tracing = arguments.trace is not None
    kept = {
        name: getattr(arguments, name)
        for name in ("checkpoint", "checkpoint_every", "keep", "resume", "metrics")
    }
    trainer.fit(
        dataset,
        progress=True,
        **{name: config[name] for name in ("epochs", "steps", "batch_size", "seed")},
        **kept,
    )

    def finish(comm: Any) -> None:
        """Write it all. Again where a rank dies before all have."""
        with Context.of(comm).watched("the result of a training"):
            # none where the checkpoint had them all
            if arguments.trace and trainer.strategy.meter.steps:
                write_timeline(arguments.trace, trainer.strategy.meter.events, comm)
            result = document(trainer, config, comm) if arguments.json else None
            text = summary(trainer, comm)
        if comm.Get_rank() == 0:
            print(*(folded(line, rest="  ") for line in text.splitlines()), sep="\n", flush=True)
            if result:
                outfiles.write_json(arguments.json, result)
        if not trainer.stopped:
            outfiles.write_done(arguments)

    surviving(trainer.comm, finish)
    arguments.done = None  # it is written, or not to be


def _config(arguments: Namespace) -> dict[str, Any]:
    """The options as they will be used, for the JSON file too."""
    apart = {"run", "command", "json", "trace", "metrics", "done"}
    config = {name: value for name, value in vars(arguments).items() if name not in apart}
    config["hidden"] = _widths(arguments.hidden)
    if arguments.resume and arguments.checkpoint is None:
        raise ArgumentError(
            "--resume needs --checkpoint DIR, the directory of the checkpoints to go on from"
        )
    if arguments.epochs is None and arguments.steps is None:
        config["epochs"] = 15
    has_scale = not Options(arguments.strategy).is_local
    if arguments.loss_scale is None and arguments.precision == "float16" and has_scale:
        config["loss_scale"] = "dynamic"
    return config


def _widths(text: str) -> list[int]:
    """Widths from text such as 512,512; no text, no hidden layer."""
    words = text.split(",") if text.strip() else []
    if not all(word.strip().isdecimal() for word in words):
        raise ArgumentError(f"--hidden: expected widths such as 512,512, got {text!r}")
    return [int(word) for word in words]


def _build(config: dict[str, Any], comm: Any) -> tuple[Any, Any]:
    """The trainer, and the data set on the ranks that need it."""
    from ..support.checks import check_integer, check_word
    from ..support.gpus import device_module
    from ..train import Trainer
    from ..train.data import load
    from ..train.model import mlp
    from ..train.optim import OPTIMIZERS, lr_schedules

    check_word("--optimizer", config["optimizer"], OPTIMIZERS)
    check_integer("--batch-size", config["batch_size"], 1)
    check_integer("--seed", config["seed"], 0)
    alone = config["strategy"] == "parameter_server" and comm.Get_rank() > 0
    dataset = None if alone else load(config["data"], config["seed"])
    inputs, outputs = comm.bcast(dataset and dataset.widths)
    module = device_module(config["device"], comm)
    kind = OPTIMIZERS[config["optimizer"]]
    schedule = lr_schedules.parse(config["schedule"], config["warmup"])
    optimizer = kind(schedule=schedule, **({} if config["lr"] is None else {"lr": config["lr"]}))
    config["lr"] = optimizer.lr
    model = mlp([inputs, *config["hidden"], outputs], config["seed"]).to(module)
    trainer = Trainer(model, optimizer, comm, **{name: config[name] for name in Options.names()})
    config |= {name: getattr(trainer.options, name) for name in Options.names()}
    return trainer, dataset
