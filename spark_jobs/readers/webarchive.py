"""From the bytes of a WARC record to a document: pages and text of responses, text of conversions (WET)."""

from __future__ import annotations

from typing import Any

from spark_jobs.readers.documents import about, decoded
from spark_jobs.readers.fields import BadRecordError, Document, metadata

TYPES = {"response", "resource", "conversion"}
PAGES = {"text/html": "text/html", "application/xhtml+xml": "text/html", "text/plain": "text/plain"}
MAPPED = {"warc-record-id", "warc-target-uri", "warc-date", "content-length"}


def document(data: bytes, limit: int) -> Document:
    """The document that a record holds.

    Headers of the archive and of HTTP go into the metadata, so that an opt-out there is seen.

    Raises:
        BadRecordError: `warc.type`, `warc.media_type`: it holds none, as most do not (these two are no
            quarantine); `warc.syntax`, `warc.digest`, `encoding`, `record.too_long`: it is broken.
    """
    from fastwarc.warc import WarcRecord, has_block_digest

    try:
        record = WarcRecord.from_bytes(data)
        headers = {name.lower(): value for name, value in record.headers.items()}
        kind = headers.get("warc-type", "")
        if kind not in TYPES:
            raise BadRecordError("warc.type", kind or "a record of no type")
        if has_block_digest(record) and not record.verify_block_digest():
            raise BadRecordError("warc.digest", "the record is not what its WARC-Block-Digest was made of")
        http: dict[str, Any] = {}
        content_type, charset = headers.get("content-type", ""), None
        if record.is_http:
            record.parse_http(auto_decode="all")
            http = {name.lower(): value for name, value in record.http_headers.items()}
            content_type, charset = record.http_content_type or "", record.http_charset
        media_type = PAGES.get(content_type.partition(";")[0].strip().lower())
        if not media_type:
            raise BadRecordError("warc.media_type", content_type or "a payload of no declared type")
        body = record.reader.read(limit + 1)
    except (OSError, ValueError) as error:
        raise BadRecordError("warc.syntax", str(error)) from None
    if len(body) > limit:
        raise BadRecordError("record.too_long", f"the payload decodes to more than max_record_bytes {limit}")
    found = decoded(body, charset, markup=media_type == "text/html")
    said: dict[str, Any] = {name: value for name, value in headers.items() if name not in MAPPED}
    if http:
        said |= {"http_status": record.http_headers.status_code, "http_headers": http}
    return Document(
        found.utf8,
        headers.get("warc-target-uri"),
        headers.get("warc-record-id"),
        headers.get("warc-date"),
        None,
        metadata(said | about(*found[1:])),
        media_type,
    )
