"""The stored table of sizes and costs agrees with what measuring gives."""

import pytest
import timm

import paucal.backbones
from contracts.reduced_models import OURS
from paucal.models import table
from paucal.models.measuring import measure, source_of
from paucal.models.table import model_names, read_table, stored_table, write_table
from paucal.objectives import default_weight
from paucal.types import UserError

assert paucal.backbones
# Published counts, in multiply-adds of one image at the model's own size.
KNOWN = {
    "resnet50": (25_557_032, 4.089e9, (7, 7)),
    "deit_small_patch16_224": (22_050_664, 4.599e9, (14, 14)),
    "swin_tiny_patch4_window7_224": (28_288_354, 4.491e9, (7, 7)),
    "pit_ti_224": (4_847_272, 0.699e9, (7, 7)),
    "cait_xxs24_224": (11_956_264, 2.523e9, (14, 14)),
    "dhvt_tiny_cifar_patch4": (6_008_650, 0.388e9, (8, 8)),
    "lvvit_t": (8_534_720, 2.868e9, (14, 14)),
    "t2t_vit_14": (21_545_550, 4.783e9, (14, 14)),
    "cvt_13": (19_997_480, 4.566e9, (14, 14)),
    "vil_tiny": (6_719_698, None, (7, 7)),
}


@pytest.mark.parametrize("name", KNOWN)
def test_measure__gives_the_known_counts_and_the_stored_ones(name):
    parameters, macs, grid = KNOWN[name]
    measured = measure(name, default_weight(name)[0])
    assert measured.parameters == parameters
    assert measured.grid == grid
    if macs is not None:
        assert measured.macs == pytest.approx(macs, rel=0.005)
    assert stored_table()[name] == measured


def test_table__holds_every_model_of_ours():
    assert set(OURS) <= set(stored_table())
    assert len(OURS) > 40


def test_table__comes_back_as_written(tmp_path):
    models = [(name, stored_table()[name]) for name in ("resnet50", "vit_mini")]
    write_table(tmp_path / "table.csv", models, "a remark")
    text = (tmp_path / "table.csv").read_text()
    assert text.startswith("# a remark\n")
    assert list(read_table(text.splitlines())) == models


def test_table__of_other_columns_is_refused():
    with pytest.raises(UserError, match=r"has columns \['model', 'parameters'\], expected"):
        list(read_table(["# a remark", "model,parameters", "a,1"]))


def test_stored_sources_and_weights__are_those_of_the_code():
    for name, one in stored_table().items():
        if timm.is_model(name):
            assert (one.source, one.drloc_weight) == (source_of(name), default_weight(name)[0]), name


def test_names__are_those_of_timm_whatever_its_version(monkeypatch):
    known = timm.list_models()
    assert model_names() == known
    monkeypatch.setattr(table, "version", lambda package: "0.0")
    assert model_names() == known


def test_sources__tell_ours_from_timms():
    assert source_of("resnet50") == "timm"
    assert source_of("lvvit_s").startswith("LV-ViT")
    assert all(source_of(name) not in ("timm", "") for name in OURS)


@pytest.mark.slow
def test_table__agrees_with_measuring_for_all_of_ours():
    assert {name: stored_table()[name] for name in OURS} == {
        name: measure(name, default_weight(name)[0]) for name in OURS
    }


@pytest.mark.slow
def test_table__knows_nearly_all_of_timm():
    names = timm.list_models()
    assert sum(name in stored_table() for name in names) > 0.9 * len(names)
