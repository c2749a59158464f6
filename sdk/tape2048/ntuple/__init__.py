"""N-tuple networks: layout, files, look-up of values. Loads numba."""

from typing import TYPE_CHECKING

from tape2048.base.lazy import lazy

if TYPE_CHECKING:
    from tape2048.ntuple.files import (
        file_facts as file_facts,
        load_network as load_network,
        save_network as save_network,
    )
    from tape2048.ntuple.layout import NetworkLayout as NetworkLayout
    from tape2048.ntuple.network import Network as Network
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
