"""The choice of timm's weights for recipes that start from weights of ImageNet-1k alone."""

import timm

from paucal.types import UserError

LABELS = "in1k"
# Words in a tag: other images or texts, weights tuned from earlier ones ("ft", "lc"), or no labels at all ("ijepa").
MORE = {
    *("ft", "lc", "in12k", "in21k", "in22k", "jft", "ig1b", "yfcc100m", "m30m", "m38m", "6m", "laion2b", "laiona"),
    *("openai", "clip", "webli", "wsl", "ssl", "swsl", "ssld", "seer", "swag", "ns", "mim", "ijepa", "bamboo"),
}
TORCHVISION = "tv_in1k"  # the weights of ResNets at the time of the papers


def imagenet_alone(model: str, recipe: str) -> str:
    """Return the name of a timm model with a tag of weights trained on the labels of ImageNet-1k only.

    Many default tags were trained on more: ViT-B/16's on ImageNet-21k. A name with a tag is returned as it is, and so
    is the name of a model without any weights, which is reported when weights are read.

    Example:
        >>> imagenet_alone("vit_base_patch16_224", "an example")
        'vit_base_patch16_224.augreg_in1k'
    """
    if "." in model or not timm.is_model(model):
        return model
    published = [name.partition(".")[2] for name in timm.list_models(f"{model}.*", pretrained=True)]
    config = timm.get_pretrained_cfg(model)
    default = config.tag if config is not None else None
    matching_tags = [tag for tag in published if _is_alone(tag or "")]
    if not published or (default in matching_tags and TORCHVISION not in matching_tags):
        return model
    if not matching_tags:
        raise UserError(
            f"--recipe {recipe} needs weights trained on ImageNet-1k alone; timm has none for {model}: choose another "
            f"--model, name other weights, as --model {model}.{default or published[0]} does, or give --init."
        )
    return f"{model}.{TORCHVISION if TORCHVISION in matching_tags else matching_tags[0]}"


def _is_alone(tag: str) -> bool:
    tag_words = set(tag.split("_"))
    return LABELS in tag_words and not tag_words & MORE
