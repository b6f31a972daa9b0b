"""From priced rows and acceptance to the answer: tokens/s, speedup, break-even, best draft-token count and its ties."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nccltune.costmodel.acceptance import Acceptance
from nccltune.costmodel.estimate import Estimate
from nccltune.costmodel.forward import Priced
from nccltune.costmodel.posterior import Z90, ratio_sd
from nccltune.costmodel.sources import sources_of
from nccltune.costmodel.tree import TreeAcceptance
from nccltune.schemas.common import Value
from nccltune.schemas.prediction import Best, Row, Sensitivity

Floats = NDArray[np.float64]

_OVERHEAD_SHARE = 0.08  # of the verify: below that it is not worth a user's morning
_SERVED_SHARE = 0.05
_LADDER_SHARE = 0.03


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of the answer for all rows; the last three are None without acceptance."""

    priced: Priced
    comm: Estimate
    compute: Estimate
    overhead: Estimate
    verify: Estimate
    draft: Estimate
    host: Estimate
    cycle: Estimate
    break_even: Estimate
    accept_length: Estimate | None
    tokens_per_s: Estimate | None
    speedup: Estimate | None


def columns(
    priced: Priced,
    setting_ids: dict[str, int],
    acceptance: Acceptance | TreeAcceptance | None,
    *,
    other_drafter: bool = False,
) -> Columns:
    """Compute every column. Rows of one batch size and setting are compared with their own row at 1 draft token.

    ``other_drafter``: the calibrated cycles were of another drafter, so cycles are extrapolated.
    """
    s = sources_of(priced, setting_ids, other_drafter=other_drafter)
    verify = priced.estimate(priced.verify, s.verify, noise=True)
    cycle = priced.estimate(priced.cycle, s.cycle, noise=True)
    base = _plain_rows(priced)
    ratio = cycle.value / cycle.value[base]
    sd = _cycle_ratio_sd(priced, np.arange(len(priced.rows)), base)
    source = np.maximum(s.cycle, s.cycle[base]).astype(np.int8)
    even = Estimate(ratio, ratio * np.exp(-Z90 * sd), ratio * np.exp(Z90 * sd), source)
    length, tokens, speedup = _yield(priced, acceptance, cycle, even)
    return Columns(
        priced, priced.part("comm", s.comm), priced.part("compute", s.compute),
        priced.part("overhead", s.overhead), verify, priced.part("draft", s.draft),
        priced.part("host", s.host), cycle, even, length, tokens, speedup,
    )  # fmt: skip


def _plain_rows(priced: Priced) -> NDArray[np.intp]:
    """Index of each row's own plain decode row (same batch, context and setting)."""
    rows = priced.rows
    keys = list(zip(rows.batch_size.tolist(), rows.context_tokens.tolist(), rows.setting.tolist(), strict=True))
    plain = {key: i for i, key in enumerate(keys) if rows.draft_tokens[i] == 1}
    return np.array([plain[key] for key in keys], dtype=np.intp)


def _cycle_ratio_sd(priced: Priced, a: NDArray[np.intp], b: NDArray[np.intp]) -> Floats:
    total = priced.cycle
    slope = total.gradient / total.value[:, None] - priced.fix.shift
    free = total.variance / total.value**2 + priced.fix.variance
    # The curve's own interval is largely shared between sizes of one setting; the correction's is treated as apart.
    independent = np.where(a == b, 0.0, free[a] + free[b])
    return ratio_sd(priced.posterior, slope[a], slope[b], independent)


def _yield(
    priced: Priced, acceptance: Acceptance | TreeAcceptance | None, cycle: Estimate, even: Estimate
) -> tuple[Estimate | None, Estimate | None, Estimate | None]:
    if acceptance is None:
        return None, None, None
    rows = priced.rows
    length = acceptance.accept_length(rows.draft_tokens.astype(int) - 1)
    return length, _quotient(length, cycle, 1e3 * rows.batch_size), _quotient(length, even, np.ones(len(rows)))


def _quotient(top: Estimate, bottom: Estimate, factor: Floats) -> Estimate:
    """Divide independent estimates: log half-widths add in quadrature."""
    value = factor * top.value / bottom.value
    down = np.hypot(np.log(top.value / top.low), np.log(bottom.high / bottom.value))
    up = np.hypot(np.log(top.high / top.value), np.log(bottom.value / bottom.low))
    return Estimate(value, value * np.exp(-down), value * np.exp(up), np.maximum(top.source, bottom.source))


def rows_of(c: Columns, num_allreduces: int, one_token_bytes: int) -> list[Row]:
    """Turn the columns into records."""
    rows, result = c.priced.rows, []
    for i in range(len(rows)):
        batch, width = int(rows.batch_size[i]), int(rows.draft_tokens[i])
        known = c.tokens_per_s is not None
        exact = Estimate.exact(np.ones(1), "measured").item(0)
        plain_tokens = _quotient(Estimate.exact(np.ones(1), "measured"), _one(c.cycle, i), np.array([1e3 * batch]))
        result.append(
            Row(
                batch_size=batch, draft_tokens=width, num_steps=int(rows.num_steps[i]), topk=rows.shape.topk,
                allreduce_bytes=batch * width * one_token_bytes, allreduces_per_forward=num_allreduces,
                comm_ms=c.comm.item(i), compute_ms=c.compute.item(i), overhead_ms=c.overhead.item(i),
                verify_ms=c.verify.item(i), draft_ms=c.draft.item(i), host_ms=c.host.item(i), cycle_ms=c.cycle.item(i),
                accept_length=exact if width == 1 else c.accept_length.item(i) if c.accept_length else None,
                tokens_per_s=c.tokens_per_s.item(i) if known and c.tokens_per_s else plain_tokens.item(0) if width == 1 else None,
                speedup=exact if width == 1 else c.speedup.item(i) if c.speedup else None,
                break_even_accept_length=_possible_length(c.break_even.item(i)),
            )
        )  # fmt: skip
    return result


def _possible_length(even: Value) -> Value:
    """A verify emits the bonus token at least: where less would do, speculation pays at any acceptance, from 1 on."""
    return even.model_copy(update={name: max(getattr(even, name), 1.0) for name in ("value", "low", "high")})


def _one(estimate: Estimate, index: int) -> Estimate:
    return Estimate(*(getattr(estimate, name)[index : index + 1] for name in ("value", "low", "high", "source")))


def best_by_batch(c: Columns, rows: Sequence[Row]) -> list[Best]:
    """Best draft-token count per batch size; tied: the 90% interval of the ratio to it holds 1."""
    if c.tokens_per_s is None or c.accept_length is None:
        return []
    result = []
    for batch in dict.fromkeys(row.batch_size for row in rows):
        mine = np.array([i for i, row in enumerate(rows) if row.batch_size == batch], dtype=np.intp)
        top = int(mine[np.argmax(c.tokens_per_s.value[mine])])
        others = np.array([i for i in mine if i != top], dtype=np.intp)
        tied = [rows[i].draft_tokens for i in others[_ties(c, others, top)]] if others.size else []
        row = rows[top]
        assert row.tokens_per_s is not None
        assert row.speedup is not None
        result.append(
            Best(batch_size=batch, draft_tokens=row.draft_tokens, tied_with=tied, tokens_per_s=row.tokens_per_s,
                 speedup=row.speedup, speculate=row.draft_tokens > 1)
        )  # fmt: skip
    return result


def _ties(c: Columns, others: NDArray[np.intp], top: int) -> NDArray[np.bool_]:
    assert c.tokens_per_s is not None
    assert c.accept_length is not None
    time_half = Z90 * _cycle_ratio_sd(c.priced, others, np.full(others.shape, top))
    length = c.accept_length
    half = np.hypot(np.log(length.high[others] / length.value[others]), np.log(length.value[top] / length.low[top]))
    # Accept lengths of one drafter rise and fall together: only what the longer chain adds is in question.
    longer = np.maximum(length.value[others], length.value[top]) - 1
    shorter = np.minimum(length.value[others], length.value[top]) - 1
    apart = np.where(longer > 0, 1 - shorter / np.maximum(longer, 1e-9), 0.0)
    gap = np.log(c.tokens_per_s.value[top] / c.tokens_per_s.value[others])
    return np.asarray(gap <= np.hypot(time_half, half * np.sqrt(apart)), dtype=bool)


def sensitivity(rows: Sequence[Row], best: Best | None, num_allreduces: int, num_draft: int) -> Sensitivity:
    """What 1 us per all-reduce and 0.1 of accept length are worth (at the best row, or the first without acceptance)."""
    index = next((i for i, r in enumerate(rows) if best and (r.batch_size, r.draft_tokens) == (best.batch_size, best.draft_tokens)), 0)  # fmt: skip
    row = rows[index]
    count = num_allreduces + (num_draft * row.num_steps if row.num_steps else 0)
    per_us = count * 1e-3
    tokens = row.tokens_per_s.value if best and row.tokens_per_s else None
    length = row.accept_length.value if row.accept_length else None
    return Sensitivity(
        cycle_ms_per_allreduce_us=per_us,
        tokens_per_s_per_allreduce_us=tokens * per_us / row.cycle_ms.value if tokens else None,
        tokens_per_s_per_tenth_accept_length=0.1 * tokens / length if tokens and length and row.num_steps else None,
    )


def adaptive_config(best: Sequence[Best], rows: Sequence[Row]) -> dict[str, Any] | None:
    """Candidate steps by batch size for SGLang's --speculative-adaptive-config (0.5.14: keys are batch sizes).

    The best count, and those tied with it whose tokens/s is within 3%: every candidate costs a set of CUDA graphs.
    """
    if not best:
        return None
    tokens = {(r.batch_size, r.draft_tokens): r.tokens_per_s.value for r in rows if r.tokens_per_s}
    result = {}
    for b in best:
        near = [d for d in b.tied_with if tokens[b.batch_size, d] >= (1 - _LADDER_SHARE) * b.tokens_per_s.value]
        result[str(b.batch_size)] = {"candidate_steps": sorted({d - 1 for d in (b.draft_tokens, *near)})}
    return result


def findings(rows: Sequence[Row]) -> list[str]:
    """Name what is large and neither compute nor communication, with what to check."""
    found = []
    drafted = [r for r in rows if r.draft_tokens > 1]
    if not drafted:
        return []
    worst = max(drafted, key=lambda r: r.overhead_ms.value / r.verify_ms.value)
    shown = next((r for r in drafted if r.verify_ms.source == "measured"), drafted[0] if len(drafted) == 1 else worst)
    share = shown.overhead_ms.value / shown.verify_ms.value
    if share > _OVERHEAD_SHARE and shown.overhead_ms.source != "assumed":
        o = shown.overhead_ms
        found.append(
            f"verify overhead: {o.value:.1f} ms [{o.low:.1f}, {o.high:.1f}] of the {shown.verify_ms.value:.2f} ms verify at "
            f"{shown.draft_tokens} draft tokens is neither compute nor communication. Does a CUDA graph "
            "cover the verify shape (batch x draft tokens); does the host wait for the device between draft and verify; "
            "does attention run in extend mode with a slower kernel?"
        )
    if shown.host_ms.value > _SERVED_SHARE * shown.cycle_ms.value and shown.host_ms.source != "assumed":
        found.append(
            f"served round: {shown.host_ms.value:.1f} ms of the {shown.cycle_ms.value:.2f} ms cycle is host and scheduling. "
            "Check overlap scheduling, the sampling back end and what else runs on the host's cores."
        )
    return found
