"""What `bench` prints, of results that are given."""

import pytest

from mpicoll.cli import screen
from mpicoll.cli.bench_lines import Lines, summary
from mpicoll.cli.plots import against_native, bandwidth, draw_results, share_of_link


def row(algorithm, nbytes, us, chose=None, wrong=0):
    return {"algorithm": algorithm, "bytes": nbytes, "median_us": us, "busbw": nbytes / us / 1e3, "segment_bytes": None,
            "wrong": wrong, **({"chose": chose} if chose else {})}  # fmt: skip


SIZES = [
    [row("native", 4096, 8.123), row("auto", 4096, 8.2, "native"), row("ring", 4096, 50.0)],
    [row("native", 1 << 20, 3000.0), row("auto", 1 << 20, 1200.0, "ring"), row("ring", 1 << 20, 1000.0)],
    [row("native", 2 << 20, 6000.0), row("auto", 2 << 20, 6000.0, "native"), row("ring", 2 << 20, 5000.0)],
]


def test_a_line_for_each_candidate_marks_the_fastest_and_says_what_auto_took():
    lines = Lines(candidates=3, sizes=2, everything=False)
    shown = [line for rows in SIZES for line in lines.of_size(rows)]
    assert [line[7] for line in shown] == ["*", " ", " "] + [" ", " ", "*"] * 2
    assert shown[4].split() == ["1M", "auto:", "ring", "1.20ms", "0.874", "2.50", "0"]
    assert max(map(len, (*shown, lines.heading()))) <= 80


def test_what_would_be_more_than_a_screenful_has_a_line_for_each_size():
    lines = Lines(candidates=3, sizes=15, everything=False)
    (shown,) = lines.of_size(SIZES[1])
    assert shown.split() == ["1M", "3.00ms", "1.20ms", "2.50", "ring", "1.00ms", "3.00", "ring"]
    assert len(lines.heading()) <= 80 and lines.heading().split()[:3] == ["bytes", "native", "auto"]
    assert not Lines(candidates=3, sizes=15, everything=True).brief


def test_the_summary():
    assert list(summary([one for rows in SIZES for one in rows])) == [
        "fastest: native at 4K; ring at 1M, 2M",
        "auto: as fast as the fastest at 2 of 3 sizes; at worst it took 1.20 x as long, at 2M (native)",
        "wrong elements: 0",
    ]


@pytest.mark.parametrize(("columns", "expected"), [("", 80), ("100", 100), ("5", 80)])
def test_lines_are_as_long_as_columns_says(monkeypatch, columns, expected):
    monkeypatch.setenv("COLUMNS", columns)
    assert screen.width() == expected
    assert max(map(len, screen.comment("word " * 100).splitlines())) in range(expected - 5, expected + 1)


def test_the_picture_has_a_panel_for_each_quantity_and_says_what_a_share_above_one_is(tmp_path):
    pytest.importorskip("matplotlib")
    rows = [one | {"collective": "allreduce"} for some in SIZES for one in some]
    link = share_of_link("10Gb/s", 4)  # 1.5 m over the link, of 1 MiB: 1258 us
    assert [round(link.value(one), 2) for one in rows[3:6]] == [0.42, 1.05, 1.26]
    for panels, above in (([bandwidth(), against_native(rows), link], 1), ([bandwidth(), share_of_link("1Gb/s", 1)], 0)):
        draw_results(str(tmp_path / "x.svg"), rows, "allreduce, 4 ranks", panels)
        said = (tmp_path / "x.svg").read_text()
        assert said.count("<!-- m, bytes of the vector -->") == len(panels)
        assert said.count("<!-- 1M -->") == len(panels) and said.count("above 1: what a short message puts") == above
        assert all(f"<!-- {panel.label} -->" in said for panel in panels)
