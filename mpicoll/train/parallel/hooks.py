"""Between a model and an exchange: layers get views of the flat buffers, and arrays to compute with where those are 16-bit."""


class Binding:
    """What a model calls around the computation of each layer (`layers.Hooks`), for an `Exchange`.

    compute: the dtype of the arithmetic. Where the flat buffers have it, layers compute on views of them; otherwise on copies
    that live while a layer computes.
    """

    def __init__(self, model, exchange, compute):
        self.model, self.exchange, self.compute = model, exchange, compute
        self.direct = exchange.parameters.dtype == compute
        self.tensors = [[] for _ in model.layers]
        for number, tensor in enumerate(exchange.layout.tensors):
            self.tensors[tensor.layer].append(number)
        self._given = None
        self.rest()

    def rest(self):
        """Outside of steps every layer has its parameters, so that the user can compute with the model."""
        self.exchange.settle()
        for number, layer in enumerate(self.model.layers):
            layer.bind(self._parameters(number), ())

    def _parameters(self, layer):
        exchange = self.exchange
        views = [exchange.layout.view(exchange.parameters, number) for number in self.tensors[layer]]
        return views if self.direct else [view.astype(self.compute) for view in views]

    def forward(self, layer):
        """The layer is about to compute."""
        self.exchange.need(layer)
        if not self.direct:
            self.model.layers[layer].bind(self._parameters(layer), ())

    def backward(self, layer):
        """The layer is about to write its gradients."""
        exchange, numbers = self.exchange, self.tensors[layer]
        for number in numbers:
            exchange.acquire(number)
        views = [exchange.gradient(number) for number in numbers]
        if self.direct and exchange.fresh:
            self._given = views
        else:
            self._given = [exchange.module.empty(view.shape, self.compute) for view in views]
        self.model.layers[layer].bind(self._parameters(layer), self._given)

    def ready(self, layer):
        """The layer has written its gradients."""
        exchange = self.exchange
        for number, given in zip(self.tensors[layer], self._given):
            target = exchange.gradient(number)
            if not exchange.fresh:
                target[...] = target.astype(self.compute, copy=False) + given
            elif not self.direct:
                target[...] = given
            exchange.ready(number)
        if not self.direct:
            self.model.layers[layer].bind((), ())
