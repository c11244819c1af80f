"""The errors that users meet. Each is a boundary: what a stage does when it sees one is decided by its class alone.

A bad step of a policy or teacher is data (`InvalidStep`), never an exception. An exception means that the pipeline cannot
go on; its message is one line that names the file, line or key, what was wrong, and what to do.
"""

from __future__ import annotations


class R3FlowError(Exception):
    """Base of every named error. `kind` is what a stage leaves in its failure file for the scheduler.

    `retryable` is True only where trying again later can help without any change by a person.
    """

    kind = "error"
    retryable = False


class ConfigError(R3FlowError):
    """`params.yaml`, a flag or an environment variable is wrong."""

    kind = "config"


class DataError(R3FlowError):
    """A file of the user's, or an artifact of an earlier stage, does not hold what it must."""

    kind = "data"


class IndexMismatchError(DataError):
    """An index was built with another encoder, another corpus or another format than it is loaded with."""

    kind = "index"


class BusyError(R3FlowError):
    """Another run works in this folder."""

    kind = "busy"
    retryable = True


class EndpointError(R3FlowError):
    """A model endpoint or remote retriever failed after all retries."""

    kind = "endpoint"
    retryable = True


class EndpointRefusedError(EndpointError):
    """The endpoint refused the request for good: key, balance, model name or parameters (400, 401, 402, 403, 404, 422)."""

    kind = "refused"
    retryable = False


class BudgetError(R3FlowError):
    """The configured budget of requests, tokens or money is spent. What was paid for is in the ledger."""

    kind = "budget"


class TooManyUnknownError(R3FlowError):
    """More rewards are unknown (failed judge or retriever) than `ppo.max_unknown` allows."""

    kind = "unknown_rewards"
    retryable = True
