"""`paucal eval` on frozen backbones: runs, files and timm models, one table, and every mistake as one sentence."""

import json
import re
from pathlib import Path

import pytest
import timm
import torch

from cli.calls import TINY, failure, make_photos, table
from data.fake_sets import picture
from paucal.cli.main import main

SHORT = ["--probe-epochs", "2", "--bootstrap", "50", "--seed", "1"]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def make_parts(root: Path, parts=("train", "test")) -> Path:
    for seed, part in enumerate(parts):
        make_photos(root / part, seed=seed)
    return root


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    base = tmp_path_factory.mktemp("frozen")
    make_parts(base / "photos")
    assert main(["train", str(base / "photos" / "train"), *TINY, "--epochs", "1", "--output", str(base / "run")]) == 0
    return base


def rows_of(folder: Path) -> list[dict[str, str]]:
    return table(folder / "table.csv")


def test_eval__of_a_run_on_its_own_images_has_the_floor_beside_it(trained, capsys):
    words = ["--protocol", "knn", "linear", "logistic", "correspondence", "few-labels", *SHORT]
    assert main(["eval", str(trained / "run"), *words]) == 0
    printed = capsys.readouterr().out
    assert "random weights" in printed
    assert re.search(r"\d wins?, \d ties?, \d loss", printed)
    folder = trained / "run" / "evaluation" / "frozen-features"
    rows = rows_of(folder)
    assert {row["protocol"] for row in rows} == {"knn", "linear", "logistic", "correspondence", "few-labels"}
    assert {row["model"] for row in rows} == {str(trained / "run"), "random weights"}
    stored = json.loads((folder / "results.json").read_text())
    assert [data["test"] for data in stored["data"]] == [6]  # the run's own test part
    assert len(stored["models"]) == 2
    assert stored["models"][0]["fingerprint"] != stored["models"][1]["fingerprint"]
    assert stored["tallies"]["random weights"].keys() >= {"win", "tie", "loss"}
    assert {path.name for path in folder.iterdir()} == {
        *("table.csv", "results.json", "frozen_features.png", "correspondence.png")
    }
    page = (trained / "run" / "report.html").read_text()
    assert f"added the scores to the report of the run: {trained / 'run' / 'report.html'}" in printed
    assert page.count('<section id="frozen">') == 1
    assert page.count("few-labels 1 per class accuracy, %") == 1


def test_eval__leaves_no_picture_of_an_earlier_table(trained, capsys):
    folder, report = trained / "run" / "evaluation" / "frozen-features", trained / "run" / "report.html"
    assert main(["eval", str(trained / "run"), "--protocol", "correspondence", *SHORT]) == 0
    assert (folder / "correspondence.png").exists()
    assert main(["eval", str(trained / "run"), "--protocol", "knn", *SHORT]) == 0
    assert not (folder / "correspondence.png").exists()
    assert "correspondence mirror accuracy" not in report.read_text()
    shown = report.read_bytes()
    elsewhere = ["--output", str(trained / "elsewhere")]
    assert main(["eval", str(trained / "run"), "--protocol", "knn", "logistic", *SHORT, *elsewhere]) == 0
    assert report.read_bytes() == shown  # only what lies in the run is shown


def test_eval__keeps_its_table_where_the_report_cannot_be_written(trained, capsys):
    summary = trained / "run" / "summary.json"
    sound, shown = summary.read_bytes(), (trained / "run" / "report.html").read_bytes()
    summary.write_text("{")
    try:
        assert main(["eval", str(trained / "run"), "--protocol", "knn", *SHORT]) == 0
    finally:
        summary.write_bytes(sound)
    assert "note: the report of the run could not be updated (" in capsys.readouterr().out
    assert (trained / "run" / "report.html").read_bytes() == shown


def test_eval__compares_a_timm_model_with_a_weights_file(trained, capsys, tmp_path):
    file = trained / "run" / "model.safetensors"
    copy = tmp_path / "weights.safetensors"
    copy.write_bytes(file.read_bytes())
    words = [str(trained / "photos"), "--protocol", "knn", "--img-size", "16", "--out", str(tmp_path / "out"), *SHORT]
    assert main(["eval", "vit_mini", *words]) == 0
    rows = rows_of(tmp_path / "out")
    assert {row["model"] for row in rows} == {"vit_mini"}  # random weights are their own floor
    assert {row["images"] for row in rows} == {"36"}
    torch.manual_seed(0)
    model = timm.create_model("vit_mini", num_classes=0, img_size=(16, 16))
    torch.save({"teacher": {f"module.{k}": v for k, v in model.state_dict().items()}}, tmp_path / "other.pth")
    assert main(["eval", str(tmp_path / "other.pth"), *words, "--model", "vit_mini", "--compare", "vit_mini"]) == 0
    rows = rows_of(tmp_path / "out")
    assert [row["model"] for row in rows[:3]] == ["other", "vit_mini", "random weights"]
    assert (
        "100 % of the parameters" in json.loads((tmp_path / "out" / "results.json").read_text())["models"][0]["weights"]
    )


def test_eval__puts_several_models_beside_the_first_each_in_a_column_of_its_own(trained, capsys, tmp_path):
    run, copies = trained / "run", [tmp_path / name / "weights.pth" for name in ("a", "b")]
    state = timm.create_model("vit_mini", num_classes=0, img_size=(16, 16)).state_dict()
    for copy in copies:
        copy.parent.mkdir()
        torch.save(state, copy)
    words = [str(trained / "photos"), "--protocol", "knn", "linear", "--img-size", "16", "--model", "vit_mini", *SHORT]
    others = [str(copies[1]), "vit_mini", str(run)]
    output = ["--test-fraction", "0.3", "--out", str(tmp_path / "out")]
    assert main(["eval", str(copies[0]), *words, *output, "--compare", *others]) == 0
    rows = rows_of(tmp_path / "out")
    names = ["weights", "weights (2)", "vit_mini", str(run), "random weights"]
    for protocol, score in {(row["protocol"], row["setting"] + row["score"]) for row in rows}:
        lines = [row for row in rows if (row["protocol"], row["setting"] + row["score"]) == (protocol, score)]
        assert [row["model"] for row in lines] == names
        first, twin, *_ = lines
        assert (first["gain_of_first"], twin["gain_of_first"], twin["verdict"]) == ("", "0.0", "tie")
        for row in lines[1:]:
            assert float(row["gain_of_first"]) == pytest.approx(float(first["value"]) - float(row["value"]))
    stored = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [model["name"] for model in stored["models"]] == names
    assert list(stored["tallies"]) == names[1:]
    assert stored["settings"]["compare"] == others
    printed = capsys.readouterr().out
    assert all(f"weights against {name}: " in printed.replace("\n", "") for name in names[1:])


def test_eval__takes_no_more_models_than_a_table_has_room_for(trained, capsys):
    words = ["vit_mini", trained / "photos", "--img-size", "16", "--protocol", "knn", "--compare", *["vit_mini"] * 15]
    assert "--compare names 15 models, but at most 14 are supported" in failure(capsys, "eval", *words)


def test_eval__refuses_features_that_one_of_the_models_lacks_before_any_work(trained, capsys, monkeypatch):
    monkeypatch.setattr("paucal.verbs.eval.frozen.evaluate_backbone", lambda *_: pytest.fail("a model was judged"))
    words = ["vit_mini", trained / "photos", "--img-size", "16", "--features", "class+mean", "--protocol", "linear"]
    sentence = failure(capsys, "eval", *words, "--compare", "vit_mini", "test_resnet")
    assert "classifies by its class token, but vit_mini does not" in sentence
    words[0] = "test_vit"
    sentence = failure(capsys, "eval", *words, "--compare", "test_vit", "test_resnet")
    assert "classifies by its class token, but test_resnet does not" in sentence


def test_eval__of_the_sets_of_table_9_has_their_published_parts(capsys, tmp_path):
    root = tmp_path / "sets"
    for place, name in enumerate(("BACKGROUND_Google", "Faces", "accordion")):
        for number in range(1, 34):
            picture(root / "caltech101/101_ObjectCategories" / name / f"image_{number:04d}.jpg", 80 * place + number)
    lists = {"Training_01.txt": range(5), "Testing_01.txt": range(5, 9)}
    scenes = [[f"/{name[0]}/{name}/sun_{n}.jpg" for n in range(12)] for name in ("abbey", "bakery/shop")]
    for place, lines in enumerate(scenes):
        for number, line in enumerate(lines):
            picture(root / f"SUN397{line}", 120 * place + number)
    (root / "SUN397/ClassName.txt").write_text("/a/abbey\n/b/bakery/shop\n")
    words = ["eval", "vit_mini", "table9", "--data-root", root, "--img-size", "16", "--protocol", "knn", *SHORT]
    assert main([*map(str, words), "--output", str(tmp_path / "first")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "has no test split: put Training_01.txt and Testing_01.txt from Partitions.zip" in printed
    for file, numbers in lists.items():
        (root / "SUN397" / file).write_text("".join(f"{lines[n]}\n" for lines in scenes for n in numbers))
    assert main([*map(str, words), "--output", str(tmp_path / "out")]) == 0
    stored = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [(one["name"], one["train"] + one["val"], one["test"], one["metric"]) for one in stored["data"]] == [
        ("sun397", 10, 8, "accuracy"),
        ("caltech101", 90, 9, "mean_per_class"),
    ]
    assert stored["data"][1]["how"].startswith("30 training images per class, drawn with seed 1; all others")
    (row,) = [row for row in stored["rows"] if row["data"] == "caltech101" and row["headline"]]
    assert row["score"] == "mean per class"


def test_eval__stored_features_give_the_same_table(trained, tmp_path):
    words = ["eval", "vit_mini", str(trained / "photos"), "--protocol", "knn", "logistic", "--img-size", "16", *SHORT]
    tables = []
    for number, extra in enumerate((["--cache", "features"], ["--cache", "features"], ["--no-cache"])):
        extra = [str(tmp_path / word) if word == "features" else word for word in extra]
        assert main([*words, *extra, "--out", str(tmp_path / str(number))]) == 0
        tables.append((tmp_path / str(number) / "table.csv").read_text())
    assert tables[0] == tables[1] == tables[2]
    assert len(list((tmp_path / "features").iterdir())) == 1


def test_eval__keeps_the_runs_own_parts_where_its_data_is_named(trained, capsys):
    train = trained / "photos" / "train"
    assert main(["eval", str(trained / "run"), str(train), "--protocol", "knn", *SHORT]) == 0
    rows = rows_of(trained / "run" / "evaluation" / "frozen-features")
    assert {row["images"] for row in rows} == {"6"}
    sentence = failure(
        capsys, "eval", "vit_mini", train, "--compare", trained / "run", "--protocol", "knn", "--img-size", "16",
        "--test-fraction", "0.5", *SHORT,
    )  # fmt: skip
    assert "was trained on, or selected by," in sentence
    assert "test images" in sentence


def test_eval__classification_and_frozen_features_in_one_command(trained):
    assert main(["eval", str(trained / "run"), "--protocol", "knn", "classification", *SHORT]) == 0
    assert (trained / "run" / "evaluation" / "test" / "metrics.json").is_file()
    assert (trained / "run" / "evaluation" / "frozen-features" / "table.csv").is_file()


@pytest.mark.parametrize(
    "words", [["--compare", "vit_mini"], ["--max-images", "5"], ["--metric", "mean_per_class"], ["--no-floor"]]
)
def test_eval__refuses_settings_of_frozen_features_for_a_classifier(trained, capsys, words):
    sentence = failure(capsys, "eval", trained / "run", *words)
    assert f"{words[0]} is for frozen features: give --protocol with knn, linear, " in sentence


def test_eval__mistakes_are_one_sentence(trained, capsys, tmp_path):
    photos, run = trained / "photos", trained / "run"
    bare = make_parts(tmp_path / "bare", parts=("only",)) / "only"
    cases = [
        (["vit_mini", bare], "has no test split: give a folder with train and test"),
        (["vit_mini"], "give DATA to evaluate 'vit_mini' on"),
        (["vit_minni", photos], "'vit_minni' is neither a run folder, nor a weights file, nor a timm model"),
        ([run, photos, "--img-size", "32"], "the image size of"),
        (["vit_mini", photos, "--compare", run, "--features", "blocks:9"], "the last 9 blocks, but only 6 of vit_mini"),
        (["vit_mini", photos, "--features", "tokens"], "expected auto or pooled, or a number of last blocks"),
        (["vit_mini", photos, "--max-images", "2"], "--max-images is 2, but photos has 3 classes"),
        (["vit_mini", photos, "--pretrained"], "timm publishes no weights of vit_mini"),
        (["vit_mini", photos, "--img-size", "0"], "--img-size is '0', expected one side or height and width"),
        (["vit_mini", photos, "--bootstrap", "1"], "--bootstrap is 1, expected a number between 2 and"),
        (["vit_mini", photos, "--device", "tpu9"], "the device 'tpu9' cannot be used"),
        (["vit_mini", photos, "--device", "meta"], "the device 'meta' cannot be used on this machine"),
        (["vit_mini", photos, "--cache", "x", "--no-cache"], "remove either one"),
        (["vit_mini", "table9", "--data-root", tmp_path / "nowhere"], "none of the data sets was found"),
    ]
    for words, expected in cases:
        size = [] if "--img-size" in words else ["--img-size", "16"]
        sentence = failure(capsys, "eval", *words, "--protocol", "knn", *size)
        assert expected in sentence, words


def test_eval__of_a_data_set_with_one_class(capsys, tmp_path):
    root = make_parts(tmp_path / "photos")
    for part in ("train", "test"):
        for label in (1, 2):
            for file in (root / part / f"class{label}").iterdir():
                file.unlink()
            (root / part / f"class{label}").rmdir()
    assert "only one class" in failure(capsys, "eval", "vit_mini", root, "--protocol", "knn")
