"""Published weights that cannot be fetched are said in one sentence, soon and once."""

import logging
import time

import pytest
import timm
from huggingface_hub import constants

from paucal.backbones import BackboneSpec
from paucal.backbones.names import quiet_logs, require_reachable
from paucal.models.published import read_timm
from paucal.types import UserError


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    """A hub that refuses connections, and an empty cache."""
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", "http://127.0.0.1:9/{repo_id}/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


@pytest.mark.parametrize("fetch", [read_timm, lambda name: BackboneSpec(name, 0, pretrained=True).build()])
def test_fetching__without_a_network_ends_soon_and_without_noise(fetch, capfd, caplog):
    begin = time.monotonic()
    with pytest.raises(UserError, match=r"weights of resnet10t could not be downloaded \(http://127.0.0.1:9 cannot be"):
        fetch("resnet10t")
    assert time.monotonic() - begin < 20  # the hub's client alone tries for 45 seconds and more
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


def test_fetching__does_not_even_try_where_the_hub_is_switched_off(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"not in the cache, and HF_HUB_OFFLINE forbids"):
        read_timm("resnet10t")


def test_fetching__of_what_lies_in_the_cache_asks_nobody(tmp_path):
    config = timm.get_pretrained_cfg("resnet10t")
    folder = tmp_path / f"models--{config.hf_hub_id.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("a" * 40)
    (folder / "snapshots" / ("a" * 40)).mkdir(parents=True)
    (folder / "snapshots" / ("a" * 40) / "model.safetensors").write_bytes(b"")
    require_reachable(config)


def test_hushed__gives_the_levels_back():
    before = logging.getLogger("huggingface_hub").level
    with quiet_logs():
        assert logging.getLogger("huggingface_hub").level == logging.CRITICAL
    assert logging.getLogger("huggingface_hub").level == before
