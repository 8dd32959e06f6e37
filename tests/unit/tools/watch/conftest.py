"""A watcher whose workflow and judge are not real, and a clock that tests set."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from octane.tools.watch.folder import Folder
from octane.tools.watch.runs import RunEnd
from octane.tools.watch.state import Fault, Judgement
from octane.tools.watch.step import Options, Watch

TILES = ("y0_x0", "y0_x1", "y1_x0", "y1_x1")


@dataclass
class Workflow:
    """Runs that do nothing; ``answers`` are the ends of the next ones."""

    folder: Path
    outdir: Path
    held: bool = False
    runs: list = field(default_factory=list)
    answers: list = field(default_factory=list)

    @property
    def work(self):
        return self.outdir

    def is_busy(self):
        return self.held

    def run(self, key, number, sections):
        self.runs.append(sections and [*sections])
        answer = self.answers.pop(0) if self.answers else RunEnd(0, "")
        if isinstance(answer, BaseException):
            raise answer
        return answer


@dataclass
class Bench:
    """A folder, watchers of it, and what they say."""

    root: Path
    options: Options = field(default_factory=lambda: Options(settle=10.0, poll=1.0))
    now: float = 0.0
    faults: dict = field(default_factory=dict)
    told: list = field(default_factory=list)

    def __post_init__(self):
        self.tiles = self.root / "tiles"
        self.tiles.mkdir()
        self.workflow = Workflow(self.tiles, self.root / "out")

    def begin(self, **more):
        """A new watcher, as after a kill of the one before."""

        def judge(names, new, state):
            return {n: Judgement(names[n], None, None, self.faults.get(n, []), {}) for n in new}

        given = (self.options, Folder(self.tiles, **more), self.workflow, judge)
        own = Watch(*given, self.told.append, self.clock)  # ty: ignore - not the real workflow
        own.open()
        return own

    def clock(self):
        return self.now

    def write(self, section, names=TILES, content="voxels"):
        """Write tiles of a section."""
        for name in names:
            path = self.tiles / f"section_{section:02d}_{name}.tif"
            path.write_text(content, encoding="utf-8")

    def wait(self, watcher, seconds=11):
        """Poll now, and when files have been at rest."""
        watcher.poll()
        self.now += seconds
        watcher.poll()


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


@pytest.fixture
def odd():
    """A fault of a section."""
    return Fault("Tiles out of place", "Section 3, row 1, column 0 fits elsewhere.")
