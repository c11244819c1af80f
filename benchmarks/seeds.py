"""`make seeds`: the whole pipeline once a seed, each in a clone of its own, and one table of all of them.

A seed changes the world, the teacher's errors, SFT, PPO and the order of everything; the base model stays. The results are kept as
`docs/results/seed-N.json`, and `--table` prints them as the README shows them.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from r3flow.evaluation.metrics import compare
from r3flow.evaluation.results import read_results
from r3flow.files import read_json, write_json

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs/results"
SYSTEMS = ("base", "rag", "cold_start", "control", "ppo")
BESIDE = ("cold_start", "control")


def run_seed(seed: int) -> None:
    """Clone HEAD, set the seed, run `dvc repro`, keep the results with what they cost."""
    folder = ROOT / f".work/seeds/{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True)
    params = folder / "params.yaml"
    params.write_text(re.sub(r"^seed: \d+", f"seed: {seed}", params.read_text(), flags=re.MULTILINE))
    before, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run([sys.executable, "-m", "dvc", "repro"], cwd=folder, check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    result = {
        "seed": seed,
        "commit": subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True).stdout.strip(),
        "machine": machine(),
        "wall_s": round(time.time() - wall),
        "cpu_s": round(cpu),
        "systems": read_json(folder / "metrics/evaluate.json"),
        "differences": differences(folder, seed),
    }
    write_json(RESULTS / f"seed-{seed}.json", result)
    shutil.copytree(folder / "plots", RESULTS / f"plots-{seed}", dirs_exist_ok=True)


def machine() -> str:
    """Processor and number of usable cores."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.+)$", info.read_text(), re.MULTILINE) if info.exists() else []
    return f"{names[0] if names else platform.processor() or platform.machine()}, {len(os.sched_getaffinity(0))} cores"


def differences(folder: Path, seed: int) -> dict[str, Any]:
    """PPO minus the cold start and minus the control, in EM over the same questions (`r3flow.evaluation.metrics.compare`)."""
    ppo, *others = (list(read_results(folder / f"data/evaluation/{name}.jsonl")) for name in ("ppo", *BESIDE))
    return {name: compare(ppo, other, resamples=2000, seed=seed) for name, other in zip(BESIDE, others, strict=True)}


def cell(system: dict[str, Any]) -> str:
    """EM with its interval, in percent."""
    low, high = system["em_ci95"]
    return f"{100 * system['em']:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def table(seeds: list[int]) -> str:
    """Markdown: EM of each system by seed; searches, tokens, recall and format validity; differences; EM by type and hops; cost."""
    results = [read_json(RESULTS / f"seed-{seed}.json") for seed in seeds]
    count = results[0]["systems"]["ppo"]["n"]
    lines = [
        f"| EM, {count} held-out questions | " + " | ".join(f"seed {r['seed']}" for r in results) + " |",
        "|---|" + "---|" * len(results),
    ]
    lines += [f"| {name} | " + " | ".join(cell(r["systems"][name]) for r in results) + " |" for name in SYSTEMS]
    lines += [
        "",
        "| mean over seeds | searches | tokens | tokens a right answer | gold recall | format valid |",
        "|---|---|---|---|---|---|",
    ]
    for name in SYSTEMS:
        values = []
        for key, digits in (("searches", 2), ("tokens", 1), ("tokens_per_right", 0), ("gold_recall", 3), ("format_valid", 3)):
            found = [r["systems"][name][key] for r in results if r["systems"][name][key] is not None]
            values.append(f"{sum(found) / len(found):.{digits}f}" if found else "-")
        lines.append(f"| {name} | " + " | ".join(values) + " |")
    lines += [
        "",
        "| paired difference in EM, points | " + " | ".join(f"seed {r['seed']}" for r in results) + " |",
        "|---|" + "---|" * len(results),
    ]
    for name in BESIDE:
        found = [r["differences"][name] for r in results]
        shown = [f"{100 * one['em']:+.1f} [{100 * one['em_ci95'][0]:+.1f}, {100 * one['em_ci95'][1]:+.1f}]" for one in found]
        lines.append(f"| ppo - {name} | " + " | ".join(shown) + " |")
    groups = [(kind, name) for kind in ("by_type", "by_hops") for name in results[0]["systems"]["ppo"][kind]]
    heads = [f"{name} hops" if kind == "by_hops" else name.replace("_", " ") for kind, name in groups]
    lines += ["", f"| EM, seeds {' / '.join(str(r['seed']) for r in results)} | " + " | ".join(heads) + " |", "|---|" + "---|" * len(heads)]
    for system in SYSTEMS:
        parts = [" / ".join(f"{100 * r['systems'][system][kind][name]['em']:.0f}" for r in results) for kind, name in groups]
        lines.append(f"| {system} | " + " | ".join(parts) + " |")
    lines += [
        "",
        "Cost: " + "; ".join(f"seed {r['seed']}: {r['wall_s'] / 60:.1f} min wall, {r['cpu_s'] / 60:.1f} CPU-min" for r in results) + ".",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[9, 10, 11])
    parser.add_argument("--table", action="store_true", help="only print what was measured before")
    arguments = parser.parse_args()
    if not arguments.table:
        for number in arguments.seeds:
            run_seed(number)
    print(table(arguments.seeds))
