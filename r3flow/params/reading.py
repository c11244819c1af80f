"""From a params file to `Params`: an error is one line with file, line, key and remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from r3flow.errors import ConfigError
from r3flow.params.sections import Params
from r3flow.strict_yaml import StrictYAML


def _fields(model: Any) -> dict[str, Any]:
    """The fields of a section's class by their keys; also of `Section | None`."""
    for candidate in (model, *get_args(model)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return dict(candidate.model_fields)
    return {}


def _explain(problem: Any) -> str:
    """One line for one pydantic error."""
    location = tuple(part for part in problem["loc"] if part != "function-after")
    name = ".".join(map(str, location))
    if problem["type"] == "extra_forbidden":
        model: Any = Params
        for part in location[:-1]:
            model = _fields(model)[part].annotation
        near = difflib.get_close_matches(str(location[-1]), _fields(model), 1, 0.5)
        return f"unknown key '{name}'" + (f"; did you mean '{near[0]}'?" if near else f"; known here: {', '.join(_fields(model))}")
    if problem["type"] == "missing":
        return f"key '{name}' is missing"
    message = problem["msg"].removeprefix("Value error, ")
    return f"{name}: {message}" + ("" if problem["type"] == "value_error" else f", got {problem['input']!r}") if name else message


def parse(text: str, source: str = "params.yaml") -> Params:
    """Validate YAML text. Raises ConfigError: one line with file, line, key and remedy."""
    return _validate(StrictYAML(text, source))


def _validate(document: StrictYAML) -> Params:
    if not isinstance(document.value, dict):
        raise ConfigError(f"{document.source}: expected sections, got {type(document.value).__name__}")
    try:
        return Params.model_validate(document.value)
    except ValidationError as error:
        problems = sorted(error.errors(), key=lambda item: item["type"] != "extra_forbidden")
        rest = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise ConfigError(f"{document.where(problems[0]['loc'])}: {_explain(problems[0])}{rest}") from None
    except RecursionError:
        raise document.endless() from None


def _read(path: str | Path) -> tuple[StrictYAML, Params]:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; run this in the project's folder") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not valid UTF-8 (byte {error.start})") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; expected a params file") from None
    document = StrictYAML(text, str(path))
    return document, _validate(document)


def read(path: str | Path = "params.yaml") -> Params:
    """Read and validate a params file; what it names need not be there. Raises ConfigError."""
    return _read(path)[1]


def load(path: str | Path = "params.yaml") -> Params:
    """Read and validate a params file, and see that the files and folders that it names are there. Raises ConfigError."""
    document, params = _read(path)
    if problem := next(missing(params, Path(path).parent), None):
        key, what = problem
        raise ConfigError(f"{document.where(key.split('.'))}: {key}: {what}")
    return params


def missing(params: Params, folder: Path) -> Iterator[tuple[str, str]]:
    """(key, what is wrong) of paths below `folder` that are not there, or that DVC would not watch."""
    policy = params.policy
    local = (folder / policy.base).is_dir()
    if local and policy.watch != policy.base:
        # the base's path is all that DVC would see otherwise
        yield (
            "policy.watch",
            f"is '{policy.watch}', but policy.base is the folder '{policy.base}'; write the same in both, so that DVC trains anew when "
            "the folder changes",
        )
    if not local and policy.base.startswith((".", "/", "~")):
        yield "policy.base", f"'{policy.base}' is no folder; give a Hugging Face name, or a path without '~'"
    if params.reward.plugin is not None and (folder / "plugins").is_dir():
        # the function itself is looked for where it is used: this module runs no code of the user's
        path = params.reward.plugin.partition(":")[0].replace(".", "/")
        if not (folder / f"{path}.py").is_file() and not (folder / path / "__init__.py").is_file():
            yield "reward.process", f"'{params.reward.plugin}' is a function of {path}.py, which is no file; write it or correct the name"
    if params.prepare.source == "files":
        for key, name in params.prepare.files.model_dump().items():
            if not (folder / name).is_file():
                yield f"prepare.files.{key}", f"'{name}' is no file" + ("; write the path without '~'" if name.startswith("~") else "")
