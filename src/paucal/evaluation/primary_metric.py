"""What a run is judged by while it goes on: the share of right answers, or the mean average precision."""

from dataclasses import dataclass

from paucal.wording import percent


@dataclass(frozen=True)
class PrimaryMetric:
    """The score that chooses between models.

    Attributes:
        score: its name in reports; `metrics.csv` has it with "val_" before it.
        title: for people.
        short: for a line of several scores; "" for a share of images.
    """

    score: str
    title: str
    short: str = ""

    @property
    def column(self) -> str:
        """The column of `metrics.csv`."""
        return f"val_{self.score}"

    def format_score(self, value: float, images: str = "") -> str:
        """Return a value in words.

        Args:
            value: in [0, 1].
            images: of which images; "" for the number alone.

        Example:
            >>> ACCURACY.format_score(0.5, "validation images"), MEAN_PRECISION.format_score(0.5, "validation images")
            ('50.0 % of the validation images', 'mAP 50.0 % on the validation images')
        """
        number = f"{self.short} {percent(value)}".strip()
        return f"{number} {'on' if self.short else 'of'} the {images}" if images else number


ACCURACY = PrimaryMetric("top1", "accuracy")
MEAN_PRECISION = PrimaryMetric("map", "mean average precision", "mAP")


def primary_metric(several_labels: bool) -> PrimaryMetric:
    """Return the score for images that have one label each, or several."""
    return MEAN_PRECISION if several_labels else ACCURACY
