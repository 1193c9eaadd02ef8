"""Bodies: bytes <-> T, once per body type.

A codec is made when a mailbox is opened and cached; making one is slow, using it is not. Every body is read back
before it is sent: a message that its own receiver could not decode must not be accepted in the first place.

| body type                                          | content type                | written as                |
|----------------------------------------------------|-----------------------------|---------------------------|
| bytes                                              | application/octet-stream    | itself                    |
| str                                                | text/plain; charset=utf-8   | UTF-8                     |
| None, Any: plain JSON values                       | application/json            | JSON                      |
| dataclass, Struct, TypedDict, list[...], int, ...  | application/json            | JSON, validated           |
| pydantic model                                     | application/json            | by pydantic               |
| a union of classes JSON alone cannot tell apart    | application/json; type=Name | as that member is         |

`content_type="application/msgpack"` on a send writes MessagePack instead, where msgspec knows the type. Nothing is
ever imported because a message names it: `type=` is looked up among the members of the mailbox's own union.
"""

from __future__ import annotations

import json
import math
import sys
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, Generic, TypeVar, Union, cast, get_args, get_origin

import msgspec

from postroom.core.limits import MAX_DEPTH
from postroom.errors import ConfigurationError, InvalidMessageError, InvalidParameterError, SerializationError

T = TypeVar("T")

JSON = "application/json"
MSGPACK = "application/msgpack"
TEXT = "text/plain; charset=utf-8"
BINARY = "application/octet-stream"
REFERENCE = "application/x-python-object"  # no bytes: the object itself, on a store that passes references


class Codec(ABC, Generic[T]):
    """Turns bodies of one type into bytes and back."""

    body_type: object
    content_type: str

    @abstractmethod
    def encode(self, body: T, content_type: str | None = None) -> tuple[bytes, str]:
        """(bytes, content type) of a body that fits; SerializationError for one that does not."""

    @abstractmethod
    def decode(self, data: bytes, content_type: str) -> T:
        """The body; InvalidMessageError when these bytes are none."""


def codec_for(body_type: type[T] | object) -> Codec[T]:
    """The codec of a body type: one instance for each."""
    try:
        return cast("Codec[T]", _make(cast("Hashable", body_type)))
    except TypeError as error:
        raise ConfigurationError(f"{body_type!r} cannot be the type of a mailbox's bodies: {error}") from error


@lru_cache(maxsize=512)
def _make(body_type: object) -> Codec[Any]:
    if body_type is bytes:
        return _Bytes()
    if body_type is str:
        return _Text()
    if body_type is None or body_type is Any or body_type is object:
        return _Plain()
    members = get_args(body_type) if get_origin(body_type) in (Union, types.UnionType) else ()
    if _mentions_pydantic(body_type):
        if members and not all(_mentions_pydantic(member) for member in members):
            return _Tagged(body_type, members)
        return _Tagged(body_type, members) if members else _Pydantic(body_type)
    if bytes in members:
        return _Tagged(body_type, members)
    if isinstance(body_type, type) and isinstance(msgspec.inspect.type_info(body_type), msgspec.inspect.CustomType):
        raise TypeError(
            "make it a dataclass, a msgspec.Struct, a TypedDict or a pydantic model"
        )  # else no send would fit
    try:
        return _Typed(body_type)
    except TypeError:
        if not members:
            raise
        return _Tagged(body_type, members)  # e.g. two dataclasses: JSON alone cannot say which


class _Bytes(Codec[bytes]):
    body_type: object = bytes
    content_type = BINARY

    def encode(self, body: bytes, content_type: str | None = None) -> tuple[bytes, str]:
        if type(body) is not bytes:
            raise _misfit(body, "bytes")
        return body, content_type or BINARY

    def decode(self, data: bytes, content_type: str) -> bytes:
        return data


class _Text(Codec[str]):
    body_type: object = str
    content_type = TEXT

    def encode(self, body: str, content_type: str | None = None) -> tuple[bytes, str]:
        if not isinstance(body, str):
            raise _misfit(body, "str")
        try:
            return body.encode(), content_type or TEXT
        except UnicodeEncodeError as error:
            raise SerializationError(f"a text body must be writable as UTF-8: {error}") from error

    def decode(self, data: bytes, content_type: str) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise InvalidMessageError(f"a text body is not UTF-8: {error}") from error


_json_encode = msgspec.json.Encoder().encode
_msgpack_encode = msgspec.msgpack.Encoder().encode


class _Typed(Codec[Any]):
    """Everything msgspec knows: strict, typed, in C."""

    content_type = JSON

    def __init__(self, body_type: object) -> None:
        self.body_type = body_type
        self._json_decode: Callable[[bytes], Any] = msgspec.json.Decoder(cast("type[Any]", body_type)).decode
        self._msgpack_decode: Callable[[bytes], Any] = msgspec.msgpack.Decoder(cast("type[Any]", body_type)).decode
        # Any is a class since 3.11, but not one that isinstance takes.
        plain_class = isinstance(body_type, type) and body_type is not Any and not _is_typed_dict(body_type)
        self._class = body_type if plain_class and isinstance(body_type, type) else None

    def encode(self, body: Any, content_type: str | None = None) -> tuple[bytes, str]:
        if self._class is not None and not isinstance(body, self._class):
            raise _misfit(body, _name(self.body_type))
        packed = content_type is not None and _is_msgpack(content_type, self.body_type)
        try:
            if packed:
                data = _msgpack_encode(body)
                self._msgpack_decode(data)
            else:
                data = _json_encode(body)
                self._json_decode(data)
                if data.find(b"null") >= 0 and _has_nan(msgspec.to_builtins(body)):
                    raise ValueError("NaN and infinity cannot be written as JSON")
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise SerializationError(f"the body does not fit {_name(self.body_type)}: {error}") from error
        return data, content_type or JSON

    def decode(self, data: bytes, content_type: str) -> Any:
        try:
            if content_type != JSON and _says_msgpack(content_type):
                return self._msgpack_decode(data)
            body = self._json_decode(data)
            if _json_encode(body) != data:
                # Not written the way we write: look for keys given twice, which a decoder passes over.
                check_strict(data)
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
            raise InvalidMessageError(f"the body is no {_name(self.body_type)}: {error}") from error
        return body


class _Plain(_Typed):
    """Plain JSON values: what arrives equals what was sent, so nothing that JSON would turn into something else."""

    def __init__(self) -> None:
        super().__init__(Any)

    def encode(self, body: Any, content_type: str | None = None) -> tuple[bytes, str]:
        _check_plain(body, "the body", 0)
        return super().encode(body, content_type)

    def decode(self, data: bytes, content_type: str) -> Any:
        body = super().decode(data, content_type)
        if _too_deep(body, 0):
            raise InvalidMessageError(f"the body is nested deeper than {MAX_DEPTH}")
        return body


class _Pydantic(Codec[Any]):
    """pydantic models, by their own rules. pydantic is imported only when a body type is one of its models."""

    content_type = JSON

    def __init__(self, body_type: object) -> None:
        import pydantic

        self.body_type = body_type
        self._adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(cast("type[Any]", body_type))
        self._class = body_type if isinstance(body_type, type) else None

    def encode(self, body: Any, content_type: str | None = None) -> tuple[bytes, str]:
        if content_type is not None and not _says_json(content_type):
            raise InvalidParameterError(f"{_name(self.body_type)} is written as JSON, not as {content_type!r:.80}")
        if self._class is not None and not isinstance(body, self._class):
            raise _misfit(body, _name(self.body_type))
        try:
            data = self._adapter.dump_json(body, warnings="error", by_alias=True)
            self._adapter.validate_json(data)
        except (ValueError, TypeError, RecursionError) as error:  # pydantic's errors are ValueErrors
            raise SerializationError(f"the body does not fit {_name(self.body_type)}: {error}") from error
        return data, content_type or JSON

    def decode(self, data: bytes, content_type: str) -> Any:
        try:
            body = self._adapter.validate_json(data)
            check_strict(data)
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidMessageError(f"the body is no {_name(self.body_type)}: {error}") from error
        return body


class Reference(Codec[Any]):
    """No bytes at all: on a store in the same process the body is handed over itself."""

    content_type = JSON

    def __init__(self, body_type: object) -> None:
        if not (body_type is None or callable(body_type) or get_origin(body_type) is not None):
            raise ConfigurationError(f"{body_type!r:.80} cannot be the type of a mailbox's bodies: it is no type")
        self.body_type = body_type
        plain_class = isinstance(body_type, type) and body_type is not Any and body_type is not object
        self._class = (
            body_type if plain_class and isinstance(body_type, type) and not _is_typed_dict(body_type) else None
        )

    def encode(self, body: Any, content_type: str | None = None) -> tuple[bytes, str]:
        if self._class is not None and not isinstance(body, self._class):
            raise _misfit(body, _name(self.body_type))
        return body, content_type or REFERENCE  # the store's capabilities say by_reference: "bytes" is the object

    def decode(self, data: bytes, content_type: str) -> Any:
        if content_type is REFERENCE or type(data) is not bytes or self.body_type is bytes:
            return data
        return codec_for(self.body_type).decode(data, content_type)  # sent as bytes, by the raw client


def bytes_of(body: object, content_type: str) -> tuple[bytes, str]:
    """(bytes, content type) of what a raw receiver gets; a body passed by reference is shown as JSON if it can be."""
    if type(body) is bytes:
        return body, content_type
    try:
        return _json_encode(body), JSON
    except (TypeError, ValueError, OverflowError, RecursionError):
        return repr(body).encode(errors="backslashreplace"), TEXT


class _Tagged(Codec[Any]):
    """A union whose members JSON alone cannot tell apart: the content type says which one it is."""

    content_type = JSON

    def __init__(self, body_type: object, members: tuple[object, ...]) -> None:
        self.body_type = body_type
        self._codecs: dict[str, Codec[Any]] = {}
        self._types: list[tuple[object, str]] = []
        for member in members:
            name = _name(member)
            if name in self._codecs:
                raise TypeError(f"two members are called {name}, and only the name travels; rename one")
            self._codecs[name] = _make(type(None) if member is None else member)
            self._types.append((get_origin(member) or member, name))

    def encode(self, body: Any, content_type: str | None = None) -> tuple[bytes, str]:
        name = next((name for kind, name in self._types if type(body) is kind), None) or next(
            (name for kind, name in self._types if _fits(body, kind)), None
        )
        if name is None:
            raise _misfit(body, _name(self.body_type))
        data, kind = self._codecs[name].encode(body, content_type)
        return data, f"{kind}; type={name}"

    def decode(self, data: bytes, content_type: str) -> Any:
        kind, _, parameter = content_type.partition("; type=")
        if parameter:
            codec = self._codecs.get(parameter)
            if codec is None:
                raise InvalidMessageError(
                    f"the body says it is a {parameter!r:.80}, which is not in this mailbox's type"
                )
            return codec.decode(data, kind)
        for codec in self._codecs.values():  # somebody else's message, without our tag: the first member that fits
            try:
                return codec.decode(data, kind)
            except InvalidMessageError:
                continue
        raise InvalidMessageError(f"the body is no {_name(self.body_type)}")


def check_strict(data: bytes) -> None:
    """Refuse JSON that says a key twice, or NaN: two readers could understand it differently."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise ValueError("a key is given twice in one object")
        return result

    def never(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    json.loads(data, object_pairs_hook=once, parse_constant=never)


def _check_plain(value: Any, where: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise SerializationError(f"the body is nested deeper than {MAX_DEPTH}")
    kind = type(value)
    if value is None or kind is str or kind is int or kind is bool:
        return
    if kind is float:
        if not math.isfinite(value):
            raise SerializationError(f"{where} is {value}, which JSON cannot carry")
    elif kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise SerializationError(f"{where} has the key {key!r:.80}; keys of plain JSON bodies are str")
            _check_plain(item, f"{where}[{key!r:.80}]", depth + 1)
    elif kind is list:
        for index, item in enumerate(value):
            _check_plain(item, f"{where}[{index}]", depth + 1)
    else:
        raise SerializationError(
            f"{where} is a {kind.__name__}, which is no plain JSON value; open the mailbox with that type: "
            f"mailbox(name, {kind.__name__})"
        )


def _too_deep(value: Any, depth: int) -> bool:
    if depth > MAX_DEPTH:
        return True
    if isinstance(value, dict):
        return any(_too_deep(item, depth + 1) for item in value.values() if isinstance(item, (dict, list)))
    if isinstance(value, list):
        return any(_too_deep(item, depth + 1) for item in value if isinstance(item, (dict, list)))
    return False


def _has_nan(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_nan, value.values()))
    return isinstance(value, (list, tuple)) and any(map(_has_nan, value))


def _is_msgpack(content_type: str, body_type: object) -> bool:
    if _says_msgpack(content_type):
        return True
    if _says_json(content_type):
        return False
    raise InvalidParameterError(
        f"{_name(body_type)} is written as JSON or MessagePack; content_type={content_type!r:.80} is neither. "
        "Send other formats through a mailbox of bytes."
    )


def _says_msgpack(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind in (MSGPACK, "application/x-msgpack") or kind.endswith("+msgpack")


def _says_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == JSON or kind.endswith("+json")


def _mentions_pydantic(body_type: object) -> bool:
    if "pydantic" not in sys.modules:
        return False  # then no body type can be one of its models
    if hasattr(body_type, "__pydantic_validator__"):
        return True
    return any(_mentions_pydantic(part) for part in get_args(body_type))


def _is_typed_dict(body_type: type) -> bool:
    return hasattr(body_type, "__total__") and issubclass(body_type, dict)


def _fits(body: Any, kind: object) -> bool:
    if kind is None or kind is type(None):
        return body is None
    if not isinstance(kind, type):
        return False
    return isinstance(body, dict) if _is_typed_dict(kind) else isinstance(body, kind)


def _name(body_type: object) -> str:
    if isinstance(body_type, type) and not get_args(body_type):
        return body_type.__name__
    return str(body_type).replace("typing.", "")


def _misfit(body: object, wanted: str) -> SerializationError:
    return SerializationError(f"the body is of type {type(body).__name__}, and this mailbox carries {wanted}")
