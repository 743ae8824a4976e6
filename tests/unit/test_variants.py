"""The variants of a comparison."""

from __future__ import annotations

import pytest

from tensorwire.bench.frame.variants import (
    PAIRS,
    REWRITES,
    config_arguments,
    parse_rewrites,
    settings,
)
from tensorwire.errors import UsageError


@pytest.mark.parametrize(
    ("protocols", "rewrites", "names"),
    [
        (("grpc", "grpc++"), (), ["grpc", "grpc++"]),
        (("grpc", "grpc++"), ("tensor_fuse",), ["grpc", "grpc++", "grpc++ fused"]),
        (("grpc++",), ("tensor_fuse",), ["grpc++", "grpc++ fused"]),
        (("grpc",), ("tensor_fuse",), ["grpc", "grpc fused"]),
        (("grpc++", "grpc"), ("tensor_fuse",), ["grpc++", "grpc", "grpc fused"]),
        (
            ("grpc", "grpc++"),
            ("unique_pull", "exact_rewrites"),
            ["grpc", "grpc++", "grpc++ unique pull", "grpc++ exact"],
        ),
        (
            ("grpc", "grpc++"),
            ("tensor_fuse+bfloat16", "exact_rewrites+float16"),
            ["grpc", "grpc++", "grpc++ fused bfloat16", "grpc++ exact float16"],
        ),
    ],
)
def test_each_rewrite_adds_the_last_protocol_once_more_and_leaves_the_others_stock(
    protocols: tuple[str, ...], rewrites: tuple[str, ...], names: list[str]
) -> None:
    chosen = settings(protocols, rewrites, "tcp")

    assert [each.name for each in chosen] == names
    assert [each.tensor_fuse for each in chosen] == ["fused" in n for n in names]
    assert {each.transport for each in chosen} == {"tcp"}


@pytest.mark.parametrize("rewrite", [*REWRITES, "bfloat16", "exact_rewrites+bfloat16"])
def test_any_two_variants_of_one_call_are_compared_once(rewrite: str) -> None:
    for protocols in (("grpc", "grpc++"), ("grpc++", "grpc"), ("grpc",), ("grpc++",)):
        names = {each.name for each in settings(protocols, (rewrite,))}
        compared = [frozenset(pair) for pair in PAIRS if set(pair) <= names]

        assert len(compared) == len(set(compared)) == len(names) * (len(names) - 1) / 2


def test_rewrites_are_parsed_and_unknown_ones_are_refused() -> None:
    assert parse_rewrites("tensor_fuse, unique_pull") == ("tensor_fuse", "unique_pull")
    assert parse_rewrites("all") == tuple(REWRITES)
    assert parse_rewrites("none") == parse_rewrites("") == ()
    assert parse_rewrites("bfloat16, exact_rewrites + float16") == (
        "bfloat16",
        "exact_rewrites+float16",
    )
    with pytest.raises(UsageError, match="unknown rewrite 'fuse'"):
        parse_rewrites("fuse")
    with pytest.raises(UsageError, match="twice"):
        parse_rewrites("bundles,bundles")


def test_rewrites_are_arguments_of_a_config_proto() -> None:
    assert config_arguments(("exact_rewrites", "bfloat16")) == {
        "exact_rewrites": True,
        "wire_dtype": "bfloat16",
    }
    assert config_arguments(()) == {}
