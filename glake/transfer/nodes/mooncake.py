"""Uses Mooncake's transfer engine between nodes."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ClassVar

from glake import extras
from glake.errors import InvalidArgument, PackageMissing, PeerFailed, PeerRefused
from glake.transfer.nodes.backend import Backend, NetworkRead

_PROTOCOLS = ("tcp", "rdma", "efa")
_THREADS = 16  # each read keeps a thread until the read ends
# Seconds. The engine gives up a read after a limit of its own, 5 s or more. So a read that fails
# after more than this time was given up, and its bytes may still come until the engine is closed.
_GIVEN_UP = 4.0


class Mooncake(Backend):
    """Mooncake's engine carries the bytes, without a metadata server of its own.

    A read from a peer that stands still ends by the engine's own limit (MC_TRANSFER_TIMEOUT), and
    close() waits for it.

    Args:
        protocol: "tcp", "rdma" or "efa".
        device: network devices, such as "mlx5_0"; empty: the engine's choice.

    Raises:
        InvalidArgument: another protocol, or devices that are no text.
    """

    name: ClassVar[str] = "mooncake"

    def __init__(self, protocol: str = "tcp", device: str = "") -> None:
        if protocol not in _PROTOCOLS:
            raise InvalidArgument(f"protocol {protocol!r}: one of {', '.join(_PROTOCOLS)}")
        if not isinstance(device, str):
            raise InvalidArgument(f'device {device!r}: network devices as a text, such as "mlx5_0"')
        self._protocol, self._device = protocol, device
        self._engine: Any = None
        self._address = 0
        self._metadata = b""
        self._threads: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    @staticmethod
    def present() -> bool:
        """Whether its package is installed."""
        return extras.present("mooncake") and extras.present("mooncake.engine")

    def open(self, address: int, size: int, host: str) -> None:
        if self._engine is not None:
            raise InvalidArgument("this Mooncake is another node's: make one for each")
        engine = _engine()
        at = f"[{host}]" if ":" in host else host
        if engine.initialize(at, "P2PHANDSHAKE", self._protocol, self._device):
            raise PeerFailed(f"Mooncake does not start on {host} by {self._protocol}: see its log")
        if engine.register_memory(address, size):
            raise PeerFailed(f"Mooncake does not take {size} bytes of memory: see its log")
        self._metadata = json.dumps([at, engine.get_rpc_port(), self._protocol]).encode()
        self._engine, self._address = engine, address
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="glake-mooncake")

    def metadata(self) -> bytes:
        return self._metadata

    def add(self, metadata: bytes) -> str:
        try:
            host, port, protocol = json.loads(metadata)
        except (ValueError, TypeError, RecursionError):
            host, port, protocol = None, None, None
        known = type(host) is str and host.isprintable() and 0 < len(host) < 256
        if not known or type(port) is not int or not 0 < port < 65536:
            raise PeerRefused("the peer's metadata is not that of Mooncake's engine")
        if protocol != self._protocol:
            raise PeerRefused(f"the peer's Mooncake goes by {protocol!r}, this by {self._protocol}")
        return f"{host}:{port}"

    def remove(self, peer: str) -> None:
        """Does nothing, because the engine keeps no peers from which it does not read.

        Args:
            peer: its name here.
        """

    def read(self, peer: str, local: int, remote: int, size: int) -> NetworkRead:
        with self._lock:
            if self._threads is None:
                raise PeerFailed("Mooncake's engine is closed")
            read = self._engine.transfer_sync_read
            return _Read(self._threads.submit(read, peer, local, remote, size))

    def close(self) -> None:
        with self._lock:
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=True)
            self._engine.unregister_memory(self._address)
            self._engine = None


class _Read(NetworkRead):
    def __init__(self, going: Future[int]) -> None:
        self._going, self._began = going, time.monotonic()
        self._late = False

    def over(self) -> bool:
        if not self._going.done():
            self._late = time.monotonic() - self._began > _GIVEN_UP
            return False
        if self._late and (self._going.exception() is not None or self._going.result() != 0):
            return False
        if (error := self._going.exception()) is not None:
            raise PeerFailed(f"Mooncake: {type(error).__name__}: {error}")
        if self._going.result() != 0:
            raise PeerFailed(f"Mooncake: a read ended with {self._going.result()}: see its log")
        return True


def _engine() -> Any:
    need, package = "a Node over Mooncake", "mooncake-transfer-engine"
    try:
        from mooncake.engine import TransferEngine
    except ModuleNotFoundError:
        raise PackageMissing(extras.missing(need, package, "nodes-mooncake")) from None
    except ImportError as error:  # without libibverbs.so.1 it does not load
        raise PackageMissing(extras.missing(need, package, "nodes-mooncake", error)) from None
    return TransferEngine()
