"""The pages of the documentation's site that tools/docs_pages.py makes."""

import re
import sys
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import docs_pages  # noqa: E402


def test_the_c_page_has_every_function_of_the_header_with_its_comment() -> None:
    header = docs_pages.HEADER.read_text()
    page = docs_pages.c_page(header)
    declared = set(re.findall(r"^GLAKE_API [^;]*?\b(glake_\w+)\(", header, re.MULTILINE))
    headed = set(
        re.findall(r"`(glake_\w+)`", "\n".join(re.findall(r"^### .*", page, re.MULTILINE)))
    )
    assert len(declared) > 50 and declared <= headed
    assert "### `glake_malloc`\n\nDevice memory, at least `bytes` long, 512-byte aligned" in page


def test_the_python_page_has_every_public_name() -> None:
    import glake
    from glake import transfer

    page = docs_pages.python_page()
    names = {f"glake.{name}" for name in glake.__all__ if name != "__version__"}
    names |= {f"glake.transfer.{name}" for name in transfer.__all__ if not name.isupper()}
    assert names <= set(re.findall(r"^::: (\S+)$", page, re.MULTILINE))
    assert "`glake.transfer.ASK`" in page


def test_links_of_the_readme_lead_to_pages() -> None:
    text = "[a](docs/real.md#x) [b](LICENSE) [c](https://e.org) [d](CHANGELOG.md)"
    found = docs_pages.moved(text)
    assert found == "[a](real.md#x) b (`LICENSE`) [c](https://e.org) [d](changelog.md)"


def test_the_options_page_has_every_option() -> None:
    from glake import config

    page = docs_pages.options_page()
    for option in config.OPTIONS.values():
        row = next(
            line for line in page.splitlines() if line.startswith(f"| `GLAKE_{option.name}` |")
        )
        assert option.takes in row and option.meaning in row
    assert {option.reader for option in config.OPTIONS.values()} == set(docs_pages.READERS)


def test_options_that_pages_name_are_there_and_take_the_values() -> None:
    from glake import config

    texts = [(ROOT / "README.md").read_text(), docs_pages.OPTIONS_ABOUT]
    found = [each for text in texts for each in re.findall(r"GLAKE_(\w+)(?:=([\w.:%]+))?", text)]
    assert len(found) >= 10
    for name, value in found:
        assert name in config.OPTIONS, name
        config.parse(name, value)


def test_the_readme_is_short_and_begins_with_two_commands() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 100
    heads = [line for line, after in pairwise(lines) if re.fullmatch(r"\|[-|:]+\|", after)]
    assert len(heads) == 1, "one table of results; others are in docs/"
    beginning = [line.partition("#")[0].strip() for line in lines[:20]]
    assert {"make demo", "make test"} <= set(beginning)


def test_links_between_pages_lead_to_files() -> None:
    made = {"options.md", "python-api.md", "c-api.md"}
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)", page.read_text()):
            found = "://" in target or target in made or (page.parent / target).exists()
            assert found, (page.name, target)


def test_a_picture_of_the_readme_is_one_of_the_site() -> None:
    text = docs_pages.moved("![bars](benchmarks/a/b.svg) ![x](https://e.org/c.svg)")
    assert text == "![bars](b.svg) ![x](https://e.org/c.svg)"
    for path in re.findall(docs_pages._PICTURE, (ROOT / "README.md").read_text()):
        assert (ROOT / path).is_file(), path


def test_links_out_of_docs_are_text_and_pictures_stay() -> None:
    text = "[x](../glake/a.py) ![y](../benchmarks/b/c.svg) [z](real.md) [r](../README.md#a)"
    found = docs_pages.on_page_markdown(text)
    assert found == "x (`glake/a.py`) ![y](c.svg) [z](real.md) [r](index.md#a)"
