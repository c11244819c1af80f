"""`make bench`: every benchmark after the other, each in a process of its own; they need the demo's models (`make demo` first)."""

import subprocess
import sys

for name in ("rollouts", "ppo_update", "chat_calls"):
    print(f"== {name}", flush=True)
    subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=True)
