"""A process that serves metrics forks, and ends its server while the child lives."""

import os
import signal
import urllib.error
import urllib.request

from glake import metrics

PATIENCE = 30
signal.alarm(PATIENCE)  # ends this process if a call waits for ever

metrics.serve_prometheus(0)  # nobody holds this one
server = metrics.serve_prometheus(0)
hold, let_go = os.pipe()
child = os.fork()
if child == 0:
    signal.alarm(PATIENCE)
    os.close(let_go)
    server.close()  # it is the parent's
    with metrics.serve_prometheus(0):  # the child's own
        os.read(hold, 1)
    os._exit(0)
url = f"http://127.0.0.1:{server.port}/metrics"
assert b"glake_readable" in urllib.request.urlopen(url, timeout=PATIENCE).read()
server.close()
server.close()
try:
    urllib.request.urlopen(url, timeout=PATIENCE)
    raise AssertionError("somebody answers")
except urllib.error.URLError as error:
    assert isinstance(error.reason, ConnectionRefusedError), error
metrics.serve_prometheus(server.port).close()
os.close(let_go)
assert os.waitpid(child, 0)[1] == 0
