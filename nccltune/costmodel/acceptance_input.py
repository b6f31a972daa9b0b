"""From what a user gives (a length, a list of rates, a log) to an acceptance; exactly one of them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nccltune.costmodel.acceptance import Acceptance, Kind, from_mean, from_rates
from nccltune.costmodel.tree import CHAIN, Shape, TreeAcceptance, tree_acceptance
from nccltune.errors import InputError
from nccltune.parse.numbers import number

_LENGTH_SPREAD = 0.03  # assumed 90% spread of a mean length given without one


def resolve_acceptance(
    *,
    accept_length: float | None = None,
    accept_rates: Sequence[float] | None = None,
    accept_kind: Kind = "auto",
    accept_log: Path | None = None,
    accept_steps: int | None = None,
    tree_rates: Sequence[Sequence[float]] | None = None,
    draft_tokens: Sequence[int] = (),
    shape: Shape = CHAIN,
) -> Acceptance | TreeAcceptance | None:
    """Return the acceptance, or None where nothing is given.

    A mean accept length belongs to a number of drafts: ``accept_steps``, else what the log says, else the largest
    ``draft_tokens`` asked for less one (said in the assumption).
    """
    given = [n for n, v in (("--accept-length", accept_length), ("--accept-rates", accept_rates), ("--accept-log", accept_log), ("rates by rank", tree_rates)) if v is not None]  # fmt: skip
    if len(given) > 1:
        raise InputError(
            f"{' and '.join(given)} contradict each other", "each of them is the whole acceptance", "give one"
        )
    _check_companions(accept_rates, accept_kind, accept_steps, given)
    if tree_rates is not None or shape.topk > 1:
        return _tree(tree_rates, shape, given)
    if accept_rates is not None:
        return from_rates(accept_rates, "rates by position, as given", accept_kind)
    if accept_log is not None:
        from nccltune.parse.accept_log import read_accept_log  # its parsers cost a tenth of a whole prediction

        log = read_accept_log(accept_log)
        if log.survival is not None:
            found = from_rates([min(v, 1.0) for v in log.survival], f"{accept_log.name}: rates by position", "survival")
        else:
            source = f"{accept_log.name}: mean of {len(log.values)} accept lengths"
            found = _mean(log.mean, accept_steps or log.num_drafts, source, draft_tokens)
        found.warnings.extend(log.warnings)
        return found
    if accept_length is None:
        return None
    return _mean(accept_length, accept_steps, "accept length as given", draft_tokens)


def parse_tree_rates(text: str) -> list[list[float]]:
    """Read rates by position and rank, ``0.6/0.15/0.05,0.5/0.12``: ranks with /, positions with commas."""
    return [parse_rates(level.replace("/", ",")) for level in text.split(",")]


def parse_rates(text: str) -> list[float]:
    """Read ``0.6,0.5,0.3`` or percentages ``60%,50%,30%``."""
    rates = []
    for part in text.split(","):
        cell = part.strip()
        rate = number(cell.removesuffix("%"))
        if rate is None:
            raise InputError(f"'{part}' is not an acceptance rate", "expected numbers between 0 and 1", "write for example 0.6,0.4,0.25")  # fmt: skip
        rates.append(rate / (100 if cell.endswith("%") else 1))
    return rates


def _tree(rates: Sequence[Sequence[float]] | None, shape: Shape, given: Sequence[str]) -> TreeAcceptance | None:
    if rates is None:
        if given:
            raise InputError(f"{given[0]} says nothing about a tree", "the accept length of a tree follows from rates by position and rank", "write --accept-rates 0.6/0.15,0.5/0.12, or leave it out")  # fmt: skip
        return None
    if shape.topk == 1:
        raise InputError("rates by rank belong to a tree", "a chain (topk 1) has one candidate a position", "say --topk N --num-steps N")  # fmt: skip
    return tree_acceptance(rates, shape, "rates by position and rank, as given")


def _mean(mean: float, known_steps: int | None, source: str, draft_tokens: Sequence[int]) -> Acceptance:
    steps, how = _steps(known_steps, draft_tokens)
    accepted = max(mean - 1, 0.0)
    found = from_mean(
        mean, steps, f"{source}{how}", low=1 + accepted * (1 - _LENGTH_SPREAD), high=1 + accepted * (1 + _LENGTH_SPREAD)
    )
    if known_steps is not None or len({d for d in draft_tokens if d > 1}) == 1:
        return found
    found.warnings.append(f"accept length {mean:.2f} is taken as measured over {steps} drafts, the most that were asked for; over fewer, every row would accept more: say --accept-steps N")  # fmt: skip
    return replace(found, assumed_steps=True)


def _check_companions(rates: Sequence[float] | None, kind: Kind, steps: int | None, given: Sequence[str]) -> None:
    """Refuse options that belong to another one that is not there, or contradict it."""
    if kind != "auto" and rates is None:
        raise InputError("--accept-kind says what --accept-rates are", "there are none", "give the rates, or leave --accept-kind out")  # fmt: skip
    if steps is None:
        return
    if rates is not None and steps != len(rates):
        raise InputError(f"--accept-steps {steps} contradicts the {len(rates)} rates of --accept-rates", "one rate belongs to each position", "leave --accept-steps out")  # fmt: skip
    if not given or "rates by rank" in given:
        raise InputError("--accept-steps belongs to --accept-length or --accept-log", "neither is given", "give one, or leave --accept-steps out")  # fmt: skip


def _steps(known: int | None, draft_tokens: Sequence[int]) -> tuple[int, str]:
    if known is not None:
        return known, f" over {known} drafts"
    widest = max((d for d in draft_tokens if d > 1), default=0) - 1
    if widest < 1:
        raise InputError("the number of drafts of the accept length is not known", "an accept length belongs to a number of drafts", "say --accept-steps N")  # fmt: skip
    return widest, f", taken as measured over {widest} drafts (--accept-steps says otherwise)"
