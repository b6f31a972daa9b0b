"""A list of sizes as the fewest ``-b -e -f`` and ``-b -e -i`` ranges, which is all that nccl-tests can be asked for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SizeRun:
    """Sizes of one call: ``first``, then times ``factor`` or plus ``step_bytes``, up to ``last``."""

    sizes: tuple[int, ...]
    factor: int | None = None
    step_bytes: int | None = None

    def arguments(self) -> list[str]:
        """Return the arguments of nccl-tests; a single size is a range of one."""
        result = ["-b", str(self.sizes[0]), "-e", str(self.sizes[-1])]
        if self.factor is not None:
            return [*result, "-f", str(self.factor)]
        return [*result, "-i", str(self.step_bytes)] if self.step_bytes is not None else result


def size_runs(sizes: list[int]) -> list[SizeRun]:
    """Split sizes into runs, longest first taken; every size is measured once and none besides.

    14336, 28672, 43008, 57344, 114688: one run of steps (1 to 4 tokens) and one single.
    """
    remaining = sorted(set(sizes))
    runs: list[SizeRun] = []
    while remaining:
        best = _longest(remaining)
        runs.append(best)
        taken = set(best.sizes)
        remaining = [size for size in remaining if size not in taken]
    return sorted(runs, key=lambda run: run.sizes[0])


def _longest(sizes: list[int]) -> SizeRun:
    best = SizeRun(sizes=(sizes[0],))
    present = set(sizes)
    for i, first in enumerate(sizes):
        for second in sizes[i + 1 :]:
            step = second - first
            chain = _chain(first, present, factor=1, step_bytes=step)
            if len(chain) > len(best.sizes):
                best = SizeRun(sizes=chain, step_bytes=step)
            factor, rest = divmod(second, first)
            if rest == 0 and factor > 1:
                chain = _chain(first, present, factor=factor, step_bytes=0)
                if len(chain) > len(best.sizes):
                    best = SizeRun(sizes=chain, factor=factor)
    return best


def _chain(first: int, present: set[int], *, factor: int, step_bytes: int) -> tuple[int, ...]:
    chain = [first]
    while (size := chain[-1] * factor + step_bytes) in present:
        chain.append(size)
    return tuple(chain)
