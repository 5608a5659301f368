"""Object storage for tests: what is fetched from it goes into a cache of the test's own, without pauses."""

from pathlib import Path

import pytest

from paucal.data.decoded.cache_folder import VARIABLE
from paucal.data.shards import folders as place_module
from paucal.data.shards.folders import RemoteShardFolder


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(place_module, "_PAUSE", 0.0)
    monkeypatch.setattr(place_module, "_BUDGET", 0.0)
    return tmp_path / "cache"


@pytest.fixture
def fetched(monkeypatch) -> list[str]:
    """Names of the files that were fetched."""
    found: list[str] = []
    get = RemoteShardFolder._get
    monkeypatch.setattr(
        RemoteShardFolder, "_get", lambda self, name, target: (found.append(name), get(self, name, target))
    )
    return found
