"""The function that makes a stream, typed by its stages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from twinkle_remote.streams.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from twinkle_remote.streams.options import StreamOptions

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")


@overload
def stream(source: Iterable[T], /, **options: Unpack[StreamOptions]) -> Stream[T]: ...
@overload
def stream(source: Iterable[T], stage: Callable[[T], A], /, **options: Unpack[StreamOptions]) -> Stream[A]: ...
@overload
def stream(
    source: Iterable[T], first: Callable[[T], A], second: Callable[[A], B], /, **options: Unpack[StreamOptions]
) -> Stream[B]: ...
@overload
def stream(
    source: Iterable[Any], /, *stages: Callable[[Any], Any], **options: Unpack[StreamOptions]
) -> Stream[Any]: ...
def stream(source: Iterable[Any], /, *stages: Callable[[Any], Any], **options: Unpack[StreamOptions]) -> Stream[Any]:
    """Iterate over what stages make of the rows of a source.

    A row is one sample of the source and what each stage makes of it, such as a prompt with its group of answers.

    Args:
        source: A DataLoader, or any iterable of values with rows; each iteration over it is an epoch.
        *stages: Bound remote functions, or functions of one value; rows go through them one after the other. A stage
            returns one row for each row that it is given.
        **options: The options of a stream.

            - rows: Rows of a batch; None keeps the batches of the source.
            - ahead: Rows that are at work or finished beyond those that the loop uses. 0 is the synchronous loop: the
              same calls in the same order. In one process and under a launcher the stream is always synchronous.
            - order: "source" keeps the order of the data, "arrival" delivers what is finished.
            - max_lag: Versions of the weights between a row's begin and its use, at or above 0. It paces the begin of
              rows by counts of rows, as AReaL does. None sets no bound.
            - stale: What becomes of a row that is older than `max_lag` all the same: "use" it; "wait": batches wait
              for old rows, so that none is older; "redo" it once; "drop" it. What is made again or dropped is counted.
            - chunk: Rows of one call with ahead=n. None: what waits, up to what the stage takes at a time: `def` stages
              take the share of a batch that the synchronous loop would give a data rank, `async def` ones a row.
            - at_once: Calls on each data rank at a time with ahead=n. None: one of `def` stages, and of an `async def`
              one as many as `remote_class(concurrency=...)` says.
            - spool: A folder that all workers can write to: finished rows are kept there with ahead=n, so that a
              resume does not make them again. Over HTTP it is a folder of this process, which fetches the rows.
            - patience: Seconds after which a chunk that is still at work, or takes ten times as long as its like did,
              is named once with its function, its rows and the stack of its worker; None names nothing.
            - weights_of: A component, or several, that stages call and whose weights are synced, such as the sampler
              behind an agent: lag and pacing count its versions.
            - progress: Show rows a second, lag and busy shares on the standard error: a bar on a terminal (needs
              tqdm), a line every 10 seconds elsewhere. One process does, from the first batch to the end of the epoch.

    Raises:
        TypeError: A stage is not callable, or an option is not of its type.
        ValueError: An option is out of range, or a stage cannot run for a part of the rows.
    """
    return Stream(source, stages, **options)
