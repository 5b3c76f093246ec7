"""What `bench` prints: a line per candidate, or per size if that is too many, and a summary."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

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


class Lines:
    """The lines. brief: one for each size, instead of one for each candidate."""

    def __init__(self, candidates: int, sizes: int, everything: bool) -> None:
        self.brief = candidates * sizes > LINES and not everything

    def heading(self) -> str:
        """What stands above."""
        return _SIZES if self.brief else _CANDIDATES

    def of_size(self, rows: Sequence[Row]) -> Iterator[str]:
        """The lines of one size. rows: of all candidates, native first."""
        if self.brief:
            yield _size(rows)
        else:
            best = fastest(rows)
            yield from (_candidate(row, rows[0], row is best) for row in rows)


def fastest(rows: Iterable[Row]) -> Row:
    """The fastest of a size; auto is what it took."""
    return min(
        (row for row in rows if row["algorithm"] != "auto"), key=lambda row: float(row["median_us"])
    )


def _candidate(row: Row, native: Row, best: bool) -> str:
    ratio = native["median_us"] / row["median_us"]
    mark = "*" if best else " "
    return (
        f"{format_bytes(row['bytes']):>6}"
        f" {mark}{_name(row):<36}{_time(row):>9}{row['busbw']:>11.3g}{ratio:>9.2f}{row['wrong']:>6}"
    )


def _size(rows: Sequence[Row]) -> str:
    native = rows[0]
    best = fastest(rows)
    auto = next((row for row in rows if row["algorithm"] == "auto"), None)
    taken = (
        (_time(auto), f"{native['median_us'] / auto['median_us']:.2f}", auto["chose"])
        if auto
        else ("-", "-", "-")
    )
    wrong = sum(row["wrong"] for row in rows)
    return (
        f"{format_bytes(native['bytes']):>6}{_time(native):>9}{taken[0]:>9}{taken[1]:>9} "
        f" {taken[2]:<16}{_time(best):>8}{native['median_us'] / best['median_us']:>9.2f} "
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
    """All sizes together: the fastest, how close auto came, and wrong elements."""
    sizes = [
        [row for row in results if row["bytes"] == nbytes]
        for nbytes in dict.fromkeys(row["bytes"] for row in results)
    ]
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
    wrong = sum(row["wrong"] for row in results)
    yield f"wrong elements: {wrong:,}"
