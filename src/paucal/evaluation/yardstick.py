"""What a run is judged by while it goes on: the share of right answers, or the mean average precision."""

from dataclasses import dataclass

from paucal.wording import percent


@dataclass(frozen=True)
class Yardstick:
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

    def told(self, value: float, images: str = "") -> str:
        """Return a value in words.

        Args:
            value: in [0, 1].
            images: of which images; "" for the number alone.

        Example:
            >>> ACCURACY.told(0.5, "validation images"), MEAN_PRECISION.told(0.5, "validation images")
            ('50.0 % of the validation images', 'mAP 50.0 % on the validation images')
        """
        number = f"{self.short} {percent(value)}".strip()
        return f"{number} {'on' if self.short else 'of'} the {images}" if images else number


ACCURACY = Yardstick("top1", "accuracy")
MEAN_PRECISION = Yardstick("map", "mean average precision", "mAP")


def yardstick(several_labels: bool) -> Yardstick:
    """Return the score for images that have one label each, or several."""
    return MEAN_PRECISION if several_labels else ACCURACY
