"""Resumable training of a critic in a directory.

::

    <out>/
        checkpoint.safetensors   the complete state of the training; replaced atomically
        metrics.jsonl            a line every log_steps ("kind": "train") and at each validation ("val")
        best/, last/             critics (tape2048.torch.torch_critic): lowest validation loss; newest
        tensorboard/             with the setting `tensorboard`

Each batch depends on the seed, the step and the rows. The checkpoint has everything else: the parameters,
AdamW's moments, the loader's position, and the generators' states. On a CPU with the same number of threads,
a training that was killed and resumed gives the same numbers, to the last digit.

The weight of a row is the number of rows that it represents. The loss of a row is multiplied by its weight
and divided by the mean weight of an epoch, and the loss of a batch is the sum divided by its number of rows.
The expected gradient is then the gradient of the loss over all rows of all games, on any number of ranks. A
division by the sum of the weights in the batch would be biased: a batch of long games would count no more
than a batch of short games.

Under ``torchrun``, each rank has its share of every epoch, in equally many batches. Rank 0 writes, and sends
its checkpoint to the other ranks. Before they start, the ranks compare their sessions and settings.

A different number of ranks can resume a checkpoint, unless ``pool_rows`` is set: they share the rest of the
epoch. A step then has more or fewer rows, so the learning rate follows the number of rows learned from. If
``steps_max`` ends the training, the learning rate follows the steps. A rank whose generator is not in the
checkpoint starts a generator from the seed.

The checkpoint is a safetensors file::

    model.<name>                parameters and buffers
    optimizer.<i>.<name>        AdamW's state of the i-th parameter
    rng.cpu.<rank>, rng.cuda.<rank>   states of the generators
    state                       u8: TrainingState as JSON
    sha256                      u8[32]: SHA-256 of all other tensors; missing in files of earlier versions
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel

from tape2048._version import __version__
from tape2048.critic.facts import doubts, training_facts
from tape2048.critic.metrics import cross_entropy, ranking
from tape2048.errors import ModelError, StateError, TrainingError, reader_hint
from tape2048.files.durable import publishing_file
from tape2048.files.training_directory import (
    SilentView,
    Training,
    TrainingProgress,
    TrainingView,
    decode_state,
)
from tape2048.torch import model as models
from tape2048.torch.ranks import Ranks, RanksDirectory, joined
from tape2048.torch.torch_critic import CriticInfo, save_critic
from tape2048.torch.tower import by_prefix, content_sha256, parse_tensors, require, tensor_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from numpy.typing import NDArray

    from tape2048.critic.critic_config import CriticConfig
    from tape2048.torch.loader import CriticLoader

    Batch: TypeAlias = dict[str, torch.Tensor]
    _Note: TypeAlias = Callable[[str, int, dict[str, Any]], None]

VERSION = 2


class TrainingState(msgspec.Struct, kw_only=True):
    version: int = VERSION
    release: str = __version__  # release that wrote it
    config: dict[str, Any]  # settings that determine the result
    corpus: str  # identity of the rows before the split
    world_size: int
    step: int = 0  # number of optimizer steps made
    loader: dict[str, Any] = {}  # state of the loader
    loss_sum: float = 0.0  # sum of the losses since the last line of metrics, as the mean of the ranks
    loss_steps: int = 0  # number of steps in this sum
    best_loss: float | None = None  # lowest validation loss; None before the first validation
    best_step: int = 0  # step of the lowest validation loss
    best_metrics: dict[str, Any] = {}  # metrics of that validation
    worse: int = 0  # number of validations since then
    ended: str | None = None  # reason why the training has ended; None before its end
    elapsed_s: float = 0.0  # time spent so far, over all starts


def write_checkpoint(
    path: Path,
    state: TrainingState,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    generators: dict[str, torch.Tensor],
) -> None:
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for i, kept in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{i}.{name}": torch.as_tensor(value) for name, value in kept.items()}
    tensors |= generators
    tensors["state"] = torch.frombuffer(bytearray(msgspec.json.encode(state)), dtype=torch.uint8)
    tensors["sha256"] = _sha256_of(tensors)
    with publishing_file(path, replace=True) as file:
        file.write(tensor_bytes(tensors))


def load_checkpoint(  # noqa: PLR0917
    content: memoryview,
    path: Path,
    config: CriticConfig,
    expected: TrainingState,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    ranks: Ranks,
) -> TrainingState:
    """Load a checkpoint into model, optimizer and this rank's generators; return the rest of its state."""
    try:
        tensors = parse_tensors(bytes(content), path)
    except ModelError as error:
        hint = "start over with another --out, or restore the file from a copy"
        raise StateError(error.message, path=path, hint=hint) from error
    written = tensors.pop("sha256", None)
    if written is not None and not torch.equal(written, _sha256_of(tensors)):
        raise StateError(
            "the file is damaged: its SHA-256 differs from the recorded SHA-256", path=path,
            hint="start over with another --out, or restore the file from a copy",
        )  # fmt: skip
    text = tensors.pop("state", torch.empty(0)).numpy().tobytes()
    state = decode_state(text, path, TrainingState)
    if state.version != VERSION:
        old = "this version cannot continue it: start over with another --out"
        raise StateError(
            f"checkpoint version {state.version}; expected {VERSION}",
            path=path,
            hint=old if state.version < VERSION else reader_hint(state.release),
        )
    known, data = ({"corpus": one.corpus} for one in (state, expected))
    config.check_resumed(state.config, known, {**expected.config, **data}, path)
    state.world_size, state.release = expected.world_size, expected.release
    parts = by_prefix(tensors)
    kept = {int(number): values for number, values in by_prefix(parts["optimizer"]).items()}
    try:
        model.load_state_dict(parts["model"])
        optimizer.load_state_dict({**optimizer.state_dict(), "state": kept})
    except (RuntimeError, ValueError) as error:
        raise StateError(f"the parameters have other sizes than expected: {error}", path=path) from error
    # Generators of this rank that are not in the checkpoint keep their state.
    cpu, cuda = (parts["rng"].get(f"{kind}.{ranks.rank}") for kind in ("cpu", "cuda"))
    if cpu is not None:
        torch.set_rng_state(cpu)
    if cuda is not None and ranks.device.type == "cuda":
        torch.cuda.set_rng_state(cuda, ranks.device)
    return state


def _sha256_of(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.tensor(list(bytes.fromhex(content_sha256(b"", tensors))), dtype=torch.uint8)


def rng_states(ranks: Ranks) -> dict[str, torch.Tensor]:
    """Return the states of all ranks' generators. All ranks must call this function."""
    found = {f"rng.cpu.{rank}": state for rank, state in enumerate(ranks.gather(torch.get_rng_state()))}
    if ranks.device.type == "cuda":
        states = ranks.gather(torch.cuda.get_rng_state(ranks.device))
        found |= {f"rng.cuda.{rank}": state for rank, state in enumerate(states)}
    return found


class Trained(NamedTuple):
    ended: str | None  # reason for the end: all steps made, or early stopping; None if it was stopped
    progress: TrainingProgress
    best: Path | None  # directory of the best critic; None before the first validation
    best_metrics: dict[str, Any]  # metrics of the best critic
    counts: dict[str, tuple[int, int]]  # number of rows in an epoch and of runs, by part of the split


class _Clock:
    """Speeds of steps, without validations and the first wait, and the time spent over all starts."""

    def __init__(self, rows: int, before_s: float) -> None:
        self._rows = rows  # rows of a step, on all ranks
        self._start = time.perf_counter() - before_s
        self._since: float | None = None  # when the current measurement started
        self._wait_s, self._steps = 0.0, 0
        self._last: tuple[float, float] | None = None

    def lap(self) -> None:
        """End a measurement. Its rates stay valid until the next call."""
        self._last = self._measured()
        self._since, self._wait_s, self._steps = time.perf_counter(), 0.0, 0

    def timed(self, batches: Iterator[Batch]) -> Generator[Batch, None, None]:
        begin = time.perf_counter()
        for batch in batches:
            now = time.perf_counter()
            if self._since is None:
                self._since = now
            else:
                self._wait_s += now - begin
            self._steps += 1
            yield batch
            begin = time.perf_counter()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        if self._since is not None:
            self._since += time.perf_counter() - begin

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self._start

    @property
    def rates(self) -> tuple[float, float]:
        """Rows per second, and the share of the time that was spent waiting for batches."""
        return self._last or self._measured()

    def _measured(self) -> tuple[float, float]:
        now = time.perf_counter()
        stepping_s = max(1e-9, now - (self._since or now))
        return self._steps * self._rows / stepping_s, min(1.0, self._wait_s / stepping_s)


@contextlib.contextmanager
def _trackers(config: CriticConfig, directory: Path) -> Iterator[_Note]:
    sinks: list[Callable[[dict[str, float], int], object]] = []
    with contextlib.ExitStack() as stack:
        if config.tensorboard:
            module = require("torch.utils.tensorboard", "tensorboard = true", "pip install tensorboard")
            board = module.SummaryWriter(str(directory / "tensorboard"))
            stack.callback(board.close)
            sinks.append(
                lambda numbers, step: [board.add_scalar(name, one, step) for name, one in numbers.items()]
            )
        if config.wandb_project:
            wandb = require("wandb", "wandb_project", "pip install wandb")
            # A resumed training continues its run.
            name = f"{directory.absolute()} {sorted(config.deciding().items())}"
            run = wandb.init(
                project=config.wandb_project, config=msgspec.structs.asdict(config), dir=str(directory),
                resume="allow", id=hashlib.sha256(name.encode()).hexdigest()[:16],
            )  # fmt: skip
            stack.callback(run.finish)
            sinks.append(lambda numbers, step: run.log(numbers, step=step))

        def note(kind: str, step: int, values: dict[str, Any]) -> None:
            for sink in sinks:
                sink(_numbers(kind, values), step)

        yield note


def _numbers(prefix: str, values: dict[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= _numbers(f"{prefix}/{name}", value)
        elif isinstance(value, int | float) and math.isfinite(value):
            found[f"{prefix}/{name}"] = value
    return found


class Validation(NamedTuple):
    # Mean cross-entropy of the corrected logits over thresholds and rows, weighted by the rows' weights.
    loss: float
    base_loss: float  # loss of constants: the share of true labels of each threshold in these rows
    auroc: dict[str, float | None]  # by threshold; None if all labels are equal
    rows: int
    bad_batch: int | None = None  # this rank's first batch with a logit that is not finite, or None


@torch.no_grad()
def validate(
    logits_of: Callable[[Batch], torch.Tensor],
    loader: CriticLoader,
    tiles: Sequence[int],
    shift: torch.Tensor,
    ranks: Ranks,
) -> Validation:
    """Evaluate the validation part. Each rank evaluates its share, and gets the complete result.

    The loader's epoch is set to 0, so that a cap draws the same rows each time. ``shift``, ``[T]``, is the
    shift of the logits by ``pos_weight``, which is subtracted.
    """
    loader.set_epoch(0)
    logits, labels, weights = [], [], []
    bad_batch = None
    for index, batch in enumerate(loader):
        logits.append(logits_of(batch).float().cpu())
        if bad_batch is None and not bool(logits[-1].isfinite().all()):
            bad_batch = index
        labels.append(batch["labels"].cpu().clone())  # cloned: the loader overwrites its memory
        weights.append(batch["weight"].cpu().clone())
    all_logits, all_labels, all_weights = (
        torch.cat(ranks.gather(torch.cat(parts))) for parts in (logits, labels, weights)
    )
    all_logits -= shift
    # In float64, so that the order of the sum does not matter.
    share = (all_weights.double() / all_weights.double().mean())[:, None]
    loss = binary_cross_entropy_with_logits(all_logits.double(), all_labels.double(), share)
    base = (all_labels.double() * share).mean(dim=0)
    base_loss = cross_entropy(base.numpy(), base.numpy()).mean()  # `base` may be a little above 1
    scores, truth, counts = all_logits.numpy(), all_labels.numpy() > 0.5, all_weights.numpy()
    found = {str(tile): auroc(scores[:, i], truth[:, i], counts) for i, tile in enumerate(tiles)}
    return Validation(float(loss), float(base_loss), found, len(all_logits), bad_batch)


def auroc(scores: NDArray[Any], labels: NDArray[np.bool_], weights: NDArray[np.float32]) -> float | None:
    """Return the AUROC of weighted scores ``f32[N]``; None if all labels are equal, or a score is NaN."""
    if np.isnan(scores).any():
        return None
    kinds, kind = np.unique(weights, return_inverse=True)
    found = ranking(scores, labels, kind, kinds[:, None]).auroc[0]
    return None if np.isnan(found) else float(found)


def train_critic(
    config: CriticConfig, view: TrainingView | None = None, stop: Callable[[], bool] = lambda: False
) -> Trained:
    """Train a critic until all steps are made, early stopping ends the training, or ``stop()`` is true.

    The directory is ``config.out``. The training resumes from its checkpoint, if any, and writes a checkpoint
    when it is stopped.

    Args:
        config: the settings.
        view: receiver of progress and events, on rank 0.
        stop: function that is called after each step, or with several ranks every ``log_steps`` steps.

    Raises:
        ConfigError: the settings conflict, or there is no such device.
        EmptyCorpusError: there are no rows, or a part of the split has no rows.
        ColumnError: with ``use_embeddings``, embeddings are missing, of other rows, or of another tower.
        StateError: the checkpoint is damaged, or of another training.
        TrainingError: the loss, its gradient or a validation's loss is not finite. The message names the
            batch. The checkpoint is from an earlier step.
        BusyError: another training runs in the directory.
        MissingPackageError: a tracker is not installed.
        StorageError: the operating system could not read or write a file.

    Example:
        >>> from tape2048.critic import CriticConfig
        >>> from tape2048.torch.training import train_critic
        >>> sizes = {"tower_dim": 8, "tower_layers": 1, "tower_ffn": 8, "thresholds": "256 512"}
        >>> train_critic(CriticConfig(out="tiny", steps_max=2, per_run=16, batch_rows=64, **sizes)).ended
        'all steps are made'
    """
    config.check()
    shown = view or SilentView()
    with joined(config.device) as ranks, contextlib.ExitStack() as stack:
        threads = torch.get_num_threads()
        stack.callback(torch.set_num_threads, threads)
        # The step of a head takes a millisecond: more threads make it slower, and take the cores of the
        # threads that make batches.
        torch.set_num_threads(config.threads or (1 if config.use_embeddings else threads))
        directory = RanksDirectory(Path(os.path.abspath(config.out)), "step", ranks)
        stack.enter_context(directory.locked())
        training = Training(directory, shown if ranks.first else SilentView(), stop)
        # Not bound to a name: a wrapped model must be freed before the process group that it uses.
        return training.run(lambda content: _TorchLearner(config, ranks, training, content)).result()


class _TorchLearner:
    def __init__(
        self, config: CriticConfig, ranks: Ranks, training: Training, content: memoryview | None
    ) -> None:
        self.config = config
        self.training = training
        self.directory = training.files.path
        self.ranks = ranks
        self.data: models.TrainingData = models.open_alike(config, ranks)
        # All ranks draw the same parameters, but different dropout.
        torch.manual_seed(config.seed)
        self.model = models.make_model(config, self.data).to(ranks.device)
        torch.manual_seed(config.seed + ranks.rank)
        self.optimizer = models.make_optimizer(config, self.model)
        embeddings = self.data.embeddings
        self.state = TrainingState(  # the content of the next checkpoint
            config={
                **config.deciding(),
                "embeddings_of": None if embeddings is None else embeddings.info.facts.get("model_sha"),
                "columns_sha256": self.data.columns_sha256,
            },
            corpus=self.data.corpus.identity,
            world_size=ranks.world_size,
        )
        self.steps_per_epoch = len(self.data.train)
        if content is not None:
            path = training.files.checkpoint
            self.state = load_checkpoint(content, path, config, self.state, self.model, self.optimizer, ranks)
            self.data.train.load_state_dict({**self.state.loader, "rank": ranks.rank})
        loader = self.data.train.batches
        left = self.steps_per_epoch * (config.epochs - loader.epoch - 1) + len(loader) - loader.position
        self.steps = self.state.step + left
        # Difference between the steps that this number of ranks would have made so far, and those made.
        self._ahead = self.steps_per_epoch * config.epochs - self.steps
        self._limited = config.steps_max is not None and config.steps_max < self.steps
        if config.steps_max is not None:
            self.steps = min(self.steps, config.steps_max)
        self.eval_steps = config.eval_steps or self.steps_per_epoch
        self.parallel: nn.Module = self.model
        if ranks.world_size > 1:
            self.parallel = DistributedDataParallel(
                self.model, device_ids=[ranks.device.index] if ranks.device.type == "cuda" else None
            )
        for remark in filter(None, [*doubts(self.data.players), models.split_of_tower(config)]):
            training.event(remark)
        rows, runs = self.data.counts["train"]
        parameters = sum(p.numel() for p in self.model.parameters())
        training.event(
            f"learning from {runs:,} games ({rows:,} rows an epoch), {parameters:,} parameters on "
            f"{ranks.device}. The first step waits for compilers"
        )
        weights = self.data.weights
        self.weights = None if weights is None else torch.tensor(weights, device=ranks.device)
        shift = torch.tensor([math.log(w) for w in weights or [1.0] * len(config.tiles)])
        # A weight w shifts the logits by log w. For a plain head, the shift is subtracted from the bias when
        # a critic is written. For an ordered head, it is added to the logits before the loss. See
        # CriticHead.fold_pos_weight.
        self.folded = torch.zeros_like(shift) if config.ordered else shift
        self.added = shift.to(ranks.device) if config.ordered else None
        self._recent: list[tuple[torch.Tensor, int, int]] = []  # loss and gradient, epoch, batch of each step
        self._clock = _Clock(config.batch_rows * ranks.world_size, self.state.elapsed_s)
        self._val: Validation | None = None
        self._loss = math.nan
        self._stopped = False

    @property
    def done(self) -> bool:
        return self.state.ended is not None

    def train(self, training: Training) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if self.ranks.first:
                self._track = stack.enter_context(_trackers(self.config, self.directory))
            while not self.done:
                if self.state.step >= self.steps:
                    self.state.ended = "all steps are made"
                    yield
                elif self._stopped:
                    return
                else:
                    yield from self._epoch(training)

    def _epoch(self, training: Training) -> Iterator[None]:
        self.parallel.train()
        loader = self.data.train.batches
        with contextlib.closing(self._clock.timed(iter(self.data.train))) as batches:
            for batch in batches:
                self._step(batch, loader.epoch, loader.position - 1)
                self.state.loader = loader.state_dict()
                if self._after_step(training):
                    self._flush()  # raises an error for losses that are not finite
                    yield
                if self.done or self._stopped or self.state.step >= self.steps:
                    return

    def _after_step(self, training: Training) -> bool:
        """Log, validate and check for a stop after a step, if due; return whether a checkpoint is due."""
        step = self.state.step
        at_log = step % self.config.log_steps == 0
        if at_log or self.ranks.device.type == "cpu":
            self._flush()
        if at_log:
            self._note()
        asked = training.pause(self.progress())
        validated = step % self.eval_steps == 0 or step == self.steps
        if validated:
            with self._clock.paused():
                self._validate()
        # Ranks agree on a stop only every log_steps, since this needs communication.
        self._stopped = (at_log or self.ranks.world_size == 1) and self.ranks.any(asked)
        return validated or self._stopped or step % self.config.checkpoint_steps == 0

    def _rate_of(self, step: int) -> float:
        ahead = 0 if self._limited else self._ahead
        return models.learning_rate(self.config, step + ahead, self.steps + ahead)

    def _step(self, batch: Batch, epoch: int, index: int) -> None:
        rate = self._rate_of(self.state.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with models.autocast(self.config, self.ranks.device):
            logits = self.parallel(models.inputs(batch))
        if self.added is not None:
            logits = logits + self.added
        weight = (batch["weight"] / self.data.mean_weight)[:, None]
        loss = binary_cross_entropy_with_logits(logits, batch["labels"], weight, pos_weight=self.weights)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)  # one odd batch must not undo an hour
        self.optimizer.step()
        self.state.step += 1
        self._recent.append((torch.stack((loss.detach(), norm.detach())), epoch, index))

    def _flush(self) -> None:
        """Fetch the losses since the last call, with one wait for the device; raise TrainingError."""
        if not self._recent:
            return
        values = torch.stack([pair for pair, _, _ in self._recent]).cpu()
        finite = values.isfinite().all(dim=1)
        if not bool(finite.all()):
            at = int((~finite).nonzero()[0, 0])
            _, epoch, index = self._recent[at]
            loss, norm = values[at].tolist()
            raise self._diverged(
                f"at step {self.state.step - len(self._recent) + at + 1}, the loss is {loss} and the norm of "
                f"its gradient {norm}: batch {index} of epoch {epoch}, rank {self.ranks.rank}, which has "
                + models.bad_batch(self.data, "train", epoch, index)
            )
        self._loss = float(values[-1, 0])
        self.state.loss_sum += float(values[:, 0].double().sum())
        self.state.loss_steps += len(self._recent)
        self._recent.clear()

    def _note(self) -> None:
        self._loss = self.ranks.mean(self.state.loss_sum / self.state.loss_steps)
        self.state.loss_sum, self.state.loss_steps = 0.0, 0
        self._clock.lap()
        digits = {"epoch": 6, "rows_per_s": 1, "data_wait": 5, "elapsed_s": 3}
        found = self.progress().figures
        rounded = {name: round(found[name], count) for name, count in digits.items()}
        kept = {name: found[name] for name in ("steps", "loss", "learning_rate")}
        self._write("train", {**kept, **rounded})

    def _write(self, kind: str, values: dict[str, Any]) -> None:
        self.training.note({"kind": kind, "step": self.state.step, **values})
        if self.ranks.first:
            self._track(kind, self.state.step, values)

    def _validate(self) -> None:
        self._flush()
        self.parallel.eval()
        with models.autocast(self.config, self.ranks.device):
            model, tiles = lambda batch: self.model(models.inputs(batch)), self.config.tiles
            found = validate(model, self.data.val, tiles, self.folded, self.ranks)
        self.parallel.train()
        if not math.isfinite(found.loss):
            # NaN compares false with every loss.
            where = "on another rank"
            if found.bad_batch is not None:
                rows = models.bad_batch(self.data, "val", 0, found.bad_batch)
                where = f"batch {found.bad_batch}, rank {self.ranks.rank}, which has {rows}"
            raise self._diverged(f"at step {self.state.step}, the validation loss is {found.loss}: {where}")
        self._val = found
        state = self.state
        better = state.best_loss is None or found.loss < state.best_loss
        metrics: dict[str, Any] = {
            "val_loss": found.loss, "val_base_loss": found.base_loss, "val_auroc": found.auroc,
            "val_rows": found.rows,
        }  # fmt: skip
        state.worse += 1
        self._export("last", metrics)
        if better:
            state.best_loss, state.best_step = found.loss, state.step
            state.best_metrics, state.worse = metrics, 0
            self._export("best", metrics)
        values = {name.removeprefix("val_"): value for name, value in metrics.items()}
        self._write("val", {**values, "best": better})
        self.training.event(
            f"step {state.step:,}: validation loss {found.loss:.5f}"
            + (" (best so far" if better else f" (best: {state.best_loss:.5f} at step {state.best_step:,}")
            + f"; base rate: {found.base_loss:.5f})"
        )
        if self.config.patience is not None and state.worse >= self.config.patience:
            state.ended = f"no better for {state.worse} validations"

    def _diverged(self, message: str) -> TrainingError:
        hint = "lower learning_rate, or check these rows. Checkpoint and critics are from earlier steps"
        return TrainingError(message, path=self.directory, hint=hint)

    def _export(self, name: str, metrics: dict[str, Any]) -> None:
        if not self.ranks.first:
            return
        head = copy.deepcopy(self.model.head).cpu()
        if self.data.weights is not None and not head.ordered:
            head.fold_pos_weight(self.data.weights)
        config, data = self.config, self.data
        info = CriticInfo(
            kind="embeddings" if config.use_embeddings else "tokens",
            tower=models.tower_info(config, self.data, self.model),
            head=head.info,
            training=msgspec.structs.asdict(config),
            **training_facts(config, data.corpus.identity, data.players, self.state.step, metrics),
        )
        save_critic(self.directory / name, info, head, self.model.tower, replace=True)

    def save(self, path: Path) -> None:
        """Write a checkpoint. All ranks must call this method."""
        generators = rng_states(self.ranks)
        # A checkpoint has one sum for all ranks. Each rank continues with it, as after a resume.
        self.state.loss_sum = self.ranks.mean(self.state.loss_sum)
        if self.ranks.first:
            self.state.elapsed_s = self._clock.elapsed_s
            write_checkpoint(path, self.state, self.model, self.optimizer, generators)

    def progress(self) -> TrainingProgress:
        state, elapsed_s = self.state, self._clock.elapsed_s  # over all starts
        rows_per_s, data_wait = self._clock.rates
        figures = {
            "step": state.step,
            "steps": self.steps,
            "epoch": (state.step + self._ahead) / self.steps_per_epoch,
            "loss": self._loss,  # mean of the last steps
            "rows_per_s": rows_per_s,  # of all ranks between lines of metrics
            "data_wait": data_wait,  # share of that time that was spent waiting for batches
            "learning_rate": self._rate_of(max(0, state.step - 1)),
            "val_loss": None if self._val is None else self._val.loss,  # of the last validation
            "val_base_loss": None if self._val is None else self._val.base_loss,
            "val_auroc": {} if self._val is None else self._val.auroc,  # by threshold
            "best_step": state.best_step,
            "elapsed_s": elapsed_s,
        }
        per_s = rows_per_s / (self.config.batch_rows * self.ranks.world_size)
        return TrainingProgress("steps", state.step, self.steps, per_s, elapsed_s, figures)

    def result(self) -> Trained:
        return Trained(
            ended=self.state.ended,
            progress=self.progress(),
            best=self.directory / "best" if self.state.best_loss is not None else None,
            best_metrics=self.state.best_metrics,
            counts=self.data.counts,
        )
