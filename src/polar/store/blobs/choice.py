"""Which store `server.blobs` names."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import make_url

from polar.store.blobs.base import BlobStore
from polar.store.blobs.folder import FolderStore
from polar.store.blobs.s3 import S3Store

FOLDER = "folder:"
S3 = "s3://"


def blob_store_of(blobs: str | None, database: str) -> BlobStore | None:
    """None: blobs stay in the database. Takes values that `ServerConfig` has checked."""
    if blobs is None:
        beside = folder_beside(database)
        return FolderStore(beside) if beside else None
    if blobs.startswith(FOLDER):
        return FolderStore(Path(blobs.removeprefix(FOLDER)).expanduser())
    if blobs.startswith(S3):
        bucket, _, prefix = blobs.removeprefix(S3).partition("/")
        return S3Store(bucket, prefix.strip("/"))
    return None


def folder_beside(database: str) -> Path | None:
    """`server.db.blobs` beside `server.db`. None: the database is no file, and its servers may share no folder."""
    url = make_url(database)
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        return None
    path = Path(str(url.database))
    return path.with_name(f"{path.name}.blobs")
