"""The pipeline as a Prefect flow: every DVC stage is a task named after it.

    python -m flows.pipeline [--parallel N] [--retries N] [--retry-delay S]

runs it at once, with the server that PREFECT_API_URL names or without any. `make ui` serves it as a deployment. What is up to date
is DVC's business, so Prefect's own caching is off; a stage that DVC skips or restores ends in a state named Cached. A deployment takes
R3FLOW_PARALLEL from its environment: stages at once that do not need each other (1; they would share one GPU).
"""
# No `from __future__ import annotations` here: a deployment's run loads this file where pydantic could not resolve texts for types, and
# fails before its first line.

import argparse
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any, NoReturn

from prefect import flow, get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture, wait
from prefect.runtime import flow_run
from prefect.states import Completed
from prefect.task_runners import ThreadPoolTaskRunner
from pydantic import Field

from flows.commands import CommandFailedError, Holder, StageFailedError, check_free, check_params, held, run_stage, said, stages_of


def _worth_retrying(task: Any, run: Any, state: Any) -> bool:
    """Only what the stage itself calls retryable: an endpoint that was down, a folder that was busy."""
    try:
        state.result()
    except StageFailedError as error:
        return error.retryable
    except Exception:  # noqa: BLE001 - Prefect hands on whatever the task raised
        return False
    return False


@task(cache_policy=NO_CACHE, persist_result=False, retry_condition_fn=_worth_retrying)
def stage(address: str, holder: Holder) -> Any:
    """One DVC stage; its output is the task's log."""
    logger = get_run_logger()
    if run_stage(address, holder, logger.info):
        return Completed(message="ran")
    return Completed(name="Cached", message="up to date: nothing it depends on has changed")


@contextmanager
def _no_orphans(holder: Holder) -> Iterator[None]:
    """A cancelled flow is interrupted in its main thread, while the stages are waited for in others: end them, and those return."""
    try:
        yield
    except BaseException:
        holder.kill_all()
        raise


def _workers(count: int) -> Any:
    """Stages are submitted in topological order, so that a worker never waits for a stage that has no worker."""
    return ThreadPoolTaskRunner(max_workers=max(1, count))


@flow(name="r3flow", task_runner=_workers(int(os.environ.get("R3FLOW_PARALLEL", "1"))), persist_result=False)
def pipeline(
    retries: Annotated[int, Field(ge=0)] = 2,
    retry_delay_s: Annotated[int, Field(ge=0)] = 60,
) -> None:
    """Bring every stage up to date, in topological order as DVC gives it. MLflow's run bears the name of this one.

    Args:
        retries: How often a stage is tried again when it says that this can help.
        retry_delay_s: Seconds before such a try.
    """
    logger = get_run_logger()
    check_params()
    needs = stages_of()
    with held(f"flow {flow_run.name}") as holder, _no_orphans(holder):
        logger.info("Execution %s: %s", holder.id, ", ".join(needs))
        futures: dict[str, PrefectFuture[Any]] = {}
        for address, before in needs.items():
            run = stage.with_options(name=address, task_run_name=address, retries=retries, retry_delay_seconds=retry_delay_s)
            upstream = [futures[name] for name in sorted(before)]
            futures[address] = run.submit(address=address, holder=holder, wait_for=upstream, return_state=False)
        wait(list(futures.values()))
        failed = [name for name, future in futures.items() if future.state.is_failed() or future.state.is_crashed()]
        if failed:
            for name in failed:
                futures[name].result()  # raises what the first stage raised
        _show_results(logger)


def _show_results(logger: Any) -> None:
    """The table of results, in the log and as an artifact of the run."""
    try:
        table = said([sys.executable, "-m", "r3flow.evaluation.table"])
    except CommandFailedError as error:
        logger.warning("No table of results: %s", error)
        return
    logger.info("Results\n%s", table)
    ruled = table.replace("─", "-")  # the page's font draws that line wider than its letters
    create_markdown_artifact(key="results", markdown=f"```\n{ruled.strip()}\n```\n", description="Held-out results by system")


def _leave(signum: int, frame: object) -> NoReturn:
    """After Prefect has dealt with SIGTERM it sends it again: leave the usual way, so that its temporary server is stopped."""
    sys.exit(128 + signum)


def main() -> int:
    """Exit code of one run."""
    parser = argparse.ArgumentParser(prog="python -m flows.pipeline", description="Run the whole pipeline once.")
    parser.add_argument("--parallel", type=int, default=1, metavar="N", help="stages at once that do not need each other (default 1)")
    parser.add_argument("--retries", type=int, default=2, metavar="N", help="tries again where a stage says that it can help (default 2)")
    parser.add_argument("--retry-delay", type=int, default=60, metavar="S", help="seconds before such a try (default 60)")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _leave)
    try:
        check_params()  # both before a server is started
        check_free()
    except CommandFailedError as error:
        print(error, file=sys.stderr)
        return 1
    state = pipeline.with_options(task_runner=_workers(arguments.parallel))(
        retries=arguments.retries, retry_delay_s=arguments.retry_delay, return_state=True
    )
    if state.is_completed():
        return 0
    with suppress(BaseException):
        message = str(state.result(raise_on_failure=False))
        print(f"error: {message.removeprefix('error: ')}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
