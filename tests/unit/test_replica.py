"""A replica that follows by its gradients has the state of the shard itself, to the bit."""

import numpy
import pytest

from mpicoll.train import SGD, Adam, AdamW
from mpicoll.train.optim.lr_schedules import Warmup
from mpicoll.train.parallel.replica import Made, Replica

TOTAL = 70_001  # more than one piece of an optimizer, and no multiple of anything


@pytest.mark.parametrize("sent", ["float16", "float32", "float64"])
@pytest.mark.parametrize("make", [
    lambda: SGD(0.1), lambda: SGD(0.1, 0.9, nesterov=True, weight_decay=0.01), lambda: Adam(weight_decay=0.1),
    lambda: AdamW(schedule=Warmup(3)),
], ids=["sgd", "nesterov", "adam", "adamw"])  # fmt: skip
def test_what_is_made_again_is_the_same(make, sent):
    random = numpy.random.default_rng(5)
    kept = "float64" if sent == "float64" else "float32"
    optimizer, parameters = make(), random.standard_normal(TOTAL).astype(kept)
    optimizer.allocate(TOTAL, parameters)
    replica, made = Replica(list(optimizer.state), TOTAL, kept, sent), {}
    replica.vectors[0] = parameters

    def agrees(vectors):
        return all(row.tobytes() == array.tobytes() for row, array in zip(vectors, [parameters, *optimizer.state.values()]))

    for step in range(1, 7):
        gradients = random.standard_normal(TOTAL).astype(sent)
        factor = None if step == 3 else 1 / step  # the third is skipped
        if factor is not None:
            optimizer.advance()
            for start in (0, 1234):  # in two buckets, unlike the replica
                part = slice(start, 1234 if start == 0 else TOTAL)
                optimizer.apply(parameters[part], gradients[part], start, TOTAL, factor)
        made[step] = Made.by(optimizer, factor, None)
        replica.gradients(step)[...] = gradients
        assert agrees(replica.after(step, made))
        replica.follow(step - 1, made)
        assert replica.step == step - 1 and agrees(replica.after(step, made))
        optimizer.lr *= 0.9  # whoever changes it between two steps


def test_an_update_that_is_made_again_changes_no_optimizer():
    optimizer = Adam()
    optimizer.update(numpy.ones(3), numpy.ones(3))
    before = {name: array.copy() for name, array in optimizer.state.items()}
    replica, made = Replica(list(optimizer.state), 3, "f8", "f8"), {1: Made.by(optimizer, 1.0, None)}
    replica.follow(1, made)
    assert optimizer.steps == 1 and made[1].optimizer.state == {}
    assert all((before[name] == array).all() for name, array in optimizer.state.items())
