"""The state of a run that climbs: what it is made of so far, what is known, and the time there is."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from paucal.runs import RunFolder
from paucal.verbs.run.resuming import store_changes
from paucal.verbs.run.start_weights import RECORD
from paucal.verbs.run.voice import Voice
from paucal.verbs.training.assembly import AssembledTraining, assemble
from paucal.verbs.training.ladder.rungs import Rungs

RESERVE = 0.05  # share of the time kept for pictures, the page and what was not foreseen
FREE = frozenset(("init", "time", "method", "model", "device", "devices", "nodes", "batch_size"))  # never chosen anew


@dataclass
class Ascent:
    """A ladder being climbed.

    Attributes:
        run: where everything is written.
        made: the run as it stands.
        rungs: what is known.
        voice: says what happens.
        begun: `time.monotonic()` at which this call would have begun had it made all steps itself.
        image_seconds: of one image through the frozen network, at the probe's size.
        told: whether people know when to expect the first model.
    """

    run: RunFolder
    made: AssembledTraining
    rungs: Rungs
    voice: Voice
    begun: float
    image_seconds: float = 0.0
    told: bool = False

    @property
    def spent(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.begun

    def looking(self, shrink: float = 1.0) -> float:
        """Return the seconds that judging takes after training, at so large a share of the first size's pixels."""
        test = shrink * self.image_seconds * len(self.made.prepared.part("test"))
        return test + (1 + (self.made.settings.soup or 0)) * self.eval_seconds(shrink)  # see `finish_model`

    def eval_seconds(self, shrink: float = 1.0) -> float:
        """Return the seconds of scoring the validation images once, at so large a share of the first size's pixels."""
        return shrink * self.image_seconds * len(self.made.prepared.part("val"))

    def left(self, shrink: float = 1.0) -> float:
        """Return the seconds that may still go into training, when what comes after it has its share."""
        return (1 - RESERVE) * self.rungs.budget - self.spent - self.looking(shrink)

    def keep(self, **changes: Any) -> None:
        """Write down what was found out."""
        self.rungs = self.rungs.but(**changes, spent=self.spent).write(self.run)

    def settle(self, **changes: Any) -> AssembledTraining:
        """Return the run put together anew, with settings changed and those that follow from them chosen again."""
        made = self.made
        again = {name for name, origin in made.origin.items() if origin.startswith("auto: ")} - FREE - set(changes)
        if "model" not in changes:
            again -= {"img_size"}
        settings = replace(made.settings, **dict.fromkeys(again), **changes)
        given = {name: origin for name, origin in made.origin.items() if name not in again and origin != "default"}
        again = assemble(settings, given, self.voice.progress, self.run, made.prepared)
        return replace(again, plan=replace(again.plan, deadline=made.plan.deadline))

    def store(self, made: AssembledTraining, reasons: Mapping[str, str]) -> None:
        """Make settings those of the run."""
        origin = {**made.origin, **{name: f"auto: {reason}" for name, reason in reasons.items()}}
        self.made = replace(made, origin=origin)
        store_changes(self.run, made.settings, origin)
        if made.start is not None:
            self.run.write_json(RECORD, made.start.to_dict())


def is_timed(made: AssembledTraining) -> bool:
    """Return whether the time decides how long the run is."""
    return made.rungs is not None and made.rungs.budget > 0 and is_free(made, "epochs")


def is_free(made: AssembledTraining, name: str) -> bool:
    """Return whether nobody has given a setting."""
    return made.origin.get(name, "default") == "default" or made.origin[name].startswith("auto: ")
