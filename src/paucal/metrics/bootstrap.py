"""The one bootstrap: intervals over the choice of test images, of one model and of the difference between two."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paucal.metrics.intervals import Score, percentile, wilson
from paucal.metrics.measures import Mean, Measure, Weights, value_of

CHUNK = 4_000_000  # weights held at once, 32 MB


@dataclass(frozen=True)
class Bootstrap:
    """How sets of images are resampled, and intervals made of their scores.

    Draws are the same for a seed, whatever the machine, and no global random state is touched.

    Attributes:
        seed: of the draws; the same for every model, which makes comparisons paired.
        draws: resampled sets of images.
        level: share of intervals that hold the truth.
        multinomial: whether the numbers of times that images are drawn come of one multinomial draw, not of one draw
            per image. It means the same; the stored intervals of segmentation were drawn so.
    """

    seed: int = 0
    draws: int = 1000
    level: float = 0.95
    multinomial: bool = False

    def weights(self, n_images: int) -> Iterator[Weights]:
        """Yield (d, N) numbers of times that each image is drawn, in chunks that together have `draws` rows."""
        generator = np.random.default_rng(self.seed)
        at_once = max(1, CHUNK // n_images)
        for start in range(0, self.draws, at_once):
            rows = min(at_once, self.draws - start)
            if self.multinomial:
                counts = generator.multinomial(n_images, np.full(n_images, 1 / n_images), size=rows)
            else:
                drawn = generator.integers(n_images, size=(rows, n_images)) + np.arange(rows)[:, None] * n_images
                counts = np.bincount(drawn.ravel(), minlength=rows * n_images).reshape(rows, n_images)
            yield counts.astype(np.float64)

    def scores(self, measures: Sequence[Measure], n_images: int) -> list[NDArray[np.float64]]:
        """Return the (draws, ...) scores of each measure, all on the same resampled sets."""
        chunks = [[measure(weights) for measure in measures] for weights in self.weights(n_images)]
        return [np.concatenate(column) for column in zip(*chunks, strict=True)]

    def interval(self, measure: Measure, n_images: int) -> Score:
        """Return a score with its percentile interval (Efron 1979).

        Where every image is right, or none, resampling can say nothing; a share then has its Wilson interval.
        """
        value = value_of(measure, n_images)
        score = percentile(value, self.scores([measure], n_images)[0], self.level)
        if score.low is None and isinstance(measure, Mean) and value in (0.0, 1.0):
            return wilson(round(value * n_images), n_images, self.level)
        return score

    def difference(self, first: Measure, second: Measure, n_images: int) -> Score:
        """Return `first` minus `second` on the same images, with the interval of the difference.

        Both are scored on the same resampled sets, so that images which are hard for both do not widen the interval.
        """
        value = value_of(first, n_images) - value_of(second, n_images)
        a, b = self.scores([first, second], n_images)
        return percentile(value, a - b, self.level)
