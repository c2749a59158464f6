"""Train a critic on outcomes, move values and mistakes, as docs/how-to/more-than-outcomes.md explains.

Record and annotate games first::

    tape2048 record --player ntuple:look=0 --max-steps 6M --seed 1 --record-action
    tape2048 annotate selfplay
    python examples/train_on_columns.py selfplay
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

# %% The network and its training, as on the page
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss

from tape2048 import Corpus
from tape2048.torch import CriticLoader

TILES = (8192, 16384)


class Net(torch.nn.Module):
    """Two layers over the 16 cells, then a head for outcomes and a head for the values of the four moves."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = torch.nn.Embedding(16 * 16, 256)  # a vector for each exponent in each cell
        self.hidden = torch.nn.Linear(256, 128)
        self.outcomes, self.values = torch.nn.Linear(128, len(TILES)), torch.nn.Linear(128, 4)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits ``f32[B, T]``, and values ``f32[B, 4]`` in units of 100,000 points."""
        cells = self.cells(tokens.long() + 16 * torch.arange(16)).sum(dim=1)
        x = self.hidden(cells.relu()).relu()
        return self.outcomes(x), self.values(x)


def train(
    games: Corpus, *, values: float = 1.0, mistakes: float = 4.0, steps: int = 2500, seed: int = 1
) -> Net:
    """Train a network; ``values`` weighs the second loss, ``mistakes`` is the extra weight of a mistake."""
    torch.manual_seed(seed)
    net, sample = Net(), games.capped(per_run=512)
    # A move that loses 100 points or more by the judge's values is a mistake here.
    emphasis = 1 + mistakes * (games.fetch(slice(None), ("loss",))["loss"] >= 100)
    loader = CriticLoader(
        sample, 1024, seed=seed, fields=("tokens", "labels", "weight", "values"), thresholds=TILES,
        augment="d4", extra={"emphasis": emphasis}, weight="emphasis",
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=steps)
    while schedule.last_epoch < steps:
        for batch in loader:  # one epoch; augment="d4" turns the values together with the board
            logits, guessed = net(batch["tokens"])
            weight = batch["weight"][:, None] / (len(games) / len(sample))
            loss = binary_cross_entropy_with_logits(logits, batch["labels"], weight)
            legal = ~batch["values"].isnan()  # illegal moves have no value
            loss = loss + values * mse_loss(guessed[legal], batch["values"][legal] / 1e5)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            if schedule.last_epoch == steps:
                break
    return net


# %% The script
if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray


def predictor(net: Net) -> Callable[[NDArray[np.uint8]], NDArray[np.float32]]:
    """Return the network as a function from boards ``u8[N, 16]`` to probabilities ``f32[N, T]``."""

    def predict(tokens: NDArray[np.uint8]) -> NDArray[np.float32]:
        with torch.no_grad():
            return net(torch.from_numpy(tokens))[0].sigmoid().numpy()

    return predict


def main() -> None:
    """Train on nine tenths of the games, and print the AUROC on the others."""
    parser = argparse.ArgumentParser(description="Train a critic on columns of recorded sessions.")
    parser.add_argument("sessions", nargs="?", default="selfplay", help="directory of sessions (%(default)s)")
    parser.add_argument("--steps", type=int, default=2500, help="number of batches (%(default)s)")
    args = parser.parse_args()
    from tape2048.critic import evaluate

    parts = Corpus.open(args.sessions).split(train=0.9, test=0.1)
    net = train(parts["train"], steps=args.steps)
    found = evaluate(predictor(net), parts["test"], thresholds=TILES)
    for tile in TILES:
        cell = found.cell("all", tile)
        scores = cell.scores.get("critic")
        print(f"{tile}:", f"AUROC {scores.auroc.value:.3f}" if scores and scores.auroc else cell.note)


if __name__ == "__main__":
    main()
