"""Keeps the scripts of the theme from failing: at anchors that begin with a digit, and without coloured code."""

from typing import Any

from markdown.extensions.toc import slugify

# The script that switches between light and dark sets these two, which the theme has for coloured code alone.
SHEETS = '<style id="hljs-light"></style><style id="hljs-dark"></style>'


def slug(text: str, separator: str) -> str:
    """Return the anchor of a heading, which begins with a letter."""
    name = slugify(text, separator)
    return f"n{separator}{name}" if name[:1].isdigit() else name


def on_config(config: Any, **_: Any) -> Any:
    """Let the table of contents make its anchors so."""
    config["mdx_configs"].setdefault("toc", {})["slugify"] = slug
    return config


def on_post_page(output: str, **_: Any) -> str:
    """Add the two style sheets."""
    return output.replace("<head>", f"<head>{SHEETS}", 1)
