"""The simulated endpoint: an OpenAI-compatible chat server on loopback that plays teacher and judge of the generated world.

It stands where DeepSeek would stand and gets what DeepSeek would get, a prompt over HTTP. Its answers are a function of the
request alone. It runs as a process of its own (`python -m r3flow.simulated.server`) and ends when its parent does.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import sys
from typing import Any, Protocol

from r3flow.files import digest, read_json
from r3flow.params import Simulated
from r3flow.simulated.http import LocalServer, Reply
from r3flow.simulated.mind import Mind

_PLAN = {"chains", "earlier", "answer"}


class Speaker(Protocol):
    """What answers the prompts; `r3flow.simulated.mind.Mind` is the one."""

    def teach(self, prompt: str, attempt: int) -> str | None: ...

    def judge_answer(self, prompt: str) -> str: ...

    def judge_relevance(self, prompt: str) -> str: ...


class ChatEndpoint:
    """`POST /v1/chat/completions` over a speaker: the model's name says who is asked, the prompt's first line what the judge is asked."""

    def __init__(self, speaker: Speaker) -> None:
        self._speaker = speaker

    def __call__(self, method: str, path: str, body: bytes) -> Reply:
        if path == "/health":
            return Reply.json({"status": "ok", "endpoint": "simulated"})
        if (method, path) != ("POST", "/v1/chat/completions"):
            return _refusal(404, f"no such address: {method} {path}")
        try:
            request = json.loads(body)
            model, messages = request["model"], request["messages"]
            prompt = messages[-1]["content"]
            attempt = request.get("seed", 0)
            if not (isinstance(model, str) and isinstance(prompt, str) and isinstance(attempt, int)):
                raise TypeError("model and content must be text, seed a whole number")
            size = sum(len(message["content"]) for message in messages)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            return _refusal(400, f"not a chat request: {error}")
        text = self._say(model, prompt, attempt)
        if text is None:
            return _refusal(404, f"no such model or task: {model}")
        return Reply.json(completion(model, text, prompt_tokens=size // 4, completion_tokens=len(text) // 4))

    def _say(self, model: str, prompt: str, attempt: int) -> str | None:
        if "teacher" in model:
            return self._speaker.teach(prompt, attempt)
        if "judge" in model and prompt.startswith("Task: relevance"):
            return self._speaker.judge_relevance(prompt)
        if "judge" in model and prompt.startswith("Task: answer"):
            return self._speaker.judge_answer(prompt)
        return None


def completion(model: str, text: str, *, prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    """A chat completion as OpenAI and DeepSeek word it. Token counts of the simulated endpoint are characters / 4."""
    return {
        "id": f"simulated-{digest([model, text])[:12]}",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_cache_hit_tokens": 0,
        },
    }


def _refusal(status: int, message: str) -> Reply:
    return Reply.json({"error": {"message": f"simulated endpoint: {message}", "type": "invalid_request_error"}}, status)


def _wait_for_the_parent(parent: int) -> None:
    """Return when standard input ends or the parent is gone (a fork of the parent may hold the pipe open)."""
    while os.getppid() == parent:
        readable, _, _ = select.select([sys.stdin], [], [], 2.0)
        if readable and not os.read(sys.stdin.fileno(), 4096):
            return


def main() -> None:
    """Serve until the parent process ends; the first line of standard output is the base URL."""
    parent = os.getppid()
    parser = argparse.ArgumentParser(description="The simulated teacher and judge, on loopback, until standard input ends.")
    parser.add_argument("--knowledge", default="data/world.json", help="what it knows; written by the stage prepare")
    parser.add_argument("--rates", help="the params section `simulated`, as JSON; without it, it judges and does not teach")
    parser.add_argument("--seed", default="0", help="of the teacher's errors: any text")
    parser.add_argument("--port", type=int, default=0)
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the stage ends first and closes the pipe
    rates = None if arguments.rates is None else Simulated.model_validate_json(arguments.rates)
    knowledge = read_json(arguments.knowledge)
    if not isinstance(knowledge, dict) or not all(isinstance(plan, dict) and plan.keys() >= _PLAN for plan in knowledge.values()):
        sys.exit(f"error: {arguments.knowledge}: not what the stage prepare writes; run it again: dvc repro -f -s prepare")
    mind = Mind(knowledge, rates, arguments.seed)
    with LocalServer(ChatEndpoint(mind), arguments.port) as server:
        print(f"{server.url}/v1", flush=True)
        _wait_for_the_parent(parent)


if __name__ == "__main__":
    main()
