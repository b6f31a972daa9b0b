"""Models and drafters as plain documents for people and scripts: shape, totals beside the published ones, bytes per rank."""

from typing import Any

from nccltune.costmodel.experts import distinct_experts
from nccltune.costmodel.weights import (
    ParameterCounts,
    drafter_parameter_counts,
    drafter_weight_bytes,
    kv_bytes,
    parameter_counts,
    resident_bytes,
    weight_bytes,
)
from nccltune.schemas.model import Drafter, Model


def model_summary(model: Model) -> dict[str, Any]:
    """Return the line of a model in a list."""
    counts, moe = parameter_counts(model), model.moe
    return {
        "name": model.name,
        "title": model.title,
        "aliases": model.aliases,
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "num_experts": moe.num_experts if moe else 0,
        "top_k": moe.top_k if moe else 0,
        "total_params": counts.total,
        "active_params": counts.active,
        "allreduces_per_forward": model.num_allreduces,
        "allreduce_bytes_per_token": model.allreduce_bytes(1),
        "weight_format": _main_format(model),
        "default_drafter": model.default_drafter,
    }


def drafter_summary(drafter: Drafter) -> dict[str, Any]:
    """Return the line of a drafter in a list."""
    return {
        "name": drafter.name,
        "title": drafter.title,
        "aliases": drafter.aliases,
        "target": drafter.target,
        "hidden_size": drafter.hidden_size,
        "draft_vocab_size": drafter.draft_vocab_size,
        "total_params": drafter_parameter_counts(drafter).total,
        "weight_format": drafter.weight_format,
    }


def model_details(model: Model, *, num_ranks: int, num_tokens: list[int]) -> dict[str, Any]:
    """Return the record with its totals beside the published ones and the bytes of one rank per forward."""
    counts = parameter_counts(model)
    union = distinct_experts(model, num_tokens)
    parts = weight_bytes(model, num_ranks, union)
    forwards = [
        {
            "num_tokens": tokens,
            "allreduce_bytes": model.allreduce_bytes(tokens),
            "distinct_experts": float(union[i]),
            "weight_bytes_by_part": {part: float(sizes[i]) for part, sizes in parts.items()},
            "weight_bytes": float(sum(sizes[i] for sizes in parts.values())),
        }
        for i, tokens in enumerate(num_tokens)
    ]
    return {
        "schema": "nccltune.model_details",
        "schema_version": 1,
        **model_summary(model),
        "record": model.model_dump(mode="json"),
        "params_by_part": counts.by_part,
        "published": _against_published(model, counts),
        "num_ranks": num_ranks,
        "resident_bytes_per_rank": resident_bytes(model, num_ranks),
        "kv_bytes_per_rank_and_request": {
            str(tokens): float(kv_bytes(model, num_ranks, float(tokens))) for tokens in (1024, 4096, 32768)
        },
        "forwards": forwards,
    }


def drafter_details(drafter: Drafter, *, num_ranks: int) -> dict[str, Any]:
    """Return the record with its parameters and the bytes of one rank per drafter forward."""
    counts = drafter_parameter_counts(drafter)
    return {
        "schema": "nccltune.drafter_details",
        "schema_version": 1,
        **drafter_summary(drafter),
        "record": drafter.model_dump(mode="json"),
        "params_by_part": counts.by_part,
        "num_ranks": num_ranks,
        "weight_bytes_by_part": drafter_weight_bytes(drafter, num_ranks),
    }


def compare_published(model: Model) -> list[tuple[str, float, float, float]]:
    """Return (what, computed, published, tolerance) for each published count of parameters."""
    return _comparison(model, parameter_counts(model))


def _comparison(model: Model, counts: ParameterCounts) -> list[tuple[str, float, float, float]]:
    published = model.published
    if published is None:
        return []
    # A tied embedding is the head and already active.
    gathered = counts.by_part["embedding"] if published.active_counts_embedding and not model.tie_word_embeddings else 0
    rows = []
    if published.total_params is not None:
        rows.append(("total", counts.total, published.total_params, published.tolerance))
    if published.active_params is not None:
        tolerance = published.tolerance if published.active_tolerance is None else published.active_tolerance
        rows.append(("active", counts.active + gathered, published.active_params, tolerance))
    return rows


def _against_published(model: Model, counts: ParameterCounts) -> list[dict[str, Any]]:
    return [
        {
            "what": what,
            "computed": computed,
            "published": published,
            "difference_percent": 100 * (computed / published - 1),
            "tolerance_percent": 100 * tolerance,
        }
        for what, computed, published, tolerance in _comparison(model, counts)
    ]


def _main_format(model: Model) -> str:
    """Format of most weights, and of attention where that differs."""
    q = model.quantization
    main = q.routed_experts if model.moe else q.dense
    return main if main == q.attention else f"{main} (attention {q.attention})"
