"""What Ray prints about lost workers and nodes, as short sentences, and off standard output.

Ray tells a driver of every lost process in a paragraph on standard output, whatever ``log_to_driver`` says.  There it
would end up inside the JSON or the table that a command prints.  The paragraphs come from threads of Ray's own, so
what other threads print passes untouched.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

Notify = Callable[[str], None]

_THREADS = "ray_"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_FROM = re.compile(r"^\([^)]*\)\s*")
_TIMES = re.compile(r"\s*\[repeated \d+x across cluster\]")
_LOST_CALL = re.compile(r"^Task (\w+)\.(\w+) failed\. There are (?:infinite|\d+) retries remaining")
_LOST_NODE = re.compile(r"^The node with node id: (\w{8})\w* .*?has been marked dead")
_SAID_BY_OTHERS = ("A worker died or was killed while executing a task", "Raylet is terminated.")
_REPEAT_SECONDS = 10.0
_LONGEST = 300


def sentence(message: str) -> str | None:
    """One short sentence for what Ray printed; None for what it says in another message as well.

    >>> sentence("(raylet) Task TrainerImpl.learn failed. There are infinite retries remaining, so ...")
    "a process (Trainer, in 'learn') was lost; Ray starts it again and repeats the work"
    """
    text = _TIMES.sub("", _FROM.sub("", " ".join(_COLOUR.sub("", message).split())))
    if not text or text.startswith(_SAID_BY_OTHERS):
        return None
    call = _LOST_CALL.match(text)
    if call is not None:
        who = call[1].removesuffix("Impl")
        return (
            f"a process ({who}, in '{call[2]}') was lost; Ray starts it again and repeats the work"
        )
    node = _LOST_NODE.match(text)
    if node is not None:
        return f"node {node[1]} was lost; what ran there starts again elsewhere, as soon as there is room"
    return f"Ray: {text if len(text) <= _LONGEST else text[:_LONGEST] + '...'}"


class RayMessages:
    """Stands in for ``sys.stdout`` while Ray is joined.

    Args:
        notify: told each sentence, from a thread of Ray's; the same one again only after some seconds.
    """

    def __init__(self, notify: Notify) -> None:
        self._notify = notify
        self._stream: Any = sys.stdout
        self._mine: int | None = None
        self._muted = False
        self._parts: dict[int, list[str]] = {}
        self._said: dict[str, float] = {}

    def start(self) -> None:
        """From now on, sort what is printed."""
        self._stream = sys.stdout
        sys.stdout = self

    def mute(self) -> None:
        """From now on say nothing: what is lost is being stopped on purpose."""
        self._muted = True

    def during(self, work: Callable[[], object]) -> None:
        """Run ``work``, such as Ray's shutdown, and take what it prints in this thread for Ray's."""
        self._mine = threading.get_ident()
        try:
            work()
        finally:
            self._mine = None

    def stop(self) -> None:
        """Put the former standard output back, unless somebody else has replaced it since."""
        if sys.stdout is self:
            sys.stdout = self._stream

    def write(self, text: str) -> int:
        """Passed on, or gathered into a message that Ray's ``print`` ends with a line feed of its own."""
        thread = threading.current_thread()
        number = threading.get_ident()
        if number != self._mine and not thread.name.startswith(_THREADS):
            return int(self._stream.write(text))
        parts = self._parts.setdefault(number, [])
        if text == "\n":
            message, parts[:] = "".join(parts), []
            self._say(sentence(message))
        else:
            parts.append(text)
        return len(text)

    def _say(self, said: str | None) -> None:
        now = time.monotonic()
        if (
            said is None
            or self._muted
            or now - self._said.get(said, -_REPEAT_SECONDS) < _REPEAT_SECONDS
        ):
            return
        self._said[said] = now
        self._notify(said)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
