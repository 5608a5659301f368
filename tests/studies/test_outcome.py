"""Published beside measured: what is read from finished runs, and what is said of those that are missing."""

from dataclasses import replace
from pathlib import Path

import pytest

from paucal.runner.console import SilentConsole
from paucal.runs import RunFolder
from paucal.studies.descriptions import format_published
from paucal.studies.grids import shown_settings
from paucal.studies.numbers import collect_numbers
from paucal.studies.plan import plan_all_runs, plan_runs
from paucal.studies.reading import studies
from paucal.studies.tables import shown_rows
from paucal.types import UserError
from paucal.verbs.compare.grid import (
    EVALUATION,
    FAILURE_FILE,
    SCORES_FILE,
    START,
    Cell,
    Grid,
    cells_of,
    read_grid,
    state_of,
)
from paucal.verbs.compare.launch import resume_comparison
from paucal.verbs.compare.settings import Arm, GridSettings, baseline_of


def grid_of(folder: Path, runs, **changes) -> Grid:
    folder.mkdir(parents=True)
    arms = tuple(Arm(run.name, None, None, {EVALUATION: {}}, run.against) for run in runs)
    grid = Grid(folder, "images", {}, arms, (0, 1), verb="pretrain", **changes)
    grid.write()
    return read_grid(folder)


def finish(cell: Cell, knn: float, linear: float) -> None:
    cell.run.path.mkdir(parents=True)
    cell.run.write_json("summary.json", {"seconds": 1.0})
    scores = {"knn": {"trained": knn, "random": 0.1}, "linear": {"trained": linear, "random": 0.2}}
    RunFolder(cell.folder).write_json(SCORES_FILE, {"scores": scores})


def fail(cell: Cell) -> None:
    cell.folder.mkdir(parents=True, exist_ok=True)
    RunFolder(cell.folder).write_json(FAILURE_FILE, {"error": "it did not"})


def test_lines__of_features_are_means_over_seeds_and_paired_gains(tmp_path):
    study = studies()["esvit-table-2"]
    runs = plan_runs(study, "tiny", rows=["Swin-T, W=7"])
    grid = grid_of(tmp_path / "digits", runs)
    scores = {("Swin-T, W=7, L_V", 0): (0.5, 0.6), ("Swin-T, W=7, L_V", 1): (0.7, 0.8)}
    scores |= {("Swin-T, W=7, L_V+L_R", 1): (0.6, 0.9)}  # one seed of it is missing
    for cell in cells_of(grid):
        if (cell.arm.way, cell.seed) in scores:
            finish(cell, *scores[cell.arm.way, cell.seed])
    lines, findings = collect_numbers(study, runs, [read_grid(grid.folder)])
    assert findings == []
    found = {(line.row.name, line.column.name): line for line in lines}
    own = found["Swin-T, W=7", "L_V k-NN"].measured
    assert own is not None
    assert (own.value, own.seeds, own.gain, own.random) == (pytest.approx(60), 2, None, pytest.approx(10))
    assert own.deviation == pytest.approx(100 * 0.02**0.5)
    other = found["Swin-T, W=7", "L_V+L_R k-NN"].measured
    assert other is not None
    assert (other.value, other.seeds, other.gain) == (pytest.approx(60), 1, pytest.approx(-10))  # seed 1 with seed 1
    assert found["Swin-T, W=7", "L_V+L_R k-NN"].gain == pytest.approx(75.7 - 74.2)
    assert found["Swin-B, W=14", "L_V linear"].why == "not run at this scale"
    rows = shown_rows(lines)
    assert rows[1] == {
        **{"row": "Swin-T, W=7", "column": "L_V k-NN", "published": "74.2", "measured": "60.0 ± 14.1"},
        **{"gain published": "-", "gain measured": "-", "random weights": "10.0"},
    }


def test_lines__of_an_average_are_of_all_sets_and_wins_of_what_is_printed(tmp_path):
    """The published scores of table 10, as if they were ours: their average, and the wins that are told of them."""
    study = studies()["esvit-table-10"]
    wins = replace(study.columns[-1], name="wins", metric="wins")
    rows = tuple(replace(row, values=(*row.values, None)) for row in study.rows)
    study = replace(study, columns=(*study.columns, wins), rows=rows)
    runs = plan_runs(study, "full")
    ours = {"Sup. RN50": 0, "Sup. Swin-T": 0, "EsViT Swin-T": 0}
    grids = []
    for place, column in enumerate(study.trained_columns):
        grid = grid_of(tmp_path / column.data, [run for run in runs if run.data == column.data])
        for cell in cells_of(grid):
            row = next(row for row in study.rows if row.name == cell.arm.name)
            if cell.seed == 0 and row.name in ours:
                cell.run.path.mkdir(parents=True)
                cell.run.write_json("summary.json", {"seconds": 1.0})
                scores = {"logistic": {"trained": float(str(row.values[place])) / 100, "random": 0.1}}
                RunFolder(cell.folder).write_json(SCORES_FILE, {"scores": scores})
        grids.append(read_grid(grid.folder))
    found = {(line.row.name, line.column.name): line for line in collect_numbers(study, runs, grids)[0]}
    for name in ours:
        line = found[name, "Average"]
        assert line.measured is not None
        assert line.measured.value == pytest.approx(line.published, abs=0.005)
        assert line.measured.seeds == 1  # the other seed has not every set
        assert line.gain == pytest.approx(line.measured.gain, abs=0.01) if line.gain else line.measured.gain is None
    told = found["EsViT Swin-T", "wins"].measured
    assert told is not None
    assert told.value == 16  # a tie on MNIST and a loss on Pets
    assert found["Sup. RN50", "wins"].why == "no baseline"
    assert found["CLIP RN50", "Average"].why == "quoted"
    fewer = {(line.row.name, line.column.name): line.why for line in collect_numbers(study, runs, grids[1:])[0]}
    assert fewer["EsViT Swin-T", "Average"] == "needs all data sets"
    tiny, _ = collect_numbers(study, plan_runs(study, "tiny"), [])
    assert {line.why for line in tiny if line.column.metric == "average"} == {"quoted", "not run at this scale"}
    shown = {(row["row"], row["column"]) for row in shown_rows(tiny)}
    assert ("EsViT Swin-T", "Average") in shown
    assert ("EsViT Swin-T", "wins") not in shown  # neither published there nor run


def test_lines__say_what_was_left_out_by_whom_and_keep_what_earlier_calls_have_measured(tmp_path):
    study = studies()["esvit-table-2"]
    whole = plan_all_runs(study, "tiny")
    earlier = plan_runs(study, "tiny", rows=["Swin-T, W=14"])
    asked = plan_runs(study, "tiny", rows=["Swin-T, W=7"], columns=["L_V linear"])
    assert [run.name for run in asked] == ["Swin-T, W=7, L_V"]  # as among all others
    assert [column.name for column in asked[0].columns] == ["L_V linear"]
    grid = grid_of(tmp_path / "digits", [*earlier, *asked])
    for cell in cells_of(grid):
        if cell.arm.way == "Swin-T, W=14, L_V":
            finish(cell, 0.5, 0.6)
        if cell.arm.way == "Swin-T, W=7, L_V" and cell.seed == 0:
            fail(cell)
    lines, _ = collect_numbers(study, asked, [read_grid(grid.folder)], whole)
    found = {(line.row.name, line.column.name): line for line in lines}
    assert found["Swin-T, W=7", "L_V linear"].why == "not done"  # its other seed may still come
    assert found["Swin-T, W=7", "L_V+L_R linear"].why == "left out by --columns"
    assert found["Swin-T, W=14", "L_V+L_R linear"].why == "left out by --rows"
    assert found["Swin-B, W=14", "L_V linear"].why == "not run at this scale"
    kept = found["Swin-T, W=14", "L_V linear"].measured
    assert kept is not None
    assert (kept.value, kept.seeds) == (pytest.approx(60), 2)
    for cell in cells_of(grid):
        if cell.arm.way == "Swin-T, W=7, L_V" and cell.seed == 1:
            fail(cell)
    lines, _ = collect_numbers(study, asked, [read_grid(grid.folder)], whole)
    assert {(one.row.name, one.column.name): one.why for one in lines}["Swin-T, W=7", "L_V linear"] == "failed"


def test_plan__names_a_run_the_same_whatever_else_is_wanted():
    study = studies()["drloc-table-2b"]
    every = {run.name: run.settings for run in plan_runs(study, "full")}
    (one,) = plan_runs(study, "full", rows=["Swin-T"], columns=["λ=0.5"])
    assert one.settings == every[one.name]
    assert one.against == "Swin-T, λ=0.0"  # so that a gain is found once that is there


def test_cells__without_labels_are_done_once_they_are_judged(tmp_path):
    runs = plan_runs(studies()["esvit-table-5"], "tiny")
    cell = cells_of(grid_of(tmp_path / "digits", runs))[0]
    cell.run.path.mkdir(parents=True)
    cell.run.write_json("summary.json", {"seconds": 1.0})
    assert not state_of(cell).is_final
    RunFolder(cell.folder).write_json(SCORES_FILE, {"scores": {}})
    assert state_of(cell).name == "done"


def test_compare__does_not_resume_comparison_with_runs_without_labels(tmp_path):
    grid = grid_of(tmp_path / "digits", plan_runs(studies()["esvit-table-5"], "tiny"), commands=("paucal it",))
    with pytest.raises(UserError, match="belongs to a study: use its own command, paucal it"):
        resume_comparison(grid.folder, GridSettings(jobs=0), SilentConsole())


def test_lines__of_counts_are_counted():
    study = studies()["dhvt-table-11"]
    lines, _ = collect_numbers(replace(study, rows=study.rows[:1]), (), ())
    params, gmacs, whole = (line.measured for line in lines)
    assert params is not None
    assert params.value == pytest.approx(6.008650)
    assert gmacs is not None
    assert gmacs.value == pytest.approx(0.366, abs=5e-4)  # without the products of attention
    assert whole is not None
    assert whole.value == pytest.approx(0.388, abs=5e-4)  # with them
    assert [line.published for line in lines] == [6.0, 0.4, None]


def test_arms__are_compared_with_what_they_name():
    arms = [Arm("a", None, None, {}), Arm("b", None, None, {}), Arm("c", None, None, {}, "b")]
    assert [baseline_of(arm, arms) for arm in arms] == [None, None, arms[1]]
    plain = [Arm("a", None, None, {}), Arm("b", None, None, {})]
    assert baseline_of(plain[1], plain) == plain[0]


def test_published__as_text():
    assert format_published(85.62, 0.05) == "85.62 ± 0.05"
    assert [format_published(value) for value in (None, "cosine", 1281167.0, 0.6037)] == [
        "-",
        "cosine",
        "1281167",
        "0.6037",
    ]


def test_settings__of_a_page_are_told_once_where_all_runs_share_them(tmp_path):
    runs = plan_runs(studies()["drloc-table-9"], "tiny")
    arms = [Arm(run.name, None, None, {**run.settings, START: ["train", "plain"]}) for run in runs]
    grid = Grid(tmp_path / runs[0].data, "images", {}, tuple(arms), (0,))
    first, *others = shown_settings(runs, (), (grid,))
    assert (first["run"], first["images"]) == ("all runs below", "digits")
    assert "--epochs 8" in first["settings"]
    assert "--model drloc_vit_base_patch16_224" in first["settings"]
    assert "start" not in first["settings"]
    assert [one["settings"] for one in others] == ["--method supervised", "--method drloc --drloc-weight 0.01"]
    alone = shown_settings(runs[:1], (), (grid,))
    assert [one["run"] for one in alone] == ["ViT-B/16"]
    assert "--epochs 8" in alone[0]["settings"]
