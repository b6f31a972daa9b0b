"""The prediction, start to end: resolve what it rests on, price the rows, and write the document."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nccltune.costmodel import answer
from nccltune.costmodel.acceptance import DEFINITION, Acceptance, extended, from_mean
from nccltune.costmodel.basis import Basis, Question, resolve
from nccltune.costmodel.drafting import ALLREDUCES_PER_DRAFT_FORWARD
from nccltune.costmodel.explain import explain_row
from nccltune.costmodel.forward import Priced, price
from nccltune.costmodel.system import Rows
from nccltune.costmodel.tree import CHAIN, Shape, TreeAcceptance, check_shape
from nccltune.errors import InputError
from nccltune.schemas.common import header
from nccltune.schemas.limits import check_counts
from nccltune.schemas.prediction import (
    SCHEMA,
    SCHEMA_VERSION,
    AcceptanceUsed,
    Baseline,
    Prediction,
    Row,
)
from nccltune.schemas.setting import BASE, Setting

_MAX_ROWS = 20_000


def predict(
    question: Question,
    draft_tokens: Sequence[int],
    batch_sizes: Sequence[int] = (1,),
    acceptance: Acceptance | TreeAcceptance | None = None,
    *,
    shape: Shape = CHAIN,
    explain: bool = False,
) -> Prediction:
    """Answer ``question`` for every batch size and draft-token count; 1 draft token is always among them.

    Without ``acceptance`` that of a directly applying profile is used; with neither, tokens/s and the best count of
    drafted rows are None and the break-even accept length says what would be needed.
    """
    widths, batches = _checked(draft_tokens, batch_sizes)
    basis = resolve(question)
    warnings = [*basis.warnings, *check_shape(shape, widths)]
    if acceptance is None and shape.topk == 1:
        acceptance = profile_acceptance(basis)
    if isinstance(acceptance, Acceptance):
        acceptance = extended(acceptance, max(widths) - 1) if max(widths) > 1 else acceptance
        if max(widths) - 1 > acceptance.num_measured:
            warnings.append(f"acceptance beyond {acceptance.num_measured} drafts was not measured: extrapolated, with a wider interval")  # fmt: skip
    warnings += acceptance.warnings if acceptance else []
    if basis.shipped and question.run is None:
        warnings.insert(0, _reference_warning(basis))
    priced = price_rows(basis, basis.setting, batches, widths, shape)
    other_drafter = any(text.startswith("drafter") for text in basis.what_if)
    columns = answer.columns(priced, basis.setting_ids, acceptance, other_drafter=other_drafter)
    model = basis.system.model
    num_allreduces = model.num_allreduces if basis.system.num_ranks > 1 else 0
    rows = answer.rows_of(columns, num_allreduces, model.allreduce_bytes(1))
    best = answer.best_by_batch(columns, rows)
    return Prediction(
        **{k: v for k, v in header(SCHEMA, SCHEMA_VERSION).items() if k != "schema"},
        model=model.name, drafter=basis.system.drafter.name if basis.system.drafter else None,
        topology=basis.topology.name, ranks=basis.system.num_ranks, setting=basis.setting,
        context_tokens=basis.context_tokens, basis=basis.text, what_if=basis.what_if,
        acceptance=_acceptance_used(acceptance), rows=rows, baseline=_baseline(basis.setting, rows[0]),
        default_setting_baseline=_default_baseline(basis, batches[0]),
        best=best[0] if best else None, best_by_batch=best,
        sensitivity=answer.sensitivity(rows, best[0] if best else None, num_allreduces, ALLREDUCES_PER_DRAFT_FORWARD),
        adaptive_config=answer.adaptive_config(best, rows) if shape.topk == 1 else None, findings=answer.findings(rows) if basis.posterior.seen is not None else [],
        explain=explain_row(priced, basis, _explained(rows)) if explain else None,
        explained_row=rows[_explained(rows)] if explain else None, warnings=warnings,
    )  # fmt: skip


def price_rows(
    basis: Basis, setting: Setting, batches: Sequence[int], widths: Sequence[int], shape: Shape = CHAIN
) -> Priced:
    """Price every (batch, draft tokens) pair under one setting."""
    b, d = np.meshgrid(np.asarray(batches, float), np.asarray(widths, float), indexing="ij")
    rows = Rows.make(b.ravel(), d.ravel(), float(basis.context_tokens), [setting.name] * b.size, shape)
    return price(basis.system, rows, basis.posterior, basis.setting_ids)


def predict_grid(
    question: Question, settings: Sequence[str], batch_sizes: Sequence[int], draft_tokens: Sequence[int]
) -> dict[str, np.ndarray]:
    """Price a whole grid at once: arrays of verify and cycle milliseconds with bounds, settings x batch x draft tokens."""
    bases = [resolve(replace(question, setting=name)) for name in settings]
    shape = (len(settings), len(batch_sizes), len(draft_tokens))
    result: dict[str, list[np.ndarray]] = {}
    source = np.zeros(shape[1] * shape[2], dtype=np.int8)
    for basis in bases:
        priced = price_rows(basis, basis.setting, batch_sizes, draft_tokens)
        for name, total in (("verify_ms", priced.verify), ("cycle_ms", priced.cycle)):
            estimate = priced.estimate(total, source, noise=True)
            for suffix, values in (("", estimate.value), ("_low", estimate.low), ("_high", estimate.high)):
                result.setdefault(name + suffix, []).append(values)
    return {name: np.array(values).reshape(shape) for name, values in result.items()}


def profile_acceptance(basis: Basis) -> Acceptance | None:
    """Acceptance that came with the profile's points."""
    found = basis.acceptance
    if found is None:
        return None
    carried = "" if basis.profile else "carried over from another case of this model and drafter: "
    return from_mean(found.mean, found.num_steps, carried + found.source, low=found.low, high=found.high)


def _checked(draft_tokens: Sequence[int], batch_sizes: Sequence[int]) -> tuple[list[int], list[int]]:
    if any(int(n) != n for n in (*draft_tokens, *batch_sizes)):
        raise InputError("draft tokens and batch sizes are whole numbers", "", "write for example --draft-tokens 1-8 --batch 1,4")  # fmt: skip
    widths, batches = sorted({1, *(int(d) for d in draft_tokens)}), list(dict.fromkeys(int(b) for b in batch_sizes))
    check_counts(draft_tokens, batches)
    if len(widths) * len(batches) > _MAX_ROWS:
        raise InputError(f"{len(widths) * len(batches)} rows are more than {_MAX_ROWS}", "", "ask for fewer batch sizes; predict_grid prices large grids")  # fmt: skip
    return widths, batches


def _reference_warning(basis: Basis) -> str:
    assert basis.shipped
    where = f"the shipped reference profile {basis.profile.name} ({basis.profile.title})" if basis.profile else "the shipped reference profile, carried over to another case"  # fmt: skip
    return f"no run of this machine: the answer comes from {where}; measure yours with 'nccltune scan' and give --run"


def _acceptance_used(acceptance: Acceptance | TreeAcceptance | None) -> AcceptanceUsed:
    if acceptance is None:
        return AcceptanceUsed(definition=DEFINITION, survival=[], source="none: not known, and none is made up")
    return AcceptanceUsed(
        definition=DEFINITION, survival=[round(float(s), 6) for s in acceptance.survival],
        num_measured=acceptance.num_measured, assumption=acceptance.assumption, source=acceptance.source,
    )  # fmt: skip


def _baseline(setting: Setting, plain: Row) -> Baseline:
    assert plain.draft_tokens == 1
    assert plain.tokens_per_s is not None
    return Baseline(setting=setting, decode_ms=plain.cycle_ms, tokens_per_s=plain.tokens_per_s)


def _default_baseline(basis: Basis, batch: int) -> Baseline | None:
    """Plain decode with the engine's default settings, if this is another setting and its cost is known."""
    known = BASE.name in basis.system.curves or BASE.name in basis.told
    if not basis.setting.env or not known or basis.system.num_ranks == 1:
        return None
    priced = price_rows(basis, BASE, [batch], [1])
    columns = answer.columns(priced, basis.setting_ids, None)
    return _baseline(BASE, answer.rows_of(columns, 0, 1)[0])


def _explained(rows: Sequence[Row]) -> int:
    """Index of the row to explain: the only drafted count asked for, else the first drafted one, else plain decode."""
    return next((i for i, row in enumerate(rows) if row.draft_tokens > 1), 0)
