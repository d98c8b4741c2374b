"""The directive `public-names`: the reference of the names in a module's `__all__`.

A name that another package of the workspace defines gets a line that leads to that package's page.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sphinx.ext.napoleon.docstring import GoogleDocstring
from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from collections.abc import Iterator

    from docutils import nodes
    from sphinx.application import Sphinx

PACKAGES = ("twinkle_mesh", "twinkle_remote", "twinkle_data", "twinkle_ray", "twinkle_http")
KINDS = {"autofunction": "Functions", "autoclass": "Classes", "autodata": "Types", "autoexception": "Errors"}
_PRIVATE = re.compile(r", _\w+: [^,()]*?(?=[,)])")


class PublicNames(SphinxDirective):
    """Describe each public name of the module that is the argument."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the descriptions, by kind and in the alphabet's order."""
        module = import_module(self.arguments[0])
        values = {name: getattr(module, name) for name in sorted(module.__all__, key=str.lower)}
        lines: list[str] = []
        for kind, title in KINDS.items():
            described = [
                line for name, value in values.items() if _kind(value) == kind for line in _lines(module, name)
            ]
            lines += ["", f".. rubric:: {title}", "", *described] if described else []
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=False)


def _lines(module: Any, name: str) -> Iterator[str]:
    value, home = getattr(module, name), _home(module.__name__, name)
    if home != module.__name__:
        yield f"* :py:obj:`{name} <{home}.{name}>`: {inspect.cleandoc(value.__doc__ or '').partition(chr(10))[0]}"
        return
    kind = _kind(value)
    yield from ("", f".. {kind}:: {module.__name__}.{name}")
    if kind == "autoexception":
        yield "   :show-inheritance:"
    yield ""


def _home(module: str, name: str) -> str:
    """Return the package that a name of `twinkle` is taken from."""
    if module != "twinkle":
        return module
    return next((package for package in PACKAGES if name in import_module(package).__all__), module)


def _kind(value: Any) -> str:
    if isinstance(value, type):
        return "autoexception" if issubclass(value, BaseException) else "autoclass"
    return "autofunction" if callable(value) else "autodata"


def without_private(_app: Sphinx, what: str, _name: str, _value: Any, _options: Any, *written: str | None) -> Any:
    """Leave fields out of a dataclass's signature whose names begin with an underscore."""
    signature, result = written
    return (_PRIVATE.sub("", signature), result) if what == "class" and signature is not None else None


def as_of_method(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Read the docstring of a property or a field as a method's.

    Napoleon takes what is before the first colon for a type. A named tuple's field without a text gets one of Python.
    """
    if lines and lines[0].startswith("Alias for field number"):
        lines.clear()
    elif what in {"property", "attribute", "data"}:
        read = GoogleDocstring(list(lines), app.config, app, "method", name, value, options).lines()
        lines[:] = ["..", "", *read]  # an empty comment, as blank lines are passed over


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("public-names", PublicNames)
    app.connect("autodoc-process-signature", without_private)
    app.connect("autodoc-process-docstring", as_of_method, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
