"""`paucal export --format hub`: a folder that timm loads, a page with scores and licences, and its upload."""

import json

import huggingface_hub
import pytest
import timm
import torch
import yaml
from PIL import Image
from torch import nn

import paucal
from paucal.cli.main import main
from paucal.export.timm_folder import with_temperature_in_weights

HUB_FILES = ["model.safetensors", "model.json", "config.json", "README.md"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub") / "run"
    settings = {"model": "test_resnet", "epochs": 1, "fraction": 0.05, "init": "none", "img_size": 32}
    paucal.train("digits", output=folder, workers=0, device="cpu", **settings)
    return folder


class FakeApi:
    calls: list = []  # noqa: RUF012

    def create_repo(self, repository, **words):
        self.calls.append((repository, words))
        return f"https://hub.example/{repository}"

    def upload_folder(self, **words):
        self.calls.append(words)


def test_hub__folder_is_loaded_by_timm_and_says_how_good_the_model_is(run, tmp_path):
    made = paucal.export_model(run, format="hub", output=tmp_path / "out", data_licence="CC0-1.0")
    assert {path.name for path in made.files} == {"model.safetensors", "model.json", "config.json", "README.md"}
    network = timm.create_model(f"local-dir:{made.folder}", pretrained=True).eval()
    own = paucal.load(run)
    assert abs(own.card.temperature - 1) > 0.01
    batch = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(network(batch).softmax(1), own.card.probabilities(own.module(batch)))
    picture = Image.linear_gradient("L").convert("RGB").resize((60, 45))
    torch.testing.assert_close(paucal.load(made.folder).probabilities([picture]), own.probabilities([picture]))
    _, header, page = (made.folder / "README.md").read_text().split("---\n", 2)
    stated = yaml.safe_load(header)
    assert (stated["library_name"], stated["pipeline_tag"]) == ("timm", "image-classification")
    assert "license" not in stated  # nothing was taken over
    metrics = stated["model-index"][0]["results"][0]["metrics"]
    score = paucal.evaluate(run).score()
    accuracy = next(metric for metric in metrics if metric["type"] == "accuracy")
    assert accuracy["value"] == pytest.approx(score.value, abs=1e-6)
    assert f"interval {score.low:.3f} to {score.high:.3f}" in accuracy["name"]
    assert "as stated by the exporter: CC0-1.0" in page


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of transformers about its own packages
def test_hub__folder_is_loaded_by_transformers_without_a_network(run, tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    folder, own = paucal.export_model(run, format="hub", output=tmp_path / "out").folder, paucal.load(run)
    config = transformers.AutoConfig.from_pretrained(folder)
    assert (config.model_type, config.id2label) == ("timm_wrapper", dict(enumerate(own.classes)))
    network = transformers.AutoModelForImageClassification.from_pretrained(folder).eval()
    batch = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(network(batch).logits.softmax(1), own.card.probabilities(own.module(batch)))
    picture = Image.linear_gradient("L").convert("RGB").resize((60, 45))
    prepared = transformers.AutoImageProcessor.from_pretrained(folder)(picture)["pixel_values"]
    torch.testing.assert_close(prepared, own.prepared([picture]), atol=0.02, rtol=0)


class TwoClassifiers(nn.Module):
    """A network whose logits are the sum of two classifiers', of which it names one."""

    def __init__(self):
        super().__init__()
        self.head, self.other = nn.Linear(3, 2), nn.Linear(3, 2)

    def get_classifier(self):
        return self.head

    def forward(self, images):
        return self.head(images.mean((2, 3))) + self.other(images.amax((2, 3)))


def test_temperature__stays_in_the_card_of_a_network_with_two_classifiers(run):
    module, card = TwoClassifiers(), paucal.load(run).card.at_temperature(2.0)
    before = {name: values.clone() for name, values in module.state_dict().items()}
    network, kept = with_temperature_in_weights(module, card)
    assert kept.temperature == 2
    assert all(torch.equal(values, before[name]) for name, values in network.state_dict().items())


def test_push__uploads_these_files_into_a_private_repository(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(huggingface_hub, "HfApi", FakeApi)
    words = ["export", str(run), "--format", "hub", "--push", "me/model", "--output"]
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    assert main([*words, str(tmp_path / "first")]) == 2
    assert f"set HF_TOKEN; then upload the files with 'hf upload me/model {tmp_path}" in capsys.readouterr().err
    assert FakeApi.calls == []
    assert sorted(path.name for path in (tmp_path / "first").iterdir())[-1] == "model.safetensors"
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "a token")
    assert main([*words, str(tmp_path / "second")]) == 0
    assert "uploaded to https://hub.example/me/model" in capsys.readouterr().out
    made, upload = FakeApi.calls
    assert made == ("me/model", {"private": True, "exist_ok": True})
    assert upload["folder_path"] == tmp_path / "second"
    assert sorted(upload["allow_patterns"]) == ["README.md", "config.json", "model.json", "model.safetensors"]


def test_push__that_fails_says_how_to_upload_the_files_that_are_written(run, tmp_path, monkeypatch, capsys):
    def refuse(self, repository, **options):
        raise ConnectionError("no network")

    monkeypatch.setattr(huggingface_hub, "HfApi", FakeApi)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "a token")
    folder = tmp_path / "out"
    words = [
        "export",
        str(run),
        "--format",
        "hub",
        "pt2",
        "--push",
        "me/model",
        "--output",
        str(folder),
        "--images",
        "9",
    ]
    with monkeypatch.context() as without_network:
        without_network.setattr(FakeApi, "create_repo", refuse)
        assert main(words) == 2
    shown = capsys.readouterr()
    assert f"(no network); the files are in {folder}: upload them with 'hf upload me/model {folder}" in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out.endswith(f"wrote model.pt2, {', '.join(HUB_FILES)}, export.json to {folder}\n")
    assert set(json.loads((folder / "export.json").read_text())["comparisons"]) == {"model.pt2"}
    assert '<td class="name">model.pt2</td>' in (run / "report.html").read_text()

    FakeApi.calls.clear()
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert main(words) == 0
    assert "uploaded to https://hub.example/me/model" in capsys.readouterr().out
    assert FakeApi.calls[1]["allow_patterns"] == HUB_FILES
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before

    FakeApi.calls.clear()
    (folder / "README.md").write_text("of another model")
    assert main(words) == 2
    assert "is not empty" in capsys.readouterr().err
    assert FakeApi.calls == []


def test_push__without_the_format_is_refused(run, capsys):
    assert main(["export", str(run), "--format", "safetensors", "--push", "me/model"]) == 2
    assert "add --format hub" in capsys.readouterr().err
