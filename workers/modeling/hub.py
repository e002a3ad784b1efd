"""A backbone's weights from the hub that timm names, or from the hub's cache on this machine.

The hub is asked only after a quick look whether it can be reached at all: its client would retry for most of a minute.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from workers.errors import BackboneError, first_line
from workers.modeling.weights import MISFIT

if TYPE_CHECKING:
    from torch import nn

PROBE_SECONDS = 5.0
"""How long to wait for the hub to answer a connection before it counts as unreachable."""


@dataclass(frozen=True)
class Published:
    """Where the weights are that timm publishes under a name.

    Attributes:
        available: whether they can be loaded now.
        where: in words, to follow "its weights are".
    """

    available: bool
    where: str


def published_weights(name: str) -> Published:
    """Whether a backbone's published weights are on this machine, or could be fetched; nothing is fetched.

    Raises:
        BackboneError: nothing is published under this name.
    """
    from workers.modeling.torchvision_compat import import_timm

    timm = import_timm()
    cfg = timm.models.get_pretrained_cfg(name) if timm.is_model(name) else None
    if cfg is None or not cfg.has_weights:
        raise BackboneError(f"timm publishes no weights for '{name}'")
    if _cached_file(cfg) is not None:
        return Published(True, "on this machine")
    host = _source_host(cfg)
    if _reachable(host):
        return Published(True, f"at {host[0]}, which can be reached")
    return Published(False, f"not on this machine, and {host[0]} cannot be reached")


def load_from_hub(name: str, options: Mapping[str, Any]) -> nn.Module:
    """timm's model with its published weights, from the local hub cache or downloaded into it.

    Raises:
        BackboneError: nothing is published under this name, or the hub cannot be reached; says what to do.
    """
    from workers.modeling.torchvision_compat import import_timm

    # Read by huggingface_hub when it is first imported; a user's own values win.
    os.environ.setdefault("HF_HUB_ETAG_TIMEOUT", "5")
    os.environ.setdefault("HF_HUB_DOWNLOAD_TIMEOUT", "15")
    timm = import_timm()
    from safetensors import SafetensorError

    cfg = timm.models.get_pretrained_cfg(name)
    if cfg is None or not cfg.has_weights:
        published = timm.list_pretrained(f"{name.partition('.')[0]}*")[:3]
        hint = f", or set backbone.name to one of {', '.join(published)}" if published else ""
        raise BackboneError(
            f"no weights are published for '{name}': set backbone.weights=PATH to a local file{hint}"
        )
    overlay = {}
    cached = _cached_file(cfg)
    if cached is not None:
        overlay["file"] = cached
    else:
        host = _source_host(cfg)
        if not _reachable(host):
            raise BackboneError(_unreachable(name, host[0]))
    try:
        model: nn.Module = timm.create_model(
            name, pretrained=True, pretrained_cfg_overlay=overlay, **options
        )
    except _network_errors() as error:
        raise BackboneError(_unreachable(name, first_line(error))) from error
    except (SafetensorError, pickle.UnpicklingError, EOFError, *MISFIT) as error:
        raise BackboneError(
            f"the published weights of '{name}' cannot be loaded ({first_line(error)}): set "
            "backbone.weights=PATH to a local file, leave backbone.image_size out, or delete "
            f"{cached or 'the hub cache'} if it is damaged"
        ) from error
    return model


def _unreachable(name: str, why: str) -> str:
    return (
        f"the weights of '{name}' are not on this machine and the hub cannot be reached ({why}): set "
        "backbone.weights=PATH to a local .safetensors or .pth file, or run once where the hub is reachable"
    )


def _cached_file(cfg: Any) -> str | None:
    """The weights in the local hub cache, so that a cached backbone needs no network."""
    if not cfg.hf_hub_id:
        return None
    from huggingface_hub import try_to_load_from_cache

    repo, _, revision = str(cfg.hf_hub_id).partition("@")
    names = [cfg.hf_hub_filename] if cfg.hf_hub_filename else []
    for filename in names or ["model.safetensors", "pytorch_model.bin"]:
        found = try_to_load_from_cache(repo, filename, revision=revision or None)
        if isinstance(found, str) and Path(found).is_file():
            return found
    return None


def _source_host(cfg: Any) -> tuple[str, int]:
    if cfg.hf_hub_id:
        from huggingface_hub import constants

        url = constants.ENDPOINT
    else:
        url = cfg.url
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (80 if parts.scheme == "http" else 443)


def _reachable(host: tuple[str, int]) -> bool:
    """Whether the host, or the proxy that stands before it, accepts a connection within a few seconds."""
    import urllib.request

    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        return False
    proxy = urllib.request.getproxies().get("https")
    if proxy and not urllib.request.proxy_bypass(host[0]):
        parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        host = parts.hostname or host[0], parts.port or 3128
    reached = threading.Event()

    def connect() -> None:
        try:
            socket.create_connection(host, timeout=PROBE_SECONDS).close()
        except OSError:
            return
        reached.set()

    # In a thread, because a name server that does not answer holds getaddrinfo beyond any time-out.
    attempt = threading.Thread(target=connect, daemon=True)
    attempt.start()
    attempt.join(PROBE_SECONDS + 1)
    return reached.is_set()


def _network_errors() -> tuple[type[BaseException], ...]:
    errors: list[type[BaseException]] = [OSError]
    httpx = sys.modules.get("httpx")
    if httpx is not None:
        errors.append(httpx.HTTPError)
    return tuple(errors)
