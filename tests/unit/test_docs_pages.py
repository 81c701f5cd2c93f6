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


def test_links_out_of_docs_are_text_and_pictures_stay() -> None:
    text = "[x](../glake/a.py) ![y](../benchmarks/b/c.svg) [z](real.md)"
    assert docs_pages.on_page_markdown(text) == "x (`glake/a.py`) ![y](c.svg) [z](real.md)"
