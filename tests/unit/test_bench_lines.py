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


def coded(algorithm, nbytes, us, quantisations=2, rms=0.0098, part=0.8, **more):
    said = {"compression": "int8", "quantisations": quantisations, "max_error": 0.05, "rms_error": rms, "of_bound": part}
    return row(algorithm, nbytes, us, **more) | said


COMPRESSED = [
    [row("native", 4096, 8.0), row("auto", 4096, 8.2, "native"), coded("auto", 4096, 8.3, 0, 3e-8, 0.1, chose="native")],
    [row("native", 1 << 20, 3000.0), row("auto", 1 << 20, 1200.0, "ring"), coded("allgather_reduce", 1 << 20, 900.0),
     coded("auto", 1 << 20, 400.0, chose="pairwise", wrong=3, part=1.5)],
]  # fmt: skip


def test_compressed_candidates_have_their_errors_beside_their_times():
    lines = Lines(candidates=4, sizes=2, everything=False, compression="int8")
    shown = [line for rows in COMPRESSED for line in lines.of_size(rows)]
    assert [line[7] for line in shown] == [" ", " ", " ", " ", " ", "~", "~"]
    assert shown[1].split() == ["4K", "auto:", "native", "8.20us", "0.98", "-", "-", "-", "0"]
    assert shown[2].split() == ["4K", "auto:", "native", "8.30us", "0.96", "0.05", "3e-08", "0.10", "0"]
    assert shown[6].split() == ["1M", "~auto:", "pairwise", "400us", "7.50", "0.05", "0.0098", "1.50", "3"]
    assert max(map(len, (*shown, lines.heading()))) <= 80


def test_what_would_be_more_than_a_screenful_shows_the_fastest_compressed_one():
    lines = Lines(candidates=4, sizes=15, everything=False, compression="int8")
    shown = [next(lines.of_size(rows)).split() for rows in COMPRESSED]
    assert shown[0] == ["4K", "8.00us", "8.20us", *["-"] * 6]
    assert shown[1] == ["1M", "3.00ms", "1.20ms", "400us", "7.50", "3.00", "0.0098", "1.50", "pairwise", "WRONG"]
    assert len(lines.heading()) <= 80 and lines.heading().split()[:4] == ["bytes", "native", "auto", "int8"]


def test_the_summary_of_compressed_candidates():
    assert list(summary([one for rows in COMPRESSED for one in rows])) == [
        "int8, the fastest, x auto: 3.00 at 1M",
        "int8, errors at most: RMS 0.0098, 1.50 of the bound",
        "wrong elements: 3",
    ]
    assert list(summary(COMPRESSED[0]))[0] == "nothing was compressed: auto does so between nodes, from 64K bytes on"


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
