"""Signatures that others can check: ed25519, by the package `cryptography`, which is imported only here and late."""

from __future__ import annotations

_PRIME = 2**255 - 19
# The y coordinates of the points whose order divides 8; the first two have order 8. With such a public key, signatures
# are right for messages that nobody signed.
_Y8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_SMALL_ORDER = frozenset((_Y8, _PRIME - _Y8, 0, 1, _PRIME - 1))


class NoCryptographyError(ImportError):
    """The package `cryptography` cannot be imported."""


def public_key(private: bytes) -> str:
    """Derive the public key, 64 hex digits, of a private key of 32 bytes. Raises NoCryptographyError."""
    require()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw().hex()


def sign(private: bytes, message: bytes) -> str:
    """Sign a message: 128 hex digits. Raises NoCryptographyError."""
    require()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(private).sign(message).hex()


def is_signed(public: str, signature: str, message: bytes) -> bool:
    """Tell whether a signature is that of a public key over a message. Raises NoCryptographyError."""
    require()
    if is_weak(public):
        return False
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(bytes.fromhex(signature), message)
    except (InvalidSignature, ValueError):
        return False
    return True


def is_weak(public: str) -> bool:
    """Tell whether a public key, 64 hex digits, is one of those whose signatures prove nothing, or is written oddly."""
    y = int.from_bytes(bytes.fromhex(public), "little") & (2**255 - 1)
    return y >= _PRIME or y in _SMALL_ORDER


def require() -> None:
    """Raise NoCryptographyError where the package cannot be imported."""
    try:
        import cryptography.hazmat.primitives.asymmetric.ed25519  # noqa: F401
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a half-installed one ends in a panic of its native part, which is no Exception
        raise NoCryptographyError("cryptography") from error
