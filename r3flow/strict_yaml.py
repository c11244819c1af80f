"""YAML that every reader takes the same way: what one library reads as a number and another as text is refused, and so are equal keys.

The pipeline's parameters are read by this project and by DVC, with two libraries.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml

from r3flow.errors import ConfigError

_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")
_PLAIN_NUMBER = re.compile(r"[-+]?(0|[1-9]\d*|\d+\.\d*([eE][-+]\d+)?|\.\d+([eE][-+]\d+)?|\.(inf|nan))", re.IGNORECASE)


class StrictYAML:
    """A text's `value`, and the line of each key in it.

    Raises ConfigError, one line with `source` and remedy, for what is no YAML, equal keys, numbers that readers take differently, and a
    value that holds itself or is nested too deeply.
    """

    def __init__(self, text: str, source: str) -> None:
        self.source = source
        try:
            self.value: Any = yaml.safe_load(text)
            self._root = yaml.compose(text, Loader=yaml.SafeLoader)
            self._refuse(self._root)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f":{mark.line + 1}" if mark else ""
            raise ConfigError(f"{source}{where}: not valid YAML: {getattr(error, 'problem', None) or str(error).splitlines()[0]}") from None
        except ValueError as error:  # a date that is none
            raise ConfigError(f"{source}: not valid YAML: {error}; put quotation marks around what is no number and no date") from None
        except RecursionError:
            raise self.endless() from None

    def where(self, keys: Sequence[Any]) -> str:
        """`FILE:LINE` of the deepest key of the path `keys` that the text has; line 1 if none."""
        node, line = self._root, 1
        for key in keys:
            if not isinstance(node, yaml.MappingNode):
                break
            found = [(k, v) for k, v in node.value if k.value == key]
            if not found:
                break
            line, node = found[0][0].start_mark.line + 1, found[0][1]
        return f"{self.source}:{line}"

    def endless(self) -> ConfigError:
        """What to raise where a reader of `value` ran out of stack."""
        return ConfigError(f"{self.source}: a value holds itself (by & and *) or is nested too deeply; write it out")

    def _refuse(self, node: Any) -> None:
        if isinstance(node, yaml.MappingNode):
            self._refuse_twice(node)
            for _, value in node.value:
                self._refuse(value)
        elif isinstance(node, yaml.SequenceNode):
            for value in node.value:
                self._refuse(value)
        elif isinstance(node, yaml.ScalarNode) and node.style is None:
            self._refuse_odd_number(node)

    def _refuse_twice(self, node: Any) -> None:
        """YAML readers take the last of two equal keys without a word."""
        seen: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if key.value in seen:
                raise ConfigError(f"{self.source}:{line}: key '{key.value}' stands in line {seen[key.value]} already; keep one")
            seen[key.value] = line

    def _refuse_odd_number(self, node: Any) -> None:
        """`3e-3` is text to some readers, `010` is 8 or 10, `1:30` may be 90."""
        where = f"{self.source}:{node.start_mark.line + 1}: '{node.value}'"
        if node.tag.endswith((":int", ":float")) and not _PLAIN_NUMBER.fullmatch(node.value):
            raise ConfigError(f"{where} is read as another number by some readers of YAML; write it in plain digits, or in quotation marks")
        if node.tag.endswith(":str") and _EXPONENT.fullmatch(node.value):
            number = repr(float(node.value))
            right = number if "." in number else number.replace("e", ".0e")
            raise ConfigError(f"{where} is text in YAML 1.1, not a number; write {right}")
