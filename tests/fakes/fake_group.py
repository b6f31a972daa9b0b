"""Ranks without processes, for a real session: what is asked of them, and answers from a function."""

from typing import Any

from nccltune.bench.group import RankFailure

INFO = "host:1:1 [0] NCCL INFO "


class FakeGroup:
    """``on(op, fields)`` may give the answer of every rank, or raise RankFailure."""

    def __init__(self, on: Any = lambda op, fields: None) -> None:
        self.on = on
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.killed = False

    def call(self, op: str, timeout_s: float, *, per_rank: Any = None, ranks: Any = None, **fields: Any) -> list[Any]:
        """Answer a command as two ranks do."""
        self.calls.append((op, fields))
        answer = self.on(op, fields) or {}
        usual = {
            "unique_id": {"unique_id": ""},
            "open": {"nccl_version": "2.28.9"},
            "resolve": {"choices": [], "log": ""},
        }
        return [{**usual.get(op, {}), **answer}] * (1 if ranks else 2)

    def ops(self, *names: str) -> list[tuple[str, dict[str, Any]]]:
        """The calls of some commands, in order."""
        return [(op, fields) for op, fields in self.calls if op in names]

    def close(self) -> None:
        """End."""
        self.killed = True

    kill = close


def refuse(text: str = "refused") -> RankFailure:
    """A failure that every rank answered: they are all alive."""
    return RankFailure("other", text, 0, group_alive=True)


def log(*lines: str) -> dict[str, Any]:
    """An answer to ``resolve`` with these lines of NCCL."""
    return {"log": "".join(f"{INFO}{line}\n" for line in lines)}
