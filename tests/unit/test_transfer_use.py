"""glake.transfer as a user meets it: the driver in force, typed errors, plans that are cheap."""

from dataclasses import replace
from pathlib import Path

import pytest
from own_python import output

from glake import errors
from glake.platforms import file_text
from glake.transfer import bounds, planning, topology
from glake.transfer.topology import picture

PROGRAMS = Path(__file__).parent / "programs"


def lines(name: str, *arguments: str, **options: str) -> list[str]:
    """The lines that a program prints. `options` are GLAKE_* variables without their prefix."""
    given = {f"GLAKE_{name}": value for name, value in options.items()}
    return output(PROGRAMS / name, *arguments, **given).splitlines()


@pytest.mark.parametrize("opened", ["driver", "engine"])
def test_the_topology_is_that_of_the_driver_in_force(opened: str) -> None:
    program = ("topology_in_force.py", opened)
    assert lines(*program) == ["dgx1v dgx1v", "dgx1v"]
    assert lines(*program, DRIVER="sim:dgx_a100") == ["dgx1v dgx1v", "dgx1v"]


def test_a_file_as_a_preset_is_told_the_way() -> None:
    with pytest.raises(errors.InvalidOption, match="GLAKE_SIM_PLATFORMS=FILE"):
        topology.current({"GLAKE_DRIVER": "sim:/box/odd.json"})
    with pytest.raises(errors.InvalidOption) as refused:
        topology.current({"GLAKE_DRIVER": "sim:odd"})
    assert "GLAKE_SIM_PLATFORMS" not in str(refused.value)


def test_errors_are_typed() -> None:
    assert lines("transfer_errors.py", DRIVER="sim:dgx_a100", SIM_MEMORY="128MiB") == []


def test_an_engine_without_links_plans_for_the_gpus_there_are() -> None:
    assert lines("plans_without_links.py", DRIVER="sim", SIM_DEVICES="2") == ["1", *["True"] * 3]


def test_every_method_of_a_parents_handle_is_forked() -> None:
    assert lines("forked_handles.py", DRIVER="sim:dgx_a100", SIM_MEMORY="128MiB") == ["0 True"]


def test_what_plans_share_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    for name in ("_relays_from", "planner_of", "graph_of"):
        real = getattr(planning, name)
        monkeypatch.setattr(
            planning,
            name,
            lambda *given, n=name, f=real, **more: asked.append(n) or f(*given, **more),
        )
    solve = bounds._maximum
    monkeypatch.setattr(bounds, "_maximum", lambda *given: asked.append("bound") or solve(*given))
    box = replace(topology.from_preset("dgx_a100"), name="plans_share")
    first = planning.explain(src="cpu", dst="cuda:0", nbytes=1 << 30, platform=box)
    text = str(first)
    assert sorted(asked) == ["_relays_from", "bound", "graph_of", "planner_of"]
    again = planning.explain(src="cpu", dst="cuda:0", nbytes=1 << 30, platform=box)
    other = planning.explain(src="cpu", dst="cuda:0", nbytes=64 << 20, platform=box)
    assert again == first and str(again) == text and other.bound == first.bound
    assert len(asked) == 4 and "64 MiB" in str(other)
    slow = planning.explain(
        src="cpu", dst="cuda:0", nbytes=1 << 30, platform=box, scales={"s0>u0": 0.5}
    )
    assert slow.bound < first.bound and slow.rate < first.rate


def test_links_measured_anew_are_planned_anew() -> None:
    box = replace(topology.from_preset("dgx_a100"), name="measured_anew")
    before = planning.explain(src="cpu", dst="cuda:0", nbytes=1 << 30, platform=box)
    edges = tuple(
        replace(edge, gb_per_s=edge.gb_per_s / 2) if edge.name == "s0>u0" else edge
        for edge in box.platform.edges
    )
    measured = replace(box, platform=replace(box.platform, edges=edges))
    after = planning.explain(src="cpu", dst="cuda:0", nbytes=1 << 30, platform=measured)
    assert after.bound < before.bound and after.rate < before.rate
    assert f"{after.bound:.1f} GB/s" in str(after)


def test_a_platforms_file_that_changes_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "box.json"
    for count in (2, 4):
        box = topology.first_gpus(topology.from_preset("dgx_a100").platform, count)
        made = tmp_path / "made"
        made.write_text(file_text({"box": box}))
        made.replace(file)
        found = topology.current({"GLAKE_DRIVER": "sim:box", "GLAKE_SIM_PLATFORMS": str(file)})
        assert found.platform.gpus == count


def test_a_picture_that_cannot_be_is_refused_by_its_name() -> None:
    with pytest.raises(errors.InvalidArgument, match=r"^/nowhere/odd\.png cannot be written: give"):
        picture.draw(topology.from_preset("dgx1v"), Path("/nowhere/odd.png"))
