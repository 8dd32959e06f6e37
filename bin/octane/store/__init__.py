"""OME-Zarr and ITK files, mosaic grids and sections."""

import sys
from importlib.util import find_spec, module_from_spec
from types import ModuleType


class _Deferred(ModuleType):
    """A package whose own code runs when something that it defines is first asked for."""

    def __getattr__(self, name: str) -> object:
        # As of any other module from now on.
        object.__setattr__(self, "__class__", ModuleType)
        spec = self.__spec__
        assert spec is not None
        assert spec.loader is not None
        spec.loader.exec_module(self)
        return getattr(self, name)


# Its own code loads all codecs, each of which takes as long as a small file's work.
if "numcodecs" not in sys.modules and (found := find_spec("numcodecs")) is not None:
    sys.modules["numcodecs"] = package = module_from_spec(found)
    object.__setattr__(package, "__class__", _Deferred)
