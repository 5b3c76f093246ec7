"""Random configurations of trainings as plain data, which JSON can hold."""

import importlib.util
import itertools
import random

STRATEGIES = ("parameter_server", "allreduce", "zero1", "zero2")
OVERLAPS = ("none", "gradients", "all")
PRECISIONS = ("float64", "float32", "float16", *(["bfloat16"] if importlib.util.find_spec("ml_dtypes") else []))
#: bytes: every tensor in a bucket of its own, a few tensors together, everything together
BUCKETS = (1, 8, 200, 900, 1 << 20)
#: those that all strategies know, and those of allreduce alone
ALGORITHMS, OF_ALLREDUCE = (None, None, "ring", "circulant", "pairwise", "native"), ("recursive_doubling", "tree")
#: Adam's; where it is small, it makes steps of gradients that are nothing but rounding
EPS = {"float64": 1e-8, "float32": 1e-3, "float16": 0.03, "bfloat16": 0.03}
#: numbers of elements that no number of ranks divides, and some that all do
SIZES = (1, 1, 2, 3, 5, 6, 7, 11, 12, 13, 24, 31)


def draw(seed, ranks, **fixed):
    """A configuration for so many ranks. fixed: options that are not drawn."""
    any_of = random.Random(seed)
    kind = any_of.choice(("function", "layers"))
    options = _options(any_of, fixed)
    samples = any_of.randint(max(8, 2 * ranks), 40)
    return {
        "seed": seed, "kind": kind, "keyed": any_of.random() < 0.5, "arrays": _shapes(any_of, any_of.randint(1, 40)),
        "layers": [_shapes(any_of, any_of.randint(1, 40)) for _ in range(any_of.randint(1, 3))],
        "leave_out": any_of.choice((0, 0, 0.5)), "shuffle": any_of.random() < 0.3,
        "width": any_of.randint(1, 7), "hidden": any_of.randint(1, 9),
        "classes": any_of.randint(2, 4), "samples": samples, "batch": any_of.randint(max(2, ranks), samples),
        "fits": [{"seed": number, "steps": any_of.randint(2, 4)} for number in range(any_of.randint(1, 2))],
        "optimizer": _optimizer(any_of, EPS[options["precision"]]), "options": options,
    }  # fmt: skip


def grid(ranks, strategies=STRATEGIES, overlaps=OVERLAPS, precisions=PRECISIONS, buckets=BUCKETS):
    """A configuration for each strategy with each overlap, precision and size of buckets; all else is drawn."""
    axes = itertools.product(strategies, overlaps, precisions, buckets)
    for seed, (strategy, overlap, precision, bucket) in enumerate(axes):
        yield draw(seed, ranks, strategy=strategy, overlap=overlap, precision=precision, bucket_bytes=bucket)


def _shapes(any_of, count):
    """So many shapes of 0 to 3 dimensions."""
    shapes = []
    for _ in range(count):
        size, dimensions = any_of.choice(SIZES), any_of.randint(0, 3)
        shapes.append([[], [size], [size, any_of.randint(1, 3)], [1, size, 2]][dimensions])
    return shapes


def _options(any_of, fixed):
    strategy = fixed.get("strategy") or any_of.choice(STRATEGIES)
    serves, sharded = strategy == "parameter_server", strategy in ("zero1", "zero2")
    precision = fixed.get("precision") or any_of.choice(PRECISIONS)
    reproducible = any_of.choice((False, False, False, 4, 7))
    narrow = precision in ("float16", "bfloat16")
    algorithm = None if serves else any_of.choice(ALGORITHMS if sharded else ALGORITHMS + OF_ALLREDUCE)
    if algorithm == "native" and (narrow or reproducible):  # MPI has no such sums
        algorithm = None
    return {
        "strategy": strategy, "precision": precision, "overlap": any_of.choice(OVERLAPS),
        "bucket_bytes": any_of.choice((None, *BUCKETS)), "parameter_bucket_bytes": any_of.choice((None, None, *BUCKETS)),
        "reduction": any_of.choice((None, "reduce_scatter", "allreduce")) if sharded else None,
        "accumulate": 1 if reproducible else any_of.choice((1, 1, 2, 3)), "clip_norm": any_of.choice((None, None, 0.1, 1.0)),
        "loss_scale": any_of.choice((64.0, 256.0)) if narrow else any_of.choice((None, None, 1024.0, "dynamic")),
        "reproducible": reproducible, "algorithm": algorithm, **fixed,
    }  # fmt: skip


def _optimizer(any_of, eps):
    name, momentum = any_of.choice(("sgd", "sgd", "adam", "adamw")), any_of.choice((0.0, 0.9))
    return {"name": name, "lr": 0.2 if name == "sgd" else 0.02, "weight_decay": any_of.choice((0.0, 0.05)),
            "momentum": momentum if name == "sgd" else 0.0, "eps": eps,
            "nesterov": name == "sgd" and momentum > 0 and any_of.random() < 0.5}  # fmt: skip
