"""N-tuple networks: layout, files, look-up of values. Loads numba.

- `NetworkLayout`: tuples, stages and sizes of a network.
- `Network`: a network in memory.
- `file_facts`: the size and SHA-256 of a network file.
- `load_network`: loads a network for play.
- `save_network`: writes a network file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tape2048.base.lazy import lazy

if TYPE_CHECKING:
    from tape2048.ntuple.files import file_facts as file_facts
    from tape2048.ntuple.files import load_network as load_network
    from tape2048.ntuple.files import save_network as save_network
    from tape2048.ntuple.layout import NetworkLayout as NetworkLayout
    from tape2048.ntuple.network import Network as Network
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__, layout="NetworkLayout", network="Network", files="file_facts load_network save_network"
    )
