"""From stored to decoded bytes, through damage: what can be decoded is, and what cannot is named.

A compressed file is a row of **members** (gzip members, zstd frames, xz streams, bzip2 blocks), each of which
decodes by itself:

    stored     [member 0 ][member 4711 ][###### garbage ######][member 9000 ]
    decoded    Chunk...    Chunk...     Gap "4800..9000"         Chunk...

A place in the decoded bytes is (member, offset): the stored byte at which the member begins, and the number
of decoded bytes after its first. So a reader that begins at a member names the same places as one that began
at 0.

After damage in a member the next one is found by its magic number, and taken for one only when it decodes
to its end: magic numbers are short and stand in other data, too. Checksums are verified before anything is
handed out for members of up to VERIFIED bytes; a longer one streams, so a wrong checksum at its end leaves a
mark only.
"""

from __future__ import annotations

import bz2
import lzma
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from spark_jobs.readers.listing import File
from spark_jobs.readers.storage import ReadError, Stored

BLOCK = 1 << 18
VERIFIED = 4 << 20
ZSTD_WINDOW = 128 << 20
XZ_MEMORY = 512 << 20


class Place(NamedTuple):
    """Where a decoded byte stands."""

    member: int | None
    """Stored byte at which its member begins; null in a file that is not compressed."""
    offset: int
    """Decoded bytes before it: in its member, or else in the file."""

    @property
    def stored(self) -> int:
        """A place in the stored bytes that grows with this one."""
        return self.offset if self.member is None else self.member


class Chunk(NamedTuple):
    """Decoded bytes, and where the first one stands."""

    place: Place
    data: bytes


class Gap(NamedTuple):
    """Something that cannot be read, after all that came before it."""

    place: Place
    length: int
    """Decoded bytes in it: of a member with a wrong checksum, or beyond a file's sudden end; else 0."""
    rule: str
    detail: str


class DamageError(Exception):
    """Inside this module: a member that does not decode to its end."""

    def __init__(self, detail: str, checksum: bool = False) -> None:
        super().__init__(detail)
        self.checksum = checksum
        """Whether it did decode, but to something else than was packed."""


class Codec(Protocol):
    """A compressed format, seen as a row of members."""

    @property
    def name(self) -> str:
        """Of the format."""

    def member(self, stored: Stored, start: int) -> Member:
        """The member at `start`."""

    def candidates(self, stored: Stored, start: int, stop: int) -> Iterator[int]:
        """Where a member may begin, in [start, stop): sorted, and holding each place where one does."""


class Member(Protocol):
    """Iterates over a member's decoded blocks, which raises DamageError; `end` is where it ended."""

    end: int

    def __iter__(self) -> Iterator[bytes]: ...


def decoded(stored: Stored, codec: Codec | None, start: int = 0) -> Iterator[Chunk | Gap]:
    """Everything from the stored byte `start` on, where a member begins."""
    if codec is None:
        yield from _plain(stored, start)
        return
    position = _after_padding(stored, start)
    while position < stored.size:
        begin, offset = position, 0
        member = codec.member(stored, begin)
        held: list[bytes] = []  # until the member is verified, or longer than VERIFIED
        size = 0
        try:
            for block in member:
                size += len(block)
                held.append(block)
                if size > VERIFIED:
                    yield from _chunks(begin, offset, held)
                    offset, held = size, []
            yield from _chunks(begin, offset, held)
            position = _after_padding(stored, member.end)
        except DamageError as damage:
            trusted = not damage.checksum
            if trusted:
                yield from _chunks(begin, offset, held)
                offset = size
            position = _resync(stored, codec, begin + 1)
            unverified = f" ({offset} decoded bytes were read unverified)" if offset and not trusted else ""
            detail = f"broken {codec.name}: {damage}{unverified}: compressed bytes {begin}..{position}"
            yield Gap(Place(begin, offset), size - offset, "file.broken", detail)
        except ReadError as error:
            yield from _chunks(begin, offset, held)
            yield Gap(Place(begin, size), 0, error.rule, error.detail)
            return


def head(stored: Stored, codec: Codec | None, size: int) -> bytes:
    """The first `size` decoded bytes, fewer where there are fewer or damage comes before."""
    if codec is None:
        return stored.read_at(0, size)
    found, position = b"", 0
    try:
        while len(found) < size and position < stored.size:
            member = codec.member(stored, position)
            for block in member:
                found += block
                if len(found) >= size:
                    break
            position = member.end
    except DamageError:
        pass
    return found[:size]


def read_whole(file: File) -> bytes:
    """All decoded bytes of a small file.

    Raises:
        ReadError: it cannot be read, or is broken.
    """
    with Stored(file) as stored:
        parts = []
        for event in decoded(stored, codec_of(stored)):
            if isinstance(event, Gap):
                raise ReadError(event.rule, f"{file.uri}: {event.detail}")
            parts.append(event.data)
    return b"".join(parts)


def first_member(stored: Stored, codec: Codec, start: int, stop: int, enough: int) -> int | None:
    """First place in [start, stop) from which a member decodes to its end, or to `enough` bytes."""
    for place in codec.candidates(stored, start, stop):
        size = 0
        try:
            for block in codec.member(stored, place):
                size += len(block)
                if size >= enough:
                    break
        except DamageError:
            continue
        return place
    return None


def _resync(stored: Stored, codec: Codec, start: int) -> int:
    found = first_member(stored, codec, start, stored.size, stored.size << 20)
    return stored.size if found is None else found


def _chunks(member: int, offset: int, blocks: list[bytes]) -> Iterator[Chunk]:
    for block in blocks:
        if block:
            yield Chunk(Place(member, offset), block)
            offset += len(block)


def _plain(stored: Stored, start: int) -> Iterator[Chunk | Gap]:
    for position in range(start, stored.size, BLOCK):
        try:
            data = stored.read_at(position, BLOCK)
        except ReadError as error:
            yield Gap(Place(None, position), stored.size - position, error.rule, error.detail)
            return
        yield Chunk(Place(None, position), data)


def _after_padding(stored: Stored, position: int) -> int:
    """Behind the NULs that tapes and xz streams are padded with."""
    while (data := stored.read_at(position, 1)) == b"\0":
        data = stored.read_at(position, BLOCK)
        position += len(data) - len(data.lstrip(b"\0"))
    return position


# ---------------------------------------------------------------- gzip, zstd, xz: formats of whole bytes
class Decompressor(Protocol):
    """What zlib, lzma and zstandard agree on."""

    eof: bool
    unused_data: bytes

    def decompress(self, data: bytes) -> bytes:
        """Everything that `data` adds."""


@dataclass(frozen=True)
class Stream:
    """A codec whose members begin at a byte with a magic number."""

    name: str
    magic: tuple[bytes, ...]
    step: int
    """Stored bytes given at once: few enough that what comes out is of bounded size."""
    decompressor: Callable[[], Any]
    errors: tuple[type[Exception], ...]
    checksum: tuple[str, ...] = ()
    """How an error ends when all was decoded and only the checksum is wrong."""

    def member(self, stored: Stored, start: int) -> Member:
        """The member at `start`."""
        return _StreamMember(self, stored, start)

    def candidates(self, stored: Stored, start: int, stop: int) -> Iterator[int]:
        """Where the magic number stands."""
        longest = max(map(len, self.magic))
        for position in range(start, stop, BLOCK):
            data = stored.read_at(position, BLOCK + longest - 1)
            yield from (position + at for at in _all(data, self.magic, min(BLOCK, stop - position)))


class _StreamMember:
    def __init__(self, codec: Stream, stored: Stored, start: int) -> None:
        self.codec, self.stored, self.start, self.end = codec, stored, start, start

    def __iter__(self) -> Iterator[bytes]:
        decompressor: Decompressor = self.codec.decompressor()
        for position, data in self._input():
            try:
                block = decompressor.decompress(data)
            except self.codec.errors as error:
                yield from self._before_damage(position, data)
                raise DamageError(str(error), str(error).endswith(self.codec.checksum)) from None
            yield block
            if decompressor.eof:
                self.end = position + len(data) - len(decompressor.unused_data)
                return
        raise DamageError("ends too early: cut short")

    def _input(self) -> Iterator[tuple[int, bytes]]:
        for position in range(self.start, self.stored.size, self.codec.step):
            yield position, self.stored.read_at(position, self.codec.step)

    def _before_damage(self, damaged: int, data: bytes) -> Iterator[bytes]:
        """What still decodes of the `data` that raised an error, found by giving it byte by byte."""
        decompressor: Decompressor = self.codec.decompressor()
        for position, before in self._input():
            if position == damaged:
                break
            decompressor.decompress(before)
        for at in range(len(data)):
            try:
                block = decompressor.decompress(data[at : at + 1])
            except self.codec.errors:
                return
            yield block


def _all(data: bytes, needles: tuple[bytes, ...], stop: int) -> list[int]:
    found = []
    for needle in needles:
        at = data.find(needle)
        while 0 <= at < stop:
            found.append(at)
            at = data.find(needle, at + 1)
    return sorted(found)


def _gzip(_: Stored) -> Codec:
    checksums = ("incorrect data check", "incorrect length check")
    # 16 KiB decode to 16 MiB at most: deflate's greatest ratio is 1032.
    return Stream(
        "gzip", (b"\x1f\x8b\x08",), 1 << 14, lambda: zlib.decompressobj(31), (zlib.error,), checksums
    )


def _xz(_: Stored) -> Codec:
    def decompressor() -> Any:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY)

    return Stream("xz", (b"\xfd7zXZ\0",), 1 << 10, decompressor, (lzma.LZMAError,))


def _zstandard(stored: Stored) -> Codec:
    import zstandard

    found = zstandard.ZstdDecompressor(dict_data=_dictionary(stored), max_window_size=ZSTD_WINDOW)
    magic = (b"\x28\xb5\x2f\xfd", *(bytes([0x50 + n]) + b"\x2a\x4d\x18" for n in range(16)))
    # Four bytes may stand for a block of 128 KiB, so 512 decode to 16 MiB at most.
    errors, checksums = (zstandard.ZstdError,), ("doesn't match checksum",)
    return Stream("zstandard", magic, 512, found.decompressobj, errors, checksums)


def _dictionary(stored: Stored) -> Any:
    """The dictionary that a .warc.zst may begin with, in a skippable frame of its own, itself packed or not.

    Source: "WARC zstd compression", IIPC, section on dictionaries.
    """
    import zstandard

    head = stored.read_at(0, 8)
    if len(head) < 8 or head[:4] != b"\x5d\x2a\x4d\x18":
        return None
    data = stored.read_at(8, struct.unpack("<I", head[4:])[0])
    if data.startswith(b"\x28\xb5\x2f\xfd"):
        data = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW).decompressobj().decompress(data)
    return zstandard.ZstdCompressionDict(data)


# ---------------------------------------------------------------- bzip2: blocks that begin at any bit
class Bzip2:
    """Bzip2 by its blocks, which are independent of each other, as bzip2recover does it.

    A block begins with 48 bits, 0x314159265359, at any bit; a stream ends with 0x177245385090. The bits from
    one such number to the next are made a stream of their own; that it decodes, checksum included, proves
    that both ends were found. A member here is a block, named by the byte that holds its first bit, or by the
    stream's header that comes before it.
    """

    name = "bzip2"
    BLOCK, END = 0x314159265359, 0x177245385090
    LONGEST = 1_200_000
    """Bytes: above what a block of 900 kB takes when it cannot be compressed."""

    def member(self, stored: Stored, start: int) -> Member:
        """The block at `start`."""
        return _Bzip2Block(stored, start)

    def candidates(self, stored: Stored, start: int, stop: int) -> Iterator[int]:
        """Bytes in which a block's number begins, and headers before one."""
        for position in range(start, stop, BLOCK):
            data = stored.read_at(position, BLOCK + 10)
            found = {bit // 8 for bit in _numbers(data, Bzip2.BLOCK)}
            headers = {at for at in _all(data, (b"BZh",), BLOCK) if at + 4 in found}
            found = (found - {at + 4 for at in headers}) | headers
            yield from (position + at for at in sorted(found) if at < min(BLOCK, stop - position))


class _Bzip2Block:
    def __init__(self, stored: Stored, start: int) -> None:
        self.stored, self.start, self.end = stored, start, start

    def __iter__(self) -> Iterator[bytes]:
        data = self.stored.read_at(self.start, Bzip2.LONGEST)
        skip = 32 if data[:3] == b"BZh" else 0
        begin = next((bit for bit in _numbers(data[: skip // 8 + 7], Bzip2.BLOCK) if bit < skip + 8), None)
        if begin is None:
            if skip and data[4:10] == Bzip2.END.to_bytes(6, "big"):  # the stream of no bytes
                self.end = self.start + 14
                return
            raise DamageError("no block begins here")
        end, last = _next_number(data, begin + 48)
        try:
            yield bz2.decompress(_alone(data, begin, end))
        except (OSError, ValueError) as error:
            raise DamageError(str(error).lower()) from None
        # Behind a stream's last block: its end's number, a checksum of 32 bits, and the rest of the byte.
        self.end = self.start + (-(-(end + 80) // 8) if last else end // 8)


def _next_number(data: bytes, bit: int) -> tuple[int, bool]:
    """First bit from `bit` on at which a block or the stream's end begins, and whether it is the end."""
    for start in range(bit // 8, len(data), BLOCK // 2):
        window = data[start : start + BLOCK // 2 + 7]
        found = [(at, False) for at in _numbers(window, Bzip2.BLOCK)]
        found += [(at, True) for at in _numbers(window, Bzip2.END)]
        if found := [item for item in found if item[0] + start * 8 >= bit]:
            at, last = min(found)
            return at + start * 8, last
    raise DamageError("ends too early: cut short")


def _numbers(data: bytes, number: int) -> list[int]:
    """Bits of `data` at which the 48-bit `number` begins, sorted."""
    found = []
    for shift in range(8):
        window = (number << (8 - shift)).to_bytes(7, "big")  # the number after `shift` other bits
        inner, at = window[1:6], 0
        while (at := data.find(inner, at + 1)) > 0:
            seven = int.from_bytes(data[at - 1 : at + 6].ljust(7, b"\0"), "big")
            if (seven >> (8 - shift)) & ((1 << 48) - 1) == number and (shift or at + 5 <= len(data)):
                found.append((at - 1) * 8 + shift)
    return sorted(found)


def _alone(data: bytes, begin: int, end: int) -> bytes:
    """The block in the bits [begin, end) as a stream of its own."""
    first, last = begin // 8, -(-end // 8)
    size = end - begin
    bits = (int.from_bytes(data[first:last], "big") >> (last * 8 - end)) & ((1 << size) - 1)
    checksum = (
        bits >> (size - 80)
    ) & 0xFFFFFFFF  # after the block's 48-bit number; a stream of one block has its
    bits = (((bits << 48) | Bzip2.END) << 32) | checksum
    size += 80
    pad = -size % 8
    return b"BZh9" + (bits << pad).to_bytes((size + pad) // 8, "big")


CODECS: dict[str, Callable[[Stored], Codec]] = {
    ".gz": _gzip,
    ".zst": _zstandard,
    ".xz": _xz,
    ".bz2": lambda _: Bzip2(),
}


def codec_of(stored: Stored) -> Codec | None:
    """The codec that the suffix of a file asks for; none when it is not compressed."""
    codec = CODECS.get(stored.file.compression)
    return codec(stored) if codec else None
