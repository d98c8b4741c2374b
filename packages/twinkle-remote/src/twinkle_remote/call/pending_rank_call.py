"""A call in flight whose ranks are elsewhere, each with a reply of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_remote.call.pending_call import PendingCall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.call.call_runtime import CallRuntime
    from twinkle_remote.protocol.component import Component
    from twinkle_remote.protocol.spec import FunctionSpec
    from twinkle_remote.protocol.whole_calls import RankReplies
    from twinkle_remote.sessions.stats import CallRecord


class PendingRankCall(PendingCall):
    """A call in flight that was sent undivided, and whose ranks' answers are read one by one.

    Args:
        runtime: The runtime of the call.
        component: The component.
        name: Class.method.
        spec: Options of the function.
        replies: The replies.
        line: File and line of the caller.
        record: Record of its times and bytes.
        sources: Calls whose lazy results are its arguments, or the call that it repeats.
        repeats: Its source is the same call, whose ranks' answers are read together.
        until: Its deadline in monotonic seconds, if it does not begin now.
    """

    def __init__(
        self,
        runtime: CallRuntime,
        component: Component,
        name: str,
        spec: FunctionSpec,
        replies: RankReplies,
        *,
        line: str,
        record: CallRecord,
        sources: Sequence[PendingCall],
        repeats: bool = False,
        until: float | None = None,
    ) -> None:
        group = runtime.backend.group(component.group)
        super().__init__(
            runtime,
            group,
            name,
            spec,
            component.mesh,
            replies.replies,
            each=replies.each,
            line=line,
            record=record,
            sources=sources,
        )
        self._answers = replies
        self.repeats = repeats
        self._deadline = self._deadline if until is None else until

    def lateness(self, seconds: float | None) -> Any:
        """The error that it is not done after this time."""
        return self._answers.lateness(seconds)

    def cancel(self) -> None:
        """Cancel it on the ranks that have not answered; returns at once."""
        if self._pending and not self._runtime.closed:
            self._answers.cancel()

    def _withdraw(self) -> None:
        self._answers.withdraw()
