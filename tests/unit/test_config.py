"""The option table: parsing, typed errors, and the same values in the core as in Python."""

from typing import Any

import pytest

from glake import config
from glake.errors import InvalidOption, UnknownOption


def test_defaults_need_no_environment() -> None:
    read = config.read({})
    assert read == config.Config()
    assert (read.driver, read.policy, read.limit, read.view_budget) == ("cuda", "balanced", None, 8)


@pytest.mark.parametrize("name", config.OPTIONS)
def test_an_empty_variable_is_as_one_not_set(name: str) -> None:
    assert config.read({f"GLAKE_{name}": ""}) == config.Config()


def test_variables_outside_glake_are_ignored() -> None:
    assert config.read({"PATH": "/bin", "XGLAKE_DRIVER": "?"}) == config.Config()


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("limit", "none", None),
        ("limit", "0.9", 0.9),
        ("limit", "90%", 0.9),
        ("limit", "100%", 1.0),
        ("limit", "1", 1.0),
        ("limit", "70GiB", 70 * 2**30),
        ("limit", "1.5GiB", 3 * 2**29),
        ("limit", "4194304", 4 * 2**20),
        ("driver", "sim:dgx_a100", "sim:dgx_a100"),
        ("driver", "./libfake.so", "./libfake.so"),
        ("policy", "compact", "compact"),
        ("allocator", "basic", "basic"),
        ("allocator", "off", "0"),
        ("strict", "1", True),
        ("intercept", "report", "report"),
        ("intercept_min", "1MiB", 2**20),
        ("view_budget", "2.5", 2.5),
        ("sim_memory", "64MiB", 64 * 2**20),
        ("sim_complete_after", "-1", -1),
        ("sim_complete_after", "auto", "auto"),
        ("sim_host_node", "3", 3),
        ("sim_context_memory", "0", 0),
        ("sim_context_memory", "616MiB", 616 * 2**20),
        ("sim_call_us", "cuMemMap=2+1+.5,,cuMemUnmap=3", "cuMemMap=2+1+.5,,cuMemUnmap=3"),
        ("sim_max_maps", "64", 64),
        ("sim_dead_link", "220", 220),
        ("sim_reuse_handles", "yes", True),
        ("headroom", "4GiB", 4 * 2**30),
        ("headroom", "none", 0),
        ("sim_devices", "4", 4),
        ("sim_host_node", "interleave", "interleave"),
        ("debug", "poison,guard", ("guard", "poison")),
        ("debug", "none", ()),
        ("trace", "/x/y.trace", "/x/y.trace"),
        ("contiguous", "64MiB", ("vmm", 64 * 2**20)),
        ("contiguous", "legacy:2MiB", ("legacy", 2 * 2**20)),
    ],
)
def test_values(name: str, text: str, value: Any) -> None:
    parsed = getattr(config.read({f"GLAKE_{name.upper()}": text}), name)
    assert parsed == value and type(parsed) is type(value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("contiguous", "1"),
        ("intercept", "maybe"),
        ("intercept_min", "0"),
        ("limit", "1.1"),
        ("limit", "0.0"),
        ("limit", "0.000000000001"),
        ("limit", "0.000001%"),
        ("limit", "0"),
        ("limit", "-3GiB"),
        ("limit", "101%"),
        ("limit", "70GB?"),
        ("limit", "1.3"),
        ("limit", "0.3B"),
        ("limit", "1MiB"),
        ("limit", "70gib"),
        ("policy", "COMPACT"),
        ("driver", "nvidia"),
        ("driver", "sim:"),
        ("policy", "best"),
        ("peers", "some"),
        ("copy_order", "events"),
        ("sim_driver_lock", "writer"),
        ("sim_call_time", "2"),
        ("sim_pcie_peers", "1"),
        ("view_budget", "0.5"),
        ("view_budget", "1001"),
        ("view_budget", "nan"),
        ("view_budget", "inf"),
        ("strict", "maybe"),
        ("sim_devices", "-1"),
        ("sim_host_node", "m0"),
        ("sim_seed", "x"),
        ("sim_schedule", "eager"),
        ("sim_complete_after", "-2"),
        ("sim_context_memory", "1MiB"),
        ("sim_max_maps", "63"),
        ("sim_dead_link", "100000"),
        ("sim_call_us", "cuMemMap=1+2+3+4"),
        ("sim_call_delay_us", "cuMemMap=1+2"),
        ("sim_call_delay_us", "cuMemMap=1000000000"),
        ("sim_machine", ".hidden"),
        ("sim_machine", "a" * 65),
    ],
)
def test_refused_values_name_the_value_and_what_is_taken(name: str, text: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        config.read({f"GLAKE_{name.upper()}": text})
    assert repr(text) in str(caught.value)
    assert config.lookup(name).takes in str(caught.value)


@pytest.mark.parametrize("text", ["all,none", "none,cupy"])
def test_no_integration_stands_alone(text: str) -> None:
    with pytest.raises(InvalidOption, match="'none' .none stands alone: leave it out") as caught:
        config.read({"GLAKE_INTEGRATIONS": text})
    assert "did you mean" not in str(caught.value)


def test_unknown_variable_suggests_the_nearest() -> None:
    with pytest.raises(UnknownOption, match="did you mean GLAKE_POLICY"):
        config.read({"GLAKE_POLCY": "compact"})
    with pytest.raises(UnknownOption, match="GLAKE_ZZZZZZ"):
        config.read({"GLAKE_ZZZZZZ": "1"})


def test_variables_checks_and_leaves_out_what_is_not_given() -> None:
    given = {"policy": "compact", "limit": None, "DRIVER": "sim"}
    assert config.variables(given) == {"GLAKE_POLICY": "compact", "GLAKE_DRIVER": "sim"}
    with pytest.raises(InvalidOption):
        config.variables({"policy": "tidy"})


def test_an_empty_limit_is_none_as_in_the_core() -> None:
    assert config.parse_limit("") is config.parse_limit("none") is None


def test_every_option_is_explained() -> None:
    for option in config.OPTIONS.values():
        assert option.meaning and option.takes
        assert option.reader in ("python", "core", "simulator", "preload")


TEXTS = {
    "limit": "none 0.000000000001 0.0000001 0.00000012 0.9"
    " .9 90% 100% 1 1.0 2MiB 1.5GiB 2097152 0 0.0 1.1 101% -1 1MiB 70gib 5GB x",
    "policy": "balanced compact COMPACT best",
    "peers": "none all some",
    "copy_order": "held enqueued HELD events",
    "debug": "none guard poison trace sync guard,poison trace,guard guard, ,guard guards GUARD x",
    "contiguous": "none 64MiB vmm:64MiB legacy:1.5GiB 1 vmm:1B 0 vmm: :1MiB host:1MiB vmm:none"
    " legacy:0 vmm:legacy:1MiB VMM:1MiB 65TiB -1 nan x",
    "view_budget": "1 8 2.5 1000 0.5 1001 nan inf x",
}


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name, all in TEXTS.items() for text in ["", *all.split()]]
)
def test_core_takes_the_same_values(name: str, text: str) -> None:
    from glake import _C

    try:
        config.parse(name, text)
    except InvalidOption:
        with pytest.raises(InvalidOption):
            _C.configure(name, text)
        return
    before = next(row["value"] for row in _C.options() if row["name"] == name)
    _C.configure(name, text)
    _C.configure(name, before)


def test_debug_needs_memory_to_read() -> None:
    with pytest.raises(InvalidOption, match="GLAKE_SIM_PHANTOM"):
        config.read({"GLAKE_DEBUG": "guard", "GLAKE_SIM_PHANTOM": "1"})
