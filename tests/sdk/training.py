"""Two epochs of training a small critic, checkpointed after every few batches; started again, it goes on.

::

    python training.py CORPUS DIRECTORY [--threads 1] [--paced]

Writes ``rows.log`` (the rows of each batch, a line each), ``checkpoint.pt``, and at the end ``done.pt``.
``--paced``: says ``batch`` after each one, and waits for a line before the next.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

from tape2048.corpus import Corpus
from tape2048.torch import CriticLoader

EPOCHS = 2
BATCH = 512
THRESHOLDS = (64, 128)
CHECKPOINT_EVERY = 4


def make_model() -> torch.nn.Sequential:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, len(THRESHOLDS)))


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor]) -> None:
    """One step of gradient descent."""
    logits = model(batch["tokens"].float() / 16)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, batch["labels"])
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def save(path: Path, content: dict[str, Any]) -> None:
    """Put a checkpoint in the place of the one before: whole, or not at all."""
    draft = path.with_suffix(".tmp")
    torch.save(content, draft)
    draft.replace(path)


def train(root: Path, directory: Path, *, threads: int, paced: bool) -> None:
    """Train, from the checkpoint if there is one."""
    torch.set_num_threads(1)
    corpus = Corpus.open(root).where(min_steps=50)
    loader = CriticLoader(
        corpus, BATCH, threads=threads, seed=11, fields=("tokens", "labels", "row"),
        thresholds=THRESHOLDS, label_dtype="float32", augment="d4",
    )  # fmt: skip
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    log = directory / "rows.log"
    log.touch()
    checkpoint = directory / "checkpoint.pt"
    if checkpoint.exists():
        found = torch.load(checkpoint)
        loader.load_state_dict(found["loader"])
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        # Batches after the checkpoint were trained into a model that is gone: they come again.
        with log.open("r+b") as file:
            file.truncate(found["log_bytes"])
    with log.open("a") as file:
        while loader.epoch < EPOCHS:
            for batch in loader:
                step(model, optimizer, batch)
                file.write(" ".join(map(str, batch["row"].tolist())) + "\n")
                if loader.state_dict()["position"] % CHECKPOINT_EVERY == 0:
                    file.flush()
                    save(
                        checkpoint,
                        {
                            "loader": loader.state_dict(),
                            "model": model.state_dict(),
                            "optimizer": optimizer.state_dict(),
                            "log_bytes": log.stat().st_size,
                        },
                    )
                if paced:
                    sys.stdout.write("batch\n")
                    sys.stdout.flush()
                    sys.stdin.readline()
    save(directory / "done.pt", model.state_dict())


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("root", type=Path)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--paced", action="store_true")
    args = parser.parse_args()
    train(args.root, args.directory, threads=args.threads, paced=args.paced)


if __name__ == "__main__":
    main()
