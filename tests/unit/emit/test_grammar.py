"""NCCL_ALGO and NCCL_PROTO by NCCL version: what is read, what is judged, what is written."""

import pytest

from nccltune.algo_lists import Lists, read
from nccltune.emit.grammar import names_ll128, parse_version, problems, render
from nccltune.errors import InputError

OLD, MID, NEW = (2, 20, 5), (2, 28, 9), (2, 31, 2)


@pytest.mark.parametrize(
    ("variable", "value", "version", "expected"),
    [
        ("NCCL_ALGO", "Ring", MID, "allreduce:ring"),
        ("NCCL_ALGO", "Tree", MID, "allreduce:tree"),
        ("NCCL_PROTO", "LL", MID, "allreduce:LL"),
        ("NCCL_PROTO", "LL,Simple", MID, "allreduce:LL,Simple"),
        ("NCCL_PROTO", "^LL128", MID, "allreduce:LL,Simple"),
        ("NCCL_PROTO", "^LL128;allreduce:LL128", MID, "^LL128;allreduce:LL128"),
        ("NCCL_ALGO", "allreduce:tree", NEW, "ring,tree;allreduce:tree"),
        ("NCCL_ALGO", "Ring", NEW, "ring,tree;allreduce:ring"),
        ("NCCL_PROTO", "LL", NEW, "LL,Simple;allreduce:LL"),
        ("NCCL_ALGO", "ring,tree;allreduce:tree", NEW, "ring,tree;allreduce:tree"),
        ("NCCL_ALGO", "tree;allreduce:tree", NEW, "ring,tree;allreduce:tree"),
        ("NCCL_ALGO", "allgather:ring;allreduce:tree", MID, "allgather:ring;allreduce:tree"),
        ("NCCL_ALGO", "Ring", OLD, "Ring"),
        ("NCCL_ALGO", "allreduce:tree", OLD, "tree"),
        ("NCCL_PROTO", "^LL128;allreduce:LL128", OLD, "LL128"),
        ("NCCL_ALGO", "Ring", None, "ring,tree;allreduce:ring"),
    ],
)
def test_render(variable, value, version, expected):
    assert render(variable, value, version).value == expected


@pytest.mark.parametrize(
    "value", ["Ring", "Tree", "allreduce:ring", "ring,tree;allreduce:tree", "^nvls", "allgather:ring;allreduce:tree"]
)
@pytest.mark.parametrize("version", [OLD, MID, NEW, None])
def test_what_is_written_has_no_problem_on_that_version(value, version):
    written = render("NCCL_ALGO", value, version).value
    assert [f for f in problems("NCCL_ALGO", written, version) if f.level == "problem"] == []
    if version != OLD:
        tokens = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
        assert read("NCCL_ALGO", written).of("AllReduce", tokens) == read("NCCL_ALGO", value).of("AllReduce", tokens)


def test_complete_protocol_list_names_ll128_only_where_nccl_enables_it():
    assert render("NCCL_PROTO", "LL", NEW, ll128_auto=True).value == "LL,LL128,Simple;allreduce:LL"


def test_before_224_the_reader_is_warned_of_other_collectives():
    assert "all collectives" in render("NCCL_ALGO", "Ring", OLD).notes[0]


@pytest.mark.parametrize(
    "value",
    [
        "Rong",
        "Ring;Tree",
        "allreduce:",
        "all:ring",
        "Ring, Tree",
        "^tree,ring,collnetdirect,collnetchain,nvls,nvlstree,pat",
    ],
)
def test_render_refuses_what_nccl_refuses(value):
    with pytest.raises(InputError):
        render("NCCL_ALGO", value, MID)


def codes(variable, value, version):
    return [(f.level, f.code) for f in problems(variable, value, version)]


def test_judging_by_version():
    assert codes("NCCL_ALGO", "allreduce:tree", MID) == []
    assert codes("NCCL_ALGO", "allreduce:tree", NEW) == [("problem", "starved-collectives")]
    assert codes("NCCL_ALGO", "allreduce:tree", None) == [("problem", "starved-collectives")]
    assert codes("NCCL_ALGO", "allreduce:tree", OLD) == [("problem", "grammar-version")]
    assert codes("NCCL_ALGO", "Tree", MID) == [("problem", "starved-collectives")]
    assert codes("NCCL_ALGO", "Tree", OLD) == []  # falls back to Ring
    assert codes("NCCL_ALGO", "Ring", NEW) == []
    assert codes("NCCL_PROTO", "Simple", NEW) == []
    assert codes("NCCL_PROTO", "LL128", MID) == [("warning", "forced-ll128")]
    assert codes("NCCL_PROTO", "LL129", MID) == [("problem", "grammar")]


def test_advice_is_the_form_to_write():
    assert "ring,tree;allreduce:tree" in problems("NCCL_ALGO", "allreduce:tree", NEW)[0].advice


def test_inverted_lists_force_ll128_too():
    assert names_ll128("^LL")
    assert not names_ll128("^LL128")
    assert names_ll128("^LL128;allreduce:LL128")
    assert read("NCCL_PROTO", "^LL") == Lists(("LL128", "Simple"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2.28.9", MID), ("v2.31.2", NEW), ("2.31", (2, 31, 0)), ("2.28.9+cuda13.0", MID), ("22809", MID)],
)
def test_versions(text, expected):
    assert parse_version(text) == expected


@pytest.mark.parametrize("text", ["", "x", "2", "latest", "2.x"])
def test_bad_versions(text):
    with pytest.raises(InputError, match="NCCL version"):
        parse_version(text)
