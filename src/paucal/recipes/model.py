"""From settings to the description of a backbone."""

from typing import Any

import yaml

from paucal.backbones.sizing import fit_to_image_size
from paucal.backbones.spec import BackboneSpec
from paucal.recipes.settings import TrainSettings
from paucal.types import UserError


def image_size(settings: TrainSettings) -> tuple[int, int]:
    """Return (height, width) in pixels."""
    sides = settings.img_size or [224]
    return sides[0], sides[-1]


def backbone_spec(settings: TrainSettings, n_classes: int) -> tuple[BackboneSpec, list[str]]:
    """Describe the backbone, with constructor arguments that suit the image size.

    Arguments that the user gives win over chosen ones.

    Returns:
        The description, and sentences on what was chosen or is doubtful.

    Raises:
        UserError: the name is unknown, or the backbone cannot take images of that size.
    """
    size, name = image_size(settings), settings.model or ""
    given = model_arguments(settings.model_args or [])
    sizing = fit_to_image_size(name, size, given)
    notes = [text for text in (sizing.reason, sizing.warning) if text]
    # Stored with the run, so that it can be rebuilt even if a later version chooses otherwise.
    chosen = {key: value for key, value in sizing.arguments.items() if key != "img_size"}
    return BackboneSpec(name, n_classes, image_size=size, arguments={**chosen, **given}), notes


def model_arguments(words: list[str]) -> dict[str, Any]:
    """Read NAME=VALUE words; values are read as YAML, so numbers, true and [1, 2] mean what they look like.

    Raises:
        UserError: a word is not of that form.

    Example:
        >>> model_arguments(["patch_size=2", "depths=[2, 2]", "qkv_bias=false"])
        {'patch_size': 2, 'depths': [2, 2], 'qkv_bias': False}
    """
    arguments = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            raise UserError(f"--model-args: {word!r} is not of the form NAME=VALUE, for instance patch_size=4.")
        try:
            arguments[name] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise UserError(f"--model-args: the value of {word!r} cannot be read; quote it.") from None
    return arguments
