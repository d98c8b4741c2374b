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
    """Send the rows of a source through stages, and iterate over the results.

    A row is one sample of the source and what each stage makes of it, such as a prompt with its group of answers.

    Args:
        source: A DataLoader, or any iterable of values with rows; each iteration over it is an epoch.
        *stages: Bound remote functions, partials of them, or functions of one value; rows go through them one after the
            other. A stage returns one row for each row that it gets.
        **options: The options of a stream.

            - rows: Rows of a batch; None keeps the batches of the source.
            - ahead: Rows in work or finished beyond those that the loop uses. 0 is the synchronous loop: the same calls
              in the same order. In one process and under a launcher the stream is always synchronous.
            - order: "source" keeps the order of the data, "arrival" delivers rows as they are finished.
            - max_lag: Most versions of the weights between the start of a row and its use, at or above 0. It limits the
              start of rows by counts of rows, as AReaL does. None sets no limit.
            - stale: The treatment of a row that is still older than `max_lag`: "use" it; "wait": batches wait for old
              rows, so that no row is older; "redo" it once; "drop" it. Rows that are made again or dropped are counted.
            - chunk: Rows of one call with ahead=n. None: the waiting rows, up to a limit. For `def` stages the limit is
              the share of a batch that the synchronous loop would give a data rank; for `async def` stages it is one
              row.
            - at_once: Calls on each data rank at a time with ahead=n. None: one for `def` stages, and
              `remote_class(concurrency=...)` for an `async def` stage.
            - spool: A folder that all workers can write to: finished rows are kept there with ahead=n, so that a
              resume does not make them again. Over HTTP it is a folder of this process, which fetches the rows.
            - patience: Seconds after which a warning names a chunk that still runs, once, with its function, its rows
              and the stack of its worker. It also names a chunk that takes ten times as long as similar chunks. None:
              no warning.
            - weights_of: One or several components that stages call and whose weights are synced, such as the sampler
              of an agent: `max_lag` counts their versions.
            - progress: Show rows per second, lag and busy shares on standard error: a bar on a terminal (needs tqdm), a
              line every 10 seconds elsewhere. Only one process shows it, from the first batch to the end of the epoch.

    Raises:
        TypeError: A stage is not callable, or an option is not of its type.
        ValueError: An option is out of range, or a stage cannot run for a part of the rows.
    """
    return Stream(source, stages, **options)
