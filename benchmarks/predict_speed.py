"""How long predictions take: the whole command, and 100,000 (setting, batch, draft tokens) rows through Python.

python benchmarks/predict_speed.py
"""

import subprocess
import sys
import time

from nccltune.costmodel.basis import Question
from nccltune.costmodel.prediction import predict_grid

COMMAND_TARGET_S, GRID_TARGET_S = 0.6, 1.0
SETTINGS = ["base", "seed"]


def main() -> int:
    """Print both times; 1 when a target is missed."""
    code = "import sys; from nccltune.cli import main; main(['predict', '--draft-tokens', '1-8'])"
    walls = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        walls.append(time.perf_counter() - start)
    best = min(walls)
    print(f"nccltune predict --draft-tokens 1-8, whole process: best of 5 {best:.2f} s (target {COMMAND_TARGET_S} s)")
    batches, widths = range(1, 501), range(1, 101)
    start = time.perf_counter()
    grid = predict_grid(Question(), SETTINGS, batches, widths)
    wall = time.perf_counter() - start
    print(
        f"{grid['cycle_ms'].size} rows through nccltune.costmodel.prediction.predict_grid: {wall:.2f} s (target {GRID_TARGET_S} s)"
    )
    return 0 if best < COMMAND_TARGET_S and wall < GRID_TARGET_S else 1


if __name__ == "__main__":
    sys.exit(main())
