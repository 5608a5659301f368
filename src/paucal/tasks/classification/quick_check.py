"""The part of a check that costs a run nothing to speak of: labels, parts, names, a sample of sizes, equal files."""

import time

from paucal.data.checking.duplicates import exact_groups
from paucal.data.checking.findings import Checked, Finding, ranked
from paucal.data.checking.labels import label_findings
from paucal.data.checking.pictures import exact_findings
from paucal.data.checking.survey import digest_of
from paucal.data.images import ImageSet
from paucal.runner.images import SplitImages
from paucal.runs import RunFolder
from paucal.types import UserError

SECONDS = 5.0  # that files may be read for; beyond that a run does not look for copies, and says so
NAME = "check.json"


def quick_check(prepared: SplitImages, seconds: float = SECONDS) -> list[Finding]:
    """Return what can be said of a run's images without decoding any, the gravest first.

    Args:
        prepared: the images, and what each is used for.
        seconds: that files may be read for, to find copies.
    """
    images = prepared.images
    checked = Checked(images, prepared.split.parts, len(set(images.declared)) > 1)
    digests = None if images.stream is not None else _digests(images, seconds)
    found = [one for one in label_findings(checked) if one.name != "source"]  # notes are shown as such
    if digests is None:
        text = (
            f"{len(images)} images were not compared with each other, which would have taken longer than {seconds:g} s"
        )
        return ranked([*found, Finding("not-compared", "note", text, f"paucal check {images.location} does so")])
    return ranked([*found, *exact_findings(checked, exact_groups(digests))])


def write_findings(run: RunFolder, findings: list[Finding] | tuple[Finding, ...], images: ImageSet) -> None:
    """Write findings into a run folder, where the report finds them."""
    run.write_json(NAME, {"findings": [one.to_dict(images.keys) for one in findings]})


def _digests(images: ImageSet, seconds: float) -> list[bytes] | None:
    end, found = time.monotonic() + seconds, []
    for position in range(len(images)):
        if position % 64 == 0 and time.monotonic() > end:
            return None
        try:
            found.append(digest_of(images.store, position))
        except UserError:  # gone since it was read; the run itself will say so
            found.append(b"")
    return found


def told(findings: tuple[Finding, ...]) -> list[str]:
    """Return the sentences that people should read before a run starts."""
    return [f"{one.text}; {one.advice}" for one in findings if one.level != "note"]
