"""The processes of a job that mpirun has launched on this host."""

import pathlib


def ranks_of(job):
    """{rank: pid} of the processes that the launcher started."""
    found = {}
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if f"PPid:\t{job.pid}\n" not in (entry / "status").read_text():
                continue
            for word in (entry / "environ").read_bytes().split(b"\0"):
                if word.startswith(b"OMPI_COMM_WORLD_RANK="):
                    found[int(word.split(b"=")[1])] = int(entry.name)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found
