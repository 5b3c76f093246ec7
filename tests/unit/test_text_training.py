"""The transformer over text that benchmarks train: what its samples are, and its gradients."""

import numpy
import pytest

pytestmark = pytest.mark.thorough  # PyTorch is not in every environment
TEXT = "the rain in spain stays mainly in the plain. " * 20


@pytest.fixture
def pieces(torch):
    from benchmarks.peers.pieces import Pieces

    return Pieces(8, TEXT)


def test_a_piece_is_followed_by_its_label(pieces):
    data = pieces.dataset
    letters = sorted(set(TEXT))
    assert (len(data), data.tests, pieces.letters) == (101, 11, len(letters))  # 112 pieces
    features = numpy.concatenate([data.features, data.test_features])
    labels = numpy.concatenate([data.labels, data.test_labels])
    assert "".join(letters[code] for code in features.ravel()) == TEXT[:896]
    assert "".join(letters[code] for code in labels) == TEXT[8:897:8]


def test_outputs_are_the_characters_that_follow(torch):
    from benchmarks.peers.pieces import tensors_of

    features = numpy.array([[1, 2, 3], [4, 5, 6]], "float32")
    inputs, outputs = tensors_of(features, numpy.array([7, 8]))
    assert inputs.tolist() == [[1, 2, 3], [4, 5, 6]] and outputs.tolist() == [[2, 3, 7], [5, 6, 8]]


def test_gradients_are_those_of_finite_differences(torch, pieces):
    from benchmarks.peers.pieces import TorchFunction
    from benchmarks.peers.transformer import Transformer

    torch.manual_seed(0)
    module = Transformer(pieces.letters, 8, width=8, layers=1, heads=2).double()
    function = TorchFunction(module)
    batch = pieces.dataset.take(slice(0, 4))
    params = {name: array.copy() for name, array in function.params.items()}
    loss, gradients = function(params, batch)
    assert loss == pytest.approx(function.loss(params, batch), rel=1e-12)
    random = numpy.random.default_rng(0)
    for name, array in params.items():
        direction = random.standard_normal(array.shape)
        sides = [{**params, name: array + step * direction} for step in (-1e-5, 1e-5)]
        slope = numpy.diff([function.loss(side, batch) for side in sides])[0] / 2e-5
        assert slope == pytest.approx((gradients[name] * direction).sum(), rel=1e-4, abs=1e-8), name


def test_a_smoothed_loss(torch):
    from benchmarks.run.time_to_loss import first_below, smooth

    losses = [3.0, 1.0] * 10 + [0.0] * 20
    smoothed = smooth(losses)
    assert smoothed[:3] == [3.0, 2.0, pytest.approx(7 / 3)] and smoothed[19] == 2.0
    assert smoothed[29] == 1.0 and smoothed[39] == 0.0  # the means of the last 20
    assert first_below(smoothed, 1.04) == 30 and first_below(smoothed, 0.0) is None
