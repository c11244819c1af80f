"""The one client of every OpenAI-compatible chat endpoint: bounded concurrency, retries, a budget, and the ledger before the wire.

A request that the ledger knows is never sent again. A call that fails is tried again where that can help; when it can not (key, balance,
model, parameters), or a budget is spent, the client halts: calls on the wire may end and are kept, no new one starts.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import time
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Any, Self, TypeVar

import httpx2
import openai

from r3flow.errors import BudgetError, EndpointError, EndpointRefusedError, R3FlowError
from r3flow.llm.ledger import Ledger
from r3flow.llm.pool import http_client, went_wrong
from r3flow.llm.replies import Completion, UnusableError, Usage, read_completion
from r3flow.params import Endpoint

T = TypeVar("T")

BACKOFF_S, MAX_BACKOFF_S, MAX_RETRY_AFTER_S = 0.5, 30.0, 300.0
RETRIED = {408, 409, 425, 429}
"""Refusals (4xx) that pass by themselves; 5xx do too. Every other status is final."""

_REMEDY = {
    401: "check the key in {key}",
    402: "the account has no balance: top it up and run again, nothing paid for is lost",
    403: "the key in {key} may not do this",
    404: "check {role}.base_url and {role}.model",
}


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked. `seed` tells attempts apart: another seed is another request."""

    system: str
    user: str
    temperature: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()


@dataclass(slots=True)
class Counts:
    """What this client did since it was made."""

    sent: int = 0
    answered: int = 0
    reused: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    usd: float = 0.0

    def costs(self, role: str) -> dict[str, float]:
        """Names and values for MLflow. Never for a metrics file: a second run has other counts."""
        names = ("sent", "answered", "reused", "retries", "prompt_tokens", "cached_tokens", "completion_tokens", "usd")
        return {f"cost/{role}/{name}": float(getattr(self, name)) for name in names}


class ChatClient:
    """One endpoint, one model, one event loop in the caller's thread. Use `run` from ordinary code, `complete` from coroutines.

    `identity` is what the endpoint is, for the ledger's key; it holds no port and no path. `key_name` is the variable that held `api_key`.
    """

    def __init__(
        self, params: Endpoint, ledger: Ledger, *, role: str, identity: str, base_url: str, api_key: str = "", key_name: str = "",
        use_proxies: bool = True, backoff_s: float = BACKOFF_S,
    ) -> None:  # fmt: skip
        self.params, self.ledger, self.role, self.identity = params, ledger, role, identity
        self.counts = Counts()
        self._secret, self._key_name, self._backoff_s = api_key, key_name, backoff_s
        self._where = f"{role} {params.model} at {httpx2.URL(base_url).host}"
        self._runner = asyncio.Runner()
        self._slots = asyncio.Semaphore(params.concurrency)
        self._pending: dict[str, asyncio.Future[Completion]] = {}
        self._halted: R3FlowError | None = None
        self._halt = asyncio.Event()
        self._not_before = 0.0
        self._spent = self._spent_before() if params.budget_usd is not None else 0.0
        # An empty organization keeps OPENAI_ORG_ID and the like from reaching another provider.
        self._openai = openai.AsyncOpenAI(
            api_key=api_key or "none",
            base_url=base_url,
            organization="",
            project="",
            max_retries=0,
            http_client=http_client(base_url, params.concurrency, params.timeout_s, use_proxies=use_proxies),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.run(self._openai.close())
        finally:
            self._runner.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Drive `work` on the client's loop until it is done; background tasks of the loop rest in between."""
        return self._runner.run(work)

    def payload(self, request: Request) -> bytes:
        """The request's body. `extra_body` wins over ours; a null in it removes a field that an endpoint does not take."""
        body: dict[str, Any] = {
            "model": self.params.model,
            "messages": [{"role": "system", "content": request.system}, {"role": "user", "content": request.user}],
            "temperature": request.temperature,
            "max_tokens": self.params.max_tokens,
            "seed": request.seed,
        }
        if request.stop:
            body["stop"] = list(request.stop)
        body = {name: value for name, value in {**body, **self.params.extra_body}.items() if value is not None}
        return json.dumps(body, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode("utf-8", "replace")

    def key(self, request: Request, payload: bytes) -> str:
        """The ledger's key: who is asked, what, how, and which attempt. 32 hex digits of SHA-256."""
        return hashlib.sha256(b"\0".join([self.identity.encode(), str(request.seed).encode(), payload])).hexdigest()[:32]

    async def complete(self, request: Request) -> Completion:
        """Answer from the ledger, from an equal request that is under way, or from the endpoint.

        Raises EndpointRefusedError and BudgetError (after either nothing more is sent), and EndpointError after the last retry.
        """
        payload = self.payload(request)
        key = self.key(request, payload)
        record = self.ledger.get(key)
        if record is not None:
            self.counts.reused += 1
            return Completion(record["text"], record["cut"], Usage(**record["usage"]), paid=False)
        pending = self._pending.get(key)
        if pending is not None:
            return replace(await asyncio.shield(pending), paid=False)
        future = self._pending[key] = asyncio.get_running_loop().create_future()
        try:
            completion = await self._pay(key, payload)
        except BaseException as error:
            future.set_exception(error if isinstance(error, Exception) else EndpointError("the equal call before was given up"))
            future.exception()  # seen, also if nobody else waits for it
            raise
        finally:
            del self._pending[key]
        future.set_result(completion)
        return completion

    def halt(self, error: R3FlowError) -> None:
        """Start no new call; those that wait raise `error`."""
        if self._halted is None:
            self._halted = error
            self._halt.set()

    async def _pay(self, key: str, payload: bytes) -> Completion:
        problem = ""
        for number in range(self.params.max_retries + 1):
            if number:
                self.counts.retries += 1
                await self._rest(random.uniform(0.5, 1.0) * min(MAX_BACKOFF_S, self._backoff_s * 2 ** (number - 1)))
            async with self._slots:
                await self._rest(self._not_before - time.monotonic())
                self._may_send()
                outcome = await self._send(payload)
            if isinstance(outcome, Completion):
                self._keep(key, outcome)
                return outcome
            problem = outcome
        raise EndpointError(
            f"{self._where}: {problem}, {self.params.max_retries + 1} times; run again when it answers: nothing paid for is lost"
        )

    async def _send(self, payload: bytes) -> Completion | str:
        """One try: the answer, or why there is none yet."""
        self.counts.sent += 1
        try:
            async with asyncio.timeout(self.params.timeout_s):
                response = await self._openai.post(
                    "/chat/completions", cast_to=httpx2.Response, content=payload, options={"headers": {"Content-Type": "application/json"}}
                )
            return read_completion(response.content)
        except UnusableError as error:
            return f"sent {self._clean(str(error))}"
        except openai.APIStatusError as error:
            if error.status_code not in RETRIED and error.status_code < 500:
                refused = self._refusal(error)
                self.halt(refused)
                raise refused from None
            self._heed(error.response.headers.get("retry-after"))
            return f"answered {error.status_code}{self._said(error)}"
        except (TimeoutError, openai.APIConnectionError) as error:
            wrong = went_wrong(error)
            if wrong == "silent":
                return f"no answer within {self.params.timeout_s:g} s"
            cause = error.__cause__ or error
            what = "can not be reached" if wrong == "unreachable" else "broke off the connection"
            return f"{what} ({self._clean(str(cause) or type(cause).__name__)})"

    def _keep(self, key: str, completion: Completion) -> None:
        usage, counts = completion.usage, self.counts
        counts.answered += 1
        counts.prompt_tokens += usage.prompt
        counts.cached_tokens += usage.cached
        counts.completion_tokens += usage.completion
        cost = usage.cost_usd(self.params.price_usd_per_million)
        counts.usd += cost
        self._spent += cost
        record = {"endpoint": self.identity, "model": self.params.model, "text": completion.text, "cut": completion.cut}
        self.ledger.put(key, {**record, "usage": usage.to_json(), "at": int(time.time())})
        if self.params.budget_usd is not None and not (usage.prompt or usage.completion):
            self.halt(BudgetError(f"{self._where}: reports no token usage, so {self.role}.budget_usd can not be kept; set it to null"))

    def _spent_before(self) -> float:
        """What the ledger's calls of this model at this endpoint cost at today's params, in US dollars."""
        price, total = self.params.price_usd_per_million, 0.0
        for record in self.ledger.records():
            if record.get("endpoint") == self.identity and record.get("model") == self.params.model:
                total += Usage(**record["usage"]).cost_usd(price)
        return total

    def _may_send(self) -> None:
        budget = self.params.budget_usd
        if budget is not None and self._spent >= budget:
            spent = f"spent {self._spent:.4f} of {self.role}.budget_usd {budget:g}"
            self.halt(BudgetError(f"{self._where}: {spent}; raise it and run again, nothing paid for is lost"))
        if self._halted is not None:
            raise self._halted

    async def _rest(self, seconds: float) -> None:
        """Sleep, but wake up and raise when the client is halted."""
        if seconds > 0:
            try:
                async with asyncio.timeout(seconds):
                    await self._halt.wait()
            except TimeoutError:
                return
        if self._halted is not None:
            raise self._halted

    def _heed(self, retry_after: str | None) -> None:
        """Hold back every call until the time that a Retry-After header names (seconds or a date)."""
        seconds = _seconds(retry_after)
        self._not_before = max(self._not_before, time.monotonic() + min(seconds, MAX_RETRY_AFTER_S))

    def _refusal(self, error: openai.APIStatusError) -> EndpointRefusedError:
        remedy = _REMEDY.get(error.status_code, "check {role}.model, {role}.max_tokens and {role}.extra_body")
        if 300 <= error.status_code < 400:
            remedy = "it redirects elsewhere: check {role}.base_url"
        remedy = remedy.format(role=self.role, key=self._key_name or f"{self.role}.api_key_env")
        return EndpointRefusedError(f"{self._where}: refused with {error.status_code}{self._said(error)}: {remedy}")

    def _said(self, error: openai.APIStatusError) -> str:
        """The server's own words in brackets, if it had any."""
        said = error.body.get("message") if isinstance(error.body, dict) else None
        return f" ({self._clean(said)})" if isinstance(said, str) and said.strip() else ""

    def _clean(self, text: str) -> str:
        """One short line without the key, which some servers quote."""
        if self._secret:
            text = text.replace(self._secret, "***")
        text = " ".join(text.split())
        return text if len(text) <= 200 else text[:197] + "..."


def _seconds(retry_after: str | None) -> float:
    if not retry_after:
        return 0.0
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except ValueError:
        return 0.0  # neither form of RFC 9110: as if it were not there
