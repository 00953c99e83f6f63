"""Reads Maestro runs: `load_run(path)` returns a `Run` with the tables of its metrics.h5 as numpy arrays."""

from .run import Experts, Run, RunError, Steps, Timeline, load_run
from .shares import SectionShare, section_shares

__all__ = ["Experts", "Run", "RunError", "SectionShare", "Steps", "Timeline", "load_run", "section_shares"]
