"""Train a small policy network to move like the player of a corpus, and record with it.

From recordings to a model and back to recordings, on a CPU, in minutes::

    tape2048 record --player ntuple:look_below=0 --record-action --max-steps 10M --out-dir teacher
    python examples/imitate.py teacher --out policy.safetensors --minutes 5
    tape2048 record --config student.toml

with ``student.toml``::

    player = "python:tape2048_recorder.models.torch_player:make"
    out_dir = "student"
    max_games = 2000

    [player_args]
    model = "policy.safetensors"
    module = "examples/imitate.py:policy"

The network sees each cell and each pair of neighbouring cells as an input of its own (a sum of learned rows,
one for each value), then two hidden layers. It learns by cross-entropy over the legal moves, on boards turned
by the eight symmetries.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from tape2048 import Corpus
from tape2048.torch import CriticLoader

#: Neighbours in a row, then in a column.
PAIRS = [(4 * r + c, 4 * r + c + 1) for r in range(4) for c in range(3)] + [
    (4 * r + c, 4 * r + c + 4) for r in range(3) for c in range(4)
]


class Policy(torch.nn.Module):
    """``int64[B, 16]`` exponents to logits ``[B, 4]``, up, down, left, right."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.rows = torch.nn.EmbeddingBag(16 * 16 + len(PAIRS) * 256, width, mode="sum")
        self.hidden = torch.nn.Linear(width, width)
        self.out = torch.nn.Linear(width, 4)
        first, second = (torch.tensor(cells) for cells in zip(*PAIRS, strict=True))
        self.register_buffer("first", first, persistent=False)
        self.register_buffer("second", second, persistent=False)
        self.register_buffer("cell_base", 16 * torch.arange(16), persistent=False)
        self.register_buffer("pair_base", 256 + 256 * torch.arange(len(PAIRS)), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of the moves."""
        pairs = 16 * tokens[:, self.first] + tokens[:, self.second]
        rows = self.rows(torch.cat([tokens + self.cell_base, pairs + self.pair_base], dim=1))
        return self.out(torch.relu(self.hidden(torch.relu(rows))))


def policy(width: int = 128) -> Policy:
    """The network, with weights of chance: what ``module=examples/imitate.py:policy`` names."""
    return Policy(width)


def masked(logits: torch.Tensor, legal: torch.Tensor) -> torch.Tensor:
    """Logits with illegal moves out of the question; ``legal`` has bit m for move m."""
    allowed = legal.unsqueeze(1).bitwise_right_shift(torch.arange(4)).bitwise_and(1).bool()
    return logits.masked_fill(~allowed, -1e9)


def agreement(net: Policy, loader: CriticLoader) -> float:
    """The share of positions on which the network would move as the teacher did."""
    same = count = 0
    with torch.inference_mode():
        for batch in loader:
            chosen = masked(net(batch["tokens"].long()), batch["legal"]).argmax(dim=1)
            same += int((chosen == batch["action"]).sum())
            count += len(chosen)
    return same / count


def train(
    corpus: Corpus,
    out: Path,
    *,
    minutes: float,
    batch_size: int,
    rate: float,
    seed: int,
    steps_max: float = float("inf"),
) -> float:
    """Train for a while and save the weights; returns the agreement on games that were held out."""
    torch.manual_seed(seed)
    parts = corpus.split(train=0.95, held_out=0.05)
    fields = ("tokens", "action", "legal")
    loader = CriticLoader(parts["train"], batch_size, seed=seed, fields=fields, augment="d4")
    net = policy()
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate)
    begin, steps, said = time.monotonic(), 0, 0.0

    def done_now() -> float:
        return max((time.monotonic() - begin) / (60 * minutes), steps / steps_max)

    while (done := done_now()) < 1:
        for batch in loader:
            done = done_now()
            if done >= 1:
                break
            optimizer.param_groups[0]["lr"] = rate * (1 - done)  # down to nothing in a straight line
            logits = masked(net(batch["tokens"].long()), batch["legal"])
            loss = torch.nn.functional.cross_entropy(logits, batch["action"].long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            if done >= said:
                print(f"{100 * done:3.0f}%  {steps} batches, loss {loss.item():.3f}", flush=True)
                said += 0.1
    net.eval()
    # Under another name first: whoever watches the directory never sees a half.
    half = out.with_name(f".{out.name}.half")
    save_file(net.state_dict(), half)
    half.replace(out)
    return agreement(net, CriticLoader(parts["held_out"], batch_size, seed=0, fields=fields))


def main() -> None:
    """Read the command line, train, and say how often teacher and student agree."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("corpus", type=Path, help="sessions recorded with --record-action")
    parser.add_argument("--out", type=Path, default=Path("policy.safetensors"))
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    share = train(
        Corpus.open(args.corpus),
        args.out,
        minutes=args.minutes,
        batch_size=args.batch_size,
        rate=args.rate,
        seed=args.seed,
    )
    print(f"{args.out}: moves as the teacher did on {100 * share:.1f}% of positions of games held out")


if __name__ == "__main__":
    main()
