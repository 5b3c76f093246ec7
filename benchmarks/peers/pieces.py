"""The text and the model of `transformer` for mpicoll's trainer: a data set and a function.

    text = Pieces(length=64)
    function = TorchFunction(Transformer(text.letters, 64))
    Trainer(function, Adam(), comm, params=function.params).fit(text.dataset, epochs=2)
"""

from functools import partial

import numpy
import torch

from mpicoll.train import Dataset

from .transformer import help_pages, loss_of, numbered

#: the part of the text, at its end, that no training reads
HELD_OUT = 0.1


class Pieces:
    """A text cut into pieces of `length` characters, by default Python's help pages.

    `letters`: how many characters there are. `dataset`: the features of a sample are the numbers of
    the characters of a piece, its label is that of the character after it; the test samples are the
    last tenth of the text.
    """

    def __init__(self, length, text=None):
        letters, codes = numbered(help_pages() if text is None else text)
        self.letters = len(letters)
        count = (len(codes) - 1) // length
        features = numpy.array(codes[: count * length], "uint16").reshape(count, length)
        labels = numpy.array(codes[length : count * length + 1 : length])
        kept = count - int(HELD_OUT * count)
        self.dataset = Dataset(features[:kept], labels[:kept], features[kept:], labels[kept:])


def tensors_of(features, labels):
    """(inputs, outputs) of the transformer: the characters of pieces, and the ones that follow."""
    inputs = torch.from_numpy(numpy.asarray(features, "int64"))
    last = torch.from_numpy(numpy.asarray(labels, "int64"))
    return inputs, torch.cat([inputs[:, 1:], last[:, None]], dim=1)


class TorchFunction:
    """(params, (features, labels)) -> (mean loss, gradients), by PyTorch, on the caller's arrays.

    `params`: the first ones, by name, views of the module's.
    """

    def __init__(self, module):
        self.module = module
        self.params = {
            name: parameter.detach().numpy() for name, parameter in module.named_parameters()
        }

    def __call__(self, params, batch):
        tensors = {name: torch.from_numpy(array) for name, array in params.items()}
        for tensor in tensors.values():
            tensor.requires_grad_()
        loss = self._loss(tensors, batch)
        gradients = torch.autograd.grad(loss, list(tensors.values()))
        return loss.item(), {name: part.numpy() for name, part in zip(tensors, gradients)}

    @torch.no_grad()
    def loss(self, params, batch):
        """The mean loss alone."""
        tensors = {name: torch.from_numpy(array) for name, array in params.items()}
        return self._loss(tensors, batch).item()

    def _loss(self, tensors, batch):
        model = partial(torch.func.functional_call, self.module, tensors)
        return loss_of(model, *tensors_of(*batch))
