"""Models that the training benchmarks run, each with the data it is trained on."""

from tensorwire.bench.models import ctr, flights

MODELS = {model.name: model for model in (flights.MODEL, ctr.MODEL)}

__all__ = ["MODELS"]
