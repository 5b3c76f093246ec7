"""What `bench` prints: a line per candidate, or per size if that is too many, and a summary."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ..algorithms import NATIVE
from ..support.units import format_bytes, format_seconds, many
from .screen import LINES

Row = dict[str, Any]  # an entry of `bench --json`
#: a candidate so close to the fastest is as fast
_EQUAL = 1.03
_CANDIDATES = (
    f"{'bytes':>6}  {'algorithm':<36}{'median':>9}{'busbw GB/s':>11}{'x native':>9}{'wrong':>6}"
)
_SIZES = (
    f"{'bytes':>6}{'native':>9}{'auto':>9}{'x native':>9} "
    f" {'auto took':<16}{'best':>8}{'x native':>9}  algorithm"
)
_COMPRESSED = (
    f"{'bytes':>6}  {'algorithm':<23}{'median':>8}{'x native':>9}{'error':>9}{'RMS':>8}"
    f"{'of bound':>9}{'wrong':>6}"
)


class Lines:
    """The lines. brief: one for each size, instead of one for each candidate.

    compression: of the compressed candidates, by name.
    """

    def __init__(
        self, candidates: int, sizes: int, everything: bool, compression: str = ""
    ) -> None:
        self.brief = candidates * sizes > LINES and not everything
        self._compression = compression

    def heading(self) -> str:
        """What stands above."""
        if not self._compression:
            return _SIZES if self.brief else _CANDIDATES
        if not self.brief:
            return _COMPRESSED
        return (
            f"{'bytes':>6}{'native':>7}{'auto':>7}{self._compression:>9}{'x native':>9}"
            f"{'x auto':>7}{'RMS':>8}{'of bound':>9}  algorithm"
        )

    def of_size(self, rows: Sequence[Row]) -> Iterator[str]:
        """The lines of one size.

        rows: of all candidates; of a compressed run with auto as it is. Ratios to native are "-"
        where it cannot serve the call.
        """
        if self.brief:
            yield _compressed_size(rows) if self._compression else _size(rows)
        elif self._compression:
            yield from (_with_errors(row, _native(rows)) for row in rows)
        else:
            best = fastest(rows)
            yield from (_candidate(row, _native(rows), row is best) for row in rows)


def osu(rows: Sequence[Row]) -> Iterator[str]:
    """A block for each candidate, with the columns that scripts read from OSU's programs.

    Times are of the slowest rank of each call; average, minimum and maximum are over calls.
    """
    for name in dict.fromkeys(row["algorithm"] for row in rows):
        of_candidate = [row for row in rows if row["algorithm"] == name]
        method = of_candidate[0]["collective"].capitalize()
        yield f"# mpicoll bench, {method} Latency Test, {name}, {of_candidate[0]['dtype']}"
        yield (
            f"{'# Size':<10}{'Avg Latency(us)':>18}{'Min Latency(us)':>18}"
            f"{'Max Latency(us)':>18}{'Iterations':>12}"
        )
        for row in of_candidate:
            times = "".join(f"{row[key]:>18.2f}" for key in ("mean_us", "min_us", "max_us"))
            yield f"{row['bytes']:<10}{times}{row['repeats']:>12}"


def fastest(rows: Iterable[Row]) -> Row:
    """The fastest of a size; auto is what it took."""
    return min((row for row in rows if row["algorithm"] != "auto"), key=_median)


def _median(row: Row) -> float:
    return float(row["median_us"])


def _native(rows: Iterable[Row]) -> Row | None:
    """The row of MPI's own call; None where it cannot serve the call."""
    return next((row for row in rows if row["algorithm"] == NATIVE), None)


def _exact_auto(rows: Iterable[Row]) -> Row:
    """The row of auto as it is, beside compressed ones."""
    return next(row for row in rows if row["algorithm"] == "auto" and "compression" not in row)


def _ratio(slower: Row | None, row: Row) -> str:
    """How many times as long another candidate takes; "-" where there is none."""
    return f"{slower['median_us'] / row['median_us']:.2f}" if slower else "-"


def _with_errors(row: Row, native: Row | None) -> str:
    """The line of a candidate among compressed ones."""
    mark = "~" if row.get("quantisations") else " "
    ratio = _ratio(native, row)
    cells = f"{format_bytes(row['bytes']):>6} {mark}{_name(row):<23}{_time(row):>8}{ratio:>9}"
    if "compression" not in row:
        return f"{cells}{'-':>9}{'-':>8}{'-':>9}{row['wrong']:>6}"
    errors = f"{row['max_error']:>9.2g}{row['rms_error']:>8.2g}{row['of_bound']:>9.2f}"
    return f"{cells}{errors}{row['wrong']:>6}"


def _compressed_size(rows: Sequence[Row]) -> str:
    """The line of a size: native, auto as it is, and the fastest compressed candidate."""
    native = _native(rows)
    auto = _exact_auto(rows)
    native_time = _time(native) if native else "-"
    times = f"{format_bytes(auto['bytes']):>6}{native_time:>7}{_time(auto):>7}"
    coded = [row for row in rows if row.get("quantisations")]
    wrong = " WRONG" if any(row["wrong"] for row in rows) else ""
    if not coded:
        return f"{times}{'-':>9}{'-':>9}{'-':>7}{'-':>8}{'-':>9}  -{wrong}"
    best = min(coded, key=_median)
    return (
        f"{times}{_time(best):>9}{_ratio(native, best):>9}{_ratio(auto, best):>7}"
        f"{best['rms_error']:>8.2g}"
        f"{best['of_bound']:>9.2f}  {best.get('chose', best['algorithm'])}{wrong}"
    )


def _candidate(row: Row, native: Row | None, best: bool) -> str:
    ratio = _ratio(native, row)
    mark = "*" if best else " "
    return (
        f"{format_bytes(row['bytes']):>6}"
        f" {mark}{_name(row):<36}{_time(row):>9}{row['busbw']:>11.3g}{ratio:>9}{row['wrong']:>6}"
    )


def _size(rows: Sequence[Row]) -> str:
    native = _native(rows)
    best = fastest(rows)
    auto = next((row for row in rows if row["algorithm"] == "auto"), None)
    taken = (
        (_time(auto), _ratio(native, auto), auto["chose"])
        if auto
        else ("-", "-", "-")
    )
    wrong = sum(row["wrong"] for row in rows)
    return (
        f"{format_bytes(best['bytes']):>6}{_time(native) if native else '-':>9}"
        f"{taken[0]:>9}{taken[1]:>9}  {taken[2]:<16}{_time(best):>8}{_ratio(native, best):>9} "
        f" {best['algorithm']}{' WRONG' if wrong else ''}"
    )


def _lag(auto: Row, best: Row) -> float:
    """Time of auto over that of the fastest; 1 where auto took the fastest algorithm."""
    return (
        1.0 if auto["chose"] == best["algorithm"] else float(auto["median_us"] / best["median_us"])
    )


def _name(row: Row) -> str:
    pieces = f" {format_bytes(row['segment_bytes'])}" if row["segment_bytes"] else ""
    return (
        f"auto: {row['chose']}{pieces}"
        if row["algorithm"] == "auto"
        else f"{row['algorithm']}{pieces}"
    )


def _time(row: Row) -> str:
    return format_seconds(row["median_us"] / 1e6)


def summary(results: Sequence[Row]) -> Iterator[str]:
    """All sizes together: the fastest, how close auto came, and wrong elements.

    Of compressed candidates instead how much faster than auto they are, and their errors.
    """
    sizes = [
        [row for row in results if row["bytes"] == nbytes]
        for nbytes in dict.fromkeys(row["bytes"] for row in results)
    ]
    if _native(results) is None:
        yield "native is left out: MPI's own call cannot serve this one"
    if any("compression" in row for row in results):
        yield from _compressed_summary(sizes)
    else:
        yield from _exact_summary(sizes)
    wrong = sum(row["wrong"] for row in results)
    yield f"wrong elements: {wrong:,}"


def _compressed_summary(sizes: Sequence[Sequence[Row]]) -> Iterator[str]:
    coded = [row for rows in sizes for row in rows if row.get("quantisations")]
    if not coded:
        yield "nothing was compressed: auto does so between nodes, from 64K bytes on"
        return
    gains = []
    for rows in sizes:
        fast = min((row for row in rows if row.get("quantisations")), key=_median, default=None)
        if fast is not None:
            gain = _ratio(_exact_auto(rows), fast)
            gains.append(f"{gain} at {format_bytes(fast['bytes'])}")
    name = coded[0]["compression"]
    yield f"{name}, the fastest, x auto: {', '.join(gains)}"
    rms = max(row["rms_error"] for row in coded)
    part = max(row["of_bound"] for row in coded)
    yield f"{name}, errors at most: RMS {rms:.2g}, {part:.2f} of the bound"


def _exact_summary(sizes: Sequence[Sequence[Row]]) -> Iterator[str]:
    best = [fastest(rows) for rows in sizes]
    wins = {
        word: [row for row in best if row["algorithm"] == word]
        for word in dict.fromkeys(row["algorithm"] for row in best)
    }
    said = (
        f"{word} at {', '.join(format_bytes(row['bytes']) for row in rows)}"
        for word, rows in wins.items()
    )
    yield f"fastest: {'; '.join(said)}"
    autos = [next((row for row in rows if row["algorithm"] == "auto"), None) for rows in sizes]
    lags = [(_lag(auto, row), auto) for auto, row in zip(autos, best) if auto]
    if lags:
        lag, row = max(lags, key=lambda pair: float(pair[0]))
        near = sum(ratio <= _EQUAL for ratio, _ in lags)
        at = f"at {format_bytes(row['bytes'])} ({row['chose']})"
        worst = "" if lag <= _EQUAL else f"; at worst it took {lag:.2f} x as long, {at}"
        yield f"auto: as fast as the fastest at {near} of {many(len(lags), 'size')}{worst}"
