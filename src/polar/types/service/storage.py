"""What the server stores, and what can be removed."""

from __future__ import annotations

from pydantic import Field

from polar.types.base import Strict


class GcRequest(Strict):
    """Rules that are left out are those of the server's own retention."""

    dry_run: bool = True
    """Only count what could be removed."""
    results_days: float | None = Field(default=None, gt=0)
    blobs_days: float | None = Field(default=None, gt=0)
    events_days: float | None = Field(default=None, gt=0)
    max_blob_bytes: int | None = Field(default=None, ge=0)
    unfetched: bool = False
    """Also groups whose results no client has fetched."""


class GcReport(Strict):
    """What was removed, or could be."""

    groups: int = 0
    sessions: int = 0
    blobs: int = 0
    blob_bytes: int = 0
    events: int = 0
    orphans: int = 0
    """Blobs that no result has, left by a killed server or a refused upload."""
    orphan_bytes: int = 0
    complete: bool = True
    """False: there is more to remove; ask again."""


class StorageStatus(Strict):
    place: str
    """Where new uploads are stored."""
    blobs: int
    blob_bytes: int
    results_removed: int
    """Cursor of the last result that retention has removed; 0: none."""
    events_removed: int
    retention: dict[str, float | int | None]
    """As the server is configured."""
