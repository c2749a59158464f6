"""Evaluation of a critic by stage of the game and threshold, beside baselines, with intervals by game.

**Stages.** A critic scores boards of games in progress, so a stage must depend on the past alone. By default
``early``, ``middle`` and ``late`` are thirds of all rows by move number. The number includes the moves before
a given start board, estimated from the sum of its tiles. (The share of the game's
length, ``by="progress"``, depends on the future: in its last tenth a game is about to be lost. Within one
highest tile, ``by="tile"``, the baseline of that name has no information.) Two stages are always present:
``all`` rows, and ``undecided``, the rows whose board does not have the tile yet. The labels of the other
rows are known from the board.

**Rows.** A critic estimates, for each board, the share of games that continue from it to the tile. All rows
of all games together measure that share. In a capped sample (``per_run``), each row counts for ``length /
rows drawn`` rows of its game, in every metric, in the prevalence, and where baselines are calibrated. Without
these weights, a position of a short game would count more than the same position of a long game. Games that
soon end would be too frequent at any board, and labels and the probabilities of a critic would be too low.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args, overload

import msgspec
import numpy as np

from tape2048.base.text import as_int, counted
from tape2048.base.threads import map_ordered, worker_count
from tape2048.critic.metrics import (
    RunBootstrap,
    base_log_loss,
    brier_score,
    calibration_error,
    certain,
    estimate,
    log_loss,
    ranking,
    ratio,
    reliability,
    weighted,
)
from tape2048.critic.oracle import Means, OracleScores, Truth, TruthCurve, oracle_scores
from tape2048.critic.own_labels import JudgedLabels, LabelEvaluation
from tape2048.critic.results import (
    ALL,
    CRITIC,
    DECIDED,
    INTERVAL_RUNS_MIN,
    PREVALENCE,
    TILE,
    UNDECIDED,
    Cell,
    Evaluation,
    ReliabilityCurve,
    Scores,
    Stage,
)
from tape2048.errors import MissingPackageError
from tape2048.game.rules import boards_to_exps, exps_to_boards
from tape2048.game.scores import SPAWN, TWO_TILES, potentials
from tape2048.loader.row_view import tables_of
from tape2048.loader.starts import starts_of
from tape2048.session.run_table import DEFAULT_THRESHOLDS, check_thresholds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from tape2048.corpus import Corpus
    from tape2048.critic.facts import Critic
    from tape2048.critic.oracle import Oracle, Rollouts

    #: A stage and its rows, ``bool[N]``; None: the rows whose board does not have the threshold's tile yet.
    _Stage: TypeAlias = tuple["Stage", NDArray[np.bool_] | None]


#: Rows fetched at a time, and rows of a batch of a PyTorch module.
BATCH_ROWS, MODULE_ROWS = 32_768, 8192


class Sample(NamedTuple):
    boards: NDArray[np.uint64]  # `u64[N]`
    runs: NDArray[np.int32]  # the run of each row, `i32[N]`: an index into `highest` and `lengths`
    highest: NDArray[np.int64]  # the highest tile of each run, `i64[R]`
    lengths: NDArray[np.int64]  # moves of each run from two tiles, `i64[R]`
    weights: NDArray[np.float32]  # rows that a row of each run represents, `f32[R]`
    steps: NDArray[np.int64]  # moves from two tiles to each row, `i64[N]`
    tiles: NDArray[np.uint8]  # exponent of the highest tile on the board, `u8[N]`
    probabilities: NDArray[np.float32]  # the critic's, `f32[N, T]`; `f32[N, 0]` without a critic
    baselines: dict[str, NDArray[Any]]  # scores by name, `[N]` each

    @property
    def row_weights(self) -> NDArray[np.float64]:
        return self.weights.astype(np.float64)[self.runs]


def take_sample(
    corpus: Corpus,
    critic: Any,
    baselines: Mapping[str, Baseline],
    *,
    per_run: int | None,
    seed: int,
    progress: Callable[[int, int], object],
    extra: Sequence[str] = (),
) -> Sample:
    """Draw at most ``per_run`` rows of each run (None: all), with their weights, and score them.

    ``extra`` names fields that are added to the baselines.
    """
    embedded = getattr(critic, "needs_embeddings", False)
    source = corpus if per_run is None else corpus.capped(per_run)
    batches = source.batches(
        BATCH_ROWS, shuffle=False, seed=seed, rank=0, world_size=1,
        fields=tuple(dict.fromkeys(("tokens", "run", "step", *(["embeddings"] if embedded else []), *extra))),
    )  # fmt: skip
    parts: list[tuple[Any, ...]] = []
    done = 0
    before = starts_of(corpus.runs, corpus.sessions).moves
    for batch in batches:
        tokens, runs = batch["tokens"], batch["run"].astype(np.int32)
        boards, steps = exps_to_boards(tokens), batch["step"] + before[runs]
        points = potentials(tokens) - TWO_TILES + SPAWN * steps
        probabilities = np.empty((len(boards), 0), np.float32)
        if critic is not None:
            probabilities = critic.from_embeddings(batch["embeddings"]) if embedded else critic(boards)
        scores = [baseline(boards, points) for baseline in baselines.values()]
        scores += [batch[name].copy() for name in extra]
        parts.append((boards, runs, steps, highest_tile(boards, points), probabilities, *scores))
        done += len(boards)
        progress(done, len(source))
    boards, runs, steps, tiles, probabilities, *scores = map(np.concatenate, zip(*parts, strict=True))
    return Sample(
        boards,
        runs,
        corpus.runs["highest_tile"].astype(np.int64),
        corpus.runs["steps"] + before,
        source.weights,
        steps,
        tiles,
        probabilities,
        dict(zip((*baselines, *extra), scores, strict=True)),
    )


#: Function from boards ``u64[n]`` and their scores since two tiles, ``i64[n]``, to numbers ``[n]``.
Baseline: TypeAlias = Callable[["NDArray[np.uint64]", "NDArray[np.int64]"], "NDArray[Any]"]


def highest_tile(boards: NDArray[np.uint64], points: NDArray[np.int64]) -> NDArray[np.uint8]:  # noqa: ARG001
    return np.asarray(boards_to_exps(boards).max(axis=1, initial=0))


def calibrate(
    scores: NDArray[Any],
    labels: NDArray[np.bool_],
    of: NDArray[Any],
    weights: NDArray[np.floating[Any]] | None = None,
) -> NDArray[np.float64]:
    """Turn scores into probabilities by isotonic regression (Zadrozny and Elkan 2002)."""
    fitted = load_isotonic()(y_min=0.0, y_max=1.0, out_of_bounds="clip")
    fitted.fit(scores.astype(np.float64), labels.astype(np.float64), sample_weight=weights)
    return np.asarray(fitted.predict(of.astype(np.float64)))


def load_isotonic() -> Any:
    try:
        from sklearn.isotonic import IsotonicRegression
    except ImportError as error:
        raise MissingPackageError(
            f"the calibration of baselines needs scikit-learn, which cannot be imported ({error})",
            hint="pip install scikit-learn, or pip install 'tape2048[critic]'",
        ) from error
    return IsotonicRegression


#: Ways to divide rows into stages.
StagesBy: TypeAlias = Literal["moves", "tile", "progress"]


def predictions_of(
    function: Callable[[Any], Any], tiles: tuple[int, ...] | None, *, probabilities: bool = True
) -> Callable[[Any], Any]:
    """Return a function from boards ``u64[n]`` to a module's or function's predictions.

    They are of shape ``[n, T]``, or ``[n]`` if ``tiles`` is None.
    """
    forms: dict[str, Callable[[Any], Any]] = {
        "boards u64[N]": lambda boards: boards,
        "tokens u8[N, 16]": boards_to_exps,
    }
    name, call = repr(function), function
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(function, torch.nn.Module):
        name, call = type(function).__name__, partial(_module_outputs, function, probabilities)
        del forms["boards u64[N]"]  # packed boards as indices of an embedding can crash a GPU

    def predict(boards: NDArray[np.uint64]) -> NDArray[np.float32]:
        shape: tuple[int, ...] = (len(boards),) if tiles is None else (len(boards), len(tiles))
        problems = []
        for form, given in forms.items():
            try:
                found = np.asarray(call(given(boards)), np.float32)
                if tiles is None and found.shape == (len(boards), 1):
                    found = found[:, 0]
                valid = (found >= 0) & (found <= 1) if probabilities else np.isfinite(found)
                if found.shape == shape and valid.all():
                    return found
                values = f"values from {found.min()} to {found.max()} of shape {found.shape}"
                problems.append(f"{values} for {form}")
            except Exception as error:  # noqa: BLE001 - it may take tokens; the message has both errors
                problems.append(f"{type(error).__name__}: {error} for {form}")
        raise ValueError(
            f"{name}: found {', and '.join(problems)}; "
            f"expected {'probabilities' if probabilities else 'numbers'} of shape {shape}"
            + ("" if tiles is None else f", for the thresholds {tiles}")
        )

    return predict


def _module_outputs(module: Any, probabilities: bool, tokens: NDArray[np.uint8]) -> Any:  # noqa: FBT001
    """Return the outputs of a PyTorch module on its device, as probabilities if it maps tokens to logits."""
    import torch

    training, weights = module.training, next(module.parameters(), None)
    device = None if weights is None else weights.device
    module.eval()
    try:
        with torch.inference_mode():
            parts = (tokens[first : first + MODULE_ROWS] for first in range(0, len(tokens), MODULE_ROWS))
            outputs = torch.cat([module(torch.from_numpy(part).to(device)).float().cpu() for part in parts])
            return (outputs.sigmoid() if probabilities else outputs).numpy()
    finally:
        module.train(training)


@overload
def evaluate(
    critic: Callable[[NDArray[Any]], Any],
    corpus: Corpus,
    *,
    labels: str | ArrayLike,
    by: StagesBy = ...,
    per_run: int | None = ...,
    replicates: int = ...,
    seed: int = ...,
    workers: int | None = ...,
    progress: Callable[[str, int, int], object] | None = ...,
) -> LabelEvaluation: ...
@overload
def evaluate(
    critic: Critic | Callable[[NDArray[Any]], NDArray[Any]],
    corpus: Corpus,
    *,
    thresholds: Sequence[int] = ...,
    train: Corpus | None = ...,
    baselines: Mapping[str, Baseline] | None = ...,
    by: StagesBy = ...,
    per_run: int | None = ...,
    replicates: int = ...,
    seed: int = ...,
    oracle: Oracle | None = ...,
    positions: int = ...,
    precision: float | None = ...,
    workers: int | None = ...,
    progress: Callable[[str, int, int], object] | None = ...,
) -> Evaluation: ...
def evaluate(
    critic: Critic | Callable[[NDArray[Any]], NDArray[Any]],
    corpus: Corpus,
    *,
    thresholds: Sequence[int] = DEFAULT_THRESHOLDS,
    labels: str | ArrayLike | None = None,
    train: Corpus | None = None,
    baselines: Mapping[str, Baseline] | None = None,
    by: StagesBy = "moves",
    per_run: int | None = 512,
    replicates: int = 1000,
    seed: int = 0,
    oracle: Oracle | None = None,
    positions: int = 3000,
    precision: float | None = None,
    workers: int | None = None,
    progress: Callable[[str, int, int], object] | None = None,
) -> Evaluation | LabelEvaluation:
    """Evaluate a critic, or a model of your own labels.

    Args:
        critic: a :class:`tape2048.torch.TorchCritic` or :class:`tape2048.critic.NTupleCritic`; a PyTorch
            module from tokens ``u8[N, 16]`` to logits ``[N, T]``; or a function from boards ``u64[N]`` or
            tokens to probabilities ``[N, T]``.
        corpus: games outside the critic's training part.
        thresholds: the T tiles of a module or function. A critic has its own thresholds.
        labels: your own labels, for a module or function with one output for each board: a value for each
            game, ``[R]``, or for each row of the corpus, ``[N]``, or the name of a field or column. If all
            are 0 or 1, the output is a probability (a module's is a logit). Other labels are compared with
            the output itself. Rows with NaN are left out. Only the arguments ``by``, ``per_run``,
            ``replicates``, ``seed``, ``workers`` and ``progress`` apply.
        train: games of the training part, on which baselines are calibrated; None: baselines have no Brier
            score and ECE.
        baselines: a mapping of names to functions, beside the prevalence and the highest tile. A function
            maps boards ``u64[n]`` and their scores, ``i64[n]``, to numbers ``[n]`` that rank the boards. A
            score counts from two tiles. The score of a given start board is estimated.
        by: the kind of stages; see the module.
        per_run: maximum number of rows of each game, >= 1, weighted; None: all.
        replicates: number of replicates of the bootstrap by run; 0: no intervals.
        seed: seed of rows and replicates, >= 0.
        oracle: rollouts by the player of the games, against which probabilities are measured, too.
        positions: number of rows from which rollouts are played, >= 1, drawn from the sample. With
            ``precision``, the maximum.
        precision: maximum distance of R2 from the ends of its interval, for the critic over all rows and each
            threshold. Positions are added until it is reached. None: ``positions``.
        workers: number of threads. None: the number of cores.
        progress: function that is called with the kind of work (``"rows"``, ``"training rows"``,
            ``"rollouts"``, ``"bootstrap"``), the amount done, and the whole. None: while rollouts are played,
            lines on standard error show the time that is left, the first after two seconds.

    Raises:
        TypeError: ``corpus`` or ``train`` is not a corpus.
        ValueError: an argument is invalid, or a function does not return probabilities.
        MissingPackageError: ``train`` is given, and scikit-learn is not installed.
        TapeError: as for reading rows and calling the critic.

    Example:
        >>> from tape2048 import Corpus
        >>> from tape2048.critic import evaluate
        >>> from tape2048.torch import TorchCritic
        >>> found = evaluate(
        ...     TorchCritic.load("critic/best"), Corpus.open("selfplay"), per_run=8, replicates=0
        ... )
        >>> [stage.name for stage in found.stages]
        ['all', 'early', 'middle', 'late', 'undecided']
        >>> print(found)  # doctest: +ELLIPSIS
        1,600 rows of 200 games; intervals: none
        8192: too few games: none of 200 games reached the tile. Record at least 810 more.
        ...

        A constant, measured on a label of one's own, and on the points that are to come:

        >>> import numpy as np
        >>> corpus = Corpus.open("selfplay")
        >>> above = corpus.runs["score"] > np.median(corpus.runs["score"])
        >>> half = evaluate(lambda boards: np.full(len(boards), 0.5), corpus, labels=above, replicates=0)
        >>> half.stage("all").auroc.value
        0.5
        >>> points = evaluate(
        ...     lambda boards: np.zeros(len(boards)), corpus, labels="score_to_go", replicates=0
        ... )
        >>> points.stage("all").r2.value < 0
        True
    """
    # Checked before the critic scores all rows, which may take hours.
    _check_counts(by, seed=seed, replicates=replicates, positions=positions)
    worker_count(workers)
    _check_precision(precision, replicates)
    for each in (corpus, train):
        if each is not None:
            tables_of(each)
    if train is not None:
        load_isotonic()
    report = progress or _Lines()
    if labels is not None:
        if hasattr(critic, "needs_embeddings") or train or baselines or oracle:
            raise TypeError("labels: expected a module or function, and no train, baselines or oracle")
        return _evaluate_labels(
            critic, corpus, labels, by=by, per_run=per_run, replicates=replicates, seed=seed, workers=workers,
            progress=report,
        )  # fmt: skip
    tiles = tuple(getattr(critic, "thresholds", check_thresholds(thresholds).tolist()))
    scored = critic if hasattr(critic, "needs_embeddings") else predictions_of(critic, tiles)
    predictors: dict[str, Baseline] = {
        PREVALENCE: lambda boards, _: np.zeros(len(boards)),  # calibration turns it into the prevalence
        TILE: highest_tile,
        **(baselines or {}),
    }
    how: Any = {"baselines": predictors, "per_run": per_run}
    sample = take_sample(corpus, scored, seed=seed, progress=partial(report, "rows"), **how)
    calibrated: dict[str, NDArray[np.float64]] = {}
    if train is not None:
        learned = take_sample(train, None, seed=seed + 1, progress=partial(report, "training rows"), **how)
        known = [(learned.highest >= tile)[learned.runs] for tile in tiles]
        for name, of in sample.baselines.items():
            scores, counts = learned.baselines[name], learned.row_weights
            calibrated[name] = np.stack([calibrate(scores, labels, of, counts) for labels in known], axis=1)
    weights = RunBootstrap(len(sample.highest), replicates, seed).weights
    weights *= sample.weights[:, None]
    answer = None
    if oracle is not None:
        asking = _Asking(oracle, sample, weights, partial(report, "rollouts"))
        order = np.random.default_rng(seed).permutation(len(sample.runs))[:positions]
        answer = asking.until(precision, order, tiles)
    stages = list(stages_of(sample, by))
    evaluator = _Evaluator(sample, tiles, _predictors(sample, tiles, calibrated), weights, answer)
    jobs = [(stage, at) for stage in stages for at in range(len(tiles))]
    cells: list[Cell] = []
    for cell in map_ordered(lambda job: evaluator.cell(*job), jobs, workers):
        cells.append(cell)
        report("bootstrap", len(cells), len(jobs))
    return Evaluation(
        thresholds=list(tiles),
        stages=[stage for stage, _ in stages],
        predictors=list(evaluator.predictors),
        rows=len(sample.runs),
        rows_in_all=len(corpus),
        runs=len(np.unique(sample.runs)),
        per_run=per_run,
        replicates=replicates,
        seed=seed,
        cells=cells,
        reliability=[evaluator.curve(at) for at in range(len(tiles))],
        truth=None if answer is None else answer.truth(tiles, precision),
    )


def _evaluate_labels(
    critic: Callable[[NDArray[Any]], Any],
    corpus: Corpus,
    labels: str | ArrayLike,
    *,
    by: StagesBy,
    per_run: int | None,
    replicates: int,
    seed: int,
    workers: int | None,
    progress: Callable[[str, int, int], object],
) -> LabelEvaluation:
    field = labels if isinstance(labels, str) else None
    values = None if isinstance(labels, str) else _check_labels(np.asarray(labels), corpus)
    sample = take_sample(
        corpus, None, {}, per_run=per_run, seed=seed, progress=partial(progress, "rows"),
        extra=(field or "row",),
    )  # fmt: skip
    (truths,) = sample.baselines.values()
    if values is not None:
        truths = values[sample.runs if len(values) == len(corpus.runs) else truths]
    if truths.ndim != 1 or truths.dtype.kind not in "biuf":
        found = f"{truths.dtype} of shape {truths.shape}"
        raise ValueError(f"labels: found {found} in {field or 'the array'}, expected one number for each row")
    known = ~np.isnan(truths) if truths.dtype.kind == "f" else np.ones(len(truths), np.bool_)
    if not known.any():
        raise ValueError("labels: every label is NaN")
    is_binary = bool(np.isin(truths[known], (0, 1)).all())
    ask = predictions_of(critic, None, probabilities=is_binary)
    boards = (sample.boards[first : first + BATCH_ROWS] for first in range(0, len(sample.boards), BATCH_ROWS))
    predicted = np.concatenate([ask(piece) for piece in boards]).astype(np.float64)
    weights = RunBootstrap(len(sample.highest), replicates, seed).weights * sample.weights[:, None]
    truths = truths.astype(np.bool_ if is_binary else np.float64)
    judged = JudgedLabels(predicted, truths, sample.runs, weights, is_binary)
    stages = [(stage, chosen & known) for stage, chosen in stages_of(sample, by) if chosen is not None]
    jobs = [(stage.name, np.flatnonzero(chosen)) for stage, chosen in stages]
    scores = list(map_ordered(lambda job: judged.scores(*job), jobs, workers))
    everywhere = np.flatnonzero(known)
    curve = reliability(*judged.of(everywhere)).listed() if is_binary else []
    return LabelEvaluation(
        is_binary=is_binary,
        rows=len(everywhere),
        rows_left_out=len(known) - len(everywhere),
        runs=len(np.unique(sample.runs[everywhere])),
        per_run=per_run,
        replicates=replicates,
        seed=seed,
        stages=[stage for stage, _ in stages],
        scores=scores,
        reliability=curve,
    )


def _check_labels(values: NDArray[Any], corpus: Corpus) -> NDArray[Any]:
    games, rows = len(corpus.runs), len(corpus)
    if values.shape in {(games,), (rows,)}:
        return values
    raise ValueError(
        f"labels: found an array of shape {values.shape}, expected {(games,)}, a value for each game, or "
        f"{(rows,)}, a value for each row"
    )


def _check_counts(by: str, *, positions: int, **counts: int) -> None:
    if by not in get_args(StagesBy):
        raise ValueError(f"by={by!r}; expected 'moves', 'tile' or 'progress'")
    for name, value in (*counts.items(), ("positions", positions)):
        least = int(name == "positions")
        if as_int(name, value) < least:
            raise ValueError(f"{name}={value}; expected at least {least}")


def _check_precision(precision: float | None, replicates: int) -> None:
    if precision is not None and not (0 < precision < 1 and replicates):
        raise ValueError(
            f"precision={precision}, replicates={replicates}; expected 0 < precision < 1 and replicates >= 1"
        )


def stages_of(sample: Sample, by: StagesBy) -> Iterator[_Stage]:
    steps = sample.steps
    yield Stage(ALL, "all rows"), np.ones(len(steps), np.bool_)
    if by == "moves":
        ends = np.quantile(steps, [1 / 3, 2 / 3], method="inverted_cdf", weights=sample.row_weights)
        bounds = [-1, *ends.astype(np.int64).tolist(), int(steps.max())]
        for name, (before, last) in zip(("early", "middle", "late"), pairwise(bounds), strict=True):
            about = f"moves {before + 1:,} to {last:,}" if before < last else "no moves"
            yield Stage(name, about), (before < steps) & (steps <= last)
    elif by == "progress":
        third = np.searchsorted([1 / 3, 2 / 3], steps / sample.lengths[sample.runs], "right")
        for number, name in enumerate(("first third", "second third", "last third")):
            yield Stage(name, "of each game's moves; only known when it has ended"), third == number
    else:
        for exponent in np.unique(sample.tiles).tolist():
            yield Stage(str(1 << exponent), "highest tile on the board"), sample.tiles == exponent
    yield Stage(UNDECIDED, "rows whose board does not have the tile yet"), None


class _Predictor(NamedTuple):
    scores: Sequence[NDArray[Any]]  # `[N]` for each threshold
    orders: Sequence[NDArray[np.int64]]  # rows by descending score, `i64[N]` for each threshold
    probabilities: NDArray[Any] | None  # `[N, T]`, or None


def _predictors(
    sample: Sample, tiles: Sequence[int], calibrated: dict[str, NDArray[np.float64]]
) -> dict[str, _Predictor]:
    own = sample.probabilities
    if own.shape != (len(sample.runs), len(tiles)):
        raise ValueError(
            f"the critic returned shape {own.shape}; expected ({len(sample.runs)}, {len(tiles)}), for "
            f"{counted(len(sample.runs), 'board')} and {counted(len(tiles), 'threshold')}"
        )
    found = {CRITIC: _Predictor(list(own.T), [np.argsort(column)[::-1] for column in own.T], own)}
    for name, scores in sample.baselines.items():
        order = np.argsort(scores)[::-1]
        found[name] = _Predictor([scores] * len(tiles), [order] * len(tiles), calibrated.get(name))
    return found


class _Evaluator(NamedTuple):
    sample: Sample
    tiles: tuple[int, ...]
    predictors: dict[str, _Predictor]
    weights: NDArray[np.float32]
    answer: Answer | None

    def cell(self, stage: _Stage, at: int) -> Cell:
        sample, tile = self.sample, self.tiles[at]
        about, chosen = stage
        if chosen is None:
            chosen = (np.int64(1) << sample.tiles.astype(np.int64)) < tile
        run_labels = sample.highest >= tile
        runs = np.unique(sample.runs[chosen])
        labels = run_labels[sample.runs]
        positive = int(run_labels[runs].sum())
        enough = min(positive, len(runs) - positive) >= INTERVAL_RUNS_MIN
        note = "no rows"
        if len(runs):
            few = "" if positive in {0, len(runs)} else ": too few of a class for an interval"
            note = f"{positive:,} positive runs of {len(runs):,}{few}"
            if (sample.tiles[chosen] >= tile.bit_length() - 1).all():
                note = DECIDED
        scores: dict[str, Scores] = {}
        first = None
        base = base_log_loss(labels[chosen], sample.runs[chosen], self.weights)
        for name, predictor in self.predictors.items() if len(runs) else ():
            order = predictor.orders[at]
            order = order[chosen[order]]
            ranked = ranking(predictor.scores[at], labels, sample.runs, self.weights, order=order)
            brier = ece = loss = skill = None
            if predictor.probabilities is not None:
                rows = predictor.probabilities[chosen, at], labels[chosen], sample.runs[chosen], self.weights
                brier = estimate(brier_score(*rows))
                ece = estimate(calibration_error(reliability(*rows)))
                losses = log_loss(*rows)
                loss, skill = estimate(losses), estimate(1 - losses / base, interval=enough)
            # Without a false row, average precision is 1 for any scores.
            ranks = not np.isnan(ranked.auroc[0])
            scores[name] = Scores(
                auroc=estimate(ranked.auroc, interval=enough),
                auprc=estimate(ranked.average_precision, interval=enough) if ranks else None,
                brier=brier,
                ece=ece,
                log_loss=loss,
                skill=skill,
                gain=None if first is None else estimate(first - ranked.auroc, interval=enough),
                oracle=None
                if self.answer is None or predictor.probabilities is None
                else self.answer.scores(predictor.probabilities[:, at], tile, chosen),
            )
            first = ranked.auroc if first is None else first
        return Cell(
            stage=about.name,
            threshold=tile,
            rows=int(chosen.sum()),
            rows_positive=int(labels[chosen].sum()),
            runs=len(runs),
            runs_positive=positive,
            prevalence=float(np.average(labels[chosen], weights=sample.row_weights[chosen]))
            if len(runs)
            else None,
            base_log_loss=None if np.isnan(base[0]) else float(base[0]),
            note=None if enough else note,
            scores=scores,
        )

    def curve(self, at: int) -> ReliabilityCurve:
        labels = (self.sample.highest >= self.tiles[at])[self.sample.runs]
        bins = reliability(self.sample.probabilities[:, at], labels, self.sample.runs, self.weights)
        return ReliabilityCurve(self.tiles[at], bins.listed())


#: With a precision, number of positions before the intervals are checked for the first time.
PILOT = 256


class _Asking(NamedTuple):
    oracle: Oracle
    sample: Sample
    weights: NDArray[np.float32]  # of the runs, `f32[R, W]`
    progress: Callable[[int, int], object]

    def ask(self, rows: NDArray[np.int64]) -> Answer:
        runs, of_runs = np.unique(self.sample.runs[rows], return_inverse=True)
        rollouts = self.oracle.ask(self.sample.boards[rows], progress=self.progress)
        return Answer(self.oracle, self.sample, rows, of_runs, self.weights[runs], rollouts)

    def until(self, precision: float | None, order: NDArray[np.int64], tiles: Sequence[int]) -> Answer:
        """Play rollouts from more and more rows until the intervals of R2 have the precision; None: from all.

        The width of an interval falls with the root of the number of positions. A threshold whose R2 is not
        measurable yet needs at least twice as many positions. If there are too few games, more positions of
        the same games do not help.
        """
        if precision is None:
            return self.ask(order)
        sample, known, count = self.sample, None, min(PILOT, len(order))
        everywhere = np.ones(len(sample.runs), np.bool_)
        while True:
            answer = self.ask(order[:count])
            known = answer.rollouts.known if known is None else known
            needed = 0.0
            for at, tile in enumerate(tiles):
                found = answer.scores(sample.probabilities[:, at], tile, everywhere)
                half = None if found is None or found.r2 is None else found.r2.half_width
                if half is not None:
                    needed = max(needed, count * (half / precision) ** 2)
                elif rarer(sample.highest >= tile) >= R2_RUNS_MIN:
                    needed = max(needed, 2.0 * count)
            if needed <= count or count == len(order):
                return answer._replace(rollouts=answer.rollouts._replace(known=known))
            count = min(len(order), max(count + PILOT // 2, math.ceil(needed)))


class _Lines:
    """The progress of rollouts as lines on standard error."""

    FIRST_S, EVERY_S = 2.0, 30.0

    def __init__(self) -> None:
        self.begun: tuple[float, int] | None = None
        self.next = 0.0

    def __call__(self, kind: str, done: int, of: int) -> None:
        if kind != "rollouts":
            return
        now = time.monotonic()
        if self.begun is None:
            self.begun, self.next = (now, done), now + self.FIRST_S
        begin, before = self.begun
        if now >= self.next and before < done < of:
            left_s = (of - done) * (now - begin) / (done - before)
            sys.stderr.write(f"rollouts: {done:,} of {of:,} games, about {left_s / 60:.1f} minutes left\n")
            self.next = now + self.EVERY_S


#: With fewer games that reach a tile, or that do not, R2 is not measurable: the variance is then that of few
#: positions, which most samples miss. With 12 such games, 95% intervals held the truth in 70% of the samples.
R2_RUNS_MIN = 30


def rarer(reached: NDArray[np.bool_]) -> int:
    return min(int(reached.sum()), int((~reached).sum()))


#: Most points of a :class:`TruthCurve`, a uniform part of the positions.
POINTS_MAX = 400


class Answer(NamedTuple):
    oracle: Oracle
    sample: Sample
    rows: NDArray[np.int64]  # the P rows of the sample
    runs: NDArray[np.int64]  # the run of each, `i64[P]`, an index into `weights`
    weights: NDArray[np.float32]  # of the runs that have positions, `f32[runs, W]`
    rollouts: Rollouts

    def scores(self, probabilities: NDArray[Any], tile: int, stage: NDArray[np.bool_]) -> OracleScores | None:
        inside = stage[self.rows]
        if not inside.any():
            return None
        found = oracle_scores(
            probabilities[self.rows[inside]],
            self.rollouts.shares(tile)[inside],
            self.oracle.rollouts,
            self.runs[inside],
            self.weights,
        )
        reached = self.sample.highest[np.unique(self.sample.runs[self.rows[inside]])] >= tile
        few = rarer(reached)
        if few >= R2_RUNS_MIN:
            return found
        verb = "missed" if 2 * reached.sum() > len(reached) else "reached"
        note = f"{few} of {counted(len(reached), 'game')} {verb} the tile; expected at least {R2_RUNS_MIN}"
        return msgspec.structs.replace(found, r2=None, note=note)

    def truth(self, tiles: Sequence[int], precision: float | None) -> Truth:
        return Truth(
            player_sha256=self.oracle.player_sha256,
            positions=len(self.rows),
            rollouts=self.oracle.rollouts,
            known=self.rollouts.known,
            precision=precision,
            seed=self.oracle.seed,
            curves=[self._curve(at, tile) for at, tile in enumerate(tiles)],
        )

    def _curve(self, at: int, tile: int) -> TruthCurve:
        sample, rows = self.sample, self.rows
        predicted, shares = sample.probabilities[rows, at].astype(np.float64), self.rollouts.shares(tile)
        columns = np.ones(len(rows)), (sample.highest >= tile)[sample.runs[rows]], shares, predicted
        sums = [np.bincount(self.runs, column, len(self.weights)) for column in columns]

        def means(weights: NDArray[np.float32]) -> Means:
            total, *of_columns = weighted(sums, weights)
            return Means(*(certain(ratio(each, total)) for each in of_columns))

        points = np.random.default_rng(0).permutation(len(rows))[:POINTS_MAX]
        return TruthCurve(
            tile,
            means(self.weights / self.weights[:, :1]),
            means(self.weights),
            reliability(predicted, shares, self.runs, self.weights).listed(),
            list(zip(predicted[points].tolist(), shares[points].tolist(), strict=True)),
        )
