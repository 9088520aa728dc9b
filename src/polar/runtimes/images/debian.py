"""A tar of a Debian root file system: mmdebstrap builds it from the package sources of the machine's own apt.

It uses no image registry: sources, their keys, proxies and timeouts are the machine's.
"""

from __future__ import annotations

import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from polar.errors import RuntimeFailure
from polar.runtimes.host.threads import in_thread
from polar.runtimes.images.catalog import Recipe
from polar.runtimes.images.programs import output_of, run_program
from polar.runtimes.images.wheels import PACKAGES, checked, wheel_hooks, wheels_in

DEFAULT_PACKAGES = ("ca-certificates", "git", "procps", "python3-minimal", "ripgrep")
"""What harnesses and their commands expect in a bare image, beside a C library and a shell."""
PACKAGE_PATTERN = r"[a-z0-9][a-z0-9+.-]+"
SUITE_PATTERN = r"[a-z][a-z0-9]*"
APT = Path("/etc/apt")
OS_RELEASE = Path("/etc/os-release")
ALIASES = ("stable", "oldstable", "testing", "unstable", "sid")
"""Other names of a release in a machine's sources."""
POCKETS = ("", "-updates", "-security")
LEFT_OUT = ("/usr/share/doc/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/man/*")
"""A third of the size; no program reads it."""
KEPT = "/usr/share/doc/*/copyright"
CARRIED = r'(Acquire::(?:(?:http|https|ftp)(?:::.+)?|Retries|Check-Valid-Until|Check-Date)) "([^"]+)";'
"""The parts of apt's configuration that say how to reach the sources, as `apt-config dump` prints them."""
NEUTRAL = (
    ': >"$1/etc/resolv.conf"',
    'echo localhost >"$1/etc/hostname"',
    'chmod 644 "$1/etc/resolv.conf" "$1/etc/hostname"',
    'rm -f "$1/etc/apt/apt.conf.d/99mmdebstrap"',
)
"""Removes what mmdebstrap copies from this machine."""
OWN_NAMESPACES = (
    *("setpriv", "--pdeathsig", "KILL"),
    *("unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child", "--mount-proc"),
)
"""As root, mmdebstrap mounts the machine's /dev and /sys. In its own namespaces these mounts end with the build;
otherwise the cleanup after a killed build would delete the machine's files."""


class Source(msgspec.Struct, frozen=True):
    """A line or paragraph of apt's sources."""

    uris: str
    suites: tuple[str, ...]
    components: str
    signed_by: str = ""
    """Files, fingerprints, or a whole key. Empty: any key that apt trusts."""

    def paragraph(self) -> str:
        key = f"Signed-By: {self.signed_by}\n" if self.signed_by else ""
        suites = " ".join(self.suites)
        return f"Types: deb\nURIs: {self.uris}\nSuites: {suites}\nComponents: {self.components}\n{key}"


def debian_recipe(
    packages: Iterable[str] | None, suite: str | None, more: Iterable[str] = (), pip: Iterable[str] = ()
) -> Recipe:
    """Checks the recipe and fills in the defaults: the packages a harness needs, the machine's own release."""
    wheels = checked(pip)
    asked = (*(DEFAULT_PACKAGES if packages is None else packages), *more, *(PACKAGES if wheels else ()))
    chosen = tuple(sorted(set(asked)))
    for name in chosen:
        if not re.fullmatch(PACKAGE_PATTERN, name):
            raise RuntimeFailure(f"{name!r} is not a Debian package name")
    suite = suite or _own_release(OS_RELEASE)
    if not re.fullmatch(SUITE_PATTERN, suite):
        raise RuntimeFailure(f"{suite!r} is not a Debian release name such as bookworm")
    return Recipe(kind="debian", packages=chosen, pip=wheels, suite=suite)


async def debian_tar(recipe: Recipe, tar: Path, tell: Callable[[str], None]) -> dict[str, str]:
    """Writes the tar and returns the versions of its packages. mmdebstrap runs as root, else in a user
    namespace."""
    if shutil.which("mmdebstrap") is None:
        raise RuntimeFailure(
            "mmdebstrap, which builds Debian images, is not installed: `apt-get install mmdebstrap uidmap`, or"
            " `make image`; `--kind busybox` needs neither"
        )
    sources = tar.with_name("polar.sources")
    found = mirrored(read_sources(APT), _own_release(OS_RELEASE), recipe.suite)
    sources.write_text("\n".join(source.paragraph() for source in found))
    argv = mmdebstrap(recipe, sources, tar, await output_of("apt-config", "dump", "Acquire"))
    try:
        if os.geteuid() == 0:
            with tempfile.TemporaryDirectory(dir=tar.parent, prefix="work-") as work:
                await run_program((*OWN_NAMESPACES, "env", f"TMPDIR={work}", *argv), tell=_steps(tell))
        else:  # it creates its own namespaces, and files that only it can remove
            await run_program(argv, tell=_steps(tell))
    finally:
        sources.unlink()
    return await in_thread(versions_in, tar) | await in_thread(wheels_in, tar)


def mmdebstrap(recipe: Recipe, sources: Path, tar: Path, configured: str) -> tuple[str, ...]:
    without = (f"--dpkgopt=path-exclude={path}" for path in LEFT_OUT)
    carried = (f'--aptopt={name} "{value}"' for name, value in re.findall(CARRIED, configured))
    return (
        *("mmdebstrap", "--variant=minbase", "--format=tar", f"--include={','.join(recipe.packages)}"),
        *(*without, f"--dpkgopt=path-include={KEPT}", *carried),
        *(f"--customize-hook={command}" for command in (*wheel_hooks(recipe.pip), *NEUTRAL)),
        *(recipe.suite, str(tar), str(sources)),
    )


def read_sources(apt: Path) -> list[Source]:
    """All package sources of the machine's apt."""
    parts = apt / "sources.list.d"
    one_line = [apt / "sources.list", *sorted(parts.glob("*.list"))]
    found = [source for path in one_line if path.is_file() for source in _lines(path.read_text())]
    return found + [source for path in sorted(parts.glob("*.sources")) for source in _paragraphs(path.read_text())]


def mirrored(sources: Iterable[Source], own: str, suite: str) -> list[Source]:
    """The sources of the machine's own release, changed to `suite`; other vendors' sources are left out."""
    renamed = {
        f"{name}{pocket}": f"{suite}{pocket}" for name in dict.fromkeys((own, *ALIASES)) for pocket in POCKETS
    }
    found = [
        msgspec.structs.replace(source, suites=suites)
        for source in sources
        if (suites := tuple(renamed[name] for name in source.suites if name in renamed))
    ]
    if not any(suite in source.suites for source in found):
        raise RuntimeFailure(f"apt's configuration has no source of {own} packages from which to get {suite}")
    return found


def versions_in(tar: Path) -> dict[str, str]:
    """Versions of the installed packages."""
    with tarfile.open(tar) as archive:
        status = archive.extractfile("./var/lib/dpkg/status")
        assert status is not None, "dpkg's list is a plain file"
        text = status.read().decode()
    fields = (dict(_fields(paragraph)) for paragraph in re.split(r"\n{2,}", text))
    return {each["package"]: each["version"] for each in fields if each.get("status") == "install ok installed"}


def _steps(tell: Callable[[str], None]) -> Callable[[str], None]:
    def line(text: str) -> None:
        if text.startswith("I: ") and text.endswith("..."):
            tell(text.removeprefix("I: ").removesuffix("..."))

    return line


def _own_release(os_release: Path) -> str:
    text = os_release.read_text() if os_release.is_file() else ""
    named = re.search(r'^VERSION_CODENAME="?([a-z0-9]+)"?$', text, re.MULTILINE)
    if named is None or not APT.is_dir():
        raise RuntimeFailure("a Debian image can only be built on a machine with apt")
    return named[1]


def _lines(text: str) -> Iterator[Source]:
    pattern = r"^deb[ \t]+(?:\[([^\]]*)\][ \t]*)?(\S+)[ \t]+(\S+)[ \t]+([^#\n]+)"
    for options, uri, suite, components in re.findall(pattern, text, re.MULTILINE):
        key = re.search(r"signed-by=(\S+)", options)
        yield Source(uri, (suite,), components.strip(), key[1].replace(",", " ") if key else "")


def _paragraphs(text: str) -> Iterator[Source]:
    """Comments may be between the lines of a paragraph."""
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for paragraph in re.split(r"\n\s*\n", plain):
        fields = dict(_fields(paragraph))
        if "deb" in fields.get("types", "").split() and fields.get("enabled", "yes") != "no":
            suites = tuple(fields.get("suites", "").split())
            key = fields.get("signed-by", "")
            yield Source(fields.get("uris", ""), suites, fields.get("components", ""), key)


def _fields(paragraph: str) -> Iterator[tuple[str, str]]:
    """A value continues on indented lines and is kept verbatim: a key is such a value."""
    for name, value in re.findall(r"^([A-Za-z-]+):[ \t]*(.*(?:\n[ \t].*)*)", paragraph, re.MULTILINE):
        yield name.lower(), value.rstrip()
