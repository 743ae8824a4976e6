"""The rules: every module of this folder is imported, and registers its own (`doctor/rule.py`)."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
