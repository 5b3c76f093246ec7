"""train a small network on real data, data-parallel over the ranks (run under mpiexec)."""

import json

from ..errors import ArgumentError


def add_arguments(parser):
    """Options, with defaults that reach a test accuracy of about 0.97 on the digits in seconds."""
    add = parser.add_argument
    add("--data", default="digits", help="digits: 8 x 8 handwritten digits from scikit-learn (default)")
    add("--strategy", default="allreduce", help="allreduce (default) or parameter_server")
    add("--optimizer", default="adam", help="sgd, adam (default) or adamw")
    add("--lr", type=float, metavar="R", help="learning rate (default: the optimizer's, 0.1 for sgd, else 0.001)")
    add("--hidden", default="512,512", metavar="N,N", help="widths of the hidden layers (default 512,512)")
    add("--batch-size", type=int, default=64, metavar="N", help="samples per step on all ranks together (default 64)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--epochs", type=int, metavar="N", help="passes over the training data (default 15)")
    length.add_argument("--steps", type=int, metavar="N", help="updates, across epochs")
    add("--precision", default="float32", help="float32 (default) or float64")
    add("--algorithm", default="ring", metavar="WORD", help="of the allreduce (default ring); see `mpicoll list`")
    add("--seed", type=int, default=0, metavar="N", help="of the split, the first weights and the order (default 0)")
    add("--device", default="cpu", help="cpu (default), or cuda: GPU = local rank modulo their number")
    add("--json", metavar="FILE", help="write configuration, losses, times and bytes here")


def run(arguments):
    """Train, and print and write the result on rank 0."""
    from mpi4py import MPI

    from ..launch import check_launch, install_abort_hook

    check_launch()
    install_abort_hook()
    from ..communicator import Communicator
    from ..train.node import share_cores
    from ..train.results import document, summary

    comm = Communicator(MPI.COMM_WORLD)
    share_cores(comm)
    config = _config(arguments)
    trainer, dataset = _build(config, comm)
    _check_writable(arguments.json, comm)
    length = {name: config[name] for name in ("epochs", "steps", "batch_size", "seed")}
    trainer.fit(dataset, progress=True, **length)
    result = document(trainer, config) if arguments.json else None
    if comm.Get_rank() == 0:
        print(summary(trainer), flush=True)
        if result:
            with open(arguments.json, "w", encoding="utf-8") as file:
                json.dump(result, file, indent=1)


def _config(arguments):
    """The options as they will be used, for the JSON file too."""
    names = ("data", "strategy", "optimizer", "lr", "hidden", "batch_size", "epochs", "steps")
    names += ("precision", "algorithm", "seed", "device")
    config = {name: getattr(arguments, name) for name in names}
    config["hidden"] = _widths(arguments.hidden)
    if arguments.epochs is None and arguments.steps is None:
        config["epochs"] = 15
    return config


def _widths(text):
    """Widths from text such as 512,512; no text, no hidden layer."""
    words = text.split(",") if text.strip() else []
    if not all(word.strip().isdecimal() for word in words):
        raise ArgumentError(f"--hidden: expected widths such as 512,512, got {text!r}")
    return [int(word) for word in words]


def _build(config, comm):
    """The trainer, and the data set on the ranks that need it."""
    from ..train import Trainer, mlp
    from ..train.checks import check_integer, check_word
    from ..train.data import DATASETS
    from ..train.node import device_module
    from ..train.optimizers import OPTIMIZERS

    check_word("--data", config["data"], DATASETS)
    check_word("--optimizer", config["optimizer"], OPTIMIZERS)
    check_integer("--batch-size", config["batch_size"], 1)
    check_integer("--seed", config["seed"], 0)
    alone = config["strategy"] == "parameter_server" and comm.Get_rank() > 0
    dataset = None if alone else DATASETS[config["data"]](config["seed"])
    inputs, outputs = comm.bcast(dataset and dataset.widths)
    module = device_module(config["device"], comm)
    kind = OPTIMIZERS[config["optimizer"]]
    optimizer = kind() if config["lr"] is None else kind(lr=config["lr"])
    config["lr"] = optimizer.lr
    model = mlp([inputs, *config["hidden"], outputs], config["seed"]).to(module)
    trainer = Trainer(model, optimizer, comm, config["strategy"], config["precision"], config["algorithm"])
    return trainer, dataset


def _check_writable(path, comm):
    """Find out before the training whether rank 0, perhaps the only one to see that disk, can write its result."""
    problem = None
    try:
        if path and comm.Get_rank() == 0:
            open(path, "a", encoding="utf-8").close()
    except OSError as error:
        problem = f"--json: cannot write {path} ({error.strerror})"
    if problem := comm.bcast(problem):
        raise ArgumentError(problem)
