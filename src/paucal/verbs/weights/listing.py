"""List the weights on this machine and their permitted use, without loading torch or timm."""

import os
from dataclasses import dataclass
from pathlib import Path

from paucal.models.weights import table
from paucal.models.weights.store import list_added
from paucal.models.weights.table import has_terms

HUB_FILES = ("model.safetensors", "pytorch_model.bin")  # names of weights files in the Hugging Face hub


@dataclass(frozen=True)
class ListedWeights:
    """A row of the list of weights.

    Attributes:
        name: timm name of the model, with the tag of the weights.
        place: Location of the weights: "added", "package", "cache" (the Hugging Face cache), or "" if they must be
            downloaded.
        size: Size in bytes.
        licence: Name of the licence; "see timm" for weights in the Hugging Face cache that are not in paucal's table.
        use: Commands that use the weights, as text, such as "train on a GPU".
        source: Who trained the weights and on which images; "" if unknown.
    """

    name: str
    place: str
    size: int
    licence: str
    use: str
    source: str


def list_weights() -> list[ListedWeights]:
    """Return paucal's table of weights, added weights, and timm weights in the Hugging Face cache, best first.

    Example:
        >>> [weights.name for weights in list_weights() if weights.place == "package"]  # doctest: +SKIP
        ['tf_efficientnet_lite0.in1k', 'tf_efficientnet_lite1.in1k', 'tf_efficientnet_lite2.in1k']
    """
    added_by_name, cached = {card.name: card for card in list_added()}, _in_hub_cache()
    rows = []
    for weights in table.CANDIDATES:
        use, cached_size = _permitted_use(weights.device, weights.licence), cached.pop(weights.name, None)
        place, size, licence, source = "", weights.megabytes * 10**6, weights.licence, weights.source
        if (added := added_by_name.pop(weights.name, None)) is not None:
            place, size, licence, source = "added", added.size, added.licence, added.source
        elif weights.package is not None and weights.package.path() is not None:
            place, size = "package", weights.package.size
        elif cached_size is not None:
            place, size = "cache", cached_size or size
        rows.append(ListedWeights(weights.name, place, size, licence, use, source))
    for card in added_by_name.values():
        use = _permitted_use("cpu", card.licence)
        rows.append(ListedWeights(card.name, "added", card.size, card.licence, use, card.source))
    use = "train --model"
    return rows + [ListedWeights(name, "cache", size, "see timm", use, "") for name, size in cached.items()]


def _permitted_use(device: str, licence: str) -> str:
    if has_terms(licence):
        return "train --model"
    return "train" if device == "cpu" else "train on a GPU"


def _in_hub_cache() -> dict[str, int]:
    """Return the size in bytes of each model's weights in the Hugging Face cache, by timm name."""
    hub_home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    folder = Path(os.environ.get("HF_HUB_CACHE") or os.path.join(hub_home, "hub")).expanduser()
    weights = {}
    for repository in sorted(folder.glob("models--timm--*")):
        files = [path for name in HUB_FILES for path in repository.glob(f"snapshots/*/{name}") if path.is_file()]
        if files:
            weights[repository.name.removeprefix("models--timm--")] = files[0].stat().st_size
    return weights
