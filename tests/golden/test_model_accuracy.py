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


FIVE = [(4, 10.3), (8, 12.5), (16, 16.6), (32, 23.3), (64, 33.0)]


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        ("4,abc", "not numbers"), ("4,-3", "not possible"), ("0,3", "not possible"), ("4.5,3", "not possible"),
        ("4", "cut"), ("4,inf", "not possible"),
    ],
)  # fmt: skip
def test_a_row_that_is_no_measurement_is_named(benchmark, tmp_path, capsys, cells, says):
    path = tmp_path / "bad.csv"
    path.write_text(HEADER + curve("openai/gpt-oss-120b", "h200_sxm", FIVE) + f"vllm,1,openai/gpt-oss-120b,h200_sxm,fp4,1,1,8,{cells}\n")  # fmt: skip
    assert benchmark.main(["--decode", str(path)]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("form", ["crlf", "bom", "quotes", "spaces", "columns", "floats"])
def test_the_same_rows_written_in_another_way(benchmark, tmp_path, capsys, form):
    text = HEADER + curve("openai/gpt-oss-120b", "h200_sxm", FIVE, "fp4")
    lines = [line.split(",") for line in text.splitlines()]
    changed = {
        "crlf": text.replace("\n", "\r\n"), "bom": "\ufeff" + text, "spaces": text.replace(",", ", "),
        "quotes": "\n".join(",".join(f'"{cell}"' for cell in line) for line in lines),
        "columns": "\n".join(",".join(reversed(line)) for line in lines),
        "floats": "\n".join(",".join([*line[:8], f"{line[8]}.0" if line[8].isdigit() else line[8], line[9]]) for line in lines),
    }[form]  # fmt: skip
    outputs = []
    for content in (text, changed):
        (tmp_path / "c.csv").write_bytes(content.encode())
        assert benchmark.main(["--decode", str(tmp_path / "c.csv")]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]


def test_a_disturbed_time_neither_calibrates_nor_is_hidden(benchmark, tmp_path, capsys):
    path = tmp_path / "c.csv"
    path.write_text(HEADER + curve("openai/gpt-oss-120b", "h200_sxm", [*FIVE, (16, 63.98)], "fp4"))
    assert benchmark.main(["--decode", str(path)]) == 0  # of two that disagree the lower one counts
    merged = [(b, 40.3 if b == 16 else ms) for b, ms in FIVE]
    path.write_text(HEADER + curve("openai/gpt-oss-120b", "h200_sxm", merged, "fp4"))
    benchmark.main(["--decode", str(path)])
    assert "batch 16 (40.3 ms) is left out" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "precision", "model", "stored"),
    [
        ("nvidia/Kimi-K2.5-NVFP4", "nvfp4", "kimi-k2.5", "nvfp4-g16"),
        ("Qwen/Qwen3-235B-A22B-FP8", "fp8_block", "qwen3-235b-a22b", "fp8-block128"),
        ("openai/gpt-oss-120b", "w4a8_mxfp4_mxfp8", "gpt-oss-120b", "mxfp4-g32"),
        ("deepseek-ai/DeepSeek-R1", "nvfp4", "deepseek-r1", "nvfp4-g16"),
    ],
)
def test_names_and_precisions_of_the_source(benchmark, name, precision, model, stored):
    found = benchmark.model_of(name, precision)
    assert (found.name, found.quantization.routed_experts) == (model, stored)
