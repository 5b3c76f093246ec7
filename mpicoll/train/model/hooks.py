"""What a model calls around the computation of each layer."""


class Hooks:
    """Base, by which nothing happens. Layers are counted from 0, in forward order."""

    def forward(self, layer: int) -> None:
        """It is about to compute its values."""

    def backward(self, layer: int) -> None:
        """It is about to write its gradients."""

    def ready(self, layer: int) -> None:
        """Its gradients are written."""


class Finished(Hooks):
    """Notes in which order layers finish."""

    def __init__(self) -> None:
        self.layers: list[int] = []

    def ready(self, layer: int) -> None:
        self.layers.append(layer)
