"""The options of a trainer, declared once: keywords, documentation and command line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, TypeAlias, TypedDict, get_args

from ...algorithms import LIBRARIES, AllreduceName, library_names, list_algorithms, registered
from ...codes import CompressionName
from ...collectives import CollectiveName
from ...support.checks import check, check_integer, check_word, number_of
from ...support.optional import require

StrategyName: TypeAlias = Literal["parameter_server", "allreduce", "zero1", "zero2", "diloco"]
Overlap: TypeAlias = Literal["none", "gradients", "all"]
Precision: TypeAlias = Literal["float64", "float32", "float16", "bfloat16"]
Reduction: TypeAlias = Literal["allreduce", "reduce_scatter"]
Inner: TypeAlias = Literal["rank", "node"]
#: strategies: whether optimizer state is sharded, and whether gradients are kept as shards only
SHARDED = {
    "parameter_server": (False, False),
    "allreduce": (False, False),
    "zero1": (True, False),
    "zero2": (True, True),
    "diloco": (False, False),
}
#: of the bucket collectives, where none is asked for
RING = "ring"
#: instead of a ring where all ranks are on one node, whose messages cost more than their bytes
WITHIN_NODE = "circulant"
#: the algorithm of compressed reductions: it sums what each rank sends in codes of its own. In
#: that of several ranks on a node the codes are of the node's sum
PAIRWISE = "pairwise"
#: micro-batches of a reproducible training, where their number is not given
MICRO_BATCHES = 8
#: bytes of a bucket, where none are given, at most
LARGEST = 4 << 20
#: algorithms that reduce_scatter and allgather know under other names than allreduce
_HALVES = {"halving_doubling": ("halving", "doubling"), "pairwise": ("pairwise", "ring")}


class OptionKeywords(TypedDict, total=False):
    """The fields of `Options` that `Trainer` takes as further keywords, for type checkers."""

    overlap: Overlap
    bucket_bytes: int | None
    parameter_bucket_bytes: int | None
    reduction: Reduction | None
    accumulate: int
    clip_norm: float | None
    loss_scale: Literal["dynamic"] | float | None
    algorithm: AllreduceName | None
    compression: CompressionName | None
    parameter_compression: CompressionName | None
    error_feedback: bool
    reproducible: bool | int
    elastic: bool
    inner_steps: int
    fragments: int
    inner: Inner
    outer_lr: float
    outer_momentum: float


@dataclass(frozen=True)
class Options:
    """How ranks share the work of a step: keywords of `Trainer` and, most of them, of `wrap`.

    Parameters
    ----------
    strategy : {"allreduce", "parameter_server", "zero1", "zero2", "diloco"}
        How ranks share the state. allreduce: each rank has all of it. parameter_server: rank 0
        alone updates. zero1 shards the optimizer state over the ranks, zero2 also the gradients.
        diloco: each rank trains alone, and every few steps the ranks average their changes.
    overlap : {"all", "gradients", "none"}
        Communication that runs during computation. gradients: their reduction, during the rest of
        backward. all: also the parameter allgather of zero1 and zero2, during the next forward.
    bucket_bytes : int, optional
        Size of a gradient bucket, which is reduced as one message. Default: an eighth of the
        model, at most 4 MiB, at least 16 KiB per rank.
    parameter_bucket_bytes : int, optional
        Size of a parameter bucket, which is gathered as one message. Default: `bucket_bytes`.
    reduction : {"reduce_scatter", "allreduce"}, optional
        The collective that reduces the gradients of zero1 and zero2. Default: reduce_scatter.
    accumulate : int
        Micro-batches per step.
    clip_norm : float, optional
        Scale gradients down to this Euclidean norm, taken over all of them.
    precision : {"float32", "float64", "float16", "bfloat16"}
        Type of parameters and gradients in memory and in messages. The 16-bit types have float32
        masters and float32 arithmetic.
    loss_scale : {"dynamic"} or float, optional
        Factor on the loss. With one, a step with gradients that are not finite is skipped.
    algorithm : str, optional
        Algorithm of the bucket collectives: one of ``mpicoll.list_algorithms("allreduce")``, or
        "nccl" on GPUs. Default: "circulant" for a model in host memory whose ranks all share a
        node, otherwise "ring"; with compression "pairwise", or "hierarchical" with several ranks
        on a node.
    compression : {"int8", "int4", "bfloat16", "float16"}, optional
        Quantise gradients before they are sent. Parameters of one dimension, such as biases, are
        exempt. Inside a single node it would slow the step down, and is ignored unless `algorithm`
        is given.
    parameter_compression : {"int8", "int4", "bfloat16", "float16"}, optional
        Quantise the parameters that zero1 and zero2 gather. Each rank then keeps float32 masters
        of its shard.
    error_feedback : bool
        Add the quantisation error of each step to the gradients of the next. Needs memory for two
        float32 vectors of all parameters on each rank. With elastic, a quantised copy of the
        errors is sent to another rank after each step.
    reproducible : bool or int
        Give the same bits on any number of ranks: each batch has this number of micro-batches
        (True: 8), whose gradients are summed in fixed point. A rank stores the gradients of each
        of its micro-batches.
    elastic : bool
        Continue when ranks die: the survivors go on after the last completed step, with the same
        global batches. Needs Open MPI, ``mpirun --with-ft ulfm`` and 2 ranks. Not available with
        parameter_server.
    inner_steps : int
        diloco: steps between two exchanges of a parameter.
    fragments : int
        diloco: parts of the parameters that are exchanged in turn, at equal intervals. At most
        `inner_steps`.
    inner : {"rank", "node"}
        diloco: what takes inner steps. rank: each rank alone. node: the ranks of a node together,
        which sum their gradients in each step.
    outer_lr : float
        diloco: learning rate of the outer step, whose gradient is the average change of the
        parameters. A rate of 1 without momentum averages the parameters.
    outer_momentum : float
        diloco: Nesterov momentum of the outer step, from 0 to below 1.
    """

    strategy: StrategyName = "allreduce"
    overlap: Overlap = "all"
    bucket_bytes: int | None = None
    parameter_bucket_bytes: int | None = None
    reduction: Reduction | None = None
    accumulate: int = 1
    clip_norm: float | None = None
    precision: Precision = "float32"
    loss_scale: Literal["dynamic"] | float | None = None
    algorithm: AllreduceName | None = None
    compression: CompressionName | None = None
    parameter_compression: CompressionName | None = None
    error_feedback: bool = False
    reproducible: bool | int = False
    elastic: bool = False
    inner_steps: int = 30
    fragments: int = 4
    inner: Inner = "rank"
    outer_lr: float = 0.7
    outer_momentum: float = 0.9

    def check(self) -> None:
        """Raise ArgumentError for the first unusable value, LaunchError for a missing package."""
        check_word("strategy", self.strategy, get_args(StrategyName))
        check_word("overlap", self.overlap, get_args(Overlap))
        check_word("precision", self.precision, get_args(Precision))
        if self.precision == "bfloat16":
            require("ml_dtypes", "bfloat16")
        check_word("algorithm", self._algorithm, _known("allreduce"))
        for name in ("bucket_bytes", "parameter_bucket_bytes"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1)
        check_integer("accumulate", self.accumulate, 1)
        norm = self.clip_norm
        good = norm is None or 0 < number_of(norm) < math.inf
        check("clip_norm", norm, good, "a norm above 0, or None")
        fixed_scale(self.loss_scale)
        check("elastic", self.elastic, self.elastic in (False, True), "False or True")
        check(
            "strategy",
            self.strategy,
            not (self.served and self.elastic),
            "with elastic one of allreduce, zero1, zero2, diloco: rank 0 alone has the state",
        )
        self._check_collectives()
        self._check_reproducible()
        self._check_compression()
        self._check_local_steps()

    def _check_reproducible(self) -> None:
        """What would make the result depend on who computes what is refused."""
        if self.reproducible is False:
            return
        check_integer("reproducible", self.reproducible, 1)
        check(
            "accumulate",
            self.accumulate,
            self.accumulate == 1,
            "1: with reproducible=N each batch has N micro-batches",
        )
        expected = "one that has a schedule: no library sums in fixed point"
        check("algorithm", self.algorithm, self.algorithm not in LIBRARIES, expected)

    def _check_compression(self) -> None:
        for name in ("compression", "parameter_compression"):
            if getattr(self, name) is not None:
                check_word(name, getattr(self, name), get_args(CompressionName))
        check("error_feedback", self.error_feedback, self.error_feedback in (False, True),
              "False or True")  # fmt: skip
        if self.error_feedback:
            self._check_error_feedback()
        if not self.compresses:
            return
        expected = (
            "one of allreduce, zero1, zero2, diloco with compression: rank 0 alone has the state"
        )
        check("strategy", self.strategy, not self.served, expected)
        good = self.parameter_compression is None or self.sharded
        expected = f"None: {self.strategy} sends no parameters; zero1 and zero2 do"
        check("parameter_compression", self.parameter_compression, good, expected)
        expected = (
            "False with compression: codes are made of what a rank has, and what they lose "
            "depends on how many ranks share a batch"
        )
        check("reproducible", self.reproducible, self.reproducible is False, expected)
        if self.algorithm is not None:
            able = [name for name in list_algorithms("allreduce") if self._can_compress(name)]
            expected = f"with compression one of {', '.join(able)}"
            check("algorithm", self.algorithm, self.algorithm in able, expected)

    def _check_local_steps(self) -> None:
        check_integer("inner_steps", self.inner_steps, 1)
        check_integer("fragments", self.fragments, 1)
        check_word("inner", self.inner, get_args(Inner))
        rate = self.outer_lr
        good = 0 < number_of(rate) < math.inf
        check("outer_lr", rate, good, "a number above 0")
        momentum = self.outer_momentum
        good = 0 <= number_of(momentum) < 1
        check("outer_momentum", momentum, good, "a number from 0 to below 1")
        if not self.is_local:
            return
        expected = f"at most the {self.inner_steps} inner steps"
        check("fragments", self.fragments, self.fragments <= self.inner_steps, expected)
        refused = {
            "reproducible": "False with diloco: what a rank learns depends on its samples alone",
            "error_feedback": "False with diloco, which keeps no residuals",
            "loss_scale": "None with diloco: ranks would skip different steps",
        }
        for name, expected in refused.items():
            value = getattr(self, name)
            check(name, value, value is None or value is False, expected)

    def _check_error_feedback(self) -> None:
        compressed = self.compression is not None
        check("error_feedback", True, compressed, "False without compression: nothing is lost")
        expected = f"{PAIRWISE} with error_feedback: others send no codes of what one rank has"
        check("algorithm", self.algorithm, self.algorithm in (None, PAIRWISE), expected)

    def _can_compress(self, algorithm: str) -> bool:
        """Whether it can send codes in all collectives that are to be compressed."""
        if not self._serves(algorithm):
            return False
        names = _counterparts(algorithm)
        return all(
            any(entry.name == names[collective] and entry.compressible
                for entry in registered(collective))
            for collective, compression in self.compressions.items()
            if compression is not None
        )  # fmt: skip

    def _check_collectives(self) -> None:
        allowed = get_args(Reduction) if self.sharded else ("allreduce",)
        good = self.reduction is None or self.reduction in allowed
        check("reduction", self.reduction, good, f"for {self.strategy} one of {', '.join(allowed)}")
        served = [algorithm for algorithm in _known("allreduce") if self._serves(algorithm)]
        check(
            "algorithm",
            self._algorithm,
            self._algorithm in served,
            f"for {self.strategy} one of {', '.join(served)}",
        )

    def _serves(self, algorithm: str) -> bool:
        """Whether all collectives of the strategy know the algorithm, or its counterpart."""
        if self.served:
            return algorithm == RING  # the default, which it does not use
        names = _counterparts(algorithm)
        return all(names[collective] in _known(collective) for collective in self.collectives)

    @property
    def _algorithm(self) -> str:
        return RING if self.algorithm is None else self.algorithm

    @property
    def bucket_limits(self) -> tuple[int, int]:
        """Bytes that start together: of gradients, of parameters."""
        gradients = self.bucket_bytes or LARGEST
        return gradients, self.parameter_bucket_bytes or gradients

    def bucket_elements(self, itemsize: int) -> tuple[int, int]:
        """Elements that start together, at least one: of gradients, of parameters."""
        gradients, parameters = self.bucket_limits
        return max(1, gradients // itemsize), max(1, parameters // itemsize)

    @property
    def micro_batches(self) -> int | None:
        """How many all ranks make of each batch together; None where each rank makes its own."""
        if self.reproducible is False:
            return None
        return MICRO_BATCHES if self.reproducible is True else self.reproducible

    @property
    def served(self) -> bool:
        """Whether rank 0 updates everything for the others."""
        return self.strategy == "parameter_server"

    @property
    def is_local(self) -> bool:
        """Whether ranks train by themselves, and exchange parameters now and then."""
        return self.strategy == "diloco"

    @property
    def of_group(self) -> Options:
        """Those of the inner steps that some ranks take together, where `is_local`."""
        algorithm: Any = WITHIN_NODE if self.inner == "node" else RING
        return replace(
            self, strategy="allreduce", algorithm=algorithm, compression=None, elastic=False
        )

    @property
    def sharded(self) -> bool:
        """Whether each rank updates its shard only."""
        return SHARDED[self.strategy][0]

    @property
    def scattered(self) -> bool:
        """Whether gradients are kept as shards only."""
        return SHARDED[self.strategy][1]

    @property
    def collectives(self) -> Sequence[CollectiveName]:
        """Which collectives move the buckets, the reduction first."""
        if not self.sharded:
            return ("allreduce",)
        return (self.reduction or "reduce_scatter", "allgather")

    @property
    def compressions(self) -> dict[CollectiveName, CompressionName | None]:
        """The compression of each of `collectives`."""
        both = (self.compression, self.parameter_compression)
        return dict(zip(self.collectives, both))

    @property
    def compresses(self) -> bool:
        """Whether anything is to be compressed."""
        return self.compression is not None or self.parameter_compression is not None

    @property
    def counted(self) -> bool:
        """Whether the bytes of the bucket collectives are counted: libraries do not tell."""
        return self._algorithm not in LIBRARIES

    @property
    def algorithms(self) -> dict[str, Any]:
        """The algorithm of each collective."""
        return _counterparts(self._algorithm)

    def facts(self) -> dict[str, object]:
        """By name, what must be equal on all ranks."""
        return asdict(self)

    @classmethod
    def names(cls) -> list[str]:
        """Those of the options."""
        return [field.name for field in fields(cls)]


def fixed_scale(option: str | float | None) -> float | None:
    """The factor on the loss that an option asks for; None: a dynamic one. Raises ArgumentError."""
    if option == "dynamic":
        return None
    try:
        value = 1.0 if option is None else float(option)
    except (TypeError, ValueError):
        value = math.nan
    check("loss_scale", option, 0 < value < math.inf, "dynamic or a number above 0")
    return value


def _known(collective: CollectiveName) -> list[str]:
    """The names that `algorithm=` takes, NCCL's among them."""
    return list(dict.fromkeys([*list_algorithms(collective), *library_names(collective)]))


def _counterparts(algorithm: str) -> dict[str, Any]:
    """The algorithm of each collective that one of allreduce stands for."""
    first, second = _HALVES.get(algorithm, (algorithm, algorithm))
    return {"allreduce": algorithm, "reduce_scatter": first, "allgather": second}
