"""The preprocessing of a run's initial weights, from its stored files."""

from paucal.backbones.weights.inputs import ImageInput
from paucal.backbones.weights.load_report import LoadReport
from paucal.evaluation.deployed import Card, Preprocessing


def input_of_card(card: Card) -> ImageInput:
    """Return the preprocessing of the model of a card."""
    fed = card.preprocessing
    return ImageInput(fed.crop_ratio, fed.interpolation, fed.mean, fed.std)


def recorded_input(record: LoadReport) -> ImageInput | None:
    """Return the stored preprocessing of a resumed run's initial weights; None for older runs.

    Raises:
        TypeError: A value has another type.
        UserError: A value is out of range.
    """
    if not record.input:
        return None
    fed = ImageInput.from_dict(record.input)
    Preprocessing((1, 1), fed.crop_ratio, fed.interpolation, fed.mean, fed.std)  # raises
    return fed
