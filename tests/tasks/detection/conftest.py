"""What all tests of detection share: few bootstrap draws, a small set of images, and a run on it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from blank_figures import leave_blank
from paucal.tasks.detection.job import detect
from tasks.detection.made import TINY, write_coco

# Many draws take half of an evaluation, and no run of a test is looked at for how wide its intervals are. The tests of
# the intervals themselves choose their draws.
DRAWS = ("paucal.tasks.detection.evaluation.BOOTSTRAP_DRAWS", 40)


@pytest.fixture(autouse=True, scope="module")
def few_draws() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*DRAWS)
        yield


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_coco(tmp_path_factory.mktemp("boxes") / "set", 20).parent


@pytest.fixture(scope="session")
def finished(images: Path, tmp_path_factory: pytest.TempPathFactory, fast_tier: bool) -> Path:
    """The folder of a finished run, in which no test changes what another looks at."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*DRAWS)
        if fast_tier:
            leave_blank(patch.setattr)
        detect(images, output=str(run), steps=6, judge_every=3, **TINY)
    return run
