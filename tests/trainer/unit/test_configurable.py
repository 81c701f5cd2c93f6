"""Configs: nesting, checks, paths, files, swaps."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any, Literal

import pytest

from glake.errors import FileFailed, InvalidOption, UnknownOption
from glake.trainer.configurable import Configurable, child


class Wheel(Configurable):
    class Config(Configurable.Config):
        inches: int = 26

    def __init__(self, config: Config, *, colour: str) -> None:
        super().__init__(config)
        self.colour = colour


class SpokedWheel(Wheel):
    class Config(Wheel.Config):
        spokes: int = 32


class CoveredWheel(Wheel):
    class Config(Wheel.Config):
        inside: Wheel.Config = child(Wheel.Config)


class Bell(Configurable):
    pass


class Shirt(Configurable):
    class Config(Configurable.Config):
        size: Literal["small", "large"] | None = None


class Bike(Configurable):
    class Config(Configurable.Config):
        name: str
        colour: str = "red"
        weight: float = 9.5
        sold: bool = False
        kind: Literal["road", "city"] = "road"
        front: Wheel.Config = child(Wheel.Config, inches=28)
        bell: Bell.Config | None = None
        sizes: tuple[int, ...] = (50, 52)
        limit: int | None = None

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.front = config.front.build(colour=config.colour)


def bike(**fields: Any) -> Bike.Config:
    return Bike.Config(name="one", **fields)


def test_builds_the_tree_from_a_copy() -> None:
    config = bike()
    built = config.build()
    config.set("front.inches", 20)
    assert isinstance(built.front, Wheel) and built.front.colour == "red"
    assert built.config.front.inches == built.front.config.inches == 28


def test_every_parent_has_children_of_its_own() -> None:
    one, two = bike(), bike()
    one.front.inches = 1
    assert two.front.inches == 28


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: bike(colur="x"),
        lambda: setattr(bike(), "colur", "x"),
        lambda: bike().set("colur", "x"),
        lambda: bike().get("colur"),
        lambda: Bike.Config.from_dict({"colur": "x"}),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(wrong: Any) -> None:
    with pytest.raises(UnknownOption, match="Bike has no option 'colur' .did you mean 'colour'"):
        wrong()


def test_an_unknown_key_below_says_where() -> None:
    with pytest.raises(UnknownOption, match="front: Wheel has no option 'inch'"):
        bike(front={"inch": 3})
    with pytest.raises(UnknownOption, match="nothing named 'x' in 'red'"):
        bike().set("colour.x", 3)


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("name", 3, "name: 3 is no str"),
        ("front.inches", "28", "inches: '28' is no int"),
        ("front.inches", True, "inches: True is no int"),
        ("front.inches", 1.0, "inches: 1.0 is no int"),
        ("sold", 1, "sold: 1 is no bool"),
        ("weight", "9", "weight: '9' is no float"),
        ("kind", "boat", "kind: 'boat' is none of 'road', 'city'"),
        ("front", bike(), "front: Bike is no config of a Wheel"),
        ("front", None, "front: None is no config of a Wheel"),
        ("sizes", [1, "a"], "sizes: 1: 'a' is no int"),
        ("sizes", {}, "sizes: {} is no list of int"),
        ("limit", "x", "limit: 'x' is no int"),
        ("bell", Wheel.Config(), "bell: Wheel is no config of a Bell"),
    ],
)
def test_a_wrong_type_is_refused_and_changes_nothing(path: str, value: Any, text: str) -> None:
    config = bike()
    with pytest.raises(InvalidOption, match=text):
        config.set(path, value)
    assert config == bike()


def test_options_that_may_be_none_are_unset_and_listed() -> None:
    config = bike(limit=3)
    config.set_text("limit", "none")
    config.set_text("colour", "none")  # a text like any other
    assert config.limit is None and config.colour == "none"
    assert ("limit", "int") in list(config.unset())
    assert ("size", "'small' or 'large'") in list(Shirt.Config().unset())  # what it may be


def test_an_option_cannot_be_deleted() -> None:
    config = bike()
    with pytest.raises(InvalidOption, match="front: an option cannot be deleted"):
        del config.front
    assert config == bike()


def test_no_number_is_no_value() -> None:
    with pytest.raises(InvalidOption, match="weight: nan is no number that an option may be"):
        bike().set_text("weight", "nan")


def test_where_no_name_is_near_there_is_what_it_has() -> None:
    with pytest.raises(UnknownOption, match="Bike has no option 'qqqq'; it has: "):
        bike().set("qqqq", 1)


def test_an_int_may_stand_for_a_float() -> None:
    config = bike(weight=9)
    assert config.weight == 9.0 and type(config.weight) is float


def test_set_text_reads_toml_or_takes_the_text() -> None:
    config = bike()
    for path, text in [("weight", "1e-3"), ("sold", "true"), ("colour", "deep blue")]:
        config.set_text(path, text)
    config.set_text("front", "{class = 'test_configurable:SpokedWheel', spokes = 3}")
    assert (config.weight, config.sold, config.colour) == (1e-3, True, "deep blue")
    assert config.front == SpokedWheel.Config(spokes=3)


def test_a_text_may_look_like_a_number_or_a_date() -> None:
    config = bike()
    for text in ("2026", "2026-11-30", "1e5", "true", "0x10"):
        config.set_text("colour", text)
        assert config.colour == text
    with pytest.raises(InvalidOption, match="True is no float"):
        config.set_text("weight", "true")


def test_visit_replaces_every_node_once() -> None:
    config = bike()
    root = config.visit(Wheel.Config, lambda wheel: CoveredWheel.Config(inside=wheel))
    assert root is config
    assert config.get("front.inside.inches") == 28
    assert isinstance(Wheel.Config().visit(Wheel.Config, lambda _: Bell.Config()), Bell.Config)


def test_visit_keeps_a_node_edited_in_place() -> None:
    config = bike()
    config.visit(Wheel.Config, lambda wheel: wheel.set("inches", 7))
    assert config.front.inches == 7


def test_dict_names_the_classes_and_comes_back() -> None:
    config = bike(front=SpokedWheel.Config(spokes=9), bell=Bell.Config(), limit=3)
    plain = config.to_dict()
    assert plain["front"]["class"] == f"{__name__}:SpokedWheel"
    assert Bike.Config.from_dict(plain) == config
    assert "bell" not in bike().to_dict()


@pytest.mark.parametrize(
    ("named", "text"),
    [
        ("os:system", "no subclass of Configurable"),
        ("glake.errors:GlakeError", "no subclass of Configurable"),
        ("glake.no_such:Thing", "No module named 'glake.no_such'"),
        ("antigravity:fly", "must be imported first"),
        (f"{__name__}:Bike.Config", "no subclass of Configurable"),
        ("Bike", "not written as"),
        (3, "not written as"),
    ],
)
def test_only_parts_may_be_named(named: Any, text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        Bike.Config.from_dict({"class": named, "name": "x"})


def test_a_missing_option_is_named() -> None:
    with pytest.raises(InvalidOption, match="Bike needs the option 'name'"):
        Bike.Config.from_dict({})
    with pytest.raises(InvalidOption, match="Wheel is no config of a Bike"):
        Bike.Config.from_dict(Wheel.Config().to_dict())


def test_a_file_brings_the_config_back(tmp_path: Path) -> None:
    config = bike(front=SpokedWheel.Config(), bell=Bell.Config(), weight=1e-9, colour='a "b"\n')
    path = tmp_path / "bike.toml"
    config.save(path)
    assert Bike.Config.load(path) == config
    assert path.read_text("utf-8") == str(config)
    assert [entry.name for entry in tmp_path.iterdir()] == ["bike.toml"]


def test_a_bad_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bike.toml"
    path.write_text("name = \n")
    with pytest.raises(InvalidOption, match=r"bike\.toml: no TOML: .*line 1"):
        Bike.Config.load(path)
    path.write_text("name = 'a'\ncolur = 'b'\n")
    with pytest.raises(UnknownOption, match=r"bike\.toml: Bike has no option 'colur'"):
        Bike.Config.load(path)
    with pytest.raises(FileFailed, match="none.toml"):
        Bike.Config.load(tmp_path / "none.toml")


def test_diff_names_what_differs() -> None:
    other = bike(front=SpokedWheel.Config(inches=28), limit=1)
    assert bike().diff(bike()) == {}
    assert bike().diff(other) == {
        "front.class": (f"{__name__}:Wheel", f"{__name__}:SpokedWheel"),
        "front.spokes": (None, 32),
        "limit": (None, 1),
    }


def test_copies_are_equal_and_separate() -> None:
    config = bike()
    for twin in (copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert twin == config
        twin.front.inches = 1
        assert twin != config


def test_a_part_without_a_config_gets_one_of_its_own() -> None:
    assert Bell.Config is not Configurable.Config
    assert isinstance(Bell.Config().build(), Bell)


def test_a_config_must_be_below_its_base() -> None:
    with pytest.raises(TypeError, match=r"must be a subclass of Wheel\.Config"):

        class Stray(Wheel):
            class Config(Configurable.Config):
                size: int = 1
