"""EsViT's figure 1: what is drawn where, what of it is ours, and that the page says so."""

from pathlib import Path

import pytest

import paucal
from paucal.studies import launch, numbers
from paucal.studies.counting import count_model
from paucal.studies.numbers import Measurement, collect_numbers, full_folder, measured_in_other_studies
from paucal.studies.study import Architecture, Column, Model, Row, Study
from paucal.studies.tables import describe_sources, efficiency_figure, points_of, write_results
from paucal.studies.timing import ModelSpeed, ModelSpeeds, Quartiles
from paucal.types import UserError

COLUMNS = (
    Column("size", metric="params", classes=0),
    Column("rate", metric="throughput_scaled"),
    Column("linear", metric="linear", study="table"),
)
ROWS = (
    Row("A one", values=(1.0, 1000.0, 70.0), model="one"),
    Row("A deep", values=(2.0, 100.0, 80.0), model="deep", against="A one"),
    Row("B told", values=(500.0, 10.0, 75.0)),
    Row("B large", values=(6000.0, None, 60.0)),
)
MODELS = {
    "one": Model(Architecture("vit_mini", ("depth=1",)), 0.02, 32),
    "deep": Model(Architecture("vit_mini", ("depth=4",)), 0.08, 32),
}
DRAWS = {"accuracy": "linear", "throughput": "rate", "parameters": "size"}
STUDY = Study("figure", "t", "P", "here", "figure", "count", COLUMNS, ROWS, MODELS, draws=DRAWS)
PACES = {
    "A one": ModelSpeed(Quartiles(5.0, 5.0, 5.0), None),
    "A deep": ModelSpeed(Quartiles(1, 1, 1), Quartiles(0.2, 0.25, 0.3)),
}


def lines_of(elsewhere):
    return collect_numbers(STUDY, (), (), timed=ModelSpeeds(PACES, "words"), other_studies=elsewhere)[0]


def test_points__are_ours_where_we_have_them_else_published():
    points = points_of(STUDY, lines_of({"table": {("A deep", "linear"): Measurement(81.5, seeds=1)}}))
    by_name = {point.name: point for point in points}
    assert by_name["A deep"].values["accuracy"] == 81.5
    assert by_name["A deep"].values["throughput"] == 250.0  # a quarter of 1000
    assert by_name["A deep"].values["parameters"] == count_model("vit_mini", 32, ("depth=4",), 0).params
    assert by_name["A deep"].quoted == frozenset()
    assert by_name["A one"].quoted == {"accuracy"}
    assert by_name["B told"].values == {"accuracy": 75.0, "throughput": 10.0, "parameters": 500.0}
    assert by_name["B told"].quoted == {"accuracy", "throughput", "parameters"}
    assert by_name["B large"].values["throughput"] is None


def test_figure__has_every_point_at_its_place_filled_where_it_is_ours():
    points = points_of(STUDY, lines_of({"table": {("A deep", "linear"): Measurement(81.5, seeds=1)}}))
    left, right = efficiency_figure(points).axes
    drawn = {text.get_text(): text.xy for text in left.texts}
    assert drawn == {"A one": (1000.0, 70.0), "A deep*": (250.0, 81.5), "B told": (10.0, 75.0)}
    assert [len(one.get_facecolors()) for one in left.collections] == [1, 1, 0]
    areas = [one.get_sizes()[0] for one in left.collections]
    assert areas[2] == max(areas) == 900.0  # the largest of those that have a rate
    assert [text.get_text() for text in right.texts] == ["A one", "A deep*", "B told", "B large"]
    assert (left.get_xscale(), right.get_xscale()) == ("log", "log")


def test_words__say_what_is_published_and_what_is_ours():
    quoted, timed = describe_sources(STUDY, points_of(STUDY, lines_of({})), {"table": "runs/study-table-full"})
    assert (
        quoted
        == "All accuracies are published values of table, since runs/study-table-full has no measured accuracies."
    )
    assert timed == "Filled circles on the left were timed here: A one, A deep; all other times are published."
    points = points_of(STUDY, lines_of({"table": {("A one", "linear"): Measurement(71.0, seeds=1)}}))
    ours, _ = describe_sources(STUDY, points, {"table": "runs/study-table-full"})
    assert ours == (
        "Accuracies with a star were measured in runs/study-table-full: A one; all other accuracies are "
        "published values of table."
    )


def test_numbers__of_another_study_are_those_that_it_has_written(tmp_path: Path):
    assert measured_in_other_studies(STUDY, tmp_path / "study-figure") == {"table": {}}
    folder = full_folder("table", tmp_path / "study-figure")
    assert folder == tmp_path / "study-table-full"
    folder.mkdir()
    write_results(folder, lines_of({"table": {("A one", "linear"): Measurement(71.25, 0.5, 3)}}))
    found = measured_in_other_studies(STUDY, tmp_path / "study-figure")["table"]
    assert found["A one", "linear"] == Measurement(71.25, 0.5, 3)
    assert found["A deep", "rate"].low == pytest.approx(200.0)
    assert ("B told", "linear") not in found
    (folder / "results.csv").write_text("row,column\na,b\n")
    with pytest.raises(UserError, match="is not a table of study results"):
        measured_in_other_studies(STUDY, tmp_path / "study-figure")


def test_study__draws_the_figure_and_quotes_what_was_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    speeds = {"DINO DeiT-S/16": ModelSpeed(Quartiles(2.0, 2.0, 2.0), None)}
    monkeypatch.setattr(launch, "time_models", lambda *rest: ModelSpeeds(speeds, "timed on a watch"))
    monkeypatch.setattr(numbers, "counted_value", lambda *rest: None)  # which takes seconds for each model
    found = paucal.study("esvit-figure-1", output=str(tmp_path / "study-esvit-figure-1"))
    assert (tmp_path / "study-esvit-figure-1" / "figure.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "study-esvit-figure-1" / "study.html").read_text()
    assert "data:image/png;base64," in page
    assert "All accuracies are published values of esvit-table-1" in page
    values = {(line.row.name, line.column.name): line for line in found.lines}
    assert values["EsViT Swin-B/W14", "linear"].published == 81.3
    assert values["EsViT Swin-B/W14", "linear"].why == "quoted"
    again = paucal.study("esvit-figure-1", output=str(tmp_path / "study-esvit-figure-1"))  # its own folder is known
    assert again.settled
