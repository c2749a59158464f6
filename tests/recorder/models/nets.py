"""Small networks for tests, as in a user's module."""

import torch


class Policy(torch.nn.Module):
    """One-hot cells through a hidden layer."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.hidden = torch.nn.Linear(16 * 16, width)
        self.out = torch.nn.Linear(width, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        cells = torch.nn.functional.one_hot(tokens, 16).to(self.hidden.weight.dtype).flatten(1)
        return self.out(torch.relu(self.hidden(cells)))


def policy(width: int = 32) -> Policy:
    return Policy(width)


def three(width: int = 8) -> torch.nn.Module:
    """Gives three scores."""
    return torch.nn.Sequential(Policy(width), torch.nn.Linear(4, 3))


def no_module() -> type:
    return dict
