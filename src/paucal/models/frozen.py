"""Opens frozen backbones for evaluation: from a run, a weights file or timm, or with random weights as a baseline."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import nn

from paucal.backbones import BackboneSpec, FeatureBackbone
from paucal.backbones.names import timm_config
from paucal.backbones.weights.adapt import is_position_embedding
from paucal.backbones.weights.inputs import checkpoint_preprocessing, find_program
from paucal.backbones.weights.load_report import percent_rounded_down
from paucal.backbones.weights.start import StartWeights, pick_network, start_from
from paucal.models.devices import usable_device
from paucal.models.named import find_named
from paucal.models.preprocessing import Preprocessing
from paucal.models.published import model_of_file, read_timm
from paucal.models.saved import stored_card
from paucal.models.trained import load_trained
from paucal.models.weights.local import input_of_weights
from paucal.runs import RunFolder
from paucal.runs.folder import find_run_of_file
from paucal.runs.weights import read_untrusted
from paucal.types import UserError, height_and_width

RANDOM_NAME = "random weights"  # name of the baseline in tables


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
        content = description + weights_fingerprint(self.backbone.model)
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(p.numel() for p in self.backbone.model.parameters())

    @property
    def device(self) -> torch.device:
        """Device of the backbone."""
        return next(self.backbone.parameters()).device


def weights_fingerprint(model: nn.Module) -> str:
    """Return a hash of a model's state dict: names, dtypes, shapes and values."""
    digest = hashlib.blake2b(digest_size=16)
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


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
    """Open a backbone in evaluation mode.

    Args:
        name: Run folder, weights file, or name of a timm model. An existing path takes precedence over a name.
        device: Device for the backbone.
        model: timm name of the model of a weights file; None to recognise the model by the file's tensors.
        network: Key of the network to use from a file with several networks, such as "teacher" or "student".
        pretrained: Whether to load timm's published weights into a timm model, instead of using random weights.
        image_size: Side or (height, width) in pixels; None for the model's default; must be None for a run.
        seed: Seed of the random weights.
    """
    torch_device, run_file_or_name = usable_device(device), find_named(name, files=True)
    if isinstance(run_file_or_name, RunFolder):
        return _open_run(run_file_or_name, torch_device, image_size)
    if isinstance(run_file_or_name, Path):
        return _open_file(run_file_or_name, model, network, image_size, torch_device)
    spec = _backbone_spec(name, image_size, pretrained)
    backbone = random_backbone(spec, seed)
    if pretrained:
        start_from(backbone.model, read_timm(name, init=False), head="fresh")
    weights = f"timm's published weights of {name}" if pretrained else f"random, seed {seed}"
    preprocessing = Preprocessing.from_image_input(spec.image_size, input_of_weights(name))
    return FrozenBackbone(name, weights, spec, backbone.to(torch_device), preprocessing, random=not pretrained)


def _open_run(run: RunFolder, device: torch.device, image_size: Sequence[int] | None) -> FrozenBackbone:
    if image_size is not None:
        raise UserError(
            f"--img-size is for files and timm models, but the image size of {run.path} is fixed: remove --img-size."
        )
    trained = load_trained(run, device)
    spec = trained.card.backbone
    backbone = FeatureBackbone(trained.module, spec.image_size).eval()
    return FrozenBackbone(str(run.path), f"the run {run.path}", spec, backbone, trained.card.preprocessing)


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
