"""Train a small policy network to move like the player of a corpus, and record games with it.

It takes minutes on a CPU::

    tape2048 record --player ntuple --record-action --max-steps 20M --seed 1 --out teacher
    python examples/imitate.py teacher --out policy.safetensors
    tape2048 record --config student.toml

with ``student.toml``::

    player = "python:tape2048_recorder.models.torch_player:make"
    lanes = 512
    out_dir = "student"
    max_games = 1000

    [player_args]
    model = "policy.safetensors"
    module = "examples/imitate.py:policy"

The network values the board after each of the four moves, before a tile appears. Each row, column and
two-by-two square is an input with 65,536 possible values, and each value has a learned vector. A hidden layer
maps the seventeen vectors of a board to a number. The network learns by cross-entropy over the legal moves,
on boards turned by the eight symmetries. It learns only from the first steps of games, because a student that
is worse than its teacher reaches few later boards.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from tape2048 import Corpus
from tape2048.errors import TapeError
from tape2048.torch import CriticLoader

ROWS = [[4 * r + c for c in range(4)] for r in range(4)]
COLUMNS = [[4 * r + c for r in range(4)] for c in range(4)]
SQUARES = [[4 * r + c, 4 * r + c + 1, 4 * r + c + 4, 4 * r + c + 5] for r in range(3) for c in range(3)]

#: The table of vectors of each row, column and square: one for lines at the edge, inner lines, and squares.
TABLES = [0, 1, 1, 0] + [0, 1, 1, 0] + [2] * 9

#: Factors that turn four exponents into one number.
POWERS = [16**3, 16**2, 16, 1]


def slid(row: list[int]) -> list[int]:
    """Return a row of exponents after a move to the left; a 65536 becomes a 32768."""
    tiles = [exponent for exponent in row if exponent]
    after = []
    while tiles:
        merges = len(tiles) > 1 and tiles[0] == tiles[1]
        after.append(min(tiles[0] + merges, 15))
        del tiles[: 1 + merges]
    return after + [0] * (4 - len(after))


class Policy(torch.nn.Module):
    """A network from exponents ``int64[B, 16]`` to logits ``[B, 4]`` of up, down, left and right."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.vectors = torch.nn.Embedding((1 + max(TABLES)) * 16**4, width)
        torch.nn.init.normal_(self.vectors.weight, std=0.05)
        self.hidden = torch.nn.Linear(len(TABLES) * width, hidden)
        self.out = torch.nn.Linear(hidden, 1)
        rows = [[number // power % 16 for power in POWERS] for number in range(16**4)]
        constants = {
            "left": [slid(row) for row in rows],
            "right": [slid(row[::-1])[::-1] for row in rows],
            "cells": ROWS + COLUMNS + SQUARES,
            "tables": [16**4 * table for table in TABLES],
            "powers": POWERS,
        }
        for name, numbers in constants.items():
            self.register_buffer(name, torch.tensor(numbers), persistent=False)

    def afterstates(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the boards after each move, ``int64[B, 4, 16]``; illegal moves leave the board unchanged."""
        boards = tokens.view(-1, 4, 4)
        rows = boards @ self.powers
        columns = boards.transpose(1, 2) @ self.powers
        up, down = (table[columns].transpose(1, 2) for table in (self.left, self.right))
        return torch.stack([up, down, self.left[rows], self.right[rows]], dim=1).flatten(2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of the moves, which are the network's values of the boards after them."""
        seen = self.afterstates(tokens)[:, :, self.cells] @ self.powers + self.tables
        hidden = torch.relu(self.hidden(self.vectors(seen).flatten(2)))
        return self.out(hidden).squeeze(2)


def policy(width: int = 8, hidden: int = 64) -> Policy:
    """Return the network with random weights. ``module=examples/imitate.py:policy`` names this function."""
    return Policy(width, hidden)


def masked(logits: torch.Tensor, legal: torch.Tensor) -> torch.Tensor:
    """Return the logits with illegal moves masked; bit m of ``legal`` stands for move m."""
    allowed = legal.unsqueeze(1).bitwise_right_shift(torch.arange(4)).bitwise_and(1).bool()
    return logits.masked_fill(~allowed, -1e9)


def agreement(net: Policy, loader: CriticLoader) -> float:
    """Return the share of positions on which the network chooses the teacher's move."""
    same = count = 0
    with torch.inference_mode():
        for batch in loader:
            chosen = masked(net(batch["tokens"].long()), batch["legal"]).argmax(dim=1)
            same += int((chosen == batch["action"]).sum())
            count += len(chosen)
    return same / count


def train(
    net: Policy,
    corpus: Corpus,
    out: Path,
    *,
    batches: int,
    batch_size: int,
    steps: int,
    rate: float,
    seed: int,
) -> float:
    """Train, and save the weights; return the agreement on held-out games."""
    parts = corpus.phase(steps=(0, steps)).split(train=0.98, held_out=0.02)
    fields = ("tokens", "action", "legal")
    loader = CriticLoader(parts["train"], batch_size, seed=seed, fields=fields, augment="d4")
    optimizer = torch.optim.Adam(net.parameters(), lr=rate, fused=True)
    begin, done = time.monotonic(), 0
    while done < batches:
        for batch in loader:
            optimizer.param_groups[0]["lr"] = rate * (1 - done / batches)  # falls linearly to 0
            logits = masked(net(batch["tokens"].long()), batch["legal"])
            loss = torch.nn.functional.cross_entropy(logits, batch["action"].long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            if done % max(1, batches // 10) == 0:
                print(f"{done} batches, {time.monotonic() - begin:.0f} s, loss {loss.item():.3f}", flush=True)
            if done == batches:
                break
    net.eval()
    # Write to another name first, so that no process loads an incomplete file.
    half = out.with_name(f".{out.name}.half")
    save_file(net.state_dict(), half)
    half.replace(out)
    return agreement(net, CriticLoader(parts["held_out"], batch_size, seed=0, fields=fields))


def main() -> None:
    """Read the command line, train, and print how often teacher and student agree."""
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("corpus", type=Path, help="sessions recorded with --record-action")
    parser.add_argument("--out", type=Path, default=Path("policy.safetensors"), help="file for the weights")
    parser.add_argument("--batches", type=int, default=4000, help="number of batches")
    parser.add_argument("--batch-size", type=int, default=1024, help="positions in a batch")
    parser.add_argument("--steps", type=int, default=4000, help="first steps of each game to learn from")
    parser.add_argument("--rate", type=float, default=3e-3, help="initial learning rate")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and shuffle")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    try:
        share = train(
            policy(),
            Corpus.open(args.corpus),
            args.out,
            batches=args.batches,
            batch_size=args.batch_size,
            steps=args.steps,
            rate=args.rate,
            seed=args.seed,
        )
    except TapeError as error:  # no corpus, or a corpus without moves
        raise SystemExit("\n".join(filter(None, (str(error), error.hint)))) from error
    print(f"{args.out}: chooses the teacher's move in {100 * share:.1f}% of held-out positions")


if __name__ == "__main__":
    main()
