"""Runs one step of the Makefile. Its output goes to a log, and a line says what runs and how long.

Usage: step.py LOG WHAT COMMAND [ARGUMENT...]. The exit status is that of the command. If it is not
0, the end of the log is shown. If it is, the warnings of a C++ compiler are shown, as CI refuses
them. On a terminal the line counts the seconds. Elsewhere it is printed again every half minute,
with the last line of the log.
"""

import re
import subprocess
import sys
import time
from pathlib import Path

_SHOWN = 40  # how many of the log's last lines are shown if a step fails
_WIDTH = 60  # characters of the log's last line that are shown
_WARNING = re.compile(r": warning: .*\[-W")  # of a C++ compiler
_TERMINAL, _ELSEWHERE = 1.0, 30.0  # seconds between two updates of the line


def last_line(log: Path) -> str:
    """The last text that the step printed, shortened to one line."""
    lines = log.read_text(errors="replace").split("\n")
    said = next((each.strip() for each in reversed(lines) if each.strip()), "")
    return said.rpartition("\r")[2][:_WIDTH]


def run(log: Path, what: str, command: list[str]) -> int:
    """Runs `command`, reports on standard output meanwhile, and returns its exit status."""
    counts = sys.stdout.isatty()
    log.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    print(f"-- {what} ({log})", end="" if counts else "\n", flush=True)
    with log.open("w") as out:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
        )
        try:
            while True:
                try:
                    status = child.wait(_TERMINAL if counts else _ELSEWHERE)
                    break
                except subprocess.TimeoutExpired:
                    now = f"{time.monotonic() - started:.0f} s"
                    text = f"\r\x1b[K-- {what}: {now}  " if counts else f"   {what}: {now}  "
                    print(text + last_line(log), end="" if counts else "\n", flush=True)
        except BaseException:
            child.terminate()
            child.wait()
            raise
    took = f"{time.monotonic() - started:.0f} s"
    print(f"{chr(13)}{chr(27)}[K-- {what}: {took}" if counts else f"   {what}: {took}", flush=True)
    lines = log.read_text(errors="replace").splitlines()
    if status == 0:
        print("".join(f"   {line}\n" for line in lines if _WARNING.search(line)), end="")
    else:
        tail = lines[-_SHOWN:]
        print("\n".join([*tail, f"{what} failed with status {status}: all of it is in {log}"]))
    return status


if __name__ == "__main__":
    if len(sys.argv) < 4:
        raise SystemExit(__doc__)
    try:
        code = run(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
    except KeyboardInterrupt:
        code = 130
    except OSError as error:
        raise SystemExit(f"{sys.argv[2]} cannot start: {error}") from error
    raise SystemExit(code if code >= 0 else 128 - code)
