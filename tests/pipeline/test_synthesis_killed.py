"""Synthesis killed at random moments and run again: the same attempts, and at most the requests in flight are asked twice."""

import random
import subprocess
import sys
import time
from pathlib import Path

from r3flow.simulated.http import Reply
from tests.llm_fakes import BadServer

ROOT = Path(__file__).parents[2]
CONCURRENCY, KILLS, COUNT = 8, 6, 60

CHILD = """
import sys
from pathlib import Path
from r3flow.files import write_jsonl
from r3flow.llm.teacher import synthesize
from r3flow.progress import Silent
from tests.llm_fakes import FakeEnvironment, client, params, questions

url, folder, count, concurrency = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
with client(url, folder, concurrency=concurrency) as made:
    attempts = synthesize(params(synthesize={"attempts": 3}), questions(count), FakeEnvironment(), made, Silent())
    write_jsonl(folder / "attempts.jsonl", (attempt.to_json() for attempt in attempts))
"""


def start(url: str, folder: Path, concurrency: int = CONCURRENCY) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", CHILD, url, str(folder), str(COUNT), str(concurrency)], cwd=ROOT)


def test_killed_at_random_moments_it_repeats_at_most_what_was_in_flight(tmp_path):
    rng = random.Random(time.time_ns())
    plain, killed = tmp_path / "plain", tmp_path / "killed"
    plain.mkdir()
    killed.mkdir()
    with BadServer() as server:
        assert start(server.url, plain, 1).wait(60) == 0
        asked = dict(server.seen)
    ledger = killed / "ledger.jsonl"
    with BadServer() as server:
        # answers take a moment, so that a kill finds requests on the wire
        server.misbehave = lambda number, body: Reply(
            **{name: getattr(server._endpoint("POST", "/v1/chat/completions", body), name) for name in ("status", "body")}, delay_s=0.01
        )
        for kill in range(KILLS):
            target = server.total + rng.randint(1, len(asked) // (KILLS + 2))
            child = start(server.url, killed)
            deadline = time.monotonic() + 60
            while server.total < target and child.poll() is None and time.monotonic() < deadline:
                time.sleep(0.001)
            child.kill()
            assert child.wait(10) == -9, "it ended before it was killed: the test needs more questions"
            assert not (killed / "attempts.jsonl").exists()
            if kill == 0:  # as if it had died in the middle of a write
                with open(ledger, "ab") as file:
                    file.write(b'{"key": "0123')
        assert start(server.url, killed).wait(60) == 0
        assert (killed / "attempts.jsonl").read_bytes() == (plain / "attempts.jsonl").read_bytes()
        assert server.seen.keys() == asked.keys()
        repeated = server.total - len(asked)
        assert repeated <= KILLS * CONCURRENCY
        total = server.total
        assert start(server.url, killed).wait(60) == 0
        assert server.total == total
    assert ledger.read_bytes().count(b"\n") == len(asked)
