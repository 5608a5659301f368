"""Reading studies: what is wrong with an entry is said with its place."""

from pathlib import Path

import pytest

from paucal.studies.plan import initial_weights_settings
from paucal.studies.reading import data_sets, find_study, read_by_kind, read_data_sets, read_studies
from paucal.studies.study import StartTraining
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
        (", data: cifar10", "", "the column 'c' is measured by runs, so it needs an entry 'data'"),
        ("values: [1.5]", "values: [1.5, 2]", "'a' has 2 values, but there are 1 columns"),
        ("values: [2]", "values: [2], deviations: [1, 1]", "'b' has 2 deviations for 1 values"),
        ("values: [2]", "values: [true]", "values, entry 1 is True, which has the wrong type"),
        ("against: a", "against: d", "the baseline of 'b' is 'd'"),
        ("name: b", "name: a", "'a' occurs twice"),
        ("name: b, model: small", "name: b, model: smal", "the model is 'smal' (did you mean small"),
        ("name: b, model: small", "name: b, model: large", "large has no stand-in"),
        ("name: b, model: small", "name: b, maps: true, model: small", "needs label maps"),
        ("title: t", "titel: t", "unknown entry 'titel' (did you mean title"),
        ("    title: t\n", "", "has no entry 'title'"),
        ("seeds: [0]", "seeds: 0", "seeds is 0, which has the wrong type"),
        ("  tiny:", "  tinny:", "the scale is 'tinny' (did you mean tiny"),
        ("    where: table 1", "    where: table 1\n    scales: {tiny: null}", "add 'without' with the reason"),
        ("    where: table 1", "    where: table 1\n    scales: {tiny: {rows: [e]}}", "the row of a scale is 'e'"),
        ("gmacs: 0.1}", "gmacs: 0.1, network: detektor}", "the network is 'detektor' (did you mean detector"),
        (
            "gmacs: 0.1}",
            "gmacs: 0.1, network: upernet, shape: [8]}",
            "'shape' must be [height, width] for a model with a network, got [8]",
        ),
        ("paper: P", "paper: P\npages: 3", "unknown entry 'pages'"),
        ("[{name: c,", "[many, {name: c,", "the group of columns is 'many'"),
        (
            "metric: top1, data: cifar10}]",
            "metric: average}]",
            "the metric of 'c' is only for studies of kind 'frozen'",
        ),
        ("studies:", "studies: &x", "cannot be read"),
    ],
)
def test_read__says_what_is_wrong(tmp_path, old, new, words):
    assert old in GOOD
    text = GOOD.replace(old, new) + ("  two: *x\n" if new.endswith("&x") else "")
    with pytest.raises(UserError) as problem:
        read(tmp_path, text)
    assert words in str(problem.value)


STARTED = """
paper: P
source: here
models:
  small: {name: vit_mini, gmacs: 0.1, standin: {name: vit_mini}}
  other: {name: vit_mini, gmacs: 0.1, standin: {name: vit_mini, args: [depth=3]}}
studies:
  one:
    title: t
    where: table 1
    kind: segment
    starts: {plain: {words: w, model: small, set: {method: supervised}}}
    columns: [{name: c, metric: mean_iou, data: ade20k}]
    rows: [{name: a, model: small, start: plain, values: [1.5]}]
"""
BY_KIND = {
    "segment": {
        "telling": "of all",
        "scales": {
            "tiny": {
                **{"data": "scenes", "images": 8, "epochs": 2, "seeds": [0], "side": 32},
                "start_training": {"data": "digits", "images": 10, "epochs": 4, "side": 16},
            }
        },
    }
}


def read_started(tmp_path: Path, text: str, by_kind: dict):
    path = tmp_path / "paper.yaml"
    path.write_text(text)
    return read_studies(path, data_sets(), by_kind)["one"]


def test_read__what_studies_of_a_kind_share_and_what_rows_begin_with(tmp_path):
    study = read_started(tmp_path, STARTED, BY_KIND)
    assert (study.telling, study.rows[0].start, study.starts["plain"].verb) == ("of all", "plain", "train")
    scale = study.scales["tiny"]
    settings = initial_weights_settings(study, study.starts["plain"], scale)
    assert settings == {
        **{"init": "none", "img_size": [16], "epochs": 4, "model": "vit_mini", "method": "supervised"},
    }


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("start: plain", "start: plane", "the start is 'plane' (did you mean plain"),
        ("start: plain, ", "", "the start is ''; expected one of plain"),
        ("model: small, set", "model: smal, set", "the model of the start 'plain' is 'smal' (did you mean small"),
        (
            "model: small, start",
            "model: other, start",
            "'a' has the start 'plain', but its model other and the start's model small have different stand-ins",
        ),
        ("model: small, set", "model: small, verb: trains, set", "the verb of the start 'plain' is 'trains'"),
        ("{words: w, ", "{", "the start 'plain' has no entry 'words'"),
        ("model: small, set", "model: small, tag: x, set", "'plain' has the tag 'x', which needs 'init: timm'"),
    ],
)
def test_read__says_what_is_wrong_with_a_start(tmp_path, old, new, words):
    assert old in STARTED
    with pytest.raises(UserError) as problem:
        read_started(tmp_path, STARTED.replace(old, new), BY_KIND)
    assert words in str(problem.value)


def test_read__studies_whose_rows_are_tuned_share_scales_of_their_own(tmp_path):
    text = STARTED.replace("kind: segment", "kind: train").replace("mean_iou, data: ade20k", "top1, data: cifar10")
    scales = {"scales": {"tiny": {"data": "digits", "images": 1, "epochs": 1, "seeds": [0], "side": 32}}}
    tuned = {"telling": "of tuned ones", "scales": BY_KIND["segment"]["scales"]}
    by_kind = {"train": {"telling": "of all", **scales}, "tune": tuned}
    study = read_started(tmp_path, text, by_kind)
    assert (study.telling, study.scales["tiny"].data) == ("of tuned ones", "scenes")
    plain = text.replace("    starts: {plain: {words: w, model: small, set: {method: supervised}}}\n", "")
    study = read_started(tmp_path, plain.replace("start: plain, ", ""), by_kind)
    assert (study.telling, study.scales["tiny"].data) == ("of all", "digits")
    path = tmp_path / "by_kind.yaml"
    path.write_text("tune: {telling: t}")
    assert read_by_kind(path) == {"tune": {"telling": "t"}}


def test_read__studies_say_which_others_they_are_like(tmp_path):
    """Those that are tuned on what they have learned share the training of starts on their rows' own images."""
    text = STARTED.replace("kind: segment", "kind: train").replace("mean_iou, data: ade20k", "top1, data: cifar10")
    shared = {name: value for name, value in BY_KIND["segment"]["scales"]["tiny"].items() if name != "start_training"}
    teacher, training = {"name": "vit_mini"}, {"epochs": 4, "side": 16}
    alike = {"scales": {"tiny": {**shared, "start_training": training, "teacher": teacher}}}
    by_kind = {"tune": BY_KIND["segment"], "enlarge": alike}
    assert read_started(tmp_path, text, by_kind).scales["tiny"].teacher is None
    like = text.replace("    title: t", "    title: t\n    like: enlarge")
    scale = read_started(tmp_path, like, by_kind).scales["tiny"]
    assert scale.teacher is not None
    assert scale.start_training == StartTraining(epochs=4, side=16)
    with pytest.raises(UserError, match=r"one: the entry 'like' is 'enlarg' \(did you mean enlarge"):
        read_started(tmp_path, like.replace("like: enlarge", "like: enlarg"), by_kind)
    alone = {"enlarge": {"scales": {"tiny": {**shared, "start_training": training}}}}
    with pytest.raises(UserError, match="has no 'data' needs a 'teacher' for the split"):
        read_started(tmp_path, like, alone)


def test_read__columns_that_several_studies_have(tmp_path):
    group = "columns:\n  sets: [{name: c, metric: top1, data: cifar10}]\nstudies:"
    own = "columns: [{name: c, metric: top1, data: cifar10}]"
    assert own in GOOD
    text = GOOD.replace("studies:", group).replace(own, "columns: [sets]")
    assert read(tmp_path, text)["one"].columns == read(tmp_path, GOOD)["one"].columns


FIGURE = """  two:
    title: t
    where: figure 1
    kind: count
    draws: {accuracy: c, throughput: im/s, parameters: size}
    columns: [{name: size}, {name: im/s, metric: throughput_scaled}, {name: c, metric: top1, study: one}]
    rows: {of: one, against: a, models: {b: large}}
"""


def test_read__rows_of_another_study(tmp_path):
    """Values are those of the columns that both have."""
    study = read(tmp_path, GOOD + FIGURE)["two"]
    rows = [(row.name, row.model, row.against, row.values) for row in study.rows]
    assert rows == [("a", "small", "", (None, None, 1.5)), ("b", "large", "a", (None, None, 2.0))]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("of: one", "of: ones", "the entry 'of' of its rows is 'ones' (did you mean one"),
        ("models: {b:", "models: {d:", "the row of a model is 'd'; expected one of a, b"),
        ("b: large", "b: larg", "the model is 'larg' (did you mean large"),
        ("study: one", "study: ones", "the study of 'c' is 'ones' (did you mean one"),
        ("accuracy: c", "accuracy: d", "the column that is drawn is 'd'; expected one of size, im/s, c"),
        ("accuracy: c, ", "", "'draws' has throughput, parameters; expected accuracy, throughput, parameters"),
    ],
)
def test_read__says_what_is_wrong_with_a_figure(tmp_path, old, new, words):
    assert old in FIGURE
    with pytest.raises(UserError) as problem:
        read(tmp_path, GOOD + FIGURE.replace(old, new))
    assert words in str(problem.value)


def test_read__a_smaller_scale_trains_its_starts(tmp_path):
    scale = {name: value for name, value in BY_KIND["segment"]["scales"]["tiny"].items() if name != "start_training"}
    with pytest.raises(UserError, match="a smaller scale has no 'start_training'"):
        read_started(tmp_path, STARTED, {"segment": {"scales": {"tiny": scale}}})
    path = tmp_path / "by_kind.yaml"
    path.write_text("segments: {telling: t}")
    with pytest.raises(UserError, match=r"the kind is 'segments' \(did you mean segment"):
        read_by_kind(path)
    path.write_text("segment: {tellings: t}")
    with pytest.raises(UserError, match=r"the entry is 'tellings' \(did you mean telling"):
        read_by_kind(path)


def test_read__a_set_without_a_name_says_how_it_is_had(tmp_path):
    path = tmp_path / "sets.yaml"
    path.write_text("one: {title: One, train: 1, test: 1, classes: 2}")
    with pytest.raises(UserError, match="neither 'named' nor 'how'"):
        read_data_sets(path)


def test_find__names_the_nearest():
    with pytest.raises(UserError, match=r"no study 'drloc-tabel-4' \(did you mean drloc-table-4"):
        find_study("drloc-tabel-4")
