"""Does a Ray head answer at an address?  Found out in seconds, where Ray itself takes minutes to give up."""

from __future__ import annotations

import os
import socket

from workers.errors import ClusterError, first_line


def check_reachable(
    address: str, *, seconds: float, what: str = "Ray head (usually port 6379)"
) -> None:
    """Refuse an address at which nothing listens, within ``seconds``.

    Args:
        address: HOST:PORT, or 'auto', which is left to Ray.
        seconds: how long to try.
        what: what should listen there, for the message.

    Raises:
        ClusterError: the host is unknown or nothing answers on the port.
    """
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
    except (OSError, ValueError) as error:
        raise ClusterError(
            f"no {what} can be reached at {address}: {first_line(error)}; is it up, is this its address, "
            "and does a firewall stand between?"
        ) from error


HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
SETTINGS_FRAME = 4


def check_speaks_grpc(address: str, *, seconds: float) -> None:
    """Refuse a port where something else than a Ray head listens, which Ray itself finds out in minutes.

    A gRPC server answers the HTTP/2 connection preface with a SETTINGS frame (RFC 9113, section 3.4).

    Raises:
        ClusterError: the server is silent or answers otherwise.
    """
    if address == "auto" or os.environ.get("RAY_USE_TLS", "0") not in ("0", ""):
        return
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=seconds) as connection:
            connection.settimeout(seconds)
            connection.sendall(HTTP2_PREFACE)
            answer = connection.recv(9)
    except OSError as error:
        raise ClusterError(
            f"what listens at {address} does not answer as a Ray head ({first_line(error)}): give the "
            "head's HOST:PORT, usually port 6379"
        ) from error
    if len(answer) < 4 or answer[3] != SETTINGS_FRAME:
        raise ClusterError(
            f"what listens at {address} is no Ray head: give the head's HOST:PORT, usually port 6379 (the "
            "dashboard's port 8265 is for luca submit)"
        )
