"""The pages of the documentation's site that are made, not written (mkdocs.yml names this file).

index.md, contributing.md and changelog.md are the repository's own files; python-api.md lists the
public names, whose docstrings mkdocstrings fills in; c-api.md is glake.h, comment by comment.
"""

import ast
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
HEADER = ROOT / "glake" / "include" / "glake" / "glake.h"
COPIED = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}
MODULES = {
    "glake": "The allocator, regions, statistics and dry runs.",
    "glake.transfer": "Copies over every path of a node ([how to use it](transfer.md)).",
    "glake.metrics": "For Prometheus and OpenTelemetry ([what there is](metrics.md)).",
    "glake.trace": "Traces and plans ([how to use them](plan.md)).",
}
# A name declared: of a function before its arguments, of a type after it, or a macro's.
_NAMES = re.compile(r"\b(glake_\w+)\s*\(|^\}\s*(glake_\w+);|^#define (GLAKE_\w+) ", re.MULTILINE)


def on_files(files: Any, config: Any) -> Any:
    """mkdocs' hook: adds the pages, and the pictures of other folders that docs/ shows."""
    from mkdocs.structure.files import File

    for name, text in pages().items():
        files.append(File.generated(config, name, content=text))
    for page in sorted((ROOT / "docs").glob("*.md")):
        for path in re.findall(r"!\[[^\]\n]+\]\(\.\./([^)\s]+)\)", page.read_text()):
            files.append(File.generated(config, Path(path).name, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """mkdocs' hook: a link out of docs/ is plain text, a picture from there one of the site."""
    markdown = re.sub(r"(!\[[^\]\n]+\])\(\.\./[^)\s]*?([^/)\s]+)\)", r"\1(\2)", markdown)
    return re.sub(r"(?<!!)\[([^\]\n]+)\]\(\.\./([^)\s]+)\)", r"\1 (`\2`)", markdown)


def pages() -> dict[str, str]:
    """Text of every page by its name in the site."""
    made = {page: moved((ROOT / source).read_text()) for page, source in COPIED.items()}
    return made | {"python-api.md": python_page(), "c-api.md": c_page(HEADER.read_text())}


def moved(text: str) -> str:
    """A page of the repository's root as one of docs/: links lead to pages of the site, and those
    to files that are no pages are plain text."""
    others = {source: page for page, source in COPIED.items()}

    def link(found: re.Match[str]) -> str:
        words, target = found.groups()
        if "://" in target or target.startswith("#"):
            return found.group()
        path, _, anchor = target.partition("#")
        page = others.get(path) or (path[5:] if re.fullmatch(r"docs/[\w-]+\.md", path) else "")
        return (
            f"[{words}]({page}{'#' if anchor else ''}{anchor})" if page else f"{words} (`{path}`)"
        )

    return re.sub(r"\[([^\]\n]+)\]\(([^)\s]+)\)", link, text)


def public_names(module: str) -> list[str]:
    """The names a module makes public, without importing it: `__all__`, or else of a table of names
    fetched when asked for."""
    path = ROOT / module.replace(".", "/") / "__init__.py"
    assigned = {
        target.id: node.value
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    names = ast.literal_eval(assigned.get("__all__") or assigned["_LAZY"])
    return sorted((name for name in names if not name.startswith("__")), key=str.lower)


def python_page() -> str:
    """python-api.md: a directive of mkdocstrings for each public name."""
    lines = ["# Python API", ""]
    for module, about in MODULES.items():
        lines += [f"## {module}", "", about, ""]
        names = public_names(module)
        constants = [name for name in names if name.isupper()]
        if constants:
            lines += [f"Constants: {', '.join(f'`{module}.{name}`' for name in constants)}.", ""]
        for name in names:
            if name not in constants:
                lines += [f"::: {module}.{name}", ""]
    return "\n".join(lines)


def c_page(header: str) -> str:
    """c-api.md: each comment of the header, and the declarations below it up to a blank line."""
    about, _, rest = header.partition("*/")
    parts = ["# C API", plain(about), "`#include <glake/glake.h>`; link `libglake.so`."]
    for group in re.split(r"\n\s*\n", rest[rest.index("typedef enum") :]):
        code = group.strip()
        comment = re.match(r"/\*.*?\*/", code, re.DOTALL)
        text = plain(comment.group()) if comment else ""
        code = code[comment.end() :].strip() if comment else code
        names = [name for found in _NAMES.findall(code) for name in found if name]
        if names:
            heading = ", ".join(f"`{name}`" for name in dict.fromkeys(names))
            parts += [f"### {heading}", text, f"```c\n{code}\n```"]
        elif text:
            parts.append(f"{text}")
    return "\n\n".join(part for part in parts if part) + "\n"


def plain(comment: str) -> str:
    """A C comment's text, its names of functions and arguments as they stand."""
    lines = (
        line.strip().removeprefix("*").strip()
        for line in comment[2:].removesuffix("*/").splitlines()
    )
    return re.sub(r"([<>_*\[\]])", r"\\\1", "\n".join(lines).strip())
