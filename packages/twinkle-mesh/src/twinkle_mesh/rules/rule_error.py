"""The error of a value that breaks a rule, with values that satisfy it."""

from __future__ import annotations

from .messages import join_or

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any


class RuleError(ValueError):
    """A value breaks a rule. The error offers values that satisfy the rule.

    Args:
        problem: The field, the rule and the values.
        options: For each field, the values that satisfy the rule, the nearest first.
        named: Whether the offer repeats the name of the field that `problem` starts with.
        most: How many values of a field the error offers at most.
    """

    def __init__(
        self,
        problem: str,
        options: Mapping[str, Sequence[object]],
        *,
        named: bool = True,
        most: int = 4,
    ) -> None:
        self.problem = problem
        self.options = options
        self.named = named
        self.most = most
        super().__init__(problem, options)

    def __str__(self) -> str:
        """The problem and the offer, made when it is read: `fitting` meets thousands of errors that nobody reads."""
        offered = {field: list(values[: self.most]) for field, values in self.options.items()}
        return f"{self.problem}; {self._offer(offered)}"

    def fitting(self, build: Callable[[Mapping[str, Any]], object], fields: Mapping[str, Any]) -> ValueError:
        """Return an error whose offers `build` accepts together with the other fields.

        Args:
            build: The function that raised this error.
            fields: All fields that it was called with.
        """
        found: dict[str, list[object]] = {}
        first: tuple[str, object, str] | None = None
        nested: list[tuple[dict[str, object], RuleError]] = []
        for field, values in self.options.items():
            for value in values:
                if len(found.get(field, ())) == self.most:
                    break
                try:
                    build({**fields, field: value})
                except RuleError as error:
                    first = first or (field, value, error.problem)
                    nested.append(({field: value}, error))
                except ValueError as error:
                    first = first or (field, value, str(error))
                else:
                    found.setdefault(field, []).append(value)
        if found or first is None:
            return ValueError(f"{self.problem}; {self._offer(found)}")
        changes = _together(build, fields, nested)
        if changes:
            return ValueError(f"{self.problem}; use {' and '.join(_named(*each) for each in changes.items())}")
        field, value, problem = first
        return ValueError(f"{self.problem}; with {_named(field, value)} instead, {problem}")

    def _offer(self, options: Mapping[str, list[object]]) -> str:
        ordered = {field: sorted(values, key=_size) for field, values in options.items() if values}
        if not self.named:
            offer = join_or(map(_shown, *ordered.values()))
        elif all(len(values) == 1 for values in ordered.values()):
            offer = join_or(_named(field, value) for field, [value] in ordered.items())
        else:
            offer = "; or ".join(f"{field}={join_or(map(_shown, values))}" for field, values in ordered.items())
        return f"use {offer}"


def _together(
    build: Callable[[Mapping[str, Any]], object],
    fields: Mapping[str, Any],
    tried: Sequence[tuple[dict[str, object], RuleError]],
) -> dict[str, object]:
    """Return the first changes of several fields that `build` accepts together; empty where a few tries find none.

    Args:
        build: As for `RuleError.fitting`.
        fields: Likewise.
        tried: Changes, each with the rule that breaks with it.
    """
    for _ in range(_MOST_FIELDS - 1):
        further: list[tuple[dict[str, object], RuleError]] = []
        for changes, error in tried[:_MOST_TRIES]:
            for field, values in error.options.items():
                for value in values[:_MOST_TRIES]:
                    # A field that was changed already is left: the offers of two rules could take turns.
                    if field in changes:
                        continue
                    together = {**changes, field: value}
                    try:
                        build({**fields, **together})
                    except RuleError as next_error:
                        further.append((together, next_error))
                    except ValueError:
                        continue
                    else:
                        return together
        tried = further
    return {}


_MOST_FIELDS = 4
_MOST_TRIES = 32


def _named(field: str, value: object) -> str:
    return f"{field}={_shown(value)}"


def _shown(value: object) -> str:
    return repr(value)


def _size(value: object) -> int:
    return value if isinstance(value, int) else 0
