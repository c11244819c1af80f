"""A small world for the tests of teacher, judge and client: a speaker, a retriever, and a real local server that misbehaves on command."""

from __future__ import annotations

import json
import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from r3flow.llm.client import ChatClient
from r3flow.llm.ledger import Ledger
from r3flow.params import Endpoint, Params, load
from r3flow.protocol import PROTOCOLS
from r3flow.simulated.http import LocalServer, Reply
from r3flow.simulated.server import ChatEndpoint
from r3flow.trajectory import Hit, Passage, Question

PARAMS = load(Path(__file__).parents[1] / "params.yaml")


def chance(*parts: object) -> float:
    """A number in [0, 1) that depends on `parts` alone."""
    return int(sha256(repr(parts).encode()).hexdigest()[:8], 16) / 2**32


class Speaker:
    """Two searches, then an answer; wrong, malformed or endless for some questions and attempts."""

    def teach(self, prompt: str, attempt: int) -> str:
        name = re.search(r"code of (\w+)", prompt).group(1)
        number = prompt.count("The retrieval query:") + 1
        draw = chance(name, attempt % 1000)
        head = f"Step {number}:\nThe problem analysis: step {number} about {name}."
        if draw < 0.1 and number == 2 and (attempt < 1000 or draw < 0.06):  # a second try helps two in five
            return f"I would rather not, says {name}."
        if number <= 2 or 0.1 <= draw < 0.2:
            return f"{head}\nThe retrieval query: {name} part {number}"
        return f"{head}\nThe final answer: {'nothing' if draw < 0.45 else f'value of {name}'}"

    def judge_answer(self, prompt: str) -> str:
        return json.dumps({"correct": "nothing" in prompt and chance(prompt) < 0.5})

    def judge_relevance(self, prompt: str) -> str:
        return json.dumps({"relevance": round(chance(prompt), 1)})


def questions(count: int, start: int = 0) -> list[Question]:
    def one(i: int) -> Question:
        kind = "chain" if i % 2 else "compare"
        return Question(f"q{i}", f"What is the code of name{i}?", (f"value of name{i}",), (f"name{i} part 1",), kind, 2 + i % 2)

    return [one(i) for i in range(start, start + count)]


class FakeEnvironment:
    """Every query finds one passage, named after the query. `batches` holds the size of each call."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def search(self, queries: Sequence[str]) -> list[tuple[Hit, ...]]:
        self.batches.append(len(queries))
        return [(Hit(Passage(query, f"Page of {query}", f"Something about {query}."), 1.0),) for query in queries]

    def shown(self, hits: tuple[Hit, ...], earlier: Sequence[object]) -> tuple[Hit, ...]:
        return hits

    def documents(self, hits: Sequence[Hit]) -> str:
        return PROTOCOLS["r3rag"].render_documents([hit.passage for hit in hits], 200)


Misbehave = Callable[[int, bytes], Reply | None]
"""(number of the request from 0, body) -> what to do instead of answering, None to answer."""


class BadServer:
    """The simulated endpoint over HTTP, with `misbehave` before it. `seen` counts bodies, `answered` those that got their answer."""

    def __init__(self, misbehave: Misbehave = lambda number, body: None, speaker: Speaker | None = None) -> None:
        self.misbehave = misbehave
        self.seen: Counter[bytes] = Counter()
        self.answered: Counter[bytes] = Counter()
        self.total = 0
        self._endpoint = ChatEndpoint(speaker or Speaker())
        self._lock = threading.Lock()
        self._server = LocalServer(self._handle)

    def _handle(self, method: str, path: str, body: bytes) -> Reply:
        with self._lock:
            number = self.total
            self.total += 1
            self.seen[body] += 1
        reply = self.misbehave(number, body)
        if reply is None:
            reply = self._endpoint(method, path, body)
            self.answered[body] += 1
        return reply

    @property
    def url(self) -> str:
        return f"{self._server.url}/v1"

    def __enter__(self) -> BadServer:
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__()


def endpoint(role: str = "teacher", **changes: object) -> Endpoint:
    return getattr(PARAMS, role).model_copy(update={"timeout_s": 10.0, "concurrency": 8, **changes})


def params(**sections: dict[str, object]) -> Params:
    """The default params with some keys of some sections changed."""
    return PARAMS.model_copy(update={name: getattr(PARAMS, name).model_copy(update=keys) for name, keys in sections.items()})


@contextmanager
def client(url: str, folder: Path, role: str = "teacher", api_key: str = "", **changes: object):
    """A client without waiting between retries, its ledger in `folder`."""
    with (
        Ledger(folder / "ledger.jsonl") as ledger,
        ChatClient(
            endpoint(role, **changes), ledger, role=role, identity="test", base_url=url, api_key=api_key, key_name="SOME_KEY",
            use_proxies=False, backoff_s=0.001,
        ) as made,
    ):  # fmt: skip
        yield made


def failing(share: float, seed: int = 0) -> Misbehave:
    """Fail a share of the requests at random, in every way there is."""
    rng = random.Random(seed)

    def misbehave(number: int, body: bytes) -> Reply | None:
        if rng.random() >= share:
            return None
        return rng.choice(
            [
                Reply.json({"error": {"message": "busy"}}, 429, headers={"Retry-After": "0"}),
                Reply.json({"error": {"message": "oops"}}, 500),
                Reply(200, b"<html>gateway</html>"),
                Reply.json({"choices": []}),
                Reply.json({"choices": [{"message": {"content": "half an ans"}}]}, cut=True),
            ]
        )

    return misbehave
