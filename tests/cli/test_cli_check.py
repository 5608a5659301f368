"""`paucal check` as people call it: exit codes, JSON, the page, and mistakes."""

import json
from pathlib import Path

import pytest

import paucal
from cli.calls import QUICK, call, make_photos


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return make_photos(tmp_path / "photos")


def test_check__of_a_set_without_copies_ends_well(photos, capsys, tmp_path):
    assert call("check", photos, "--output", tmp_path / "page") == 0
    said = capsys.readouterr().out
    assert "24 images" in said or "images," in said
    page = (tmp_path / "page" / "check.html").read_text()
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert call("check", photos, "--output", tmp_path / "page") == 0  # its own files are replaced


def test_check__of_copies_between_parts_ends_with_1_and_says_which(photos, capsys):
    first = sorted(path for path in photos.rglob("*") if path.is_file())[0]
    for number in range(12):
        (first.parent / f"copy{number}{first.suffix}").write_bytes(first.read_bytes())
    capsys.readouterr()
    assert call("check", photos, "--format", "json") == 1
    told = json.loads(capsys.readouterr().out)
    assert told["misleads"] is True
    (found,) = [one for one in told["findings"] if one["name"] == "duplicates-across-parts"]
    (group,) = found["groups"]
    assert len(group) == 13
    assert first.relative_to(photos).as_posix() in group


def test_check__takes_images_without_labels(tmp_path, capsys):
    photos = make_photos(tmp_path / "photos")
    flat = tmp_path / "flat"
    flat.mkdir()
    for number, path in enumerate(sorted(path for path in photos.rglob("*") if path.is_file())):
        (flat / f"{number}{path.suffix}").write_bytes(path.read_bytes())
    assert call("check", flat) == 0
    assert "there are no labels" in capsys.readouterr().out


def test_check__judges_labels_by_the_pixels_where_there_are_no_weights(photos, monkeypatch):
    wrong = (photos / "class0/3.png").rename(photos / "class2/wrong.png")
    monkeypatch.setattr("paucal.verbs.check.labels.find_local_weights", lambda: None)
    monkeypatch.setattr("paucal.verbs.check.launch.find_local_weights", lambda: None)
    found = paucal.check(photos, labels=True)
    assert "plain pixels" in found.judged_by
    assert found.suspects is not None
    (suspect,) = found.to_dict()["suspected_labels"]
    assert photos / suspect["key"] == wrong
    assert (suspect["given"], suspect["suggested"]) == ("class2", "class0")


def test_check__refuses_a_place_with_files_of_others(photos, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "check.html").write_text("mine")
    assert call("check", photos, "--output", tmp_path / "mine") == 2
    assert "was not written by 'paucal check'" in capsys.readouterr().err
    assert (tmp_path / "mine" / "check.html").read_text() == "mine"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--model", "nothing_of_this_name", "--labels"], "neither a run folder nor a timm model"),
        (["--format", "xml"], "--format"),
        (["--seed", "-1"], "--seed"),
    ],
)
def test_check__tells_mistakes(photos, capsys, flags, words):
    assert call("check", photos, *flags) == 2
    assert words in capsys.readouterr().err


def test_train__reports_what_a_check_finds_without_decoding(photos, tmp_path, capsys):
    first = sorted(path for path in photos.rglob("*") if path.is_file())[0]
    for number in range(12):
        (first.parent / f"copy{number}{first.suffix}").write_bytes(first.read_bytes())
    capsys.readouterr()
    assert call("train", photos, *QUICK, "--output", tmp_path / "run") == 0
    assert "would be in several splits" in " ".join(capsys.readouterr().out.split())
    found = json.loads((tmp_path / "run" / "check.json").read_text())["findings"]
    assert [one["name"] for one in found] == ["duplicates-across-parts", "rare-classes"]
    page = (tmp_path / "run" / "report.html").read_text()
    assert '<section id="check">' in page
    assert "would be in several splits" in page
