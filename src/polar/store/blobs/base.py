"""What the server needs of a store for blobs, and the names under which it keeps them.

A blob is written once, whole, under a name that no other content has, and never changed. So the order of writing
is simple: first the blob, then the row that names it. A blob that no row names is left over from a crash or a
refused result, and may be deleted when it is so old that no one names it any more.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

from polar.store.database import StoreError

NAMED_WITHIN_S = 1200.0
"""A row names a blob so soon after it was written, or never. The key has the period in which it was written: who
comes later writes under another key. So whoever deletes leftovers of an hour takes none that a row will name."""


class BlobStoreError(StoreError):
    """The store failed: it is away, full, or refuses the credentials."""


class BlobMissing(BlobStoreError):
    """A row names a blob that the store does not have."""


@dataclass(frozen=True)
class StoredBlob:
    key: str
    size_bytes: int
    at: float
    """When it was written, in Unix seconds."""


class BlobStore(Protocol):
    name: str
    """For messages; without credentials."""

    async def put(self, key: str, data: bytes) -> None:
        """Returns when the blob is stored for good. Readers see all of it or nothing."""
        ...

    async def get(self, key: str) -> bytes:
        """Raises `BlobMissing`."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Those that are missing are no error."""
        ...

    def pages(self, prefix: str) -> AsyncGenerator[list[StoredBlob]]:
        """All blobs whose keys begin with this folder, some at a time."""
        ...


def key_of(owner: str, session_id: str, attempt: int, data: bytes, now: float) -> str:
    """`owner`: the database that names the blob. Several may share a store, and each cleans up its own only.

    With the attempt and a digest of the content: two uploads of one session never overwrite each other. Slow with
    a large blob: call it in a thread.
    """
    digest = hashlib.sha256(data).hexdigest()
    shard = hashlib.sha256(session_id.encode()).hexdigest()[:2]
    return f"{owner}/{shard}/{session_id}.{attempt}.{int(now // NAMED_WITHIN_S):x}.{digest[:24]}"


def missing(store: BlobStore, key: str) -> BlobMissing:
    return BlobMissing(
        f"{store.name} has no blob {key}: was it deleted there, or does `server.blobs` name another place than "
        "when it was written? Copy the blobs when you change that"
    )
