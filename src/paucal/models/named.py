"""Opens runs, weights files and timm models by name, as trained models or as frozen backbones to evaluate."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, overload

import timm
import torch

from paucal.backbones import BackboneSpec, FeatureBackbone
from paucal.backbones.names import nearest_model_names, timm_config
from paucal.backbones.weights.adapt import is_position_embedding, position_grid
from paucal.backbones.weights.checkpoints import checkpoint_preprocessing, find_program
from paucal.backbones.weights.load_report import percent_rounded_down
from paucal.backbones.weights.start import StartWeights, pick_network, start_from
from paucal.models.preprocessing import Preprocessing
from paucal.models.published import model_of_file, published_card, read_timm
from paucal.models.trained import TrainedModel, load_trained, stored_card, usable_device
from paucal.models.weights.local import input_of_weights
from paucal.runs import RunFolder, open_model_folder
from paucal.runs.folder import find_run_of_file
from paucal.runs.weights import read_untrusted
from paucal.types import UserError, height_and_width

RANDOM_NAME = "random weights"  # name of the baseline in tables


@overload
def find_named(name: str, setting: str = "") -> RunFolder | str: ...


@overload
def find_named(name: str, setting: str = "", *, files: Literal[True]) -> RunFolder | Path | str: ...


def find_named(name: str, setting: str = "", *, files: bool = False) -> RunFolder | Path | str:
    """Return the run, the timm model or, with `files`, the weights file that a name refers to.

    The name is a run folder, a folder of runs (for the newest run), a file, or the name of a timm model; an existing
    path takes precedence. `setting` is the flag with which the user gave the name, such as "--teacher", for error
    messages.
    """
    path = Path(name).expanduser()
    if files and path.is_file():
        return path
    if path.exists():
        return open_model_folder(path)
    if timm.is_model(name):
        timm_config(name)  # raises a UserError for an unknown tag
        return name
    near_text = ", ".join(nearest_model_names(name))
    raise UserError(
        f"{setting and f'{setting}: '}{name!r} is neither a run folder{', nor a weights file,' if files else ''} nor a "
        f"timm model{f' (similar: {near_text})' if near_text else ''}: give a run such as runs/1,"
        f"{' a weights file,' if files else ''} or a model that 'paucal models' lists."
    )


def find_run(name: str) -> RunFolder | None:
    """Return the run in the folder with this path; None if there is no such folder."""
    path = Path(name).expanduser()
    return open_model_folder(path) if path.is_dir() else None


def open_named(
    name: str, device: torch.device | str = "cpu", image_size: Sequence[int] | None = None, setting: str = ""
) -> TrainedModel:
    """Open the model of a run, or a timm model with its published weights; see `find_named` for `name` and `setting`.

    `image_size` is the side or (height, width) in pixels of the model's input; None for the model's default.
    """
    run_or_name, torch_device = find_named(name, setting), usable_device(device)
    if isinstance(run_or_name, RunFolder):
        trained = load_trained(run_or_name, device)
        card = trained.card
        if image_size is None or height_and_width(image_size) == card.backbone.image_size:
            return trained
        spec = replace(card.backbone, image_size=height_and_width(image_size), pretrained=False)
        card = replace(card, backbone=spec, preprocessing=replace(card.preprocessing, image_size=spec.image_size))
        state, grid = dict(trained.module.state_dict()), position_grid(trained.module)
        weights = StartWeights(state, str(run_or_name.path), spec.name, card.classes, grid)
    else:
        card, weights = published_card(run_or_name, image_size), read_timm(run_or_name, init=False)
    with torch.random.fork_rng(devices=[]):
        module = card.build()
    start_from(module, weights, weights.classes, head="keep")
    return TrainedModel(module.eval().to(torch_device), card, torch_device)


@dataclass(frozen=True)
class FrozenBackbone:
    """A backbone with loaded weights, and its preprocessing."""

    name: str  # short name for tables
    weights: str  # description of the weights
    spec: BackboneSpec  # spec from which the backbone was built
    backbone: FeatureBackbone  # the network, in evaluation mode
    preprocessing: Preprocessing
    random: bool = False  # whether the weights are random

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the architecture, the weights and the preprocessing."""
        description = json.dumps([self.spec.to_dict(), self.preprocessing.to_dict()], sort_keys=True)
        weights = hashlib.blake2b(digest_size=16)
        for name, value in sorted(self.backbone.model.state_dict().items()):
            weights.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            weights.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        content = description + weights.hexdigest()
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(p.numel() for p in self.backbone.model.parameters())

    @property
    def device(self) -> torch.device:
        """Device of the backbone."""
        return next(self.backbone.parameters()).device


def random_backbone(spec: BackboneSpec, seed: int) -> FeatureBackbone:
    """Build a backbone with random weights from a seed, without changing the global random state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return replace(spec, pretrained=False).build().eval()


def random_baseline(subject: FrozenBackbone, seed: int = 0) -> FrozenBackbone:
    """Return the same architecture with random weights and the same preprocessing.

    Even the features of random weights classify better than chance, so scores should be compared to this baseline.
    """
    backbone = random_backbone(subject.spec, seed).to(subject.device)
    return FrozenBackbone(
        RANDOM_NAME, f"random, seed {seed}", subject.spec, backbone, subject.preprocessing, random=True
    )


def open_frozen(
    name: str,
    device: str = "cpu",
    *,
    model: str | None = None,
    network: str | None = None,
    pretrained: bool = False,
    image_size: Sequence[int] | None = None,
    seed: int = 0,
) -> FrozenBackbone:
    """Open a backbone in evaluation mode: of a run, a weights file or a timm model; see `find_named` for `name`.

    `model` is the timm name of the model of a weights file; None to recognise the model by the file's tensors.
    `network` is the key of the network to use from a file with several networks, such as "teacher". A timm model gets
    its published weights with `pretrained`, else random weights from `seed`. `image_size` is the side or (height,
    width) in pixels; None for the model's default; it must be None for a run.
    """
    torch_device, run_file_or_name = usable_device(device), find_named(name, files=True)
    if isinstance(run_file_or_name, RunFolder):
        run = run_file_or_name
        if image_size is not None:
            raise UserError(
                f"--img-size is for files and timm models, but the image size of {run.path} is fixed: remove "
                "--img-size."
            )
        trained = load_trained(run, torch_device)
        spec = trained.card.backbone
        backbone = FeatureBackbone(trained.module, spec.image_size).eval()
        return FrozenBackbone(str(run.path), f"the run {run.path}", spec, backbone, trained.card.preprocessing)
    if isinstance(run_file_or_name, Path):
        return _open_file(run_file_or_name, model, network, image_size, torch_device)
    spec = _backbone_spec(name, image_size, pretrained)
    backbone = random_backbone(spec, seed)
    if pretrained:
        start_from(backbone.model, read_timm(name, init=False), head="fresh")
    weights = f"timm's published weights of {name}" if pretrained else f"random, seed {seed}"
    preprocessing = Preprocessing.from_image_input(spec.image_size, input_of_weights(name))
    return FrozenBackbone(name, weights, spec, backbone.to(torch_device), preprocessing, random=not pretrained)


def _open_file(
    path: Path, model: str | None, network: str | None, image_size: Sequence[int] | None, device: torch.device
) -> FrozenBackbone:
    tree, source = read_untrusted(path), f"the file {path.name}"
    card = stored_card(find_run_of_file(path))
    if card is not None and model in (None, card.backbone.name):
        size = card.backbone.image_size if image_size is None else height_and_width(image_size)
        spec, grid = replace(card.backbone, num_classes=0, image_size=size), card.backbone.oblong_grid()
    else:
        spec, grid = _backbone_spec(model or model_of_file(path, tree), image_size, pretrained=False), None
    backbone = random_backbone(spec, seed=0)
    tensors = tree if network is None else pick_network(tree, network, source)
    report = start_from(backbone.model, StartWeights(tensors, source, grid=grid))
    # Tensors that are both in `fresh` and in `unused` are in the file, but with another shape than in the model.
    if any(map(is_position_embedding, set(report.fresh) & set(report.unused))):
        height, width = spec.image_size
        raise UserError(
            f"{str(path)!r} has position embeddings that cannot be resized to {height}x{width} pixels, since their "
            "grid is not square: give the run folder, or the --img-size with which the weights were trained."
        )
    part_text = f", {report.part}" if report.part else ""
    weights = f"{source}{part_text}: {percent_rounded_down(report.share)} of the parameters of {spec.name}"
    image_input = (
        checkpoint_preprocessing(find_program(tree), spec.name) if card is None else card.preprocessing.image_input
    )
    preprocessing = Preprocessing.from_image_input(spec.image_size, image_input)
    return FrozenBackbone(path.stem, weights, spec, backbone.to(device), preprocessing)


def _backbone_spec(name: str, image_size: Sequence[int] | None, pretrained: bool) -> BackboneSpec:
    config = timm_config(name)
    if pretrained and (config is None or not config.has_weights):
        raise UserError(f"timm publishes no weights of {name}: remove --pretrained to use random weights.")
    default_size = (224, 224) if config is None else (int(config.input_size[1]), int(config.input_size[2]))
    size = default_size if image_size is None else height_and_width(image_size)
    return BackboneSpec(name, 0, image_size=size, pretrained=pretrained)
