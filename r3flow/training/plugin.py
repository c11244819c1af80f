"""A user's own process reward: `reward.process: plugins.<module>:<function>`, a function in the project's folder `plugins`.

    score(trajectory) -> a number in [0, 1], or None for unknown, for each step

The folder is a dependency of the stages that import this module (see `r3flow.dev.deps`), so that DVC notices an edit.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Sequence
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import Any

from r3flow.errors import ConfigError, R3FlowError
from r3flow.trajectory import Trajectory

FOLDER = "plugins"


class ProcessPlugin:
    """The named function, loaded from `root`/plugins and checked at every call. Raises ConfigError, one line, for whatever is wrong.

    `name` is what stands in `reward.process`. What the function raises of this project's own errors passes through, so that an endpoint
    that is down can be tried again later.
    """

    def __init__(self, name: str, root: str | Path = ".") -> None:
        module_name, _, function_name = name.partition(":")
        self.name, self.folder = name, (Path(root) / FOLDER).resolve()
        module = self._module(module_name, self.folder.parent)
        function = getattr(module, function_name, None)
        if not callable(function):
            problem = "has no function" if function is None else "has something, but no function, called"
            raise ConfigError(f"reward.process: {module_name} {problem} '{function_name}'; define it there or correct reward.process")
        self._function: Callable[[Trajectory], Sequence[Any]] = function

    def __call__(self, trajectory: Trajectory) -> list[float | None]:
        """One relevance a step, in [0, 1] or None for unknown."""
        question = trajectory.question.id
        try:
            returned = self._function(trajectory)
        except R3FlowError:
            raise
        except Exception as error:
            raise ConfigError(f"reward.process: {self.name} fails at question '{question}': {self._told(error)}; mend it") from error
        if isinstance(returned, (str, bytes)) or not isinstance(returned, Sequence):
            raise self._wrong(question, f"gave {type(returned).__name__}, expected a list: a number in 0 to 1, or None, for each step")
        if len(returned) != len(trajectory.steps):
            raise self._wrong(question, f"gave {len(returned)} values for {len(trajectory.steps)} steps, expected one a step")
        return [self._value(value, question, place) for place, value in enumerate(returned, 1)]

    def _value(self, value: Any, question: str, place: int) -> float | None:
        if value is None:
            return None
        if not isinstance(value, Real) or not 0 <= float(value) <= 1:  # NaN too lies in no range
            raise self._wrong(question, f"gave {value!r} for step {place}, expected a number in 0 to 1, or None for unknown")
        return float(value)

    def _wrong(self, question: str, problem: str) -> ConfigError:
        return ConfigError(f"reward.process: {self.name} {' '.join(problem.split())} (question '{question}'); mend it")

    def _module(self, name: str, root: Path) -> ModuleType:
        file = f"{name.replace('.', '/')}.py"
        # the package is made here: looked for on Python's path, any installed one of this name would be taken for the project's
        package = sys.modules.setdefault(FOLDER, ModuleType(FOLDER))
        places = [str(place) for place in getattr(package, "__path__", ())]
        if places not in ([], [str(self.folder)]):
            raise ConfigError(f"reward.process: another package called {FOLDER} was imported, from {places[0]}; remove or rename that one")
        package.__path__ = [str(self.folder)]
        importlib.invalidate_caches()
        try:
            return importlib.import_module(name)
        except Exception as error:
            if isinstance(error, ModuleNotFoundError) and error.name is not None and f"{name}.".startswith(f"{error.name}."):
                raise ConfigError(f"reward.process: no module '{name}' in {root}; write {file} or correct reward.process") from None
            raise ConfigError(f"reward.process: {file} cannot be imported: {self._told(error)}; mend it") from error

    def _told(self, error: Exception) -> str:
        """An exception in one line, with the last line of the user's own files that it passed."""
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_relative_to(self.folder)]
        where = f" ({FOLDER}/{Path(frames[-1].filename).relative_to(self.folder).as_posix()}:{frames[-1].lineno})" if frames else ""
        return f"{type(error).__name__}: {' '.join(str(error).split())}{where}"
