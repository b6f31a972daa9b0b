"""The compute of a forward between two all-reduces: matrix products that stream weights from memory.

Weights are taken from a pool several times the size of the L2 cache, one piece after the other, so that no product
finds its weights cached (a benchmark that reuses one layer's weights underprices exactly the small batches that decode
has). The second product writes the message, as an output projection does, so the all-reduce waits for real data.
"""

from typing import Any

# The pool is this many times the L2 cache, but at least and at most so large.
L2_MULTIPLE = 5
MIN_POOL_BYTES = 64 << 20
MAX_POOL_BYTES = 768 << 20


class ForwardBody:
    """Two products per all-reduce: [tokens, hidden] x [hidden, width] x [width, hidden]."""

    def __init__(self, torch: Any, device: Any, dtype: Any, hidden_size: int, l2_bytes: int) -> None:
        self._torch, self._device, self._dtype, self.hidden_size = torch, device, dtype, hidden_size
        self._element = torch.empty(0, dtype=dtype).element_size()
        pool_bytes = min(max(L2_MULTIPLE * l2_bytes, MIN_POOL_BYTES), MAX_POOL_BYTES)
        generator = torch.Generator(device=device).manual_seed(1)
        self.pool = torch.empty(pool_bytes // self._element, dtype=dtype, device=device)
        # Random weights: products of zeros run faster than real data does (power).
        step = 1 << 24
        for start in range(0, self.pool.numel(), step):
            self.pool[start : start + step].normal_(0.0, 0.02, generator=generator)
        self._offset = 0
        self._inputs: dict[int, Any] = {}
        self._middle: dict[tuple[int, int], Any] = {}

    def width(self, weight_bytes: int) -> int:
        """Width of the hidden product so that both products stream about ``weight_bytes``."""
        most = self.pool.numel() // (2 * self.hidden_size)
        wanted = weight_bytes // (2 * self.hidden_size * self._element)
        return max(16, min(most, wanted) // 16 * 16)

    def rewind(self) -> None:
        """Start again at the first weights, so that two captured forwards stream the very same ones."""
        self._offset = 0

    def step(self, num_tokens: int, width: int, message: Any) -> None:
        """Queue the two products; the result is written to ``message`` [tokens, hidden]."""
        torch, hidden = self._torch, self.hidden_size
        x = self._inputs.get(num_tokens)
        if x is None:
            x = self._inputs[num_tokens] = torch.randn(num_tokens, hidden, dtype=self._dtype, device=self._device)
        y = self._middle.get((num_tokens, width))
        if y is None:
            y = self._middle[num_tokens, width] = torch.empty(num_tokens, width, dtype=self._dtype, device=self._device)
        torch.mm(x, self._take(hidden, width), out=y)
        torch.mm(y, self._take(width, hidden), out=message)

    def _take(self, rows: int, columns: int) -> Any:
        size = rows * columns
        if self._offset + size > self.pool.numel():
            self._offset = 0
        piece = self.pool[self._offset : self._offset + size].view(rows, columns)
        self._offset += size
        return piece
