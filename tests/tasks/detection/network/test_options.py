"""Options of a detector: what older cards mean, and what a damaged one cannot."""

from dataclasses import dataclass, fields
from typing import Literal

import pytest
import torch

from paucal.tasks.detection.network.detector import build_detector
from paucal.tasks.detection.network.options import FIRST_OPTIONS, HEADS, DetectorOptions, RegionHead
from paucal.types import UserError
from tasks.detection.network.test_detector import SPECS, TINY

# As the first version that stored detectors wrote them.
OLDEST = {
    **{"channels": 64, "head_dim": 128, "finest": 8, "anchor": 4, "regions": 32, "proposals": 500, "cascade": True},
    **{"least_score": 0.05, "most": 100, "masks": False},
}


def test_oldest_cards__open_with_what_they_were_trained_with():
    options = DetectorOptions.from_dict(OLDEST)
    assert {name: value for name, value in options.to_dict().items() if name in OLDEST} == OLDEST
    added = {name: value for name, value in options.to_dict().items() if name not in OLDEST}
    assert added == {
        **{"head": "2fc", "cascade_boxes": "shared", "cascade_average": "probabilities", "box_loss": "smooth-l1"},
        **{"proposal_loss": "smooth-l1", "candidates": 0, "matching": "torchvision", "pooling": "sampled"},
        **{"pyramid_norm": "group", "proposal_layers": 1, "mask_norm": "none"},
        **{"maps": "strides", "anchor_sides": "one"},
    }


def test_every_option_since__may_lack_in_a_card():
    assert set(OLDEST) == FIRST_OPTIONS < {item.name for item in fields(DetectorOptions)}
    whole = DetectorOptions(head="4conv1fc", box_loss="giou", matching="anchors", candidates=7).to_dict()
    assert DetectorOptions.from_dict(whole).to_dict() == whole
    for name in set(whole) - set(OLDEST):
        fewer = {key: value for key, value in whole.items() if key != name}
        default = DetectorOptions().to_dict()[name]
        assert DetectorOptions.from_dict(fewer).to_dict() == {**whole, name: default}


@pytest.mark.parametrize(
    "change",
    [
        *({name: value} for name in ("head", "box_loss", "matching", "pooling") for value in ("no such", 3, None, [])),
        *({"proposal_layers": value} for value in (-1, 9, "2", True, 2.0)),
        *({"candidates": value} for value in (-1, 10**9, "2", True, 2.0)),
        {"proposal_loss": "giou"},
        {"a_later_option": 1},
    ],
    ids=str,
)
def test_damaged_options__are_refused(change: dict):
    with pytest.raises(UserError, match=r"gives a detector|invalid detector option"):
        DetectorOptions.from_dict({**OLDEST, **change})


@dataclass(frozen=True)
class LaterOptions(DetectorOptions):
    """The options of a later version, with two more."""

    blur: float = 0.5
    order: Literal["first", "last"] = "first"


def test_a_new_option__needs_no_declaration_to_open_older_cards_with_its_default():
    assert LaterOptions.from_dict(OLDEST) == LaterOptions(**OLDEST)
    later = LaterOptions(**OLDEST, blur=1.5, order="last")
    assert LaterOptions.from_dict(later.to_dict()) == later
    for change in ({"order": "middle"}, {"blur": 1}, {"blur": -0.5}):
        with pytest.raises(UserError, match=f"invalid detector option {next(iter(change))}"):
            LaterOptions.from_dict({**OLDEST, **change})


def test_an_unknown_option__is_refused_by_its_name():
    with pytest.raises(UserError, match=r"the option 'blur', which this version of paucal does not have: update"):
        DetectorOptions.from_dict(LaterOptions(**OLDEST).to_dict())


@pytest.mark.parametrize("stored", [None, [], "2fc"], ids=str)
def test_options_that_are_not_a_table__are_refused(stored: object):
    with pytest.raises(UserError, match="no options of its detector"):
        DetectorOptions.from_dict(stored)


@pytest.mark.parametrize("name", OLDEST)
def test_cards_that_lack_an_option_of_the_first_version__are_refused(name: str):
    with pytest.raises(UserError, match=f"lacks the option '{name}' of its detector"):
        DetectorOptions.from_dict({key: value for key, value in OLDEST.items() if key != name})


def test_a_new_head__is_one_entry(monkeypatch):
    mean = RegionHead(
        "the mean of the cells",
        lambda channels, cells, dim: torch.nn.Sequential(
            torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(channels, dim)
        ),
    )
    monkeypatch.setitem(HEADS, "mean", mean)  # type: ignore[arg-type]
    options = DetectorOptions.from_dict({**DetectorOptions(**TINY, finest=8, cascade=True).to_dict(), "head": "mean"})
    detector = build_detector(SPECS["convolutional"], 3, options).eval()
    with torch.no_grad():
        assert detector(torch.zeros(1, 3, 96, 100), [(96, 100)])[0]["boxes"].shape[1] == 4
