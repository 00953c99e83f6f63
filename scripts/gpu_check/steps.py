"""Runs commands with time limits within a total time budget."""

from __future__ import annotations  # for Python 3.9

import os
import shlex
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass


@dataclass
class Done:
    status: int | None  # exit code; None: stopped at the limit
    seconds: float
    text: str  # stdout and stderr
    limit: float

    def why(self):
        """The reason of a failure; empty if the command succeeded."""
        if self.status == 0:
            return ""
        if self.status is None:
            return f"not done after {self.limit:.0f} s" if self.limit > 0 else "no time was left for it (--limit)"
        lines = [line for line in self.text.splitlines() if line.strip() and not line.startswith("{")]
        last = lines[-1][:300] if lines else "it printed nothing"
        return f"ended by signal {-self.status}: {last}" if self.status < 0 else f"exit code {self.status}: {last}"


class Steps:
    """`work`: a folder for files of the steps. `log`: the file that collects their output."""

    def __init__(self, log, work, limit):
        self.log = log
        self.work = work
        self.end = time.monotonic() + limit
        work.mkdir(parents=True, exist_ok=True)
        log.write_text("")

    def left(self):
        return max(0.0, self.end - time.monotonic())

    def run(self, name, command, limit, **options):
        """Runs the command in a new process group, which is killed at the end."""
        limit = min(limit, self.left())
        if limit <= 0:
            return Done(None, 0.0, "", 0)
        path = self.work / f"{name}.txt"
        arguments = [str(word) for word in command]
        begin = time.monotonic()
        with open(path, "w") as output:
            if shutil.which(arguments[0]) is None:
                return Done(127, 0.0, f"{arguments[0]} does not exist", limit)
            process = subprocess.Popen(arguments, stdout=output, stderr=subprocess.STDOUT,
                                       stdin=subprocess.DEVNULL, start_new_session=True, **options)
            try:
                status = process.wait(timeout=limit)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                _end(process)
        done = Done(status, time.monotonic() - begin, path.read_text(errors="replace"), limit)
        with open(self.log, "a") as log:
            log.write(f"== {name}: {shlex.join(arguments)}\n{done.text}== {name}: {done.why() or 'done'}, {done.seconds:.1f} s\n\n")
        return done


def _end(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
