"""Reading studies: what is wrong with an entry is said with its place."""

from pathlib import Path

import pytest

from paucal.studies.reading import read_data_sets, read_studies
from paucal.studies.registry import data_sets, find_study
from paucal.types import UserError

GOOD = """
paper: P
source: here
models:
  small: {name: vit_mini, gmacs: 0.1, standin: {name: vit_mini}}
  large: {name: vit_mini, gmacs: 0.1}
scales:
  tiny: {data: digits, images: 10, epochs: 2, seeds: [0], side: 32}
studies:
  one:
    title: t
    where: table 1
    kind: train
    columns: [{name: c, metric: top1, data: cifar10}]
    rows: [{name: a, model: small, values: [1.5]}, {name: b, model: small, against: a, values: [2]}]
"""


def read(tmp_path: Path, text: str):
    path = tmp_path / "paper.yaml"
    path.write_text(text)
    return read_studies(path, data_sets())


def test_read__good_entries(tmp_path):
    study = read(tmp_path, GOOD)["one"]
    assert [row.values for row in study.rows] == [(1.5,), (2.0,)]
    assert study.rows[1].against == "a"
    assert study.scales["tiny"].seeds == (0,)
    assert study.models["small"].standin is not None
    assert study.models["small"].side == 224


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("kind: train", "kind: trains", "the kind is 'trains' (did you mean train or"),
        ("metric: top1", "metric: top-1", "the metric of 'c' is 'top-1'"),
        ("data: cifar10", "data: cifar11", "the data of 'c' is 'cifar11' (did you mean cifar10"),
        (", data: cifar10", "", "the column 'c' is trained and names no data"),
        ("values: [1.5]", "values: [1.5, 2]", "'a' has 2 values, and there are 1 columns"),
        ("values: [2]", "values: [2], deviations: [1, 1]", "'b' has 2 deviations for 1 values"),
        ("values: [2]", "values: [true]", "values, entry 1 is True, which it cannot be"),
        ("against: a", "against: d", "what 'b' is compared with is 'd'"),
        ("name: b", "name: a", "'a' is there twice"),
        ("name: b, model: small", "name: b, model: smal", "the model is 'smal' (did you mean small"),
        ("name: b, model: small", "name: b, model: large", "large has no stand-in"),
        ("name: b, model: small", "name: b, maps: true, model: small", "wants label maps"),
        ("title: t", "titel: t", "unknown entry 'titel' (did you mean title"),
        ("    title: t\n", "", "lacks 'title'"),
        ("seeds: [0]", "seeds: 0", "seeds is 0, which it cannot be"),
        ("  tiny:", "  tinny:", "the scale is 'tinny' (did you mean tiny"),
        ("    where: table 1", "    where: table 1\n    scales: {tiny: null}", "does not say why"),
        ("    where: table 1", "    where: table 1\n    scales: {tiny: {rows: [e]}}", "the row of a scale is 'e'"),
        ("gmacs: 0.1}", "gmacs: 0.1, network: detektor}", "the network is 'detektor' (did you mean detector"),
        ("gmacs: 0.1}", "gmacs: 0.1, network: upernet, shape: [8]}", "a height and a width, got (8,)"),
        ("paper: P", "paper: P\npages: 3", "unknown entry 'pages'"),
        ("studies:", "studies: &x", "cannot be read"),
    ],
)
def test_read__says_what_is_wrong(tmp_path, old, new, words):
    assert old in GOOD
    text = GOOD.replace(old, new) + ("  two: *x\n" if new.endswith("&x") else "")
    with pytest.raises(UserError) as problem:
        read(tmp_path, text)
    assert words in str(problem.value)


def test_read__a_set_without_a_name_says_how_it_is_had(tmp_path):
    path = tmp_path / "sets.yaml"
    path.write_text("one: {title: One, train: 1, test: 1, classes: 2}")
    with pytest.raises(UserError, match="neither a name in paucal nor a word"):
        read_data_sets(path)


def test_find__names_the_nearest():
    with pytest.raises(UserError, match=r"no study 'drloc-tabel-4' \(did you mean drloc-table-4"):
        find_study("drloc-tabel-4")
