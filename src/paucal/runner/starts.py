"""Choose the pretrained weights of a run without --init: those on this machine, else some that can be downloaded."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import timm

from paucal.backbones.weights.trained import TRAINED, Trained, at_hand, can_be_fetched, packaged
from paucal.methods.training import method_of
from paucal.methods.training_settings import TrainSettings
from paucal.runs.ancestry import AUTO

TINY = 24  # pixels; pretrained weights do not help on images with a shorter side below
HELP = 'to use pretrained weights: pip install "paucal[weights]" (64 MB, Apache-2.0), or a network'


@dataclass(frozen=True)
class Choice:
    """Pretrained weights to start from.

    Attributes:
        candidates: timm names of the weights, best guess first; empty to start from scratch.
        why: Reason to show beside the setting.
        remark: Sentence to print, or "".
    """

    candidates: tuple[str, ...]
    why: str
    remark: str = ""


def may_choose_start(settings: TrainSettings, given: Mapping[str, str]) -> bool:
    """Return whether a run may choose its pretrained weights itself.

    It may if neither a start nor a paper's recipe was given, or if the start is "auto", as in the config of a run that
    chose its weights.
    """
    if settings.init is not None:
        return settings.init == AUTO
    said = {"init", "init_head", "init_network", "attention_init", "model_args"} & set(given)
    return not said and settings.recipe is None and not method_of(settings).label_maps


def choose(model: str | None, device: str, side: int) -> Choice:
    """Look for pretrained weights in installed packages, in the cache, and briefly on the network.

    Args:
        model: timm name that the user asked for; None for any.
        device: Name "cpu", "cuda" or "mps".
        side: Median of the images' shorter sides in pixels.
    """
    if side < TINY:
        return Choice((), f"images of {side} pixels are too small for trained weights")
    return _choose_named(model) if model is not None else _choose_any(device)


def _choose_named(model: str) -> Choice:
    carried = packaged(model)
    if carried is not None:
        return Choice((model,), f"trained weights in the package {carried.package and carried.package.distribution}")
    config = timm.get_pretrained_cfg(model, allow_unregistered=True)
    if config is None or not config.has_weights:
        return Choice((), f"no trained weights of {model} are published")
    one = Trained(model, config.license or "licence not stated", 0, "as timm publishes them")
    if at_hand(one):
        return Choice((model,), f"trained weights in the cache of this machine ({one.licence})")
    problem = can_be_fetched(one)
    if problem is None:
        return Choice((model,), f"trained weights, fetched from {config.hf_hub_id or config.url} ({one.licence})")
    return Choice((), "no trained weights at hand", f"no trained weights of {model}: {problem}; it begins from scratch")


def _choose_any(device: str) -> Choice:
    suited = [one for one in TRAINED if one.device == device] + [one for one in TRAINED if one.device == "cpu"]
    suited = list(dict.fromkeys(suited))
    here = [(one, where) for one in suited if (where := at_hand(one))]
    if here:
        told = "; ".join(f"{one.describe()} (from a {where})" for one, where in here)
        return Choice(tuple(one.name for one, _ in here), f"trained weights on this machine: {told}")
    problem = ""
    for one in suited[:1]:
        problem = can_be_fetched(one) or ""
        if not problem:
            return Choice((one.name,), f"trained weights, fetched: {one.describe()}")
    return Choice(
        (),
        "no trained weights at hand",
        f"no trained weights are on this machine, and none can be fetched ({problem}): this run begins from scratch, "
        f"which takes many more images and hours to become good; {HELP}",
    )


def started_from(settings: TrainSettings, candidate: str) -> TrainSettings:
    """Return settings that start from a candidate's weights."""
    return replace(settings, init=AUTO, model=candidate)
