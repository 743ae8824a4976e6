"""The sizes of the tensors that clients of `bench serve` request."""

from __future__ import annotations

import numpy as np
import pytest

from tensorwire.bench.experiments.serve import PAYLOADS, payload_sizes


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("message_size", [1, 100, 4096])
def test_the_message_size_is_the_mean_and_every_tensor_has_something_in_it(
    payload: str, message_size: int
) -> None:
    sizes = payload_sizes(payload, message_size, count=100_000, seed=1)
    assert sizes.min() >= 1
    assert sizes.mean() == pytest.approx(message_size, rel=0.6 if message_size == 1 else 0.02)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_the_sizes_follow_from_the_seed(payload: str) -> None:
    sizes = payload_sizes(payload, 4096, count=1000, seed=7)
    assert np.array_equal(sizes, payload_sizes(payload, 4096, count=1000, seed=7))
    if payload != "uniform":
        assert not np.array_equal(sizes, payload_sizes(payload, 4096, count=1000, seed=8))


def test_uniform_is_one_size() -> None:
    assert set(payload_sizes("uniform", 4096, count=10, seed=1)) == {4096}


def test_random_goes_from_a_byte_to_twice_the_size() -> None:
    sizes = payload_sizes("random", 100, count=100_000, seed=1)
    assert (sizes.min(), sizes.max()) == (1, 199)


def test_skewed_is_mostly_small_and_few_large() -> None:
    sizes, counts = np.unique(
        payload_sizes("skewed", 1000, count=100_000, seed=1), return_counts=True
    )
    assert list(sizes) == [100, 1000, 6400]
    assert counts / 100_000 == pytest.approx([0.6, 0.3, 0.1], abs=0.01)


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown payload"):
        payload_sizes("lumpy", 4096, count=1, seed=1)
