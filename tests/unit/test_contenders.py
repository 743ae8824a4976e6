"""The contenders of a comparison."""

from __future__ import annotations

import pytest

from tensorwire.measure.contenders import PAIRS, Setting, contenders


@pytest.mark.parametrize(
    ("protocols", "tensor_fuse", "names"),
    [
        (("grpc", "grpc++"), False, ["grpc", "grpc++"]),
        (("grpc", "grpc++"), True, ["grpc", "grpc++", "grpc++ fused"]),
        (("grpc++",), True, ["grpc++", "grpc++ fused"]),
        (("grpc",), True, ["grpc", "grpc fused"]),
        (("grpc++", "grpc"), True, ["grpc++", "grpc", "grpc fused"]),
    ],
)
def test_fusion_adds_the_last_protocol_once_more_and_leaves_the_others_stock(
    protocols: tuple[str, ...], tensor_fuse: bool, names: list[str]
) -> None:
    chosen = contenders(protocols, Setting(tensor_fuse=tensor_fuse, transport="tcp"))

    assert [contender.name for contender in chosen] == names
    assert [contender.setting.tensor_fuse for contender in chosen] == ["fused" in n for n in names]
    assert {contender.setting.transport for contender in chosen} == {"tcp"}


def test_any_two_contenders_of_one_call_are_compared_once() -> None:
    for protocols in (("grpc", "grpc++"), ("grpc++", "grpc"), ("grpc",), ("grpc++",)):
        names = {contender.name for contender in contenders(protocols, Setting(tensor_fuse=True))}
        compared = [frozenset(pair) for pair in PAIRS if set(pair) <= names]

        assert len(compared) == len(set(compared)) == len(names) * (len(names) - 1) / 2
