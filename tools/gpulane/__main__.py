"""The command: python -m gpulane [--driver cuda|sim] [--out DIR] [--wheels DIR] ..."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from gpulane import preflight

# Before click and other packages are imported, because the wheels may bring them.
WHEELS = "--wheels"


def _install(directory: str, site: Path) -> None:
    """Unpacks the wheels of a directory into `site`, and puts `site` first on the path."""
    wheels = sorted(str(path) for path in Path(directory).glob("*.whl"))
    if not wheels:
        raise SystemExit(f"WHEELS={directory}: no *.whl there")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
    command += ["--no-compile", "--upgrade", "--target", str(site), *wheels]
    if subprocess.run(command).returncode != 0:
        raise SystemExit(f"WHEELS={directory}: pip could not install them")


def _ready() -> None:
    """Ends with one sentence if the run cannot work: without a GPU, or with packages missing."""
    from gpulane.stages import BUILD

    simulated = any(given in ("sim", "--driver=sim") for given in sys.argv)
    site = BUILD / "site"
    site.mkdir(parents=True, exist_ok=True)
    if WHEELS in sys.argv[:-1] and sys.argv[sys.argv.index(WHEELS) + 1]:
        _install(sys.argv[sys.argv.index(WHEELS) + 1], site)
    sys.path.insert(0, str(site))
    if not simulated and (why := preflight.no_gpu()):
        raise SystemExit(why)
    if lacks := preflight.missing(need_cuda=not simulated):
        raise SystemExit(
            "make gpu works offline with what is installed, and this is not: "
            + "; ".join(lacks)
            + ". Install it, or collect Python packages as wheels in a directory and run "
            "`make gpu WHEELS=directory`."
        )


_ready()

import click  # noqa: E402

from gpulane import render, report  # noqa: E402
from gpulane.runner import Outcome, Runner  # noqa: E402
from gpulane.stages import BUILD, ROOT, stages  # noqa: E402


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--driver", type=click.Choice(["cuda", "sim"]), default="cuda", show_default=True)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path),
              default=ROOT / "results" / "gpu", help="Directory of the reports.")  # fmt: skip
@click.option("--seconds", default=570.0, show_default=True, help="Time for all of it.")
@click.option("--only", multiple=True, help="Run this stage alone (may be repeated).")
@click.option("--quick", is_flag=True, help="Short measurements: to try the scripts.")
@click.option(WHEELS, default="", help="Directory of wheels to use beside what is installed.")
@click.option("--list", "show", is_flag=True, help="Print the stages and their budgets.")
def main(
    driver: str, out: Path, seconds: float, only: tuple[str, ...], quick: bool, wheels: str,
    show: bool,
) -> None:  # fmt: skip
    """Builds, tests and measures glake on a real GPU; one JSON and one text report in OUT."""
    plan = stages(driver, quick)
    names = [stage.name for stage in plan]
    if unknown := set(only) - set(names):
        raise click.UsageError(f"no stage {sorted(unknown)[0]!r}; there are: {', '.join(names)}")
    if show:
        for stage in plan:
            click.echo(f"{stage.name:28} {stage.seconds:4.0f} s")
        return
    started = time.monotonic()
    facts = report.about(driver)
    path = report.place(out, facts)

    def say(text: str) -> None:
        click.echo(f"[{time.monotonic() - started:4.0f} s] {text}")
        sys.stdout.flush()

    def save(outcomes: list[Outcome]) -> None:
        made = report.build(facts, outcomes, time.monotonic() - started)
        report.write(path, made, render.text(made))

    say(f"{facts['device']}, driver {facts['driver_version']}; report in {path}")
    chosen = [stage for stage in plan if not only or stage.name in only]
    outcomes = Runner(seconds, _variables(driver), say, save).run(chosen)
    click.echo(path.with_suffix(".txt").read_text())
    say(f"{path} and .txt written")
    if any(each.status != "passed" for each in outcomes):
        bad = ", ".join(f"{o.name} ({o.status})" for o in outcomes if o.status != "passed")
        raise SystemExit(f"make gpu: {bad}")


def _variables(driver: str) -> dict[str, str]:
    """The variables of every stage: the path with the checkout and the wheels, and the adapters'
    folder."""
    path = [str(ROOT), str(BUILD / "site"), os.environ.get("PYTHONPATH", "")]
    given = {
        "PYTHONPATH": os.pathsep.join(part for part in path if part),
        "GLAKE_JIT_DIR": str(BUILD / "jit"),
        "PYTHONUNBUFFERED": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    return given | ({} if driver == "sim" else {"GPU_TEST_DRIVER": "cuda"})


if __name__ == "__main__":
    main()
