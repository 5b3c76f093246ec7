"""Checks and optional packages: what the messages say, without MPI."""

import sys

import pytest

from mpicoll.errors import ArgumentError, LaunchError
from mpicoll.support.arrays import element_type
from mpicoll.support.checks import check_word, must_agree, raise_everywhere
from mpicoll.support.optional import require
from mpicoll.train.options import OptionKeywords, Options
from tests.support.fakes.metering import Ranks


@pytest.mark.parametrize("everyone, text", [
    ([{"seed": 1}, {"seed": 2}, {"seed": 1}],
     "ranks disagree about seed: ranks 0, 2: 1; rank 1: 2. Give the same on all ranks"),
    ([{"seed": 1}, {}], "ranks disagree about seed: rank 0: 1; rank 1: missing. "),
    ([{}, {"seed": [1]}], r"ranks disagree about seed: rank 0: missing; rank 1: \[1\]. "),
    ([{"a": 1, "b": 2}, {"a": 1, "b": 3}], "ranks disagree about b: "),
    ([{"seed": 0}] * 9 + [{"seed": 1}], "ranks 0, 1, 2, 3, 4, 5, 6, 7, …: 0; rank 9: 1"),
])
def test_the_first_difference_is_shown_with_all_views(everyone, text):
    with pytest.raises(ArgumentError, match=text):
        must_agree(everyone)


def test_ranks_that_agree():
    must_agree([])
    must_agree([{"seed": 1, "sizes": [1, 2]}] * 3)


def test_the_lowest_ranks_error_is_raised():
    raise_everywhere(Ranks(2, [None, None]), None)
    with pytest.raises(LaunchError, match="disk"):
        raise_everywhere(Ranks(2, [None, LaunchError("disk")]), ArgumentError("other"))


def test_words_may_be_of_any_kind():
    check_word("name", "ring", {"ring": 1})
    with pytest.raises(ArgumentError, match=r"name: expected one of ring, tree, got \['ring'\]"):
        check_word("name", ["ring"], ("ring", "tree"))


@pytest.mark.parametrize("module, purpose, text", [
    ("tqdm", "training", r'training needs tqdm .*; install it with: pip install "mpicoll\[train\]"$'),
    ("sklearn.datasets", "training", r'training needs scikit-learn .* "mpicoll\[train\]"$'),
    ("matplotlib.figure", "--plot", r'--plot needs matplotlib .* "mpicoll\[plot\]"$'),
    ("cupy", "device cuda", r'device cuda needs CuPy .* "mpicoll\[cuda13\]" \(or cuda12, as your driver is\)$'),
])
def test_a_missing_package(monkeypatch, module, purpose, text):
    monkeypatch.setitem(sys.modules, module, None)  # not importable
    with pytest.raises(LaunchError, match=text):
        require(module, purpose)


def test_bfloat16_without_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    assert element_type("float16") == "float16"
    with pytest.raises(LaunchError, match=r'bfloat16 needs ml_dtypes .* "mpicoll\[bf16\]"'):
        element_type("bfloat16")


def test_type_checkers_know_the_options():
    assert {"strategy", "precision", *OptionKeywords.__annotations__} == set(Options.names())
