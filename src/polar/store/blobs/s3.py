"""Blobs in an S3-compatible store.

Credentials, region and endpoint come from the environment, by the names that every S3 client reads:
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL; without a key, those of
the machine's role are used.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import timedelta
from typing import Any

from polar.store.blobs.base import BlobStore, BlobStoreError, StoredBlob, missing

GIVE_UP_S = 30.0
"""A request that fails is repeated for so long; the node that uploads tries longer."""
TIMEOUT_S = 60
CONNECTIONS = 32
"""Requests under way at once: a burst of results waits here, where no timeout of a connection runs."""
PAGE = 1000
_USER = re.compile("//[^/\\s]*@")


class S3Store(BlobStore):
    def __init__(self, bucket: str, prefix: str) -> None:
        try:
            from obstore import exceptions, store  # noqa: PLC0415 - an optional dependency
        except ImportError as error:
            raise BlobStoreError(
                f"blobs in s3://{bucket} need obstore: pip install 'polar-rollout[s3]'"
            ) from error
        self.name = f"s3://{bucket}/{prefix}".rstrip("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._failure: type[Exception] = exceptions.BaseError
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        options: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
        make: Callable[..., Any] = store.S3Store
        self._bucket: Any = make(
            bucket,
            client_options={"timeout": f"{TIMEOUT_S}s", "allow_http": bool(endpoint)},
            retry_config={"max_retries": 5, "retry_timeout": timedelta(seconds=GIVE_UP_S)},
            **options,
        )
        self._free = asyncio.Semaphore(CONNECTIONS)

    async def put(self, key: str, data: bytes) -> None:
        try:
            async with self._free:
                await self._bucket.put_async(self._prefix + key, data)
        except (self._failure, OSError) as error:
            raise self._failed(error) from error

    async def get(self, key: str) -> bytes:
        try:
            async with self._free:
                found = await self._bucket.get_async(self._prefix + key)
                return bytes(await found.bytes_async())
        except FileNotFoundError as error:
            raise missing(self, key) from error
        except (self._failure, OSError) as error:
            raise self._failed(error) from error

    async def delete(self, keys: Sequence[str]) -> None:
        for start in range(0, len(keys), PAGE):
            try:
                await self._bucket.delete_async([self._prefix + key for key in keys[start : start + PAGE]])
            except FileNotFoundError:
                continue
            except (self._failure, OSError) as error:
                raise self._failed(error) from error

    async def pages(self, prefix: str) -> AsyncGenerator[list[StoredBlob]]:
        try:
            async for page in self._bucket.list(f"{self._prefix}{prefix}/", chunk_size=PAGE):
                yield [
                    StoredBlob(
                        str(found["path"])[len(self._prefix) :],
                        int(found["size"]),
                        found["last_modified"].timestamp(),
                    )
                    for found in page
                ]
        except (self._failure, OSError) as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> BlobStoreError:
        """The first line: the others repeat the request. An endpoint may have a user and a password."""
        first = (str(error).splitlines() or [type(error).__name__])[0]
        return BlobStoreError(f"{self.name}: {_USER.sub('//', first)[:500]}")
