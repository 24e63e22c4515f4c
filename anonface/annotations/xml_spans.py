"""XML with the place of each element in its bytes, so that a change leaves all others as they are.

The parser is expat without entities: a file with a document type is refused, so nothing in it can be expanded.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from anonface.annotations.base import broken

MOST_LEVELS = 64
_TAG = re.compile(rb"<(?:\"[^\"]*\"|'[^']*'|[^'\">])*>")
_ATTRIBUTE = re.compile(rb"([^\s=<>\"'/]+)\s*=\s*(\"[^\"]*\"|'[^']*')")
_ENCODINGS = ("utf-8", "ascii", "iso8859-1")  # of which bytes below 128 are ASCII


@dataclass
class Element:
    """An element of a file.

    Args:
        name, attributes, text, children: as the parser gives them; ``text`` without that of the children.
        start, inner, close, end: offsets in the file's bytes: of the element, its content, its end tag, and its end.
    """

    name: str
    attributes: dict[str, str]
    start: int
    inner: int
    close: int = 0
    end: int = 0
    text: str = ""
    children: list[Element] = field(default_factory=list)

    def all(self, name: str) -> list[Element]:
        """The children of a name."""
        return [child for child in self.children if child.name == name]

    def first(self, name: str) -> Element | None:
        """The first child of a name."""
        return next(iter(self.all(name)), None)

    def below(self) -> Iterator[Element]:
        """All elements in it, at any depth."""
        for child in self.children:
            yield child
            yield from child.below()


class Xml:
    """An XML file; changes are collected, then applied by :meth:`changed`.

    Raises:
        AnnotationError: it is not well-formed, has a document type, or another encoding than UTF-8 or Latin-1.
    """

    def __init__(self, data: bytes, file: Path) -> None:
        self._data, self._encoding = data, "utf-8"
        self.root = self._parsed(file)

    def _parsed(self, file: Path) -> Element:
        parser = expat.ParserCreate()
        open_elements: list[Element] = []
        roots: list[Element] = []

        def declared(version: str, encoding: str | None, standalone: int) -> None:
            try:
                self._encoding = codecs.lookup(encoding or "utf-8").name
            except LookupError:
                self._encoding = ""
            if self._encoding not in _ENCODINGS:
                raise broken(file, f"its encoding is {encoding}", "save it as UTF-8")

        def refused(*_: object) -> None:
            raise broken(file, "it has a document type (DTD), which is not read", "remove the line <!DOCTYPE ...>")

        def started(name: str, attributes: dict[str, str]) -> None:
            if len(open_elements) >= MOST_LEVELS:
                raise broken(file, "its elements are nested too deeply")
            at = parser.CurrentByteIndex
            tag = _TAG.match(self._data, at)
            element = Element(name, attributes, at, tag.end() if tag else at)
            (open_elements[-1].children if open_elements else roots).append(element)
            open_elements.append(element)

        def ended(name: str) -> None:
            element, at = open_elements.pop(), parser.CurrentByteIndex
            if self._data[element.inner - 2 : element.inner] == b"/>":
                element.close = element.end = element.inner
                return
            element.close, element.end = at, self._data.index(b">", at) + 1

        def said(text: str) -> None:
            if open_elements:
                open_elements[-1].text += text

        parser.XmlDeclHandler = declared
        parser.StartDoctypeDeclHandler = refused
        parser.StartElementHandler, parser.EndElementHandler = started, ended
        parser.CharacterDataHandler = said
        parser.buffer_text = False
        if self._data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise broken(file, "its encoding is UTF-16", "save it as UTF-8")
        try:
            parser.Parse(self._data, True)
        except expat.ExpatError as error:
            raise broken(file, f"not well-formed XML, line {error.lineno}: {expat.ErrorString(error.code)}") from None
        return roots[0]

    def text_change(self, element: Element, text: str) -> tuple[int, int, bytes]:
        """The change that gives an element without children another text."""
        return element.inner, element.close, self._encoded(escape(text))

    def attribute_change(self, element: Element, name: str, value: str) -> tuple[int, int, bytes]:
        """The change that gives an attribute another value; the element must have it."""
        for found in _ATTRIBUTE.finditer(self._data, element.start, element.inner):
            if found[1].decode(self._encoding, "replace") == name:
                return found.start(2), found.end(2), self._encoded(quoteattr(value))
        raise KeyError(name)

    def removal(self, element: Element) -> tuple[int, int, bytes]:
        """The change that removes an element and the blanks before it."""
        start = element.start
        while start and self._data[start - 1 : start].isspace():
            start -= 1
        return start, element.end, b""

    def changed(self, changes: list[tuple[int, int, bytes]]) -> bytes:
        """The file after these changes, which must not overlap."""
        pieces, at = [], 0
        for start, end, new in sorted(changes):
            pieces += [self._data[at:start], new]
            at = end
        return b"".join([*pieces, self._data[at:]])

    def _encoded(self, text: str) -> bytes:
        return text.encode(self._encoding, "xmlcharrefreplace")
