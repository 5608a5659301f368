"""`paucal explain` on a finished run."""

from pathlib import Path

import pytest
from PIL import Image

import paucal
from cli.calls import failure
from paucal.cli.main import main

PNG, SVG = b"\x89PNG", b"<?xml"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where `explanations/` goes


def test_explain__draws_what_is_asked_for(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = trained / "photos" / "class0"
    words = [str(photos / "0.png"), str(photos / "1.png")]
    shown = ["attribution", "attention", "rollout", "features", "tokens", "entropy", "matches"]
    call = ["explain", str(trained / "run"), *words, "--show", *shown, "--method", "relevance", "--format", "both"]
    assert main([*call, "--output", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "method: relevance (Chefer et al.)" in said
    single = ("attribution", "attention", "rollout", "features", "tokens")
    expected = {f"{name}_{view}" for name in "01" for view in single} | {"0_matches", "sheet", "entropy"}
    assert {path.stem for path in (tmp_path / "out").iterdir()} == expected
    for path in (tmp_path / "out").iterdir():
        content = path.read_bytes()
        assert content.startswith(PNG if path.suffix == ".png" else SVG)
    assert "holds files already" in failure(capsys, *call, "--output", str(tmp_path / "out"))


def test_explain__in_python_numbers_folders_and_takes_any_mode(trained: Path) -> None:
    picture = Image.new("L", (50, 30), 90)
    first = paucal.explain_images(trained / "run", picture, method="libra")
    second = paucal.explain_images(paucal.load(trained / "run"), [picture, picture.convert("RGBA")], method="libra")
    assert (str(first.folder), str(second.folder)) == ("explanations/1", "explanations/2")
    assert first.method == "libra"
    assert [path.name for path in second.pictures] == [
        "image_1_attribution.png",
        "image_2_attribution.png",
        "sheet.png",
    ]


def test_report__shows_what_the_model_saw_in_its_mistakes(trained: Path) -> None:
    plots, page = trained / "run" / "plots", (trained / "run" / "report.html").read_text()
    assert (plots / "mistakes.png").exists() == (plots / "mistakes_attribution.png").exists()
    assert ("What the model saw in its surest wrong answers" in page) == (plots / "mistakes_attribution.png").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--show", "atention"], "--show is 'atention' (did you mean attention"),
        (["--explain-class", "class9"], "knows no class 'class9'"),
        (["--method", "gradcam"], "--method is 'gradcam' (did you mean grad-cam?)"),
        (["--show", "attention", "--layer", "9"], "expected a number from 1 to 1, or one of blocks.0.attn"),
        (["--show", "attention", "--token", "9,9"], "lies outside of the grid"),
        (["--show", "attention", "--token", "class"], "there is no token 'class' here"),
        (["--show", "head-tokens"], "has no head tokens"),
        (["--top", "0"], "--top"),
    ],
)
def test_mistakes__are_one_sentence(
    trained: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    photo = str(trained / "photos" / "class0" / "0.png")
    assert message in failure(capsys, "explain", trained / "run", photo, *words)


def test_mistakes__about_the_model_and_the_images(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photo = str(trained / "photos" / "class0" / "0.png")
    assert "neither a run folder nor a timm model" in failure(capsys, "explain", "nothing_here", photo)
    assert "nothing.png" in failure(capsys, "explain", trained / "run", "nothing.png")
    three = [str(trained / "photos" / "class0" / f"{n}.png") for n in range(3)]
    assert "and 3 are given" in failure(capsys, "explain", trained / "run", *three, "--show", "matches")
