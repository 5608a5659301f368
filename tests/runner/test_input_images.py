"""Input images of commands such as predict: what is refused, and how."""

import pytest

from paucal.data.decode import DEFAULT_DECODE_OPTIONS
from paucal.runner import input_images
from paucal.runner.console import SilentConsole
from paucal.runner.input_images import open_sources
from paucal.types import UserError


def test_url__of_no_images_is_refused_in_one_sentence(monkeypatch):
    def refuse(*args, **options):
        raise UserError("there are no shards at 's3://bucket/a'.")

    monkeypatch.setattr(input_images, "open_images", refuse)
    with pytest.raises(UserError) as caught:
        open_sources(["s3://bucket/a"], SilentConsole(), DEFAULT_DECODE_OPTIONS)
    assert str(caught.value) == (
        "there are no shards at 's3://bucket/a'; single images must be files, but 's3://bucket/a' is a URL: download "
        "the image, and give the file."
    )
