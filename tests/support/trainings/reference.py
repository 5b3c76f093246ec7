"""The reference: a training in one process, by the formulas of the papers, tensor by tensor, in float64."""

import math

import numpy

from .models import data, first_values, left_out, mixed, mixed_backward, mixing, regression, specification


def train(config, ranks, rounded, first):
    """Losses of all steps, and the parameters at the end. first: the parameters at the beginning.

    ranks: how many there would be; rounded(array): to what precision parameters are kept where they are used.
    """
    values = [array.astype("float64") for array in first]
    features, labels = data(config)
    update = optimizer(config["optimizer"], values)
    masters = config["options"]["precision"] in ("float16", "bfloat16")
    losses, step = [], 0
    for fit in config["fits"]:
        for batch in order(len(labels), config["batch"], fit["seed"], fit["steps"]):
            used = [rounded(value) for value in values]
            loss, gradients = whole_batch(config, used, features, labels, batch, ranks, step)
            losses.append(float(loss))
            limit = config["options"]["clip_norm"]
            norm = math.sqrt(sum(float((one * one).sum()) for one in gradients))
            if limit is not None and norm > limit:
                gradients = [one * (limit / norm) for one in gradients]
            values = update(values, gradients)
            if not masters:
                values = [rounded(value) for value in values]
            step += 1
    return losses, [rounded(value) for value in values]


def order(samples, batch, seed, steps):
    """The batches of so many steps: each epoch is a permutation of all samples."""
    epoch = 0
    while steps:
        permutation = numpy.random.default_rng([seed, epoch]).permutation(samples)
        batches = [permutation[start : start + batch] for start in range(0, samples, batch)][:steps]
        yield from batches
        steps -= len(batches)
        epoch += 1


def micro_batches(config, batch, ranks):
    """(rank, number of the micro-batch of that rank, its samples) of all ranks."""
    parts = config["options"]["reproducible"]
    for rank in range(ranks):
        if parts:
            mine = numpy.array_split(numpy.arange(parts), ranks)[rank]
            cut = [numpy.array_split(batch, parts)[number] for number in mine]
        else:
            cut = numpy.array_split(numpy.array_split(batch, ranks)[rank], config["options"]["accumulate"])
        yield from ((rank, number, rows) for number, rows in enumerate(cut))


def whole_batch(config, values, features, labels, batch, ranks, step):
    """Loss and gradients of a batch: the sum over the micro-batches of all ranks."""
    loss, gradients = 0.0, [numpy.zeros_like(value) for value in values]
    matrices = mixing(config["arrays"], config["width"], config["seed"]) if config["kind"] == "function" else None
    for rank, micro, rows in micro_batches(config, batch, ranks):
        if len(rows) == 0:
            continue
        if config["kind"] == "function":
            part, given = regression(values, matrices, features[rows], labels[rows])
            share = len(rows) / len(batch)
            part, given = part * share, [one * share for one in given]
        else:
            part, given = layered(config, values, features[rows], labels[rows], len(batch), (step, micro, rank))
        loss += part
        for gradient, one in zip(gradients, given):
            gradient += one
    return loss, gradients


def layered(config, values, x, labels, samples, place):
    """Softmax cross-entropy of a chain of layers, divided by `samples`, and its gradients."""
    layers, kept, used, at = specification(config), [], [], 0
    skipped = left_out(config, [number for number, layer in enumerate(layers) if layer[0] == "scaling"], *place)
    for number, (kind, *rest) in enumerate(layers):
        count = {"linear": 2, "relu": 0, "scaling": len(rest[1]) if kind == "scaling" else 0}[kind]
        own, at = values[at : at + count], at + count
        kept.append((own, x))
        used.append(number not in skipped)
        if number in skipped:
            continue
        if kind == "linear":
            x = x @ own[0] + own[1]
        elif kind == "relu":
            x = numpy.maximum(x, 0)
        else:
            x = x * (1 + mixed(own, mixing(rest[1], rest[0], rest[2])))
    shifted = x - x.max(axis=1, keepdims=True)
    logs = shifted - numpy.log(numpy.exp(shifted).sum(axis=1, keepdims=True))
    rows = numpy.arange(len(labels))
    loss = -logs[rows, labels].sum() / samples
    dy = numpy.exp(logs)
    dy[rows, labels] -= 1
    dy /= samples
    gradients = []
    for (kind, *rest), (own, x), present in zip(reversed(layers), reversed(kept), reversed(used)):
        if not present:
            gradients = [*(numpy.zeros_like(one) for one in own), *gradients]
        elif kind == "linear":
            gradients = [x.T @ dy, dy.sum(axis=0), *gradients]
            dy = dy @ own[0].T
        elif kind == "relu":
            dy = dy * (x > 0)
        else:
            matrices = mixing(rest[1], rest[0], rest[2])
            gradients = [*mixed_backward(own, matrices, (dy * x).sum(axis=0)), *gradients]
            dy = dy * (1 + mixed(own, matrices))
    return loss, gradients


def initial(config):
    """The parameters at the beginning, which are those of rank 0."""
    if config["kind"] == "function":
        return first_values(config["arrays"], config["seed"])
    random, values = numpy.random.default_rng(0), []
    for kind, *rest in specification(config):
        if kind == "linear":
            values += [random.standard_normal(rest[:2]) * math.sqrt(2 / rest[0]), numpy.zeros(rest[1])]
        elif kind == "scaling":
            values += first_values(rest[1], rest[2])
    return values


def optimizer(options, values):
    """update(values, gradients) -> values, with a state of its own."""
    name, lr, decay = options["name"], options["lr"], options["weight_decay"]
    velocity = [numpy.zeros_like(value) for value in values]
    square = [numpy.zeros_like(value) for value in values]
    count = 0

    def sgd(values, gradients):
        momentum, new = options["momentum"], []
        for number, (value, gradient) in enumerate(zip(values, gradients)):
            gradient = gradient + decay * value
            velocity[number] = momentum * velocity[number] + gradient
            move = gradient + momentum * velocity[number] if options["nesterov"] else velocity[number]
            new.append(value - lr * move)
        return new

    def adam(values, gradients):
        nonlocal count
        count, new = count + 1, []
        for number, (value, gradient) in enumerate(zip(values, gradients)):
            if name == "adamw":
                value = value * (1 - lr * decay)
            else:
                gradient = gradient + decay * value
            velocity[number] = 0.9 * velocity[number] + 0.1 * gradient
            square[number] = 0.999 * square[number] + 0.001 * gradient**2
            mean, spread = velocity[number] / (1 - 0.9**count), square[number] / (1 - 0.999**count)
            new.append(value - lr * mean / (numpy.sqrt(spread) + options["eps"]))
        return new

    return sgd if name == "sgd" else adam
