"""Storage of a run's first detector: a record of its training, and its layers after the frozen backbone."""

from dataclasses import asdict, dataclass

from torch import Tensor, nn

from paucal.runs import RunFolder
from paucal.runs.weights import read_weights, save_weights
from paucal.types import UserError

RECORD_FILE, WEIGHTS_FILE = "first_detector.json", "first_detector.safetensors"
BACKBONE_PREFIX = "stages.backbone."


@dataclass(frozen=True)
class FirstDetectorRecord:
    """Record of the first detector of a run, which is trained on the frozen backbone.

    Attributes:
        steps: Number of optimizer steps.
        score: AP on the validation images; None if there are no validation images.
        ap50: AP50 on the validation images; None if there are no validation images.
        seconds: Time from the start of the command until this detector was saved.
    """

    steps: int
    score: float | None
    ap50: float | None
    seconds: float

    def write(self, run: RunFolder) -> None:
        """Store the record in the run folder."""
        run.write_json(RECORD_FILE, asdict(self))


def save_layers(run: RunFolder, detector: nn.Module) -> None:
    """Store all layers of a detector except its backbone."""
    save_weights(run.path / WEIGHTS_FILE, _layers_after_backbone(detector))


def _layers_after_backbone(detector: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in detector.state_dict().items() if not name.startswith(BACKBONE_PREFIX)}


def load_layers(run: RunFolder, detector: nn.Module) -> None:
    """Load into a detector the layers that `save_layers` has stored."""
    layers, path = read_weights(run.path / WEIGHTS_FILE), str(run.path / WEIGHTS_FILE)
    expected = {name: value.shape for name, value in _layers_after_backbone(detector).items()}
    if {name: value.shape for name, value in layers.items()} != expected:
        raise UserError(f"{path!r} does not fit the detector of this run: restore the file or train again.")
    detector.load_state_dict(layers, strict=False)


def read_first_detector(run: RunFolder | None) -> FirstDetectorRecord | None:
    """Read the record of a run's first detector; None if the run has no such record yet."""
    if run is None or not (run.path / RECORD_FILE).is_file():
        return None
    record = run.read_json(RECORD_FILE)
    try:
        ap, ap50 = (None if record[name] is None else float(record[name]) for name in ("score", "ap50"))
        return FirstDetectorRecord(int(record["steps"]), ap, ap50, float(record["seconds"]))
    except (KeyError, TypeError, ValueError) as problem:
        raise UserError(
            f"{str(run.path / RECORD_FILE)!r} is damaged ({problem!r}): restore the file or train again."
        ) from problem
