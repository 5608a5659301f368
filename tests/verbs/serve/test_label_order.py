"""What the labelling page shows first, and mistakes in how it is called."""

from pathlib import Path

from cli.calls import QUICK, call, failure, make_photos
from cli.test_cli_serve import free_port
from paucal.models.trained import load_trained
from paucal.runner.console import RecordingConsole
from paucal.verbs.serve.labelling import LabelFile
from paucal.verbs.serve.launch import open_labelling
from paucal.verbs.serve.settings import ServeSettings


def test_model__orders_the_images_and_suggests_classes(tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos")
    assert call("train", photos, *QUICK, "--output", tmp_path / "run") == 0
    more = make_photos(tmp_path / "more", each=8, seed=3)
    settings = ServeSettings(label=str(more), save=str(tmp_path / "labels.csv"))
    with LabelFile(tmp_path / "labels.csv") as saved:
        page = open_labelling(str(tmp_path / "run"), settings, saved, RecordingConsole())
        assert page.classes == load_trained(tmp_path / "run").classes
        shown = []
        answer = page.next("a")
        while answer["image"] is not None:
            shown.append(answer["image"])
            assert answer["command"] == ""
            answer = page.save("a", answer["image"]["number"], "class1")
        assert answer["command"] == f"paucal train {photos}:{tmp_path / 'labels.csv'}"
    assert len({image["number"] for image in shown}) == 24
    assert all(len(image["answers"]) == 2 for image in shown)
    assert ["drawn at random" in image["reason"] for image in shown[:24]].count(True) == 2
    assert "drawn at random" in shown[9]["reason"]  # the tenth


def test_images_without_a_model__come_in_an_order_that_stays(tmp_path: Path) -> None:
    more = make_photos(tmp_path / "more", each=8)
    settings = ServeSettings(label=str(more), save=str(tmp_path / "labels.csv"), classes=["a", "b"])
    orders = []
    for _ in range(2):
        with LabelFile(tmp_path / "labels.csv") as saved:
            page = open_labelling(None, settings, saved, RecordingConsole())
            orders.append([page.skip("t", page.next("t")["image"]["number"])["image"]["name"] for _ in range(20)])
            assert page.classes == ("a", "b")
    assert orders[0] == orders[1] != sorted(orders[0])


def test_mistakes__are_one_sentence(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    photos = make_photos(tmp_path / "photos", each=1)
    label, save, classes = ("--label", photos), ("--save", "x.csv"), ("--classes", "a", "b")
    for words, sentence in (
        ((), "RUN is missing"),
        (save, "--save is only for labelling"),
        (classes, "--classes is only for labelling"),
        (label, "--label needs --save"),
        ((*label, *save), "--label needs classes to choose from"),
        ((*label, *save, "--classes", "a", "a"), "expected two or more different names"),
        (("--label", "none", *save, *classes), "none does not exist"),
        (("--label", "digits", *save, *classes), "contains no image files"),
        ((*label, "--save", photos / "x.csv", *classes), "is inside the images"),
        ((*label, "--save", "x.txt", *classes), "must end in .csv"),
    ):
        assert sentence in failure(capsys, "serve", *words, "--port", free_port())
        assert sorted(path.name for path in tmp_path.iterdir()) == ["photos"]
