"""PPO in a process of its own, killed with SIGKILL wherever it happens to be, and run again: the same bits as never killed."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

from r3flow.files import file_digest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
from pathlib import Path
from r3flow.training.checkpoints import save_policy
from r3flow.training.run import resume_and_train
from tests import toy

folder = Path(sys.argv[1])
trainer = toy.trainer(folder / "checkpoints", toy.settings(iterations=12, prompts=64, minibatch=32))
print("begun", flush=True)
resume_and_train(trainer)
save_policy(trainer.model, trainer.processing_class, folder / "out", trainer.critic)
(folder / "out" / "curve.csv").write_text(trainer.curve.csv())
"""
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}


def start(folder: Path) -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder)], cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout.readline() == b"begun\n"
    return process


def test_killed_three_times(tmp_path):
    whole = start(tmp_path / "whole")
    begun = time.monotonic()
    assert whole.wait() == 0
    length = time.monotonic() - begun
    kills, rng = 0, random.Random(0)
    for _ in range(3):
        process = start(tmp_path / "killed")
        time.sleep(length * rng.uniform(0.1, 0.4))
        process.kill()
        kills += process.wait() == -9
    assert kills >= 2
    assert start(tmp_path / "killed").wait() == 0
    assert file_digest(tmp_path / "killed" / "out") == file_digest(tmp_path / "whole" / "out")
