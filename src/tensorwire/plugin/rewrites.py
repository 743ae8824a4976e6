"""The settings by which a session and a process ask for rewrites of graphs; the plug-in reads both.

(native/tensorflow/graph_rewrite.h, fuse_pass.h, rewrite_pass.h, bundle_pass.h)
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Rewrite:
    """A rewrite of graphs, or several."""

    optimizer: str
    """The name of a custom optimizer in a session's RewriterConfig."""
    variable: str
    """Set to 1: in every session and function of the process."""

    def ask_for_it(self, config: Any) -> None:
        """Sessions with this ConfigProto rewrite; a TensorFlow that does not know it goes on."""
        config.graph_options.rewrite_options.custom_optimizers.add(name=self.optimizer)

    def is_asked_for(self, config: Any) -> bool:
        """Whether sessions with this ConfigProto, or None, rewrite in this process."""
        return any(each._is_switched_on(config) for each in (self, EXACT_REWRITES))

    def _is_switched_on(self, config: Any) -> bool:
        if os.environ.get(self.variable, "") not in ("", "0"):
            return True
        if config is None:
            return False
        custom = config.graph_options.rewrite_options.custom_optimizers
        return any(optimizer.name == self.optimizer for optimizer in custom)


TENSOR_FUSE = Rewrite("tensorwire_fuse", "TENSORWIRE_TENSOR_FUSE")
UNIQUE_PULL = Rewrite("tensorwire_unique_pull", "TENSORWIRE_UNIQUE_PULL")
SUMMED_PUSH = Rewrite("tensorwire_summed_push", "TENSORWIRE_SUMMED_PUSH")
BUNDLES = Rewrite("tensorwire_bundles", "TENSORWIRE_BUNDLES")
EXACT_REWRITES = Rewrite("tensorwire_exact_rewrites", "TENSORWIRE_EXACT_REWRITES")
"""All that leave every result as it is, bit by bit."""

REWRITES = {
    "tensor_fuse": TENSOR_FUSE,
    "unique_pull": UNIQUE_PULL,
    "summed_push": SUMMED_PUSH,
    "bundles": BUNDLES,
    "exact_rewrites": EXACT_REWRITES,
}
"""The arguments of a ConfigProto that ask for them."""
