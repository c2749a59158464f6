"""Additions to click: examples at the end of each help, late subcommands, options that commands share."""

from __future__ import annotations

import difflib
import importlib
import os
import re
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path


class _Path(click.Path):
    """A parameter type for :class:`pathlib.Path`, which is imported with the first value."""

    def __init__(
        self, *, exists: bool = False, hint: str | None = None, may_be_address: bool = False
    ) -> None:
        super().__init__()
        self.must_exist, self.hint, self.may_be_address = exists, hint, may_be_address

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from pathlib import Path

        if isinstance(value, str) and "://" in value:
            if self.may_be_address:
                return value
            from tape2048.errors import ConfigError

            hint = "list, show, critic train, critic eval and record --to take addresses"
            raise ConfigError(f"found the address {value}, expected a path on this machine", hint=hint)
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if self.must_exist:
            refuse_missing(path, self.hint)
        return path


def refuse_missing(path: Path, hint: str | None = None) -> None:
    """Raise MissingPathError if a path does not exist. Its reader raises other errors."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        from tape2048.errors import MissingPathError

        raise MissingPathError("no such file or directory", path=path, hint=hint) from None
    except OSError:
        pass


_ROOT_HINT = "Give the directory that `tape2048 record` writes to (--out), or record first"

#: A path to write, or with a check in the command.
PATH = _Path()

#: A path to read.
EXISTING = _Path(exists=True)

#: A directory of sessions.
ROOT = _Path(exists=True, hint=_ROOT_HINT)

#: A directory of sessions, a session, or the address of a store of sessions.
PLACE = _Path(
    exists=True,
    may_be_address=True,
    hint=f"{_ROOT_HINT}; or give a store: s3://bucket/prefix, or gs://, az://, hf://",
)


def tower(value: str) -> str:
    if ":" not in value:
        from pathlib import Path

        refuse_missing(Path(value))
    return value


def critic_or_name(value: str) -> Path:
    from pathlib import Path

    from tape2048.critic.shipped import SHIPPED

    path = Path(value)
    if value not in SHIPPED:
        refuse_missing(
            path, f"Give the path of a critic, or the name of a shipped critic: {', '.join(SHIPPED)}."
        )
    return path


def shard(value: str) -> tuple[int, int]:
    """Parse ``I/N`` with 1 <= I <= N. The returned index starts at 0."""
    match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", value)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise click.BadParameter(f"found {value!r}, expected I/N with I from 1 to N, such as 1/4")
    return int(match[1]) - 1, int(match[2])


#: Present names of renamed options, by former name. A name in capitals is an argument. A command that has the
#: present name mentions it when it rejects the former name.
RENAMED = {
    "--best": "--run-id",
    "--columns": "--out",
    "--data": "DATA",
    "--engine": "--shard",
    "--html": "--out",
    "--out-dir": "--out",
    "--output": "--out",
    "--max-tile": "--max-highest-tile",
    "--min-tile": "--min-highest-tile",
    "--player": "--judge",
    "--run": "--run-id",
    "--workers": "--threads",
    "--worst": "--run-id",
}
#: Former options without a successor, and what to do instead.
_REMOVED = {
    "--batch-rows": "Set OMP_NUM_THREADS to bound what a tower takes.",
    "--markdown": "docs/reference/settings.md has the table.",
    "--method": "All players are measured with argmax.",
}

#: Exit code of a command that did its work and found something wrong.
EXIT_FINDINGS = 1

#: Settings of a root command.
ROOT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

DEVICE = click.option(
    "--device", default="auto", show_default=True, help="Device: auto, cpu, cuda or cuda:N."
)
CRITIC = click.option(
    "--critic",
    type=critic_or_name,
    default="default",
    metavar="CRITIC",
    show_default=True,
    help="Path of a critic, or default for the shipped critic.",
)
CRITIC_TOWER = click.option(
    "--tower",
    type=tower,
    help="Tower, DIR or module:factory, that computes the input of a critic of embeddings.",
)


def options(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Join decorators into one. The help lists their options in this order."""

    def decorate(command: Any) -> Any:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def int_option(
    name: str, text: str, *, default: int | None = None, least: int = 0, most: int | None = None
) -> Callable[[Any], Any]:
    shown: dict[str, Any] = {} if default is None else {"default": default, "show_default": True}
    return click.option(name, type=click.IntRange(least, most), metavar="N", help=text, **shown)


def out_option(text: str, metavar: str = "FILE", **attributes: Any) -> Callable[[Any], Any]:
    attributes = {"required": True, "type": PATH, **attributes}
    return click.option("--out", "-o", metavar=metavar, help=text, **attributes)


COLUMNS = click.option(
    "--columns", "overlay", type=PATH, metavar="DIR", help="Read columns from DIR/<session>, too."
)

CACHE = options(
    click.option(
        "--cache",
        metavar="DIR",
        help="Cache for files from a store.  [default: tape2048/sessions below ~/.cache]",
    ),
    int_option("--cache-max-mb", "Most MB in the cache.", default=20_000),
)

#: Threads, which the functions of the SDK call workers.
THREADS = click.option(
    "--threads",
    "workers",
    type=click.IntRange(1),
    metavar="N",
    help="Number of threads.  [default: the number of cores]",
)


def json_option(text: str = "Print one JSON document.") -> Callable[[Any], Any]:
    return click.option("--json", "as_json", is_flag=True, help=text)


def quiet_option(text: str = "Show no progress bar.") -> Callable[[Any], Any]:
    return click.option("--quiet", is_flag=True, help=text)


def force_option(what: str) -> Callable[[Any], Any]:
    return click.option("--force", is_flag=True, help=f"Replace {what} if it exists.")


def job_options(out: str) -> Callable[[Any], Any]:
    return options(
        click.option(
            "--shard",
            type=shard,
            metavar="I/N",
            help=f"Process share I of N of the sessions. Each session gets a separate output in {out}.",
        ),
    )


def running_recorder(timeout_text: str, timeout_s: float | None = None) -> Callable[[Any], Any]:
    shown: dict[str, Any] = {} if timeout_s is None else {"default": timeout_s, "show_default": True}
    seconds = click.FloatRange(min=0)
    return options(
        click.argument("directory", type=ROOT, default="selfplay"),
        click.option("--instance", metavar="TEXT", help="Name of the recorder, if several run there."),
        click.option("--timeout-s", metavar="SECONDS", type=seconds, help=timeout_text, **shown),
    )


def exit_on_findings(found: object) -> None:
    if found:
        raise click.exceptions.Exit(EXIT_FINDINGS)


class Command(click.Command):
    def __init__(self, *args: Any, examples: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments. The error for a former option name gives the present name."""
        names = {name for one in self.params for name in one.opts} | {
            str(one.name).upper() for one in self.params
        }
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            new = RENAMED.get(error.option_name)
            texts = _REMOVED | getattr(self.callback, "instead", {})
            text = texts.get(error.option_name)
            if new in names:
                text = f"It is now {new}."
            if text is None:
                raise
            raise click.UsageError(f"No such option: {error.option_name}. {text}", ctx) from error
        except click.UsageError as error:
            if "--out" in names and "unexpected extra argument" in error.message:
                raise click.UsageError(f"{error.message}. Give the output with --out.", ctx) from error
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        others: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                group = getattr(parameter, "group", None)
                (others if group is None else sections.setdefault(group, [])).append(record)
        for title, records in [*sections.items(), ("Options", others)]:
            with formatter.section(title):
                formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        with formatter.section("Examples"):
            for line in self.examples:
                formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


class Group(Command, click.Group):
    command_class = Command

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)

    def subcommand(
        self, *examples: str, name: str | None = None
    ) -> Callable[[Callable[..., None]], click.Command]:
        return self.command(name, examples=examples)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            if not near or "Did you mean" in error.message:
                raise
            raise click.UsageError(f"{error.message} Did you mean {near[0]!r}?", ctx) from error


def new_command(*examples: str) -> Callable[[Callable[..., None]], click.Command]:
    return click.command(cls=Command, examples=examples)


def new_group(*examples: str, **attributes: Any) -> Callable[[Callable[..., None]], Group]:
    return click.group(cls=Group, examples=examples, **attributes)


class LazyGroup(Group):
    """A group that imports the module of a subcommand only when it is invoked."""

    def __init__(
        self,
        *args: Any,
        lazy: Mapping[str, tuple[str, str]],
        headings: Mapping[str, Sequence[str]] | None = None,
        removed: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy
        self.headings = headings or {"Commands": list(lazy)}
        self.removed = removed or {}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.removed:
            message = f"The command {cmd_name!r} was removed. Use {self.removed[cmd_name]}."
            raise click.UsageError(message, ctx)
        if cmd_name not in self.lazy:
            return None
        module, _, name = self.lazy[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), name or "command")
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as above
        """Write the lists of commands without importing them, in columns of one width."""
        width = max(map(len, self.lazy))
        for title, names in self.headings.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), self.lazy[name][1]) for name in names])
