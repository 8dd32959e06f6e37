"""Sizes of the report of small and large subjects, and the seconds that it takes.

Needs no GPU. The sections' pictures are speckle, which compresses worse than tissue: the sizes are
upper bounds.
"""

import argparse
import tempfile
import time
from pathlib import Path

from _common import save, scratch_folder
from _report_subject import Subject

EDGE = 384
"""Longest edge of the thumbnails that STITCH writes."""


def sizes(sections: int) -> dict[str, float]:
    """Of one subject's report and of what stands beside it, bytes."""
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as folder:
        subject = Subject(Path(folder), edge=EDGE).whole(sections)
        start = time.perf_counter()
        page = subject.report(run={"Nextflow": "24.10.0"})
        seconds = time.perf_counter() - start
        named = {path.name: path for path in page.parent.iterdir()}
        pictures = [path.stat().st_size for path in named["previews"].iterdir()]
        return {
            "html_bytes": page.stat().st_size,
            "json_bytes": named["report.json"].stat().st_size,
            "crate_bytes": named["ro-crate-metadata.json"].stat().st_size,
            "trace_bytes": named["report_trace.json.gz"].stat().st_size,
            "pictures": len(pictures),
            "picture_bytes": sum(pictures),
            "seconds": round(seconds, 2),
        }


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the small subject alone")
    quick = parser.parse_args().quick
    counts = [4] if quick else [4, 80]
    save("report", {"sections": {str(n): sizes(n) for n in counts}}, quick=quick)


if __name__ == "__main__":
    main()
