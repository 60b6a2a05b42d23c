"""The flights as the processes of the job hand them on: ready to use, quick to load."""

import pickle
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Minutes = npt.NDArray[np.int64]


@dataclass(slots=True)
class Flights:
    """One entry a flight, in columns; times are minutes since the epoch (UTC).

    ``due`` is when the reminder was to go out, ``delay`` how late the flight left (0 where it left
    less than 15 minutes late, or not at all), ``cancelled`` whether it never left.
    """

    ids: list[str]
    bodies: list[bytes]
    due: Minutes
    news: Minutes
    delay: Minutes
    cancelled: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.ids)

    def save(self, path: Path) -> None:
        """Write the flights where :func:`read` finds them."""
        path.write_bytes(pickle.dumps(self, protocol=5))


def read(path: Path) -> Flights:
    """Return what :meth:`Flights.save` wrote; only for files of one's own."""
    flights: Flights = pickle.loads(path.read_bytes())
    return flights
