"""torch_memory_saver on glake's regions, its stored signatures, and when it is left as it is."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from own_python import output

from glake.integrations.memory_saver import MemorySaver

HERE = Path(__file__).resolve().parent
STORED = (HERE / "stored" / "memory_saver.txt").read_text().splitlines()[1:]


def signatures(of: type) -> list[str]:
    """Each public name of the class with its parameters, without annotations."""
    found = []
    for line in STORED:
        name = line.split()[0]
        attribute = getattr(of, name)
        if callable(attribute):
            plain = inspect.signature(attribute)
            bare = [p.replace(annotation=p.empty) for p in plain.parameters.values()]
            found.append(f"{name} {inspect.Signature(bare)}")
        else:
            found.append(f"{name} property")
    return found


def test_it_has_the_packages_signatures() -> None:
    assert signatures(MemorySaver) == STORED


@pytest.mark.parametrize("order", [(), ("imported first",)])
def test_calls_have_the_packages_meaning(program, order) -> None:
    assert program("memory_saver", *order).stdout == "saved\n"


def test_what_is_not_allowed_stays(program) -> None:
    code = HERE / "programs" / "left.py"
    assert code.exists()
    assert program("left", GLAKE_INTEGRATIONS="none").stdout == "left\n"
    assert program("left", GLAKE_INTEGRATIONS="").stdout == "hooked\n"


def test_an_untried_version_is_named_and_left(program, tmp_path) -> None:
    for version in ("0.0.8", "0.1", "1.0.0rc1"):
        packages = tmp_path / version
        info = packages / f"torch_memory_saver-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Name: torch_memory_saver\nVersion: {version}\n")
        path = f"{packages}:{HERE / 'packages'}:{HERE.parents[1]}"
        done = program("left", PYTHONPATH=path)
        assert done.stdout == "left\n"
        assert f"torch_memory_saver {version} is left as it is" in done.stderr
        assert "from 0.0.9 to below 0.1" in done.stderr


def test_without_the_package_or_the_allocator() -> None:
    missing, unknown = output(HERE / "programs" / "installs.py").splitlines()
    assert "torch_memory_saver is not installed" in missing
    assert "there are: cupy, deepspeed," in unknown
