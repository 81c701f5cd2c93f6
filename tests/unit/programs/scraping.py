"""Scrapes as Prometheus does."""

import urllib.request


def scrape(server):
    url = f"http://127.0.0.1:{server.port}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        lines = answer.read().decode().splitlines()
    found = {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in lines
        if not line.startswith("#")
    }
    kinds = dict(line.split(" ")[2:] for line in lines if line.startswith("# TYPE"))
    return found, kinds
