"""Packages of others whose modules are loaded one by one."""

import sys
from importlib.util import find_spec, module_from_spec
from types import ModuleType


class _Deferred(ModuleType):
    def __getattr__(self, name: str) -> object:
        # As of any other module from now on.
        object.__setattr__(self, "__class__", ModuleType)
        spec = self.__spec__
        assert spec is not None
        assert spec.loader is not None
        spec.loader.exec_module(self)
        return getattr(self, name)


def defer(name: str) -> None:
    """Let modules of a package be imported without all others, which its own code imports.

    That code runs when something that it defines is first asked for.
    """
    if name not in sys.modules and (spec := find_spec(name)) is not None:
        sys.modules[name] = package = module_from_spec(spec)
        object.__setattr__(package, "__class__", _Deferred)
