"""A frozen backbone that is judged, and the random one beside it."""

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import nn

from paucal.backbones.features import FeatureBackbone
from paucal.backbones.spec import BackboneSpec
from paucal.models.preprocessing import Preprocessing

FLOOR = "random weights"


@dataclass(frozen=True)
class Subject:
    """A backbone with its weights and how it is fed.

    Attributes:
        name: column of the table.
        weights: where the weights come from, for people.
        spec: how the backbone is built.
        backbone: in evaluation mode, on the device where it is judged.
        preprocessing: from an image to its input.
        random: whether the weights are as built, trained by nobody.
    """

    name: str
    weights: str
    spec: BackboneSpec
    backbone: FeatureBackbone
    preprocessing: Preprocessing
    random: bool = False

    @cached_property
    def fingerprint(self) -> str:
        """What tells its features from those of any other model or preprocessing."""
        built = json.dumps([self.spec.to_dict(), self.preprocessing.to_dict()], sort_keys=True)
        return hashlib.blake2b((built + weights_fingerprint(self.backbone.model)).encode(), digest_size=16).hexdigest()

    @property
    def parameters(self) -> int:
        """Parameters of the model."""
        return sum(p.numel() for p in self.backbone.model.parameters())

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return next(self.backbone.parameters()).device


def weights_fingerprint(model: nn.Module) -> str:
    """Return a digest of every entry of a model's state: names, types, shapes and values."""
    digest = hashlib.blake2b(digest_size=16)
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def random_backbone(spec: BackboneSpec, seed: int) -> FeatureBackbone:
    """Build a backbone with fresh weights from a seed; no global random state is touched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return replace(spec, pretrained=False).build().eval()


def floor_of(subject: Subject, seed: int = 0) -> Subject:
    """Return the same architecture with random weights, fed alike: what the architecture and the pixels give alone.

    Even random features tell classes apart better than guessing does, so a score means something only above this.
    """
    backbone = random_backbone(subject.spec, seed).to(subject.device)
    return Subject(FLOOR, f"random, seed {seed}", subject.spec, backbone, subject.preprocessing, random=True)
