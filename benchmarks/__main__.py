"""`make bench`: every benchmark, each in a process of its own; all run, and a missed target shows in the exit status."""

import subprocess
import sys

NAMES = ("rollouts", "ppo_update", "chat_calls", "orchestration")

if __name__ == "__main__":
    statuses = {}
    for name in NAMES:
        print(f"== {name}", flush=True)
        statuses[name] = subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode
    missed = [name for name, status in statuses.items() if status]
    sys.exit(f"failed or missed a target: {', '.join(missed)}" if missed else 0)
