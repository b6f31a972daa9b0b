"""Tell one forward from the next in a trace, and say how: graph launches, annotations, all-gathers, repetition."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from nccltune.validation.kernels import KernelKind, classify
from nccltune.validation.trace_file import Annotation, Kernel, Trace

_MIN_REPEATS = 3
_SAME_SHARE = 0.8
"""Share of the pieces that must hold equally many kernels before a split counts as the repeating structure."""


@dataclass(frozen=True, slots=True)
class Forward:
    """The kernels of one forward, in order."""

    kernels: list[Kernel]

    @property
    def start_us(self) -> float:
        """Start of the first kernel."""
        return self.kernels[0].start_us

    @property
    def span_us(self) -> float:
        """First start to last end."""
        return max(k.start_us + k.duration_us for k in self.kernels) - self.start_us


class Names:
    """Kernel names classified once each: a trace repeats few names many times."""

    def __init__(self) -> None:
        self._known: dict[str, KernelKind | None] = {}

    def __call__(self, name: str) -> KernelKind | None:
        if name not in self._known:
            self._known[name] = classify(name)
        return self._known[name]

    def count(self, kernels: Sequence[Kernel], collective: str) -> int:
        """Number of kernels that are ``collective``."""
        return sum(1 for k in kernels if (kind := self(k.name)) is not None and kind.collective == collective)


def split(trace: Trace, device: int, names: Names) -> tuple[list[Forward], str]:
    """Return the forwards of one device and how they were told apart; none and why not, where nothing repeats."""
    kernels = [k for k in trace.kernels if k.device == device]
    graphs = _by_graph(kernels, trace.graph_launches)
    if any(names.count(f.kernels, "all_reduce") for f in graphs):
        return graphs, "CUDA graph launches: kernels that share the launch's correlation id"
    annotated, name = _by_annotation(kernels, [a for a in trace.annotations if a.device == device], names)
    if annotated:
        return annotated, f"GPU annotations '{name}'"
    gathered = _by_gather(kernels, names)
    if gathered:
        return gathered, "all-gathers: a forward ends with the one of its logits"
    repeated, name = _by_repetition(kernels)
    if repeated:
        return repeated, f"repetition: split at kernel '{name}', which occurs once in a repeating unit"
    return [], "not told: no graph launch, no annotation, no all-gather, nothing repeats"


def _by_graph(kernels: Sequence[Kernel], launches: set[tuple[int, int]]) -> list[Forward]:
    groups: dict[int, list[Kernel]] = {}
    for kernel in kernels:
        if kernel.correlation is not None and (kernel.device, kernel.correlation) in launches:
            groups.setdefault(kernel.correlation, []).append(kernel)
    return [Forward(group) for group in groups.values()]


def _by_annotation(
    kernels: Sequence[Kernel], annotations: Sequence[Annotation], names: Names
) -> tuple[list[Forward], str]:
    """Ranges of one name (numbers aside) that each hold all-reduces; SGLang's ``step[...]`` first, prefills last."""
    families: dict[str, list[Annotation]] = {}
    for one in annotations:
        families.setdefault("".join("#" if c.isdigit() else c for c in one.name), []).append(one)
    ordered = sorted(
        families.items(), key=lambda item: (not item[0].startswith("step["), "EXTEND" in item[0], -len(item[1]))
    )
    for family, ranges in ordered:
        found = [Forward(inside) for r in ranges if (inside := _inside(kernels, r))]
        if found and all(names.count(f.kernels, "all_reduce") for f in found):
            return found, family
    return [], ""


def _inside(kernels: Sequence[Kernel], one: Annotation) -> list[Kernel]:
    from bisect import bisect_left, bisect_right

    low = bisect_left(kernels, one.start_us, key=lambda k: k.start_us)
    high = bisect_right(kernels, one.end_us, key=lambda k: k.start_us)
    return list(kernels[low:high])


def _by_gather(kernels: Sequence[Kernel], names: Names) -> list[Forward]:
    """Split behind every all-gather. The first piece may be cut by the start of the profile, so it does not count."""
    pieces: list[list[Kernel]] = [[]]
    for kernel in kernels:
        pieces[-1].append(kernel)
        kind = names(kernel.name)
        if kind is not None and kind.collective == "all_gather":
            pieces.append([])
    whole = [piece for piece in pieces[1:-1] if names.count(piece, "all_reduce")]
    return [Forward(piece) for piece in whole] if len(whole) >= _MIN_REPEATS else []


def _by_repetition(kernels: Sequence[Kernel]) -> tuple[list[Forward], str]:
    """Split at the rarest kernel name whose occurrences are equally far apart."""
    places: dict[str, list[int]] = {}
    for index, kernel in enumerate(kernels):
        places.setdefault(kernel.name, []).append(index)
    for name, at in sorted(places.items(), key=lambda item: len(item[1])):
        if len(at) < _MIN_REPEATS + 1:
            continue
        gaps = [b - a for a, b in itertools.pairwise(at)]
        usual = max(set(gaps), key=gaps.count)
        if usual > 1 and gaps.count(usual) >= _SAME_SHARE * len(gaps):
            return [Forward(list(kernels[a:b])) for a, b in itertools.pairwise(at) if b - a == usual], name
    return [], ""
