"""The image of an Apptainer session: a file, a root folder, a built image, or one pulled from a registry.

A pulled image is unpacked into a folder of the cache, once for all sessions. Its files belong to the node's user,
as those of built images do.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from polar.config import PermitConfig, cache_dir
from polar.errors import RuntimeFailure
from polar.runtimes.images.catalog import root_folder
from polar.runtimes.images.programs import run_program
from polar.store.cache import cached_folder

SCHEME = "docker://"
LOOPBACK = re.compile(r"docker://(127\.0\.0\.1|localhost|\[::1\])(:\d+)?/")
"""A registry on this machine is reached without TLS, as Docker does."""


def pulled_images_dir() -> Path:
    return cache_dir() / "apptainer-images"


async def image_path(image: str, program: str, permits: PermitConfig, tell: Callable[[str], None]) -> Path:
    if image.startswith(SCHEME):
        return await _pulled(image, program, permits, tell)
    path = Path(image).expanduser()
    return path.absolute() if "/" in image and path.is_file() else root_folder(image)


async def _pulled(image: str, program: str, permits: PermitConfig, tell: Callable[[str], None]) -> Path:
    shown = re.sub(r"[^a-z0-9]+", "-", image.removeprefix(SCHEME).lower())
    folder = pulled_images_dir() / f"{shown}-{hashlib.sha256(image.encode()).hexdigest()[:8]}"
    if not folder.is_dir() and permits.pull == "never":
        raise RuntimeFailure(
            f"{image} is not on this node: `apptainer build --sandbox FOLDER {image}` gets it, and image = FOLDER"
            ' uses it; or set permits.pull = "missing" on the node'
        )

    async def fill(scratch: Path) -> None:
        tell(f"Pulling {image}")
        await _unpack(image, program, scratch / "root", tell)

    target = await cached_folder(str(folder.relative_to(cache_dir())), fill)
    os.utime(target)  # the time of its last use
    return target / "root"


async def _unpack(image: str, program: str, root: Path, tell: Callable[[str], None]) -> None:
    plain = ("--no-https",) if LOOPBACK.match(image) else ()
    with tempfile.TemporaryDirectory(dir=root.parent.parent, prefix=".pull-") as scratch:
        own = ("env", f"APPTAINER_CACHEDIR={scratch}", f"APPTAINER_TMPDIR={scratch}", f"HOME={scratch}")
        argv = (*own, program, "build", "--sandbox", "--fix-perms", *plain, str(root), image)

        def show(line: str) -> None:
            if line.startswith("INFO:"):
                tell(f"Pulling {image}: {line.removeprefix('INFO:').strip()}")

        try:
            await run_program(argv, tell=show)
        except RuntimeFailure as error:
            raise RuntimeFailure(
                f"cannot pull {image}: {error}; check its name, or use `apptainer build --sandbox`, which can also"
                " log in to a registry"
            ) from error
    if os.geteuid() == 0:  # else the session, which is root of its own user namespace, could not change them
        await run_program(("chown", "--recursive", "--no-dereference", "0:0", str(root)))
    await run_program(("chmod", "--recursive", "u+rwX,u-s,g-s", str(root)))
