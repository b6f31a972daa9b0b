"""Rows of an nccl-tests table, whatever the layout: 2.0 to 2.20, with or without root, per-iteration columns, split rows."""

import re
from dataclasses import dataclass, field

from nccltune.parse.nccl_tests_report import Row, Timing, is_coarse

_TYPES = r"u?int(?:8|32|64)|half|float|double|bfloat16|f8\w+|fp8\w*|float8\w*|char|int|uint"
_START = re.compile(rf"^\s*(\d+)\s+(\d+)\s+({_TYPES})(?=\s|$)\s*(.*)$")
_GLUED_ROOT = re.compile(r"^(\s*\d+\s+\d+\s+[a-z]\w*\s+[a-z]\w*\s+-1)(?=\S)")
_NUMBER = re.compile(r"^(?:-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|-?nan|-?inf|N/A)$", re.IGNORECASE)
_ROOT = re.compile(r"^-?\d+$")
# Deviation allowed by type before 2.11, when the table held the deviation: NVIDIA/nccl-tests src/common.cu DeltaMaxValue.
_MAX_DEVIATION = {"half": 1e-2, "bfloat16": 1e-2, "float": 1e-5, "double": 1e-12}
_OLD_ERROR = re.compile(r"^\de[+-]\d+$")


@dataclass(slots=True)
class Layout:
    """Columns of one table, from its heading."""

    width: int = 4
    """Columns of one half: time, algbw, busbw, wrong, and four more with -I."""
    has_error_column: bool = False
    is_cpu_time: bool = False
    is_known: bool = True


def heading_layout(line: str) -> Layout | None:
    """Read a heading (``size count type redop root time algbw busbw #wrong ...``); None for any other line."""
    tokens = line.replace("#wrong", "wrong").lstrip(" #\t").lower().split()
    if not tokens or tokens[0] not in ("size", "bytes") or not {"type", "busbw"} & set(tokens):
        return None
    starts = [i for i, token in enumerate(tokens) if token in ("time", "cputime")]
    if len(starts) != 2 or tokens[0] == "bytes":
        # "bytes N type op" is nccl-tests 1, which prints milliseconds.
        return Layout(is_known=False)
    return Layout(
        width=starts[1] - starts[0], has_error_column="error" in tokens, is_cpu_time=tokens[starts[0]] == "cputime"
    )


@dataclass(slots=True)
class RowReader:
    """Puts rows together from cleaned lines; a row in pieces is joined only where the pieces agree with each other."""

    layout: Layout | None = None
    rows: list[Row] = field(default_factory=list)
    broken_sizes: list[int] = field(default_factory=list)
    num_unread: int = 0
    unfinished_bytes: int | None = None
    """Size of the row that the text ends in: nccl-tests prints size and type before it measures."""
    _head: tuple[int, int, str, str | None, int | None] | None = None
    _numbers: list[str] = field(default_factory=list)
    _pieces: int = 0

    def feed(self, line: str) -> None:
        """Take one line: the start of a row, a piece of one, or anything else (ignored)."""
        start = _START.match(_GLUED_ROOT.sub(r"\1 ", line))
        if start is not None:
            self.close()
            self._begin(start)
        elif self._head is not None and line.strip():
            tokens = [_unglue(token) for token in line.split()]
            if all(_NUMBER.match(token) for token in tokens) and len(tokens) % 4 == 0:
                self._numbers += tokens
                self._pieces += 1
        if self._head is not None and len(self._numbers) >= 2 * self._width():
            self.close()

    def end(self) -> None:
        """Finish at the end of the text, where a row without any number is one that never finished."""
        if self._head is not None and not self._numbers:
            self.unfinished_bytes, self._head = self._head[0], None
        self.close()

    def close(self) -> None:
        """Finish the row in hand; called at the start of the next row and at the end of the table."""
        if self._head is None:
            return
        head, numbers, pieces, width = self._head, self._numbers, self._pieces, self._width()
        self._head, self._numbers, self._pieces = None, [], 0
        if (self.layout is not None and not self.layout.is_known) or len(numbers) > 2 * width:
            self.num_unread += 1
            return
        size_bytes, count, dtype, redop, root = head
        try:
            halves = [self._timing(numbers[i : i + width], dtype) for i in range(0, len(numbers), width)]
        except ValueError:
            self.num_unread += 1
            return
        if not halves or len(numbers) % width or (pieces > 1 and not all(_agrees(size_bytes, half) for half in halves)):
            self.broken_sizes.append(size_bytes)
            return
        in_place = halves[1] if len(halves) > 1 else None
        self.rows.append(Row(size_bytes, count, dtype, redop, halves[0], in_place, root))

    def _begin(self, start: re.Match[str]) -> None:
        tokens = [_unglue(token) for token in start[4].split()]
        redop = tokens.pop(0) if tokens and not _NUMBER.match(tokens[0]) else None
        root = int(tokens.pop(0)) if len(tokens) % 4 == 1 and _ROOT.match(tokens[0]) else None
        if not all(_NUMBER.match(token) for token in tokens):
            # Something else is glued behind the row: keep the whole groups in front of it.
            good = next(i for i, token in enumerate(tokens) if not _NUMBER.match(token))
            if root is None and good % 4 == 1 and _ROOT.match(tokens[0]):
                root, tokens, good = int(tokens[0]), tokens[1:], good - 1
            tokens = tokens[: good - good % 4]
        self._head = (int(start[1]), int(start[2]), start[3], redop, root)
        self._numbers, self._pieces = tokens, 1

    def _width(self) -> int:
        if self.layout is not None and self.layout.is_known:
            return self.layout.width
        return 8 if len(self._numbers) == 16 else 4

    def _timing(self, cells: list[str], dtype: str) -> Timing:
        """One half; raises ValueError where a cell is no number."""
        time, alg, bus, check = cells[:4]
        has_error = self.layout.has_error_column if self.layout is not None else bool(_OLD_ERROR.match(check))
        num_wrong, max_error = _check(check, dtype, has_error)
        return Timing(
            time_us=float(time),
            algbw_gb_s=_finite(alg),
            busbw_gb_s=_finite(bus),
            num_wrong=num_wrong,
            max_error=max_error,
            is_coarse=time.lower().lstrip("-") not in ("nan", "inf") and is_coarse(time),
        )


def _check(cell: str, dtype: str, has_error: bool) -> tuple[int | None, float | None]:
    """(number wrong, largest deviation). Old tables give the deviation only: then 1 stands for "at least one"."""
    if cell.upper() == "N/A":
        return None, None
    value = float(cell)
    if not has_error:
        return (int(value) if abs(value) < 1e18 else 1), None
    # A deviation of nan is wrong too, hence not (value <= limit).
    return (0 if value <= _MAX_DEVIATION.get(dtype, 0.0) else 1), (value if abs(value) < 1e300 else None)


def _finite(cell: str) -> float | None:
    """A bandwidth; None for N/A and anything that is no finite number."""
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if abs(value) < 1e18 else None


def _agrees(size_bytes: int, timing: Timing) -> bool:
    """Whether algbw = bytes / time within the printed digits and 5%: 4096 B in 77.12 us is 0.0531, printed 0.05."""
    if timing.algbw_gb_s is None or timing.time_us <= 0:
        return False
    expected = size_bytes / (1000 * timing.time_us)
    return abs(expected - timing.algbw_gb_s) <= 0.0051 + 0.05 * expected


def _unglue(token: str) -> str:
    """A count of 0 with a host name's digit behind it (``05gpu`` cut at ``gpu``) is 0."""
    return "0" if re.match(r"^0\d+$", token) else token
