"""A folder of blobs that fails, or in which others have left something: never an error of the whole server."""

from __future__ import annotations

from pathlib import Path

import pytest

from polar.store.blobs.base import BlobStoreError
from polar.store.blobs.folder import FolderStore


async def keys_of(store: FolderStore) -> list[str]:
    return [blob.key async for page in store.pages("me") for blob in page]


async def test_what_is_no_file_is_no_blob(tmp_path: Path) -> None:
    """Such as the snapshots of a file server."""
    store = FolderStore(tmp_path)
    await store.put("me/aa/one", b"x")
    (tmp_path / "me" / "aa" / ".snapshot").mkdir()
    (tmp_path / "me" / "aa" / "nowhere").symlink_to(tmp_path / "missing")
    assert await keys_of(store) == ["me/aa/one"]


async def test_a_folder_that_cannot_be_listed_is_an_error_of_the_store(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    await store.put("me/aa/one", b"x")
    (tmp_path / "me" / "aa" / "round").symlink_to("round")
    with pytest.raises(BlobStoreError, match=str(tmp_path)):
        await keys_of(store)
