"""A backbone to judge, from what a person names it by: a run, a weights file, or a timm model."""

from collections.abc import Sequence
from pathlib import Path

import timm
import torch

from paucal.backbones import BackboneSpec, FeatureBackbone
from paucal.backbones.weights.inputs import input_of_file, input_of_timm, program_of
from paucal.backbones.weights.load_report import rounded_down
from paucal.evaluation.protocols.subjects import Subject, random_backbone
from paucal.models.devices import usable_device
from paucal.models.named import find_named
from paucal.models.preprocessing import Preprocessing
from paucal.models.published import load_published, model_of_file
from paucal.models.saved import stored_card
from paucal.models.trained import load_trained
from paucal.runs import RunFolder, open_model
from paucal.runs.folder import run_around
from paucal.runs.weights import read_foreign
from paucal.settings.options import check_size
from paucal.types import UserError, height_and_width


def find_run(name: str) -> RunFolder | None:
    """Return the run that a name means, or None where it is a file or no path at all.

    Raises:
        UserError: it is a folder, but no run.
    """
    path = Path(name).expanduser()
    return open_model(path) if path.is_dir() else None


def open_subject(
    name: str,
    device: str = "cpu",
    *,
    model: str | None = None,
    network: str | None = None,
    pretrained: bool = False,
    image_size: Sequence[int] | None = None,
    seed: int = 0,
) -> Subject:
    """Open a backbone in evaluation mode.

    Args:
        name: a run folder, a weights file, or the name of a timm model. A path that exists wins over a name.
        device: where to judge it.
        model: timm name of a weights file's model; None to find it out.
        network: of several networks in a file, which ("teacher", "student", ...).
        pretrained: whether a timm model gets timm's published weights; random ones otherwise.
        image_size: side or (height, width) in pixels; None for the model's own. A run has its own in any case.
        seed: of random weights.

    Raises:
        UserError: there is nothing of that name, its weights do not fit, or torch cannot use the device.
    """
    target, found = usable_device(device), find_named(name, files=True)
    if isinstance(found, RunFolder):
        return _of_run(found, target, image_size)
    if isinstance(found, Path):
        return _of_file(found, model, network, image_size, target)
    spec = _spec(name, image_size, pretrained)
    backbone = spec.build().eval() if pretrained else random_backbone(spec, seed)
    weights = f"timm's published weights of {name}" if pretrained else f"random, seed {seed}"
    fed = Preprocessing.as_tested(spec.image_size, input_of_timm(name))
    return Subject(name, weights, spec, backbone.to(target), fed, random=not pretrained)


def _of_run(run: RunFolder, device: torch.device, image_size: Sequence[int] | None) -> Subject:
    if image_size is not None:
        raise UserError(f"--img-size is for files and timm models; {run.path} has a size of its own, so leave it out.")
    trained = load_trained(run, device)
    spec = trained.card.backbone
    backbone = FeatureBackbone(trained.module, spec.image_size).eval()
    return Subject(str(run.path), f"the run {run.path}", spec, backbone, trained.card.preprocessing)


def _of_file(
    path: Path, model: str | None, network: str | None, image_size: Sequence[int] | None, device: torch.device
) -> Subject:
    tree = read_foreign(path)
    name = model or model_of_file(path, tree)
    spec = _spec(name, image_size, pretrained=False)
    backbone = random_backbone(spec, seed=0)
    report = load_published(backbone.model, path, network)
    part = f", {report.part}" if report.part else ""
    weights = f"the file {path.name}{part}: {rounded_down(report.share)} of the parameters of {name}"
    card = stored_card(run_around(path))  # of a file that is the model or a saved state of a run
    tested = input_of_file(program_of(tree), name) if card is None else card.preprocessing.tested
    fed = Preprocessing.as_tested(spec.image_size, tested)
    return Subject(path.stem, weights, spec, backbone.to(device), fed)


def _spec(name: str, image_size: Sequence[int] | None, pretrained: bool) -> BackboneSpec:
    check_size(image_size)
    config = timm.get_pretrained_cfg(name, allow_unregistered=True)
    if pretrained and (config is None or not config.has_weights):
        raise UserError(f"timm publishes no weights of {name}: leave --pretrained out to judge it with random ones.")
    own = (224, 224) if config is None else (int(config.input_size[1]), int(config.input_size[2]))
    size = own if image_size is None else height_and_width(image_size)
    return BackboneSpec(name, 0, image_size=size, pretrained=pretrained)
