"""What the tests of `paucal check` share."""

import functools

import pytest

from paucal.verbs.check import labels


@pytest.fixture(scope="module")
def kept_models():
    """Let the checks of a module share each network that they read features with: opening one takes most of a check.

    For tests in which the weights on this machine stay as they are.
    """
    with pytest.MonkeyPatch.context() as patch:
        opened = functools.cache(labels.open_named)

        def open_once(name, device, image_size, setting):
            return opened(name, device, None if image_size is None else tuple(image_size), setting)

        patch.setattr(labels, "open_named", open_once)
        yield
