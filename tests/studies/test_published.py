"""The published numbers of the package against a copy that was taken from another transcription of the papers."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from backbones.dhvt_ablations import ABLATIONS, SMALL, TINY
from paucal.backbones.families.dhvt import DhvtParts
from paucal.evaluation.protocols.data import metric_of
from paucal.studies.reading import data_sets, studies
from paucal.studies.study import Architecture, Row

COPY = json.loads((Path(__file__).parent / "published.json").read_text())
# What the papers tell in words or in a drawing, and the other transcription does not hold as a table.
IN_WORDS = {
    *("drloc-table-15", "drloc-figure-3", "dhvt-figure-1", "dhvt-figure-2", "dhvt-affine"),
    *("esvit-figure-4", "esvit-figure-5", "esvit-figure-8"),
}
APART = {"esvit-table-5-scores", "esvit-figure-1"}  # columns of a table that take another kind of run, or none
TURNED = ("esvit-table-10",)  # whose rows are columns of the paper
# Rows of ours beside the published ones.
OURS = {("drloc-table-6", "F2: A + L_all (program)")}
TABLES = {"drloc": range(1, 17), "lvvit": range(1, 6), "dhvt": range(1, 12), "esvit": range(1, 12)}
FIGURES = {"drloc": range(1, 4), "lvvit": range(1, 3), "dhvt": range(1, 8), "esvit": range(1, 13)}


def values(row: Row) -> list:
    deviations = row.deviations or (None,) * len(row.values)
    return [value if sd is None else [value, sd] for value, sd in zip(row.values, deviations, strict=True)]


@pytest.mark.parametrize("name", COPY)
def test_published__are_the_numbers_of_the_other_transcription(name):
    rows = [values(row) for row in studies()[name].rows if (name, row.name) not in OURS]
    assert ([list(column) for column in zip(*rows, strict=True)] if name in TURNED else rows) == COPY[name]


def test_published__nothing_is_left_unchecked():
    assert {name for name, study in studies().items() if study.rows} - set(COPY) == IN_WORDS | APART


def test_published__columns_that_are_measured_apart_are_those_of_their_tables():
    known = studies()
    scores, table = known["esvit-table-5-scores"], known["esvit-table-5"]
    assert [(row.name, row.values[-2:]) for row in scores.rows] == [(row.name, row.values[-2:]) for row in table.rows]
    beside = {row.name: row.values for row in known["esvit-table-10"].rows}
    assert scores.rows[0].values[:-1] == beside["Sup. Swin-T"]
    assert scores.columns[:-2] == known["esvit-table-10"].columns[:-1]
    assert {row.values[:-2] for row in scores.rows[1:]} == {(None,) * 18}


def test_published__what_a_figure_draws_is_its_tables():
    """EsViT's figure 1: the accuracies, images per second and parameters of table 1."""
    known = studies()
    figure, table = known["esvit-figure-1"], known["esvit-table-1"]
    assert [row.name for row in figure.rows] == [row.name for row in table.rows]
    assert [row.values for row in figure.rows] == [(*row.values[:3], None) for row in table.rows]
    base = next(row for row in figure.rows if not row.against and row.model)
    assert (base.name, base.values[1]) == ("DINO DeiT-S/16", 1007.0)
    untimed = {row.name for row in figure.rows if not row.model}
    assert untimed == {"SwAV RN50w5", "BYOL RN200w2", "SimCLR-v2 RN152w3+SK", "iGPT-XL"}  # not built here
    beside = {row.model: row.values[0] for row in known["esvit-table-7"].rows}
    assert {row.values[1] == beside[row.model] for row in figure.rows if row.model in beside} == {True}


def test_published__rows_of_ours_have_no_numbers():
    known = {(name, row.name): row for name, study in studies().items() for row in study.rows}
    assert all(set(known[row].values) == {None} for row in OURS)


def test_published__what_is_told_in_words():
    known = studies()
    assert [row.values for row in known["drloc-figure-3"].rows] == [(None, 53.28), (55.01, 66.23), *[(None, None)] * 4]
    assert known["esvit-figure-8"].rows[0].values == (0.95, 2.49)
    assert [row.values for row in known["esvit-figure-5"].rows] == [(*[None] * 18, wins) for wins in (None, 17)]
    ends = [row.values[-1] for row in known["esvit-figure-4"].rows]
    table = {row.name: row.values for row in known["esvit-table-2"].rows}
    assert ends == [table[name][place] for name in ("Swin-T, W=7", "Swin-B, W=7") for place in (0, 2)]
    assert [row.values for row in known["dhvt-affine"].rows] == [(80.90,), (80.72,), (73.68,), (73.42,)]
    assert [row.values[1] for row in known["drloc-table-15"].rows] == ["2d", 512.0, 512.0, "o"]


def test_ablations__of_dhvt_are_all_rows_of_studies():
    for one in ABLATIONS:
        name = f"dhvt-{one.source.lower().replace(' ', '-')}"
        study = studies()["dhvt-affine" if one.source == "2.2.2" else name]
        wanted = one.model, changes(one.model, one.arguments)
        rows = [row for row in study.rows if row.model and built(study.models[row.model].full, row) == wanted]
        assert len(rows) == 1, (one.source, one.name)
        pairs = zip(study.columns, rows[0].values, strict=True)
        scores = [score for column, score in pairs if column.data]
        assert scores == ([*one.accuracy.values()] or [None]), (one.source, one.name)


def built(model: Architecture, row: Row) -> tuple[str, dict]:
    words = {word.partition("=")[0]: word.partition("=")[2] for word in (*model.args, *row.args)}
    values = {"True": True, "False": False}
    given = {name: values.get(text, int(text) if text.isdigit() else text) for name, text in words.items()}
    return model.name, changes(model.name, given)


def changes(model: str, arguments: Mapping) -> dict:
    """Return the arguments that are not the model's own."""
    usual = {**vars(DhvtParts()), "num_heads": {TINY: 4, SMALL: 8}[model]}
    return {name: value for name, value in arguments.items() if value != usual[name]}


def test_registry__has_every_table_and_figure():
    numbered = {re.sub(r"-(\d+)[ab]$", r"-\1", name) for name in studies()}
    wanted = {f"{paper}-table-{n}" for paper, numbers in TABLES.items() for n in numbers}
    wanted |= {f"{paper}-figure-{n}" for paper, numbers in FIGURES.items() for n in numbers}
    counted = {"network-detectors", "network-segmenters"}
    lvvit = {"lvvit-table-5-settings", "lvvit-models", "lvvit-starts", "lvvit-high-resolution"}
    assert numbered == wanted | {"lvvit-segmentation", "dhvt-affine"} | lvvit | counted | APART


def test_table9_of_esvit__has_the_metrics_that_its_sets_are_judged_by():
    known = studies()
    names = {"mean_per_class": "mean per class", "map11": "11-point mAP", "roc_auc": "ROC-AUC"}
    sets = [column.data for column in known["esvit-table-10"].columns if column.data]
    assert [row.values[3] for row in known["esvit-table-9"].rows] == [
        names.get(metric_of(name), metric_of(name)) for name in sets
    ]


def test_data_sets__have_the_sizes_of_the_tables():
    known, sets = studies(), data_sets()
    named = {one.title: (one.train, one.test, one.classes) for one in sets.values()}
    for row in known["drloc-table-1"].rows:
        train, test, classes = row.values
        test = 50000 if row.name == "ImageNet-1K" else test  # the misprint of the table
        assert named[row.name] == (train, test, classes), row.name


@pytest.mark.parametrize(
    ("name", "row", "other"),
    [("drloc-table-4", "Swin-T + L_drloc", 24.42), ("drloc-table-6", "F: A + L_all", -0.88)],
)
def test_published__gains_are_those_printed(name, row, other):
    study = studies()[name]
    by_name = {one.name: one for one in study.rows}
    own = by_name[row]
    assert own.values[0] - by_name[own.against].values[0] == pytest.approx(other)
