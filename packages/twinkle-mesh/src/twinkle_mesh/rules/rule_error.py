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
        would: The last words of the offer.
    """

    def __init__(
        self,
        problem: str,
        options: Mapping[str, Sequence[object]],
        *,
        named: bool = True,
        most: int = 4,
        would: str = "would",
    ) -> None:
        self.problem = problem
        self.options = options
        self.named = named
        self.most = most
        self.would = would
        super().__init__(f"{problem}; {self._offer({field: list(values[:most]) for field, values in options.items()})}")

    def fitting(self, build: Callable[[Mapping[str, Any]], object], fields: Mapping[str, Any]) -> ValueError:
        """Return an error whose offers `build` accepts together with the other fields.

        Args:
            build: The function that raised this error.
            fields: All fields that it was called with.
        """
        found: dict[str, list[object]] = {}
        first: tuple[str, object, str] | None = None
        for field, values in self.options.items():
            for value in values:
                if len(found.get(field, ())) == self.most:
                    break
                try:
                    build({**fields, field: value})
                except ValueError as error:
                    first = first or (field, value, error.problem if isinstance(error, RuleError) else str(error))
                else:
                    found.setdefault(field, []).append(value)
        if found or first is None:
            return ValueError(f"{self.problem}; {self._offer(found)}")
        field, value, problem = first
        return ValueError(f"{self.problem}; with {field}={value} instead, {problem}")

    def _offer(self, options: Mapping[str, list[object]]) -> str:
        ordered = {field: sorted(values, key=_size) for field, values in options.items() if values}
        if not self.named:
            offer = join_or(*ordered.values())
        elif all(len(values) == 1 for values in ordered.values()):
            offer = join_or(f"{field}={value}" for field, [value] in ordered.items())
        else:
            offer = "; or ".join(f"{field}={join_or(values)}" for field, values in ordered.items())
        return f"{offer} {self.would}"


def _size(value: object) -> int:
    assert isinstance(value, int)
    return value
