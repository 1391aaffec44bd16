"""Hook of the site: pages from outside docs/, and links that work here as they do on GitHub.

CONTRIBUTING.md and others are pages of the site too; README.md is not, the site starts at
docs/index.md. Links are written for readers of the repository, so a link is looked up there first:
one to a page or an example leads to its page of the site, one to another file to the repository on
the web, if pyproject.toml says where that is.
"""

import posixpath
import re
from importlib.metadata import metadata
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
# Pages that are not in docs/, and where they are on the site.
OUTSIDE = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
}
# An example without a page of its own is on that of the gallery.
NAVIGATION = (ROOT / "mkdocs.yml").read_text()
for path in sorted((ROOT / "examples").iterdir()):
    if path.suffix in (".py", ".ipynb"):
        place = f"gallery/{path.stem}.md"
        OUTSIDE[f"examples/{path.name}"] = place if place in NAVIGATION else "gallery/index.md"
OUTSIDE["examples"] = "gallery/index.md"
SOURCES = {uri: path for path, uri in OUTSIDE.items()}
LINK = re.compile(r"(?P<text>!?\[[^\[\]]*\])\((?P<target>[^)#\s]+)(?P<rest>[^)]*)\)")
MARKUP = re.compile(r"(?P<name>\b(?:src|href|srcset))=\"(?P<target>[^\"#]+)(?P<rest>[^\"]*)\"")
FENCE = re.compile(r"^( *```.*?^ *```$)", re.DOTALL | re.MULTILINE)
# GitHub takes any indentation inside a list, Python-Markdown only four spaces.
SHALLOW = re.compile(r"\n\n {1,3}\S.*|\n {1,3}(?:[-*]|\d+\.) .*")
# GitHub starts a list or a table anywhere, Python-Markdown only after an empty line.
SWALLOWED = re.compile(r"\n((?:[-*] |\d{1,2}\. |\|).*)")

log = get_plugin_logger("site_pages")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the Markdown files of `OUTSIDE`; the gallery is made by another hook."""
    for path, uri in OUTSIDE.items():
        if path.endswith(".md"):
            files.append(File.generated(config, uri, content=(ROOT / path).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make the links of a page those of the site."""
    uri = page.file.src_uri
    parts = FENCE.split(markdown)
    for number, part in enumerate(parts):
        if number % 2 == 0:
            for line in SHALLOW.findall(part):
                log.warning(f"{uri}: in a list, indent by four spaces: {line.strip()[:80]}")
            linked = LINK.sub(lambda found: link(found, uri), part)
            parts[number] = MARKUP.sub(lambda found: attribute(found, uri), linked)
    return "".join(parts)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Report lists and tables that are none here; link the pages that docstrings name."""
    uri = page.file.src_uri
    for line in swallowed(html):
        log.warning(f"{uri}: an empty line is missing before: {line[:80]}")
    if not uri.startswith("api/"):
        return html
    known = {file.src_uri: file.url for file in files.documentation_pages()}

    def named(found: re.Match[str]) -> str:
        if found[1] not in known:
            log.warning(f"{uri}: a docstring names {found[0]}, which is no page")
            return found[0]
        return f'<a href="{posixpath.relpath(known[found[1]], page.url)}/">{found[0]}</a>'

    return re.sub(r"\bdocs/(\w+\.md)\b", named, html)


def swallowed(html: str) -> list[str]:
    """The first item of each list, and the first row of each table, inside a paragraph."""
    paragraphs = re.findall(r"<p>(.*?)</p>", html, re.DOTALL)
    return [found[1] for text in paragraphs if (found := SWALLOWED.search(text))]


def link(found: re.Match[str], uri: str) -> str:
    """A Markdown link of the page `uri`; only its text, if the target is nowhere on the web."""
    target = moved(found["target"], uri)
    if target is None:
        return found["text"].removeprefix("[").removesuffix("]")
    return f"{found['text']}({target}{found['rest']})"


def attribute(found: re.Match[str], uri: str) -> str:
    """An attribute of HTML, relative to the address of the page: mkdocs leaves these alone."""
    target = found["target"]
    if re.match(r"[a-z]+:", target):
        return found[0]
    place = site_path(repository_path(target, uri))
    if place is None:
        log.warning(f"{uri}: {found[0]} must be a file of the site")
        return found[0]
    folder = uri.removesuffix(".md") if not uri.endswith(("README.md", "index.md")) else ""
    folder = folder or posixpath.dirname(uri) or "."
    return f'{found["name"]}="{posixpath.relpath(place, folder)}{found["rest"]}"'


def moved(target: str, uri: str) -> str | None:
    """Where a link of the page `uri` leads on the site, or else on the web."""
    if re.match(r"[a-z]+:", target):
        return target
    path = repository_path(target, uri)
    if not (ROOT / path).exists():
        return target  # mkdocs reports it
    place = site_path(path)
    if place is not None:
        return posixpath.relpath(place, posixpath.dirname(uri) or ".")
    address = repository()
    return f"{address}/blob/main/{path}" if address else None


def repository_path(target: str, uri: str) -> str:
    """The file of the repository that a link of the page `uri` means."""
    here = SOURCES.get(uri, f"docs/{uri}")
    return posixpath.normpath(posixpath.join(posixpath.dirname(here), target))


def site_path(path: str) -> str | None:
    """Where a file of the repository is on the site; None for nowhere."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else None


def repository() -> str:
    """The address of the repository, if the package says it."""
    for entry in metadata("paddle_ext").get_all("Project-URL") or []:
        name, _, address = entry.partition(", ")
        if name in ("Repository", "Source", "Source code"):
            return address.rstrip("/")
    return ""
