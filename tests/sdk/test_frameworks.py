"""The programs of docs/how-to/frameworks.md run, and resume with the next batch.

Each has a process of its own, since JAX warns of later forks, and every framework is slow to import.
"""

import hashlib
import itertools
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

README = Path(__file__).parents[2] / "README.md"
PAGE = README.parent / "docs/how-to/frameworks.md"
Names = dict[str, Any]
#: Batches that a model learned from, and batches of its validations.
trained: list[str] = []
validated: list[str] = []


def in_order(count: int, part: str = "") -> list[str]:
    """The first batches of the programs' order, epoch after epoch."""
    from tape2048 import Corpus
    from tape2048.torch import CriticLoader

    corpus = Corpus.open("selfplay")
    loader = CriticLoader(corpus.split(train=0.9, val=0.1)[part] if part else corpus, batch_size=1024, seed=7)
    epochs = itertools.chain.from_iterable(itertools.repeat(loader))
    return sums(itertools.islice(epochs, count))


def sums(batches: Iterable[Any]) -> list[str]:
    return [sum_of(batch["tokens"]) for batch in batches]


def sum_of(tokens: Any) -> str:
    import numpy as np

    return hashlib.sha256(np.asarray(tokens).astype(np.uint8).tobytes()).hexdigest()[:8]


def watch_training() -> None:
    from torch import nn

    def note(module: Any, args: Any) -> None:
        if isinstance(module, nn.Embedding):
            (trained if module.training else validated).append(sum_of(args[0].detach().cpu()))

    nn.modules.module.register_module_forward_pre_hook(note)


def check_data_loader(names: Names) -> None:
    loader = names["loader"]
    assert loader.epoch == 1
    loader.load_state_dict({**names["state"], "position": 5})
    assert sums(loader.counting(names["data_loader"])) == in_order(len(loader))[5:]


def check_torchdata(names: Names) -> None:
    loader = names["loader"] = names["make"]().dataset
    assert sums([*names["rest"], *names["resumed"]]) == in_order(2 * len(loader))[5:]
    workers = names["StatefulDataLoader"](loader, batch_size=None, num_workers=2)
    try:
        iter(workers)
    except ValueError as error:
        assert "num_workers=2; expected 0" in str(error), error  # noqa: PT017 - pytest is not here
    else:
        raise AssertionError("workers make batches of no state")


def check_training(steps: int) -> Callable[[Names], None]:
    def check(names: Names) -> None:
        assert trained == in_order(steps)

    return check


def check_lightning(names: Names) -> None:
    """It trains in order, and each validation serves every row."""
    assert trained == in_order(30, "train")
    corpus = names["Corpus"].open("selfplay").split(train=0.9, val=0.1)["val"]
    each = sums(names["CriticLoader"](corpus, 1024, shuffle=False))
    assert len(each) > 2
    assert validated == each * (len(validated) // len(each)) != []
    assert names["trainer"].callback_metrics["val_loss"] > 0


def check_grain(names: Names) -> None:
    source = names["source"]
    iterator = iter(names["grain"].MapDataset.source(source).to_iter_dataset())
    iterator.set_state(names["state"])
    expected = in_order(30)
    assert sums([source[4], *itertools.islice(iterator, 25)]) == expected[4:]
    assert len(source) == 10 * len(source.batches)
    corpus = names["Corpus"].open("selfplay")
    rows = corpus.fetch(slice(None), ("tokens", "labels"))
    first = names["batch"]
    assert first["tokens"].shape == (64, 16)
    every = {board.tobytes(): label for board, label in zip(*rows.values(), strict=True)}
    for board, label in zip(first["tokens"], first["labels"], strict=True):
        assert label.tolist() == every[board.tobytes()].tolist()


def check_jax(names: Names) -> None:
    """``jnp.array`` copies, and memory that another array shares is not filled again."""
    import numpy as np

    from tape2048.torch import CriticLoader

    jax, jnp = names["jax"], names["jnp"]
    loader = CriticLoader(names["Corpus"].open("selfplay"), batch_size=1024, seed=7)
    held = []
    for batch in loader:
        tokens = batch["tokens"].numpy()
        copied = jnp.array(tokens)
        before = tokens.copy()
        tokens[:] = 17
        assert np.array_equal(copied, before)
        tokens[:] = before
        held.append((jax.device_put(tokens), jax.dlpack.from_dlpack(batch["tokens"]), before))
        shared = held[-1][1].unsafe_buffer_pointer() == batch["tokens"].data_ptr()
        del batch, tokens
    assert shared, "from_dlpack shares memory; else this tests nothing"
    assert all(np.array_equal(put, before) and np.array_equal(got, before) for put, got, before in held)


CHECKS: dict[str, tuple[str, Callable[[Names], None]]] = {
    "PyTorch DataLoader": ("torch", check_data_loader),
    "torchdata": ("torchdata", check_torchdata),
    "Lightning": ("lightning", check_lightning),
    "Accelerate": ("accelerate", check_training(10)),
    "Hugging Face Trainer": ("transformers", check_training(30)),
    "grain": ("grain", check_grain),
    "JAX": ("jax", check_jax),
}


def program(section: str) -> Iterator[tuple[int, str]]:
    """The blocks of Python of a section, and the lines where they begin."""
    page = PAGE.read_text()
    start = page.index(f"\n## {section}\n") + 1
    end = page.find("\n## ", start)
    for block in re.finditer(r"```python\n(.*?)```", page[start : end if end > 0 else None], re.DOTALL):
        yield page[: start + block.start(1)].count("\n"), block[1]


def main(section: str) -> None:
    watch_training()
    names: Names = {"__name__": section}
    for line, block in program(section):
        exec(compile("\n" * line + block, str(PAGE), "exec"), names)  # noqa: S102 - it is our page
    CHECKS[section][1](names)


if __name__ == "__main__":
    main(sys.argv[1])
else:
    import pytest

    from .critics import make_games

    @pytest.fixture(scope="module")
    def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
        path = tmp_path_factory.mktemp("frameworks")
        make_games(path / "selfplay", sessions=3, games=200)
        return path

    def test_every_section_has_a_check() -> None:
        assert re.findall(r"^## (.*)$", PAGE.read_text(), re.MULTILINE) == [*CHECKS]

    @pytest.mark.slow
    @pytest.mark.parametrize("section", CHECKS)
    def test_program(directory: Path, section: str) -> None:
        for package in ("torch", CHECKS[section][0]):
            if not find_spec(package):
                pytest.skip(f"{package} is not installed")
        command = [sys.executable, "-P", __file__, section]  # -P: the folder has the names of packages
        ended = subprocess.run(
            command, cwd=directory, check=False, capture_output=True, text=True, timeout=200
        )
        assert ended.returncode == 0, ended.stderr
