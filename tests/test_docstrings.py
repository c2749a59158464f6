"""Every entry of ``Raises:`` names an exception that exists, and every entry of ``Args:`` a parameter."""

import ast
import builtins
import re
from collections.abc import Iterator
from functools import cache
from typing import TypeAlias

from tape2048 import errors

from .layers import modules

Documented: TypeAlias = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
#: Exceptions of all modules, by name.
EXCEPTIONS = {
    name
    for module in (builtins, errors)
    for name, value in vars(module).items()
    if isinstance(value, type) and issubclass(value, BaseException)
}


def entries(text: str, title: str) -> Iterator[tuple[list[str], str]]:
    """Yield the names and the first line of each entry of a section; no names if there is no colon."""
    section = re.search(rf"^{title}:\n((?:    .*\n|\n)*)", f"{text}\n", re.MULTILINE)
    for line in re.findall(r"^    (\S.*)$", section[1] if section else "", re.MULTILINE):
        found = re.match(r"(\*{0,2}[\w.]+(?:, \*{0,2}[\w.]+)*): \S", line)
        yield found[1].split(", ") if found else [], line


@cache
def classes() -> dict[str, ast.ClassDef]:
    """Return the classes of all modules by name."""
    trees = (ast.parse(path.read_text()) for path in modules().values())
    return {node.name: node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def parameters(node: Documented) -> set[str]:
    """Return the parameters of a function or class, as a docstring writes them (``**options``)."""
    if isinstance(node, ast.ClassDef):
        init = [item for item in node.body if isinstance(item, FUNCTIONS) and item.name == "__init__"]
        if init:
            return parameters(init[0])
        fields = {item.target.id for item in node.body if isinstance(item, ast.AnnAssign)}  # type: ignore[union-attr]
        bases = (classes().get(ast.unparse(base)) for base in node.bases)
        return fields.union(*(parameters(base) for base in bases if base))
    args = node.args
    found = {arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)}
    found |= {f"*{arg.arg}" for arg in [args.vararg] if arg}
    for arg in [args.kwarg] if args.kwarg else []:
        found.add(f"**{arg.arg}")
        options = re.fullmatch(r"Unpack\[(\w+)\]", ast.unparse(arg.annotation) if arg.annotation else "")
        found |= parameters(classes()[options[1]]) if options else set()
    return found


def faults(source: str) -> list[str]:
    """List the entries of a module's docstrings that name no exception or no parameter."""
    tree, found = ast.parse(source), []
    known = EXCEPTIONS | {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.alias)}
    for node in ast.walk(tree):
        if not isinstance(node, Documented):
            continue
        text = ast.get_docstring(node) or ""
        for title, names in ("Raises", known), ("Args", parameters(node)):
            for named, line in entries(text, title):
                if not named or not names.issuperset(named):
                    found.append(f"{node.lineno} {node.name}: {title}: {line}")
    return found


def test_entries_name_exceptions_and_parameters() -> None:
    found = {name: faults(path.read_text()) for name, path in modules().items()}
    assert {name: lines for name, lines in found.items() if lines} == {}


GOOD = '''
from json import JSONDecodeError

def read(path, *more, **options: Unpack[BatchOptions]):
    """Read.

    Args:
        path: a file, whose text
            continues: here.
        *more: further files.
        seed, fields: options.

    Raises:
        ValueError, JSONDecodeError: the text is no number.
        FormatError: the file is damaged.

            A paragraph: it is indented.

    Example:
        >>> read("x")
    """
'''


def test_a_broken_entry_is_found() -> None:
    assert faults(GOOD) == []
    for old, new in (
        ("FormatError: the", "Otherwise, as for open.\n        FormatError: the"),
        ("FormatError", "FormattingError"),
        ("JSONDecodeError:", "DecodeError:"),
        ("path: a", "paths: a"),
        ("*more: f", "more: f"),
        ("seed, ", "sead, "),
        ("            continues", "        continues"),
    ):
        assert len(faults(GOOD.replace(old, new, 1))) == 1, new
