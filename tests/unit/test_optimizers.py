"""Optimizers on parts of shards: against formulas written apart and PyTorch."""

import numpy
import pytest

from mpicoll.errors import ArgumentError
from mpicoll.train import SGD, Adam, AdamW
from mpicoll.train.optim.lr_schedules import Cosine, Linear, Warmup
from tests.support.numbers import HALVES, LENGTH, named, numbers

CASES = [
    (SGD, {"lr": 0.1}),
    (SGD, {"lr": 0.1, "weight_decay": 0.02}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.02}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.02}),
    (Adam, {"lr": 0.01}),
    (Adam, {"lr": 0.01, "betas": (0.8, 0.99), "weight_decay": 0.1}),
    (AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    (AdamW, {"lr": 0.01, "weight_decay": 0.0}),
]


def trained(kind, options, gradients, apply, dtype="float32"):
    """Parameters and optimizer after `apply(optimizer, parameters, gradient)` on each of the gradients."""
    optimizer, parameters = kind(**options), numbers(gradients.shape[1], seed=1, dtype=dtype)
    for gradient in gradients:
        optimizer.advance()
        apply(optimizer, parameters, gradient)
    return parameters, optimizer


def whole(optimizer, parameters, gradient):
    optimizer.apply(parameters, gradient)


# ---- optimizers: formulas, options


def reference(kind, options, parameter, gradients):
    """The published formulas for one parameter, in plain Python."""
    lr, decay = options["lr"], options.get("weight_decay", 0.0)
    first, second = options.get("betas", (0.9, 0.999))
    momentum = velocity = mean = square = 0.0
    momentum = options.get("momentum", 0.0)
    for step, gradient in enumerate(gradients, 1):
        if kind is AdamW:
            parameter -= lr * decay * parameter
        else:
            gradient += decay * parameter
        if kind is SGD:
            velocity = momentum * velocity + gradient
            parameter -= lr * (gradient + momentum * velocity if options.get("nesterov") else velocity)
        else:
            mean = first * mean + (1 - first) * gradient
            square = second * square + (1 - second) * gradient**2
            parameter -= lr * (mean / (1 - first**step)) / ((square / (1 - second**step)) ** 0.5 + 1e-8)
    return parameter


@pytest.mark.parametrize("kind, options", CASES)
@pytest.mark.parametrize("length", [1, 40_000])  # the second is updated in two pieces
def test_optimizers_against_their_formulas(kind, options, length):
    random = numpy.random.default_rng(0)
    parameters, gradients = random.standard_normal(length), random.standard_normal((5, length))
    picked = [0, length // 2, length - 1]
    expected = [reference(kind, options, parameters[i], gradients[:, i].copy()) for i in picked]
    optimizer, kept = kind(**options), gradients.copy()
    for gradient in gradients:
        optimizer.update(parameters, gradient)
    numpy.testing.assert_allclose(parameters[picked], expected, rtol=1e-12)
    assert (gradients == kept).all()
    assert optimizer.nbytes == len(optimizer.slots) * parameters.nbytes


def test_closed_forms():
    x = numpy.array([2.0])
    optimizer = SGD(lr=0.1)
    for _ in range(10):
        optimizer.update(x, x.copy())  # gradient of x**2 / 2
    assert x[0] == pytest.approx(2 * 0.9**10, rel=1e-14)
    x, g = numpy.zeros(3), numpy.array([1e-3, -5.0, 40.0])
    Adam(lr=0.01).update(x, g)
    numpy.testing.assert_allclose(x, -0.01 * numpy.sign(g), rtol=1e-4)  # a first step is lr long, whatever the gradient


@pytest.mark.parametrize("kind, options", CASES)
def test_slices_can_be_updated_apart(kind, options):
    random = numpy.random.default_rng(0)
    whole, gradient = random.standard_normal(10), random.standard_normal(10)
    parts, slices = whole.copy(), (slice(0, 3), slice(3, 10))
    optimizer, shards = kind(**options), [kind(**options), kind(**options)]
    for _ in range(3):
        optimizer.update(whole, gradient)
        for shard, part in zip(shards, slices):
            shard.update(parts[part], gradient[part])
    assert (parts == whole).all()


@pytest.mark.parametrize("make, name", [
    (lambda: SGD(lr=0), "lr"), (lambda: SGD(lr=float("nan")), "lr"), (lambda: SGD(momentum=1), "momentum"),
    (lambda: SGD(nesterov=True), "nesterov"), (lambda: Adam(betas=(0.9,)), "betas"), (lambda: Adam(eps=0), "eps"),
    (lambda: AdamW(weight_decay=-1), "weight_decay"),
    (lambda: SGD(lr="fast"), "lr"), (lambda: Adam(lr=None), "lr"), (lambda: SGD(lr=1j), "lr"), (lambda: SGD(lr=[1, 2]), "lr"),
    (lambda: SGD(momentum="0.9"), "momentum"), (lambda: SGD(momentum=None, nesterov=True), "momentum"),
    (lambda: SGD(weight_decay="0"), "weight_decay"), (lambda: AdamW(weight_decay=()), "weight_decay"),
    (lambda: Adam(betas=0.9), "betas"), (lambda: Adam(betas="ab"), "betas"), (lambda: Adam(betas=(None, 0.9)), "betas"),
    (lambda: Adam(eps="small"), "eps"),
])
def test_wrong_hyperparameters(make, name):
    with pytest.raises(ArgumentError, match=f"^{name}: expected"):
        make()


# ---- optimizers: parts, dtypes, scale


@pytest.mark.parametrize("kind, options", CASES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_parts_in_any_order_give_the_same_bits(kind, options, dtype):
    bounds = [(40_001, LENGTH), (0, 3), (3, 3), (3, 40_001)]

    def in_parts(optimizer, parameters, gradient):
        for start, end in bounds:
            optimizer.apply(parameters[start:end], gradient[start:end], start, len(parameters), scale=0.3)

    def at_once(optimizer, parameters, gradient):
        optimizer.apply(parameters, gradient, scale=0.3)

    gradients = numbers(3, LENGTH, dtype=dtype)
    expected, one = trained(kind, options, gradients, at_once, dtype)
    got, other = trained(kind, options, gradients, in_parts, dtype)
    assert (got == expected).all() and one.steps == other.steps == 3
    assert all((one.state[slot] == other.state[slot]).all() for slot in kind(**options).slots)
    assert one.nbytes == other.nbytes == len(one.slots) * expected.nbytes


@pytest.mark.parametrize("kind, options", CASES)
def test_update_is_advance_and_apply(kind, options):
    gradients = numbers(3, 50)
    expected, _ = trained(kind, options, gradients, whole)
    optimizer, parameters = kind(**options), numbers(50, seed=1)
    for gradient in gradients:
        optimizer.update(parameters, gradient)
    assert (parameters == expected).all()


@pytest.mark.parametrize("kind, options", CASES)
@pytest.mark.parametrize("dtype", [*HALVES, "float64"])
def test_gradients_of_another_dtype_are_converted_first(kind, options, dtype):
    gradients = numbers(3, LENGTH).astype(named(dtype))
    expected, _ = trained(kind, options, gradients.astype("float32"), whole)
    kept = gradients.copy()
    got, optimizer = trained(kind, options, gradients, whole)
    assert got.dtype == "float32" and {array.dtype.name for array in optimizer.state.values()} <= {"float32"}
    assert (got == expected).all() and (gradients == kept).all()


@pytest.mark.parametrize("kind, options", CASES)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_scale_multiplies_gradients_that_are_only_read(kind, options, dtype):
    gradients = numbers(3, LENGTH, dtype=dtype)
    scale = numpy.float64(1 / 3)  # must not drag the arithmetic to float64
    expected, _ = trained(kind, options, gradients.astype("float32") * numpy.float32(1 / 3), whole)
    kept = gradients.copy()
    got, _ = trained(kind, options, gradients, lambda optimizer, *arrays: optimizer.apply(*arrays, scale=scale))
    assert (got == expected).all() and (gradients == kept).all()


@pytest.mark.parametrize("kind, options", CASES)
def test_arithmetic_stays_in_the_dtype_of_the_parameters(kind, options):
    seen = set()

    class Watching(numpy.ndarray):
        def __array_ufunc__(self, ufunc, method, *inputs, out=None, **rest):
            def bare(arrays):
                return [array.view(numpy.ndarray) if isinstance(array, numpy.ndarray) else array for array in arrays]

            result = getattr(ufunc, method)(*bare(inputs), **rest, **({"out": tuple(bare(out))} if out else {}))
            seen.add(result.dtype.name)
            return out[0] if out else result.view(Watching)

        __module__ = "numpy"

    parameters = numbers(50, seed=1).view(Watching)
    kind(**options | {"lr": numpy.float64(0.1)}, schedule=Cosine(5)).update(parameters, numbers(50).view(Watching))
    assert seen == {"float32"}


def test_state_before_the_first_step():
    like, optimizer = numbers(3), Adam()
    assert optimizer.nbytes == 0
    optimizer.allocate(10, like)
    assert {slot: (array.shape, array.dtype.name) for slot, array in optimizer.state.items()} == {
        "mean": ((10,), "float32"), "square": ((10,), "float32")}
    assert not any(array.any() for array in optimizer.state.values()) and optimizer.nbytes == 80
    kept = optimizer.state["mean"]
    optimizer.allocate(10, like)
    assert optimizer.state["mean"] is kept
    plain = SGD()
    plain.allocate(10, like)
    assert plain.state == {} and plain.nbytes == 0


def test_going_on_from_steps_and_state_gives_the_same_bits():
    options, gradients = {"lr": 0.01, "schedule": Warmup(2, Cosine(5))}, numbers(6, 50)
    expected, _ = trained(Adam, options, gradients, whole)
    parameters, first = trained(Adam, options, gradients[:3], whole)
    second = Adam(**options)
    second.steps = first.steps
    second.allocate(50, parameters)
    for slot, array in first.state.items():
        second.state[slot][:] = array
    for gradient in gradients[3:]:
        second.update(parameters, gradient)
    assert (parameters == expected).all()


@pytest.mark.parametrize("call, message", [
    (lambda it, x: it.apply(x[:3], x[:4]), r"gradients: expected the shape \(3,\), got \(4,\)"),
    (lambda it, x: it.apply(x[:3], x[:3], start=8, total=10), "start: expected 0 to 7"),
    (lambda it, x: it.apply(x[:3], x[:3], start=-1, total=10), "start: expected 0 to 7"),
    (lambda it, x: it.apply(x[:3], x[:3]), "total: expected 10 elements"),
    (lambda it, x: it.allocate(11, x), "total: expected 10 elements"),
    (lambda it, x: it.allocate(1.5, x), "total: expected an integer"),
    (lambda it, x: Adam().apply(x, x), r"steps: expected at least 1; call advance\(\)"),
    (lambda it, x: Adam(schedule=0.5), "schedule: expected None or a function of the step"),
])
def test_wrong_use(call, message):
    optimizer, x = Adam(), numbers(10)
    optimizer.update(x, numbers(10))
    with pytest.raises(ArgumentError, match=message):
        call(optimizer, x)


def halved(step):
    return 0.5


def test_repr_shows_all_and_the_same_on_every_rank():
    assert repr(SGD(0.2, 0.9, schedule=Linear(7))) == (
        "SGD(lr=0.2, momentum=0.9, nesterov=False, weight_decay=0.0, schedule=Linear(steps=7, final=0.0))")
    assert repr(AdamW(numpy.float64(1))) == (
        "AdamW(lr=1.0, betas=(0.9, 0.999), eps=1e-08, weight_decay=0.01, schedule=None)")
    assert f"schedule={__name__}.halved)" in repr(Adam(schedule=halved))  # no address in it


@pytest.mark.thorough
@pytest.mark.parametrize("kind, options", CASES)
def test_updates_are_those_of_pytorch(torch, kind, options):
    gradients = numbers(6, 40, dtype="float64")
    optimizer, parameters = kind(**options, schedule=Cosine(6)), numbers(40, seed=1, dtype="float64")
    theirs = torch.tensor(parameters, requires_grad=True)
    reference = getattr(torch.optim, kind.__name__)([theirs], **options)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(reference, 6)
    for gradient in gradients:
        optimizer.update(parameters, gradient)
        theirs.grad = torch.tensor(gradient)
        assert optimizer.rate == pytest.approx(reference.param_groups[0]["lr"], rel=1e-12)
        reference.step()
        schedule.step()
    numpy.testing.assert_allclose(parameters, theirs.detach().numpy(), rtol=1e-11)
