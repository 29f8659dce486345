"""Public keys for which anybody can make signatures are nobody's."""

from __future__ import annotations

from pathlib import Path

import pytest

from onegraph.common import reasons
from onegraph.graph_cache.trust import ed25519, trust_list
from onegraph.graph_cache.trust.publishers import Publishers

PRIME = 2**255 - 19
D = -121665 * pow(121666, PRIME - 2, PRIME) % PRIME
Y8 = bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05")
WEAK = [
    number.to_bytes(32, "little").hex()
    for y in (0, 1, PRIME - 1, PRIME, PRIME + 1, int.from_bytes(Y8, "little"), PRIME - int.from_bytes(Y8, "little"))
    for number in (y, y + 2**255)
]  # fmt: skip


def doubled(x: int, y: int) -> tuple[int, int]:
    product = D * x * x * y * y % PRIME
    return (
        2 * x * y * pow(1 + product, PRIME - 2, PRIME) % PRIME,
        (y * y + x * x) * pow(1 - product, PRIME - 2, PRIME) % PRIME,
    )


@pytest.mark.parametrize("public", WEAK)
def test_points_of_small_order_are_no_keys(public: str, tmp_path: Path) -> None:
    y = int.from_bytes(bytes.fromhex(public), "little") % 2**255 % PRIME
    square = (y * y - 1) * pow(D * y * y + 1, PRIME - 2, PRIME) % PRIME
    x = pow(square, (PRIME + 3) // 8, PRIME)
    x = x if (x * x - square) % PRIME == 0 else x * pow(2, (PRIME - 1) // 4, PRIME) % PRIME
    assert (x * x - square) % PRIME == 0
    point = (x, y)
    for _ in range(3):
        point = doubled(*point)
    assert point == (0, 1)  # what these tests call weak is
    assert trust_list.add(Publishers(tmp_path), "eve", public) == reasons.WeakPublisherKey()
    forged = 31 * "00" + "00"
    for r in WEAK:
        assert not any(ed25519.is_signed(public, r + forged, bytes([n])) for n in range(8))


def test_other_keys_are_keys() -> None:
    for number in range(16):
        private = bytes([number]) * 32
        public = ed25519.public_key(private)
        assert not ed25519.is_weak(public)
        assert ed25519.is_signed(public, ed25519.sign(private, b"message"), b"message")
