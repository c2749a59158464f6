"""N-tuple networks: layout, files, look-up of values. Loads numba."""

from typing import TYPE_CHECKING

from tape2048.base.lazy import lazy

if TYPE_CHECKING:
    from tape2048.ntuple.network import (
        Network as Network,
        NetworkLayout as NetworkLayout,
        file_facts as file_facts,
        load_network as load_network,
        save_network as save_network,
    )
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
