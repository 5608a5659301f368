"""Choice of timm's weights of a model, for recipes that fine-tune weights trained only on ImageNet-1k."""

import timm

from paucal.types import UserError

# timm's tags consist of words joined by "_", such as "augreg_in1k".
IMAGENET_WORD = "in1k"  # word in the tag of weights that were trained on ImageNet-1k
# Weights are excluded if their tag has one of these words, since they were trained on further images or texts,
# fine-tuned ("ft", "lc"), or trained without labels ("ijepa").
EXCLUDED_TAG_WORDS = {
    *("ft", "lc", "in12k", "in21k", "in22k", "jft", "ig1b", "yfcc100m", "m30m", "m38m", "6m", "laion2b", "laiona"),
    *("openai", "clip", "webli", "wsl", "ssl", "swsl", "ssld", "seer", "swag", "ns", "mim", "ijepa", "bamboo"),
}
TORCHVISION_TAG = "tv_in1k"  # preferred tag, since papers used torchvision's weights of ResNets


def imagenet_alone(model: str, recipe: str) -> str:
    """Return the name of a timm model with the tag of weights that were trained on the labels of ImageNet-1k only.

    The default weights of many models were trained on more images, such as ImageNet-21k for ViT-B/16. A name that
    already has a tag, or for which timm has no weights, is returned unchanged. `recipe` is the recipe's name, for the
    error message.

    Example:
        >>> imagenet_alone("vit_base_patch16_224", "an example")
        'vit_base_patch16_224.augreg_in1k'
    """
    if "." in model or not timm.is_model(model):
        return model
    published = [name.partition(".")[2] for name in timm.list_models(f"{model}.*", pretrained=True)]
    config = timm.get_pretrained_cfg(model)
    default = config.tag if config is not None else None
    matching_tags = [tag for tag in published if _is_imagenet_alone(tag or "")]
    if not published or (default in matching_tags and TORCHVISION_TAG not in matching_tags):
        return model
    if not matching_tags:
        raise UserError(
            f"--recipe {recipe} needs weights trained on ImageNet-1k alone, but timm has no such weights for {model}. "
            f"Choose another --model, use other weights with --model {model}.{default or published[0]}, or give --init."
        )
    return f"{model}.{TORCHVISION_TAG if TORCHVISION_TAG in matching_tags else matching_tags[0]}"


def _is_imagenet_alone(tag: str) -> bool:
    tag_words = set(tag.split("_"))
    return IMAGENET_WORD in tag_words and not tag_words & EXCLUDED_TAG_WORDS
