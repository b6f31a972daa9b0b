"""The policy file: Python and C read it the same way, message for message, and no bytes hurt the C parser."""

import ctypes
import re
import subprocess
from pathlib import Path

import pytest
from fake_nccl_tuner import PLUGIN_FOLDER, compile_c
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from nccltune.errors import InputError
from nccltune.knobs import ALGOS, PROTOS
from nccltune.tuner import PolicyRule, parse_policy, write_policy
from nccltune.tuner.policy import COLLECTIVES, MAX_BYTES, MAX_CHANNELS, MAX_FILE_BYTES, MAX_RULES, PolicyError

HEAD = "nccltune-policy 1\n"
ROW = "AllReduce,0,16384,Ring,LL,4,8,1"
_SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Rule(ctypes.Structure):
    """``struct policy_rule`` of policy.h."""

    _fields_ = [("min_bytes", ctypes.c_uint64), ("max_bytes", ctypes.c_uint64)] + [
        (name, ctypes.c_int32)
        for name in ("collective", "algorithm", "protocol", "num_channels", "num_ranks", "num_nodes", "line")
    ]


class Policy(ctypes.Structure):
    """``struct policy`` of policy.h."""

    _fields_ = [("num_rules", ctypes.c_int32), ("checksum", ctypes.c_uint32), ("rules", Rule * MAX_RULES)]


@pytest.fixture(scope="session")
def engine(built):
    return ctypes.CDLL(str(built / "policy.so"))


def read_c(engine, raw):
    """The rules, or the message of the refusal, as C sees them."""
    policy, error = Policy(), ctypes.create_string_buffer(160)
    if engine.policy_parse(raw, ctypes.c_size_t(len(raw)), ctypes.byref(policy), error, ctypes.c_size_t(160)):
        return error.value.decode()
    rules = policy.rules[: policy.num_rules]
    return [
        PolicyRule(
            COLLECTIVES[r.collective], r.min_bytes, r.max_bytes, ALGOS[r.algorithm], PROTOS[r.protocol],
            r.num_channels or None, r.num_ranks or None, r.num_nodes or None,
        )
        for r in rules
    ]  # fmt: skip


def read_python(raw):
    try:
        return parse_policy(raw)
    except PolicyError as error:
        return error.text


@st.composite
def rules(draw):
    low, high = sorted(draw(st.tuples(*[st.integers(0, MAX_BYTES)] * 2)))
    some = st.none() | st.integers(1, 2**31 - 1)
    return PolicyRule(
        draw(st.sampled_from(COLLECTIVES)), low, high, draw(st.sampled_from(ALGOS)), draw(st.sampled_from(PROTOS)),
        draw(st.none() | st.integers(1, MAX_CHANNELS)), draw(some), draw(some),
    )  # fmt: skip


@given(st.lists(rules(), max_size=20), st.lists(st.text(max_size=600), max_size=3))
@_SETTINGS
def test_what_is_written_is_read_back_by_both(engine, found, comments):
    text = write_policy(found, comments)
    assert parse_policy(text) == found
    assert read_c(engine, text.encode()) == found


@given(st.lists(rules(), max_size=4), st.data())
@_SETTINGS
def test_both_agree_on_damaged_files_to_the_word(engine, found, data):
    raw = bytearray(write_policy(found).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw)))
        raw[at : at + data.draw(st.integers(0, 3))] = data.draw(
            st.binary(max_size=4)
            | st.sampled_from([b"\r\n", b"\n", b",", b"*", b" ", b"#", b"-1", b"7" * 30, b"x" * 300])
        )
    assert read_c(engine, bytes(raw)) == read_python(bytes(raw))


@given(st.binary(max_size=400))
@example(b"")
@example(b"nccltune-policy 1")
@example(b"nccltune-policy 1 \r\n\r\n # x\r\n")
@_SETTINGS
def test_both_agree_on_any_bytes(engine, raw):
    assert read_c(engine, raw) == read_python(raw)
    assert read_c(engine, HEAD.encode() + raw) == read_python(HEAD.encode() + raw)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("\n", "line 1: is not 'nccltune-policy 1'"),
        ("\ufeff" + HEAD, "line 1: is not 'nccltune-policy 1'"),
        ("# nccltune-policy 1\n" + ROW, "line 1: is not 'nccltune-policy 1'"),
        ("nccltune-policy 2\n", "line 1: is not 'nccltune-policy 1'"),
        (
            HEAD + "collective,min_bytes,max_bytes,algorithm,protocol,channels,num_ranks,num_nodes",
            "line 2: unknown collective 'collective'",
        ),
        (HEAD + "#\n\n" + ROW.replace("AllReduce", "AlltoAll"), "line 4: unknown collective 'AlltoAll'"),
        (HEAD + ROW.replace("Ring", "Rong"), "line 2: unknown algorithm 'Rong'"),
        (HEAD + ROW.replace("LL", "LL256"), "line 2: unknown protocol 'LL256'"),
        (HEAD + ROW.replace("LL", "\x1b[31m" + "é" * 20), "line 2: unknown protocol '?[31m???????????????????'"),
        (HEAD + ROW.replace("16384", "16K"), "line 2: bad max_bytes '16K'"),
        (HEAD + ROW.replace(",0,", ",-1,"), "line 2: bad min_bytes '-1'"),
        (HEAD + ROW.replace(",0,", ",,"), "line 2: bad min_bytes ''"),
        (HEAD + ROW.replace("16384", "18446744073709551616"), "line 2: bad max_bytes '18446744073709551616'"),
        (HEAD + ROW.replace(",0,", ",16385,"), "line 2: min_bytes is above max_bytes"),
        (HEAD + ROW.replace("LL,4", "LL,65"), "line 2: bad channels '65'"),
        (HEAD + ROW.replace("LL,4", "LL,-1"), "line 2: bad channels '-1'"),
        (HEAD + ROW.replace(",8,1", ",0,1"), "line 2: bad num_ranks '0'"),
        (HEAD + ROW.replace(",8,1", ",8,2147483648"), "line 2: bad num_nodes '2147483648'"),
        (HEAD + ROW + " # fast", "line 2: bad num_nodes '1 # fast'"),
        (HEAD + ROW + ",1", "line 2: 9 fields instead of 8"),
        (HEAD + "AllReduce", "line 2: 1 fields instead of 8"),
        (HEAD + "#" * 256, "line 2: longer than 255 bytes"),
        (HEAD + "# a\0b\n", "line 2: holds a zero byte"),
        (HEAD + (ROW + "\n") * 257, "line 258: more than 256 rules"),
        (HEAD + "#\n" * (MAX_FILE_BYTES // 2), "larger than 262144 bytes"),
    ],
)
def test_mistakes_are_named_alike(engine, text, message):
    raw = text.encode()
    assert read_c(engine, raw) == message
    with pytest.raises(PolicyError) as error:
        parse_policy(text)
    assert error.value.text == message
    assert error.value.exit_code == InputError.exit_code
    assert message in error.value.lines()[1]


def test_the_limits_themselves_are_allowed(engine):
    # 255 bytes in a line with its carriage return, 256 rules, any case, blanks, CRLF, no line end at the end
    text = HEAD + "#" * 254 + "\r\n".join(["", *[ROW] * 255, " allREDUCE,\t0 , * , NVLSTREE ,ll128, * ,*,* "])
    found = parse_policy(text)
    assert len(found) == MAX_RULES
    assert found[-1] == PolicyRule("AllReduce", 0, MAX_BYTES, "NVLSTree", "LL128")
    assert read_c(engine, text.encode()) == found


def test_zero_channels_are_nccls_own_count():
    [rule] = parse_policy(HEAD + ROW.replace("LL,4", "LL,0"))
    assert rule.num_channels is None
    assert rule.line() == "AllReduce,0,16384,Ring,LL,*,8,1"


def test_a_policy_that_the_plugin_would_refuse_is_not_written():
    with pytest.raises(PolicyError, match="unknown algorithm"):
        write_policy([PolicyRule("AllReduce", 0, 1, "Star", "LL")])
    with pytest.raises(PolicyError, match="more than 256"):
        write_policy([PolicyRule("AllReduce", 0, 1, "Ring", "LL")] * 257)


@pytest.fixture(scope="session")
def fuzzer(compiler, tmp_path_factory):
    """The fuzzer with AddressSanitizer and UndefinedBehaviorSanitizer."""
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "probe.c").write_text("int main(void) { return 0; }\n")
    flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g"]
    probe = [compiler, *flags, "-o", str(folder / "probe"), str(folder / "probe.c")]
    if (
        subprocess.run(probe, capture_output=True, check=False).returncode
        or subprocess.run([folder / "probe"], capture_output=True, check=False).returncode
    ):
        pytest.skip("the sanitizers' runtime libraries (libasan, libubsan) are not installed or do not run here")
    source = Path(__file__).parents[2] / "fakes" / "tuner_fuzz.c"
    return compile_c(
        compiler, folder / "fuzz", source, PLUGIN_FOLDER / "policy.c", flags=(*flags, f"-I{PLUGIN_FOLDER}")
    )


def test_no_bytes_hurt_the_parser(fuzzer, tmp_path):
    done = subprocess.run(
        [fuzzer, "1", "60000", tmp_path / "policy.csv"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    accepted, refused = map(int, re.findall(r"\d+", done.stdout))
    assert accepted + refused == 60000
    assert min(accepted, refused) > 1000


def test_the_sanitizer_would_have_seen_it(fuzzer, tmp_path):
    done = subprocess.run(
        [fuzzer, "plant", "0", tmp_path / "x"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr
