"""glake's metrics for prometheus_client."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from glake import arguments, extras
from glake.errors import InvalidArgument, PackageMissing, WrongType
from glake.metrics.reading import Reading, metrics

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric as Family


class Collector:
    """Reads glake's statistics at each scrape: `REGISTRY.register(glake.metrics.Collector())`.

    Raises:
        PackageMissing: prometheus_client is not installed.
    """

    def __init__(self) -> None:
        self._core = _package()
        self._reading = Reading()

    def describe(self) -> Iterator[Family]:
        """The families of metrics without values, because registering must read nothing."""
        for metric in metrics():
            yield self._family(metric)

    def collect(self) -> Iterator[Family]:
        """The families of metrics that have values now, with these."""
        for samples in self._reading.read():
            family = self._family(samples.metric)
            for labels, value in samples.values:
                family.add_metric(labels, value)
            yield family

    def _family(self, metric: Any) -> Any:
        core = self._core.core
        kind = core.CounterMetricFamily if metric.counter else core.GaugeMetricFamily
        return kind(f"glake_{metric.name}", metric.help, labels=metric.labels)


_servers: set[Server] = set()  # that are not closed; nobody else may hold them


class Server:
    """Answers scrapes on a port until it is closed. As a context manager it closes at the end.

    A forked child has no server. It gives up its copy of the port at once, so that the parent can
    give the port back, and another process can take it.

    Attributes:
        address, port: where it listens.
    """

    def __init__(self, server: Any, thread: threading.Thread) -> None:
        self._server, self._thread = server, thread
        self.address, self.port = server.server_address[:2]
        self._forked = False
        _servers.add(self)

    def close(self) -> None:
        """Gives the port back. A second call, or one in a forked child, does nothing."""
        if self._forked:
            return
        _servers.discard(self)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def forget(self) -> None:
        """Called in a forked child, which has the socket of the parent's server but no thread."""
        self._forked = True
        self._server.socket.close()

    def __enter__(self) -> Server:
        """The server itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes it."""
        self.close()


def serve_prometheus(
    port: int, address: str = "127.0.0.1", registry: CollectorRegistry | None = None
) -> Server:
    """Serves glake's metrics at http://ADDRESS:PORT/metrics, on a thread.

    Args:
        port: the port; 0: any free one, which the server's `port` names.
        address: an address of this machine. With "0.0.0.0" other machines can scrape too, and so
            learn what this process does.
        registry: a registry with a Collector, and with metrics of your own; None: one with glake's
            metrics alone.

    Raises:
        InvalidArgument: there is no such port or address, or it is in use.
        PackageMissing: prometheus_client is not installed.
        WrongType: another kind of registry.
    """
    number = arguments.whole(port)
    if number is None or not 0 <= number < 65536:
        raise InvalidArgument(f"port {port!r}: 0 to 65535")
    if not isinstance(address, str):
        raise InvalidArgument(f'address {address!r}: text such as "127.0.0.1"')
    package = _package()
    if not isinstance(registry, package.CollectorRegistry | None):
        raise WrongType(f"registry is a CollectorRegistry or None, not {registry!r}")
    if registry is None:
        registry = package.CollectorRegistry()
        registry.register(Collector())
    try:
        server, thread = package.start_http_server(number, address, registry)
    except (OSError, UnicodeError) as error:  # UnicodeError: no name of a machine
        raise InvalidArgument(f"cannot serve on {address}:{number}: {error}") from None
    return Server(server, thread)


def _after_fork() -> None:
    for server in list(_servers):
        server.forget()
    _servers.clear()


os.register_at_fork(after_in_child=_after_fork)


def _package() -> Any:
    try:
        import prometheus_client
        import prometheus_client.core
    except ImportError as error:
        raise PackageMissing(
            extras.missing("glake.metrics", "prometheus_client", "metrics", error)
        ) from None
    return prometheus_client
