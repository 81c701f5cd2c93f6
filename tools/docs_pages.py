"""Generates pages of the documentation's site from other files (mkdocs.yml names this file).

index.md, contributing.md and changelog.md are the repository's own files; options.md is the table
of glake/config.py; python-api.md lists the public names, whose docstrings mkdocstrings fills in;
c-api.md is glake.h, comment by comment.
"""

import ast
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
HEADER = ROOT / "glake" / "include" / "glake" / "glake.h"
COPIED = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}
OPTIONS_ABOUT = """\
Set an option as a `GLAKE_*` variable. `glake run` takes those of the allocator as flags, and
`glake.enable()` takes every option as an argument, in small letters and without `GLAKE_`.
`glake info` prints the values in force. What happens to a wrong option:
[support.md](support.md#options-that-are-wrong).

Most users need these alone: `GLAKE_ALLOCATOR`, `GLAKE_DRIVER`, `GLAKE_POLICY`, `GLAKE_LIMIT`,
`GLAKE_HEADROOM` ([regions](regions.md#headroom)), `GLAKE_DEBUG` ([debugging](debugging.md)),
`GLAKE_CONTIGUOUS` and `GLAKE_PRIVATE_POOLS` ([interop](interop.md)), `GLAKE_INTEGRATIONS`
([integrations](integrations.md)), `GLAKE_HOST_ALLOCATOR`, `GLAKE_COPY_ORDER`
([order](transfer.md#order)) and `GLAKE_TRACE`."""
READERS = {
    "python": "Read by the Python package",
    "core": "Read by the library, with or without Python",
    "preload": "Read by the preloaded library of `glake run --intercept`",
    "simulator": "Read by the simulated driver",
}
MODULES = {
    "glake": "The allocator, regions, statistics and dry runs.",
    "glake.errors": "Every exception. All are subclasses of `glake.GlakeError`.",
    "glake.transfer": "Copies over every path of a node ([how to use it](transfer.md)).",
    "glake.transfer.topology": "How GPUs are joined ([how it is found](topology.md)).",
    "glake.metrics": "For Prometheus and OpenTelemetry ([what there is](metrics.md)).",
    "glake.trace": "Traces and plans ([how to use them](plan.md)).",
    "glake.trace.replay": "Traces through allocators ([what comes out](report.md)).",
    "glake.trace.format": "Traces, event by event ([the format](trace-format.md)).",
    "glake.dryrun": "Dry runs ([how to use them](dry-run.md)).",
    "glake.integrations": "Hooks into other packages ([which there are](integrations.md)).",
    "glake.trainer": "The trainer ([how to use it](trainer.md)).",
    "glake.simcuda": "Control of the simulated driver, for tests.",
    "glake.typing": "Types in the signatures above.",
}
_PICTURE = re.compile(r"!\[[^\]\n]+\]\(([\w/.-]+)\)")  # a picture that is a file of this repository
# The name that a declaration declares: of a function, a type or a macro.
_NAMES = re.compile(r"\b(glake_\w+)\s*\(|^\}\s*(glake_\w+);|^#define (GLAKE_\w+) ", re.MULTILINE)


def on_files(files: Any, config: Any) -> Any:
    """mkdocs' hook: adds the pages, and the pictures of other folders that docs/ shows."""
    from mkdocs.structure.files import File

    for name, text in pages().items():
        files.append(File.generated(config, name, content=text))
    texts = [page.read_text() for page in sorted((ROOT / "docs").glob("*.md"))]
    pictures = {
        path for text in texts for path in re.findall(r"!\[[^\]\n]+\]\(\.\./([^)\s]+)\)", text)
    }
    pictures |= set(re.findall(_PICTURE, (ROOT / "README.md").read_text()))
    for path in sorted(pictures):
        files.append(File.generated(config, Path(path).name, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """mkdocs' hook: a link out of docs/ leads to the page that is generated from that file, or
    becomes plain text. A picture outside docs/ becomes one of the site."""
    for page, source in COPIED.items():
        markdown = re.sub(rf"\]\(\.\./{re.escape(source)}([)#])", rf"]({page}\1", markdown)
    markdown = re.sub(r"(!\[[^\]\n]+\])\(\.\./[^)\s]*?([^/)\s]+)\)", r"\1(\2)", markdown)
    return re.sub(r"(?<!!)\[([^\]\n]+)\]\(\.\./([^)\s]+)\)", r"\1 (`\2`)", markdown)


def pages() -> dict[str, str]:
    """The text of every generated page, by the page's name in the site."""
    made = {page: moved((ROOT / source).read_text()) for page, source in COPIED.items()}
    return made | {
        "options.md": options_page(),
        "python-api.md": python_page(),
        "c-api.md": c_page(HEADER.read_text()),
    }


def moved(text: str) -> str:
    """The text of a page of the repository's root as a page of docs/. Links lead to pages of the
    site. A link to a file that is no page becomes plain text. A picture's path becomes the name of
    its file."""
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

    text = re.sub(r"(?<!!)\[([^\]\n]+)\]\(([^)\s]+)\)", link, text)
    return re.sub(_PICTURE, lambda found: found[0].replace(found[1], Path(found[1]).name), text)


def public_names(module: str) -> list[str]:
    """The names in a module's `__all__`, without importing it."""
    path = ROOT / module.replace(".", "/") / "__init__.py"
    if not path.exists():
        path = path.parent.with_suffix(".py")
    assigned = {
        target.id: node.value
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    names = ast.literal_eval(assigned["__all__"])
    return sorted((name for name in names if not name.startswith("__")), key=str.lower)


def options_page() -> str:
    """options.md: the table of glake/config.py, which `glake info --options` prints too."""
    sys.path.insert(0, str(ROOT))
    from glake import config

    lines = ["# Options", "", OPTIONS_ABOUT]
    for reader, about in READERS.items():
        lines += [
            "",
            f"## {about}",
            "",
            "| Variable | Default | Takes | Meaning |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| `{config.PREFIX}{each.name}` | {f'`{each.default}`' if each.default else ''} "
            f"| {each.takes} | {f'{each.meaning}. {each.more}' if each.more else each.meaning} |"
            for each in config.OPTIONS.values()
            if each.reader == reader
        ]
    return "\n".join(lines) + "\n"


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
    """The text of a C comment, with names of functions and arguments unchanged."""
    lines = (
        line.strip().removeprefix("*").strip()
        for line in comment[2:].removesuffix("*/").splitlines()
    )
    return re.sub(r"([<>_*\[\]])", r"\\\1", "\n".join(lines).strip())
