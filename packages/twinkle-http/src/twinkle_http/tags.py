"""Values that travel as descriptions: marks, meshes, exceptions and their types."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any, cast

from twinkle_http.wire.encode import encode
from twinkle_http.wire.errors import WireFormatError, WireTypeError
from twinkle_mesh import DeviceMesh
from twinkle_remote import errors
from twinkle_remote.backends.support import Replicated, both_type, raised_type, remade, sent_members
from twinkle_remote.errors import RemoteCallError
from twinkle_remote.protocol import Failure, Itself
from twinkle_remote.values import name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from twinkle_http.wire.encode import TagOf
    from twinkle_remote.values import TypeNames

_DEEPEST = 6  # exceptions within exceptions
_OURS = ("_text", "failures")
_OF_FAILURE = ("label", "node", "type_name", "message", "method", "trace", "died", "unanswered", "upstream", "repeated")


class TagWriter:
    """Describes values for the encoder.

    Args:
        types: Classes that travel by name.
        other: Describes what one side alone knows, such as handles and results.
    """

    def __init__(self, types: TypeNames, other: TagOf) -> None:
        self._types = types
        self._other = other
        self._inside = 0

    def node(self, value: Any, part: Callable[[Any], Any]) -> list[Any] | None:
        """The node of a value; None for other values."""
        if value is Itself.ITSELF:
            return ["itself"]
        if type(value) is Replicated:
            return ["replicate", part(value.value)]
        if isinstance(value, DeviceMesh):
            return ["mesh", part(value.to_dict())]
        if isinstance(value, BaseException):
            return self._error(value, part)
        if isinstance(value, type) and issubclass(value, BaseException):
            return ["error type", name_of(value)]
        return self._other(value, part)

    def _error(self, error: BaseException, part: Callable[[Any], Any]) -> list[Any]:
        """An exception with its arguments and attributes; what does not travel becomes text, or stays behind."""
        remote = isinstance(error, RemoteCallError)
        self._inside += 1
        try:
            args = [arg if self._travels(arg) else _shown(arg) for arg in error.args]
            attributes = {key: item for key, item in vars(error).items() if key not in _OURS and self._travels(item)}
            given = {key: item for key, item in sent_members(error).items() if item is not None}  # None: not set
            members = {key: item for key, item in given.items() if self._travels(item)}
            failures = (
                [failure_texts(failure) for failure in error.failures] if isinstance(error, RemoteCallError) else []
            )
            name = name_of(raised_type(type(error)))
            return ["error", name, remote, as_unicode(_text(error)), *map(part, (args, attributes, members, failures))]
        finally:
            self._inside -= 1

    def _travels(self, value: Any) -> bool:
        if self._inside > _DEEPEST:
            return isinstance(value, str | int | float | None)
        try:
            encode(value, self._types, named=self.node)
        except (WireTypeError, RecursionError):
            return False
        return True


class TagReader:
    """Makes the values of described nodes.

    Args:
        find_error: The class of an exception by its name; None if it is not known here.
        other: Makes what one side alone knows.
    """

    def __init__(self, find_error: Callable[[str], type | None], other: Callable[[list[Any]], Any]) -> None:
        self._find_error = find_error
        self._other = other

    def value(self, node: list[Any]) -> Any:
        """The value of a node.

        Raises:
            WireFormatError: It is not known.
        """
        tag, *parts = node
        if tag == "itself":
            return Itself.ITSELF
        if tag == "replicate" and len(parts) == 1:
            return Replicated(parts[0])
        if tag == "mesh" and len(parts) == 1 and isinstance(parts[0], dict):
            try:
                return DeviceMesh.from_dict(parts[0])
            except (ValueError, TypeError, KeyError) as error:
                raise WireFormatError(f"this is no mesh: {error}") from None
        if tag == "error type" and len(parts) == 1 and isinstance(parts[0], str):
            return self._find_error(parts[0]) or RemoteCallError
        if tag == "error":
            return self._made(*parts)
        return self._other(node)

    def _made(
        self,
        name: str,
        remote: bool,
        text: str,
        args: Sequence[Any],
        attributes: Mapping[str, Any],
        members: Mapping[str, Any],
        failures: Sequence[Sequence[Any]],
    ) -> BaseException:
        kind = self._find_error(name)
        error: Any = None
        if kind is not None:
            whole: Any = both_type(cast("Any", kind)) if remote and issubclass(kind, Exception) else kind
            try:
                error = remade(whole, tuple(args), attributes, members)
            except Exception:  # the class may refuse to be made like this; the text remains
                error = None
        if error is None:
            error = RemoteCallError(text if remote else f"{name}: {text}")
        if isinstance(error, RemoteCallError):
            error._text = text
            error.failures = tuple(map(failure_of, failures))
        return error  # type: ignore[no-any-return]  # made without a constructor


def failure_of(texts: Sequence[Any], live: BaseException | None = None) -> Failure:
    """A failure of its texts, and its exception."""
    return Failure(**dict(zip(_OF_FAILURE, texts, strict=True)), live=live)


def own_error_type(name: str) -> type | None:
    """An exception class of Python's or of these packages, by its name; nothing is imported."""
    found = getattr(builtins, name.removeprefix("builtins."), None)
    if name.startswith(f"{errors.__name__}."):
        found = vars(errors).get(name.removeprefix(f"{errors.__name__}."))
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def failure_texts(failure: Failure) -> list[Any]:
    """The texts of a failure, apart from its exception."""
    texts = [getattr(failure, field) for field in _OF_FAILURE]
    return [as_unicode(text) if isinstance(text, str) else text for text in texts]


def as_unicode(text: str) -> str:
    """A text that travels: escapes stand for lone surrogates, as those of file names that are no UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def error_bytes(error: BaseException, types: TypeNames, other: TagOf) -> bytes:
    """An encoded exception; an error of another type with its text, if it does not travel."""
    try:
        return encode(error, types, what="the error", named=TagWriter(types, other).node).to_bytes()
    except Exception:  # whatever its own attributes raise: who waits for the call is told all the same
        plain = RemoteCallError(f"{name_of(raised_type(type(error)))}: {as_unicode(_text(error))}")
        return encode(plain, types, named=TagWriter(types, other).node).to_bytes()


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:  # a user's __str__ may itself fail
        return f"<str() of the exception raised {type(broken).__name__}>"


def _shown(value: object) -> str:
    try:
        return repr(value)
    except Exception as broken:  # as above
        return f"<repr() of a {type(value).__name__} raised {type(broken).__name__}>"
