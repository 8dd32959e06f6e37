"""Which GPU a request gets, or why none: pure functions of what is seen at one moment.

**Slots.** A GPU takes as many leases as its holders and the request all allow.

**Memory.** What counts as free is NVML's free memory, less what holders reserved and have not
allocated yet. A holder whose memory NVML does not show is taken to have allocated nothing, so a
promise is never given twice.

**Other processes.** While processes without a lease are on a GPU, it is passed over when its free
memory is below 1.5 times the request or its utilisation above 90 %: such processes can grow. Where
NVML does not list them, memory alone decides.

**Order.** First come, first served, with one exception that costs nobody anything: a later request
goes ahead where it does not make an earlier one wait longer. Each earlier request that could go now
is treated as gone already. Each that could not claims one GPU, and onto that GPU a later request
comes only if the claimant still fits as soon as those leave who held it before the claimant came.
Leases that were granted after that are taken to stay forever, so a stream of small requests cannot
starve a large one: the leases it has to wait for only become fewer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from octane.gpu.inventory import Gpu, named

__all__ = ["Decision", "Holder", "Load", "Request", "decide"]

CROWDED = 1.5
"""Free memory over the request that is asked for beside processes without a lease."""

BUSY = 90
"""Percent of utilisation above which a GPU with processes without a lease is passed over."""


@dataclass(frozen=True)
class Holder:
    """A lease that is held.

    Attributes
    ----------
    reserved : int
        Bytes that it was promised.
    allocated : int or None
        Bytes of them that NVML shows it to use; None where NVML does not show it.
    slots : int
        How many leases it allows on its GPU, its own among them.
    since : float
        When it was granted, on the clock of :attr:`Request.arrived`.
    """

    reserved: int
    allocated: int | None = None
    slots: int = 1
    since: float = 0.0

    @property
    def pending(self) -> int:
        """Bytes that are promised and not yet allocated."""
        return max(0, self.reserved - (self.allocated or 0))


@dataclass(frozen=True)
class Load:
    """A GPU, who holds leases on it, and how many processes without a lease NVML shows."""

    gpu: Gpu
    holders: tuple[Holder, ...] = ()
    others: int = 0

    @property
    def available(self) -> int:
        """Bytes that can be promised."""
        return max(0, self.gpu.free - sum(holder.pending for holder in self.holders))


@dataclass(frozen=True)
class Request:
    """What a taker asks for.

    Attributes
    ----------
    required : int
        Bytes.
    slots : int
        How many leases it allows on its GPU, its own among them.
    uuids : collection of str
        The GPUs that it may use.
    arrived : float
        When it came, seconds; smaller is earlier.
    """

    required: int
    slots: int
    uuids: Collection[str]
    arrived: float


@dataclass(frozen=True)
class Decision:
    """What becomes of a request.

    Attributes
    ----------
    gpu : Gpu or None
        The one to take.
    reasons : mapping of str to str
        Why not the others, by UUID, of those that it may use.
    available : int
        Bytes that can be promised on the best of them.
    possible : bool
        Whether waiting can help: False where no GPU that it may use is large enough.
    """

    gpu: Gpu | None
    reasons: Mapping[str, str]
    available: int
    possible: bool


@dataclass(frozen=True)
class _Claim:
    """A request that waits for a GPU, and whether it counts on memory that NVML does not show."""

    request: Request
    hopeful: bool


@dataclass
class _Place:
    """A GPU while requests are placed: what is held, promised to earlier ones, and claimed."""

    load: Load
    promised: list[Request] = field(default_factory=list)
    claims: list[_Claim] = field(default_factory=list)

    def needed(self, request: Request) -> float:
        return request.required * (CROWDED if self.load.others else 1)

    def obstacle(self, request: Request) -> str | None:
        """Why a request cannot go here now."""
        gpu = self.load.gpu
        if gpu.fault is not None:
            return f"NVML reports: {gpu.fault}"
        if gpu.total < request.required:
            return f"has {_gb(gpu.total)} in all"
        taken = len(self.load.holders) + len(self.promised)
        allowed = min(
            request.slots,
            *(holder.slots for holder in self.load.holders),
            *(earlier.slots for earlier in self.promised),
        ) if taken else request.slots  # fmt: skip
        if taken >= allowed:
            held = len(self.load.holders)
            if held > allowed:
                return f"{held} leases there, {allowed} allowed"
            return f"{held} of {allowed} slots taken" if held == allowed else "an earlier one goes"
        free = self.load.available - sum(earlier.required for earlier in self.promised)
        if free < self.needed(request):
            beside = f", and {_others(self.load.others)} there" if self.load.others else ""
            return f"{_gb(max(0, free))} to give{beside}; needs {_gb(self.needed(request))}"
        if self.load.others and (gpu.utilisation or 0) > BUSY:
            return f"{gpu.utilisation} % busy, and {_others(self.load.others)} there"
        # What an earlier one needs beside other processes is more than what it will take.
        spare = free - request.required
        if any(spare + earlier.required < self.needed(earlier) for earlier in self.promised):
            return "kept for an earlier request"
        if not all(self.drained(claim, beside=[request]) for claim in self.claims):
            return "kept for an earlier request"
        return None

    def drained(
        self, claim: _Claim, beside: Sequence[Request] = (), *, all_leave: bool = False
    ) -> bool:
        """Whether a claimant fits once those leave who were here before it (or all)."""
        holders, claimant = self.load.holders, claim.request
        staying = [h for h in holders if h.since > claimant.arrived and not all_leave]
        leaving = [h for h in holders if h.since <= claimant.arrived or all_leave]
        others_claims = [other.request for other in self.claims if other is not claim]
        coming = [*self.promised, *others_claims, *beside]
        allowed = min([claimant.slots, *(n.slots for n in staying), *(n.slots for n in coming)])
        if len(staying) + len(coming) >= allowed:
            return False
        gpu, others = self.load.gpu, self.load.others
        if others and not leaving and (gpu.utilisation or 0) > BUSY:
            return False
        freed = sum(
            h.reserved if h.allocated is None and claim.hopeful else h.allocated or 0
            for h in leaving
        )
        free = min(gpu.total, gpu.free + freed)
        free -= sum(h.pending for h in staying) + sum(n.required for n in coming)
        return free >= self.needed(claimant)


def decide(loads: Sequence[Load], request: Request, earlier: Sequence[Request] = ()) -> Decision:
    """Decide on a request.

    Parameters
    ----------
    loads : sequence of Load
        All GPUs.
    request : Request
        The one to decide on.
    earlier : sequence of Request
        Those that wait and came before it.

    Returns
    -------
    Decision
        A grant is meant for this moment alone: it has to be recorded before the next decision.
    """
    places = {load.gpu.uuid: _Place(load) for load in loads}
    for waiting in sorted(earlier, key=lambda one: one.arrived):
        place, _ = _pick(places, waiting)
        if place is not None:
            place.promised.append(waiting)
            continue
        _claim(places, waiting)
    place, reasons = _pick(places, request)
    own = [places[uuid] for uuid in request.uuids if uuid in places]
    return Decision(
        gpu=None if place is None else place.load.gpu,
        reasons=reasons,
        available=max((one.load.available for one in own), default=0),
        # A GPU with a fault shows no memory; it may come back.
        possible=any(
            one.load.gpu.fault is not None or one.load.gpu.total >= request.required for one in own
        ),
    )


def _pick(places: Mapping[str, _Place], request: Request) -> tuple[_Place | None, dict[str, str]]:
    """The place that suits best, and why not the others."""
    reasons: dict[str, str] = {}
    fitting: list[_Place] = []
    for uuid, place in places.items():
        if uuid not in request.uuids:
            continue
        obstacle = place.obstacle(request)
        if obstacle is None:
            fitting.append(place)
        else:
            reasons[uuid] = obstacle
    if not fitting:
        return None, reasons
    # Spread first; then leave the GPU with more memory to those who need it.
    best = min(
        fitting,
        key=lambda place: (
            len(place.load.holders) + len(place.promised),
            place.load.others,
            place.load.available,
            place.load.gpu.index,
        ),
    )
    for place in fitting:
        if place is not best:
            reasons[place.load.gpu.uuid] = f"would do; {named(best.load.gpu)} suits better"
    return best, reasons


def _claim(places: Mapping[str, _Place], waiting: Request) -> None:
    """Let a request that cannot go now wait for one GPU, the likeliest to come free."""
    open_to = [
        place
        for uuid, place in places.items()
        if uuid in waiting.uuids and place.load.gpu.fault is None
    ]
    open_to.sort(key=lambda place: (len(place.load.holders), place.load.gpu.index))
    # A holder that NVML does not show (in a container, or only just begun) may leave memory behind
    # or none: that is counted on only where nothing else is left to wait for.
    for hopeful in (False, True):
        claim = _Claim(waiting, hopeful)
        for all_leave in (False, True):
            for place in open_to:
                if place.drained(claim, all_leave=all_leave):
                    place.claims.append(claim)
                    return


def _others(count: int) -> str:
    return "another process is" if count == 1 else f"{count} other processes are"


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
