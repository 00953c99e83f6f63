"""Writes gpu_check.json and prints its table."""

import json
import os

SCHEMA = 2
STATUSES = ("passed", "failed", "skipped", "slow")  # slow: not done within its limit, and no error so far


class Report:
    def __init__(self, output):
        self.path = output / "gpu_check.json"
        self.machine = {}
        self.checks = []
        self.parity = []
        self.bench = []
        self.collectives = []

    def add(self, name, status, reason="", seconds=0.0, **more):
        assert status in STATUSES
        self.checks.append({"name": name, "status": status, "reason": reason, "seconds": round(seconds, 2), **more})
        print(f"{status:8s} {name}" + (f": {reason}" if reason else ""), flush=True)
        self.write()

    def passed(self):
        return bool(self.checks) and all(check["status"] != "failed" for check in self.checks)

    def of(self, name):
        return next((check for check in self.checks if check["name"] == name), {})

    def names_of(self, status):
        return [check["name"] for check in self.checks if check["status"] == status]

    def write(self):
        content = {"schema": SCHEMA, "passed": self.passed(), **{status: self.names_of(status) for status in STATUSES[1:]}, "machine": self.machine,
                 "checks": self.checks, "parity": self.parity, "bench": self.bench, "collectives": self.collectives}
        part = self.path.with_suffix(".json.part")
        part.write_text(json.dumps(content, indent=1) + "\n")
        os.replace(part, self.path)

    def print_table(self):
        if self.bench:
            print(f"\n{'operation':26s} {'dtype':5s} {'shape':32s} {'time':>10s} {'rate':>12s} {'share':>6s}  compiled PyTorch")
        for row in self.bench:
            print(_line(row))
        for row in self.collectives:
            if "seconds" in row:
                print(f"{row['operation']:26s} {row['dtype']:5s} {row['by']:32s} {row['seconds'] * 1e3:7.4g} ms {row['rate'] / 1e9:7.1f} GB/s sent by each of {row['ranks']:.0f} GPUs")
        print()
        for check in self.checks:
            print(f"{check['status']:8s} {check['name']:22s} {check['seconds']:7.1f} s  {check['reason']}")
        for status in STATUSES[1:]:
            if self.names_of(status):
                print(f"{status}: {', '.join(self.names_of(status))}")
        print(f"report: {self.path}")


def _line(row):
    head = f"{row['operation']:26s} {row['dtype']:5s} {row['shape']:32s} "
    if "skipped" in row:
        return head + "skipped: " + row["skipped"]
    rate = f"{row['rate'] / 1e9:.0f} GB/s" if row["bound"] == "memory" else f"{row['rate'] / 1e12:.1f} TFLOP/s"
    share = f"{100 * row['share']:.0f}%" if row["share"] is not None else "?"
    torch = f"{row['torch_seconds'] * 1e3:.4g} ms" if "torch_seconds" in row else ""
    return head + f"{row['seconds'] * 1e3:7.4g} ms {rate:>12s} {share:>6s}  {torch}"
