"""Main text of HTML documentation pages by the stage's extractor, child process and pipes included, against
trafilatura in this process, each by the CPU seconds of all that takes part. `make bench-extraction`

The pages are the HTML files of this machine's documentation and Python distributions; where there are too
few, pages are made of the documentation of the Python standard library, as pydoc renders it.
"""

from __future__ import annotations

import os
import pydoc
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from benchmarks.claims import Claim, report  # noqa: E402
from spark_jobs.cleaning.html import Extractor  # noqa: E402

FOLDERS = (Path("/usr/share/doc"), Path(sysconfig.get_path("purelib")))
PAGES, FEWEST = 400, 200
PASSES = 3
"""Of each, in turn; the least of their CPU seconds counts, as other load on the machine only adds."""
SMALLEST, LARGEST = 4_000, 400_000
MODULES = """
    argparse ast asyncio bisect calendar cmd codecs collections configparser contextlib copy csv ctypes
    datetime decimal difflib email enum fractions ftplib functools gzip hashlib heapq html http.client
    imaplib inspect io ipaddress json locale logging mailbox math mimetypes multiprocessing netrc numbers
    optparse os pathlib pdb pickle platform plistlib poplib pprint queue random re sched secrets selectors
    shelve shlex shutil smtplib socket sqlite3 ssl statistics string struct subprocess tarfile tempfile
    textwrap threading timeit tkinter token trace traceback turtle types typing unittest urllib.parse uuid
    venv warnings wave weakref xml.dom.minidom xmlrpc.client zipfile
"""


def pages() -> tuple[str, list[str]]:
    """What the pages are, and the pages."""
    found = []
    for folder in FOLDERS:
        for path in sorted((*folder.rglob("*.html"), *folder.rglob("*.htm"))):
            if path.is_file() and SMALLEST <= path.stat().st_size <= LARGEST:
                found.append(path)
    if len(found) >= FEWEST:
        chosen = found[:: max(1, len(found) // PAGES)][:PAGES]
        return "HTML files of this machine", [path.read_text(errors="replace") for path in chosen]
    return "pydoc's pages of the standard library", [
        pydoc.HTMLDoc().page(name, pydoc.HTMLDoc().document(pydoc.locate(name), name))
        for name in MODULES.split()
    ]


def cpu_seconds() -> float:
    """CPU seconds of this process and of its children."""
    tree = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(sum(process.cpu_times()[:2]) for process in tree)


def measured(texts: list[str], extract: Callable[[str], object]) -> float:
    """CPU seconds, once what extracts has started."""
    extract(texts[0])
    began = cpu_seconds()
    for text in texts:
        extract(text)
    return cpu_seconds() - began


def main() -> None:
    """Measures both and reports."""
    import trafilatura

    what, texts = pages()
    size = sum(len(text.encode("utf-8", "replace")) for text in texts) / 1e6
    print(f"{len(texts)} pages, {size:.1f} MB: {what}; load {os.getloadavg()[0]:.1f}")
    extractor = Extractor("resiliparse", 60)
    passes = [
        (measured(texts, extractor.extract), measured(texts, trafilatura.extract)) for _ in range(PASSES)
    ]
    extractor.close()
    ours, peer = (size / min(seconds) for seconds in zip(*passes, strict=True))
    report("extraction", [Claim("extraction_mb_per_cpu_second", ours, 15.0, peer, less_is_better=False)])


if __name__ == "__main__":
    main()
