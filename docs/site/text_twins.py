"""Writes the pages as text beside the site, with `llms.txt` as their table of contents, for programs that read text."""

from pathlib import Path
from typing import Any

from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
INTRODUCTION = "AGENTS.md"
_titles: dict[str, str] = {}  # heading of each page that has been rendered, by its path
_nav: list[Navigation] = []  # of the build that is running


def on_nav(nav: Navigation, **_: Any) -> Navigation:
    """Keep the order of the pages."""
    _nav[:] = [nav]
    return nav


def on_page_content(html: str, page: Page, config: Any, **_: Any) -> str:
    """Write the text of one page where the site has its HTML."""
    text = page.markdown or ""
    heading = next((line[2:] for line in text.splitlines() if line.startswith("# ")), page.title)
    _titles[page.file.src_uri] = str(heading)
    twin = Path(config["site_dir"]) / page.file.src_uri
    twin.parent.mkdir(parents=True, exist_ok=True)
    twin.write_text(text, encoding="utf-8")
    return html


def on_post_build(config: Any, **_: Any) -> None:
    """Write `llms.txt` and the introduction for agents."""
    site = Path(config["site_dir"])
    introduction = (ROOT / INTRODUCTION).read_text(encoding="utf-8")
    (site / INTRODUCTION).write_text(introduction, encoding="utf-8")
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}", ""]
    lines += [f"[What a program needs to know]({INTRODUCTION})", ""]
    for item in _nav[0].items:
        lines += _contents(item)
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _contents(item: Any) -> list[str]:
    """Return the lines of `llms.txt` for a page or a section."""
    if isinstance(item, Section):
        return ["", f"## {item.title}", "", *(line for child in item.children for line in _contents(child))]
    return [f"- [{_titles[item.file.src_uri]}]({item.file.src_uri})"] if isinstance(item, Page) else []
