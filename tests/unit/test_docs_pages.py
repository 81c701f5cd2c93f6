"""The pages of the documentation's site that tools/docs_pages.py makes."""

import re
import sys
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


def test_the_readmes_options_are_there_and_take_its_values() -> None:
    from glake import config

    readme = (ROOT / "README.md").read_text()
    rows = re.findall(r"^\| `GLAKE_(\w+)` \| (.*?) \|", readme, re.MULTILINE)
    assert len(rows) >= 10
    for name, takes in rows:
        assert name in config.OPTIONS, name
        for value in re.findall(r"`([\w.:%]+)`", takes):
            config.parse(name, value)


def test_a_picture_of_the_readme_is_one_of_the_site() -> None:
    text = docs_pages.moved("![bars](benchmarks/a/b.svg) ![x](https://e.org/c.svg)")
    assert text == "![bars](b.svg) ![x](https://e.org/c.svg)"
    for path in re.findall(docs_pages._PICTURE, (ROOT / "README.md").read_text()):
        assert (ROOT / path).is_file(), path


def test_links_out_of_docs_are_text_and_pictures_stay() -> None:
    text = "[x](../glake/a.py) ![y](../benchmarks/b/c.svg) [z](real.md) [r](../README.md#a)"
    found = docs_pages.on_page_markdown(text)
    assert found == "x (`glake/a.py`) ![y](c.svg) [z](real.md) [r](index.md#a)"
