"""One server of calls for all tests of this folder."""

import sys
from collections.abc import Iterator

import pytest

from fuzz.calls import Caller


@pytest.fixture(scope="session")
def caller(tmp_path_factory, fast_tier) -> Iterator[Caller]:
    """Make calls beside material of their own."""
    if not sys.platform.startswith("linux"):
        pytest.skip("calls are forked, limited and watched as Linux does it")
    with Caller(tmp_path_factory.mktemp("fuzz"), few_calls=fast_tier) as made:
        yield made
