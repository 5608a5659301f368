"""The files of an exported classifier for timm and the Hugging Face Hub, with the page that describes the model."""

import filecmp
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from paucal.evaluation.results import read_report
from paucal.export.hub import HubFacts
from paucal.export.timm_folder import model_page, with_temperature_in_weights, write_timm_folder
from paucal.models.saved import read_card
from paucal.models.trained import TrainedModel
from paucal.models.weights.local import licence_of
from paucal.runner.starts import NONE
from paucal.runs import RunFolder
from paucal.runs.folder import PUBLISHED_WEIGHTS, iterate_ancestry
from paucal.verbs.export.settings import ExportSettings
from paucal.verbs.export.subjects import ExportableClassifier

NO_INITIAL_WEIGHTS = "none: the initial weights were random"  # shown in place of the licence of the initial weights


def write_timm_files(
    path: Path, run: RunFolder, subject: ExportableClassifier, settings: ExportSettings, for_hub: bool
) -> list[Path]:
    """Write the files of `--format hub`, or of `--format safetensors` if not `for_hub`, and return their paths."""
    path.mkdir(parents=True, exist_ok=True)
    network, card = subject.network, subject.card
    if for_hub:
        network, card = with_temperature_in_weights(network, card)
    page = _model_page(run, replace(subject.model, card=card), settings, for_hub)
    return write_timm_folder(path, network, card, page)


def find_hub_files(path: Path, run: RunFolder, subject: ExportableClassifier, settings: ExportSettings) -> list[Path]:
    """Return the files of `--format hub` in a folder; [] if any differs from the file that would be written now."""
    with TemporaryDirectory(prefix="paucal-export-") as temporary:
        names = [file.name for file in write_timm_files(Path(temporary), run, subject, settings, True)]
        equal_names, _, _ = filecmp.cmpfiles(temporary, path, names, shallow=False)
    return [path / name for name in names] if len(equal_names) == len(names) else []


def licence_of_initial_weights(run: RunFolder) -> str | None:
    """Return the licence of the published weights with which the training of a run or of its ancestors began.

    Returns `NO_INITIAL_WEIGHTS` if the initial weights were random, and None if their licence is unknown, because they
    came from a file or an earlier run is missing.
    """
    for ancestor in iterate_ancestry(run):
        if not ancestor.config.is_file():
            return None
        init = ancestor.settings.get("init")
        if init in (None, NONE):
            return NO_INITIAL_WEIGHTS
        if init in PUBLISHED_WEIGHTS:
            return licence_of(read_card(ancestor).backbone.name)
    return None


def _model_page(run: RunFolder, model: TrainedModel, settings: ExportSettings, for_hub: bool) -> str:
    summary = run.read_json("summary.json") if run.finished else {}
    weights_source = run.read_json("init.json").get("source") if (run.path / "init.json").is_file() else None
    metrics_file = run.evaluation("test") / "metrics.json"
    metrics_name = str(metrics_file.relative_to(run.path))
    report = read_report(run.read_json(metrics_name)) if metrics_file.is_file() else None
    licence = licence_of_initial_weights(run)
    hub = None
    if for_hub:
        data = Path(str(summary.get("data", "images"))).name  # without the path on this machine
        summary |= {"data": data}
        hub = HubFacts(None if licence == NO_INITIAL_WEIGHTS else licence, data, settings.data_licence, report)
    return model_page(model.card, str(weights_source or "random weights"), licence, summary, report, hub)
