"""How large a question may be: batch sizes and draft tokens that a prediction, a point and a live validation have in common."""

from collections.abc import Sequence

from nccltune.errors import InputError

MAX_BATCH = 65536
MAX_DRAFT_TOKENS = 256


def check_counts(draft_tokens: Sequence[int], batch_sizes: Sequence[int]) -> None:
    """Raise InputError where there is none of a kind, or one lies outside 1 to its maximum."""
    if not draft_tokens or min(draft_tokens) < 1 or max(draft_tokens) > MAX_DRAFT_TOKENS:
        raise InputError(f"draft tokens must lie between 1 and {MAX_DRAFT_TOKENS}", "1 is plain decode", "write for example --draft-tokens 1-8")  # fmt: skip
    if not batch_sizes or min(batch_sizes) < 1 or max(batch_sizes) > MAX_BATCH:
        raise InputError(f"batch sizes must lie between 1 and {MAX_BATCH}", "", "write for example --batch 1,4,16")
