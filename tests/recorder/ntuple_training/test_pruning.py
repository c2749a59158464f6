"""Pruning: what is counted, how it is rounded, and that the file fits."""

import math
from collections import Counter

import numpy as np
import pytest
from tests import reference

from tape2048.errors import ConfigError
from tape2048.ntuple.network import Network, NetworkLayout, file_bytes, load_network, save_network
from tape2048_recorder.evaluation.evaluated_games import play_games
from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.ntuple_training.pruning import count_lookups, pruned, rounded
from tape2048_recorder.players.ntuple import of_network

from ..ntuple_training import slow


def afterstates(cells: list[int]) -> list[list[int]]:
    return [reference.slide(cells, move)[0] for move in reference.legal_moves(cells)]


def entries(network: Network, cells: list[int]) -> list[int]:
    return [place for places in slow.entries_of(network.layout, cells) for place in places]


def test_look_ups_of_afterstates_are_counted() -> None:
    network = slow.random_network(*slow.FAST, dtype=np.int16)
    counts = count_lookups(network, games=2, seed=5, threads=1)
    player = of_network(network, mix="0:1+16:1", downgrade=network.downgrade)
    boards = play_games(player, game_seeds(5, np.arange(2, dtype=np.uint64)), stride=1, threads=2).boards
    certain: Counter[int] = Counter()
    possible: Counter[int] = Counter()
    for board in boards:
        for after in afterstates(reference.unpack(int(board))):
            certain.update(entries(network, after))
            for cell in reference.empty_cells(after):
                for exponent in (1, 2):
                    spawned = [*after[:cell], exponent, *after[cell + 1 :]]
                    for answer in afterstates(spawned):
                        possible.update(entries(network, answer))
    seen = {int(place): int(counts[place]) for place in np.flatnonzero(counts)}
    assert set(certain) <= set(seen) <= set(certain) | set(possible)
    assert all(seen[place] >= count for place, count in certain.items())
    assert any(place not in certain for place in seen), "one of the spawns was followed"
    again = count_lookups(network, games=2, seed=5, threads=2)
    assert np.array_equal(counts, again)


def test_rare_entries_are_rounded_coarsely() -> None:
    layout = NetworkLayout.of(["0123"])
    values = np.random.default_rng(3).integers(-32767, 32768, layout.entries).astype(np.int16)
    values[:4] = 32767, -32767, 0, 1
    counts = np.random.default_rng(4).choice([0, 1, 10, 1000, 10**6], layout.entries).astype(np.uint32)
    counts[:4] = 0
    network = Network(layout, values, np.array([[2.0]], np.float32))
    found = rounded(network, counts, 100.0).table.astype(int)
    for count in (0, 1, 10, 1000, 10**6):
        step = 2 ** min(max(round(math.log2(50 / math.sqrt(count + 1 / 16))), 0), 14)
        these = counts == count
        assert not (found[these] % step).any()
        assert abs(found[these] - values[these])[abs(values[these]) < 32000].max(initial=0) <= step / 2
        assert abs(found[these] - values[these]).max() < step
    assert (np.sign(found) * np.sign(values) >= 0).all()
    coarsest = rounded(network, counts, 1e12).table
    assert set(coarsest.tolist()) == {-16384, 0, 16384}, "what does not fit into an int16 is rounded down"
    assert np.array_equal(rounded(network, counts, 1e-9).table, values)


def test_pruning_fits_the_size_and_keeps_values() -> None:
    network = slow.random_network(*slow.FAST, dtype=np.int16)
    counts = count_lookups(network, games=15, seed=5, threads=2)
    whole = file_bytes(network)
    found = pruned(network, counts, whole // 2)
    assert whole / 2 * 0.75 < file_bytes(found) <= whole / 2
    player = of_network(network)
    boards = play_games(player, game_seeds(9, np.arange(8, dtype=np.uint64)), stride=7, threads=1).boards
    before, after = network.values(boards), found.values(boards)
    assert abs(after - before).mean() < 0.05 * before.std()
    assert found.facts == network.facts
    assert pruned(network, counts, whole + 1000).table.tobytes() == network.table.tobytes()


def test_what_cannot_be_pruned_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    network = slow.random_network("0123", dtype=np.float32)
    counts = np.zeros(network.layout.entries, np.uint32)
    with pytest.raises(ConfigError, match="float32, expected int16"):
        pruned(network, counts, 10**6)
    fast = load_network("fast")
    with pytest.raises(ConfigError, match="expected at most 200") as caught:
        pruned(fast, np.ones(fast.layout.entries, np.uint32), 200)
    assert "fewer stages" in (caught.value.hint or "")
    path = tmp_path_factory.mktemp("pruned") / "network.ntuple"
    assert save_network(fast, path) == file_bytes(fast) == path.stat().st_size
