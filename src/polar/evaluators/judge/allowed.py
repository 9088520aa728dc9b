"""Which addresses a judge may have, and which key goes there. The operator of the node decides, not the task.

Without this, whoever submits a task could make a node call any address that it reaches, or send a variable of its
environment somewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import SplitResult, urlsplit

from polar.config import PermittedEndpoint
from polar.errors import EvaluatorError

PORTS = {"http": 80, "https": 443}


class EndpointNotAllowed(EvaluatorError):
    """The operator of the node does not allow the judge's address, or the key for it."""


def refuse_unless_allowed(allowed: Sequence[PermittedEndpoint] | None, url: str, api_key_env: str | None) -> None:
    """`allowed`: None allows any. Hosts are compared as they are written, whatever they resolve to."""
    if allowed is None:
        return
    fitting = [each for each in allowed if _is_within(urlsplit(url), urlsplit(each.url))]
    if not fitting:
        known = ", ".join(each.url for each in allowed) or "none"
        raise EndpointNotAllowed(
            f"the judge's address {url} is not in `permits.endpoints` of this node's polar.toml"
            f" (allowed: {known}); its operator adds it there"
        )
    if api_key_env is not None and api_key_env not in {each.api_key_env for each in fitting}:
        raise EndpointNotAllowed(
            f"the variable {api_key_env} may not be sent to {url}: in `permits.endpoints` of this node's"
            " polar.toml, its operator names it as `api_key_env` of that address"
        )


def _is_within(url: SplitResult, allowed: SplitResult) -> bool:
    path = allowed.path.rstrip("/")
    return _origin(url) == _origin(allowed) and (url.path == path or url.path.startswith(f"{path}/"))


def _origin(url: SplitResult) -> tuple[str, str, int]:
    return url.scheme, (url.hostname or "").lower(), url.port or PORTS[url.scheme]
