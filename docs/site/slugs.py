"""Gives headings that begin with a digit an anchor that begins with a letter: the theme's script fails at others."""

from typing import Any

from markdown.extensions.toc import slugify


def slug(text: str, separator: str) -> str:
    """Return the anchor of a heading."""
    name = slugify(text, separator)
    return f"n{separator}{name}" if name[:1].isdigit() else name


def on_config(config: Any, **_: Any) -> Any:
    """Let the table of contents make its anchors so."""
    config["mdx_configs"].setdefault("toc", {})["slugify"] = slug
    return config
