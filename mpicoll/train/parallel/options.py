"""The options of a trainer, checked together."""

from dataclasses import asdict, dataclass, fields

from ...algorithms import list_algorithms
from ...support.checks import check, check_integer, check_word
from ..optim import LossScale

PRECISIONS = ("float64", "float32", "float16", "bfloat16")
OVERLAPS = ("none", "gradients", "all")
REDUCTIONS = ("allreduce", "reduce_scatter")
#: strategies: whether optimizer state is sharded, and whether gradients are kept as shards only
SHARDED = {"parameter_server": (False, False), "allreduce": (False, False), "zero1": (True, False), "zero2": (True, True)}
#: words that reduce_scatter and allgather know under other names than allreduce
_HALVES = {"halving_doubling": ("halving", "doubling"), "pairwise": ("pairwise", "ring")}


@dataclass(frozen=True)
class Options:
    """strategy: parameter_server, allreduce, zero1 (optimizer state sharded) or zero2 (gradients too). overlap: none; gradients
    (their reduction with the rest of backward); all (the allgather of zero1 and zero2 too, with the next forward).

    bucket_bytes, parameter_bucket_bytes: how much of gradients and of parameters starts together (default: as the gradients).
    reduction: of the gradients; default reduce_scatter for zero1 and zero2. accumulate: micro-batches per step. clip_norm: the
    largest norm of all gradients. precision: of parameters and gradients in memory and on the wire; with 16 bits there are
    float32 masters, and the arithmetic is float32. loss_scale: dynamic or a number. algorithm: of the bucket collectives, a
    word of `mpicoll.list_algorithms("allreduce")`.
    """

    strategy: str = "allreduce"
    overlap: str = "all"
    bucket_bytes: int = 4 << 20
    parameter_bucket_bytes: int | None = None
    reduction: str | None = None
    accumulate: int = 1
    clip_norm: float | None = None
    precision: str = "float32"
    loss_scale: object = None
    algorithm: str = "ring"

    def check(self):
        """Raise ArgumentError for the first value that cannot be used."""
        check_word("strategy", self.strategy, SHARDED)
        check_word("overlap", self.overlap, OVERLAPS)
        check_word("precision", self.precision, PRECISIONS)
        check_word("algorithm", self.algorithm, list_algorithms("allreduce"))
        check_integer("bucket_bytes", self.bucket_bytes, 1)
        if self.parameter_bucket_bytes is not None:
            check_integer("parameter_bucket_bytes", self.parameter_bucket_bytes, 1)
        check_integer("accumulate", self.accumulate, 1)
        norm = self.clip_norm
        check("clip_norm", norm, norm is None or 0 < norm < float("inf"), "a norm above 0, or None")
        LossScale.of(self.loss_scale)
        allowed = REDUCTIONS if self.sharded else ("allreduce",)
        good = self.reduction is None or self.reduction in allowed
        check("reduction", self.reduction, good, f"for {self.strategy} one of {', '.join(allowed)}")
        words = [word for word in list_algorithms("allreduce") if self._serves(word)]
        check("algorithm", self.algorithm, self.algorithm in words, f"for {self.strategy} one of {', '.join(words)}")

    def _serves(self, word):
        """Whether all collectives of the strategy know the word, or its counterpart."""
        if self.strategy == "parameter_server":
            return word == "ring"  # the default, which it does not use
        return all(self.words_of(word)[name] in list_algorithms(name) for name in self.collectives)

    @property
    def bucket_limits(self):
        """Bytes that start together: of gradients, of parameters."""
        return self.bucket_bytes, self.parameter_bucket_bytes or self.bucket_bytes

    @property
    def sharded(self):
        """Whether each rank updates its shard only."""
        return SHARDED[self.strategy][0]

    @property
    def scattered(self):
        """Whether gradients are kept as shards only."""
        return SHARDED[self.strategy][1]

    @property
    def collectives(self):
        """Which collectives move the buckets."""
        if not self.sharded:
            return ("allreduce",)
        return (self.reduction or "reduce_scatter", "allgather")

    @staticmethod
    def words_of(word):
        """The algorithm of each collective that a word of allreduce stands for."""
        first, second = _HALVES.get(word, (word, word))
        return {"allreduce": word, "reduce_scatter": first, "allgather": second}

    def facts(self):
        """By name, what must be equal on all ranks."""
        return asdict(self)

    @classmethod
    def names(cls):
        """Those of the options."""
        return [field.name for field in fields(cls)]
