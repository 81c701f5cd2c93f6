"""Uses NIXL's agent as the engine between nodes."""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import threading
import uuid
from collections.abc import Mapping
from typing import Any, ClassVar

from glake import extras
from glake.errors import InvalidArgument, PackageMissing, PeerFailed, PeerRefused
from glake.transfer.nodes.backend import Backend, NetworkRead

_CLOSED = "NIXL's agent is closed"
_PACKAGES = ("nixl", "nixl_cu13", "nixl_cu12", "nixl_rocm")  # for all kinds of GPU, or for one kind


class Nixl(Backend):
    """Carries the bytes by NIXL. UCX goes over RDMA, or over TCP if there is no RDMA.

    Over TCP, UCX ends this process if a peer is killed while it reads from this node. Use "tcp"
    there (docs/nodes.md).

    Args:
        plugin: NIXL's backend: "UCX", or another that reads host memory.
        options: options of that backend, such as {"ucx_devices": "mlx5_0:1"}. UCX reads its own
            options (UCX_TLS, UCX_NET_DEVICES) from the environment.

    Raises:
        InvalidArgument: a plugin that is no text, or options that are not texts by name.
    """

    name: ClassVar[str] = "nixl"

    def __init__(self, plugin: str = "UCX", options: Mapping[str, str] | None = None) -> None:
        if not isinstance(plugin, str) or not plugin:
            raise InvalidArgument(f'plugin {plugin!r}: the name of a backend of NIXL\'s, as "UCX"')
        self._plugin, self._options = plugin, _texts(options)
        self._agent: Any = None
        self._registered: Any = None
        self._metadata = b""
        self._lock = threading.Lock()  # one thread at a time may use an agent

    @staticmethod
    def present() -> bool:
        """Whether one of its packages is installed."""
        return any(map(extras.present, _PACKAGES))

    def open(self, address: int, size: int, host: str) -> None:
        if self._agent is not None:
            raise InvalidArgument("this Nixl is another node's: make one for each")
        api = _api()
        try:
            agent = api.nixl_agent(f"glake-{uuid.uuid4().hex}", api.nixl_agent_config(backends=[]))
            if self._plugin not in agent.get_plugin_list():
                raise PeerFailed(
                    f"NIXL has no backend {self._plugin!r}: {', '.join(agent.get_plugin_list())}"
                )
            agent.create_backend(self._plugin, self._devices(host) | self._options)
            self._registered = agent.register_memory([(address, size, 0, "")], "DRAM")
            self._metadata = bytes(agent.get_agent_metadata())
        except PeerFailed:
            raise
        except Exception as error:  # NIXL's errors share no base class
            raise PeerFailed(f"NIXL does not start: {_said(error)}") from None
        self._agent = agent

    def _devices(self, host: str) -> dict[str, str]:
        """Restricts the networks. Without this UCX listens on every network, even for a node that
        only this machine uses."""
        local = host == "localhost" or host == "::1" or host.startswith("127.")
        if self._plugin != "UCX" or not local or "UCX_NET_DEVICES" in os.environ:
            return {}
        return {"ucx_devices": "lo"}

    def metadata(self) -> bytes:
        return self._metadata

    def add(self, metadata: bytes) -> str:
        with self._lock:
            if self._agent is None:
                raise PeerFailed(_CLOSED)
            try:
                name = self._agent.add_remote_agent(metadata)
            except Exception as error:
                raise PeerRefused(f"NIXL does not know this peer: {_said(error)}") from None
        return name.decode() if isinstance(name, bytes) else str(name)

    def remove(self, peer: str) -> None:
        with self._lock, contextlib.suppress(Exception):  # NIXL may have dropped the peer already
            self._agent.remove_remote_agent(peer)

    def read(self, peer: str, local: int, remote: int, size: int) -> NetworkRead:
        with self._lock:
            agent = self._agent
            if agent is None:
                raise PeerFailed(_CLOSED)
            try:
                handle = agent.initialize_xfer(
                    "READ",
                    agent.get_xfer_descs([(local, size, 0)], "DRAM"),
                    agent.get_xfer_descs([(remote, size, 0)], "DRAM"),
                    peer,
                )
                state = agent.transfer(handle)
            except Exception as error:
                raise PeerFailed(f"NIXL: {_said(error)}") from None
        return _Read(agent, handle, state, self._lock)

    def close(self) -> None:
        with self._lock:
            agent, self._agent = self._agent, None
            if agent is None:
                return
            with contextlib.suppress(Exception):
                agent.deregister_memory(self._registered)
            self._registered = None
            # Reads stop only when NIXL's C++ agent ends. Reads may still refer to the Python
            # object, so the C++ agent inside it is dropped here.
            agent.agent = None
            del agent
        gc.collect()


class _Read(NetworkRead):
    """A read. Its handle is released only when the read has ended, because over TCP NIXL takes a
    handle back while bytes still arrive."""

    def __init__(self, agent: Any, handle: Any, state: str, lock: threading.Lock) -> None:
        self._agent, self._handle, self._state, self._lock = agent, handle, state, lock

    def over(self) -> bool:
        with self._lock:
            if self._agent is None:
                return True
            try:
                if self._state == "PROC":
                    self._state = self._agent.check_xfer_state(self._handle)
            except Exception as error:
                self._release()
                raise PeerFailed(f"NIXL: {_said(error)}") from None
            if self._state == "PROC":
                return False
            self._release()
        if self._state != "DONE":
            raise PeerFailed(f"NIXL: a read ended as {self._state}")
        return True

    def _release(self) -> None:
        with contextlib.suppress(Exception):
            self._agent.release_xfer_handle(self._handle)
        self._agent = self._handle = None


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _api() -> Any:
    for package in _PACKAGES:
        if not extras.present(package):
            continue
        try:
            api = importlib.import_module(f"{package}._api")
            if "NIXL_LOG_LEVEL" not in os.environ:  # it greets on the program's standard output
                logging.getLogger("nixl").setLevel(logging.WARNING)
            return api
        except ImportError as error:
            raise PackageMissing(
                extras.missing("a Node over NIXL", "nixl", "nodes", error)
            ) from None
    raise PackageMissing(extras.missing("a Node over NIXL", "nixl", "nodes"))


def _texts(options: Any) -> dict[str, str]:
    given = {} if options is None else options
    if not isinstance(given, Mapping) or not all(
        isinstance(each, str) for pair in given.items() for each in pair
    ):
        raise InvalidArgument(
            f'options {options!r}: texts by name, such as {{"ucx_devices": "mlx5_0:1"}}'
        )
    return dict(given)
