"""The evaluation of a critic: its inputs, and its result as tables, as CSV and as one document."""

from __future__ import annotations

import contextlib
import csv
import io
import math
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tape2048.base.text import counted, printable
from tape2048.critic.facts import check_embeddings, stranger_remarks, strangers, unseen_games
from tape2048.errors import ConfigError, CorpusError, EmptyCorpusError
from tape2048.files.training_directory import METRICS, read_metrics
from tape2048.loader.row_view import tables_of
from tape2048.loader.run_columns import facts_of_runs
from tape2048.loader.splits import parts_of_hashes, split_hash
from tape2048.players import PlayedBy, identity_of_player, name_players, only_player
from tape2048_tools.options.critic_options import open_critic
from tape2048_tools.options.recorder_options import parse_player
from tape2048_tools.progress.panel import stages_bar
from tape2048_tools.terminal.display import number
from tape2048_tools.terminal.output import cell, columns, table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from rich.console import RenderableType

    from tape2048.corpus import Corpus
    from tape2048.critic.evaluation import Baseline
    from tape2048.critic.facts import CriticFacts
    from tape2048.critic.oracle import Oracle, Truth
    from tape2048.critic.results import Evaluation


#: The name of the part with all games, and of the games that the critic has not learned from.
ALL, UNSEEN = "all", "unseen"

#: Most points of a learning curve.
POINTS_MAX = 500

_PER_RUN = 512  # rows per game if the critic does not state the number of its training


def examine(
    critic: Path,
    roots: Sequence[Path | str],
    *,
    part: str | None = None,
    own_games: bool = False,
    where: str | None = None,
    by: Any = "moves",
    per_run: int | None = None,
    rows_max: int = 1_000_000,
    bootstrap: int = 1000,
    seed: int = 0,
    player: str = "ntuple",
    oracle: int | None = None,
    positions: int = 3000,
    precision: float | None = None,
    tower: str | None = None,
    device: str = "auto",
    cache: str | None = None,
    cache_max_mb: int | None = None,
    quiet: bool = True,
) -> tuple[Evaluation, dict[str, Any]]:
    from tape2048 import Corpus
    from tape2048.critic.evaluation import evaluate

    loaded = open_critic(critic, device, tower)
    baselines = {} if player == "none" else {player: expected_score(player)}
    condition = " AND ".join(f"({one})" for one in (loaded.info.where, where) if one) or None
    at = cache if any(isinstance(root, str) for root in roots) else None
    corpus = Corpus.open(roots, condition, load="mmap", cache=at, cache_max_mb=cache_max_mb)
    chosen_from = _own_games(corpus, loaded.info) if own_games else corpus
    name, chosen, train, notes = _choose_parts(chosen_from, loaded.info, part)
    if others := len(corpus.runs) - len(chosen_from.runs):
        notes.append(f"Left out: {counted(others, 'game')} of other players.")
    if loaded.kind != "ntuple" and loaded.needs_embeddings:
        check_embeddings(chosen, loaded.info.tower.sha256)
    rollouts = None if oracle is None else rollouts_of(chosen, oracle, seed)
    if per_run is None:  # as in the training
        trained: Any = loaded.info.training.get("per_run", _PER_RUN) if loaded.info.training else _PER_RUN
        per_run = trained if isinstance(trained, int) else 0
    bound = max(1, rows_max // len(chosen.runs)) if rows_max else per_run
    with stages_bar(quiet=quiet) as progress:
        evaluation = evaluate(
            loaded,
            chosen,
            train=train,
            baselines=baselines,
            by=by,
            per_run=min(per_run or bound, bound) or None,
            replicates=bootstrap,
            seed=seed,
            oracle=rollouts,
            positions=positions,
            precision=precision,
            progress=progress,
        )
    return evaluation, {
        "critic": str(critic),
        "critic_sha256": loaded.sha256,
        "kind": loaded.kind,
        "step": loaded.info.step,
        "root": ", ".join(map(str, roots)),
        "sessions": len({int(number) for number in chosen.runs["session"]}),
        "part": name,
        "where": where,
        "by": by,
        "oracle_player": None if oracle is None else tables_of(chosen).runs.players()[0].player_name,
        "runs_in_all": len(corpus.runs),
        "notes": notes,
    }


def _choose_parts(
    corpus: Corpus, info: CriticFacts, name: str | None
) -> tuple[str, Corpus, Corpus | None, list[str]]:
    """Return a part's name and games, the part ``train`` or None, and remarks, for any session's games."""
    shares, games = info.split.fractions, counted(len(corpus.runs), "game")
    wanted = "val" if name == "validation" else name or UNSEEN
    if wanted not in {ALL, UNSEEN, *shares}:
        known = ", ".join([*shares, ALL, UNSEEN])
        raise CorpusError(
            f"found the part {name!r}, expected a part of the critic's split: {known}",
            hint="Pass --split all to evaluate all games.",
        )
    notes = stranger_remarks(info, tables_of(corpus).runs.players())
    train = _part(corpus, info, "train")
    if wanted == UNSEEN:
        unseen = unseen_games(info, corpus)
        if not corpus.row_counts[unseen].any():
            raise EmptyCorpusError(
                f"the critic may have learned from all of {games}",
                hint="Record more games, or pass --split all to evaluate these games.",
            )
        chosen = corpus.where(unseen)
        train = None if train is None or unseen.all() else train
        notes.append(f"The critic has not learned from {len(chosen.runs):,} of {games}. These are used.")
    elif corpus.identity == info.corpus_hash:
        notes.append("These are the sessions that the critic was trained on, split as in its training.")
    elif info.corpus_hash:
        notes.append(
            "These are other sessions than in the training. A game's seed and player decide its part."
        )
    if wanted in {ALL, "train"}:
        notes.append("The critic may have learned from some of these games: the figures may be too good.")
    if train is None:
        notes.append("The critic learned from none of these games: baselines are not calibrated.")
    if wanted != UNSEEN:
        part = corpus if wanted == ALL else _part(corpus, info, wanted)
        if part is None:
            raise EmptyCorpusError(
                f"none of {games} belongs to the part {wanted} ({shares[wanted]:.0%} of all)",
                hint="Add games, or choose another part with --split.",
            )
        chosen = part
    return wanted, chosen, train, notes


def _own_games(corpus: Corpus, info: CriticFacts) -> Corpus:
    """Return the games of a critic's players; all games if it may have learned from all of these."""
    facts, index = facts_of_runs(corpus.runs, corpus.sessions)
    own = np.array([not strangers(info, [PlayedBy(*identity_of_player(one), 0)]) for one in facts])[index]
    has_unseen = (own & unseen_games(info, corpus) & (corpus.row_counts > 0)).any()
    return corpus.where(own) if has_unseen else corpus


def _part(corpus: Corpus, info: CriticFacts, name: str) -> Corpus | None:
    """Return the games of one part, or None; unlike for ``Corpus.split``, other parts may be empty."""
    names, shares = list(info.split.fractions), list(info.split.fractions.values())
    if name not in names:
        return None
    mine = parts_of_hashes(split_hash(corpus.runs, corpus.sessions, info.split.salt), shares) == names.index(
        name
    )
    return corpus.where(mine) if corpus.row_counts[mine].sum() else None


def rollouts_of(corpus: Corpus, rollouts: int, seed: int) -> Oracle:
    """Return the oracle that finishes games of a corpus with the player that recorded them, on all cores."""
    from tape2048.base.resources import available_cores
    from tape2048.critic.oracle import Oracle
    from tape2048_recorder.evaluation.evaluated_games import play_rollouts
    from tape2048_recorder.replay.replay import recorded_player

    sessions = [corpus.sessions[number] for number in sorted(set(corpus.runs["session"].tolist()))]
    players = tables_of(corpus).runs.players()
    if len(players) > 1:
        raise CorpusError(
            f"found games of {name_players(players)}, expected games of one player, which plays the rollouts",
            path=corpus.sessions[0].path.parent,
            hint=f'Choose the games of one player: --where "{only_player(players[0])}"',
        )
    meta, player = recorded_player(sessions[0].path, sessions[0].meta)

    def play(
        boards: NDArray[np.uint64], *, first: int, progress: Callable[[int, int], object] | None
    ) -> NDArray[np.uint16]:
        return play_rollouts(
            player, boards, rollouts=rollouts, seed=seed, threads=available_cores(), first=first,
            progress=progress,
        )  # fmt: skip

    return Oracle(play, player_sha256=meta.player_sha256, rollouts=rollouts, seed=seed)


def expected_score(player: str) -> Baseline:
    """Return the baseline of the final score that an n-tuple player expects: points plus best value."""
    from tape2048.ntuple.calibrated_network import find_calibration
    from tape2048.ntuple.outcomes import outcomes
    from tape2048_recorder.players.ntuple import move_values
    from tape2048_recorder.players.options import check_player, make_player, player_sha256

    name, args = parse_player(player)
    if name != "ntuple":
        raise ConfigError(
            f"found the player {name!r}, expected ntuple: no other player estimates a score",
            hint="Pass --player none to leave this baseline out.",
        )
    full = check_player(name, args)
    made: Any = make_player(name, full)
    sha256 = player_sha256(name, made)
    calibration = find_calibration(str(full["weights"]), sha256, sha256)

    def value(boards: NDArray[np.uint64], points: NDArray[np.int64]) -> NDArray[np.float64]:
        best = np.nan_to_num(move_values(made, boards), nan=-np.inf).max(axis=1)
        # Without a legal move the game adds nothing.
        to_come = np.where(np.isinf(best), 0.0, best).astype(np.float64)
        if calibration is not None:
            to_come = outcomes(calibration.table, boards, to_come)[0].astype(np.float64)
        return np.asarray(points + to_come, np.float64)

    return value


def read_curves(critic: Path) -> dict[str, Any] | None:
    """Read losses by step from the path or its parent; None, or fewer, if something is unreadable."""
    paths = [directory / METRICS for directory in (critic, critic.absolute().parent)]
    points: dict[str, dict[int, float]] = {"train": {}, "val": {}}
    best: int | None = None
    lines: list[dict[str, Any]] = []
    with contextlib.suppress(StopIteration, OSError):
        lines = next(read_metrics(path) for path in paths if path.is_file())
    for line in lines:
        kind, step, loss = str(line.get("kind")), line.get("step"), line.get("loss")
        if kind in points and isinstance(step, int) and isinstance(loss, int | float):
            points[kind][step] = loss
            best = step if kind == "val" and line.get("best") is True else best
    if not any(points.values()):
        return None
    return {**{kind: _thinned(sorted(found.items())) for kind, found in points.items()}, "best_step": best}


def _thinned(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Reduce the points to at most :data:`POINTS_MAX`, each the mean of a range of points."""
    length = -(-len(points) // POINTS_MAX) or 1
    parts = [points[first : first + length] for first in range(0, len(points), length)]
    return [(part[-1][0], sum(loss for _, loss in part) / len(part)) for part in parts]


#: The metrics of a predictor, in the order of the columns.
_PREDICTOR_METRICS = ("auroc", "auprc", "brier", "log_loss", "skill", "ece", "gain")

#: The metrics against rollouts with intervals.
_ORACLE_METRICS = ("r2", "brier", "log_loss", "bias", "ece")

_CSV_COUNTS = ("rows", "rows_positive", "runs", "runs_positive", "prevalence", "base_log_loss")


def document(evaluation: Evaluation, about: dict[str, Any]) -> dict[str, Any]:
    return {**about, "evaluation": msgspec.to_builtins(evaluation)}


def csv_text(evaluation: Evaluation) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    against = _ORACLE_METRICS if evaluation.truth is not None else ()
    names = [*_PREDICTOR_METRICS, *(f"oracle_{metric}" for metric in against)]
    ends = [name for metric in names for name in (metric, f"{metric}_low", f"{metric}_high")]
    others = ["oracle_ece_noise", "oracle_positions", "oracle_note"] if against else []
    writer.writerow(["stage", "threshold", "predictor", *_CSV_COUNTS, *ends, *others, "note"])
    for one in evaluation.cells:
        counts = [getattr(one, name) for name in _CSV_COUNTS]
        for name, scores in one.scores.items() or [("", None)]:
            oracle = None if scores is None else scores.oracle
            estimates = [getattr(scores, metric, None) for metric in _PREDICTOR_METRICS]
            estimates += [getattr(oracle, metric, None) for metric in against]
            values = [getattr(found, end, None) for found in estimates for end in ("value", "low", "high")]
            values += [getattr(oracle, name.removeprefix("oracle_"), None) for name in others]
            writer.writerow([one.stage, one.threshold, name, *counts, *values, one.note])
    return buffer.getvalue()


def facts(evaluation: Evaluation, about: dict[str, Any]) -> dict[str, str]:
    rows = f"{counted(evaluation.rows, 'row')} of {counted(evaluation.runs, 'game')}"
    cap = "all of each"
    if evaluation.per_run is not None:
        cap = (
            f"at most {number(evaluation.per_run)} of each, weighted as all {number(evaluation.rows_in_all)}"
        )
    where = f" where {about['where']}" if about["where"] else ""
    known = {
        "critic": f"{about['critic']} ({about['kind']}, step {number(about['step'])}, "
        f"SHA-256 {about['critic_sha256'][:16]}...)",
        "games": f"{about['root']}, part {about['part']}{where}: {rows}, {cap}",
        "intervals": f"95%, {number(evaluation.replicates)} bootstrap replicates over games"
        if evaluation.replicates
        else "none",
    }
    if (truth := evaluation.truth) is not None:
        kept = f", {number(truth.known)} of them from disk" if truth.known else ""
        known["rollouts"] = (
            f"{number(truth.rollouts)} from each of {counted(truth.positions, 'position')}{kept}, "
            f"by {printable(about['oracle_player'])}, seed {truth.seed}"
        )
        if truth.precision is not None:
            known["precision"] = _precision_text(evaluation, truth)
    return known


def _precision_text(evaluation: Evaluation, truth: Truth) -> str:
    """Return the requested precision, and the positions that it needs for each tile that missed it."""
    from tape2048.critic.results import ALL, CRITIC

    assert truth.precision is not None
    missed = []
    for tile in evaluation.thresholds:
        scores = evaluation.cell(ALL, tile).scores[CRITIC].oracle
        half = None if scores is None or scores.r2 is None else scores.r2.half_width
        if half is not None and half > truth.precision:
            needed = math.ceil(truth.positions * (half / truth.precision) ** 2)
            missed.append(f"±{half:.3f} for {tile}, which needs about {number(needed)} positions")
    return "; ".join([f"R2 to ±{truth.precision:g}", *missed])


def summary(evaluation: Evaluation, about: dict[str, Any]) -> list[RenderableType]:
    parts: list[RenderableType] = [columns(facts(evaluation, about))]
    parts += [cell(note) for note in (*about["notes"], *evaluation.left_out(about["runs_in_all"]))]
    for each in evaluation.tables():
        made = table(*each.headings, title=each.title or None)
        for row in each.rows:
            made.add_row(*map(cell, row))
        parts += ["", made]
    return parts
