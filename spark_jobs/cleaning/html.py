"""Main text of an HTML page, by resiliparse or trafilatura, in a process of its own with limits.

A page can hang an extractor or crash it (tags nested ten thousand deep, an attribute list of a megabyte),
and C code hears no exception. So each worker has one child that extracts: pages go in and texts come out
through pipes. A child that takes longer than the limit ends by its own alarm, which kills it within C code,
too; the next page gets a new one. When the worker dies, so does its child.
"""

from __future__ import annotations

import atexit
import re
import resource
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:  # the child starts in a tenth of the time without
    from bloomery.config.cleaning import Extractor as Name

FRAME = struct.Struct("<q")
"""Length of what follows; -1 for a page that the extractor refused."""
UNSEEN = re.compile(r'<span(?: class="(?:hljs-[\w -]*|token [\w -]*|[a-z]{1,2}\d?)")?>([^<\n\r][^<]*)</span>')
"""A span that only colours: without a class, or of a highlighter of code (highlight.js, Prism, Pygments)."""
MEMORY = 2 << 30
"""Bytes of address space that a child may take on top of its own."""


class ExtractionError(Exception):
    """A page has no text, for a rule: extract.time, extract.crash, extract.error."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(detail)
        self.rule = rule


class Extractor:
    """A child that extracts; started when it is needed."""

    def __init__(self, name: Name, seconds: float) -> None:
        self._command = [sys.executable, "-P", "-m", "spark_jobs.cleaning.html", name, str(seconds)]
        self._seconds = seconds
        self._child: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)

    def extract(self, page: str) -> str:
        """The main text of a page.

        Raises:
            ExtractionError: it took too long, crashed the extractor, or was refused by it.
        """
        child = self._child or self._start()
        assert child.stdin is not None and child.stdout is not None
        try:
            _write(child.stdin, page.encode("utf-8", "replace"))
            answer = _read(child.stdout)
        except (BrokenPipeError, EOFError):
            raise self._ended(child) from None
        if answer is None:
            raise ExtractionError("extract.error", "the extractor refused the page")
        return answer.decode("utf-8", "replace")

    def close(self) -> None:
        """Ends the child."""
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child = None

    def _start(self) -> subprocess.Popen[bytes]:
        self._child = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        return self._child

    def _ended(self, child: subprocess.Popen[bytes]) -> ExtractionError:
        status = child.wait()
        self.close()
        if status == -signal.SIGALRM:
            return ExtractionError("extract.time", f"more than {self._seconds:g} s")
        return ExtractionError("extract.crash", f"the extractor ended with status {status}")


@cache
def extractor(name: Name, seconds: float) -> Extractor:
    """The child of this worker."""
    return Extractor(name, seconds)


def _write(stream: IO[bytes], data: bytes | None) -> None:
    stream.write(FRAME.pack(-1 if data is None else len(data)) + (data or b""))
    stream.flush()


def _read(stream: IO[bytes]) -> bytes | None:
    head = stream.read(FRAME.size)
    if len(head) < FRAME.size:
        raise EOFError
    (size,) = FRAME.unpack(head)
    if size < 0:
        return None
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


def _resiliparse() -> Callable[[str], str | None]:
    from resiliparse.extract.html2text import extract_plain_text

    def extract(page: str) -> str:  # half of what it takes is per element, and a coloured page has many
        plain = UNSEEN.sub(r"\1", page)
        return extract_plain_text(plain, preserve_formatting=True, main_content=True, alt_texts=False)

    return extract


def _trafilatura() -> Callable[[str], str | None]:
    from trafilatura import extract

    return lambda page: extract(page, include_comments=False) or ""


def _serve(name: str, seconds: float) -> None:
    extract = {"resiliparse": _resiliparse, "trafilatura": _trafilatura}[name]()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    while True:
        try:
            page = _read(sys.stdin.buffer)
        except EOFError:
            return
        assert page is not None
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            text = extract(page.decode("utf-8", "replace"))
        except Exception:  # whatever the extractor raises, the page is what it does not take
            text = None
        signal.setitimer(signal.ITIMER_REAL, 0)
        _write(sys.stdout.buffer, None if text is None else text.encode("utf-8", "replace"))


if __name__ == "__main__":
    _serve(sys.argv[1], float(sys.argv[2]))
