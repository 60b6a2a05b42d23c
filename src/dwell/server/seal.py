"""The seal: makes the receipts of a server impossible to predict."""

from hashlib import blake2b

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB

from dwell.message import U64

_NUMBER = np.uint64(0xFFFF_FFFF_0000_0000)
_HALF = np.uint64(0xFFFF_FFFF_FFFF)
_16 = np.uint64(16)
_48 = np.uint64(48)
_ROUNDS = tuple(np.uint64(at << 48) for at in range(4))


class Seal:
    """A permutation of receipts; making or undoing it takes the secret.

    A plain receipt says where its message lies and how often it was taken, which a stranger can
    guess. The store's number, the upper half of the first word, stays; the other 96 bits go through
    a Feistel network of four rounds, with AES-128 as the function of each (Luby and Rackoff, "How
    to Construct Pseudorandom Permutations from Pseudorandom Functions", 1988). So the chance that
    an invented receipt is valid is the number of messages under lease in 2**96.
    """

    def __init__(self, secret: bytes) -> None:
        key = blake2b(secret, digest_size=16, person=b"dwell receipts").digest()
        # This mode encrypts each block independently, so one encryptor serves for all.
        self._cipher = Cipher(AES(key), ECB()).encryptor()

    def closed(self, receipts: U64) -> U64:
        """Return receipts, shape (n, 2), as strangers may see them."""
        number, left, right = _halves(receipts)
        for place in _ROUNDS:
            left, right = right, left ^ self._mixed(number, right, place)
        return _whole(number, left, right)

    def opened(self, receipts: U64) -> U64:
        """Undo :meth:`closed`; what an invented receipt becomes, nobody can choose."""
        number, left, right = _halves(receipts)
        for place in reversed(_ROUNDS):
            left, right = right ^ self._mixed(number, left, place), left
        return _whole(number, left, right)

    def _mixed(self, number: U64, half: U64, place: np.uint64) -> U64:
        blocks = np.empty((len(half), 2), np.uint64)
        blocks[:, 0] = half | place
        blocks[:, 1] = number
        mixed: U64 = np.frombuffer(self._cipher.update(blocks.tobytes()), np.uint64)[::2] & _HALF
        return mixed


def _halves(receipts: U64) -> tuple[U64, U64, U64]:
    """Return the store's number, in its place, and the two halves of the other bits."""
    first, second = receipts[:, 0], receipts[:, 1]
    left = (first & ~_NUMBER) << _16 | second >> _48
    return first & _NUMBER, left, second & _HALF


def _whole(number: U64, left: U64, right: U64) -> U64:
    receipts = np.empty((len(number), 2), np.uint64)
    receipts[:, 0] = number | left >> _16
    receipts[:, 1] = left << _48 | right
    return receipts
