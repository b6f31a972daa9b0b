"""Points files: by name, any order; every error names line and column."""

import pytest

from nccltune.errors import InputError
from nccltune.parse.points import parse_point, parse_points, read_points

GOOD = "time_ms,phase,batch_size\n11.26,decode,1\n"


def test_columns_come_in_any_order_and_may_be_left_out():
    (point,) = parse_points(GOOD, "f")
    assert (point.phase, point.batch_size, point.draft_tokens, point.time_ms) == ("decode", 1, 1, 11.26)
    assert point.setting.name == "base"
    assert point.context_tokens is None


def test_settings_by_name_by_value_and_empty():
    text = "phase,batch_size,draft_tokens,time_ms,setting\nverify,1,3,18.67,seed\nverify,1,3,20,\nverify,1,3,21,NCCL_PROTO=Simple;NCCL_ALGO=allreduce:ring\n"
    a, b, c = parse_points(text, "f")
    assert a.setting.env["NCCL_PROTO"] == "LL"
    assert b.setting.name == "base"
    assert c.setting.env == {"NCCL_ALGO": "allreduce:ring", "NCCL_PROTO": "Simple"}


def test_bom_crlf_comments_and_blank_lines(tmp_path):
    path = tmp_path / "p.csv"
    path.write_bytes(b"\xef\xbb\xbf# note\r\nphase,batch_size,time_ms\r\n\r\ndecode,1,11.26\r\n")
    assert read_points(path)[0].time_ms == 11.26


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no points"),
        ("phase,batch_size,time_ms\n", "no points"),
        ("phase,batch_size\ndecode,1\n", "time_ms"),
        ("phase,batch_size,time_ms,colour\ndecode,1,2,red\n", "colour"),
        ("phase,phase,batch_size,time_ms\ndecode,decode,1,2\n", "given twice"),
        ("phase,batch_size,time_ms\ndecode,1\n", "f:2"),
        ("phase,batch_size,time_ms\nprefill,1,2\n", "f:2, column phase"),
        ("phase,batch_size,time_ms\ndecode,1,abc\n", "f:2, column time_ms"),
        ("phase,batch_size,time_ms\ndecode,1,nan\n", "f:2, column time_ms"),
        ("phase,batch_size,time_ms\ndecode,1,-3\n", "f:2, column time_ms"),
        ("phase,batch_size,time_ms\ndecode,1,1e-300\n", "f:2, column time_ms"),
        ("phase,batch_size,time_ms\ndecode,1,0.0009\n", "f:2, column time_ms"),
        ("phase,batch_size,time_ms\ndecode,1_0,3\n", "f:2, column batch_size: '1_0' is not a number"),
        ("phase,batch_size,time_ms\ndecode,1,1_1.3\n", "f:2, column time_ms: '1_1.3' is not a number"),
        ("phase,batch_size,time_ms\ndecode,1,\u0663\n", "f:2, column time_ms"),
        ("phase,batch_size,draft_tokens,time_ms\nverify,1,257,4\n", "f:2, column draft_tokens"),
        ("phase,batch_size,time_ms\ndecode,0,3\n", "f:2, column batch_size"),
        ("phase,batch_size,time_ms\ndecode,1.5,3\n", "f:2, column batch_size"),
        ("phase,batch_size,time_ms\ndecode,,3\n", "f:2, column batch_size"),
        ("phase,batch_size,draft_tokens,time_ms\ndecode,1,3,4\n", "draft_tokens 1"),
        ("phase,batch_size,draft_tokens,time_ms\nverify,1,1,4\n", "at least 2"),
        ("phase,batch_size,draft_tokens,time_ms,accept_length\ncycle,1,3,4,3.5\n", "above draft_tokens"),
        ("phase,batch_size,time_ms,setting\ndecode,1,4,nosuch\n", "f:2, column setting"),
        ("phase,batch_size,time_ms,use\ndecode,1,4,train\n", "f:2, column use"),
        ("phase,batch_size,time_ms\ndecode,1,4\0\n", "NUL"),
        ("phase;batch_size;time_ms\ndecode;1;4,57\n", "split by semicolons"),
        ("phase\tbatch_size\ttime_ms\ndecode\t1\t4.57\n", "split by tabs"),
        ("phase,batch_size,time_ms\ncycle,1,4\n", "at least 2"),
    ],
)
def test_errors_name_the_place(text, says):
    with pytest.raises(InputError) as error:
        parse_points(text, "f")
    assert says in str(error.value)


def test_rows_of_commas_are_empty():
    points = parse_points("phase,batch_size,time_ms\n,,\ndecode,1,4\n , , \n", "f")
    assert [p.time_ms for p in points] == [4]


def test_a_cycle_without_drafts_is_a_plain_step():
    (point,) = parse_points("phase,batch_size,draft_tokens,time_ms,accept_length\ncycle,4,1,6.0,1\n", "f")
    assert (point.phase, point.draft_tokens, point.time_ms) == ("decode", 1, 6.0)


def test_unreadable_files(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        read_points(tmp_path / "none.csv")
    path = tmp_path / "latin.csv"
    path.write_bytes(b"phase,batch_size,time_ms,source\ndecode,1,4,caf\xe9\n")
    with pytest.raises(InputError, match="cannot read"):
        read_points(path)


def test_points_on_the_command_line():
    point = parse_point("verify:1:3:18.67@seed")
    assert (point.phase, point.draft_tokens, point.time_ms, point.setting.name) == ("verify", 3, 18.67, "seed")
    assert parse_point("decode:16:9.09").batch_size == 16
    for bad in ("decode", "decode:1", "decode:1:x", "verify:1:18.67", "a:b:c:d:e", "decode:1:3:9", "decode:1:9@nosuch"):
        with pytest.raises(InputError, match="is not a point"):
            parse_point(bad)
