"""Exact all-reduce sums: fill patterns whose sum has no rounding in bf16, and the count of wrong elements.

Rank r puts ((7 i + 13 r + 31 s) mod 17) - 8 at element i for seed s, so |sum| <= 8 ranks: exact in bf16 (8 bits of
mantissa) up to 32 ranks. Different seeds give different data, so a stale or half-written buffer is seen.
"""

from typing import Any

MAX_EXACT_RANKS = 32
_MODULUS = 17
_OFFSET = 8
_BLOCK = 1 << 22  # elements compared at a time, so that large messages need no large scratch memory


def fill(torch: Any, tensor: Any, rank: int, seed: int) -> None:
    """Write rank's pattern for ``seed`` into ``tensor`` (any device)."""
    for start in range(0, tensor.numel(), _BLOCK):
        part = tensor[start : start + _BLOCK]
        part.copy_(_pattern(torch, part, start, rank, seed))


def count_wrong(torch: Any, tensor: Any, num_ranks: int, seed: int, *, start: int = 0) -> int:
    """Count the elements of ``tensor`` that differ from the exact sum over all ranks. NaN counts as wrong.

    ``start``: index of the tensor's first element in the whole message.
    """
    wrong = 0
    for offset in range(0, tensor.numel(), _BLOCK):
        part = tensor[offset : offset + _BLOCK]
        expected = _pattern(torch, part, start + offset, 0, seed)
        for rank in range(1, num_ranks):
            expected += _pattern(torch, part, start + offset, rank, seed)
        wrong += int((part.float() != expected.float()).sum().item())
    return wrong


def count_different(torch: Any, tensor: Any, rank: int, seed: int) -> int:
    """Count the elements of ``tensor`` that differ from the pattern of one rank."""
    return int((tensor.float() != _pattern(torch, tensor, 0, rank, seed).float()).sum().item())


def _pattern(torch: Any, like: Any, start: int, rank: int, seed: int) -> Any:
    index = torch.arange(start, start + like.numel(), device=like.device, dtype=torch.int64)
    return (index * 7 + (13 * rank + 31 * seed)) % _MODULUS - _OFFSET
