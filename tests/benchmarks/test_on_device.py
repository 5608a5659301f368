"""`benchmarks/on_device.py` at toy size on the CPU: what it stores, and that a later call continues."""

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "on_device.py"
ALONE = [
    *("drloc_overhead", "esvit_loss", "esvit_step", "backbones", "loaders", "token_labels", "batch_size", "memory"),
    *("epochs", "throughput"),
]
SPREAD = {"median", "lower_quartile", "upper_quartile"}


def encoded(pixels: np.ndarray) -> dict[str, bytes]:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return {"bytes": file.getvalue(), "path": None}


@pytest.fixture(scope="module")
def sets(tmp_path_factory) -> Path:
    """Two small sets of noise in the layout of Hugging Face."""
    root, draw = tmp_path_factory.mktemp("sets"), np.random.default_rng(0)
    for name in ("cifar10", "clothing"):
        (root / name).mkdir()
        for part, count in (("train", 200), ("test", 60)):
            pictures = [encoded(draw.integers(0, 255, (32, 32, 3), dtype=np.uint8)) for _ in range(count)]
            table = pa.table({"image": pictures, "label": [number % 10 for number in range(count)]})
            pq.write_table(table, root / name / f"{part}.parquet")
    return root


def call(sets: Path, folder: Path, *words: str) -> tuple[int, str]:
    command = [sys.executable, str(SCRIPT), "--toy", "--device", "cpu", "--data", str(sets)]
    command += ["--work", str(folder / "work"), "--results", str(folder / "results"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


def result(folder: Path, piece: str) -> dict:
    return json.loads((folder / "results" / f"on_device_cpu_{piece}_toy.json").read_text())


def require_whole(stored: dict) -> None:
    assert stored["complete"]
    assert stored["toy"]
    assert stored["title"]
    for row in stored["parts"].values():
        assert "failed" not in row, row["failed"]
        assert row["settings"]
        assert row["wall_seconds"] >= 0
        assert row["surroundings"].keys() >= {"device", "torch", "timm", "lightning", "paucal", "python"}


@pytest.mark.slow
def test_speed__every_piece_stores_numbers_with_their_spread(sets, tmp_path):
    code, printed = call(sets, tmp_path, "--only", *ALONE, "--copy-to", str(tmp_path / "copies"))
    assert (code, "all is done" in printed) == (0, True), printed
    found = {piece: result(tmp_path, piece) for piece in ALONE}
    for piece, stored in found.items():
        require_whole(stored)
        assert json.loads((tmp_path / "copies" / f"on_device_cpu_{piece}_toy.json").read_text()) == stored
    overhead = found["drloc_overhead"]["parts"]
    assert set(overhead) == {"eager bf16", "compiled bf16", "eager fp32"}
    assert overhead["compiled bf16"]["settings"]["compile"]
    assert overhead["eager bf16"]["ratio"].keys() >= SPREAD
    assert found["drloc_overhead"]["summary"]["eager bf16"].keys() == {"percent"}
    for row in found["esvit_loss"]["parts"].values():
        assert row["values"]["ours"] == pytest.approx(row["values"]["plain"], rel=0.05)
        assert row["time_ratio"].keys() >= SPREAD
        assert row["peak_bytes"]["ours"] > 0
    assert set(found["esvit_step"]["parts"]) == {"bf16", "fp32"}
    assert {name.split(", ")[1] for name in found["backbones"]["parts"]} == {"eager", "compiled"}
    for row in found["loaders"]["parts"].values():
        assert row["images_per_second"]["ours"].keys() >= SPREAD
    assert found["token_labels"]["parts"]["token labels"]["dense_over_sparse_targets"].keys() >= SPREAD
    assert {row["largest"] for row in found["batch_size"]["parts"].values()} == {8}
    assert len(found["memory"]["parts"]) == 4
    lines = found["throughput"]["parts"]["esvit-table-7"]["lines"]
    scaled = {line["row"]: line["median"] for line in lines if line["column"] == "DINO scale"}
    assert scaled.keys() == {"DeiT-S/16", "Swin-T W7"}
    assert scaled["DeiT-S/16"] == 1007
    assert 0 < scaled["Swin-T W7"] < 5 * 1007


@pytest.mark.slow
def test_parts__that_are_stored_are_not_measured_again(sets, tmp_path):
    code, _ = call(sets, tmp_path, "--only", "memory", "--minutes", "0.02")
    assert code == 3
    first = result(tmp_path, "memory")
    assert 1 <= len(first["parts"]) < 4
    assert not first["complete"]
    code, _ = call(sets, tmp_path, "--only", "memory")
    assert code == 0
    second = result(tmp_path, "memory")
    assert second["complete"]
    name = next(iter(first["parts"]))
    assert second["parts"][name] == first["parts"][name]
    listed = call(sets, tmp_path, "--list")[1]
    assert "4 of 4" in next(line for line in listed.splitlines() if line.startswith("memory"))
    assert "0 of 1" in next(line for line in listed.splitlines() if line.startswith("esvit_50000"))


@pytest.mark.slow
def test_call__leaves_out_parts_and_keeps_the_given_order(sets, tmp_path):
    code, printed = call(sets, tmp_path, "--only", "memory", "batch_size", "--without", "bf16")
    assert (code, "all is done without 'bf16'" in printed) == (0, True), printed
    assert printed.index("memory:") < printed.index("batch_size:")
    stored = result(tmp_path, "memory")
    assert (list(stored["parts"]), stored["complete"]) == (["fp32"], False)


@pytest.mark.slow
def test_part__that_failed_is_told_and_measured_again_on_request(sets, tmp_path):
    call(sets, tmp_path, "--only", "token_labels")
    path = tmp_path / "results" / "on_device_cpu_token_labels_toy.json"
    stored = json.loads(path.read_text())
    row = stored["parts"]["token labels"]
    stored["parts"]["token labels"] = {"failed": "RuntimeError: no", "surroundings": row["surroundings"]}
    path.write_text(json.dumps(stored))
    assert call(sets, tmp_path, "--only", "token_labels")[0] == 1
    assert call(sets, tmp_path, "--only", "token_labels", "--retry")[0] == 0
    require_whole(result(tmp_path, "token_labels"))
    # What another device has measured is no result of this one.
    stored["parts"]["token labels"]["surroundings"]["device"] = "another"
    path.write_text(json.dumps(stored))
    assert "0 of 1" in next(line for line in call(sets, tmp_path, "--list")[1].splitlines() if "token_labels" in line)


@pytest.mark.slow
def test_grid__goes_on_where_a_call_was_stopped(sets, tmp_path):
    code, printed = call(sets, tmp_path, "--only", "drloc_grid", "--minutes", "0.5")
    assert (code, "continues in the next call" in printed) == (3, True), printed
    code, printed = call(sets, tmp_path, "--only", "drloc_grid", "--minutes", "9")
    assert code == 0, printed
    stored = result(tmp_path, "drloc_grid")
    require_whole(stored)
    (found,) = stored["parts"].values()
    assert len(found["runs"]) == 8
    assert len(found["arms"]) == 4
    assert len(stored["summary"]["differences"]) == 3


@pytest.mark.slow
@pytest.mark.parametrize(("piece", "run"), [("drloc_swin", "drloc-toy-supervised-0"), ("esvit_50000", "esvit-toy")])
def test_training__longer_than_a_call_is_resumed(piece, run, sets, tmp_path):
    code, printed = call(sets, tmp_path, "--only", piece, "--minutes", "0.02")
    assert (code, "continues in the next call" in printed) == (3, True), printed
    folder = tmp_path / "work" / run
    assert (folder / "checkpoints" / "last.ckpt").exists()
    assert not (folder / "summary.json").exists()
    (folder / "mark").touch()  # beginning again would replace the folder
    code, printed = call(sets, tmp_path, "--only", piece)
    assert code == 0, printed
    assert (folder / "mark").exists()
    stored = result(tmp_path, piece)
    require_whole(stored)
    if piece == "drloc_swin":
        assert len(stored["parts"]) == 6
        assert [row["seeds"] for row in stored["summary"]["comparison"]] == [3, 3]
        assert "gain_deviation" in stored["summary"]["comparison"][1]
    else:
        row = stored["parts"]["view+region"]
        assert 0 <= row["monitor_before"] <= 1
        assert 0 <= row["nearest_neighbours"] <= 1
        assert len(row["monitor_after_each_epoch"]) == 2


@pytest.mark.slow
def test_call__without_an_accelerator_measures_nothing(sets, tmp_path):
    words = [sys.executable, str(SCRIPT), "--device", "cpu", "--results", str(tmp_path / "none")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert done.stderr.startswith("there is no accelerator")
    assert not (tmp_path / "none").exists()
