"""`paucal explain` on a finished run."""

import csv
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

import paucal
from cli.calls import failure
from paucal import explain
from paucal.cli.main import main
from paucal.explain.features import feature_colours
from paucal.explain.figures.pictures import figure_to_bytes, visible_region
from paucal.types import UserError
from paucal.verbs.explain import writing
from paucal.verbs.explain.attention import features_figures
from paucal.verbs.explain.attribution import class_numbers
from paucal.verbs.explain.inputs import ExplainInput, convert_model_input
from paucal.verbs.explain.writing import FigureWriter

PNG, SVG = b"\x89PNG", b"<?xml"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where `explanations/` goes


def test_explain__draws_what_is_asked_for(
    trained: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write, to_bytes, labels = FigureWriter.write, writing.figure_to_bytes, [""]

    def write_with_label(pictures: FigureWriter, label: str, figure: Figure) -> None:
        labels.append(label)
        write(pictures, label, figure)

    def draw_each_kind_once(figure: Figure, file_format: str) -> bytes:
        label = labels[-1]
        wanted = label == "sheet" if file_format == "svg" else not label.startswith("1_")
        return (figure_to_bytes if wanted else to_bytes)(figure, file_format)

    monkeypatch.setattr(FigureWriter, "write", write_with_label)
    monkeypatch.setattr(writing, "figure_to_bytes", draw_each_kind_once)
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
        assert content.startswith({".png": PNG, ".svg": SVG, ".csv": b"model,layer,head,bits,even_bits"}[path.suffix])
    assert (tmp_path / "out" / "entropy.csv").is_file()
    assert "is not empty: give another folder" in failure(capsys, *call, "--output", str(tmp_path / "out"))


def test_features__have_the_same_colours_in_all_images_of_a_batch(trained: Path) -> None:
    model = paucal.load(trained / "run")
    transform, size = model.card.preprocessing.transform(), model.card.preprocessing.image_size
    images = []
    for name in "012":
        picture = Image.open(trained / "photos" / "class0" / f"{name}.png").convert("RGB")
        view, geometry = transform(picture)
        images.append(ExplainInput(f"{name}.png", visible_region(picture, geometry, size), view))
    drawn = dict(features_figures(model, images))
    together = feature_colours(model.module, torch.stack([one.view for one in images]))
    assert list(drawn) == ["0_features", "1_features", "2_features"]
    for figure, colours in zip(drawn.values(), together, strict=True):
        np.testing.assert_array_equal(figure.axes[1].images[0].get_array(), colours)


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


def test_explain__draws_several_queries_and_the_heads_of_several_models(trained: Path, tmp_path: Path) -> None:
    photo, run, out = trained / "photos" / "class0" / "0.png", str(trained / "run"), tmp_path / "out"
    call = ["explain", run, str(photo), "--show", "attention", "entropy", "--token", "0,0", "1,0"]
    assert main([*call, "--against", run, "--output", str(out)]) == 0
    drawn = {path.name for path in out.iterdir()}
    assert {"0_attention.png", "entropy_ranked.png", "entropy_vit_mini.png", "entropy.csv"} <= drawn
    rows = list(csv.DictReader((out / "entropy.csv").read_text().splitlines()))
    model = paucal.load(run)
    view, _ = model.card.preprocessing.transform()(Image.open(photo).convert("RGB"))
    expected = explain.entropy_over(model.module, [view[None]])
    for name in ("vit_mini", run):
        own = [row for row in rows if row["model"] == name]
        assert [row["layer"] for row in own] == ["blocks.0.attn"] * len(expected["blocks.0.attn"])
        assert [float(row["bits"]) for row in own] == pytest.approx(expected["blocks.0.attn"].tolist(), abs=1e-4)
        tokens = explain.read_attention(model.module, view[None])[0].keys.shape[1]
        assert float(own[0]["even_bits"]) == pytest.approx(math.log2(tokens), abs=1e-4)


def test_explain__shows_the_teachers_cells_beside_the_students(trained: Path, labelled: Path, tmp_path: Path) -> None:
    photo = str(trained / "photos" / "class0" / "0.png")
    call = ["explain", str(trained / "run"), photo, "--show", "tokens", "--teacher", str(labelled / "teacher")]
    assert main([*call, "--output", str(tmp_path / "out")]) == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["0_tokens.png"]


def test_explain__shows_what_a_network_without_classes_looks_at(trained: Path, tmp_path: Path) -> None:
    usual = paucal.load(trained / "run")
    usual.module.reset_classifier(0)  # type: ignore[operator]
    model = replace(usual, card=replace(usual.card, classes=()))  # as pre-training leaves it
    photos = [str(trained / "photos" / "class0" / f"{number}.png") for number in (0, 1)]
    views = ["attention", "rollout", "features", "entropy", "matches"]
    found = paucal.explain_images(model, photos, show=views, output=tmp_path / "out")
    assert len(found.pictures) == 8
    for view in ("attribution", "tokens"):
        with pytest.raises(UserError, match="has no classifier, as it was pre-trained without labels"):
            paucal.explain_images(model, photos, show=[view], output=tmp_path / view)


def test_explain_class__takes_words_for_the_numbers_of_imagenet(trained: Path) -> None:
    model = paucal.load(trained / "run")
    names = ("n03680355", "n02012849", "n03126707", "n02123045")[: len(model.classes)]
    model = replace(model, card=replace(model.card, classes=names))
    assert class_numbers(model, ["loafer", "n02012849"]) == [0, 1]
    with pytest.raises(UserError, match=r"no class 'lofer' \(did you mean Loafer\?\); it has Loafer, crane"):
        class_numbers(model, ["lofer"])
    cranes = replace(model, card=replace(model.card, classes=("n02012849", "n03126707")))
    with pytest.raises(UserError, match="'crane' may mean n02012849 and n03126707: give one of these names"):
        class_numbers(cranes, ["crane"])


@pytest.mark.parametrize("kind", ["half", "compiled"])
def test_explain__takes_half_and_compiled_models_and_leaves_them_so(trained: Path, tmp_path: Path, kind: str) -> None:
    usual = paucal.load(trained / "run")
    module = usual.module.half() if kind == "half" else torch.compile(usual.module, backend="eager")
    model = replace(usual, module=module)  # type: ignore[arg-type]
    photo = str(trained / "photos" / "class0" / "0.png")
    shown = ["attribution", "attention", "rollout", "features", "tokens", "entropy", "matches"]
    found = paucal.explain_images(model, photo, show=shown, output=tmp_path / "out")
    assert len(found.pictures) == 7
    assert next(module.parameters()).dtype == (torch.float16 if kind == "half" else torch.float32)  # type: ignore[union-attr]


def test_views__of_another_model_are_normalised_and_sized_as_it_expects(trained: Path) -> None:
    model = paucal.load(trained / "run")
    fed = replace(model.card.preprocessing, image_size=(24, 24), mean=(0.1, 0.2, 0.3), std=(0.5, 1.0, 2.0))
    other = replace(model, card=replace(model.card, preprocessing=fed))
    mean, std = (
        torch.tensor(values).view(3, 1, 1) for values in (model.card.preprocessing.mean, model.card.preprocessing.std)
    )
    grey = (torch.full((3, 16, 16), 0.6) - mean) / std  # an even image of 0.6
    found = convert_model_input(grey[None], model, other)
    assert found.shape == (1, 3, 24, 24)
    for channel, value in enumerate(((0.6 - 0.1) / 0.5, 0.6 - 0.2, (0.6 - 0.3) / 2)):
        torch.testing.assert_close(found[0, channel], torch.full((24, 24), value), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(convert_model_input(grey[None], model, model), grey[None])


def test_report__shows_what_the_model_saw_in_its_mistakes(trained: Path) -> None:
    plots, page = trained / "run" / "plots", (trained / "run" / "report.html").read_text()
    assert (plots / "mistakes.png").exists() == (plots / "mistakes_attribution.png").exists()
    assert ("Attribution maps of the most confident mistakes" in page) == (plots / "mistakes_attribution.png").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--show", "atention"], "--show is 'atention' (did you mean attention"),
        (["--explain-class", "class9"], "has no class 'class9'"),
        (["--method", "gradcam"], "--method is 'gradcam' (did you mean grad-cam?)"),
        (["--show", "attention", "--layer", "9"], "expected all, a number from 1 to 1, or one of blocks.0.attn"),
        (["--show", "attention", "--token", "9,9"], "is outside the grid"),
        (["--show", "attention", "--token", "class"], "the layer has no token 'class'"),
        (["--show", "head-tokens"], "has no head tokens"),
        (["--top", "0"], "--top"),
        (["--against", "runs/9"], "--against compares the entropy of heads: add --show entropy"),
        (["--method", "libra", "--show", "rollout"], "--method chooses how the attribution is computed"),
        (["--explain-class", "class0", "--show", "attention"], "--explain-class chooses the classes of the attr"),
        (["--layer", "1"], "--layer chooses the layers of the attention: add --show attention or head-tokens."),
        (["--token", "0,0"], "add --show attention or localization."),
        (["--token", "class", "--show", "localization"], "the localization needs a patch: give ROW,COLUMN"),
        (["--teacher", "runs/9"], "--teacher draws a teacher's token labels: add --show tokens."),
        (["--show", "entropy", "--against", "runs/9"], "neither a run folder nor a timm model"),
    ],
)
def test_mistakes__are_one_sentence(
    trained: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    photo = str(trained / "photos" / "class0" / "0.png")
    assert message in failure(capsys, "explain", trained / "run", photo, *words)


def test_mistakes__attention_of_a_network_without_any(
    labelled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photo = str(next((labelled / "photos").rglob("*.png")))
    for view in ("attention", "rollout", "entropy", "head-tokens"):
        message = failure(capsys, "explain", labelled / "teacher", photo, "--show", view, "--output", tmp_path / "out")
        assert "resnet10t has no attention weights to read" in message
    message = failure(capsys, "explain", labelled / "teacher", photo, "--method", "rollout")
    assert "--method rollout needs attention, which resnet10t lacks" in message
    assert not (tmp_path / "out").exists()


def test_mistakes__about_the_model_and_the_images(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photo = str(trained / "photos" / "class0" / "0.png")
    assert "neither a run folder nor a timm model" in failure(capsys, "explain", "nothing_here", photo)
    unpublished = failure(capsys, "explain", "vit_mini", photo)
    assert unpublished == "error: timm publishes no weights of vit_mini: give a run."
    assert "nothing.png" in failure(capsys, "explain", trained / "run", "nothing.png")
    three = [str(trained / "photos" / "class0" / f"{n}.png") for n in range(3)]
    assert "but more were given" in failure(capsys, "explain", trained / "run", *three, "--show", "matches")
