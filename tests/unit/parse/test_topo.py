"""Matrices that people pasted into issue trackers, and what each one says (tests/data/topo)."""

from pathlib import Path

import pytest

from nccltune.errors import InputError
from nccltune.parse.topo import TopoMatrix, link_rank, parse_topo, worst_link

DATA = Path(__file__).parents[2] / "data" / "topo"


def read(name: str) -> TopoMatrix:
    (path,) = DATA.glob(f"{name}*.txt")
    return parse_topo(path.read_bytes().decode("utf-8"))


@pytest.mark.parametrize(
    ("name", "num_gpus", "num_nics", "links", "worst"),
    [
        ("01", 8, 1, {"GPU0-GPU3": "PIX", "GPU0-GPU4": "SYS", "GPU0-NIC0": "PIX", "GPU7-NIC0": "SYS"}, "SYS"),
        ("03", 8, 9, {"GPU0-GPU3": "NV18", "GPU0-NIC8": "PIX", "GPU0-NIC0": "SYS"}, "NV18"),
        ("05", 4, 0, {"GPU0-GPU3": "NV4"}, "NV4"),
        ("08", 2, 2, {"GPU0-GPU1": "NV12", "GPU0-NIC0": "PXB", "GPU1-NIC0": "SYS"}, "NV12"),
        ("12", 1, 0, {}, None),
        ("16", 4, 4, {"GPU0-GPU3": "NV12", "GPU0-NIC3": "PXB", "GPU2-NIC1": "PXB"}, "NV12"),
        ("18", 8, 0, {"GPU0-GPU3": "PIX", "GPU0-GPU4": "PHB"}, "PHB"),
        ("h200-x2", 2, 0, {"GPU0-GPU1": "NV18"}, "NV18"),
    ],
)
def test_real_matrices(name: str, num_gpus: int, num_nics: int, links: dict[str, str], worst: str | None) -> None:
    matrix = read(name)
    assert len(matrix.gpus) == num_gpus
    assert len(matrix.nics) == num_nics
    for pair, link in links.items():
        gpu, other = pair.split("-")
        assert (matrix.links[gpu] | matrix.nic_links.get(gpu, {}))[other] == link
    assert matrix.worst_gpu_link == worst
    assert matrix.complete
    assert all(len(row) == num_gpus - 1 for row in matrix.links.values())


@pytest.mark.parametrize(
    ("name", "numa"),
    [
        ("01", [0, 0, 0, 0, 1, 1, 1, 1]),
        ("05", [3, 2, 1, 0]),
        ("08", [0, 1]),
        ("12", [None]),
        ("16", [3, 3, 1, 1]),
        ("18", [None] * 8),
        ("h200-x2", [0, 0]),
    ],
)
def test_numa_nodes(name: str, numa: list[int | None]) -> None:
    assert list(read(name).numa.values()) == numa


def test_an_empty_cpu_affinity_does_not_shift_the_numa_node() -> None:
    matrix = parse_topo("\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tPHB\t\t1\nGPU1\tPHB\t X \t0-7\t\t0\n")
    assert matrix.numa == {"GPU0": 1, "GPU1": 0}


def test_peer_access_matrix_is_named_and_its_status_kept() -> None:
    matrix = read("14")
    assert matrix.p2p_status["GPU0"]["GPU1"] == "GNS"
    assert not matrix.complete
    assert matrix.links == {"GPU0": {}, "GPU1": {}}
    assert "not a topo -m matrix" in matrix.warnings[0]
    assert "GPU not supported" in matrix.warnings[1]
    assert matrix.to_json()["p2p_status"]["GPU1"]["GPU0"] == "GNS"


def test_json_has_the_documented_fields_and_no_others() -> None:
    assert set(read("01").to_json()) == {
        "kind", "gpus", "links", "nics", "nic_links", "numa", "worst_gpu_link", "complete", "warnings",
    }  # fmt: skip


def test_cut_after_a_row_keeps_the_links_known_from_the_other_side() -> None:
    text = (DATA / "01-8x4090-pix-sys-nic.txt").read_text()
    matrix = parse_topo("\n".join(text.splitlines()[:4]))  # header, GPU0, GPU1, GPU2
    assert len(matrix.gpus) == 8
    assert not matrix.complete
    assert "the row of GPU3 is missing" in matrix.warnings
    assert matrix.links["GPU7"] == {"GPU0": "SYS", "GPU1": "SYS", "GPU2": "SYS"}
    assert "GPU6" not in matrix.links["GPU7"]


def test_cut_inside_a_row() -> None:
    text = (DATA / "18-8x-rtxpro6000-two-switches-pix-phb.txt").read_text()
    matrix = parse_topo(text[: text.index("GPU5    PHB") + 22])
    assert not matrix.complete
    assert any("cut off" in warning for warning in matrix.warnings)


def test_cut_on_the_right_still_names_all_gpus() -> None:
    matrix = parse_topo("        GPU0    GPU1\nGPU0     X      PIX\nGPU1    PIX      X\nGPU2    SYS     SYS\n")
    assert matrix.gpus == ["GPU0", "GPU1", "GPU2"]
    assert matrix.links["GPU0"]["GPU2"] == "SYS"
    assert not matrix.complete


def test_missing_nic_rows_are_said_but_cost_nothing() -> None:
    matrix = read("16")
    assert matrix.complete
    assert "NIC0" in matrix.warnings[0]


def test_windows_lines_byte_order_mark_and_quoting() -> None:
    plain = (DATA / "08-ansi-underline-nv12-nics.txt").read_text()
    expected = parse_topo(plain).to_json()
    assert parse_topo("\ufeff" + plain.replace("\n", "\r\n")).to_json() == expected
    assert parse_topo(plain.replace("\x1b[", "[")).to_json() == expected  # the escape byte lost in pasting
    assert parse_topo("".join(f"> {line}\n" for line in plain.splitlines())).to_json() == expected


def test_prose_before_the_matrix_is_passed_over() -> None:
    text = "GPU0 and GPU1 are slow, see:\nGPU0\n" + (DATA / "05-4xa100-nv4-numa-reversed.txt").read_text()
    assert len(parse_topo(text).gpus) == 4


def test_cards_named_by_the_kernel() -> None:
    matrix = parse_topo(
        "\tGPU0\tGPU1\tmlx5_bond_0\tCPU Affinity\nGPU0\t X \tSYS\tNODE\t0-7\nGPU1\tSYS\t X \tPIX\t8-15\n"
    )
    assert matrix.nics == ["mlx5_bond_0"]
    assert matrix.nic_links == {"GPU0": {"mlx5_bond_0": "NODE"}, "GPU1": {"mlx5_bond_0": "PIX"}}


def test_two_directions_that_differ_are_said() -> None:
    matrix = parse_topo("\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU1\tSYS\t X \n")
    assert "GPU0-GPU1 is PIX one way and SYS the other way" in matrix.warnings


def test_unknown_link_name_is_not_taken() -> None:
    matrix = parse_topo("\tGPU0\tGPU1\nGPU0\t X \tABC\nGPU1\tPIX\t X \n")
    assert not matrix.complete
    assert matrix.links["GPU0"] == {"GPU1": "PIX"}


@pytest.mark.parametrize("text", ["", "\n\n", "# nccl-tests version 2.17\n", "GPU0 is fine\n", "\tGPU0\tGPU1\n"])
def test_what_is_no_matrix_is_refused(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_topo(text)
    assert caught.value.exit_code == 2
    assert caught.value.do


def test_order_of_links() -> None:
    names = ["NV18", "NV4", "PIX", "PXB", "PHB", "NODE", "SYS"]
    assert sorted(reversed(names), key=link_rank) == names
    assert worst_link(["NV18", "NV4"]) == "NV4"
    assert worst_link([]) is None
