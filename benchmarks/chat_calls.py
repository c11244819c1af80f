"""CPU cost of one call through the chat client and a local server, both sides apart: `python -m benchmarks.chat_calls [calls]`.

The server answers a fixed text, so that what is measured is HTTP, the client and the ledger, and not the simulated teacher.
"""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from r3flow.llm import wording
from r3flow.llm.client import ChatClient, Request
from r3flow.llm.ledger import Ledger
from r3flow.params import load

SERVER = """
import sys
from r3flow.simulated.http import LocalServer, Reply
from r3flow.simulated.server import completion
text = "Step 1:\\nThe problem analysis: I need the director of Red Rose.\\nThe retrieval query: Red Rose director"
with LocalServer(lambda *request: Reply.json(completion("m", text, prompt_tokens=700, completion_tokens=30))) as server:
    print(server.url, flush=True)
    sys.stdin.read()
"""


async def ask(client: ChatClient, system: str, numbers: range) -> None:
    """As many coroutines as the concurrency allows, each with one request after the other, of the size of a third step."""
    todo = iter(numbers)
    body = "Step 1:\nThe problem analysis: I need it.\nThe retrieval query: it\nThe retrieval documents: [1] It: It is a thing of 1950.\n"

    async def work() -> None:
        for number in todo:
            await client.complete(Request(system, f"The question: What is number {number}?\n{body * 2}"))

    await asyncio.gather(*[work() for _ in range(client.params.concurrency)])


def main() -> None:
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else 3000
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None and server.stdout is not None
    url = server.stdout.readline().strip() + "/v1"
    system = wording.teacher("r3rag")
    with (
        tempfile.TemporaryDirectory() as folder,
        Ledger(Path(folder) / "ledger.jsonl") as ledger,
        ChatClient(load().teacher, ledger, role="teacher", identity="bench", base_url=url, use_proxies=False) as client,
    ):
        client.run(ask(client, system, range(-200, 0)))
        for name in ("asked", "from the ledger"):
            cpu, wall = time.process_time(), time.perf_counter()
            client.run(ask(client, system, range(calls)))
            cpu, wall = (time.process_time() - cpu) / calls * 1e3, (time.perf_counter() - wall) / calls * 1e3
            print(f"{name}: client {cpu:.2f} ms of CPU a call, {wall:.2f} ms of wall time, {client.params.concurrency} at once")
    server.stdin.close()
    server.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"server: {(used.ru_utime + used.ru_stime) / calls * 1e3:.2f} ms of CPU a call, its start included")


if __name__ == "__main__":
    main()
