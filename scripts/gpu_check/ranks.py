"""The checks of gpu_training: what a training run needs of GPUs beyond single operations."""

from checks import lines_of, small, status_of

LIMIT = 120


def check(steps, report, programs, options):
    model_step(steps, report, programs, options)
    queues(steps, report, programs, options)
    windows(steps, report, programs, options)
    collectives(steps, report, programs, options)


def run(steps, programs, options, command, *words):
    """The program has a deadline, which ends it before this limit does: its message says what it waited for."""
    limit = min(LIMIT, steps.left())
    return steps.run(command, [programs / "gpu_training", command, *small(options), f"--seconds={max(3.0, limit - 10):.0f}", *words], limit)


def model_step(steps, report, programs, options):
    done = run(steps, programs, options, "step")
    rows = lines_of(done.text, "step")
    failed = [row for row in rows if not row["passed"]]
    status = status_of(done, not failed and (len(rows) == 2 or done.status is None))
    reason = "; ".join(f"{row['dtype']}: errors of loss {number(row['loss_error'])}, gradient norm {number(row['norm_error'])}, update "
                       f"{number(row['update_error'])}" for row in failed or rows)
    report.add("model_step", status, reason if rows and (failed or status == "passed") else done.why() or "nothing was compared", done.seconds, steps=rows)


def number(value):
    return "NaN or Inf" if value is None else f"{value:.1e}"


def queues(steps, report, programs, options):
    done = run(steps, programs, options, "queues")
    rows = lines_of(done.text, "queues")
    reason = "; ".join(f"of {row['streams']:.0f} streams two wait, and {row['ran']:.0f} others run" + (f" (not {row['held']})" if row["held"] else "")
                       for row in rows)
    right = rows and (done.status == 0 or rows[0]["held"] == "")
    if rows:
        reason += f", CUDA_DEVICE_MAX_CONNECTIONS={rows[0]['max_connections']}"
    report.add("queues", status_of(done, right or done.status is None), reason or done.why(), done.seconds, queues=rows)


def windows(steps, report, programs, options):
    done = run(steps, programs, options, "windows")
    rows = lines_of(done.text, "windows")
    if done.status == 0 and rows and "skipped" in rows[0]:
        return report.add("windows", "skipped", rows[0]["skipped"], done.seconds)
    wrong = [word for row in rows for word in ("out", "in") if not row[word]]
    status = status_of(done, not wrong and (rows or done.status is None))
    reason = "copies differ: " + ", ".join(wrong) if wrong else done.why()
    if status == "passed":
        reason = f"pinned: {rows[0]['to_host'] / 1e9:.1f} GB/s to the host, {rows[0]['to_device'] / 1e9:.1f} to the GPU"
    report.add("windows", status, reason or "nothing was copied", done.seconds, **(rows[0] if rows else {}))


def collectives(steps, report, programs, options):
    done = run(steps, programs, options, "collectives")
    rows = lines_of(done.text, "collective")
    if done.status == 0 and rows and "skipped" in rows[0]:
        return report.add("collectives", "skipped", rows[0]["skipped"], done.seconds)
    report.collectives = rows
    wrong = [row for row in rows if row["wrong"] != 0]
    # The program has a deadline: if it began and does not end, ranks hang.
    status = "passed" if done.status == 0 and rows and not wrong else "slow" if done.limit <= 0 else "failed"
    reason = "; ".join(f"{row['operation']} {row['dtype']} by {row['by']}: {row['wrong']:.0f} elements differ" for row in wrong[:5]) or messages(done)
    if status == "passed":
        reason = f"{len(rows)} cases on {rows[0]['ranks']:.0f} GPUs"
    report.add("collectives", status, reason, done.seconds)


def messages(done):
    """What ranks have said, and how they ended."""
    lines = [line for line in done.text.splitlines() if line.startswith("rank ")]
    return "; ".join([*lines[:2], *lines[-1:]])[:500] if lines else done.why() or "nothing was compared"
