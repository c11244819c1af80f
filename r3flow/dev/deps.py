"""Keep the code dependencies in `dvc.yaml` equal to what each stage imports: `python -m r3flow.dev.deps [--check | --write]`.

DVC does not see Python imports; an edited helper that is not a dependency gives "didn't change, skipping". So each stage lists the
whole import closure of its module, below the marker line `# code`. The closure is read from the source without running it: imports
inside functions count, `if TYPE_CHECKING:` blocks do not. A module named in a string (`-m r3flow.simulated.server`) counts as
imported, and a data file counts for the modules of its package that name it or its folder. A module that loads others by a name
out of `params.yaml` counts as naming their whole folder (`LOADS`). `r3flow.tracking` is exempt: it watches and cannot change a result.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("r3flow", "stages")
EXEMPT = "r3flow.tracking"
MARKER = "# code (python -m r3flow.dev.deps --write)"
LOADS = {"r3flow/training/plugin.py": "plugins"}
"""Modules that load what only `params.yaml` names, and the folder below the root where that lies; DVC watches it as a whole."""
_COMMAND = re.compile(r"^\s+cmd: python -m (stages\.\w+)")


def module_file(root: Path, name: str) -> Path | None:
    """The file of a module of this project, None for any other name."""
    if name.split(".")[0] not in PACKAGES:
        return None
    base = root.joinpath(*name.split("."))
    for path in (base / "__init__.py", base.with_suffix(".py")):
        if path.is_file():
            return path
    return None


def _exempt(name: str) -> bool:
    return name == EXEMPT or name.startswith(EXEMPT + ".")


def _live(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those under `if TYPE_CHECKING:`."""
    if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
        for other in node.orelse:
            yield from _live(other)
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _live(child)


def _mentions(node: ast.AST, package: str) -> list[str]:
    """Names that could be modules, as `node` mentions them. `package` resolves relative imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        parts = package.split(".")
        parent = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
        base = ".".join(filter(None, [parent, node.module or ""]))
        return [base, *(f"{base}.{alias.name}" for alias in node.names)]
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"\w+(\.\w+)+", node.value):
        return [node.value]
    return []


def _data_files(path: Path, texts: set[str]) -> set[Path]:
    """Files other than Python's in the module's own package whose name, or whose folder below it, is among `texts`."""
    found = set()
    for item in path.parent.iterdir():
        if item.name in texts:
            inside = [item] if item.is_file() else [] if (item / "__init__.py").exists() else list(item.rglob("*"))
            found |= {file for file in inside if file.is_file() and file.suffix not in (".py", ".pyc")}
    return found


def closure(root: Path, module: str) -> list[str]:
    """Every file of this project that `module` can load, as sorted paths relative to `root`, its own and its packages' included.

    A folder of `LOADS` is one entry.
    """
    seen: set[str] = set()
    files: set[Path] = set()
    queue = [module]
    while queue:
        name = queue.pop()
        path = module_file(root, name)
        if name in seen or path is None or _exempt(name):
            continue
        seen.add(name)
        files.add(path)
        queue += [name[:at] for at, letter in enumerate(name) if letter == "."]
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        nodes = list(_live(ast.parse(path.read_text(encoding="utf-8"), str(path))))
        queue += [mention for node in nodes for mention in _mentions(node, package)]
        files |= _data_files(path, {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)})
    names = {path.relative_to(root).as_posix() for path in files}
    return sorted(names | {folder for loader, folder in LOADS.items() if loader in names})


def rewrite(root: Path, text: str) -> str:
    """The text of `dvc.yaml` with the list below each marker replaced by the closure of the stage's module; the rest stays as it is."""
    lines: list[str] = []
    module = ""
    skipping = False
    for line in text.splitlines():
        if command := _COMMAND.match(line):
            module = command.group(1)
        if skipping and line.strip().startswith("- "):
            continue
        skipping = line.strip() == MARKER
        lines.append(line)
        if skipping:
            indent = line[: len(line) - len(line.lstrip())]
            lines += [f"{indent}- {path}" for path in closure(root, module)]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """`--check` (the default) exits with 1 and tells the difference, `--write` mends the file."""
    if arguments not in ([], ["--check"], ["--write"]):
        print("usage: python -m r3flow.dev.deps [--check | --write]", file=sys.stderr)
        return 2
    root = Path.cwd()
    path = root / "dvc.yaml"
    old = path.read_text(encoding="utf-8")
    new = rewrite(root, old)
    if new == old:
        return 0
    if arguments == ["--write"]:
        path.write_text(new, encoding="utf-8")
        return 0
    print("error: dvc.yaml: the code dependencies are not what the stages import; run: python -m r3flow.dev.deps --write", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
