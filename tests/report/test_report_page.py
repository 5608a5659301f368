import base64
import html
import io
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

from paucal.evaluation.classification import classification_report
from paucal.evaluation.predictions import Predictions
from paucal.report.page import write_report
from paucal.runs import RunFolder
from paucal.types import UserError

EVIL = "<script>alert('x')</script>"


def evaluation(n_images=200, accuracy=0.9, classes=("cat", "dog", EVIL)):
    rng = np.random.default_rng(0)
    labels = rng.integers(len(classes), size=n_images)
    answers = np.where(rng.random(n_images) < accuracy, labels, (labels + 1) % len(classes))
    logits = 3.0 * torch.nn.functional.one_hot(torch.from_numpy(answers), len(classes))
    predictions = Predictions(torch.arange(n_images), logits.float(), torch.from_numpy(labels))
    return classification_report(predictions, list(classes), torch.tensor([1]), n_bootstrap=50)


def picture(size=(4, 3)):
    buffer = io.BytesIO()
    Image.new("RGB", size, (10, 200, 30)).save(buffer, format="png")
    return buffer.getvalue()


@pytest.fixture
def run(tmp_path):
    run = RunFolder(tmp_path / "runs" / "my run")
    run.plots.mkdir(parents=True)
    run.evaluation("test").mkdir(parents=True)
    run.write_json("evaluation/test/metrics.json", evaluation().to_dict())
    run.write_rows([{"epoch": e, "train_loss": 2 / e, "val_top1": 0.2 * e, "lr": 1e-3} for e in (1, 2, 3, 4)])
    run.write_json("env.json", {"command": ["paucal", "train", "my photos"], "packages": {"torch": "2.8", "x": None}})
    run.write_yaml(
        "config.yaml",
        {
            "settings": {"epochs": 4, "betas": [0.9, 0.99], "average_decay": None, "model": "vit"},
            "origin": {"epochs": "auto: 1,200 training images", "model": "flag"},
        },
    )
    run.write_json(
        "summary.json",
        {
            "title": f"My run {EVIL}",
            "model": "dhvt_tiny",
            "method": "drloc",
            "data": "Folder photos/",
            "split": "stratified",
            "parts": {"train": {"cat": 700, EVIL: 500}, "unlabelled": 77},
            "parameters": 5432100,
            "grid": "8 x 8",
            "epochs": 4,
            "seconds": 5400,
            "best_epoch": 4,
            "next_steps": ["Label more dogs & cats."],
        },
    )
    for name in ("curves", "confusion", "per_class", "reliability"):
        (run.plots / f"{name}.png").write_bytes(picture())
    (run.plots / "attention_maps.png").write_bytes(picture((7, 7)))
    return run


def page_of(run):
    path = write_report(run.path)
    assert path == run.path / "report.html"
    return path.read_text(encoding="utf-8")


def words(page):
    """Return the visible text, with white space made single."""
    return " ".join(re.sub(r"<[^>]*>", " ", re.sub(r"(?s)<style>.*?</style>", "", page)).split())


def test_write_report__says_the_result_beside_the_majority_line(run):
    report = evaluation()
    text = words(page_of(run))
    top1, majority = report.scores["top1"], report.majority
    assert f"right class for {100 * top1.value:.1f} % of 200 test images" in text
    assert f"between {100 * top1.low:.1f} % and {100 * top1.high:.1f} % (95 % interval)" in text
    assert f"most frequent class of the training images, would be right for {100 * majority.top1:.1f} %" in text
    for title in ("balanced accuracy", "macro-F1", "calibration error", "loss (nats)"):
        assert title in text
    assert "top-5" not in text


def test_write_report__shows_what_was_trained_and_why(run):
    text = words(page_of(run))
    for fact in (
        "model dhvt_tiny",
        "parameters 5,432,100",
        "token grid 8 x 8",
        "epoch kept 4",
        "training time 1 h 30 min",
        "Folder photos/",
        "images 1200 77",
        "cat 700 -",
        "epochs 4 auto: 1,200 training images",
        "betas 0.9, 0.99",
        "average_decay none",
        "command paucal train &#39;my photos&#39;",
        "packages torch: 2.8, x: none",
        "Label more dogs &amp; cats.",
    ):
        assert fact in text, fact


def test_write_report__per_class_numbers_are_in_the_table(run):
    text = words(page_of(run))
    for row in evaluation().per_class[:2]:
        recall = row.recall
        shown = [f"{100 * v:.1f} %" for v in (recall.value, recall.low, recall.high, row.precision, row.f1)]
        assert "{name} {n} {} {} to {} {} {}".format(*shown, name=row.name, n=row.images) in text


def test_write_report__is_self_contained_and_runs_no_script(run):
    page = page_of(run)
    assert "<script" not in page.lower()
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;" in page
    text = re.sub(r"base64,[\w+/=]*", "", page)
    assert not re.search(r"https?:|//[a-z]|@import|url\(", text)
    assert not re.search(r"<(link|iframe|object|embed|form)\b", page)
    sources = re.findall(r'src="([^"]*)"', page)
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert "default-src 'none'" in page


def test_write_report__embeds_stored_pictures_and_draws_the_missing(run):
    (run.plots / "curves.png").unlink()
    (run.plots / "confusion.png").unlink()
    page = page_of(run)
    images = {
        alt: Image.open(io.BytesIO(base64.b64decode(data)))
        for data, alt in re.findall(r'src="data:image/png;base64,([^"]*)" alt="([^"]*)"', page)
    }
    assert len(images) == 5
    stored = {alt.split()[0]: image.size for alt, image in images.items() if image.width < 10}
    assert stored == {"attention_maps": (7, 7), "Calibration.": (4, 3), "Recall": (4, 3)}
    drawn = {alt.split(":")[0] for alt, image in images.items() if image.width > 400}
    assert drawn == {"Losses and scores over the epochs.", "Confusion matrix"}
    assert 'href="#more"' in page


def test_write_report__says_what_it_cost_and_how_to_repeat_it(run):
    rows = [{"epoch": e, "val_top1": 0.2 * e, "seconds": 10.0 * e + (5 if e == 2 else 0)} for e in (1, 2, 3)]
    run.write_rows(rows)
    run.write_json("summary.json", run.read_json("summary.json") | {"peak_memory": 3 * 2**29})
    text = html.unescape(words(page_of(run)))
    # 1,200 images: 120, 80 and 240 a second; the middle one is told.
    assert "speed 120 training images per second" in text
    assert "peak memory 1.50 GiB" in text
    assert f"paucal train --config '{run.config}' # all settings as resolved" in text
    assert "paucal train 'my photos' # the original command" in text
    run.write_json("summary.json", run.read_json("summary.json") | {"epoch_images": 4800})  # several crops of each
    assert "speed 480 training images per second" in words(page_of(run))
    run.write_rows([{name: value for name, value in row.items() if name != "seconds"} for row in rows])
    assert "training images per second" not in words(page_of(run))


def test_write_report__takes_photographs_as_jpeg_and_stays_small(run):
    generator = np.random.default_rng(0)
    blocks = generator.integers(20, 236, (20, 25, 4)).repeat(20, axis=0).repeat(20, axis=1)
    noise = (blocks + generator.integers(-10, 10, (400, 500, 4))).astype(np.uint8)
    noise[..., 3] = 255
    noise[:200, :, 3] = 0  # what lets the page shine through becomes white
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, "png")
    (run.plots / "mistakes.png").write_bytes(buffer.getvalue())
    (run.plots / "train_batch.png").write_bytes(buffer.getvalue()[:300_000])  # damaged
    page = page_of(run)
    (found,) = re.findall(r'src="data:image/jpeg;base64,([^"]*)"', page)
    shown = Image.open(io.BytesIO(base64.b64decode(found)))
    assert (shown.size, shown.format) == ((500, 400), "JPEG")
    assert np.asarray(shown)[:180].min() > 245
    inside = np.asarray(shown)[220:].astype(float)
    assert np.corrcoef(inside.ravel(), noise[220:, :, :3].ravel())[0, 1] > 0.95
    assert len(found) < len(buffer.getvalue())


def test_write_report__curves_have_a_panel_below_the_other_on_small_screens(run):
    (run.plots / "curves.png").unlink()
    page = page_of(run)
    wide = re.search(r'src="data:image/png;base64,([^"]*)" alt="Losses and scores', page)
    narrow = re.search(r'<source media="\(max-width: 600px\)" srcset="data:image/png;base64,([^"]*)">', page)
    assert wide is not None
    assert narrow is not None
    (across, down), (small, tall) = (Image.open(io.BytesIO(base64.b64decode(one[1]))).size for one in (wide, narrow))
    assert small < across / 2
    assert tall > 2 * down


def test_write_report__commands_name_the_run_and_are_quoted(run):
    page = page_of(run)
    quoted = f"&#39;{run.path}&#39;"
    assert f"paucal predict {quoted} new_images/" in page
    assert f"paucal eval {quoted}" in page
    assert f"paucal.load({quoted})" in page
    assert "model.probabilities([image])" in page


def test_write_report__many_classes_are_folded(run):
    names = [f"species {k}" for k in range(40)]
    run.write_json("evaluation/test/metrics.json", evaluation(600, 0.9, names).to_dict())
    page = page_of(run)
    assert "<details><summary>40 classes" in page
    assert "top-5 accuracy" in page


def test_write_report__empty_folder_gives_a_page_without_empty_sections(tmp_path):
    run = RunFolder(tmp_path)
    page = page_of(run)
    assert "not been evaluated on test images yet" in page
    assert re.findall(r'<section id="(\w+)"', page) == ["result", "use"]
    assert re.findall(r'href="#(\w+)"', page) == ["result", "use"]
    assert "<img" not in page


def test_write_report__one_epoch_without_evaluation(tmp_path):
    run = RunFolder(tmp_path)
    run.write_rows([{"epoch": 1, "val_top1": 0.25, "train_loss": 2.0}])
    page = page_of(run)
    assert "25.0 % of the validation images" in page
    assert page.count("<img") == 1


@pytest.mark.parametrize(
    "missing", ["config.yaml", "env.json", "summary.json", "metrics.csv", "evaluation/test/metrics.json"]
)
def test_write_report__any_file_may_be_missing(run, missing):
    (run.plots / "curves.png").unlink()
    complete = page_of(run)
    (run.path / missing).unlink()
    assert 500 < len(page_of(run)) < len(complete)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.yaml", b"settings: [1"),
        ("config.yaml", b"settings: 3"),
        ("config.yaml", b"- 1"),
        ("env.json", b"{"),
        ("env.json", b"\xff\xfe"),
        ("summary.json", b'{"seconds": "long"}'),
        ("summary.json", b'{"seconds": NaN}'),
        ("summary.json", b'{"parts": 3}'),
        ("summary.json", b'{"parts": {"train": {"cat": "many"}}}'),
        ("summary.json", b'{"next_steps": 3}'),
        ("summary.json", b'{"calibration": {"temperature": 2, "images": 3, "error": [0.1]}}'),
        ("summary.json", b'{"title":' + b"[" * 100_000),
        ("metrics.csv", b"epoch,lr\n1,fast\n"),
        ("metrics.csv", b"epoch,lr\n1,2,3\n"),
        ("metrics.csv", b"epoch,lr\n1,\xff\n"),
        ("evaluation/test/metrics.json", b'{"images": 3}'),
        ("plots/confusion.png", b"GIF89a"),
    ],
)
def test_write_report__damaged_files_are_named(run, name, content):
    (run.path / name).write_bytes(content)
    with pytest.raises(UserError, match=r"runs|damaged"):
        write_report(run.path)


def test_write_report__too_large_files_are_refused(run, monkeypatch):
    monkeypatch.setattr("paucal.report.inputs.MAX_METRICS_BYTES", 10)
    with pytest.raises(UserError, match="larger than 10 bytes"):
        write_report(run.path)
    monkeypatch.undo()
    monkeypatch.setattr("paucal.report.pictures.MAX_PICTURE_BYTES", 10)
    with pytest.raises(UserError, match="expected at most 10"):
        write_report(run.path)
    monkeypatch.undo()
    monkeypatch.setattr("paucal.report.pictures.MAX_PAGE_BYTES", 100)
    with pytest.raises(UserError, match="can contain at most 100"):
        write_report(run.path)


def test_write_report__no_folder(tmp_path):
    with pytest.raises(UserError, match="is not a folder"):
        write_report(tmp_path / "nothing")


def test_write_report__values_without_end_are_cut(run):
    bomb = ["a"] * 9
    for _ in range(5):
        bomb = [bomb] * 9
    run.write_yaml("config.yaml", {"settings": {"nested": bomb[0][0][0]}, "origin": {}})
    run.write_json("env.json", {"long": "y" * 10**6, "bomb": bomb})
    page = page_of(run)
    assert len(page) < 1_000_000
    assert "y" * 2001 not in page


def test_write_report__is_the_same_when_written_again(run):
    first = page_of(run)
    assert page_of(run) == first
    assert json.loads((run.path / "env.json").read_text())["packages"]["torch"] == "2.8"
