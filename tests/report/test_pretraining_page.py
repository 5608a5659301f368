import io
import re

import pytest
from PIL import Image

from paucal.report.pretraining import write_pretraining_report
from paucal.runs import RunFolder
from paucal.types import UserError

EVIL = "<script>alert('x')</script>"
VERDICT = {"kind": "uniform output", "sentence": "uniform output: all alike.", "advice": "Lower the temperature."}


def picture():
    buffer = io.BytesIO()
    Image.new("RGB", (4, 3), (10, 200, 30)).save(buffer, format="png")
    return buffer.getvalue()


@pytest.fixture
def run(tmp_path):
    run = RunFolder(tmp_path / "runs" / "my run")
    run.plots.mkdir(parents=True)
    rows = [(1, 0.31), (2, 0.52), (3, 0.48)]
    run.write_rows([{"epoch": e, "train_loss": 9.0 / e, "val_knn": knn} for e, knn in rows])
    for name in ("health", "train_batch"):
        (run.plots / f"{name}.png").write_bytes(picture())
    run.write_yaml("config.yaml", {"settings": {"out_dim": 4096}, "origin": {"out_dim": "auto: few images"}})
    write_summary(run)
    return run


def write_summary(run, **changes):
    summary = {
        "title": f"Swin {EVIL}",
        "model": "esvit_swin",
        "method": "self-distillation of views and regions",
        "data": "photos: 1200 images",
        "split": "all images are used",
        "parameters": 27519354,
        "grid": "7x7",
        "crops": "2 crops of 224x224 and 8 crops of 96x96",
        "out_dim": 4096,
        "epochs": 3,
        "seconds": 600,
        "monitor": "labelled/",
        "knn_start": 0.302,
        "verdict": None,
        "verdicts": [],
        "next_steps": ["paucal train photos/ --init runs/1     # fine-tune"],
        **changes,
    }
    run.write_json("summary.json", summary)


def text_of(run) -> str:
    page = write_pretraining_report(run.path).read_text(encoding="utf-8")
    return " ".join(re.sub(r"<[^>]*>", " ", re.sub(r"(?s)<style>.*?</style>", "", page)).split())


def test_page__says_what_was_trained_and_what_the_features_are_worth(run):
    text = text_of(run)
    for words in (
        "photos: 1200 images; all images are used",
        "crops of an image 2 crops of 224x224 and 8 crops of 96x96",
        "prototypes of a head 4,096",
        "training time 10 min",
        "no sign of collapse",
        "After epoch 3, nearest neighbours classify 48.0 % of the labelled images of labelled/ correctly",
        "(30.2 % with the initial weights)",
        "highest accuracy was 52.0 %, after epoch 2. The last epoch is kept",
        "No epoch showed signs of collapse",
        "paucal train photos/ --init runs/1",
        "out_dim 4096 auto: few images",
    ):
        assert words in text, words
    assert "test accuracy" not in text


def test_page__is_self_contained_and_shows_its_pictures(run):
    page = write_pretraining_report(run.path).read_text(encoding="utf-8")
    assert page.count('src="data:image/png;base64,') == 3  # health, curves (drawn here), crops
    assert page.count('srcset="data:image/png;base64,') == 1  # the curves, for small screens
    assert EVIL not in page
    assert "<script" not in page
    assert not re.search(r"https?://", page)
    for anchor in re.findall(r'href="#(\w+)"', page):
        assert f'id="{anchor}"' in page


def test_page__a_collapse_stands_first_with_its_history(run):
    history = [
        {"epoch": 7.0, "kind": "uniform output", "sentence": "uniform output: all alike."},
        {"epoch": 9.0, "kind": None, "sentence": "the signs of collapse are gone."},
    ]
    write_summary(run, verdict=VERDICT, verdicts=history, rollbacks=1)
    text = text_of(run)
    assert "Uniform output: all alike. Lower the temperature." in text
    assert "7 uniform output uniform output: all alike. 9 recovered the signs" in text
    assert "was reset once to its state before a collapse" in text
    assert "The networks show no sign of collapse: their" not in text


def test_page__features_no_better_than_at_the_start_are_called_so(run):
    assert "has not improved the features" not in text_of(run)
    write_summary(run, knn_start=0.48)
    assert "has not improved the features" in text_of(run)


def test_page__without_a_monitor_nothing_is_claimed(run):
    run.write_rows([{"epoch": 1, "train_loss": 9.0}])
    text = text_of(run)
    assert "so their quality is unknown" in text
    assert "nearest neighbours classify" not in text


def test_page__an_empty_run_has_a_page_with_commands(tmp_path):
    (tmp_path / "a b").mkdir()
    text = text_of(RunFolder(tmp_path / "a b"))
    assert f"paucal train photos/ --init &#39;{tmp_path}/a b&#39;" in text


@pytest.mark.parametrize("broken", [{"verdict": {"kind": "x"}}, {"verdicts": [{"epoch": "soon"}]}, {"out_dim": "many"}])
def test_page__says_that_its_summary_is_damaged(run, broken):
    write_summary(run, **broken)
    with pytest.raises(UserError, match="is damaged"):
        write_pretraining_report(run.path)
