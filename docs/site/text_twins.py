"""Writes the pages as text beside the site, with `llms.txt` as their table of contents, for programs that read text."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
INTRODUCTION = "AGENTS.md"
FENCE = re.compile(r"^ *```.*?^ *```\n?", re.DOTALL | re.MULTILINE)
NAMED = re.compile(r"^::: (\S+)\n(?:    .*\n)*", re.MULTILINE)  # what mkdocstrings puts in, with its options
NO_PROSE = ("#", "|", "!", "<", "-", "1.", "===", ":::")  # beginnings of paragraphs that are no sentences
SENTENCE_END = re.compile(r"(?<=[.?])\s+(?=[A-Z`])")
_pages: dict[str, tuple[str, str]] = {}  # heading and description of each page that has been rendered, by its path
_nav: list[Navigation] = []  # of the build that is running


def on_nav(nav: Navigation, **_: Any) -> Navigation:
    """Keep the order of the pages."""
    _nav[:] = [nav]
    return nav


def on_page_content(html: str, page: Page, config: Any, **_: Any) -> str:
    """Write the text of one page where the site has its HTML."""
    text = page.markdown or ""
    heading = next((line[2:] for line in text.splitlines() if line.startswith("# ")), page.title)
    _pages[page.file.src_uri] = (str(heading), description(text))
    twin = Path(config["site_dir"]) / page.file.src_uri
    twin.parent.mkdir(parents=True, exist_ok=True)
    twin.write_text(with_reference(text), encoding="utf-8")
    return html


def on_post_build(config: Any, **_: Any) -> None:
    """Write `llms.txt` and the introduction for agents."""
    site = Path(config["site_dir"])
    introduction = (ROOT / INTRODUCTION).read_text(encoding="utf-8")
    (site / INTRODUCTION).write_text(introduction, encoding="utf-8")
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}", ""]
    lines += [f"- [What a program needs to know]({INTRODUCTION}): {description(introduction)}"]
    for item in _nav[0].items:
        lines += _contents(item)
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _contents(item: Any) -> list[str]:
    """Return the lines of `llms.txt` for a page or a section."""
    if isinstance(item, Section):
        return ["", f"## {item.title}", "", *(line for child in item.children for line in _contents(child))]
    if not isinstance(item, Page):
        return []
    heading, words = _pages[item.file.src_uri]
    return [f"- [{heading}]({item.file.src_uri}): {words}"]


def description(text: str) -> str:
    """Return the first sentence of a page, with the words of its links alone; "" if it has none."""
    for paragraph in FENCE.sub("\n", text).split("\n\n"):
        words = " ".join(paragraph.split())
        if words and not words.startswith(NO_PROSE):
            plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", words)
            return re.sub(r":$", ".", SENTENCE_END.split(plain)[0])
    return ""


def with_reference(text: str) -> str:
    """Return a page with the signature and the docstring of everything that it names by `:::`."""
    return NAMED.sub(lambda found: entry(found[1]), text)


@cache
def _package() -> griffe.Object:
    """Return the project's code as the site reads it; nothing is imported."""
    extensions = griffe.load_extensions(ROOT / "docs/reference/docstrings.py")
    package = griffe.load("paucal", search_paths=[ROOT / "src"], extensions=extensions)
    assert isinstance(package, griffe.Object)
    return package


def entry(name: str) -> str:
    """Return the heading, the signature and the docstring of one name, and those of what belongs to it."""
    thing = _package()[name.removeprefix("paucal.")]
    thing = thing.final_target if isinstance(thing, griffe.Alias) else thing
    text = _docstring(thing)
    members = {key: member for key, member in thing.all_members.items() if member.is_public}
    if isinstance(thing, griffe.Module):
        return "\n".join([text + "\n", *(entry(f"{name}.{key}") for key in thing.exports or members)])
    # Settings have a docstring for every field; other classes describe their fields in their own docstring.
    explained = [member for member in members.values() if member.is_attribute and _docstring(member)]
    fields = [one for one in explained if "property" not in one.labels and "Attributes:" not in text]
    code = [f"{one.name}: {one.annotation} = {one.value}  # {_docstring(one)}" for one in fields]
    if isinstance(thing, griffe.Attribute):
        code = [f"{thing.name} = {thing.value}"]
    elif not fields and isinstance(thing, griffe.Class | griffe.Function):
        code = [str(thing.signature())]
    code += [f"{one.name}: {one.annotation}  # {_docstring(one)}" for one in explained if "property" in one.labels]
    methods = [entry(f"{name}.{key}") for key, member in members.items() if member.is_function and _docstring(member)]
    level = "###" if thing.parent is not None and thing.parent.is_class else "##"
    return "\n".join([f"{level} {thing.name}\n", "```python", *code, "```\n", text + "\n", *methods])


def _docstring(thing: griffe.Object | griffe.Alias) -> str:
    return "" if thing.docstring is None else thing.docstring.value
