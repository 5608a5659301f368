"""How widely the heads of one model or several look, over a set of images: `--show entropy`."""

import csv
import io
from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure
from torch import Tensor

from paucal.explain.attention.heads import entropy_over, most_entropy
from paucal.explain.attention.reading import read_attention
from paucal.explain.figures.attention import entropy_figure, ranked_entropy_figure
from paucal.models.named import open_named
from paucal.models.trained import TrainedModel
from paucal.verbs.explain.inputs import Viewed, stacked, view_of


class Entropies:
    """Mean entropies of all heads, added up batch by batch.

    Args:
        model: Model that the images are prepared for.
        against: Names of others; each sees the same parts of the images at its own size.
        device: Device of the others.

    Attributes:
        images: Number of images added so far.
    """

    def __init__(self, model: TrainedModel, against: Sequence[str], device: str) -> None:
        self.models = {model.card.backbone.name: model}
        for name in against:
            self.models[_unused(name, self.models)] = open_named(name, device, setting="--against")
        self._first = model
        self._sums: dict[str, dict[str, Tensor]] = {name: {} for name in self.models}
        self._most: dict[str, dict[str, float]] = {}
        self.images = 0

    def add(self, batch: Sequence[Viewed]) -> None:
        """Add a batch.

        Raises:
            UserError: a model has no attention between cells.
        """
        images = stacked(batch, self._first)
        for name, model in self.models.items():
            fed, sums = view_of(images, self._first, model), self._sums[name]
            for layer, bits in entropy_over(model.module, [fed]).items():
                sums[layer] = sums.get(layer, 0) + bits.cpu() * len(batch)
            if name not in self._most:
                self._most[name] = {one.layer: most_entropy(one) for one in read_attention(model.module, fed[:1])}
        self.images += len(batch)

    def means(self) -> dict[str, dict[str, Tensor]]:
        """Return model -> layer -> (heads,) bits."""
        return {name: {layer: s / self.images for layer, s in sums.items()} for name, sums in self._sums.items()}

    def figures(self) -> Iterator[tuple[str, Figure]]:
        """Yield the heads of every layer for each model, and the last layers of several models side by side."""
        means = self.means()
        for name, layers in means.items():
            label = "entropy" if len(means) == 1 else f"entropy_{name}"
            yield label, entropy_figure(layers, self._most[name], self.images)
        if len(means) > 1:
            last = {name: list(layers.values())[-1] for name, layers in means.items()}
            most = {name: list(self._most[name].values())[-1] for name in means}
            yield "entropy_ranked", ranked_entropy_figure(last, most, self.images)

    def table(self) -> str:
        """Return all numbers as CSV: model, layer, head (from 1), bits, and the bits of even attention."""
        written = io.StringIO()
        rows = csv.writer(written, lineterminator="\n")
        rows.writerow(("model", "layer", "head", "bits", "even_bits"))
        for name, layers in self.means().items():
            for layer, bits in layers.items():
                even = f"{self._most[name][layer]:.6g}"
                rows.writerows((name, layer, head, f"{b:.6g}", even) for head, b in enumerate(bits.tolist(), start=1))
        return written.getvalue()


def _unused(name: str, taken: dict[str, TrainedModel]) -> str:
    found, number = name, 2
    while found in taken:
        found, number = f"{name} ({number})", number + 1
    return found
