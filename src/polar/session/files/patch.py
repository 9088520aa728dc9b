"""The changes that a session made in its workspace, as a patch.

Git takes a snapshot of the workspace before the harness runs and one after; the patch is the difference. Git runs
inside the runtime, because a repository that an agent has changed can start programs. It uses a repository of its
own in the home, so a repository in the workspace is neither trusted nor changed.

Ignored files are left out, unless the workspace's repository tracks them. A repository below the workspace's top
is treated as a plain folder, without its `.git`.
"""

from __future__ import annotations

import re

from polar.errors import PolarError
from polar.runtimes.base import Command, Finished
from polar.session.live import LiveSession

FOLDER = ".polar"
PATCH = "patch.diff"
NO_GIT = 69
SOME_UNREAD = 70
OVER_CAP = 71

# The snapshot has the bytes as they are: attributes that would convert a file or run a program for it are unset.
# Git enters a repository within the workspace only if its index has a file there, so the script adds an entry;
# `add` then finds the file missing and removes the entry.
SETUP = r"""
set -eu
umask 077
command -v git >/dev/null 2>&1 || exit 69
own=$1 picture=$1/$2.git
unset $(git rev-parse --local-env-vars)
export HOME="$own/nobody" XDG_CONFIG_HOME="$own/nobody" LC_ALL=C
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_ATTR_NOSYSTEM=1
mkdir -p "$own"
rm -rf "$picture"
git init --quiet --bare --template= "$picture"
mkdir -p "$picture/info"
echo '* !text !crlf !eol !ident !filter !working-tree-encoding !diff' >"$picture/info/attributes"
export GIT_DIR="$picture"
git config core.bare false
git config core.hooksPath /dev/null
git config core.looseCompression 1
git config advice.addEmbeddedRepo false
export GIT_WORK_TREE=.
empty=$(git hash-object -w /dev/null)
export empty
unread=0

show_inner_repositories() {
    find . -name .git -prune -exec sh -c '
        for path do
            folder=${path#./}
            [ "$folder" = .git ] || printf "100644 %s\t%s/polar\0" "$empty" "${folder%/.git}"
        done' sh {} + | git update-index -z --index-info
}

add_all() {
    git add --all --ignore-errors . || unread=$?
    [ "$unread" -le 1 ] || exit "$unread"
}
"""

BEFORE = (
    SETUP
    + r"""
if [ -e .git ]; then
    git --git-dir=.git -c core.fsmonitor=false ls-files -s -z | git update-index -z --index-info || true
fi
show_inner_repositories
git ls-files -z --others --ignored --exclude-standard >"$own/ignored"
add_all
git write-tree --missing-ok
"""
)

# A file that existed and was ignored before is not new if it is no longer ignored. `head` keeps a patch over the
# limit from filling the disk.
AFTER = (
    SETUP
    + r"""
base=$3 cap=$4
export GIT_ALTERNATE_OBJECT_DIRECTORIES="$own/before.git/objects"
git read-tree "$base"
show_inner_repositories
add_all
git update-index -z --force-remove --stdin <"$own/ignored"
tree=$(git write-tree --missing-ok)
rm -rf "$own/patch.diff" "$own/outcome"
{
    outcome=0
    git diff-tree -r -p --binary --full-index --no-renames --no-ext-diff --no-textconv --no-color \
        --ignore-submodules=all --src-prefix=a/ --dst-prefix=b/ "$base" "$tree" || outcome=$?
    echo "$outcome" >"$own/outcome"
} | head -c "$((cap + 1))" >"$own/patch.diff"
[ "$(wc -c <"$own/patch.diff")" -le "$cap" ] || exit 71
[ "$(cat "$own/outcome")" = 0 ] || exit 1
[ "$unread" = 0 ] || exit 70
"""
)


class PatchError(PolarError):
    """The patch cannot be made."""


async def note_baseline(live: LiveSession) -> None:
    """Takes the snapshot before the harness runs."""
    if not live.task.keep.patch:
        return
    finished = await _run(live, BEFORE, "before")
    if finished.exit_code == NO_GIT:
        raise PatchError("keep.patch needs git in the runtime: use an image that has it, or unset keep.patch")
    found = re.search(r"^([0-9a-f]{40}|[0-9a-f]{64})\n\Z", finished.stdout_tail, re.MULTILINE)
    if finished.exit_code != 0 or found is None:
        raise PatchError(f"git cannot add the workspace: {_words(finished)}")
    live.baseline = found[1]


async def keep_patch(live: LiveSession) -> None:
    """Git runs in the runtime, where an agent may have replaced it by a program that leaves processes behind: the
    caller must end them before the workspace is judged."""
    if not live.baseline:
        return
    assert live.runtime is not None
    cap_bytes = int(live.task.keep.cap_bytes)
    finished = await _run(live, AFTER, "after", live.baseline, str(cap_bytes))
    if finished.exit_code == OVER_CAP:
        live.left_out.append(f"{PATCH}: more than the cap of {cap_bytes} bytes")
        return
    if finished.exit_code not in (0, SOME_UNREAD):
        raise PatchError(f"git cannot compare the workspace: {_words(finished)}")
    await live.runtime.kill()
    fetched = await live.runtime.fetch(f"{FOLDER}/{PATCH}", live.paths.patch, cap_bytes=cap_bytes, home=True)
    if not live.paths.patch.is_file() or live.paths.patch.is_symlink():
        raise PatchError("; ".join(fetched.left_out) or "it is not there")
    live.kept.append(PATCH)
    if finished.exit_code == SOME_UNREAD:
        live.left_out.append(f"{PATCH}: without files that git could not read; logs/patch.stderr names them")


async def _run(live: LiveSession, script: str, *arguments: str) -> Finished:
    assert live.runtime is not None, "the runtime is started first"
    folder = f"{live.runtime.home}/{FOLDER}"
    return await live.runtime.exec(Command(("sh", "-c", script, "sh", folder, *arguments), log_name="patch"))


def _words(finished: Finished) -> str:
    return finished.stderr_tail.strip()[-500:] or f"it exited with code {finished.exit_code}"
