"""The accuracy benchmark itself: its targets hold, and it runs on any CSV of its form."""

import importlib.util
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("model_accuracy", BENCHMARKS / "model_accuracy.py")
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["model_accuracy"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_every_stated_target_holds(benchmark, capsys):
    assert benchmark.main([]) == 0
    out = capsys.readouterr().out
    assert "16 left-out points" in out
    assert "AIConfigurator 0.12" in out


HEADER = "backend,backend_version,model,system,precision,isl,osl,ranks,batch_size,tpot_ms\n"


def curve(model, system, points, precision="fp8"):
    return "".join(f"vllm,1,{model},{system},{precision},1024,8192,8,{b},{t}\n" for b, t in points)


def test_another_csv_with_repeats_unknown_names_and_short_curves(benchmark, tmp_path, capsys):
    # Times of T = 5 + 0.6 sqrt(batch) + 0.05 batch, one of them repeated with an outlier
    times = [(b, 5 + 0.6 * b**0.5 + 0.05 * b) for b in (1, 2, 4, 8, 16, 32, 64)]
    path = tmp_path / "other.csv"
    path.write_text(
        HEADER + curve("MiniMaxAI/MiniMax-M2.5", "b300_sxm", [*times, (16, times[4][1]), (16, 64.0)])
        + curve("nobody/unknown", "h200_sxm", times) + curve("MiniMaxAI/MiniMax-M2.5", "tpu", times)
        + curve("openai/gpt-oss-120b", "h200_sxm", times[:2], "fp4")
    )  # fmt: skip
    benchmark.main(["--decode", str(path)])
    out = capsys.readouterr().out
    assert "skipped: no model is called 'nobody/unknown'" in out
    assert "skipped: no machine file for tpu" in out
    assert "skipped: 2 points are too few" in out
    assert "3 left-out points" in out
    worst = float(out.split("worst ")[1].split("%")[0])
    assert worst < 10


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", HEADER])
def test_a_csv_without_curves(benchmark, tmp_path, text):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    assert benchmark.main(["--decode", str(path)]) in (1, 2)


def test_a_missing_csv(benchmark, tmp_path):
    assert benchmark.main(["--decode", str(tmp_path / "none.csv")]) == 2
