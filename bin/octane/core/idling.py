"""How long nothing was computed, and what the workers did meanwhile.

With many workers the sums of their seconds do not tell how often nobody computed: one may decode
while another's tile is computed. What does is the time in which none of them computes, or waits for
a GPU to, shared out among what each of them did in it.
"""

from threading import Lock

__all__ = ["COMPUTE", "Idling"]

COMPUTE = "compute"
"""The stage that must not stand still."""


class Idling:
    """A clock that runs while no thread computes; threads share it.

    Parameters
    ----------
    now
        When it begins to run, seconds of :func:`time.perf_counter` as all others here.
    """

    def __init__(self, now: float) -> None:
        self._passed, self._since, self._computing = 0.0, now, 0
        self._lock = Lock()

    def at(self, now: float) -> float:
        """Seconds in which nothing was computed, until now."""
        return self.turn(now, leaves=False, enters=False)

    def turn(self, now: float, *, leaves: bool, enters: bool) -> float:
        """A thread goes from one stage to another; gives the seconds until then.

        Parameters
        ----------
        now
            When.
        leaves, enters
            Whether the one or the other is :data:`COMPUTE`.
        """
        with self._lock:
            passed = self._passed
            if not self._computing:
                # A thread may have looked at the clock before another, and come after it.
                passed += max(0.0, now - self._since)
            if leaves != enters:
                self._passed, self._since = passed, now
                self._computing += enters - leaves
            return passed
