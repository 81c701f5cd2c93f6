"""The HTML report: well-formed, self-contained, escaped, and with the numbers of the JSON."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from glake import _C
from glake.cli import main
from glake.trace import html
from glake.trace.cli import replay as command
from glake.trace.policies import known
from glake.trace.replay import load_trace, policies, replay
from glake.trace.report import to_json

pytest.importorskip("jinja2")

MIB = 1 << 20
TRACES = Path(__file__).resolve().parents[1] / "traces"
VARYING = str(TRACES / "gpt-varying.trace.gz")
FIXED = str(TRACES / "gpt-fixed.trace.gz")
NASTY = "</script><script>alert(1)</script><img/src=x>&amp;\"'"


class Page(HTMLParser):
    """A page's elements in order, checked for proper nesting, with the text each holds."""

    VOID = {"meta", "link", "br", "img", "input", "hr", "rect", "path"}

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self._open: list[tuple[str, list[str]]] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        held: list[str] = []
        self.elements.append((tag, dict(attrs), held))
        if tag not in self.VOID:
            self._open.append((tag, held))

    def handle_endtag(self, tag):
        assert self._open, f"</{tag}> ends nothing"
        opened, _ = self._open.pop()
        assert opened == tag, f"<{opened}> is ended by </{tag}>"

    def handle_data(self, data):
        for _, held in self._open:
            held.append(data)

    def all(self, tag, **wanted):
        return [
            (attrs, " ".join("".join(held).split()))
            for name, attrs, held in self.elements
            if name == tag and all(attrs.get(key) == value for key, value in wanted.items())
        ]

    @property
    def text(self):
        (found,) = self.all("body")
        return found[1]

    @property
    def data(self):
        (found,) = self.all("script", id="data")
        return json.loads(found[1])


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments))


def page_of(tmp_path, text, names="native", capacity=None, name="job.trace"):
    """The page of a trace given as text, and its results."""
    path = tmp_path / name
    path.write_text(text)
    trace = load_trace(path)
    results = [
        replay(trace, each, capacity=capacity, layout_at="peak") for each in names.split(",")
    ]
    html.write(tmp_path / "out.html", trace, results)
    return Page((tmp_path / "out.html").read_text()), results


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """Two traces under every policy, one of them out of memory under some."""
    out = tmp_path_factory.mktemp("report") / "out.html"
    names = ",".join(policies())
    ran = run(
        VARYING, FIXED, "--policy", names, "--capacity", "1.03x", "--json", "--html", str(out)
    )
    assert ran.exit_code == 0, ran.stderr
    return out.read_text(), Page(out.read_text()), json.loads(ran.stdout)


def test_each_policy_is_replayed_once(tmp_path, monkeypatch):
    replayed = []

    def counted(trace, policy, *rest, native=_C.replay):
        replayed.append(policy)
        return native(trace, policy, *rest)

    monkeypatch.setattr(_C, "replay", counted)
    names = ["glake", "native", "expandable", "bound"]
    out = tmp_path / "out.html"
    ran = run(VARYING, "--policy", ",".join(names), "--capacity", "1.03x", "--html", str(out))
    assert ran.exit_code == 0, ran.stderr
    assert replayed == names
    page = Page(out.read_text())
    drawn = [each["name"] for each in page.data[0]["policies"] if each["tape"]]
    assert drawn == names[:3]  # the bound places nothing
    assert "after the request that was refused, event" in page.text  # native refused one


def test_results_without_a_layout_have_no_map(tmp_path):
    trace = load_trace(VARYING)
    html.write(tmp_path / "out.html", trace, [replay(trace, "native")])
    page = Page((tmp_path / "out.html").read_text())
    assert page.data[0]["policies"][0]["tape"] is None


def test_it_needs_nothing_but_itself(full):
    text, page, _ = full
    for tag, attributes, _ in page.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form")
        assert not {"src", "href", "srcset", "action", "data"} & set(attributes), (tag, attributes)
        assert not [key for key in attributes if key.startswith("on")], (tag, attributes)
    assert not re.search(r"https?://|//cdn|@import", text)
    assert "url(" not in text
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)


def test_only_its_own_script_may_run(full):
    _, page, _ = full
    scripts = [held for tag, attrs, held in page.elements if tag == "script" and not attrs]
    assert len(scripts) == 1
    printed = base64.b64encode(hashlib.sha256("".join(scripts[0]).encode()).digest()).decode()
    ((policy, _),) = page.all("meta", **{"http-equiv": "Content-Security-Policy"})
    assert "default-src 'none'" in policy["content"]
    assert f"script-src 'sha256-{printed}'" in policy["content"]


def test_every_policy_of_every_trace_is_in_it(full):
    _, page, results = full
    jobs = page.data
    assert len(jobs) == 2
    assert [each["name"] for job in jobs for each in job["policies"]] == [
        each["policy"] for each in results
    ]
    cards = page.all("article")
    shown = [attrs for attrs, _ in cards if "data-policy" in attrs]
    assert [(each["data-policy"], each["data-fits"]) for each in shown] == [
        (each["policy"], "no" if each["oom"] else "yes") for each in results
    ]
    assert {each["data-fits"] for each in shown} == {"yes", "no"}


def test_the_summary_has_the_numbers_of_the_json(full):
    _, page, results = full
    cells = page.all("td")
    for key in (
        "peak_physical_bytes",
        "utilisation",
        "time_avg_utilisation",
        "driver_calls_per_step",
        "driver_us_per_step",
        "stream_waits_per_step",
        "host_ns_alloc",
    ):
        shown = [attrs.get("data-value") for attrs, _ in cells if attrs.get("data-key") == key]
        assert shown == [None if each[key] is None else str(each[key]) for each in results], key
    texts = [text for attrs, text in cells if attrs.get("data-key") == "peak_physical_bytes"]
    assert texts == [f"{each['peak_physical_bytes'] / (1 << 30):.2f} GiB" for each in results]


def test_curves_and_steps_are_those_of_the_replay(full):
    _, page, results = full
    drawn = [each for job in page.data for each in job["policies"]]
    for each, wanted in zip(drawn, results, strict=True):
        assert max(each["physical"]) == wanted["peak_physical_bytes"]
        assert each["events"] == wanted["events"]
        assert each["oom"] == (wanted["oom"] and wanted["oom"]["event"])
        assert each["calls"] == [step["driver_calls"] for step in wanted["steps"]]
        assert each["waits"] == [step["stream_waits"] for step in wanted["steps"]]
    for job, wanted in zip(page.data, (results[0], results[-1]), strict=True):
        assert max(job["peaks"]["live"]) == wanted["trace_peak_live_bytes"]


def test_maps_hold_what_the_replay_held_at_the_jobs_peak(full):
    _, page, results = full
    drawn = [(job["unit"], each) for job in page.data for each in job["policies"]]
    traces = {each["trace"]: load_trace(each["trace"]) for each in results}
    maps = 0
    for (unit, each), wanted in zip(drawn, results, strict=True):
        if each["tape"] is None:
            assert known()[wanted["policy"]].kind == "bound"
            continue
        maps += 1
        trace, oom = traces[wanted["trace"]], wanted["oom"]
        again = replay(
            trace,
            wanted["policy"],
            capacity=wanted["capacity_bytes"],
            complete_after=wanted["complete_after"],
            layout_at=trace.peak_live_event if oom is None else "peak",
        )
        held = sum(segment.bytes for segment in again.layout.segments)
        assert sum(piece for piece, _ in pieces(each["tape"], unit)) == held
        assert held <= wanted["peak_physical_bytes"]
        live = sum(live for _, live in pieces(each["tape"], unit))
        if oom is None:
            assert live >= wanted["trace_peak_live_bytes"]
    assert maps == len(page.all("figure", **{"data-chart": "map"})) > 0


def pieces(tape, unit):
    """(bytes, live bytes) of each piece of a map."""
    for _, flat in tape:
        numbers = iter(flat)
        for number in numbers:
            held, state = number // 4 * unit, number % 4
            live = held if state == 1 else 0
            if state == 3:
                live = next(numbers) * unit
                next(numbers)
            yield held, live


def test_out_of_memory_is_explained(full):
    _, page, results = full
    failed = [each for each in results if each["oom"]]
    messages = [text for _, text in page.all("pre")]
    assert messages == [" ".join(each["oom"]["message"].split()) for each in failed]
    native = next(each for each in failed if each["policy"] == "native")
    assert f"native: step {native['oom']['step']}, event {native['oom']['event']:,}" in page.text
    assert "were live in a capacity of" in page.text


def test_it_stays_small(full):
    assert len(full[0].encode()) < 1_000_000


def test_a_hundred_thousand_events_stay_below_a_megabyte(tmp_path):
    lines = []
    for step in range(100):
        lines.append(f"s {step}")
        sizes = [512 * (1 + (step * 7 + i * 13) % 999) for i in range(500)]
        lines += [
            f"a {i} {nbytes} {i % 3} forward;layer{i};op{step}" for i, nbytes in enumerate(sizes)
        ]
        lines += [f"f {(i * 7) % 500}" for i in range(500)]
    page_of(tmp_path, "\n".join(lines) + "\n", "native,expandable")
    assert (tmp_path / "out.html").stat().st_size < 1_000_000


def test_nothing_of_a_trace_becomes_markup(tmp_path):
    tag = f"forward;{NASTY}"
    text = f"# job: {NASTY}\n# {NASTY[:9]}: x\n# model: {NASTY}\ns 0\na 0 {30 * MIB} 0 {tag}\n"
    text += f"a 1 {30 * MIB} 0 {tag}\n"
    # The name of a file holds no slash. It can hold the rest of NASTY.
    page, _ = page_of(
        tmp_path, text, capacity=40 * MIB, name=NASTY.replace("/", "").replace(" ", "") + ".trace"
    )
    raw = (tmp_path / "out.html").read_text()
    assert "alert(1)</script>" not in raw and "<img" not in raw
    assert len(page.all("script")) == 2
    # The page shows it as text: in two facts, in the tag at the peak and in that at out of memory.
    assert page.text.count("<img/src=x>&amp") >= 4
    assert page.data[0]["policies"][0]["name"] == "native"


def test_no_text_ends_the_embedded_json():
    held = {"tag": NASTY + "<!--", "n": 1}
    embedded = html._embed(held)
    assert not set("<>&") & set(embedded)
    assert json.loads(embedded) == held


def test_tags_are_a_tree(tmp_path):
    text = "s 0\n"
    text += f"a 0 {6 * MIB} 0 forward;model.layers.0.mlp;aten.mm\n"
    text += f"a 1 {2 * MIB} 0 forward;model.layers.1.mlp;aten.mm\n"
    text += f"a 2 {2 * MIB} 0 optimizer;step\n"
    page, _ = page_of(tmp_path, text)
    summaries = [found for _, found in page.all("summary")]
    assert summaries[0].startswith("forward") and "8.00 MiB" in summaries[0]
    assert summaries[1].startswith("model.layers.*.mlp") and "80.0 %" in summaries[1]
    assert "activations" in page.text and "80.0 %" in page.text


def test_a_trace_without_tags_says_so(tmp_path):
    page, _ = page_of(tmp_path, f"s 0\na 0 {MIB} 0\ns 1\nf 0\n")
    assert "The trace has no tags" in page.text
    assert page.all("summary") == []


def test_a_trace_without_steps(tmp_path):
    page, _ = page_of(tmp_path, f"a 0 {MIB} 0\nf 0\n", "native,glake")
    assert "The trace marks no steps" in page.text
    assert page.all("figure", **{"data-chart": "steps"}) == []
    assert page.data[0]["peaks"] == {"step": [], "live": [], "every": 1}


@pytest.mark.parametrize(
    "text",
    [
        "a 0 1 0\n",
        "a 0 1 0\ns 0\ns 1\ns 2\n",
        f"a 0 512 0\nr 0 3\nf 0\ns {2**64 - 1}\n",
        f"a 0 {2 * MIB} 0\nf 0\ns 0\ns 1\n",
    ],
)
def test_traces_with_next_to_nothing_in_them(tmp_path, text):
    names = policies()
    page, results = page_of(tmp_path, text, ",".join(names))
    assert [each["name"] for each in page.data[0]["policies"]] == names
    if f"s {2**64 - 1}" in text:
        assert page.data[0]["peaks"]["step"] == [str(2**64 - 1)]  # no double holds it exactly


@pytest.mark.parametrize("names", ["native", "glake,native,expandable"])
def test_out_of_memory_in_set_up_at_the_first_event(tmp_path, names):
    page, results = page_of(tmp_path, f"a 0 {80 * MIB} 0\ns 0\n", names, capacity=20 * MIB)
    assert all(each.oom is not None and each.oom.event == 0 for each in results)
    assert "native: set-up, event 0" in page.text
    assert "Set-up alone does not fit" in page.text
    assert "60.00 MiB" in page.text  # 80 MiB less the capacity of 20


def test_write_refuses_results_of_another_trace(tmp_path):
    trace = load_trace(VARYING)
    with pytest.raises(ValueError, match="no results"):
        html.write(tmp_path / "out.html", trace, [])
    other = tmp_path / "other.trace"
    other.write_text(f"a 0 {MIB} 0\n")
    result = replay(load_trace(other), "native")
    with pytest.raises(ValueError, match=r"other\.trace.*not given"):
        html.write(tmp_path / "out.html", trace, [result])


def test_a_file_that_cannot_be_written_exits_with_two(tmp_path):
    ran = run(VARYING, "--policy", "native", "--html", str(tmp_path / "none" / "out.html"))
    assert ran.exit_code == 2
    assert "--html" in ran.stderr and "Traceback" not in ran.stderr


def test_without_jinja2_the_option_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(html, "available", lambda: False)
    ran = run(VARYING, "--policy", "native", "--html", str(tmp_path / "out.html"))
    assert ran.exit_code == 2 and "Jinja2" in ran.stderr


def test_a_built_package_ships_the_assets(tmp_path):
    build = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path)]
    done = subprocess.run(build, cwd=TRACES.parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shipped = sorted(each.name for each in (tmp_path / "glake/trace/assets").iterdir())
    assert shipped == ["report.css", "report.html", "report.js", "sample.trace.gz"]


def test_json_is_as_before(tmp_path):
    trace = load_trace(VARYING)
    assert "layout" not in to_json(replay(trace, "native"))


BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")


def large_job(path, header=""):
    """Forty blocks of 512 MiB, and a step that frees and allocates one."""
    lines = [f"a {i} {512 * MIB} 0" for i in range(40)]
    path.write_text(f"# format: 1\n{header}" + "\n".join([*lines, "s 0", "f 0", "s 1"]) + "\n")
    return load_trace(path)


@pytest.mark.skipif(BROWSER is None, reason="no chromium to draw the charts with")
def test_charts_and_maps_are_drawn_to_the_scale_of_the_data(tmp_path):
    trace = large_job(tmp_path / "large.trace")
    names = ("native", "expandable")
    results = [replay(trace, each, capacity=80 << 30, layout_at="peak") for each in names]
    out = tmp_path / "out.html"
    html.write(out, trace, results)
    flags = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'user'}")
    drawn = subprocess.run(
        [str(BROWSER), *flags, "--window-size=1300,3000", "--dump-dom", out.as_uri()],
        capture_output=True, text=True, timeout=120,
    ).stdout  # fmt: skip
    assert "capacity 80.00 GiB, above the chart" in drawn
    found = re.search(r'aria-label="rows: ([^"]*)"', drawn)
    assert found, drawn[-2000:]
    labels = found[1].split(", ")
    assert labels[0] == "0 GiB" and all(each.endswith(" GiB") for each in labels)
    # The axis ends where the data end, not at 80 GiB.
    ticks = re.findall(r">(\d+) GiB</text>", drawn)
    assert ticks and max(map(int, ticks)) <= 21


def test_text_of_a_trace_cannot_steer_a_terminal(tmp_path):
    path = tmp_path / "evil.trace"
    large_job(path, "# model: a\x1b[31mb\x07\u202ec\n# k\x1b]0;t: v\n")
    for arguments in (["replay", str(path), "--policy", "native", "--html", f"{tmp_path}/o.html"],
                      ["trace", "info", str(path)]):  # fmt: skip
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 0, done.output
        assert not set("\x1b\x07\u202e") & set(done.output)
    assert r"a\x1b[31mb\x07\u202ec" in done.output
    text = (tmp_path / "o.html").read_text()
    assert not set("\x1b\x07\u202e") & set(text) and r"a\x1b[31mb\x07\u202ec" in text
