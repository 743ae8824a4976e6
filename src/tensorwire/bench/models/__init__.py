"""Models of the training benchmarks, each with its training data."""

from tensorwire.bench.models import behaviours, criteo, ctr, flights

MODELS = {
    model.name: model for model in (flights.MODEL, ctr.MODEL, *criteo.MODELS, behaviours.MODEL)
}

__all__ = ["MODELS"]
