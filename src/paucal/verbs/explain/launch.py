"""`paucal.explain_images`: draw explanations of a model's predictions, attention and features."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from PIL import Image

from paucal.data.arguments import ImageInMemory, list_sources, path_text
from paucal.explain.attention.reading import require_attention
from paucal.explain.attribution.methods import METHODS
from paucal.explain.figures.attribution import AttributedImage, attribution_figure, contact_sheet
from paucal.explain.prepared import to_full_precision
from paucal.models.named import open_named
from paucal.models.trained import TrainedModel
from paucal.runner.console import Console, RecordingConsole
from paucal.runner.inference import check_batch_memory
from paucal.settings.options import check_ranges
from paucal.settings.values import settings_from_keywords, with_settings_signature
from paucal.types import UserError
from paucal.verbs.explain.attention import SINGLE_IMAGE_VIEWS, EntropyAccumulator, features_figures
from paucal.verbs.explain.attribution import choose_method, class_numbers, explain_batch
from paucal.verbs.explain.cells import matches_figure, open_localization_view, open_tokens_view
from paucal.verbs.explain.inputs import ExplainInput, file_stem, read_images
from paucal.verbs.explain.settings import VIEWS, ExplainSettings, require_used_settings
from paucal.verbs.explain.writing import FigureWriter, choose_output_folder
from paucal.wording import counted, did_you_mean

Source = str | os.PathLike[str] | Image.Image
MAX_SHEET_IMAGES = 48  # number of images on a contact sheet
NEEDS_ATTENTION = {"attention", "rollout", "head-tokens", "entropy"}  # views that need a model with attention


@dataclass(frozen=True)
class Explanations:
    """Figure files that `paucal explain` has written.

    Attributes:
        folder: Folder of the figures.
        pictures: Paths of the figure files, in the order in which they were drawn.
        method: Attribution method; None if no attribution was drawn.
        said: Lines that the command line prints.
    """

    folder: Path
    pictures: tuple[Path, ...]
    method: str | None
    said: tuple[str, ...] = ()


@with_settings_signature(ExplainSettings)
def explain_images(
    model: TrainedModel | str | os.PathLike[str], images: Source | Sequence[Source], /, **settings: Any
) -> Explanations:
    """Draw explanations of a model's predictions for images; the same as `paucal explain`.

    To get explanations as arrays, use `paucal.explain`.

    Args:
        model: A run folder, the name of a timm model with published weights, or a model loaded with `paucal.load`.
        images: One or several image files, folders, Parquet files, patterns, PIL images or arrays.
        **settings: Any field of `paucal.verbs.explain.settings.ExplainSettings`.

    Raises:
        UserError: The model, a class, a layer or an image does not exist, or the model does not support a view.
        TypeError: A setting does not exist.

    Example:
        >>> paucal.explain_images("runs/1", "cat.jpg", show=["attribution", "attention"])  # doctest: +SKIP
    """
    sources = list_sources(images)
    typed_settings = settings_from_keywords(ExplainSettings, settings, "paucal.explain_images", "explain")
    console = RecordingConsole()
    name = model if isinstance(model, TrainedModel) else path_text(model, "the model")
    return replace(explain_all(name, sources, typed_settings, console), said=tuple(console.said))


def explain_all(
    name: TrainedModel | str, sources: Sequence[str | ImageInMemory], settings: ExplainSettings, console: Console
) -> Explanations:
    """Draw all requested views; see `explain_images`."""
    check_ranges(settings)
    for view in settings.show:
        if view not in VIEWS:
            suggestion = did_you_mean(view, VIEWS)
            raise UserError(f"--show is {view!r}{suggestion}; expected one or more of {', '.join(VIEWS)}.")
    views = list(dict.fromkeys(settings.show))
    require_used_settings(views, settings)
    if not sources:
        raise UserError("there are no images to explain: give files, folders, PIL images or arrays.")
    if isinstance(name, str):
        model = open_named(name, settings.device)
    else:
        model = replace(name, module=to_full_precision(name.module))
    method = None
    if "attribution" in views:
        method, sentence = choose_method(model, settings.method)
        console.say(sentence)
        class_numbers(model, settings.explain_class)
    drawer = _Drawer(name, model, views, method, settings)
    count, images = read_images(sources, model, settings.on_bad_image, console)
    check_batch_memory(min(settings.batch_size, count), model.card.preprocessing.image_size)
    pictures = FigureWriter(choose_output_folder(settings.output, sources), settings.format)
    console.say(f"{counted(count, 'image')}, {', '.join(views)}; the figures are written to {pictures.folder}")
    with console.progress("explaining") as advance:
        n_drawn = 0
        for batch in _in_batches(images, views, settings.batch_size):
            for label, figure in drawer.draw_batch(batch):
                pictures.write(label, figure)
            n_drawn += len(batch)
            advance(n_drawn, count)
    for label, figure in drawer.draw_all():
        pictures.write(label, figure)
    if drawer.entropies is not None and drawer.entropies.images:
        pictures.write_table("entropy", drawer.entropies.table())
    console.say(f"{counted(len(pictures.written), 'picture')} in {pictures.folder}")
    return Explanations(pictures.folder, tuple(pictures.written), method)


def _in_batches(images: Iterator[ExplainInput], views: Sequence[str], size: int) -> Iterator[list[ExplainInput]]:
    """Yield lists of up to `size` images; for the view "matches", a single list of one or two images."""
    while batch := list(islice(images, 3 if "matches" in views else size)):
        if "matches" in views and len(batch) > 2:
            raise UserError(
                "--show matches takes one image (compared with its mirror image) or two images, but more were given."
            )
        yield batch


class _Drawer:
    """Draws the requested views of each image, and the figures that show all images together.

    Other models and heads that the views need are opened first, so that errors are reported before anything is drawn.
    """

    def __init__(
        self,
        name: TrainedModel | str,
        model: TrainedModel,
        views: Sequence[str],
        method: str | None,
        settings: ExplainSettings,
    ) -> None:
        self._model, self._views, self._method, self._settings = model, views, method, settings
        if set(views) & NEEDS_ATTENTION:
            require_attention(model.module)
        # For each view that is drawn image by image, the function that draws it.
        self._image_views = [SINGLE_IMAGE_VIEWS[view] for view in views if view in SINGLE_IMAGE_VIEWS]
        if "localization" in views:
            self._image_views.append(open_localization_view(name, model))
        if "tokens" in views:
            self._image_views.append(open_tokens_view(model, settings.teacher, settings.device))
        self.entropies = EntropyAccumulator(model, settings.against, settings.device) if "entropy" in views else None
        self._sheet: list[AttributedImage] = []

    def draw_batch(self, batch: list[ExplainInput]) -> Iterator[tuple[str, Figure]]:
        """Yield (name, figure) for each figure of a batch of images."""
        model, settings = self._model, self._settings
        if self._method is not None:
            method, numbers = METHODS[self._method], class_numbers(model, settings.explain_class)
            for explained in explain_batch(model, batch, self._method, numbers, settings.top):
                figure = attribution_figure(explained, method.title, method.is_class_specific)
                yield f"{file_stem(explained.name)}_attribution", figure
                self._sheet.append(explained)
        if "features" in self._views:
            yield from features_figures(model, batch)
        for image in batch:
            for draw in self._image_views:
                for label, figure in draw(model, image, settings).items():
                    yield f"{file_stem(image.name)}_{label}", figure
        if self.entropies is not None:
            self.entropies.add(batch)
        if "matches" in self._views:
            yield f"{file_stem(batch[0].name)}_matches", matches_figure(model, batch)

    def draw_all(self) -> Iterator[tuple[str, Figure]]:
        """Yield (name, figure) for each figure that shows all images together."""
        if self._method is not None and len(self._sheet) > 1:
            method = METHODS[self._method]
            for start in range(0, len(self._sheet), MAX_SHEET_IMAGES):
                rows = self._sheet[start : start + MAX_SHEET_IMAGES]
                yield "sheet", contact_sheet(rows, method.title, method.is_class_specific)
        if self.entropies is not None and self.entropies.images:
            yield from self.entropies.figures()
