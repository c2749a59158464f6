"""Train a critic on recorded sessions: will this game reach these tiles?

Run the script after ``tape2048 record``, as a whole, or cell by cell in an editor that supports ``# %%``::

    python examples/train_critic.py [SESSIONS]

A few hundred games of the default player are enough. Nearly all of them reach 8192, and 86% reach 16384.
"""

# %% A corpus: every session of a directory
from __future__ import annotations

import argparse

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot

from tape2048 import Corpus
from tape2048.torch import CriticLoader

THRESHOLDS = (8192, 16384)
STEPS = 200

parser = argparse.ArgumentParser(description="Train a small critic on recorded sessions.")
parser.add_argument("sessions", nargs="?", default="selfplay", help="directory of sessions (%(default)s)")
corpus = Corpus.open(parser.parse_args().sessions)
print(corpus)
print(
    "share of rows whose game reached",
    dict(zip(THRESHOLDS, corpus.prevalence(THRESHOLDS).tolist(), strict=True)),
)

# %% A split by game, and at most 128 weighted positions of each game per epoch
parts = corpus.where("steps >= 20").split(train=0.8, val=0.2)
train = parts["train"].capped(per_run=128)
loader = CriticLoader(
    train,
    1024,
    seed=1,
    fields=("tokens", "labels", "weight"),
    thresholds=THRESHOLDS,
    augment="d4",
)
mean_weight = len(parts["train"]) / len(train)
print(train, "->", len(loader), "batches per epoch")

# %% A minimal critic: a hidden layer over one-hot tiles
torch.manual_seed(0)
critic = torch.nn.Sequential(
    torch.nn.Linear(16 * 16, 64), torch.nn.ReLU(), torch.nn.Linear(64, len(THRESHOLDS))
)
optimizer = torch.optim.Adam(critic.parameters(), lr=3e-3)
weight = torch.from_numpy(parts["train"].pos_weight(THRESHOLDS)).float()


def loss_of(tokens: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of the critic's logits, weighted by row and by label."""
    logits = critic(one_hot(tokens.long(), 16).flatten(1).float())
    return binary_cross_entropy_with_logits(logits, labels, weights[:, None], pos_weight=weight)


# %% Training, with the loader's state for a checkpoint
steps = 0
state = loader.state_dict()
while steps < STEPS:
    for batch in loader:
        loss = loss_of(batch["tokens"], batch["labels"], batch["weight"] / mean_weight)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state = loader.state_dict()
        steps += 1
        if steps == STEPS:
            break

# %% Validation on unseen games
fields = ("tokens", "labels", "weight")  # all rows, so each weight is 1
validation = parts["val"].fetch(slice(None), fields, thresholds=THRESHOLDS, label_dtype="float32")
rows = [torch.from_numpy(validation[name]) for name in fields]
with torch.no_grad():
    found = float(loss_of(*rows))
    for parameter in critic.parameters():
        parameter.zero_()
    chance = float(loss_of(*rows))
print(f"validation loss {found:.3f}; without training {chance:.3f}")
print("state of the loader:", {name: state[name] for name in ("seed", "epoch", "position")})
