"""Figures of attention and features: `--show attention`, `rollout`, `features`, `head-tokens` and `entropy`."""

from collections.abc import Callable, Iterator, Sequence

from matplotlib.figure import Figure
from torch import Tensor

from paucal.backbones.attention_layout import Token
from paucal.explain.attention.heads import entropy_over, max_entropy, view_heads
from paucal.explain.attention.maps import AttentionMap, averaged, head_token_maps
from paucal.explain.attention.reading import read_attention
from paucal.explain.attention.rollout import attention_rollout
from paucal.explain.features import feature_colours
from paucal.explain.figures.attention import (
    entropy_figure,
    features_figure,
    heads_figure,
    maps_figure,
    matrices_figure,
    queries_figure,
    ranked_entropy_figure,
)
from paucal.models.named import open_named
from paucal.models.trained import TrainedModel
from paucal.types import UserError
from paucal.verbs.explain.inputs import ExplainInput, convert_model_input, file_stem, stack_views
from paucal.verbs.explain.settings import PATCH_POSITION, ExplainSettings
from paucal.writing import csv_text

SHOWN_LAYERS = 4  # one per quarter of the depth: layers 2, 5, 8 and 11 of 12, as in figures 3 to 5 of the DHVT paper
ALL_LAYERS = "all"  # value of --layer that selects all layers
MAX_TOKENS = 900  # largest number of tokens for which the whole attention matrix is drawn
# Function that returns figures about an image, by name.
ImageView = Callable[[TrainedModel, ExplainInput, ExplainSettings], dict[str, Figure]]


def heads_view(model: TrainedModel, image: ExplainInput, settings: ExplainSettings) -> dict[str, Figure]:
    """Draw the attention from the query tokens, by default the class token or the middle patch, in each head."""
    maps = read_attention(model.module, stack_views([image], model))
    layer_indices = _layer_indices(maps, settings.layer) or [len(maps) - 1]
    figures = {}
    for index in layer_indices:
        layer, label = maps[index], "attention" if len(layer_indices) == 1 else f"attention_layer_{index + 1}"
        (rows, columns), prefix, name = layer.tokens.grid, layer.tokens.prefix, f"layer {layer.layer}"
        tokens: list[Token] = [prefix[0] if prefix else (rows // 2, columns // 2)]
        if settings.token:
            patches = [(token, PATCH_POSITION.fullmatch(token)) for token in settings.token]
            tokens = [(int(patch[1]), int(patch[2])) if patch else token for token, patch in patches]
        views = [view_heads(layer, token) for token in tokens]
        if len(tokens) == 1:
            figures[label] = heads_figure(image.picture, views[0], tokens[0], name)
        else:
            figures[label] = queries_figure(image.picture, views, tokens, name)
    return figures


def rollout_view(model: TrainedModel, image: ExplainInput, settings: ExplainSettings) -> dict[str, Figure]:
    """Draw the attention rollout of an image."""
    values = attention_rollout(model.module, stack_views([image], model))[0].cpu()
    note = "where the information in the last layer's tokens may come from, regardless of class"
    return {"rollout": maps_figure(image.picture, [values], ["attention rollout"], note, smooth=True)}


def features_figures(model: TrainedModel, batch: Sequence[ExplainInput]) -> Iterator[tuple[str, Figure]]:
    """Draw the last feature maps of images, with the same colour for similar features in all images."""
    for image, colours in zip(batch, feature_colours(model.module, stack_views(batch, model)).cpu(), strict=True):
        yield f"{file_stem(image.name)}_features", features_figure(image.picture, colours)


def head_tokens_view(model: TrainedModel, image: ExplainInput, settings: ExplainSettings) -> dict[str, Figure]:
    """Draw two figures of the DHVT paper: mean attention between all tokens, and head tokens' attention to patches."""
    maps = read_attention(model.module, stack_views([image], model))
    # By default, the middle layer of each of `SHOWN_LAYERS` groups of layers.
    middle_layers = {(2 * group + 1) * len(maps) // (2 * SHOWN_LAYERS) for group in range(SHOWN_LAYERS)}
    layer_indices = _layer_indices(maps, settings.layer) or sorted(middle_layers)
    layers = [maps[index] for index in layer_indices]
    panels = [
        (f"layer {index + 1}, head {head + 1}", values)
        for index, layer in zip(layer_indices, layers, strict=True)
        for head, values in enumerate(head_token_maps(layer)[0].cpu())
    ]
    label = "attention of each head token to the patches in its own head"
    panel_titles, panel_maps = [title for title, _ in panels], [values for _, values in panels]
    figures = {"head_tokens": maps_figure(image.picture, panel_maps, panel_titles, label)}
    if len(layers[-1].tokens) <= MAX_TOKENS:
        titles = [f"layer {index + 1}" for index in layer_indices]
        matrices = [averaged(layer)[0].cpu() for layer in layers]
        figures["averaged_attention"] = matrices_figure(matrices, layers[-1].tokens, titles)
    return figures


# Views that are drawn for one image at a time, since the attention maps of a large image take up gigabytes.
SINGLE_IMAGE_VIEWS: dict[str, ImageView] = {
    "attention": heads_view,
    "rollout": rollout_view,
    "head-tokens": head_tokens_view,
}


def _layer_indices(maps: Sequence[AttentionMap], requested: Sequence[int | str] | None) -> list[int]:
    """Return the indices of the requested layers in the order of the network; [] if `requested` is None."""
    if requested is None:
        return []
    if ALL_LAYERS in requested:
        return list(range(len(maps)))
    names = [attention.layer for attention in maps]
    index_of = {str(index + 1): index for index in range(len(maps))} | {name: index for index, name in enumerate(names)}
    for requested_name in requested:
        if str(requested_name) not in index_of:
            raise UserError(
                f"--layer is {str(requested_name)!r}; expected {ALL_LAYERS}, a number from 1 to {len(maps)}, or one of "
                f"{', '.join(names)}."
            )
    return sorted({index_of[str(requested_name)] for requested_name in requested})


class EntropyAccumulator:
    """Mean entropies of the attention of all heads over a set of images, accumulated batch by batch.

    The images are preprocessed for `model`. Each of the other models, which are opened on `device`, gets the same parts
    of the images, resized to its own input size.
    """

    def __init__(self, model: TrainedModel, compared_models: Sequence[str], device: str) -> None:
        self.models = {model.card.backbone.name: model}
        for name in compared_models:
            unique_name, number = name, 2
            while unique_name in self.models:
                unique_name, number = f"{name} ({number})", number + 1
            self.models[unique_name] = open_named(name, device, setting="--against")
        self._first = model
        self._sums: dict[str, dict[str, Tensor]] = {name: {} for name in self.models}
        self._uniform_bits: dict[str, dict[str, float]] = {}
        self.images = 0  # number of images added so far

    def add(self, batch: Sequence[ExplainInput]) -> None:
        """Add the entropies for a batch of images."""
        images = stack_views(batch, self._first)
        for name, model in self.models.items():
            inputs, totals = convert_model_input(images, self._first, model), self._sums[name]
            for layer, bits in entropy_over(model.module, [inputs]).items():
                totals[layer] = totals.get(layer, 0) + bits.cpu() * len(batch)
            if name not in self._uniform_bits:
                layers = read_attention(model.module, inputs[:1])
                self._uniform_bits[name] = {attention.layer: max_entropy(attention) for attention in layers}
        self.images += len(batch)

    def means(self) -> dict[str, dict[str, Tensor]]:
        """Return the (heads,) mean entropies in bits, by model name and layer name."""
        return {
            name: {layer: total / self.images for layer, total in totals.items()} for name, totals in self._sums.items()
        }

    def figures(self) -> Iterator[tuple[str, Figure]]:
        """Yield a figure of all heads for each model and, for several models, a figure of all models' last layers."""
        means = self.means()
        for name, layers in means.items():
            label = "entropy" if len(means) == 1 else f"entropy_{name}"
            yield label, entropy_figure(layers, self._uniform_bits[name], self.images)
        if len(means) > 1:
            last_layers = {name: list(layers.values())[-1] for name, layers in means.items()}
            uniform_bits = {name: list(self._uniform_bits[name].values())[-1] for name in means}
            yield "entropy_ranked", ranked_entropy_figure(last_layers, uniform_bits, self.images)

    def table(self) -> str:
        """Return the mean entropies as CSV: model, layer, head (from 1), bits, and the bits of uniform attention."""
        rows = [
            (name, layer, head, f"{head_bits:.6g}", f"{self._uniform_bits[name][layer]:.6g}")
            for name, layers in self.means().items()
            for layer, bits in layers.items()
            for head, head_bits in enumerate(bits.tolist(), start=1)
        ]
        return csv_text(("model", "layer", "head", "bits", "even_bits"), *rows)
