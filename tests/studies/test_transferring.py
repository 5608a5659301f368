"""Detectors and segmenters as rows: their scores, what they begin with, and the images that tell grids apart."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from paucal.data.sources.opening import open_digits
from paucal.runner.console import SilentConsole
from paucal.runs import RunFolder
from paucal.studies.call import study_folder
from paucal.studies.numbers import collect_numbers
from paucal.studies.plan import plan_runs
from paucal.studies.reading import studies
from paucal.studies.scenes import SCENES, START_DIGITS, UNFINISHED, draw_data_sets, draw_scene, split_digits
from paucal.studies.settings import StudySettings
from paucal.studies.tables import shown_rows
from paucal.types import UserError
from paucal.verbs.compare._work import train_cell, work
from paucal.verbs.compare.findings import scores_of
from paucal.verbs.compare.grid import (
    EVALUATION,
    FAILURE_FILE,
    MODEL,
    SCORES_FILE,
    START,
    Cell,
    Grid,
    cells_of,
    initial_weights_cell,
    initial_weights_settings,
    state_of,
    verb_settings,
)
from paucal.verbs.compare.jobs import open_images
from paucal.verbs.compare.settings import Arm


def stored(folder: Path, verb: str, arms: list[Arm], seeds: tuple[int, ...] = (0, 1)) -> Grid:
    folder.mkdir(parents=True)
    grid = Grid(folder, "images", {}, tuple(arms), seeds, verb=verb)
    grid.write()
    return grid


def finish(cell: Cell, file: str, content: dict) -> None:
    (cell.run.path / file).parent.mkdir(parents=True)
    cell.run.write_json(file, content)
    cell.run.write_json("summary.json", {"seconds": 1.0})


def test_lines__of_detectors_are_means_over_seeds_and_paired_gains(tmp_path):
    study = studies()["drloc-table-11"]
    runs = plan_runs(study, "tiny")
    grid = stored(tmp_path / "scenes", "detect", [Arm(run.name, None, None, {}, run.against) for run in runs])
    found = {("Mask R-CNN, Swin-T", 0): 0.5, ("Mask R-CNN, Swin-T", 1): 0.6, ("Mask R-CNN, Swin-T + L_drloc", 1): 0.9}
    for cell in cells_of(grid):
        if (cell.arm.way, cell.seed) in found:
            scores = {"ap": found[cell.arm.way, cell.seed], "ap75": 0.25, "per_class": None}
            intervals = {"ap": {"value": scores["ap"], "low": 0.1, "high": 1.0}}
            finish(cell, "evaluation/detection/metrics.json", {"scores": scores, "intervals": intervals})
    lines, _ = collect_numbers(study, runs, [grid])
    by_name = {(line.row.name, line.column.name): line for line in lines}
    own = by_name["Mask R-CNN, Swin-T", "AP box"].measured
    assert own is not None
    assert (own.value, own.seeds, own.gain) == (pytest.approx(55), 2, None)
    assert (own.low, own.high) == (None, None)  # of a single run only
    other = by_name["Mask R-CNN, Swin-T + L_drloc", "AP box"].measured
    assert other is not None
    assert (other.value, other.gain) == (pytest.approx(90), pytest.approx(30))  # seed 1 with seed 1
    assert (other.low, other.high) == (pytest.approx(10), pytest.approx(100))
    assert "90.0 (10.0 to 100.0)" in [row["measured"] for row in shown_rows(lines)]
    assert by_name["Mask R-CNN, Swin-T + L_drloc", "AP box"].gain == pytest.approx(42.7 - 41.8)
    assert by_name["Mask R-CNN, Swin-T", "AP mask"].why == "no outlines"
    assert by_name["Cascade Mask R-CNN, Swin-T", "AP box"].why == "not done"


def test_scores__of_segmenters_are_those_of_the_run_and_of_its_judge(tmp_path):
    grid = stored(tmp_path / "scenes", "segment", [Arm("a", None, None, {EVALUATION: {"mirror": True}})], (0,))
    (cell,) = cells_of(grid)
    content = {"images": 3, "mean_iou": {"value": 0.25, "low": 0.2, "high": 0.3}, "mean_accuracy": None}
    finish(cell, "evaluation/test/segmentation.json", content)
    assert not state_of(cell).is_final  # it is still to be judged
    RunFolder(cell.folder).write_json(SCORES_FILE, {"scores": {"mean_iou_scales": {"trained": 0.5}}})
    assert state_of(cell).name == "done"
    found = scores_of(cell)
    assert found["mean_iou"] == {"trained": 0.25, "low": 0.2, "high": 0.3}
    assert found["mean_iou_scales"] == {"trained": 0.5}
    assert "mean_accuracy" not in found
    RunFolder(cell.folder).write_json(SCORES_FILE, {"scores": 3})
    with pytest.raises(UserError, match=r"judged\.json' is damaged"):
        scores_of(cell)


def test_lines__of_a_curve_are_the_monitor_s_at_a_share_of_the_epochs(tmp_path):
    study = studies()["esvit-figure-4"]
    runs = plan_runs(study, "tiny")
    grid = stored(
        tmp_path / runs[0].data,
        "pretrain",
        [Arm(run.name, None, None, {EVALUATION: {}}, run.against) for run in runs],
        (0,),
    )
    for number, cell in enumerate(cells_of(grid)):
        finish(cell, "summary.json", {})
        rows = [f"{epoch},{(number + epoch) / 100}" for epoch in range(1, 10)]
        (cell.run.path / "metrics.csv").write_text("\n".join(["epoch,val_knn", *rows]))
        RunFolder(cell.folder).write_json(SCORES_FILE, {"scores": {"linear": {"trained": 0.5}}})
    lines, _ = collect_numbers(study, runs, [grid])
    found = [line.measured.value for line in lines if line.row.name == "Swin-T, L_V + L_R" and line.measured]
    assert found == pytest.approx([4, 7, 10, 50])
    gains = [line.measured.gain for line in lines if line.row.name == "Swin-T, L_V + L_R" and line.measured]
    assert gains == pytest.approx([1, 1, 1, 0])


def test_cells__that_train_nothing_are_done_once_they_are_judged(tmp_path):
    grid = stored(tmp_path / "other-digits", "eval", [Arm("a", None, None, {MODEL: "vit_mini"})], (0,))
    (cell,) = cells_of(grid)
    assert (state_of(cell).name, verb_settings(cell.settings)) == ("pending", {"seed": 0})
    cell.folder.mkdir(parents=True)
    RunFolder(cell.folder).write_json(
        SCORES_FILE, {"scores": {"correspondence_distance": {"trained": 2.5, "random": 9.0}}}
    )
    assert state_of(cell).name == "done"
    assert scores_of(cell)["correspondence_distance"] == {"trained": 2.5, "random": 9.0}


def test_lines__of_distances_are_in_pixels(tmp_path):
    study = studies()["esvit-figure-8"]
    runs = plan_runs(study, "tiny")
    arms = [Arm(run.name, None, None, {MODEL: "vit_mini"}, run.against) for run in runs]
    grid = stored(tmp_path / runs[0].data, "eval", arms, (0,))
    for cell in cells_of(grid):
        cell.folder.mkdir(parents=True)
        scores = {"correspondence": {"trained": 0.5}, "correspondence_distance": {"trained": 2.5, "random": 9.0}}
        RunFolder(cell.folder).write_json(SCORES_FILE, {"scores": scores})
    lines, _ = collect_numbers(study, runs, [grid])
    found = [(line.measured.value, line.measured.random) for line in lines[:2] if line.measured]
    assert found == [(0.5, None), (2.5, 9.0)]


def test_cells__begin_with_the_run_of_their_start_and_seed(tmp_path):
    starts = stored(
        tmp_path / "starts" / "train", "train", [Arm("plain", None, None, {}), Arm("drloc", None, None, {})]
    )
    grid = stored(tmp_path / "scenes", "detect", [Arm("row", None, None, {START: ["train", "drloc"]})], (0, 1, 2))
    cells = {cell.seed: cell for cell in cells_of(grid)}
    for cell in cells_of(starts):
        if cell.seed == 0:
            finish(cell, "model.json", {})
            if cell.arm.way == "drloc":
                assert initial_weights_settings(initial_weights_cell(cells[0])) == {"init": str(cell.run.path)}
        elif cell.arm.way == "drloc":
            with pytest.raises(UserError, match="starts from the run of drloc, seed 1, which is pending"):
                initial_weights_settings(initial_weights_cell(cells[1]))
            cell.folder.mkdir(parents=True)
            RunFolder(cell.folder).write_json(FAILURE_FILE, {"error": "it did not"})
    with pytest.raises(UserError, match=r"which has failed \(it did not\)"):
        initial_weights_settings(initial_weights_cell(cells[1]))
    with pytest.raises(UserError, match="no run of 'drloc' with seed 2"):
        initial_weights_cell(cells[2])
    assert initial_weights_cell(replace(cells[0], settings={})) is None
    assert initial_weights_settings(None) == {}
    assert verb_settings(cells[0].settings) == {"seed": 0}  # the verb never sees it


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> Path:
    """Return the folder of small data sets that tests only read, as 1,800 digits are written with them."""
    return draw_data_sets(tmp_path_factory.mktemp("data") / "drawn", 20, 48)


def test_scenes__show_their_digits_where_boxes_and_masks_say(drawn):
    for part in ("train", "val", "test"):
        content = json.loads((drawn / SCENES / part / "boxes.json").read_text())
        assert content["annotations"]
        for image in content["images"]:
            mask = np.asarray(Image.open(drawn / SCENES / part / "masks" / Path(image["file_name"]).name))
            own = [one for one in content["annotations"] if one["image_id"] == image["id"]]
            again = np.zeros_like(mask)
            for one in own:
                runs = one["segmentation"]["counts"]
                flat = np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(mask.shape, order="F")
                assert flat.sum() == one["area"]
                rows, columns = np.nonzero(flat)
                left, top, width, height = one["bbox"]
                assert (columns.min(), rows.min()) == (left, top)
                assert (np.ptp(columns) + 1, np.ptp(rows) + 1) == (width, height)
                again[flat] = one["category_id"]
            assert np.array_equal(again, mask)
    assert len(list((drawn / START_DIGITS).rglob("*.png"))) == 1797 // 2


def test_scenes__of_a_part_show_digits_of_no_other_and_are_drawn_alike_again(drawn, monkeypatch, tmp_path):
    before = {path: path.read_bytes() for path in drawn.rglob("*.png")}
    for_starts, parts = split_digits(1797, np.random.default_rng(0))
    assert sorted(np.concatenate([for_starts, *parts.values()])) == list(range(1797))
    pools = []

    def kept(pool, side, rng):
        pools.append(tuple(pixels.tobytes() for pixels, _ in pool))
        return draw_scene(pool, side, rng)

    monkeypatch.setattr("paucal.studies.scenes.draw_scene", kept)
    assert draw_data_sets(drawn, 20, 48) == drawn  # it is there already
    assert not pools
    again = draw_data_sets(tmp_path / "again", 20, 48)
    for path, content in before.items():
        assert (again / path.relative_to(drawn)).read_bytes() == content
    assert {int(path.stem) for path in (drawn / START_DIGITS).rglob("*.png")} == set(for_starts.tolist())
    digits = open_digits()
    read = [tuple(np.asarray(digits.store.read(int(i)).convert("L")).tobytes() for i in own) for own in parts.values()]
    assert list(dict.fromkeys(pools)) == read  # what the scenes of each part are drawn of


def test_scenes__are_drawn_once_by_several_calls_and_after_a_kill(drawn, monkeypatch, tmp_path):
    """Another call may end first, and a killed one leaves a folder that stands in nobody's way."""
    other = drawn / SCENES
    (tmp_path / f"{UNFINISHED}killed").mkdir()

    def overtaken(folder, *_):
        folder.mkdir()
        shutil.copytree(other, tmp_path / "drawn")

    monkeypatch.setattr("paucal.studies.scenes._draw_into", overtaken)
    assert draw_data_sets(tmp_path / "drawn", 4, 48) == tmp_path / "drawn"
    assert [path.name for path in tmp_path.glob(f"{UNFINISHED}*")] == [f"{UNFINISHED}killed"]
    assert len(list((tmp_path / "drawn").rglob("*.png"))) == len(list(other.rglob("*.png")))
    (tmp_path / "study").mkdir()
    (tmp_path / f"{UNFINISHED}killed").rename(tmp_path / "study" / f"{UNFINISHED}killed")
    found = study_folder(studies()["drloc-table-12"], StudySettings(output=str(tmp_path / "study")), {})
    assert found == tmp_path / "study"


def test_workers__at_rows_train_a_start_that_another_call_has_only_stored(tmp_path, monkeypatch):
    """A row of a new seed is taken before its start is done: it waits for it, and does not fail."""
    starts = stored(tmp_path / "starts" / "train", "train", [Arm("plain", None, None, {})], (0,))
    grid = stored(tmp_path / "scenes", "detect", [Arm("row", None, None, {START: ["train", "plain"]})], (0,))
    order = []

    def trained(cell, quiet):
        order.append((cell.verb, initial_weights_settings(initial_weights_cell(cell))))
        finish(cell, "model.json", {})
        return True

    monkeypatch.setattr("paucal.verbs.compare._work._train", trained)
    assert work(grid.folder, train_cell)
    (start,) = cells_of(starts)
    assert order == [("train", {}), ("detect", {"init": str(start.run.path)})]
    assert [state_of(cell).name for cell in (*cells_of(starts), *cells_of(grid))] == ["done", "done"]


@pytest.mark.parametrize("kind", ["detect", "segment"])
def test_images__whose_boxes_or_masks_change_are_others(kind, drawn, tmp_path):
    folder = shutil.copytree(drawn / SCENES, tmp_path / SCENES)
    images = open_images(kind, {"data": str(folder)}, SilentConsole())
    assert images.n_training_images == 20
    fingerprint = images.fingerprint()
    assert open_images(kind, {"data": str(folder)}, SilentConsole()).fingerprint() == fingerprint
    if kind == "detect":
        path = folder / "train" / "boxes.json"
        content = json.loads(path.read_text())
        content["annotations"][0]["bbox"][0] += 1
        path.write_text(json.dumps(content))
    else:
        path = next((folder / "train" / "masks").iterdir())
        mask = np.asarray(Image.open(path)).copy()
        mask[[0, 1]] = mask[[1, 0]] if not np.array_equal(mask[0], mask[1]) else 1
        Image.fromarray(mask).save(path)
    assert open_images(kind, {"data": str(folder)}, SilentConsole()).fingerprint() != fingerprint
