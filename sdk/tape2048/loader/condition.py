"""Conditions on rows: boolean expressions of SQL, evaluated with NumPy on all cores.

The condition is translated to a Python expression, whose syntax tree is walked. Nodes that are not listed
below are errors. NULL is NaN. In SQL, a comparison with NULL is neither true nor false, and neither is its
negation. Therefore a node returns the rows for which it is certainly true, or certainly false.
"""

from __future__ import annotations

import ast
import difflib
import functools
import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tape2048.base.threads import map_ordered
from tape2048.errors import ConfigError
from tape2048.loader.batch import Batch, floats_of
from tape2048.loader.boards import no_bits
from tape2048.loader.column_fields import names_of, plan_fields
from tape2048.loader.filters import TIMES, as_instant
from tape2048.loader.gatherer import Gatherer
from tape2048.loader.order import Order
from tape2048.session.batch_fields import FIELDS, field_of
from tape2048.session.former_names import name_hint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from tape2048.loader.row_view import ViewTables

_TOKEN = re.compile(
    r"(?P<text>'(?:[^']|'')*')|(?P<name>(?<![\w.])[A-Za-z_]\w*)|<>|(?<![<>!=])=(?!=)|[|#\n]", re.ASCII
)
_WORDS = {
    "AND": "and", "OR": "or", "NOT": "not", "IN": "in", "IS": "is", "NULL": "None", "TRUE": "1", "FALSE": "0",
    "ABS": "abs", "BETWEEN": "in", "=": "==", "<>": "!=", "|": "@", "#": "@", "\n": " ",
}  # fmt: skip
_KNOWN = "columns, numbers, text, comparisons, AND, OR, NOT, IN, BETWEEN, IS NULL, + - * / % and ABS"
_CHUNK_ROWS = 1 << 18


class Condition:
    """A parsed condition; ConfigError if it is invalid. Column ``names`` are in lower case."""

    def __init__(self, text: str) -> None:
        self.text = text[:200]
        self.names: list[str] = []
        self._between = 0
        try:
            self._tree = ast.parse(_TOKEN.sub(self._in_python, text).strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise self.rejected(getattr(error, "msg", str(error))) from error

    def rejected(self, reason: str, hint: str | None = None) -> ConfigError:
        message = f"the condition {self.text!r} is rejected: {reason}"
        return ConfigError(message, hint=hint or f"Write a condition of {_KNOWN}.")

    def _in_python(self, token: re.Match[str]) -> str:
        word = token[0].upper()
        if token["text"]:
            return repr(token[0][1:-1].replace("''", "'"))
        self._between += word == "BETWEEN"
        if word == "AND" and self._between:
            self._between -= 1
            return "|"  # it binds closer than Python's `in`; SQL's own `|` became `@`, which is rejected
        if word in _WORDS:
            return _WORDS[word]
        self.names.append(token[0].lower())
        return f"_{len(self.names) - 1}"  # so that no name is a word of Python's

    def rows(
        self,
        values: Mapping[str, NDArray[Any]],
        count: int,
        words: Mapping[str, Mapping[str, int]] = MappingProxyType({}),
    ) -> NDArray[np.bool_]:
        """Return where the condition is true, ``bool[count]``; ``words`` are columns with named numbers."""
        try:
            with np.errstate(all="ignore"):
                return np.broadcast_to(_Rows(self.names, values, words).truth(self._tree, want=True), count)
        except TypeError as error:
            raise self.rejected("found text instead of a number, or a number instead of text") from error
        except (ValueError, OverflowError, RecursionError) as error:
            raise self.rejected(str(error)) from error


class _Rows(NamedTuple):
    names: list[str]
    values: Mapping[str, NDArray[Any]]
    words: Mapping[str, Mapping[str, int]]

    def column(self, word: str, entry: int | None = None) -> Any:
        name = self.names[int(word[1:])]
        column = self.values[name]
        width = column.shape[1] if column.ndim == 2 else 0
        if (entry is None) == bool(width) or (entry or 0) >= max(1, width):
            form = f"{name}[0] to {name}[{width - 1}]" if width else name
            raise ValueError(f"found {name}{'' if entry is None else f'[{entry}]'}; expected {form}")
        column = column if entry is None else column[:, entry]
        if column.dtype.kind in "bui" and column.dtype.itemsize < 8:
            return column.astype(np.int64)  # as SQLite computes
        return column.astype(np.float32) if column.dtype == np.float16 else column

    def value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(None | int() | float() | str() as found):
                return np.nan if found is None else found
            case ast.Name(word) if word != "abs":
                return self.column(word)
            case ast.Subscript(ast.Name(word), ast.Constant(int(entry))) if word != "abs":
                return self.column(word, entry)
            case ast.UnaryOp(ast.USub(), operand):
                return np.negative(self.value(operand))
            case ast.Call(ast.Name("abs"), [operand], []):
                return np.abs(self.value(operand))
            case ast.BinOp(left, op, right) if type(op) in _ARITHMETIC:
                return _ARITHMETIC[type(op)](self.value(left), self.value(right))
        shown = re.sub(r"\b_(\d+)\b", lambda match: self.names[int(match[1])], ast.unparse(node))
        raise ValueError(f"found {shown[:200]}")

    def beside(self, node: ast.expr, other: ast.expr) -> Any:
        """Return a compared node's value: an instant beside a time, a number beside a column of names."""
        found = self.value(node)
        near = {each.id for each in ast.walk(other) if isinstance(each, ast.Name)} - {"abs"}
        beside = {self.names[int(word[1:])] for word in near}
        if beside & {*TIMES} and isinstance(found, str | int | float) and found == found:  # noqa: PLR0124 - NaN
            return as_instant(str(found))
        for name in beside & self.words.keys() if isinstance(found, str) else ():
            if found not in self.words[name]:
                raise ValueError(
                    f"{name} has no {found[:40]!r}; expected one of {', '.join(self.words[name])}"
                )
            return self.words[name][found]
        return found

    def truth(self, node: ast.expr, *, want: bool) -> Any:
        """Return where a node is certainly true, or else certainly false."""
        match node:
            case ast.BoolOp(op, parts):
                every = isinstance(op, ast.And) == want
                join: Any = np.logical_and if every else np.logical_or
                return functools.reduce(join, (self.truth(each, want=want) for each in parts), every)
            case ast.UnaryOp(ast.Not(), operand):
                return self.truth(operand, want=not want)
            case ast.Compare(left, [ast.Is() | ast.IsNot() as op], [ast.Constant(None)]):
                found = self.value(left)
                return (np.not_equal if isinstance(op, ast.Is) == want else np.equal)(found, found)
            case ast.Compare(left, [ast.In() | ast.NotIn() as op], [right]):
                return self.truth(_expanded(left, right), want=isinstance(op, ast.In) == want)
            case ast.Compare(left, [op], [right]) if type(op) in _COMPARISONS:
                pair = self.beside(left, right), self.beside(right, left)
                return _compared(_COMPARISONS[type(op)][not want], *pair)
        return _compared(np.not_equal if want else np.equal, self.value(node), 0)


def _expanded(left: ast.expr, right: ast.expr) -> ast.BoolOp:
    """Turn ``left BETWEEN low AND high``, or ``left IN (...)``, into comparisons."""
    if isinstance(right, ast.BinOp) and isinstance(right.op, ast.BitOr):
        low = ast.Compare(left, [ast.GtE()], [right.left])
        return ast.BoolOp(ast.And(), [low, ast.Compare(left, [ast.LtE()], [right.right])])
    choices = right.elts if isinstance(right, ast.Tuple) else [right]
    return ast.BoolOp(ast.Or(), [ast.Compare(left, [ast.Eq()], [each]) for each in choices])


def _kinds(*given: Any) -> set[str]:
    return {np.asarray(each).dtype.kind for each in given}


def _compared(op: Any, a: Any, b: Any) -> Any:
    if "O" in _kinds(a, b):
        a, b = np.asarray(a), np.asarray(b)  # NumPy 2.4 can crash on where= and a Python number over 64 bits
    elif op is not np.not_equal:
        return op(a, b)  # false for NaN
    known = np.equal(a, a) & np.equal(b, b)
    return op(a, b, where=known, out=np.zeros(known.shape, np.bool_))


def _divide(a: Any, b: Any) -> Any:
    quotient = np.where(np.equal(b, 0), np.nan, np.true_divide(a, b))
    return quotient if "f" in _kinds(a, b) else np.trunc(quotient)


_ARITHMETIC: dict[type, Any] = {
    ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply, ast.Div: _divide,
    ast.Mod: lambda a, b: np.where(np.equal(b, 0), np.nan, np.fmod(a, b)),
}  # fmt: skip
#: Each comparison, and its negation.
_COMPARISONS: dict[type, tuple[np.ufunc, np.ufunc]] = {
    ast.Eq: (np.equal, np.not_equal), ast.NotEq: (np.not_equal, np.equal),
    ast.Lt: (np.less, np.greater_equal), ast.GtE: (np.greater_equal, np.less),
    ast.Gt: (np.greater, np.less_equal), ast.LtE: (np.less_equal, np.greater),
}  # fmt: skip


def mark_rows(
    tables: ViewTables, text: str, of_runs: Mapping[str, Callable[[], NDArray[Any]]]
) -> NDArray[np.uint64]:
    """Return a mask of the rows that meet a condition; ``of_runs`` makes the columns by run, ``[R]``."""
    condition = Condition(text)
    own = {name: of_runs[name]() for name in condition.names if name in of_runs}
    fields = dict.fromkeys(name for name in condition.names if name not in own)
    known = {*of_runs, *FIELDS, *filter(field_of, fields)} - {"labels"}
    if fields.keys() - known:
        for ordinal in np.flatnonzero(np.diff(tables.runs.firsts)).tolist():
            known |= tables.store.sessions[ordinal].columns.keys()
    for name in fields.keys() - known:
        near = difflib.get_close_matches(name, known, 1)
        hint = name_hint(name) or (f"Did you mean {near[0]}?" if near else "")
        raise condition.rejected(f"no column {name}", f"{hint} Columns: {', '.join(sorted(known))}.".lstrip())
    layout, columns = plan_fields(tables, [*fields] or ["row"], np.empty(0, np.int64), "bool")
    gatherer = Gatherer(tables, layout.fields, np.empty(0, np.int64), columns=columns)
    words_of = {each.info.name: named for each in columns if (named := names_of(each.info))}
    if gatherer.reads_rows:
        tables.store.check_files()
    starts = tables.rowmap.run_starts.view(np.int64)
    rows, order = int(starts[-1]), Order.straight()
    words = no_bits(rows)

    def mark(first: int) -> None:
        end = min(first + _CHUNK_ROWS, rows)
        begin, last = np.searchsorted(starts, [first, end - 1], "right") - 1
        edges = np.clip(starts[begin : last + 2], first, end)
        counts = edges[1:] - edges[:-1]
        values = {name: np.repeat(column[begin : last + 1], counts) for name, column in own.items()}
        if fields:
            batch = Batch.allocate(layout, end - first)
            with gatherer.hold(first, end):  # fill holds the sessions that a thread reads
                gatherer.fill(order, (first, end - first), batch)
            halves = {name: floats_of(batch, name) for name in layout.halves}
            values |= {**{name: batch[name] for name in fields}, **halves}
        found = condition.rows(values, end - first, words_of)
        words.view(np.uint8)[first >> 3 : (end + 7) >> 3] = np.packbits(found, bitorder="little")

    for _ in map_ordered(mark, range(0, rows, _CHUNK_ROWS)):
        pass
    return words
