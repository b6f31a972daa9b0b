"""NCCL_ALGO and NCCL_PROTO values as NCCL reads them: ``list[;function:list]...``, ``^`` for all but. Pure.

The grammar of 2.24 and later (NVIDIA/nccl src/graph/tuning.cc), which holds the older single list.
"""

from dataclasses import dataclass, field

from nccltune.knobs import ALGOS, PROTOS

FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
TOKENS = {"NCCL_ALGO": ALGOS, "NCCL_PROTO": PROTOS}


@dataclass
class Lists:
    """What a value allows: for all functions (None: not restricted) and for the functions it names."""

    default: tuple[str, ...] | None = None
    named: dict[str, tuple[str, ...]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def of(self, function: str, tokens: tuple[str, ...]) -> tuple[str, ...]:
        """Return what ``function`` may use."""
        if function in self.named:
            return self.named[function]
        return tokens if self.default is None else self.default


def read(variable: str, value: str) -> Lists:
    """Read a value by the grammar of 2.24 and later, which holds the older one."""
    lists, tokens = Lists(), TOKENS[variable]
    for number, part in enumerate(value.split(";")):
        function, colon, items = part.partition(":")
        allowed = _items(items if colon else part, tokens, lists.errors)
        if not colon:
            if number:
                lists.errors.append(f"'{part}' names no collective: only the first list may do that")
            lists.default = allowed
            continue
        known = next((f for f in FUNCTIONS if f.lower() == function.lower()), None)
        if known is None:
            lists.errors.append(f"'{function}' is no collective ({', '.join(FUNCTIONS)})")
        else:
            lists.named[known] = allowed
    return lists


def _items(text: str, tokens: tuple[str, ...], errors: list[str]) -> tuple[str, ...]:
    inverted = text.startswith("^")  # NCCL does not trim: ' LL' is an unknown token to it
    found: list[str] = []
    for item in text.removeprefix("^").split(","):
        known = next((t for t in tokens if t.lower() == item.lower()), None)
        if known is None:
            errors.append(f"'{item}' is none of {', '.join(tokens)}")
        else:
            found.append(known)
    return tuple(t for t in tokens if (t in found) != inverted)


def seen_by_allreduce(env: dict[str, str]) -> dict[str, str]:
    """The variables with their lists as an all-reduce sees them: ``Ring`` and ``allreduce:ring`` are the same there.

    A value that NCCL would not read is left as it is.
    """
    return {name: _for_allreduce(name, value) for name, value in env.items()}


def _for_allreduce(name: str, value: str) -> str:
    if name not in TOKENS:
        return value
    lists = read(name, value)
    return value if lists.errors else ",".join(lists.of("AllReduce", TOKENS[name]))
