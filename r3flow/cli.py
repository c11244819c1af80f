"""`r3flow`: ask a trained policy a question and watch it search, or plan what a params file asks for.

Heavy imports wait until a command needs them, so that `--help` and a wrong flag answer at once.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from r3flow import params as settings
from r3flow.errors import ConfigError, R3FlowError
from r3flow.params import Params
from r3flow.protocol.base import squeeze
from r3flow.trajectory import InvalidStep, Question, Step, Trajectory

QUESTION_CHARACTERS = 500
"""A longer question is asked whole, but not shown whole."""
FINISH = {
    "answered": "",
    "budget": "It used up its steps without an answer.",
    "malformed": "It wrote a step that does not parse, so it stopped there.",
    "length": "The context is full.",
    "failed": "The retriever failed, so nothing can be concluded.",
}


class Screen:
    """Shows steps as they come. `console` takes them; a spinner runs in between on a terminal."""

    def __init__(self, console: Console, max_characters: int) -> None:
        self.console, self.max_characters = console, max_characters

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """A spinner while the block runs; nothing where there is no terminal."""
        with self.console.status(Text(what, style="dim"), spinner="dots"):
            yield

    def question(self, text: str) -> None:
        line = squeeze(text)
        shown = line if len(line) <= QUESTION_CHARACTERS else f"{line[:QUESTION_CHARACTERS].rstrip()} ..."
        self.console.print(Text(shown, style="bold"))
        self.console.print()

    def step(self, step: Step | InvalidStep) -> None:
        """Print one step with its documents. Text of models and corpora is printed as text: no markup, no control characters."""
        number = Text(f"{step.number} ", style="bold cyan")
        if isinstance(step, InvalidStep):
            self.console.print(number + Text(f"not a step: {step.reason}", style="red"))
            self._indented(Text(squeeze(step.raw), style="dim"))
        else:
            self.console.print(number + Text(squeeze(step.analysis)))
            if step.query is not None:
                self._indented(Text("search  ", style="dim") + Text(squeeze(step.query), style="cyan"))
                for hit in step.hits:
                    shown = squeeze(hit.passage.text)[: self.max_characters]
                    self._indented(Text(f"{squeeze(hit.passage.title)}  ", style="bold") + Text(f"{hit.score:.2f}", style="dim"), 4)
                    self._indented(Text(shown, style="dim"), 4)
        self.console.print()

    def result(self, trajectory: Trajectory) -> None:
        """The answer, or why there is none."""
        if trajectory.answer is not None:
            self.console.print(Text("Answer  ", style="dim") + Text(squeeze(trajectory.answer), style="bold green"))
        else:
            self.console.print(Text(f"No answer. {FINISH[trajectory.finish]}", style="yellow"))

    def _indented(self, text: Text, by: int = 2) -> None:
        self.console.print(Padding(text, (0, 0, 0, by)))


def ask(arguments: argparse.Namespace) -> int:
    """Answer one question; 0 if there is an answer, 3 if there is none. Raises R3FlowError."""
    params = _with_retriever(_with_k(settings.load(arguments.params), arguments.k), arguments.retriever)
    if arguments.steps is not None:
        params = params.model_copy(update={"protocol": params.protocol.model_copy(update={"max_steps": arguments.steps})})
    model_path = arguments.model
    if not Path(model_path).is_dir() and model_path == "models/ppo":
        raise ConfigError("models/ppo: no trained policy here yet; run `make demo` (or `dvc repro ppo`), or name one with --model")
    question = Question("ask", arguments.question, ())
    if not arguments.question.strip():
        raise ConfigError("the question is empty")
    screen = Screen(Console(stderr=arguments.json, highlight=False, soft_wrap=False), params.protocol.max_document_characters)
    with screen.working("loading the policy and the index"):
        model, tokenizer, environment = _load(params, model_path)
    from r3flow.rollout import generate_rollouts

    screen.question(arguments.question)
    with screen.working("thinking"):
        [rollout] = generate_rollouts(
            model, tokenizer, environment, [question], params.protocol.as_evaluated, temperature=0.0, seed=params.seed,
            on_step=lambda _, step: screen.step(step),
        )  # fmt: skip
    screen.result(rollout.trajectory)
    if arguments.json:
        print(json.dumps(rollout.trajectory.to_json(), ensure_ascii=not _is_unicode(sys.stdout)))
    return 0 if rollout.trajectory.answer is not None else 3


def plan(arguments: argparse.Namespace) -> int:
    """Say what a params file asks for; 0 if everything is on this machine, 3 if something is missing. Raises R3FlowError."""
    from r3flow.planning.plan import make, render

    chosen = None if arguments.device == "auto" else arguments.device
    found = make(settings.read(arguments.params), arguments.params, parameters=arguments.parameters, device=chosen)
    print(json.dumps(found, indent=1, ensure_ascii=not _is_unicode(sys.stdout)) if arguments.json else render(found))
    return 3 if found["missing"] else 0


def _is_unicode(stream: Any) -> bool:
    return str(getattr(stream, "encoding", None) or "").lower().replace("-", "").startswith("utf")


def _with_k(params: Params, k: int | None) -> Params:
    if k is None or k == params.retrieval.top_k:
        return params
    print(f"note: the policy was trained with {params.retrieval.top_k} document(s) a search; with {k} it may do worse", file=sys.stderr)
    return params.model_copy(update={"retrieval": params.retrieval.model_copy(update={"top_k": k})})


def _with_retriever(params: Params, retriever: str | None) -> Params:
    """`retriever` is `bm25`, `dense` or a server's address. Raises ConfigError for anything else."""
    trained = params.retrieval
    if retriever is None or retriever == trained.kind:
        return params
    if retriever in ("bm25", "dense"):
        chosen = {"kind": retriever}
    else:
        try:
            settings.base_url_host(retriever, "--retriever", "bm25, dense or http://127.0.0.1:8000/search")
        except ValueError as error:
            raise ConfigError(str(error)) from None
        chosen = {"kind": "remote", "url": retriever}
    if chosen.get("url") != trained.url or chosen["kind"] != trained.kind:
        print(f"note: the policy was trained with the retriever {trained.kind}", file=sys.stderr)
    return params.model_copy(update={"retrieval": trained.model_copy(update=chosen)})


def _load(params: Params, model_path: str) -> tuple[Any, Any, Any]:
    """(model, tokenizer, environment)."""
    from transformers.utils import logging

    from r3flow.environment import Environment
    from r3flow.policy import load_policy
    from r3flow.protocol import PROTOCOLS
    from r3flow.retrieval.open import open_retriever

    logging.disable_progress_bar()
    environment = Environment(open_retriever(params), PROTOCOLS[params.protocol.name], params)
    return (*load_policy(model_path, trust_remote_code=params.policy.trust_remote_code), environment)


def _count(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 100:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 to 100, got {text!r}")
    return int(text)


def _parameters(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value <= 1e14:
        raise argparse.ArgumentTypeError(f"expected a number of parameters such as 8e9, got {text!r}")
    return value


def _version() -> str:
    try:
        return version("r3flow")
    except PackageNotFoundError:
        return "not installed"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="r3flow", description="Policies that reason and retrieve step by step.")
    top.add_argument("--version", action="version", version=f"r3flow {_version()}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    about = "Answer one question, its steps shown live. Ends with 3 if the policy gives no answer."
    one = commands.add_parser("ask", help="answer one question, its steps shown live", description=about)
    one.add_argument("question", help="in quotes")
    one.add_argument("--model", default="models/ppo", metavar="PATH", help="a policy's folder or Hugging Face name (default: %(default)s)")
    one.add_argument("--k", type=_count, metavar="N", help="documents a search (default: retrieval.top_k of the params)")
    one.add_argument("--steps", type=_count, metavar="N", help="steps at most, the answer included (default: protocol.max_steps)")
    one.add_argument("--retriever", metavar="NAME", help="bm25, dense or a server's address (default: retrieval of the params)")
    one.add_argument("--params", default="params.yaml", metavar="FILE", help="default: %(default)s")
    one.add_argument("--json", action="store_true", help="print the trajectory as one JSON line on stdout, the steps on stderr")
    one.set_defaults(run=ask)
    about = "Say what a params file asks for: models, data, tokens, calls and price, updates, memory. Ends with 3 if something is missing."
    two = commands.add_parser("plan", help="what a params file asks for, and what of it is missing here", description=about)
    two.add_argument("--params", default="params.yaml", metavar="FILE", help="default: %(default)s")
    two.add_argument("--parameters", type=_parameters, metavar="N", help="the policy's number of parameters, such as 8e9, where not known")
    two.add_argument("--device", choices=("auto", "cpu", "gpu"), default="auto", help="plan memory for this (default: what suits here)")
    two.add_argument("--json", action="store_true", help="print JSON")
    two.set_defaults(run=plan)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; its exit code. A named error is one line on stderr and 1."""
    arguments = parser().parse_args(argv)
    for stream in (sys.stdout, sys.stderr):
        # a terminal that cannot show a character shows a question mark, and the answer still comes
        if isinstance(stream, io.TextIOWrapper) and not _is_unicode(stream):
            stream.reconfigure(errors="replace")
    try:
        return int(arguments.run(arguments))
    except R3FlowError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
