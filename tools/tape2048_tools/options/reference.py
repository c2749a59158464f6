"""Every setting of the recorder at its default, with its effect: a sample file and a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tape2048.errors import NameTakenError
from tape2048.io.durable import refuse_special, replace_file, storage_error, write_file
from tape2048.settings.fields import settings_of
from tape2048.settings.sample import comment, sample_entry
from tape2048_recorder.config.retention import TABLE, RetentionLimits
from tape2048_recorder.config.schema import RecorderConfig

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import msgspec

#: The sample file in a checkout.
SAMPLE = Path("systemd/recorder.toml")

_SAMPLE_HEAD = """\
Settings of the tape2048 recorder, each with its default.

Remove the # in front of a setting to change it. A flag (--rotate-steps 5M) counts before an
environment variable (TAPE2048_ROTATE_STEPS=5M), and that before this file; an unknown name is refused.
Use it with `tape2048 record --config FILE` or TAPE2048_CONFIG=FILE, and look at the result with
`tape2048 config show --origin`. Megabytes are 10**6 bytes."""

_RETENTION_HEAD = """\
How long sessions are kept: `tape2048 prune --config FILE` removes what exceeds these limits, the oldest
first; the recorder itself removes nothing. Limits for the sessions of one model tag go into
[retention.tags.TAG]."""


def settings_table(config: type[msgspec.Struct] = RecorderConfig) -> str:
    """Return the table of settings in Markdown: setting, default, values, effect, reason for the default."""
    lines = ["| setting | default | values | what it does | why this default |", "|---|---|---|---|---|"]
    for setting in settings_of(config).values():
        default = setting.show(setting.default) or '""'
        cells = (f"`{setting.name}`", f"`{default}`", setting.expected, setting.text, setting.why)
        lines.append("| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |")
    return "\n".join(lines) + "\n"


def write_samples(texts: Mapping[Path, str], *, force: bool) -> Iterator[Path]:
    """Write sample files, and yield their paths; NameTakenError for a file that exists, unless forced."""
    for path, text in texts.items():
        try:
            if force:
                refuse_special(path)
            (replace_file if force else write_file)(path, text.encode())
        except FileExistsError as error:
            hint = "Pass --force to replace it."
            raise NameTakenError("the file exists; it was not replaced", path=path, hint=hint) from error
        except OSError as error:
            raise storage_error(error, path, "writing the sample") from error
        yield path


def sample_toml() -> str:
    """Return a file with every setting in a comment: its effect, the reason for its default, the default.

    Prose starts with ``# ``, a setting with ``#``: with these removed, the file means the same.
    """
    settings = settings_of(RecorderConfig).values()
    # In TOML no plain key may follow a table.
    ordered = sorted(settings, key=lambda setting: setting.kind == "table")
    retention = f"{comment(_RETENTION_HEAD)}\n#[{TABLE}]"
    limits = settings_of(RetentionLimits).values()
    parts = [comment(_SAMPLE_HEAD), *map(sample_entry, ordered), retention, *map(sample_entry, limits)]
    return "\n\n".join(parts) + "\n"
