"""What a regression needs before it is fitted."""

from dataclasses import dataclass

from paucal.methods.training_settings import TrainSettings
from paucal.runner.job import RunSetup
from paucal.tasks.regression.images import NumberedImages


@dataclass(frozen=True)
class RegressionSetup(RunSetup[TrainSettings]):
    """Everything that a regression needs; nothing has been written yet."""

    @property
    def numbered(self) -> NumberedImages:
        """The images with their numbers."""
        assert isinstance(self.data, NumberedImages)
        return self.data
