"""glake's metrics for OpenTelemetry."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from glake import extras
from glake.errors import PackageMissing, WrongType
from glake.metrics.metric import Metric, Samples
from glake.metrics.reading import Reading, metrics

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

_AGE = 0.1  # seconds: all instruments of a collection then use the same reading


def register_opentelemetry(provider: MeterProvider | None = None) -> None:
    """Makes an observable instrument for each of glake's metrics, by OpenTelemetry's own API.

    The instruments are read when the provider's reader collects. The provider has the exporters.
    After "glake" a name has a dot in place of Prometheus' underscore ("glake.transfer_path_bytes").
    Bytes have the unit "By", and the others none. Call it once for each provider, because its API
    cannot take instruments back.

    Args:
        provider: None: the process's global one.

    Raises:
        PackageMissing: opentelemetry-api is not installed.
        WrongType: `provider` is no provider of that package.
    """
    try:
        from opentelemetry import metrics as api
    except ImportError as error:
        raise PackageMissing(
            extras.missing("glake.metrics", "opentelemetry-api", "metrics", error)
        ) from None
    if not isinstance(provider, api.MeterProvider | None):
        raise WrongType(f"provider {provider!r}: a MeterProvider of OpenTelemetry, or None")
    meter = (provider or api.get_meter_provider()).get_meter("glake")
    recent = _Recent()
    for metric in metrics():
        make = meter.create_observable_counter if metric.counter else meter.create_observable_gauge
        make(
            f"glake.{metric.name}",
            callbacks=[_callback(metric, recent, api.Observation)],
            # Exporters to Prometheus append "_ratio" to a gauge of unit "1".
            unit="By" if metric.in_bytes else "",
            description=metric.help,
        )


class _Recent:
    """Keeps the last reading while it is recent."""

    def __init__(self) -> None:
        self._reading = Reading()
        self._read: dict[str, Samples] = {}
        self._at = float("-inf")
        self._lock = threading.Lock()

    def of(self, metric: Metric) -> Samples:
        """The values of the metric."""
        with self._lock:
            if time.monotonic() - self._at > _AGE:
                self._read = {each.metric.name: each for each in self._reading.read()}
                self._at = time.monotonic()
            return self._read.get(metric.name, Samples(metric))


def _callback(
    metric: Metric, recent: _Recent, observation: Any
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        for labels, value in recent.of(metric).values:
            yield observation(value, dict(zip(metric.labels, labels, strict=True)))

    return observe
