"""NCCL's names for algorithms and protocols, in every spelling its logs and variables use, as one spelling."""

from nccltune.knobs import ALGOS, PROTOS

_ALGO_SPELLINGS = {name.lower(): name for name in ALGOS}
_PROTO_SPELLINGS = {name.lower(): name for name in PROTOS}


def algo_name(text: str) -> str:
    """Spell an algorithm as NCCL's variable does: ``RING``, ``ring`` and ``1`` are ``Ring``; an unknown one is kept.

    The numbers are those of 2.20 to 2.23 (src/include/nccl_common.h).
    """
    return _name(text, ALGOS, _ALGO_SPELLINGS)


def proto_name(text: str) -> str:
    """Spell a protocol as NCCL's variable does: ``SIMPLE`` and ``2`` are ``Simple``; an unknown one is kept."""
    return _name(text, PROTOS, _PROTO_SPELLINGS)


def _name(text: str, by_number: tuple[str, ...], spellings: dict[str, str]) -> str:
    text = text.strip()
    if text.isdigit():
        return by_number[int(text)] if int(text) < len(by_number) else text
    return spellings.get(text.replace("_", "").lower(), text)
