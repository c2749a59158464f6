"""The games and the view of ``tape2048 critic train --kind ntuple``, and its summary at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tape2048.base.text import counted
from tape2048_tools.options.recorder import parse_player
from tape2048_tools.terminal.display import duration, near, number, rate
from tape2048_tools.terminal.output import columns
from tape2048_tools.views import progress as views
from tape2048_tools.views.opening import JobView, open_view, progress_bar

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tape2048.critic.ntuple.config import NTupleCriticConfig
    from tape2048.critic.ntuple.games import GameSource
    from tape2048.critic.ntuple.training import NTupleProgress, TrainedNTuple


def open_games(config: NTupleCriticConfig) -> GameSource:
    """Return the games of a training: those of its sessions, or those that its player plays now."""
    if config.games is None:
        from tape2048.critic.ntuple.games import corpus_games

        with progress_bar("reading", unit="boards") as progress:
            return corpus_games(config, progress)
    from tape2048_recorder.evaluation.rollouts import played_games

    name, args = parse_player(config.player)
    with progress_bar("playing", unit="games") as progress:
        return played_games(config, name, args, config.games, progress)


def ntuple_view(config: NTupleCriticConfig) -> JobView[NTupleProgress]:
    """Open the view of a training."""

    def describe(progress: NTupleProgress) -> views.Progress:
        left = progress.games_in_all - progress.games
        speed = progress.rows_per_s * progress.games / max(progress.rows, 1)
        facts = {"epoch": [f"{progress.epoch} of {progress.epochs}"]}
        if progress.loss is not None:
            facts["validation"] = [f"log loss {progress.loss:.5f}", f"best {progress.best_loss:.5f}"]
        return views.Progress(
            "learned",
            progress.games,
            progress.games_in_all,
            "games",
            state="training",
            rate=[f"{rate(progress.rows_per_s)} boards/s", counted(config.thread_count, "thread")],
            elapsed_s=progress.elapsed_s,
            left_s=left / speed if speed else None,
            facts=facts,
            trend=("log loss", progress.loss) if progress.loss is not None else None,
        )

    return JobView(open_view(f"tape2048 critic train --kind ntuple: {config.out}"), describe)


def trained_facts(trained: TrainedNTuple) -> dict[str, Any]:
    """Return the result of a training as a document."""
    return {
        **trained.progress._asdict(),
        "done": trained.done,
        "early": trained.early,
        "best": trained.best and str(trained.best),
    }


def trained_summary(config: NTupleCriticConfig, trained: TrainedNTuple) -> list[RenderableType]:
    """Return the result of a training, and the commands to try next, as text."""
    progress = trained.progress
    ended = "all passes are made" if not trained.early else "no lower loss for so many passes"
    speed = f"{duration(progress.elapsed_s)}, {rate(progress.rows_per_s)} boards/s"
    facts: dict[str, Any] = {
        "ended": ended if trained.done else "stopped; the same command resumes it",
        "learned": f"{number(progress.games)} games in {progress.epoch} passes, "
        f"{number(progress.rows)} boards, {speed}",
    }
    following = ""
    if trained.best is not None and progress.best_loss is not None:
        best = near(str(trained.best))
        facts["best"] = f"{best}, {number(trained.best.stat().st_size)} bytes"
        facts["validation"] = f"log loss {progress.best_loss:.5f} over boards and tiles"
        following = (
            f"\nNext:\n  tape2048 critic eval {best} {near(config.data)} --oracle 48\n"
            f"  tape2048 critic ask --critic {best} 0x0123456789abcdef"
        )
    return [columns(facts), following]
