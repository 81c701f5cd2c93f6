"""Metrics as OpenTelemetry collects them."""

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import glake.metrics
from glake import _C

reader = InMemoryMetricReader()
glake.metrics.register_opentelemetry(MeterProvider([reader]))
assert not _C.driver_path()
_C.malloc(5 << 20, 1)
data = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
found = {each.name: each for each in data}
held = found["glake.allocated_bytes"]
(point,) = held.data.data_points
assert held.unit == "By" and dict(point.attributes) == {"device": "1"}
assert point.value == glake.stats(1)["allocated_bytes.all.current"]
assert found["glake.blocks"].unit == found["glake.driver_calls"].unit == ""
calls = found["glake.driver_calls"].data
assert calls.is_monotonic
created = [p.value for p in calls.data_points if p.attributes["call"] == "create"]
assert created == [glake.stats(1)["glake.driver_calls.create"]]
