"""What tests of the torch.distributed backend share: tensors whose sums are known."""

import pytest

from tests.support.cases import RANK, SIZE

torch = pytest.importorskip(
    "torch",
    reason="serves torch.distributed where PyTorch is installed: pip install 'mpicoll[torch]'",
)

#: the sum over ranks of `mine`
TOTAL = SIZE * (SIZE + 1) // 2


def mine(*shape, dtype=torch.float32):
    """This rank's tensor: rank + 1 everywhere."""
    return torch.full(shape, RANK + 1, dtype=dtype)


def each(make):
    """A list of what `make` returns for each rank."""
    return [make(rank) for rank in range(SIZE)]
