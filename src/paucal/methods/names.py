"""The methods and extra losses by name, each in one line, for help texts and shell completion; imports nothing slow."""

from collections.abc import Mapping

TRAINING_METHODS = {
    "supervised": "cross-entropy on the labels",
    "drloc": "cross-entropy with dense relative localization",
    "token-labeling": "a teacher's label for every token, from --labels",
    "relabel": "a teacher's label for the visible part of the image, from --labels",
}
EXTRA_LOSSES = {
    "drloc": "predict the offset between two positions of the feature grid",
    "locality": "the outputs of the blocks imitate the feature maps of a small CNN (--guide)",
    "distillation": "learn the class or the probabilities that --teacher predicts for the same view",
}
PRETRAINING_METHODS = {
    "self-distillation": "a student learns the outputs of its own moving average: EsViT, and DINO with --tasks view",
    "lejepa": "views predict their common centre, with normally distributed embeddings: LeJEPA, without a teacher",
    "visreg": "like lejepa, with sorted projections instead of the test of normality: VISReg",
    "diet": "every image is its own class: DIET, and DIET-CP from pretrained weights",
}


def describe_names(summaries: Mapping[str, str]) -> str:
    """Return names and summaries as one text for the help of a flag."""
    return "; ".join(f"{name} ({summary})" for name, summary in summaries.items())
