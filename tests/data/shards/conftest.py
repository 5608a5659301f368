"""Object storage for tests: what is fetched from it goes into a cache of the test's own, without pauses."""

from pathlib import Path

import fsspec
import pytest

from data.shards.made_sets import URL, numbered
from paucal.data.decoded.cache_folder import CACHE_VARIABLE
from paucal.data.shards import requests
from paucal.data.shards.folders import RemoteShardFolder, upload_folder
from paucal.data.shards.writing import write_shards


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(requests, "_FIRST_PAUSE", 0.0)
    monkeypatch.setattr(requests, "_MIN_SECONDS", 0.0)
    return tmp_path / "cache"


@pytest.fixture
def fetched(monkeypatch) -> list[str]:
    """Names of the files that were fetched."""
    found: list[str] = []
    get = RemoteShardFolder._download
    monkeypatch.setattr(
        RemoteShardFolder, "_download", lambda self, name, target: (found.append(name), get(self, name, target))
    )
    return found


@pytest.fixture
def storage(tmp_path, cache):
    """Four shards of 25 images on storage, with their index."""
    (tmp_path / "made").mkdir()
    write_shards(numbered(100), tmp_path / "made", max_images=25)
    upload_folder(tmp_path / "made", URL)
    files = fsspec.filesystem("memory")
    yield files
    files.rm("/bucket", recursive=True)
