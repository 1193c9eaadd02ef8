"""What a handler takes: the body, or the message if it is annotated so."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any

from postroom.errors import InvalidParameterError
from postroom.flows.held import Held

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def is_async(handler: Callable[..., Any]) -> bool:
    """Whether calling it gives something to await."""
    call = getattr(handler, "func", handler)  # of a partial
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(getattr(call, "__call__", None))  # noqa: B004


def wants_message(handler: Callable[..., Any]) -> bool:
    """Whether it is to be given the message itself. One that cannot be called with one argument is refused."""
    if not callable(handler):
        raise InvalidParameterError(f"a handler is a function of one argument, not a {type(handler).__name__}")
    try:
        parameters = list(inspect.signature(handler).parameters.values())
    except (TypeError, ValueError):
        return False  # some built-in: it will do with a body
    takes = [p for p in parameters if p.kind in _POSITIONAL]
    needs = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    keyword = [p for p in needs if p.kind is p.KEYWORD_ONLY]
    starred = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if keyword or len(needs) > 1 or not (takes or starred):
        raise InvalidParameterError(
            f"a handler takes one argument, the body, or the message if it is annotated as Message; "
            f"{_name(handler)}{inspect.signature(handler)} cannot be called so"
        )
    return bool(takes) and _is_message(handler, takes[0])


def _is_message(handler: Callable[..., Any], parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation
    if isinstance(annotation, str):
        function = inspect.unwrap(getattr(handler, "func", handler))
        function = function if inspect.isroutine(function) else type(function).__call__
        try:
            annotation = typing.get_type_hints(function).get(parameter.name, annotation)
        except Exception:  # a name that only the type checker knows
            word = annotation.partition("[")[0].rpartition(".")[2]
            return word in ("Message", "AsyncMessage")
    origin = typing.get_origin(annotation) or annotation
    return isinstance(origin, type) and issubclass(origin, Held)


def _name(handler: object) -> str:
    return getattr(handler, "__qualname__", type(handler).__name__)
