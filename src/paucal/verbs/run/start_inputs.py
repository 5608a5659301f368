"""How images were prepared for the weights that a run starts from, by what it has written down."""

from paucal.backbones.weights.inputs import ImageInput
from paucal.backbones.weights.load_report import LoadReport
from paucal.models.card import ModelCard
from paucal.models.preprocessing import Preprocessing


def input_of_card(card: ModelCard) -> ImageInput:
    """Return how images are prepared for the model of a card."""
    fed = card.preprocessing
    return ImageInput(fed.crop_ratio, fed.interpolation, fed.mean, fed.std)


def recorded_input(record: LoadReport) -> ImageInput | None:
    """Return what a run that goes on has noted of its start; None where the run is older than such notes.

    Raises:
        TypeError: the values are of other types.
        UserError: a value is out of its range.
    """
    if not record.input:
        return None
    fed = ImageInput.from_dict(record.input)
    Preprocessing((1, 1), fed.crop_ratio, fed.interpolation, fed.mean, fed.std)  # raises
    return fed
