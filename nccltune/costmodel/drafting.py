"""Terms that a cycle adds to its verify: drafter forwards priced from the drafter's own file, sampling, host."""

import numpy as np

from nccltune.costmodel import weights
from nccltune.costmodel.compute import ANALYTIC, ASSUMED, comm_terms
from nccltune.costmodel.system import Rows, System
from nccltune.costmodel.terms import Term

# A drafter forward in SGLang: embedding, o_proj and down_proj are all-reduced, its logits gathered once.
ALLREDUCES_PER_DRAFT_FORWARD = 3
# Embedding, fusion projection, one dense layer (8 + 4), head, top-k: counted as in compute.py.
_DRAFT_KERNELS = 16
_KERNEL_MS = 3.5e-3
_STREAM_FRACTION = 0.75  # of the memory bandwidth; the free ``draft`` factor stands for what is wrong with it


def draft_terms(system: System, rows: Rows) -> list[Term]:
    """Terms of drafting: one draft-extend over all verified tokens, then ``num_steps - 1`` decode forwards.

    ``num_steps = draft_tokens - 1`` in a chain; a tree drafts ``batch x topk`` tokens a step. Only the extend reads the fusion projection ``fc``. Zero at 1 draft token.
    """
    drafted = rows.draft_tokens > 1
    if not drafted.any():
        return []
    steps = np.maximum(rows.num_steps - 1, 0.0)
    terms = _weight_and_kernel_terms(system, drafted, steps)
    drafter = system.drafter
    hidden = drafter.hidden_size if drafter else system.model.hidden_size
    vocab = drafter.draft_vocab_size if drafter else system.model.vocab_size
    for name, tokens, forwards in (
        ("draft extend", rows.num_tokens, drafted),
        ("draft steps", rows.batch_size * rows.shape.topk, steps),
    ):
        for term in comm_terms(
            system, rows, ALLREDUCES_PER_DRAFT_FORWARD, tokens, hidden, vocab,
            names=(f"{name} all-reduces", f"{name} all-gather"), group="draft",
        ):  # fmt: skip
            if np.any(forwards):
                terms.append(
                    Term(
                        term.name, "draft", term.base_ms * forwards, term.powers, term.source, term.note, term.variance
                    )
                )
    return terms


def host_terms(rows: Rows) -> list[Term]:
    """Sampling and host time of a cycle, and the served-round correction; nothing at 1 draft token."""
    drafted = (rows.draft_tokens > 1).astype(float)
    return [
        Term("sampling and host", "host", drafted, {"cycle_ms": 1.0}, ASSUMED, "tree, sampling and scheduling"),
        Term("served round", "host", drafted, {"served_ms": 1.0}, ASSUMED, "beyond the sum of the parts"),
    ]


def _weight_and_kernel_terms(system: System, drafted: np.ndarray, steps: np.ndarray) -> list[Term]:
    per_ms = 1e3 / (system.memory_bytes_per_s * _STREAM_FRACTION)
    forwards = drafted + steps
    kernels = Term("draft kernels", "draft", forwards * _DRAFT_KERNELS * _KERNEL_MS, {"draft": 1.0}, ANALYTIC,
                   f"{_DRAFT_KERNELS} kernels a forward")  # fmt: skip
    if system.drafter is None:
        # Without a drafter file: one dense layer as wide as the target, no fusion projection known.
        layer = 12.0 * system.model.hidden_size**2 * 2 / system.num_ranks
        head = system.model.vocab_size * system.model.hidden_size * 2.0 / system.num_ranks
        return [kernels, Term("draft weights", "draft", forwards * (layer + head) * per_ms, {"draft": 1.0}, ASSUMED,
                              "no drafter file: one dense layer and the target's head")]  # fmt: skip
    parts = weights.drafter_weight_bytes(system.drafter, system.num_ranks)
    once = sum(float(b) for part, b in parts.items() if part == "fc")
    each = sum(float(b) for part, b in parts.items() if part != "fc")
    return [
        kernels,
        Term("draft fusion weights", "draft", drafted * once * per_ms, {"draft": 1.0}, ANALYTIC, "fc, on every rank"),
        Term("draft weights", "draft", forwards * each * per_ms, {"draft": 1.0}, ANALYTIC, "layer and head"),
    ]
